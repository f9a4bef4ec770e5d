import re
import zipfile

import numpy as np
import pytest
from fake_data import (
    TOYBOX_FOLDERS,
    image_sizes,
    odd_toybox_names,
    toybox_clip,
    toybox_names,
    write_files,
)
from real_data import TEST_DATA

from benchmarks_toybox_ilab.datasets.toybox import LAYOUT, Toybox, ToyboxFrames
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError

REAL = TEST_DATA / "core50_samples/core50_samples.zip"
CUP = "images/households/cup_01_pivothead/cup_01_pivothead"


def rows_of(table, object_name, session):
    """The rows of a clip, in table order."""
    return [
        row for row in table if (row.object_name, row.session) == (object_name, session)
    ]


def test_a_tree_with_unusual_names_and_files(tmp_path):
    table = ToyboxFrames(write_files(tmp_path, odd_toybox_names()))
    assert table.name == "toybox"
    assert table.classes == ("cup", "duck")
    assert not table.padded
    assert set(table.object_name) == {"cup_01", "duck_12"}  # cup_02 has no tz
    # Of the cup seven clips of 2 frames, 15 of 17 of rzplus, 3 of tz, 2 loud ones; of
    # the duck nine of 2, one of 9.
    assert len(table) == 7 * 2 + 15 + 3 + 2 + 9 * 2 + 9
    last = "images/animals/duck_12_pivothead/duck_12_pivothead_hodgepodge_2"
    assert table.path[-1].startswith(last)
    assert image_sizes(table) == {(12, 8)}


def paths_of(table, object_name, session):
    return [row.path for row in rows_of(table, object_name, session)]


def test_clips_with_unusual_names():
    table = ToyboxFrames("nowhere", odd_toybox_names())
    loud = [f"{CUP}_hodgepodge_001.PNG", f"{CUP}_hodgepodge_002.PNG"]
    assert paths_of(table, "cup_01", "hodgepodge") == loud
    # By number, not as text.
    by_number = [f"{CUP}_rzplus_{number}.png" for number in range(1, 16)]
    assert paths_of(table, "cup_01", "rzplus") == by_number
    assert rows_of(table, "cup_01", "tz") == [
        Frame(f"{CUP}_tz_001.jpeg", "cup", "cup_01", "tz", 1, "test"),
        Frame(f"{CUP}_tz_002.jpeg", "cup", "cup_01", "tz", 2, "test"),
        Frame(f"{CUP}_tz_004.jpeg", "cup", "cup_01", "tz", 4, "test"),
    ]


def test_sessions_and_their_splits():
    table = ToyboxFrames("nowhere", odd_toybox_names())
    cup = [row for row in table if row.object_name == "cup_01"]
    assert list(dict.fromkeys((row.session, row.split) for row in cup)) == [
        ("rxplus", "train"),
        ("ryplus", "train"),
        ("rzplus", "test"),
        ("rxminus", "train"),
        ("ryminus", "train"),
        ("rzminus", "test"),
        ("tx", "train"),
        ("ty", "train"),
        ("tz", "test"),
        ("hodgepodge", "train"),
    ]


def short_clip(numbers, reference):
    """Return the rows of a clip that has files of these numbers."""
    names = [name for name in toybox_names(["cup"], [7], 1) if "_tx_" not in name]
    names += toybox_clip("cup", 7, "tx", numbers)
    return rows_of(ToyboxFrames("nowhere", names, reference), "cup_07", "tx")


def file_numbers(rows):
    return [int(row.path.removesuffix(".png").rpartition("_")[2]) for row in rows]


@pytest.mark.parametrize(
    ("files", "paths", "frames"),
    [
        (range(1, 10), [1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3], range(1, 16)),
        (range(1, 15), [*range(1, 15), 13], range(1, 16)),
        ([1, 2, *range(4, 19)], [1, 2, *range(4, 17)], [1, 2, *range(4, 17)]),
        (range(1, 4), [1, 2, 3, 2, 1], range(1, 6)),  # only once back
        ([2, 3, 7], [2, 3, 7, 3, 2], [2, 3, 7, 8, 9]),
        ([4], [4], [4]),
    ],
)
def test_short_clips_run_backwards_by_reference(files, paths, frames):
    rows = short_clip(files, reference=True)
    assert file_numbers(rows) == list(paths)
    assert [row.frame for row in rows] == list(frames)


@pytest.mark.parametrize(
    "files", [range(1, 10), range(1, 15), [1, 2, *range(4, 19)], [2, 3, 7], [4]]
)
def test_short_clips_stay_short(files):
    rows = short_clip(files, reference=False)
    assert file_numbers(rows) == list(files)[:15]
    assert [row.frame for row in rows] == list(files)[:15]


CUPS = toybox_names(["cup"], frames=1)


@pytest.mark.parametrize(
    ("names", "used"),
    [
        (CUPS, range(1, 30)),
        # Where one of the thirty is incomplete, 29 are left, and the thirtieth is one
        # of them.
        (
            [name for name in CUPS if "cup_04_pivothead_ty" not in name],
            [1, 2, 3, *range(5, 31)],
        ),
        ([name for name in CUPS if "cup_30" in name or "cup_02" in name], [2, 30]),
    ],
)
def test_which_objects_are_used(names, used):
    table = ToyboxFrames("nowhere", names)
    expected = [f"cup_{number:02d}" for number in used]
    assert list(dict.fromkeys(table.object_name)) == expected


def test_a_class_without_a_complete_object():
    names = toybox_names(["cup", "car"], range(1, 4), 1)
    names = [name for name in names if "car" not in name or "_tz_" not in name]
    words = (
        r"class 'car' in nowhere has 3 objects, none with all 10 clips \(at most 9\).*"
        r"Complete the class"
    )
    with pytest.raises(FrameTableError, match=words):
        ToyboxFrames("nowhere", names)


# The duck has 29 objects without the third, so it is complete.
GONE = re.compile(
    "/spoon_|/cup_07_pivothead_tz_|/cup_30_|/duck_03_pivothead_rxplus|/truck_29_|/truck_30_"
)


def test_what_is_missing():
    names = [name for name in toybox_names(frames=15) if not GONE.search(name)]
    assert LAYOUT.missing(ToyboxFrames("nowhere", names))[3:] == [
        "class cup: 196 of 203 training clips, 84 of 87 test clips",
        "class spoon: 0 of 203 training clips, 0 of 87 test clips",
        "class truck: 196 of 203 training clips, 84 of 87 test clips",
    ]


def test_a_short_clip_is_not_missing():
    names = [name for name in toybox_names(frames=15) if "cup_01" not in name]
    names += toybox_names(["cup"], [1], 12)
    assert LAYOUT.missing(ToyboxFrames("nowhere", names)) == []


@pytest.fixture
def reference(tmp_path):
    """A stream of short clips by reference."""
    write_files(tmp_path, toybox_names(["cup", "duck", "car"], [1], 2))
    return Toybox(tmp_path, run=3, classes_per_experience=1, reference=True)


def test_reference_fills_short_clips(reference):
    assert reference.protocol == "class_instance"
    assert reference.frame_table.padded
    assert len(reference.frame_table) == 3 * 10 * 3  # 1, 2, 1
    sizes = [len(experience.dataset) for experience in reference.train_stream]
    assert sizes == [7 * 3, 7 * 3, 7 * 3]


def test_reference_takes_the_classes_by_number(reference):
    order = np.array(["cup", "duck", "car"])
    np.random.RandomState(3).shuffle(order)
    assert reference.class_names == tuple(order)


@pytest.mark.skipif(
    not REAL.is_file(), reason="needs core50_samples in CRUMB_TEST_DATA"
)
def test_names_of_the_real_data():
    with zipfile.ZipFile(REAL) as archive:
        names = archive.namelist()
    paths = []
    for name in names:
        folder, _, file = name.partition("/")
        if folder == "toybox_128x128" and file.endswith(".png"):
            supercategory = TOYBOX_FOLDERS[file.split("_")[0]]
            paths.append(f"images/{supercategory}/{file.partition('_rz')[0]}/{file}")
    groups = ("class_name", "number", "session", "frame")
    images = [image.group(*groups) for image in LAYOUT.images(paths)]
    assert sorted(images) == [
        (class_name, "01", "rzplus", "001") for class_name in sorted(TOYBOX_FOLDERS)
    ]
