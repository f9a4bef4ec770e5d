import csv
import io
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_data import make_table, write_image
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from benchmarks_toybox_ilab.tables.csv import COLUMNS
from benchmarks_toybox_ilab.tables.disk import readable_size
from benchmarks_toybox_ilab.tables.frame import BadFrameError, Frame, FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

CUP = Frame("cup/1/a/0.jpg", "cup", "cup1", "a", 0, "train")
CUP_TEST = Frame("cup/1/b/0.jpg", "cup", "cup1", "b", 0, "test")
BALL = Frame("ball/1/a/0.jpg", "ball", "ball1", "a", 0, "train")


def test_a_table_keeps_its_rows():
    table = FrameTable([CUP, BALL, CUP_TEST])
    assert list(table) == [CUP, BALL, CUP_TEST]
    assert len(table) == 3
    assert table.path == ("cup/1/a/0.jpg", "ball/1/a/0.jpg", "cup/1/b/0.jpg")


def test_labels_are_positions_of_classes():
    table = FrameTable([CUP, BALL, CUP_TEST])
    assert table.classes == ("ball", "cup")
    assert table.labels.dtype == np.int64
    assert table.labels.tolist() == [1, 0, 1]
    assert not table.labels.flags.writeable


def test_classes_are_in_natural_order():
    names = ("c10", "c9", "c1")
    table = FrameTable(replace(CUP, path=name, class_name=name) for name in names)
    assert table.classes == ("c1", "c9", "c10")


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        ((), [0, 1, 2]),
        (("train",), [0, 1]),
        (("train", "cup"), [0]),
        ((None, "cup"), [0, 2]),
        (("test", "ball"), []),
    ],
)
def test_rows_of_a_split_and_a_class(arguments, rows):
    table = FrameTable([CUP, BALL, CUP_TEST])
    assert table.rows(*arguments).tolist() == rows


def test_frames_are_counted():
    assert FrameTable([CUP, BALL, CUP_TEST]).counts() == {
        "ball": {"train": 1, "test": 0},
        "cup": {"train": 1, "test": 1},
    }


def test_a_table_can_be_pickled():
    table = pickle.loads(pickle.dumps(make_table()))
    assert table.content_hash() == make_table().content_hash()
    assert table.read(7).getpixel((0, 0))[0] in (7, 8)


def test_a_table_in_words():
    words = "<FrameTable 'made up': 120 frames of 5 classes, 80 train, 40 test>"
    assert repr(make_table()) == words


@pytest.mark.parametrize(
    ("rows", "clips"), [([0, 1, 2, 3], [[3, 2], [1], [0]]), ([0, 2], [[2], [0]])]
)
def test_clips_are_natural_and_ascending(rows, clips):
    frames = [
        Frame("0", "cup", "o10", "s1", 0, "train"),
        Frame("1", "cup", "o9", "s10", 5, "train"),
        Frame("2", "cup", "o9", "s2", 7, "train"),
        Frame("3", "cup", "o9", "s2", 0, "train"),
    ]
    table = FrameTable(frames)
    assert [clip.tolist() for clip in table.clips(rows)] == clips


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([], "has no frames"),
        ([replace(CUP, split="val")], "split 'val'; a split is 'train' or 'test'"),
        (
            [CUP_TEST],
            "class 'cup' of the frame table has 1 test frames and no training frames",
        ),
        ([CUP, CUP], "row 1 .cup/1/a/0.jpg. repeats the path"),
        (
            [CUP, replace(CUP, path="./cup/1//a/0.jpg")],
            "row 1 .*cup/1//a/0.jpg. repeats the path",
        ),
        (
            [replace(CUP, frame=-1)],
            "frame number of row 0 .* is -1, but must be a whole number of at least 0",
        ),
        ([replace(CUP, frame=1.0)], "is 1.0, but must be a whole number"),
        ([replace(CUP, path="")], "has no path"),
        ([replace(CUP, class_name="")], "has no class"),
        ([replace(CUP, session="a\nb")], "name that contains a line break"),
    ],
)
def test_broken_rules_are_named(frames, words):
    with pytest.raises(FrameTableError, match=words):
        FrameTable(frames)


@pytest.mark.parametrize(
    ("dropped", "classes"),
    [([1], ("cup", "ball")), ([0, 1], ("ball",)), ([0], ("ball",)), ([2], ("cup",))],
)
def test_classes_keep_their_order_without_rows(dropped, classes):
    table = FrameTable([CUP, CUP_TEST, BALL], classes=["cup", "ball"])
    assert table.without(dropped).classes == classes


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda table: table.rows("val"), "no split 'val'"),
        (
            lambda table: table.rows(class_name="dog"),
            "no class 'dog'; the classes are ball, cup",
        ),
        (
            lambda table: table.without([0, 3]),
            "no row 3; frame table 'mine' has rows 0 to 2",
        ),
        (lambda table: table.without([-1]), "no row -1"),
        (lambda table: table.without([0, 2]), "has no frames; a table needs at least"),
    ],
)
def test_what_a_table_does_not_have(call, words):
    with pytest.raises(FrameTableError, match=words):
        call(FrameTable([CUP, CUP_TEST, BALL], name="mine"))


@pytest.mark.parametrize("classes", [["cup"], ["cup", "cup", "ball"], ["cup", "dog"]])
def test_classes_that_are_not_those_of_the_table(classes):
    words = r"classes is cup.*any order, each once: ball, cup"
    with pytest.raises(FrameTableError, match=words):
        FrameTable([CUP, CUP_TEST, BALL]).with_classes(classes)


def test_other_labels_for_the_same_rows():
    table = FrameTable([CUP, BALL])
    renamed = table.with_classes(["cup", "ball"])
    assert renamed.classes == ("cup", "ball")
    assert renamed.labels.tolist() == [0, 1]
    assert not renamed.labels.flags.writeable
    assert renamed.content_hash() == table.content_hash()
    assert renamed.rows(class_name="ball").tolist() == [1]


def test_other_labels_leave_the_table():
    table = FrameTable([CUP, BALL])
    table.with_classes(["cup", "ball"])
    assert table.classes == ("ball", "cup")
    assert table.labels.tolist() == [1, 0]


def test_classes_may_be_given():
    table = FrameTable([CUP, BALL], classes=["cup", "ball"])
    assert table.labels.tolist() == [0, 1]


def test_a_padded_table_repeats_frames_inside_a_clip():
    assert len(FrameTable([CUP, replace(CUP, frame=1)], padded=True)) == 2


def test_a_padded_table_repeats_no_frame_elsewhere():
    words = "a padded table repeats a frame only within its clip"
    with pytest.raises(FrameTableError, match=words):
        FrameTable([CUP, replace(CUP, frame=1, session="b")], padded=True)


NAMES = st.text(
    st.characters(blacklist_characters="\r\n\0", blacklist_categories=("Cs",)),
    min_size=1,
    max_size=5,
)
FRAMES = st.lists(
    st.builds(
        Frame, NAMES, NAMES, NAMES, NAMES, st.integers(0, 2**40), st.just("train")
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda frame: frame.path,
)


@settings(max_examples=50, deadline=None)
@given(FRAMES)
def test_csv_keeps_everything(tmp_path_factory, frames):
    file = tmp_path_factory.mktemp("csv") / "frames.csv"
    table = FrameTable(frames)
    table.to_csv(file)
    again = FrameTable.from_csv(file, root="/data")
    assert list(again) == frames and again.content_hash() == table.content_hash()
    assert again.root == Path("/data") and again.name == "frames"
    assert sorted(os.listdir(file.parent)) == [".frames.csv.sha256", "frames.csv"]


@pytest.fixture
def file(tmp_path):
    """A table of one frame as CSV."""
    file = tmp_path / "frames.csv"
    FrameTable([CUP]).to_csv(file)
    return file


TEXT = "path,class,object,session,frame,split\ncup/1/a/0.jpg,cup,cup1,a,0,train\n"


def test_csv_is_plain(file):
    assert file.read_bytes() == TEXT.encode()


def test_csv_may_come_from_a_spreadsheet(file):
    content = TEXT.replace("\n", "\r\n").encode()
    file.write_bytes(b"\xef\xbb\xbf" + content + b"\r\n")
    assert list(FrameTable.from_csv(file, None)) == [CUP]


def test_rows_that_were_changed_are_refused(file):
    file.write_text(TEXT.replace("cup1", "cup2"))
    words = r"frames.csv is not what was written.*remove .*\.frames.csv.sha256"
    with pytest.raises(FrameTableError, match=words):
        FrameTable.from_csv(file, None)


def test_rows_without_a_digest_may_be_changed(file):
    file.write_text(TEXT.replace("cup1", "cup2"))
    file.with_name(".frames.csv.sha256").unlink()
    assert FrameTable.from_csv(file, None).object_name == ("cup2",)


def test_a_quote_that_nothing_closes(file):
    file.write_text(TEXT + '"' + 200_000 * "x")
    words = r"frames.csv, line 3 is no CSV: field larger"
    with pytest.raises(FrameTableError, match=words):
        FrameTable.from_csv(file, None)


CONTENT = "8c674c18c5457933e787acd4083afaf95cf2283025c9e2e047b8a4f9b855031f"
FILES = "b6f1e901ff13bda8983dfaa2229271598f3854d3151422e0104d2ea49326818a"


@pytest.mark.parametrize("arguments", [{"root": "/here"}, {"root": "/x", "name": "x"}])
def test_hashes_are_the_same_everywhere(arguments):
    """Golden values: saved results identify their table by these hashes."""
    table = FrameTable([CUP, CUP_TEST, BALL], **arguments)
    assert table.content_hash() == CONTENT
    assert table.frames_hash() == FILES


@pytest.mark.parametrize(
    "change",
    [
        {"path": "x"},
        {"class_name": "ball"},
        {"object_name": "x"},
        {"session": "x"},
        {"frame": 1},
        {"split": "train"},
    ],
)
def test_every_column_changes_the_content_hash(change):
    table = FrameTable([BALL, CUP, CUP_TEST])
    changed = FrameTable([BALL, CUP, replace(CUP_TEST, **change)])
    assert table.content_hash() != changed.content_hash()
    assert (table.frames_hash() != changed.frames_hash()) == ("path" in change)


@pytest.fixture
def photo(tmp_path):
    """The file of a frame."""
    write_image(tmp_path / "1.png", size=(64, 64))
    return tmp_path / "1.png"


def bad_frame(photo):
    """Return the error that names a frame that cannot be read."""
    table = FrameTable([replace(CUP, path=photo.name)], photo.parent)
    words = r"cannot decode frame .*1\.png.*--on-bad-frame skip"
    with pytest.raises(BadFrameError, match=words) as raised:
        table.read(0)
    return raised.value


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: b"hello",
        lambda whole: whole[:33] + bytes(40),
        lambda whole: whole[:-40],
    ],
)
def test_every_damage_is_a_bad_frame(photo, damage):
    photo.write_bytes(damage(photo.read_bytes()))
    error = bad_frame(photo)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_missing_file_is_a_bad_frame(photo):
    photo.unlink()
    bad_frame(photo)


def test_bad_frames_are_listed(photo):
    table = FrameTable([replace(CUP, path=photo.name), CUP_TEST], photo.parent)
    ((row, message),) = table.bad_rows()
    assert row == 1
    assert "cannot decode frame" in message
    assert CUP_TEST.path in message


ROWS = [
    ["cup/s1/0.png", "cup", "o1", "s1", "0", "train"],
    ["cup/s1/1.png", "cup", "o1", "s1", "1", "train"],
    ["cup/s2/0.png", "cup", "o1", "s2", "0", "test"],
    ["cup/s2/1.png", "cup", "o1", "s2", "1", "test"],
    ["mug/s1/0.png", "mug", "o1", "s1", "0", "train"],
    ["mug/s1/1.png", "mug", "o1", "s1", "1", "train"],
    ["mug/s2/0.png", "mug", "o1", "s2", "0", "test"],
    ["mug/s2/1.png", "mug", "o1", "s2", "1", "test"],
]
ODD = [
    "",
    "-1",
    "1.5",
    "9" * 5000,
    "../x.png",
    "/etc/x",
    "a\x00b",
    "a\nb",
    '"',
    "=1+1",
    "\u202e",
    "train ",
    "cup",
    "0",
]


KINDS = ("cell", "cell", "cell", "short", "long", "twice", "gone")


def change(draw, rows):
    """Change a cell or a row of a table; return its rows."""
    row = draw(st.sampled_from(rows))
    kind = draw(st.sampled_from(KINDS))
    if kind == "cell" and row:
        column = draw(st.integers(0, len(row) - 1))
        row[column] = draw(st.sampled_from(ODD) | st.text(max_size=5))
    elif kind == "short":
        del row[-1:]
    elif kind == "long":
        row.append("x")
    elif kind == "twice":
        rows.append(list(row))
    elif len(rows) > 1:
        return [candidate for candidate in rows if candidate is not row]
    return rows


@st.composite
def tables(draw):
    """The bytes of a table of which cells or rows were changed.

    Perhaps it is cut or has odd bytes.
    """
    rows = list(map(list, [COLUMNS, *ROWS]))
    for _ in range(draw(st.integers(0, 3))):
        rows = change(draw, rows)
    text = io.StringIO()
    ending = draw(st.sampled_from(["\n", "\r\n"]))
    csv.writer(text, lineterminator=ending).writerows(rows)
    content = text.getvalue().encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 4)) == 0:
        content = content[: draw(st.integers(0, len(content)))]
    if draw(st.integers(0, 4)) == 0:
        position = draw(st.integers(0, len(content)))
        odd = draw(st.binary(max_size=3))
        content = content[:position] + odd + content[position:]
    return content


@settings(phases=[Phase.generate])
@given(content=tables())
def test_a_table_written_by_hand(tmp_path_factory, content):
    """It is what it spells, or one line says what is wrong."""
    folder = tmp_path_factory.mktemp("csv")
    path = folder / "table.csv"
    path.write_bytes(content)
    try:
        table = FrameTable.from_csv(path, folder)
    except FrameTableError as error:
        text = str(error)
        assert "\n" not in text
        assert len(text) < 20_000
        assert str(path) in text
        return
    table.to_csv(folder / "again.csv")
    again = FrameTable.from_csv(folder / "again.csv", folder)
    assert list(again) == list(table)
    assert again.classes == table.classes


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (999_940, "999.9 kB"),
        (999_960, "1.0 MB"),
        (2_345_678, "2.3 MB"),
        (10**12, "1000.0 GB"),
    ],
)
def test_sizes_with_units(count, words):
    assert readable_size(count) == words
