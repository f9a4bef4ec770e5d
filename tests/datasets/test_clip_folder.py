"""A folder of clips: what is a clip and a class, what is held out, and the frames of its videos."""

import os
import shutil
import sys

import pytest
from fake_data import held_out, write_clip_folder, write_files, write_image
from fake_videos import video_frame_number, write_video

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.datasets.clip_folder import (
    ClipFolder,
    ClipFolderFrames,
    held_out_of,
)
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.names import DoubtfulNameError


def test_frames_are_numbered_by_position_in_natural_order(tmp_path):
    for name in (
        "f10.png",
        "f9.JPG",
        "f1.jpeg",
        "f2.webp",
        "f3.bmp",
        "f4.tif",
        "f5.TIFF",
    ):
        write_image(tmp_path / "cup" / "red" / "kitchen" / name)
    write_image(tmp_path / "cup" / "red" / "garden" / "0.png")
    table = ClipFolderFrames(tmp_path)
    assert table.path[:2] == ("cup/red/garden/0.png", "cup/red/kitchen/f1.jpeg")
    kitchen = [
        (path.rpartition("/")[2], frame)
        for path, frame in zip(table.path[1:], table.frame[1:])
    ]
    names = ["f1.jpeg", "f2.webp", "f3.bmp", "f4.tif", "f5.TIFF", "f9.JPG", "f10.png"]
    assert kitchen == [(name, place) for place, name in enumerate(names)]
    assert all(table.read(row).size == (12, 8) for row in range(len(table)))


@pytest.mark.parametrize(("number", "count"), [(2, 1), (7, 1), (8, 2), (13, 3)])
@pytest.mark.parametrize("level", ["objects", "clips"])
def test_a_fifth_is_held_out_and_runs_hold_out_different_ones(
    tmp_path, number, count, level
):
    write_clip_folder(
        tmp_path, classes=1, **{"objects": 1, "clips": 1, "frames": 1, level: number}
    )
    tables = [ClipFolderFrames(tmp_path, run) for run in range(number + 1)]
    assert len({table.frames_hash() for table in tables}) == 1
    splits = [held_out(table)["class0"] for table in tables]
    assert {len(split) for split in splits} == {count}
    assert (
        len(set(map(tuple, splits[:number]))) == number and splits[number] == splits[0]
    )
    # All are held out before a pair is repeated.
    assert (
        len({clip for split in splits[: -(-number // count)] for clip in split})
        == number
    )


def write_mixed_classes(root):
    """A class of four objects of two clips, of one object of three clips, of one clip of 20 frames, and of photos."""
    write_clip_folder(root / "a", classes=1, objects=4, clips=2, frames=1)
    write_clip_folder(root / "b", classes=1, objects=1, clips=3, frames=2)
    write_clip_folder(root / "c", classes=1, objects=1, clips=1, frames=20)
    for place, name in (("a", "mug"), ("b", "cup"), ("c", "key")):
        shutil.move(root / place / "class0", root / name)
        (root / place).rmdir()
    for number in range(3):
        write_image(root / "pen" / f"IMG_{number}.png")
    return root


def test_each_class_is_split_by_itself(tmp_path):
    write_mixed_classes(tmp_path)
    for run, item in ((0, 0), (2, 2), (5, 5)):
        table = ClipFolderFrames(tmp_path, run)
        assert held_out(table) == {
            "cup": [f"object0/clip{item % 3}"],
            "key": ["object0/clip0"],
            "mug": [f"object{item % 4}/clip{clip}" for clip in (0, 1)],
            "pen": ["pen/pen"],
        }
        assert held_out_of(table) == {
            "cup": f"1 of 3 clips of its one object: clip{item % 3}",
            "key": "the last 4 of 20 frames of its one clip",
            "mug": f"1 of 4 objects: object{item % 4}",
            "pen": "the last 1 of 3 frames of its one clip",
        }
        assert [table.frame[row] for row in table.rows("test", "key")] == [
            16,
            17,
            18,
            19,
        ]
        assert [table.path[row] for row in table.rows("test", "pen")] == [
            "pen/IMG_2.png"
        ]
        assert all(count["train"] for count in table.counts().values())


def test_a_number_counts_objects_or_clips_and_0_leaves_everything_for_training(
    tmp_path,
):
    write_mixed_classes(tmp_path)
    described = held_out_of(ClipFolderFrames(tmp_path, 1, held_out=2))
    assert described["mug"] == "2 of 4 objects: object2, object3"
    assert described["cup"] == "2 of 3 clips of its one object: clip0, clip2"
    assert described["key"] == "the last 4 of 20 frames of its one clip"
    write_image(tmp_path / "pin" / "only.png")
    table = ClipFolderFrames(tmp_path, held_out=0)
    assert len(table) == len(table.rows("train")) == 8 + 6 + 20 + 3 + 1
    assert held_out_of(table)["mug"].startswith("0 of 4 objects")
    with pytest.raises(FrameTableError, match="has no test frames"):
        ClipFolder(tmp_path, held_out=0)
    words = "class 'pin' has a single image, .*pin, .*one for training and another for testing; add images, .*or remove"
    with pytest.raises(FrameTableError, match=words):
        ClipFolderFrames(tmp_path)
    for number, words in (
        (3, "'cup' has 3 clips, .*held_out=3 leaves none .*at most 2"),
        (9, "'cup' has 3 clips"),
    ):
        with pytest.raises(FrameTableError, match=words):
            ClipFolderFrames(tmp_path, held_out=number)
    shutil.rmtree(tmp_path / "cup")
    with pytest.raises(
        FrameTableError,
        match=r"'mug' has 4 objects, .*held_out=4 leaves none .*at most 3",
    ):
        ClipFolderFrames(tmp_path, held_out=4)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (
            "stray.png",
            "lies where class folders are expected; the layout is <root>/<class>/<object>/<clip>",
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


def test_roots_and_numbers_out_of_range(tmp_path):
    for folder, arguments, words in (
        ("nowhere", {}, "no folder .*nowhere"),
        (".", {}, "holds no class folders"),
        (
            ".",
            {"held_out": -1},
            "held_out is -1, but must be a whole number of at least 0",
        ),
        (".", {"run": -1}, "run is -1"),
        *(
            (".", {"fps": fps}, f"fps is {fps!r}, but must be a number above 0")
            for fps in (0, -1, "1", float("inf"))
        ),
    ):
        with pytest.raises(ValueError, match=words):
            ClipFolderFrames(tmp_path / folder, **arguments)


def test_clips_may_lie_deeper_and_a_video_beside_photos_is_their_source(tmp_path):
    write_clip_folder(tmp_path, classes=1, objects=2, clips=1, frames=1)
    for name in (
        "class0/object1/day/noon/1.png",
        "class0/object1/day/1.png",
        "class0/beside.png",
    ):
        write_image(tmp_path / name)
    (tmp_path / "class0/object1/day/source.mp4").write_bytes(b"x")
    with pytest.warns(UserWarning, match=r"are ignored: 1 \.mp4"):
        table = ClipFolderFrames(tmp_path, held_out=0)
    assert list(zip(table.object_name, table.session)) == [
        ("class0", "class0"),
        ("object0", "clip0"),
        ("object1", "clip0"),
        ("object1", "day"),
        ("object1", "day/noon"),
    ]


def test_files_that_are_not_images_are_ignored_and_counted_in_one_warning(tmp_path):
    write_clip_folder(tmp_path)
    before = ClipFolderFrames(tmp_path).content_hash()
    clip = tmp_path / "class0/object0/clip0"
    for name in (
        "../../../README.md",
        "../../labels.csv",
        "Thumbs.db",
        ".hidden.png",
        "1.heic",
        "2.HEIC",
        "a.dng",
    ):
        (clip / name).write_bytes(b"x")
    write_image(clip / "@eaDir" / "thumb.jpg")
    (clip / "notes").mkdir()
    (clip / "notes" / "a.csv").write_bytes(b"x")
    words = r"2 \.csv, 2 \.heic \(convert them to JPEG or PNG\), 1 \.dng .*, 1 \.md and 2 hidden or system$"
    with pytest.warns(UserWarning, match=rf"^below .* are ignored: {words}") as warned:
        assert ClipFolderFrames(tmp_path).content_hash() == before
    assert len(warned) == 1
    for number in range(3):  # a class that is its only clip is counted once
        write_image(tmp_path / "pen" / f"{number}.png")
    (tmp_path / "pen" / "3.json").write_bytes(b"{}")
    with pytest.warns(UserWarning, match=r": 2 \.csv, 2 \.heic .*, 1 \.json"):
        ClipFolderFrames(tmp_path)


def test_folders_that_look_like_splits_or_twins_are_asked_about(tmp_path):
    for name in (
        "train/cup/1.png",
        "train/mug/1.png",
        "Test/cup/1.png",
        "Test/mug/1.png",
    ):
        write_image(tmp_path / name)
    with pytest.raises(
        DoubtfulNameError,
        match=r"looks like the splits .*: Test, train\. Give .*new_class=True",
    ):
        ClipFolderFrames(tmp_path)
    assert get_benchmark("clip_folder").table(tmp_path, 0, new_class=True).classes == (
        "Test",
        "train",
    )
    write_image(tmp_path / "train" / "mu\uff47" / "1.png")  # of full width
    with pytest.raises(
        DoubtfulNameError,
        match=r"'mu\uff47' is nearly the name of class 'mug'.*new_class=True",
    ):
        ClipFolderFrames(tmp_path / "train", held_out=0)
    assert (
        len(ClipFolderFrames(tmp_path / "train", held_out=0, new_class=True).classes)
        == 3
    )


def test_names_of_classes_are_those_that_a_learner_may_have(tmp_path):
    write_image(tmp_path / " cafe\u0301" / "1.png")
    assert ClipFolderFrames(tmp_path, held_out=0).classes == ("caf\u00e9",)
    write_image(tmp_path / "cafe\u0301" / "1.png")
    with pytest.raises(
        FrameTableError, match=r"are both class 'caf\u00e9'; rename or merge one"
    ):
        ClipFolderFrames(tmp_path, new_class=True)
    write_image(tmp_path / "a\u202eb" / "1.png")
    with pytest.raises(FrameTableError, match=r"class name 'a\\u202eb' contains"):
        ClipFolderFrames(tmp_path)
    os.rename(os.fsencode(tmp_path / "a\u202eb"), os.fsencode(tmp_path) + b"/cl\xff")
    with pytest.raises(
        FrameTableError, match=r"the name b'cl\\xff' below .* is not UTF-8 text; rename"
    ):
        ClipFolderFrames(tmp_path)


def write_mixed_clips(root):
    """Two classes of two objects, each with a folder `b` of two frames and a clip `a10.mp4` or `a9.MOV` of 2 s."""
    pytest.importorskip("av")
    for name in ("cup/red", "cup/blue", "mug/x", "mug/y"):
        for frame in (1, 2):
            write_image(root / name / "b" / f"{frame}.png")
        write_video(
            root / name / ("a9.MOV" if name == "mug/x" else "a10.mp4"),
            seconds=2,
            rate=5,
        )
    return root


def frame_files(root):
    return sorted(
        path.relative_to(root).as_posix()
        for path in (root / ".crumb_frames").rglob("*.png")
    )


def test_videos_and_folders_of_frames_may_be_mixed(tmp_path, monkeypatch):
    write_mixed_clips(tmp_path)
    table = ClipFolderFrames(tmp_path)
    rows = [frame for frame in table if frame.object_name == "red"]
    folder = ".crumb_frames/1fps/cup/red/a10.mp4"
    assert [(row.path, row.session, row.frame) for row in rows] == [
        (f"{folder}/000001.png", "a10", 0),
        (f"{folder}/000002.png", "a10", 1),
        ("cup/red/b/1.png", "b", 0),
        ("cup/red/b/2.png", "b", 1),
    ]
    assert held_out(table) == {"cup": ["blue/a10", "blue/b"], "mug": ["x/a9", "x/b"]}
    assert [video_frame_number(tmp_path / row.path) for row in rows[:2]] == [0, 5]
    assert table.read(0).size == (64, 48)
    # They are extracted once for each rate.
    times = {
        name: (tmp_path / name).stat().st_mtime_ns for name in frame_files(tmp_path)
    }
    assert len(times) == 8
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "av", None)
        assert ClipFolderFrames(tmp_path).content_hash() == table.content_hash()
    faster = ClipFolderFrames(tmp_path, fps=2.5)
    assert (
        sum(path.startswith(".crumb_frames/2.5fps/") for path in faster.path) == 4 * 5
    )
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in times} == times
    write_video(tmp_path / "cup" / "red" / "a10.mp4", seconds=3, rate=5)
    assert len(ClipFolderFrames(tmp_path)) == len(table) + 1


def test_bad_videos_are_listed_and_the_others_are_kept(tmp_path):
    write_mixed_clips(tmp_path)
    for name in ("cup/red/bad1.mp4", "mug/x/bad2.AVI"):
        (tmp_path / name).write_bytes(b"no video")
    words = (
        r"2 of 6 videos below .* cannot be read to their end; remove or replace them, or leave them out with "
        r"--on-bad-frame skip\. .* are kept\.\n .*bad1.mp4 cannot .*\n .*bad2.AVI cannot"
    )
    with pytest.raises(FrameTableError, match=words):
        ClipFolderFrames(tmp_path)
    assert len(frame_files(tmp_path)) == 8
    bad = []
    skipped = ClipFolderFrames(tmp_path, bad_videos=bad)
    assert [message.split(" cannot")[0][-8:] for message in bad] == [
        "bad1.mp4",
        "bad2.AVI",
    ]
    times = [(tmp_path / name).stat().st_mtime_ns for name in frame_files(tmp_path)]
    for name in ("cup/red/bad1.mp4", "mug/x/bad2.AVI"):
        (tmp_path / name).unlink()
    whole = ClipFolderFrames(tmp_path)
    assert len(whole) == 16 and list(whole) == list(skipped), (
        "as if the bad ones were not there"
    )
    assert [
        (tmp_path / name).stat().st_mtime_ns for name in frame_files(tmp_path)
    ] == times


def test_only_videos_need_pyav(tmp_path, monkeypatch):
    write_clip_folder(tmp_path)
    monkeypatch.setitem(sys.modules, "av", None)
    assert (
        len(ClipFolderFrames(tmp_path)) == 2 * 3 * 2 * 3
        and not (tmp_path / ".crumb_frames").exists()
    )
    (tmp_path / "class0" / "object0" / "a.mp4").write_bytes(b"x")
    with pytest.raises(ImportError, match=r'pip install -e "\.\[video\]"'):
        ClipFolderFrames(tmp_path)
