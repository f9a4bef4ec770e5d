import numpy as np
import pytest
from fake_data import ilab_names, ilab_session, odd_ilab_names, write_files

from benchmarks_toybox_ilab.datasets.ilab import LAYOUT, ILabFrames
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError

SMALL = range(1, 9)  # as few backgrounds as an object may have


def sessions(table):
    """Names of object, session and split of each clip, in table order."""
    return list(
        dict.fromkeys((row.object_name, row.session, row.split) for row in table)
    )


def starts(table):
    """The first frame of each clip, in table order; a clip must have 15 consecutive frames."""
    clips = [[table.frame[row] for row in clip] for clip in table.clips(table.rows())]
    assert all(frames == list(range(frames[0], frames[0] + 15)) for frames in clips)
    return [frames[0] for frames in clips]


def test_a_tree_with_unusual_names_and_files(tmp_path):
    table = ILabFrames(write_files(tmp_path, odd_ilab_names()))
    assert (
        table.classes == ("boat", "van") and table.name == "ilab" and not table.padded
    )
    # The second background of the boat has 14 images, so its place is the third's; the
    # second boat has 7 sessions.
    boat = [
        ("i0001", f"b{number:04d}", "test" if number in (5, 9) else "train")
        for number in (1, 3, 4, 5, 6, 7, 8, 9)
    ]
    van = [
        ("i0007", f"b{number:04d}", "test" if number in (14, 18) else "train")
        for number in range(11, 19)
    ]
    assert sessions(table) == boat + van and len(table) == 16 * 15
    assert table[16] == Frame(
        "train_img/boat-i0001-b0003-c00-r02-l0-f2.jpg",
        "boat",
        "i0001",
        "b0003",
        1,
        "train",
    )
    assert table.path[-1].startswith("train_img/van-i0007-b0018-c04-r0") and table.path[
        -1
    ].endswith("-l0.JPG")
    assert all(table.read(row).size == (12, 8) for row in range(len(table)))


def test_images_are_ordered_by_number_with_any_digits():
    names = []
    views = [
        (0, 1, 0, 2),
        (0, 1, 1, 0),
        (0, 1, 1, 3),
        (0, 2, 0, 0),
        (0, 10, 0, 0),
        (2, 1, 0, 0),
        (10, 1, 0, 0),
    ]
    views += [(11, rotation, 0, 0) for rotation in range(8)]
    for background in (1, 2, 3, 4, 5, 6, 7, 10):
        shuffled = np.random.default_rng(background).permutation(len(views))
        names += [
            "train_img/ufo-i3-b{}-c{}-r{}-l{}-f{}.jpg".format(background, *views[place])
            for place in shuffled
        ]
    table = ILabFrames("x", names)
    assert sessions(table)[-1] == ("i0003", "b0010", "test")
    for clip in table.clips(table.rows()):
        assert [table.path[row].partition("-c")[2] for row in clip] == [
            "{}-r{}-l{}-f{}.jpg".format(*view) for view in views
        ]
        assert [table.frame[row] for row in clip] == list(range(15))


def test_where_the_window_starts():
    # SHA-256 of boat/i0001/b0001 begins with b0c6a1b3c87b845d, of boat/i0001/b0003 with
    # b1ec4079d3806f81, and of car/i0001/b0001 with e990b79c3250d900. With 30 images
    # there are 16 starts, so the last digit says which.
    table = ILabFrames("x", ilab_names(["boat", "car"], [1], SMALL))
    assert [starts(table)[clip] for clip in (0, 2, 8)] == [0xD, 0x1, 0x0]
    # The sums of the digits of the first two are 122 and 112, so modulo 3 (17 images)
    # they are 2 and 1.
    table = ILabFrames("x", ilab_names(["boat", "car"], [1], SMALL, 17))
    assert [starts(table)[clip] for clip in (0, 2)] == [2, 1]
    assert table.path[0] == "train_img/boat-i0001-b0001-c00-r03-l0-f2.jpg"
    # By reference.
    names = ilab_names(["boat", "car"], [1], SMALL)
    # What random.Random(0).randint(0, 15) gives, one after the other.
    drawn = [12, 13, 1, 8, 15, 12, 9, 15, 11, 6, 4, 9, 4, 3, 8, 4]
    assert starts(ILabFrames("x", names[::-1], reference=True)) == drawn
    # A session that is not used draws nothing.
    more = (
        ilab_session("boat", 1, 0, 14)
        + ilab_session("boat", 1, 9, 30)
        + ilab_session("boat", 3, 1)
    )
    assert starts(ILabFrames("x", names + more, True)) == drawn
    assert starts(ILabFrames("x", names)) != drawn


def test_what_is_missing():
    names = ilab_names(["boat"], [1], SMALL) + ilab_names(["car"], [1, 2], range(1, 8))
    words = r"class 'car' in nowhere has 2 objects, none with 8 sessions \(backgrounds\) of at least 15.* Complete the"
    with pytest.raises(FrameTableError, match=words):
        ILabFrames("nowhere", names)
    names = [name for name in ilab_names(views=15) if "/bus-" not in name]
    gone = (
        "/boat-i0003-b0001",
        "/boat-i0004-b0001",
        "/boat-i0005",
        "/boat-i0006-b000",
        "/ufo-i0001",
        "/ufo-i0002",
    )
    names = [name for name in names if not name.startswith(gone, len("train_img"))]
    for background in (2, 3):
        names.remove(f"train_img/boat-i0003-b{background:04d}-c00-r01-l0-f2.jpg")
    # Of ufo 28 objects are left, and the fourth boat has 9 sessions: both are enough.
    assert LAYOUT.missing(ILabFrames("nowhere", names))[3:] == [
        "class boat: 2430 of 2520 training images, 810 of 840 test images",
        "class bus: 0 of 2520 training images, 0 of 840 test images",
    ]
