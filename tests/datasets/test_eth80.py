import zipfile
from collections import Counter

import pytest
from fake_data import ETH80_NUMBERS, write_eth80, write_image
from real_data import TEST_DATA

from benchmarks_toybox_ilab.datasets.eth80 import LAYOUT, ETH80Frames
from benchmarks_toybox_ilab.tables.frame import FrameTableError

REAL = TEST_DATA / "eth80/eth80_128.zip"
CARS = [f"car{number}" for number in ETH80_NUMBERS["car"]]


def objects(table, split, class_name):
    """Names of the objects of a split and class, in table order."""
    return list(dict.fromkeys(table.object_name[row] for row in table.rows(split, class_name)))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_eth80(tmp_path_factory.mktemp("eth80"))


def test_a_clip_is_a_ring_by_azimuth(root):
    table = ETH80Frames(root)
    assert table.classes == ("apple", "car") and len(table) == 2 * 10 * 5
    clips = table.clips(table.rows(class_name="car"))
    assert len(clips) == 10 * 3
    ring = [f"car1/car1-045-{azimuth}.jpg" for azimuth in ("000", "090", "270")]
    assert [table.path[row] for row in clips[1]] == ring
    row = clips[1][1]
    assert (table.object_name[row], table.session[row], table.frame[row]) == ("car1", "045", 90)
    assert table.read(row).size == (12, 8)


def test_the_run_chooses_the_test_objects_by_position(root):
    pairs = [(1, 2), (3, 5), (6, 7), (9, 11), (12, 14), (1, 7), (2, 9), (3, 11), (5, 12), (6, 14), (1, 2)]
    for run, numbers in enumerate(pairs):
        table, held_out = ETH80Frames(root, run), [f"car{number}" for number in numbers]
        assert objects(table, "test", "car") == held_out
        assert objects(table, "train", "car") == [car for car in CARS if car not in held_out]
        assert objects(table, "test", "apple") == [f"apple{CARS.index(car) + 1}" for car in held_out]


def test_incomplete_classes_have_two_test_objects_in_every_run(tmp_path):
    for number, different in ((3, 3), (4, 4), (7, 10), (8, 8)):
        write_eth80(tmp_path / str(number), {"cup": range(1, number + 1)}, ("000-000",))
        pairs = [objects(ETH80Frames(tmp_path / str(number), run), "test", "cup") for run in range(10)]
        assert {len(pair) for pair in pairs} == {2} and len(set(map(tuple, pairs))) == different


def test_masks_and_the_folder_of_the_whole_are_no_objects(tmp_path):
    write_eth80(tmp_path / "eth80", {"cup": range(1, 4)})
    own = ETH80Frames(tmp_path / "eth80")
    write_image(tmp_path / "eth80" / "cup1" / "maps" / "cup1-000-000-map.png")
    (tmp_path / "core50/s1/o1").mkdir(parents=True)  # a folder of data sets
    assert "class cup: 5 of 328 training images, 10 of 82 test images" in LAYOUT.missing(own)
    assert len(own) == 15 and ETH80Frames(tmp_path).content_hash() == own.content_hash()


def test_objects_that_cannot_be_used(tmp_path):
    write_eth80(tmp_path, {"cup": (1, 2)})
    with pytest.raises(FrameTableError, match=r"class 'cup' .* only 2 objects \(cup1, cup2\)"):
        ETH80Frames(tmp_path)
    with pytest.raises(ValueError, match="run is -1, but must be a whole number of at least 0"):
        ETH80Frames(tmp_path, -1)


@pytest.mark.skipif(not REAL.is_file(), reason="needs eth80/eth80_128.zip in CRUMB_TEST_DATA")
def test_the_real_data(tmp_path):
    with zipfile.ZipFile(REAL) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    held_out = Counter()
    for run in range(10):
        table = ETH80Frames(tmp_path, run)
        assert len(table) == 3280 and table.classes == ("apple", "car", "cow", "cup", "dog", "horse", "pear", "tomato")
        assert all(count == {"train": 328, "test": 82} for count in table.counts().values())
        held_out.update(name for class_name in table.classes for name in objects(table, "test", class_name))
    assert len(held_out) == 80 and set(held_out.values()) == {2}
    sizes = Counter(len(clip) for clip in table.clips(table.rows()))
    assert sizes == {1: 80, 4: 80 * 4, 8: 80, 16: 80}
    assert ETH80Frames(tmp_path).frames_hash() == "485ff8f83a1616d95815ae9c557c240b0c604a38073fa2249f61f325dcdae15f"
    assert [car for run in range(5) for car in objects(ETH80Frames(tmp_path, run), "test", "car")] == CARS
