import zipfile

import numpy as np
import pytest
from fake_data import (
    TOYBOX_FOLDERS,
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


def short_clip(numbers, reference):
    """File number and frame number of the rows of a clip that has files of these numbers."""
    names = [name for name in toybox_names(["cup"], [7], 1) if "_tx_" not in name]
    table = ToyboxFrames(
        "nowhere", names + toybox_clip("cup", 7, "tx", numbers), reference
    )
    rows = rows_of(table, "cup_07", "tx")
    return [int(row.path[:-4].rpartition("_")[2]) for row in rows], [
        row.frame for row in rows
    ]


def test_a_tree_with_unusual_names_and_files(tmp_path):
    table = ToyboxFrames(write_files(tmp_path, odd_toybox_names()))
    assert (
        table.classes == ("cup", "duck") and table.name == "toybox" and not table.padded
    )
    assert set(table.object_name) == {"cup_01", "duck_12"}  # cup_02 has no tz
    # Of the cup seven clips of 2 frames, 15 of 17 of rzplus, 3 of tz, 2 loud ones; of
    # the duck nine of 2, one of 9.
    assert len(table) == 7 * 2 + 15 + 3 + 2 + 9 * 2 + 9
    assert rows_of(table, "cup_01", "tz") == [
        Frame(f"{CUP}_tz_{frame:03d}.jpeg", "cup", "cup_01", "tz", frame, "test")
        for frame in (1, 2, 4)
    ]
    loud = [f"{CUP}_hodgepodge_00{number}.PNG" for number in (1, 2)]
    assert [row.path for row in rows_of(table, "cup_01", "hodgepodge")] == loud
    # By number, not as text.
    assert [row.path for row in rows_of(table, "cup_01", "rzplus")] == [
        f"{CUP}_rzplus_{f}.png" for f in range(1, 16)
    ]
    assert table.path[-1].startswith(
        "images/animals/duck_12_pivothead/duck_12_pivothead_hodgepodge_2"
    )
    assert all(table.read(row).size == (12, 8) for row in range(len(table)))
    sessions = dict.fromkeys(
        (row.session, row.split) for row in table if row.object_name == "cup_01"
    )
    names = [
        "rxplus",
        "ryplus",
        "rzplus",
        "rxminus",
        "ryminus",
        "rzminus",
        "tx",
        "ty",
        "tz",
        "hodgepodge",
    ]
    assert list(sessions) == [
        (name, "test" if name in ("rzplus", "rzminus", "tz") else "train")
        for name in names
    ]


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
def test_short_clips_run_backwards_by_reference_only(files, paths, frames):
    assert short_clip(files, True) == (list(paths), list(frames))
    assert short_clip(files, False) == (list(files)[:15], list(files)[:15])


def test_which_objects_are_used():
    names = toybox_names(["cup"], frames=1)
    for some, used in (
        (names, range(1, 30)),
        # Where one of the thirty is incomplete, 29 are left, and the thirtieth is one
        # of them.
        (
            [name for name in names if "cup_04_pivothead_ty" not in name],
            [1, 2, 3, *range(5, 31)],
        ),
        ([name for name in names if "cup_30" in name or "cup_02" in name], [2, 30]),
    ):
        assert [*dict.fromkeys(ToyboxFrames("nowhere", some).object_name)] == [
            f"cup_{number:02d}" for number in used
        ]
    names = [
        name
        for name in toybox_names(["cup", "car"], range(1, 4), 1)
        if "car" not in name or "_tz_" not in name
    ]
    words = r"class 'car' in nowhere has 3 objects, none with all 10 clips \(at most 9\).*Complete the class"
    with pytest.raises(FrameTableError, match=words):
        ToyboxFrames("nowhere", names)


def test_what_is_missing():
    names = toybox_names(
        [name for name in TOYBOX_FOLDERS if name != "spoon"], frames=15
    )
    gone = (
        "cup_07_pivothead_tz_",
        "cup_30_",
        "duck_03_pivothead_rxplus",
        "truck_29_",
        "truck_30_",
    )
    # The duck has 29 without the third, so it is complete.
    table = ToyboxFrames(
        "nowhere", [name for name in names if not any(part in name for part in gone)]
    )
    assert LAYOUT.missing(table)[3:] == [
        "class cup: 2940 of 3045 training images, 1260 of 1305 test images",
        "class spoon: 0 of 3045 training images, 0 of 1305 test images",
        "class truck: 2940 of 3045 training images, 1260 of 1305 test images",
    ]


def test_reference_fills_short_clips_and_takes_the_classes_by_number(tmp_path):
    write_files(tmp_path, toybox_names(["cup", "duck", "car"], [1], 2))
    reference = Toybox(tmp_path, run=3, classes_per_experience=1, reference=True)
    assert reference.protocol == "class_instance" and reference.frame_table.padded
    assert len(reference.frame_table) == 3 * 10 * 3  # 1, 2, 1
    order = np.arange(3)
    np.random.RandomState(3).shuffle(order)
    assert reference.class_names == tuple(
        ("cup", "duck", "car")[number] for number in order
    )
    assert [len(experience.dataset) for experience in reference.train_stream] == [
        7 * 3
    ] * 3


@pytest.mark.skipif(
    not REAL.is_file(), reason="needs core50_samples in CRUMB_TEST_DATA"
)
def test_names_of_the_real_data():
    with zipfile.ZipFile(REAL) as archive:
        names = [
            name
            for name in archive.namelist()
            if name.startswith("toybox_128x128/") and name.endswith(".png")
        ]
    names = [name.partition("/")[2] for name in names]
    folders = [
        f"images/{TOYBOX_FOLDERS[name.split('_')[0]]}/{name.partition('_rz')[0]}"
        for name in names
    ]
    images = LAYOUT.images(f"{folder}/{name}" for folder, name in zip(folders, names))
    found = [
        (image["class_name"], image["number"], image["session"], image["frame"])
        for image in images
    ]
    assert sorted(found) == [
        (class_name, "01", "rzplus", "001") for class_name in sorted(TOYBOX_FOLDERS)
    ]
