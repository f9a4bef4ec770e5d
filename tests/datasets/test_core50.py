import re
import zipfile
from collections import Counter

import pytest
from fake_data import core50_clip, core50_names, odd_core50_names, write_files
from real_data import TEST_DATA

from benchmarks_toybox_ilab.datasets import core50
from benchmarks_toybox_ilab.datasets.core50 import LAYOUT, CORe50, CORe50Frames

DATA = TEST_DATA / "core50_samples"


def clips(table):
    """Frames of each (object, session), in table order."""
    found = {}
    for row in table:
        found.setdefault((row.object_name, row.session), []).append(row.frame)
    return found


def needs(name):
    return pytest.mark.skipif(not (DATA / name).is_file(), reason=f"needs core50_samples/{name} in CRUMB_TEST_DATA")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Three objects of three classes; o6 has two clips of other sessions."""
    names = [*core50_names((2, 3, 4), (1, 50), (9, 10, 30)), *core50_clip(11, 6, (10, 290)), *core50_clip(7, 6, (50,))]
    return write_files(tmp_path_factory.mktemp("core50"), [*names, "README.md", "s2/.DS_Store"])


def test_five_objects_in_a_row_are_a_class():
    table = CORe50Frames("nowhere", core50_names((1, 3), frames=(10,)))
    for place, name in enumerate(core50.CLASSES):
        objects = dict.fromkeys(table.object_name[row] for row in table.rows(class_name=name))
        assert list(objects) == [f"o{number}" for number in range(5 * place + 1, 5 * place + 6)]


@pytest.mark.parametrize("reference", [False, True])
def test_gaps_and_other_files_are_accepted(reference):
    table = CORe50Frames("nowhere", reversed(odd_core50_names()), reference)
    assert table.counts() == {
        "plug_adapter": {"train": 33, "test": 75},
        "remote_control": {"train": 15, "test": 30},
        "scissor": {"train": 15, "test": 30},
    }
    assert clips(table)["o4", "s1"] == [10, 50, 290]
    assert "s1/o2/C_01_02_010.PNG" in table.path and ("o12", "s1") not in clips(table)
    assert list(clips(table))[:6] == [
        ("o1", "s1"),
        ("o1", "s3"),
        ("o1", "s10"),
        ("o2", "s1"),
        ("o2", "s10"),
        ("o4", "s1"),
    ]


def test_what_is_missing():
    lost = {*core50_clip(3, 7, (10, 290)), *core50_clip(4, 7, (50, 51)), *core50_clip(9, 7, range(300))}
    names = [name for name in core50_names() if name not in lost and "/o46/" not in name]
    gaps = "clip s3 has 13 of 15 frames, clip s4 has 14 of 15 frames, clip s9 has 0 of 15 frames"
    for folder in ("", "core50_128x128/"):
        assert LAYOUT.missing(folder + name for name in names) == [
            f"class mobile_phone: 4 of 5 objects are complete; o7: {gaps}",
            "class remote_control: 4 of 5 objects are complete",
        ]
    assert LAYOUT.missing(core50_names((1,), (1,)))[1] == "class mobile_phone: 0 of 5 objects are complete"


@pytest.mark.parametrize(
    ("run", "order"),
    [
        # np.random.RandomState(run).shuffle of [0, 1, 2] gives [2, 1, 0] for run 0 and [0, 2, 1] for run 1, of the
        # classes by number: plug_adapter, mobile_phone, remote_control.
        (0, ("remote_control", "mobile_phone", "plug_adapter")),
        (1, ("plug_adapter", "remote_control", "mobile_phone")),
    ],
)
def test_reference_shuffles_the_classes_by_their_numbers(root, run, order):
    assert CORe50(root, run=run, classes_per_experience=1, reference=True).class_names == order


@needs("core50_bbox.zip")
def test_the_frames_of_the_real_data():
    """Each line of a file is the box of a frame; boxes of frames that the data set lacks begin at -1, -1."""
    with zipfile.ZipFile(DATA / "core50_bbox.zip") as archive:
        names, lines = [], 0
        for name in archive.namelist():
            if found := re.fullmatch(r"bbox/s(\d+)/CropC_o(\d+)\.txt", name):
                boxes = re.findall(r"Color(\d+): (\S+)", archive.read(name).decode())
                lines += len(boxes)
                names += core50_clip(*map(int, found.groups()), (int(frame) for frame, left in boxes if left != "-1"))
    assert (lines, len(names)) == (165_000, 164_866) and len(list(core50.LAYOUT.images(names))) == 164_866
    totals = Counter(name.partition("/")[0] for name in names)
    assert (min(totals.values()), max(totals.values()), len(totals)) == (14_966, 14_995, 11)
    assert all(name[-7:-4] < "007" for name in set(core50_names()).difference(names))
    table = CORe50Frames("nowhere", names)
    assert (table.split.count("train"), table.split.count("test")) == (6000, 2250) and LAYOUT.missing(names) == []
