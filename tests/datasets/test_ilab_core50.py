import os

import pytest
from fake_data import core50_names, ilab_names, write_files

from benchmarks_toybox_ilab.datasets import core50
from benchmarks_toybox_ilab.datasets.ilab import CLASSES
from benchmarks_toybox_ilab.datasets.ilab_core50 import (
    LAYOUT,
    ILabCORe50Frames,
    class_groups,
)
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError

USED = range(10, 300, 20)


def prefixed(of_ilab, of_core50):
    """The names relative to the folder that contains both."""
    names = [f"iLab-2M-Light/{name}" for name in of_ilab]
    return names + [f"core50/{name}" for name in of_core50]


# A boat and a van, two plug adapters, and a remote control with the fewest clips: two
# for training and one test.
SMALL = prefixed(
    ilab_names(["boat", "van"], [1], range(1, 9), 16),
    [*core50_names((1, 2, 3), (1, 2, 50), USED), "s1/notes.txt"],
)
# What SHA-256 puts first: of boat/i0001/b... for training b0001 (b0c6) and b0003 (b1ec)
# before b0007 (b228), for the test b0004 (1a9c) before b0008 (58ed); of van b0006
# (145f), b0007 (4280) before b0001 (8711), and b0008 (0c8b) before b0004 (42bc); of
# plug_adapter/o.../s... o1/s2 (3ef2), o1/s1 (48c9) before o2/s1 (712c), and o2/s3
# (3184) before o1/s3.
KEPT = {
    "boat": ["i0001/b0001", "i0001/b0003", "i0001/b0004"],
    "plug_adapter": ["o1/s1", "o1/s2", "o2/s3"],
    "remote_control": ["o50/s1", "o50/s2", "o50/s3"],
    "van": ["i0001/b0006", "i0001/b0007", "i0001/b0008"],
}


def clips(table):
    """`object/session` of the clips of each class, in table order."""
    names = {name: {} for name in table.classes}
    for row in table:
        names[row.class_name][f"{row.object_name}/{row.session}"] = None
    return {name: list(of_class) for name, of_class in names.items()}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("both"), SMALL)


def test_every_class_has_as_many_clips(root):
    table = ILabCORe50Frames(root)
    assert table.name == "ilab_core50"
    assert clips(table) == KEPT
    assert table.counts() == {name: {"train": 30, "test": 15} for name in KEPT}
    test = {row.session for row in table if row.split == "test"}
    assert test == {"b0004", "b0008", "s3"}


def test_frames_are_those_of_the_two_data_sets(root):
    table = ILabCORe50Frames(root)
    path = "core50/s2/o1/C_02_01_030.png"
    assert Frame(path, "plug_adapter", "o1", "s2", 30, "train") in list(table)
    assert table.path[0].startswith("iLab-2M-Light/train_img/boat-i0001-b0001-")
    rows = (0, len(table) // 2, len(table) - 1)
    assert {table.read(row).size for row in rows} == {(12, 8)}


def test_clips_by_reference(root):
    # RandomState(1).permutation(6) begins with 2, 1 (boat), RandomState(15) with 3, 2
    # (van); RandomState(16) gives 0, 3 of 4 (plug_adapter). Of two test clips they take
    # the first, the second and the first.
    assert clips(ILabCORe50Frames(root, reference=True)) == {
        "boat": ["i0001/b0002", "i0001/b0003", "i0001/b0004"],
        "plug_adapter": ["o1/s1", "o1/s3", "o2/s2"],
        "remote_control": ["o50/s1", "o50/s2", "o50/s3"],
        "van": ["i0001/b0003", "i0001/b0005", "i0001/b0008"],
    }


@pytest.mark.parametrize(
    ("session", "first"), [("b0002", 1), ("b0003", 0), ("b0004", 1)]
)
def test_windows_are_those_of_ilab_by_reference(root, session, first):
    """random.Random(0).randint(0, 1), session by session."""
    table = ILabCORe50Frames(root, reference=True)
    rows = [row for row in table if (row.class_name, row.session) == ("boat", session)]
    assert rows[0].frame == first


def test_names_of_other_files_are_accepted(root):
    table = ILabCORe50Frames("x", [*SMALL, "README.md", "other/picture.png"])
    assert table.content_hash() == ILabCORe50Frames(root).content_hash()


def test_inner_folders_are_accepted(root, tmp_path):
    (tmp_path / "core50").mkdir()
    os.symlink(root / "core50", tmp_path / "core50" / "core50_128x128")
    os.symlink(root / "iLab-2M-Light", tmp_path / "iLab-2M-Light")
    table = ILabCORe50Frames(tmp_path)
    paths = [path.replace("core50_128x128/", "") for path in table.path]
    assert paths == list(ILabCORe50Frames(root).path)
    assert table.read(-1).size == (12, 8)


@pytest.mark.parametrize("reference", [False, True])
def test_the_classes_of_ilab_come_first(reference):
    names = prefixed(
        ilab_names(objects=[1], backgrounds=range(1, 9), views=15),
        core50_names(objects=range(1, 51, 5)),
    )
    groups = class_groups(ILabCORe50Frames("nowhere", names), reference)
    assert groups == [list(CLASSES), list(core50.CLASSES)]


def test_what_is_missing():
    """Without a bus, and with 32 clips of each class for 40."""
    names = prefixed(ilab_names(views=15), core50_names(frames=USED))
    names = [name for name in names if "/bus-" not in name and "/o7/" not in name]
    lines = LAYOUT.missing(ILabCORe50Frames("x", names))
    assert lines[0] == "23 classes; the paper has 24"
    assert lines[-1] == "3 more classes are incomplete"
    assert "class boat: 480 of 600 training images, 180 of 225 test images" in lines


@pytest.mark.parametrize(
    ("absent", "words"),
    [
        ("core50", "x/core50 holds no images of CORe50"),
        ("iLab", "x/iLab-2M-Light holds no images of iLab"),
    ],
)
def test_one_of_the_two_is_missing(absent, words):
    names = [name for name in SMALL if absent not in name]
    with pytest.raises(FrameTableError, match=words):
        ILabCORe50Frames("x", names)
