import os
import re
import shutil

import pytest
from fake_data import ICUB_CLIPS, ICUB_PARTS, icub_clip, icub_names, odd_icub_names, write_files

from benchmarks_toybox_ilab.datasets import icub
from benchmarks_toybox_ilab.datasets.icub import ICub, ICubFrames, listing_order, missing
from benchmarks_toybox_ilab.tables.frame import FrameTableError

TWO_CLASSES = {"part3": ("mug",), "part1": ("book",)}


def clips(table):
    """Frames of each (object, session), in table order."""
    found = {}
    for row in table:
        found.setdefault((row.object_name, row.session), []).append(row.frame)
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two objects of two classes: day2 has the frames 0 and 10, day10 the frames 100 and 110."""
    folders = [name.partition("/day")[0] for name in icub_names(TWO_CLASSES, (2, 10), 1)]
    names = [
        *(name for folder in dict.fromkeys(folders) for name in icub_clip(folder, 2, range(11))),
        *(name for folder in dict.fromkeys(folders) for name in icub_clip(folder, 10, range(100, 111))),
        *("README.txt", "part1/book/book2/MIX/day2/left/00000000.xml", "part3/.DS_Store"),
    ]
    return write_files(tmp_path_factory.mktemp("icub"), names)


def test_the_whole_data_set():
    names = icub_names()
    table = ICubFrames("nowhere", reversed(names))
    counts = {"classes": len(table.classes), "train": None, "test": None}
    for split in ("train", "test"):
        counts[f"{split}_clips"] = len(table.clips(table.rows(split)))
    assert counts == icub.COUNTS == {"classes": 20, "train": None, "test": None, "train_clips": 800, "test_clips": 200}
    assert all(count == {"train": 10 * 4 * 3, "test": 10 * 3} for count in table.counts().values())
    assert {row.session for row in table if row.split == "test"} == {"MIX"}
    assert all(frames == [0, 10, 20] for frames in clips(table).values())
    assert table.classes == tuple(sorted(name for names in ICUB_PARTS.values() for name in names))
    assert missing(names) == []


def test_every_tenth_file_of_the_first_day_by_position():
    table = ICubFrames("nowhere", odd_icub_names())
    assert list(clips(table).items()) == [
        *((("book1", name), [0]) for name in ICUB_CLIPS),
        (("mug2", "MIX"), [0, 10]),
        (("mug2", "ROT2D"), [5, 16, 26]),
        (("mug2", "SCALE"), [0]),
        (("mug2", "TRANSL"), [7]),
        (("mug10", "MIX"), [4]),
        (("mug10", "SCALE"), [10]),
    ]
    assert table.counts() == {"book": {"train": 4, "test": 1}, "mug": {"train": 6, "test": 3}}
    assert "part3/mug/mug2/SCALE/day3/left/00000000.JPG" in table.path
    assert "part3/mug/mug2/ROT2D/day2/left/00000016.jpg" in table.path


def test_reference_sorts_the_days_as_text():
    names = odd_icub_names()
    plain, reference = clips(ICubFrames("nowhere", names)), clips(ICubFrames("nowhere", names, reference=True))
    assert reference == {**plain, ("mug2", "ROT2D"): [90]}


def test_what_is_missing():
    classes = [name for names in ICUB_PARTS.values() for name in names]
    assert missing(odd_icub_names()) == [
        "class bodylotion: all 10 objects are missing",
        "class book: 9 of 10 objects are missing: " + ", ".join(f"book{number}" for number in range(2, 11)),
        *(f"class {name}: all 10 objects are missing" for name in sorted(classes) if "book" < name < "mug"),
        "class mug: 8 of 10 objects are missing: mug1, mug3, mug4, mug5, mug6, mug7, mug8, mug9",
        "mug2: no left-camera images of ROT3D",
        "mug10: no left-camera images of ROT2D, ROT3D, TRANSL",
        *(f"class {name}: all 10 objects are missing" for name in sorted(classes) if name > "mug"),
    ]
    assert missing(["README.txt"]) == ["all 20 classes are missing"]
    lost = ("part3/mug/mug3/ROT2D/", "part1/book/book4/SCALE/day2/")
    few = [name for name in icub_names(frames=1) if "/MIX/" not in name and not name.startswith(lost)]
    assert missing(few) == ["clip MIX: all 200 are missing", "mug3: no left-camera images of ROT2D"]


def test_parts_may_be_left_out(tmp_path):
    names = icub_names(TWO_CLASSES, (1,))
    flat = [name.partition("/")[2] for name in names]
    table = ICubFrames("nowhere", flat)
    assert clips(table) == clips(ICubFrames("nowhere", names)) and len(clips(table)) == 10
    assert table.path[0] == "book/book1/MIX/day2/left/00000000.jpg"
    assert missing(flat) == missing(names)
    write_files(tmp_path, flat[::7])
    assert ICubFrames(tmp_path).content_hash() == ICubFrames("nowhere", flat[::7]).content_hash()
    assert sorted(listing_order(tmp_path)) == ["book", "mug"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (
            "part5/mug/mug1/MIX/day1/left/00000000.jpg",
            "part folder 'part5', but .* only part1, part2, part3, part4 there",
        ),
        ("part1/banana/banana1/MIX/day1/left/00000000.jpg", "category folder 'banana', but .* only bodylotion, book, "),
        ("banana/banana1/MIX/day1/left/00000000.JPG", "category folder 'banana'"),
        (
            "part1/mug/mug11/MIX/day1/left/00000000.jpg",
            "object folder 'mug11', but .* only mug1, mug2, .*, mug10 there",
        ),
        ("mug/book1/MIX/day1/right/00000000.jpg", "object folder 'book1', but .* only mug1, "),
        (
            "part3/mug/mug1/ROT4D/day1/left/00000000.jpg",
            "transformation folder 'ROT4D', but .* only MIX, ROT2D, ROT3D, ",
        ),
        ("part3/mug/mug1/MIX/day1/center/00000000.jpg", "camera folder 'center', but .* has only left, right there"),
    ],
)
def test_an_image_in_a_wrong_folder_is_named(path, words):
    names = [*icub_names(TWO_CLASSES, (1,), 1), path]
    for function in (lambda: ICubFrames("nowhere", names), lambda: missing(names)):
        with pytest.raises(FrameTableError, match=rf"image {path} lies in {words}.*Rename the folder, or move it away"):
            function()


@pytest.mark.parametrize(
    "path",
    [
        "part3/mug/mug1/MIX/day1/left/0000000.jpg",
        "part3/mug/mug1/MIX/day1/left/frame.jpg",
        "part3/mug/mug1/MIX/monday/left/00000000.jpg",
        "part3/mug/mug1/MIX/left/00000000.jpg",
        "part3/mug/mug1/MIX/day1/left/more/00000000.jpg",
        "part3/preview.jpg",
        "preview.jpg",
    ],
)
def test_an_image_outside_the_grammar_is_named(path):
    names = [*icub_names(TWO_CLASSES, (1,), 1), path]
    words = f"image {path} is not named like a frame of iCubWorld Transformations: <root>/part{{1..4}}/<category>/"
    with pytest.raises(FrameTableError, match=re.escape(words)):
        ICubFrames("nowhere", names)


def test_a_repeated_frame_is_named():
    names = icub_names(TWO_CLASSES, (1,), 1)
    twice = "part4/mug/mug1/MIX/day2/left/00000000.jpg"
    with pytest.raises(
        FrameTableError, match=rf"{twice} and part3/mug/mug1/.*00000000\.jpg are the same frame; keep one"
    ):
        ICubFrames("nowhere", [*names, twice])


def test_a_table_needs_left_images_and_training_clips():
    with pytest.raises(
        FrameTableError, match="nowhere holds no images of the left camera of iCubWorld Transformations"
    ):
        ICubFrames("nowhere", icub_clip("part3/mug/mug1/MIX", 1, range(3), "right"))
    with pytest.raises(FrameTableError, match="class 'mug' of frame table 'icub' has 1 test frames and no training"):
        ICubFrames("nowhere", icub_clip("part3/mug/mug1/MIX", 1, range(3)))


def test_the_folder_may_lie_deeper(root, tmp_path):
    shutil.copytree(root, tmp_path / "icub")
    table = ICubFrames(tmp_path)
    assert table.content_hash() == ICubFrames(root).content_hash() and table.read(0).size == (12, 8)
    assert list(clips(table).items()) == [
        ((f"{name}{number}", clip), [0, 10]) for name in ("book", "mug") for number in (2, 10) for clip in ICUB_CLIPS
    ]
    assert clips(ICubFrames(tmp_path, reference=True))["book2", "MIX"] == [100, 110]
    assert listing_order(tmp_path) == listing_order(root)


def test_folders_with_another_layout(tmp_path):
    layout = r"icub is laid out as <root>/part\{1..4\}/<category>/<object>/<transformation>"
    for function in (ICubFrames, listing_order):
        with pytest.raises(FrameTableError, match=f"there is no folder .*nowhere. {layout}"):
            function(tmp_path / "nowhere")
        with pytest.raises(FrameTableError, match=f"has no folder part1, but holds nothing. {layout}"):
            function(tmp_path)
    (tmp_path / "banana").mkdir()
    with pytest.raises(FrameTableError, match=f"has no folder part1, but holds banana. {layout}"):
        ICubFrames(tmp_path)


def test_a_class_too_many_on_disk_is_named(tmp_path):
    write_files(tmp_path, [*icub_names(TWO_CLASSES, (1,), 1), *icub_clip("part1/banana/banana1/MIX", 1, (0,))])
    with pytest.raises(FrameTableError, match=r"part1/banana/.*jpg lies in category folder 'banana'"):
        ICubFrames(tmp_path)


def listed_as(monkeypatch, **orders):
    """Make the system list some folders in a given order."""
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: orders.get(os.path.basename(path)) or listdir(path))


def test_classes_in_the_order_of_the_folders(tmp_path, monkeypatch):
    for name in ("part1/mouse", "part1/book", "part1/cellphone", "part3/mug", "part3/book", "part3/notes"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "part3/glass").write_bytes(b"x")
    listed_as(monkeypatch, part1=["mouse", "book", "cellphone"], part3=["notes", "glass", "book", "mug"])
    assert listing_order(tmp_path) == ["mouse", "book", "cellphone", "mug"]
    (tmp_path / "wallet").mkdir()
    assert listing_order(tmp_path) == ["mouse", "book", "cellphone", "mug", "wallet"]


def test_the_generator_passes_on_its_arguments(root):
    benchmark = ICub(root, "class_iid", 3, lambda image: "train", lambda image: "eval", classes_per_experience=1)
    assert benchmark.protocol == "class_iid" and benchmark.run == 3 and benchmark.n_classes_per_exp == [1, 1]
    assert benchmark.class_names == ("book", "mug")
    assert benchmark.frame_table.content_hash() == ICubFrames(root).content_hash()
    assert benchmark.train_stream[0].dataset[0][0] == "train" and benchmark.test_stream[0].dataset[0][0] == "eval"


@pytest.mark.parametrize(
    ("run", "order"),
    [
        # np.random.RandomState(run).shuffle of [0, 1, 2] gives [2, 1, 0] for run 0 and [0, 2, 1] for run 1.
        (0, ("cellphone", "book", "mouse")),
        (1, ("mouse", "cellphone", "book")),
    ],
)
def test_reference_shuffles_the_classes_as_they_are_listed(tmp_path, monkeypatch, run, order):
    names = icub_names({"part1": ("book", "cellphone", "mouse")}, (1,), 1)
    write_files(tmp_path, [*names, "part1/ringbinder/nothing.txt"])
    listed_as(monkeypatch, part1=["mouse", "ringbinder", "book", "cellphone"])
    benchmark = ICub(tmp_path, run=run, classes_per_experience=1, reference=True)
    assert benchmark.class_names == order
    assert all("/day10/" in path for path in benchmark.frame_table.path)
