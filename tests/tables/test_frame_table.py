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


def test_columns_and_rows_agree():
    table = FrameTable([CUP, BALL, CUP_TEST])
    assert list(table) == [CUP, BALL, CUP_TEST] and len(table) == 3
    assert table.path == ("cup/1/a/0.jpg", "ball/1/a/0.jpg", "cup/1/b/0.jpg")
    assert table.classes == ("ball", "cup")
    assert (
        table.labels.dtype == np.int64
        and table.labels.tolist() == [1, 0, 1]
        and not table.labels.flags.writeable
    )
    assert [
        table.rows(*of).tolist()
        for of in ((), ("train",), ("train", "cup"), (None, "cup"), ("test", "ball"))
    ] == [
        *([0, 1, 2], [0, 1], [0], [0, 2], []),
    ]
    assert table.counts() == {
        "ball": {"train": 1, "test": 0},
        "cup": {"train": 1, "test": 1},
    }
    natural = FrameTable(
        replace(CUP, path=name, class_name=name) for name in ("c10", "c9", "c1")
    )
    assert natural.classes == ("c1", "c9", "c10")
    table = pickle.loads(pickle.dumps(make_table()))
    assert table.content_hash() == make_table().content_hash() and table.read(
        7
    ).getpixel((0, 0))[0] in (7, 8)
    assert (
        repr(table)
        == "<FrameTable 'made up': 120 frames of 5 classes, 80 train, 40 test>"
    )


def test_clips_are_natural_and_ascending():
    names = [("o10", "s1", 0), ("o9", "s10", 5), ("o9", "s2", 7), ("o9", "s2", 0)]
    table = FrameTable(
        [Frame(str(i), "cup", *name, "train") for i, name in enumerate(names)]
    )
    assert [clip.tolist() for clip in table.clips(table.rows())] == [[3, 2], [1], [0]]
    assert [clip.tolist() for clip in table.clips([0, 2])] == [[2], [0]]


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
        (lambda table: table.without([0]), r"class 'cup' .* no training frames"),
        *(
            (
                lambda table, wrong=wrong: table.with_classes(wrong),
                r"classes is cup.*any order, each once: ball, cup",
            )
            for wrong in (["cup"], ["cup", "cup", "ball"], ["cup", "dog"])
        ),
    ],
)
def test_what_a_table_does_not_have(call, words):
    with pytest.raises(FrameTableError, match=words):
        call(FrameTable([CUP, CUP_TEST, BALL], name="mine"))


def test_other_labels_for_the_same_rows():
    table = FrameTable([CUP, BALL])
    other = table.with_classes(["cup", "ball"])
    assert table.classes == ("ball", "cup") and table.labels.tolist() == [1, 0]
    assert (
        other.classes == ("cup", "ball")
        and other.labels.tolist() == [0, 1]
        and not other.labels.flags.writeable
    )
    assert other.content_hash() == table.content_hash() and other.rows(
        class_name="ball"
    ).tolist() == [1]
    assert FrameTable([CUP, BALL], classes=["cup", "ball"]).labels.tolist() == [0, 1]


def test_a_padded_table_repeats_frames_inside_a_clip():
    again = replace(CUP, frame=1)
    assert len(FrameTable([CUP, again], padded=True)) == 2
    with pytest.raises(
        FrameTableError, match="a padded table repeats a frame only within its clip"
    ):
        FrameTable([CUP, replace(again, session="b")], padded=True)


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


def test_csv_is_plain_and_may_come_from_a_spreadsheet(tmp_path):
    file = tmp_path / "frames.csv"
    FrameTable([CUP]).to_csv(file)
    text = "path,class,object,session,frame,split\ncup/1/a/0.jpg,cup,cup1,a,0,train\n"
    assert file.read_bytes() == text.encode()
    file.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode() + b"\r\n")
    assert list(FrameTable.from_csv(file, None)) == [CUP]
    # Rows that were changed are refused.
    file.write_text(text.replace("cup1", "cup2"))
    with pytest.raises(
        FrameTableError,
        match=r"frames.csv is not what was written.*remove .*\.frames.csv.sha256",
    ):
        FrameTable.from_csv(file, None)
    (tmp_path / ".frames.csv.sha256").unlink()
    assert FrameTable.from_csv(file, None).object_name == ("cup2",)
    file.write_text(text + '"' + 200_000 * "x")  # a quote that nothing closes
    with pytest.raises(
        FrameTableError, match=r"frames.csv, line 3 is no CSV: field larger"
    ):
        FrameTable.from_csv(file, None)


def test_hashes_are_the_same_everywhere():
    """Golden values: saved results identify their table by these hashes."""
    table = FrameTable([CUP, CUP_TEST, BALL], root="/here")
    assert (
        table.content_hash()
        == FrameTable([CUP, CUP_TEST, BALL], root="/there", name="x").content_hash()
    )
    assert (
        table.content_hash()
        == "8c674c18c5457933e787acd4083afaf95cf2283025c9e2e047b8a4f9b855031f"
    )
    assert (
        table.frames_hash()
        == "b6f1e901ff13bda8983dfaa2229271598f3854d3151422e0104d2ea49326818a"
    )


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
    table, other = (
        FrameTable([BALL, CUP, CUP_TEST]),
        FrameTable([BALL, CUP, replace(CUP_TEST, **change)]),
    )
    assert table.content_hash() != other.content_hash()
    assert (table.frames_hash() != other.frames_hash()) == ("path" in change)


def test_every_damage_is_a_bad_frame(tmp_path):
    table, file = FrameTable([replace(CUP, path="1.png")], tmp_path), tmp_path / "1.png"
    write_image(file, size=(64, 64))
    assert table.read(0).size == (64, 64)
    whole = file.read_bytes()
    for content in (b"", b"hello", whole[:33] + bytes(40), whole[:-40], None):
        file.unlink() if content is None else file.write_bytes(content)
        with pytest.raises(
            BadFrameError, match=r"cannot decode frame .*1\.png.*--on-bad-frame skip"
        ) as raised:
            table.read(0)
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


ROWS = [
    [f"{name}/{clip}/{frame}.png", name, "o1", clip, str(frame), split]
    for name in ("cup", "mug")
    for clip, split in (("s1", "train"), ("s2", "test"))
    for frame in range(2)
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


@st.composite
def tables(draw):
    """The bytes of a table of which cells or rows were changed, perhaps cut or with odd bytes."""
    rows = [list(row) for row in [COLUMNS, *ROWS]]
    for _ in range(draw(st.integers(0, 3))):
        row = draw(st.sampled_from(rows))
        kind = draw(
            st.sampled_from(["cell", "cell", "cell", "short", "long", "twice", "gone"])
        )
        if kind == "cell" and row:
            row[draw(st.integers(0, len(row) - 1))] = draw(
                st.sampled_from(ODD) | st.text(max_size=5)
            )
        elif kind == "short":
            del row[-1:]
        elif kind == "long":
            row.append("x")
        elif kind == "twice":
            rows.append(list(row))
        elif len(rows) > 1:
            rows = [one for one in rows if one is not row]
    text = io.StringIO()
    csv.writer(text, lineterminator=draw(st.sampled_from(["\n", "\r\n"]))).writerows(
        rows
    )
    content = text.getvalue().encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 4)) == 0:
        content = content[: draw(st.integers(0, len(content)))]
    if draw(st.integers(0, 4)) == 0:
        place = draw(st.integers(0, len(content)))
        content = content[:place] + draw(st.binary(max_size=3)) + content[place:]
    return content


@settings(phases=[Phase.generate])
@given(content=tables())
def test_a_table_written_by_hand_is_what_it_spells_or_one_line_says_what_is_wrong(
    tmp_path_factory, content
):
    folder = tmp_path_factory.mktemp("csv")
    path = folder / "table.csv"
    path.write_bytes(content)
    try:
        table = FrameTable.from_csv(path, folder)
    except FrameTableError as error:
        text = str(error)
        assert "\n" not in text and len(text) < 20_000 and str(path) in text
        return
    table.to_csv(folder / "again.csv")
    again = FrameTable.from_csv(folder / "again.csv", folder)
    assert list(again) == list(table) and again.classes == table.classes


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
