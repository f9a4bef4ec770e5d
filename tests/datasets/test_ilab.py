import numpy as np
import pytest
from fake_data import ilab_names, ilab_session, image_sizes, odd_ilab_names, write_files

from benchmarks_toybox_ilab.datasets.ilab import LAYOUT, ILabFrames
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError

SMALL = range(1, 9)  # as few backgrounds as an object may have


def sessions(table):
    """Names of object, session and split of each clip, in table order."""
    return list(
        dict.fromkeys((row.object_name, row.session, row.split) for row in table)
    )


def starts(table):
    """Return the first frame of each clip, in the order of the table.

    A clip must have 15 consecutive frames.
    """
    firsts = []
    for clip in table.clips(table.rows()):
        frames = [table.frame[row] for row in clip]
        first = frames[0]
        assert frames == list(range(first, first + 15))
        firsts.append(first)
    return firsts


def sessions_of(name, backgrounds, test):
    """Return the sessions of an object with their splits."""
    expected = []
    for number in backgrounds:
        split = "test" if number in test else "train"
        expected.append((name, f"b{number:04d}", split))
    return expected


def test_sessions_of_a_tree_with_unusual_names(tmp_path):
    table = ILabFrames(write_files(tmp_path, odd_ilab_names()))
    # The second background of the boat has 14 images, so its place is the third's; the
    # second boat has 7 sessions.
    boat = sessions_of("i0001", (1, 3, 4, 5, 6, 7, 8, 9), test=(5, 9))
    van = sessions_of("i0007", range(11, 19), test=(14, 18))
    assert sessions(table) == boat + van
    assert len(table) == 16 * 15


def test_frames_of_a_tree_with_unusual_names(tmp_path):
    table = ILabFrames(write_files(tmp_path, odd_ilab_names()))
    assert table.classes == ("boat", "van")
    assert table.name == "ilab"
    assert not table.padded
    assert table[16] == Frame(
        path="train_img/boat-i0001-b0003-c00-r02-l0-f2.jpg",
        class_name="boat",
        object_name="i0001",
        session="b0003",
        frame=1,
        split="train",
    )
    assert table.path[-1].startswith("train_img/van-i0007-b0018-c04-r0")
    assert table.path[-1].endswith("-l0.JPG")
    assert image_sizes(table) == {(12, 8)}


# Camera, rotation, light and focus, in the order of a clip.
VIEWS = [
    "c0-r1-l0-f2",
    "c0-r1-l1-f0",
    "c0-r1-l1-f3",
    "c0-r2-l0-f0",
    "c0-r10-l0-f0",
    "c2-r1-l0-f0",
    "c10-r1-l0-f0",
    *(f"c11-r{rotation}-l0-f0" for rotation in range(8)),
]


def test_images_are_ordered_by_number_with_any_digits():
    names = []
    for background in (1, 2, 3, 4, 5, 6, 7, 10):
        shuffled = np.random.default_rng(background).permutation(VIEWS)
        names += [f"train_img/ufo-i3-b{background}-{view}.jpg" for view in shuffled]
    table = ILabFrames("x", names)
    views = [path.removesuffix(".jpg").split("-", 3)[-1] for path in table.path]
    assert sessions(table)[-1] == ("i0003", "b0010", "test")
    assert views == VIEWS * 8
    assert list(table.frame) == list(range(15)) * 8


def test_where_the_window_starts():
    # SHA-256 of boat/i0001/b0001 begins with b0c6a1b3c87b845d, of boat/i0001/b0003 with
    # b1ec4079d3806f81, and of car/i0001/b0001 with e990b79c3250d900. With 30 images
    # there are 16 starts, so the last digit says which.
    table = ILabFrames("x", ilab_names(["boat", "car"], [1], SMALL))
    first = starts(table)
    assert (first[0], first[2], first[8]) == (0xD, 0x1, 0x0)


def test_where_the_window_starts_among_three():
    # The sums of the digits of the first two are 122 and 112, so modulo 3 (17 images)
    # they are 2 and 1.
    table = ILabFrames("x", ilab_names(["boat", "car"], [1], SMALL, 17))
    first = starts(table)
    assert (first[0], first[2]) == (2, 1)
    assert table.path[0] == "train_img/boat-i0001-b0001-c00-r03-l0-f2.jpg"


# What random.Random(0).randint(0, 15) gives, one after the other.
DRAWN = [12, 13, 1, 8, 15, 12, 9, 15, 11, 6, 4, 9, 4, 3, 8, 4]


def test_where_the_window_starts_by_reference():
    names = ilab_names(["boat", "car"], [1], SMALL)
    assert starts(ILabFrames("x", names[::-1], reference=True)) == DRAWN
    assert starts(ILabFrames("x", names)) != DRAWN


def test_a_session_that_is_not_used_draws_nothing():
    unused = [
        *ilab_session("boat", 1, 0, 14),
        *ilab_session("boat", 1, 9, 30),
        *ilab_session("boat", 3, 1),
    ]
    names = ilab_names(["boat", "car"], [1], SMALL)
    assert starts(ILabFrames("x", names + unused, True)) == DRAWN


def test_a_class_without_a_usable_object():
    names = ilab_names(["boat"], [1], SMALL) + ilab_names(["car"], [1, 2], range(1, 8))
    words = (
        r"class 'car' in nowhere has 2 objects, none with 8 sessions \(backgrounds\) "
        r"of "
        r"at least 15.* Complete the"
    )
    with pytest.raises(FrameTableError, match=words):
        ILabFrames("nowhere", names)


GONE = (
    "train_img/boat-i0003-b0001",
    "train_img/boat-i0003-b0002-c00-r01-l0-f2.jpg",
    "train_img/boat-i0003-b0003-c00-r01-l0-f2.jpg",
    "train_img/boat-i0004-b0001",
    "train_img/boat-i0005",
    "train_img/boat-i0006-b000",
    "train_img/bus-",
    "train_img/ufo-i0001",
    "train_img/ufo-i0002",
)


def test_what_is_missing():
    names = [name for name in ilab_names(views=15) if not name.startswith(GONE)]
    # Of ufo 28 objects are left, and the fourth boat has 9 sessions: both are enough.
    assert LAYOUT.missing(ILabFrames("nowhere", names))[3:] == [
        "class boat: 2430 of 2520 training images, 810 of 840 test images",
        "class bus: 0 of 2520 training images, 0 of 840 test images",
    ]
