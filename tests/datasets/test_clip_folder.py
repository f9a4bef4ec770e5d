"""A folder of clips: what is a clip and a class, what is held out, and its videos."""

import os
import shutil
import sys
from itertools import chain

import pytest
from fake_data import held_out, image_sizes, write_clip_folder, write_files, write_image
from fake_videos import video_frame_number, write_video

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.datasets.clip_folder import (
    ClipFolder,
    ClipFolderFrames,
    held_out_of,
)
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.names import DoubtfulNameError

NATURAL = ("f1.jpeg", "f2.webp", "f3.bmp", "f4.tif", "f5.TIFF", "f9.JPG", "f10.png")


def test_frames_are_numbered_by_position_in_natural_order(tmp_path):
    for name in reversed(NATURAL):
        write_image(tmp_path / "cup" / "red" / "kitchen" / name)
    write_image(tmp_path / "cup" / "red" / "garden" / "0.png")
    table = ClipFolderFrames(tmp_path)
    kitchen = [f"cup/red/kitchen/{name}" for name in NATURAL]
    assert list(table.path) == ["cup/red/garden/0.png", *kitchen]
    assert table.frame == (0, 0, 1, 2, 3, 4, 5, 6)
    assert image_sizes(table) == {(12, 8)}


@pytest.mark.parametrize(("number", "count"), [(2, 1), (7, 1), (8, 2), (13, 3)])
@pytest.mark.parametrize("level", ["objects", "clips"])
def test_runs_hold_out_different_fifths(tmp_path, number, count, level):
    shape = {"objects": 1, "clips": 1, "frames": 1, level: number}
    write_clip_folder(tmp_path, classes=1, **shape)
    tables = [ClipFolderFrames(tmp_path, run) for run in range(number + 1)]
    splits = [held_out(table)["class0"] for table in tables]
    assert len({table.frames_hash() for table in tables}) == 1
    assert set(map(len, splits)) == {count}
    assert len(set(map(tuple, splits[:number]))) == number
    assert splits[number] == splits[0]
    # All are held out before a pair is repeated.
    turn = splits[: -(-number // count)]
    assert len(set(chain(*turn))) == number


def write_mixed_classes(root):
    """Write four classes.

    Of four objects of two clips, of one object of three clips, of one clip of 20
    frames, and of photos.
    """
    write_clip_folder(root / "a", classes=1, objects=4, clips=2, frames=1)
    write_clip_folder(root / "b", classes=1, objects=1, clips=3, frames=2)
    write_clip_folder(root / "c", classes=1, objects=1, clips=1, frames=20)
    for folder, name in (("a", "mug"), ("b", "cup"), ("c", "key")):
        shutil.move(root / folder / "class0", root / name)
        (root / folder).rmdir()
    for number in range(3):
        write_image(root / "pen" / f"IMG_{number}.png")
    return root


@pytest.mark.parametrize(("run", "number"), [(0, 0), (2, 2), (5, 5)])
def test_each_class_is_split_by_itself(tmp_path, run, number):
    table = ClipFolderFrames(write_mixed_classes(tmp_path), run)
    assert held_out(table) == {
        "cup": [f"object0/clip{number % 3}"],
        "key": ["object0/clip0"],
        "mug": [f"object{number % 4}/clip0", f"object{number % 4}/clip1"],
        "pen": ["pen/pen"],
    }
    assert [table.frame[row] for row in table.rows("test", "key")] == [16, 17, 18, 19]
    assert [table.path[row] for row in table.rows("test", "pen")] == ["pen/IMG_2.png"]
    assert all(count["train"] for count in table.counts().values())


@pytest.mark.parametrize(("run", "number"), [(0, 0), (2, 2), (5, 5)])
def test_what_is_held_out_in_words(tmp_path, run, number):
    table = ClipFolderFrames(write_mixed_classes(tmp_path), run)
    assert held_out_of(table) == {
        "cup": f"1 of 3 clips of its one object: clip{number % 3}",
        "key": "the last 4 of 20 frames of its one clip",
        "mug": f"1 of 4 objects: object{number % 4}",
        "pen": "the last 1 of 3 frames of its one clip",
    }


def test_a_number_counts_objects_or_clips(tmp_path):
    write_mixed_classes(tmp_path)
    described = held_out_of(ClipFolderFrames(tmp_path, 1, held_out=2))
    assert described["mug"] == "2 of 4 objects: object2, object3"
    assert described["cup"] == "2 of 3 clips of its one object: clip0, clip2"
    assert described["key"] == "the last 4 of 20 frames of its one clip"


def test_0_leaves_everything_for_training(tmp_path):
    write_mixed_classes(tmp_path)
    write_image(tmp_path / "pin" / "only.png")
    table = ClipFolderFrames(tmp_path, held_out=0)
    assert len(table) == len(table.rows("train")) == 8 + 6 + 20 + 3 + 1
    assert held_out_of(table)["mug"].startswith("0 of 4 objects")
    with pytest.raises(FrameTableError, match="has no test frames"):
        ClipFolder(tmp_path, held_out=0)


def test_a_class_of_a_single_image(tmp_path):
    write_image(tmp_path / "pin" / "only.png")
    words = (
        "class 'pin' has a single image, .*pin, .*one for training and another for "
        "testing; add images, .*or remove"
    )
    with pytest.raises(FrameTableError, match=words):
        ClipFolderFrames(tmp_path)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (3, "'cup' has 3 clips, .*held_out=3 leaves none .*at most 2"),
        (9, "'cup' has 3 clips"),
    ],
)
def test_more_clips_than_there_are(tmp_path, number, words):
    write_mixed_classes(tmp_path)
    with pytest.raises(FrameTableError, match=words):
        ClipFolderFrames(tmp_path, held_out=number)


def test_more_objects_than_there_are(tmp_path):
    write_mixed_classes(tmp_path)
    shutil.rmtree(tmp_path / "cup")
    words = r"'mug' has 4 objects, .*held_out=4 leaves none .*at most 3"
    with pytest.raises(FrameTableError, match=words):
        ClipFolderFrames(tmp_path, held_out=4)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (
            "stray.png",
            "lies where class folders are expected; the layout is "
            "<root>/<class>/<object>/<clip>",
        ),
        ("stray.mp4", "lies where class folders are expected; the layout is"),
        (
            "class0/object0/clip0.mp4",
            "and .*/clip0 are both clip 'clip0'; rename or remove one",
        ),
        ("empty/", "holds no images and no videos; fill it"),
    ],
)
def test_what_lies_in_the_wrong_place_or_is_empty_is_named(tmp_path, path, words):
    write_clip_folder(tmp_path)
    if path.endswith("/"):
        (tmp_path / path).mkdir()
    else:
        write_files(tmp_path, [path])
    with pytest.raises(FrameTableError, match=f"{path.rstrip('/')} {words}"):
        ClipFolderFrames(tmp_path)


@pytest.mark.parametrize(
    ("folder", "arguments", "words"),
    [
        ("nowhere", {}, "no folder .*nowhere"),
        (".", {}, "holds no class folders"),
        (".", {"held_out": -1}, "held_out is -1, but must be a whole number of at lea"),
        (".", {"run": -1}, "run is -1"),
        (".", {"fps": 0}, "fps is 0, but must be a number above 0"),
        (".", {"fps": -1}, "fps is -1, but must be a number above 0"),
        (".", {"fps": "1"}, "fps is '1', but must be a number above 0"),
        (".", {"fps": float("inf")}, "fps is inf, but must be a number above 0"),
    ],
)
def test_roots_and_numbers_out_of_range(tmp_path, folder, arguments, words):
    with pytest.raises(ValueError, match=words):
        ClipFolderFrames(tmp_path / folder, **arguments)


def test_clips_may_lie_deeper(tmp_path):
    write_clip_folder(tmp_path, classes=1, objects=2, clips=1, frames=1)
    write_image(tmp_path / "class0/object1/day/noon/1.png")
    write_image(tmp_path / "class0/object1/day/1.png")
    write_image(tmp_path / "class0/beside.png")
    table = ClipFolderFrames(tmp_path, held_out=0)
    assert list(zip(table.object_name, table.session)) == [
        ("class0", "class0"),
        ("object0", "clip0"),
        ("object1", "clip0"),
        ("object1", "day"),
        ("object1", "day/noon"),
    ]


def test_a_video_beside_photos_is_their_source(tmp_path):
    write_clip_folder(tmp_path, classes=1, objects=2, clips=1, frames=1)
    (tmp_path / "class0/object1/clip0/source.mp4").write_bytes(b"x")
    with pytest.warns(UserWarning, match=r"are ignored: 1 \.mp4"):
        table = ClipFolderFrames(tmp_path)
    assert len(table) == 2


# Below a clip of `write_clip_folder`.
NO_IMAGES = (
    "../../../README.md",
    "../../labels.csv",
    "Thumbs.db",
    ".hidden.png",
    "1.heic",
    "2.HEIC",
    "a.dng",
    "notes/a.csv",
)


def write_others(root):
    """Write files that are no images to a folder of clips."""
    clip = root / "class0/object0/clip0"
    (clip / "notes").mkdir()
    for name in NO_IMAGES:
        (clip / name).write_bytes(b"x")
    write_image(clip / "@eaDir" / "thumb.jpg")


def test_files_that_are_no_images_are_ignored(tmp_path):
    write_clip_folder(tmp_path)
    before = ClipFolderFrames(tmp_path).content_hash()
    write_others(tmp_path)
    words = (
        r"2 \.csv, 2 \.heic \(convert them to JPEG or PNG\), 1 \.dng .*, 1 \.md and 2 "
        r"hidden or system$"
    )
    with pytest.warns(UserWarning, match=rf"^below .* are ignored: {words}") as warned:
        assert ClipFolderFrames(tmp_path).content_hash() == before
    assert len(warned) == 1


def test_files_of_a_class_that_is_its_only_clip_are_counted_once(tmp_path):
    write_image(tmp_path / "pen" / "0.png")
    write_image(tmp_path / "pen" / "1.png")
    (tmp_path / "pen" / "2.json").write_bytes(b"{}")
    with pytest.warns(UserWarning, match=r"are ignored: 1 \.json$"):
        ClipFolderFrames(tmp_path)


@pytest.fixture
def splits(tmp_path):
    """Folders that look like the splits of a data set."""
    write_image(tmp_path / "train/cup/1.png")
    write_image(tmp_path / "train/mug/1.png")
    write_image(tmp_path / "Test/cup/1.png")
    write_image(tmp_path / "Test/mug/1.png")
    return tmp_path


def test_folders_that_look_like_splits_are_asked_about(splits):
    words = r"looks like the splits .*: Test, train\. Give .*new_class=True"
    with pytest.raises(DoubtfulNameError, match=words):
        ClipFolderFrames(splits)


def test_folders_that_look_like_splits_may_be_classes(splits):
    table = get_benchmark("clip_folder").table(splits, 0, new_class=True)
    assert table.classes == ("Test", "train")


def test_twins_are_asked_about(splits):
    write_image(splits / "train" / "mu\uff47" / "1.png")  # of full width
    words = r"'mu\uff47' is nearly the name of class 'mug'.*new_class=True"
    with pytest.raises(DoubtfulNameError, match=words):
        ClipFolderFrames(splits / "train", held_out=0)


def test_twins_may_be_classes(splits):
    write_image(splits / "train" / "mu\uff47" / "1.png")
    table = ClipFolderFrames(splits / "train", held_out=0, new_class=True)
    assert len(table.classes) == 3


def test_names_of_classes_are_those_of_a_learner(tmp_path):
    write_image(tmp_path / " cafe\u0301" / "1.png")
    assert ClipFolderFrames(tmp_path, held_out=0).classes == ("caf\u00e9",)


def test_two_folders_of_one_name(tmp_path):
    write_image(tmp_path / " cafe\u0301" / "1.png")
    write_image(tmp_path / "cafe\u0301" / "1.png")
    words = r"are both class 'caf\u00e9'; rename or merge one"
    with pytest.raises(FrameTableError, match=words):
        ClipFolderFrames(tmp_path, new_class=True)


def test_a_name_that_no_class_may_have(tmp_path):
    write_image(tmp_path / "a\u202eb" / "1.png")
    with pytest.raises(FrameTableError, match=r"class name 'a\\u202eb' contains"):
        ClipFolderFrames(tmp_path)


def test_a_name_that_is_not_utf_8(tmp_path):
    write_image(tmp_path / "a" / "1.png")
    os.rename(os.fsencode(tmp_path / "a"), os.fsencode(tmp_path) + b"/cl\xff")
    words = r"the name b'cl\\xff' below .* is not UTF-8 text; rename"
    with pytest.raises(FrameTableError, match=words):
        ClipFolderFrames(tmp_path)


@pytest.fixture
def mixed(tmp_path):
    """Two classes of two objects.

    Each has a folder `b` of two frames and a clip `a10.mp4` or `a9.MOV` of 2 s.
    """
    pytest.importorskip("av")
    videos = {
        "cup/red": "a10.mp4",
        "cup/blue": "a10.mp4",
        "mug/x": "a9.MOV",
        "mug/y": "a10.mp4",
    }
    for name, video in videos.items():
        write_image(tmp_path / name / "b" / "1.png")
        write_image(tmp_path / name / "b" / "2.png")
        write_video(tmp_path / name / video, seconds=2, rate=5)
    return tmp_path


def frame_times(root):
    """Return when each extracted frame was written, by name."""
    paths = sorted((root / ".crumb_frames").rglob("*.png"))
    return {
        path.relative_to(root).as_posix(): path.stat().st_mtime_ns for path in paths
    }


def test_videos_and_folders_of_frames_may_be_mixed(mixed):
    table = ClipFolderFrames(mixed)
    rows = [frame for frame in table if frame.object_name == "red"]
    folder = ".crumb_frames/1fps/cup/red/a10.mp4"
    assert [(row.path, row.session, row.frame) for row in rows] == [
        (f"{folder}/000001.png", "a10", 0),
        (f"{folder}/000002.png", "a10", 1),
        ("cup/red/b/1.png", "b", 0),
        ("cup/red/b/2.png", "b", 1),
    ]
    assert held_out(table) == {"cup": ["blue/a10", "blue/b"], "mug": ["x/a9", "x/b"]}
    assert [video_frame_number(mixed / row.path) for row in rows[:2]] == [0, 5]
    assert table.read(0).size == (64, 48)


def test_frames_are_extracted_once(mixed, monkeypatch):
    table = ClipFolderFrames(mixed)
    assert len(frame_times(mixed)) == 8
    monkeypatch.setitem(sys.modules, "av", None)
    assert ClipFolderFrames(mixed).content_hash() == table.content_hash()


def test_frames_of_another_rate_lie_beside(mixed):
    ClipFolderFrames(mixed)
    before = frame_times(mixed)
    faster = ClipFolderFrames(mixed, fps=2.5)
    beside = [path for path in faster.path if path.startswith(".crumb_frames/2.5fps/")]
    assert len(beside) == 4 * 5
    assert before.items() <= frame_times(mixed).items()


def test_a_video_that_was_changed(mixed):
    table = ClipFolderFrames(mixed)
    write_video(mixed / "cup" / "red" / "a10.mp4", seconds=3, rate=5)
    assert len(ClipFolderFrames(mixed)) == len(table) + 1


@pytest.fixture
def damaged(mixed):
    """The same with two files that are no videos."""
    (mixed / "cup/red/bad1.mp4").write_bytes(b"no video")
    (mixed / "mug/x/bad2.AVI").write_bytes(b"no video")
    return mixed


def test_bad_videos_are_an_error(damaged):
    words = (
        r"2 of 6 videos below .* cannot be read to their end; remove or replace them, "
        r"or leave them out with --on-bad-frame skip\. .* are kept\.\n .*bad1.mp4 "
        r"cannot "
        r".*\n .*bad2.AVI cannot"
    )
    with pytest.raises(FrameTableError, match=words):
        ClipFolderFrames(damaged)
    assert len(frame_times(damaged)) == 8


def test_bad_videos_are_listed(damaged):
    bad = []
    ClipFolderFrames(damaged, bad_videos=bad)
    first, second = bad
    assert "bad1.mp4 cannot" in first
    assert "bad2.AVI cannot" in second


def test_a_class_of_bad_videos_is_told(damaged):
    (damaged / "pot").mkdir()
    (damaged / "pot" / "bad3.mp4").write_bytes(b"no video")
    with pytest.warns(UserWarning, match="no video of class 'pot' can be read"):
        table = ClipFolderFrames(damaged, bad_videos=[])
    assert table.classes == ("cup", "mug")


def test_bad_videos_are_as_if_they_were_not_there(damaged):
    skipped = ClipFolderFrames(damaged, bad_videos=[])
    times = frame_times(damaged)
    (damaged / "cup/red/bad1.mp4").unlink()
    (damaged / "mug/x/bad2.AVI").unlink()
    table = ClipFolderFrames(damaged)
    assert len(table) == 16
    assert list(table) == list(skipped)
    assert frame_times(damaged) == times


def test_photos_need_no_pyav(tmp_path, monkeypatch):
    write_clip_folder(tmp_path)
    monkeypatch.setitem(sys.modules, "av", None)
    assert len(ClipFolderFrames(tmp_path)) == 2 * 3 * 2 * 3
    assert not (tmp_path / ".crumb_frames").exists()


def test_videos_need_pyav(tmp_path, monkeypatch):
    write_clip_folder(tmp_path)
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / "class0" / "object0" / "a.mp4").write_bytes(b"x")
    with pytest.raises(ImportError, match=r'pip install -e "\.\[video\]"'):
        ClipFolderFrames(tmp_path)
