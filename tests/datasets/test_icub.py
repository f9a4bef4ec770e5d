import os

import pytest
from fake_data import ICUB_CLIPS, frames_by_clip, icub_names, odd_icub_names, write_files

from benchmarks_toybox_ilab.datasets.icub import LAYOUT, ICub, ICubFrames, listing_order

TWO_CLASSES = {"part3": ("mug",), "part1": ("book",)}


def test_every_tenth_file_of_the_first_day_by_position():
    table = ICubFrames("nowhere", odd_icub_names())
    assert list(frames_by_clip(table).items()) == [
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
    plain, reference = (frames_by_clip(ICubFrames("nowhere", names, of)) for of in (False, True))
    assert reference == {**plain, ("mug2", "ROT2D"): [90]}


def test_parts_may_be_left_out(tmp_path):
    names = icub_names(TWO_CLASSES, (1,))
    flat = [name.partition("/")[2] for name in names]
    table = ICubFrames("nowhere", flat)
    assert frames_by_clip(table) == frames_by_clip(ICubFrames("nowhere", names)) and len(frames_by_clip(table)) == 10
    assert table.path[0] == "book/book1/MIX/day2/left/00000000.jpg"
    assert "class book: 4 of 40 training clips, 1 of 10 test clips" in LAYOUT.missing(table)
    write_files(tmp_path, flat[::7])
    assert ICubFrames(tmp_path).content_hash() == ICubFrames("nowhere", flat[::7]).content_hash()
    assert sorted(listing_order(tmp_path)) == ["book", "mug"]


# np.random.RandomState(run).shuffle of [0, 1, 2] gives [2, 1, 0] for run 0 and [0, 2, 1] for run 1.
@pytest.mark.parametrize(("run", "order"), [(0, ("cellphone", "book", "mouse")), (1, ("mouse", "cellphone", "book"))])
def test_reference_shuffles_the_classes_as_they_are_listed(tmp_path, monkeypatch, run, order):
    names = icub_names({"part1": ("book", "cellphone", "mouse")}, (1,), 1)
    write_files(tmp_path, [*names, "part1/ringbinder/nothing.txt"])
    listdir, listed = os.listdir, ["mouse", "ringbinder", "book", "cellphone"]  # as the system lists them
    monkeypatch.setattr(os, "listdir", lambda path: listed if os.path.basename(path) == "part1" else listdir(path))
    benchmark = ICub(tmp_path, run=run, classes_per_experience=1, reference=True)
    assert benchmark.class_names == order
    assert all("/day10/" in path for path in benchmark.frame_table.path)
