"""A folder of clips with videos: frames extracted from them, bad videos, and what is refused."""

import os
import sys

import pytest
from fake_data import held_out, write_clip_folder, write_image
from fake_videos import video_frame_number, write_video

from benchmarks_toybox_ilab.datasets.clip_folder import ClipFolder, ClipFolderFrames
from benchmarks_toybox_ilab.tables.frame import FrameTableError


def write_mixed(root):
    """Two classes of two objects, each with a folder `b` of two frames and a clip `a10.mp4` or `a9.MOV` of 2 s."""
    pytest.importorskip("av")
    for name in ("cup/red", "cup/blue", "mug/x", "mug/y"):
        for frame in (1, 2):
            write_image(root / name / "b" / f"{frame}.png")
        write_video(root / name / ("a9.MOV" if name == "mug/x" else "a10.mp4"), seconds=2, rate=5)
    return root


def frame_files(root):
    return sorted(path.relative_to(root).as_posix() for path in (root / ".crumb_frames").rglob("*.png"))


def test_videos_and_folders_of_frames_may_be_mixed(tmp_path):
    write_mixed(tmp_path)
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


def test_videos_and_folders_are_sorted_by_name_together(tmp_path):
    pytest.importorskip("av")
    write_image(tmp_path / "cup" / "red" / "b9" / "1.png")
    write_video(tmp_path / "cup" / "red" / "b10.mp4", seconds=0.2)
    write_image(tmp_path / "cup" / "red" / "b11" / "1.png")
    splits = [held_out(ClipFolderFrames(tmp_path, run))["cup"] for run in range(3)]
    assert splits == [["red/b9"], ["red/b10"], ["red/b11"]]


def test_frames_are_extracted_once_for_each_rate(tmp_path, monkeypatch):
    write_mixed(tmp_path)
    first = ClipFolderFrames(tmp_path)
    times = {name: (tmp_path / name).stat().st_mtime_ns for name in frame_files(tmp_path)}
    assert len(times) == 8
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "av", None)
        assert ClipFolderFrames(tmp_path).content_hash() == first.content_hash()
    faster = ClipFolderFrames(tmp_path, fps=2.5)
    assert sum(path.startswith(".crumb_frames/2.5fps/") for path in faster.path) == 4 * 5
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in times} == times
    write_video(tmp_path / "cup" / "red" / "a10.mp4", seconds=3, rate=5)
    assert len(ClipFolderFrames(tmp_path)) == len(first) + 1


def test_frames_of_a_video_are_at_most_512_pixels_high(tmp_path):
    pytest.importorskip("av")
    write_video(tmp_path / "cup" / "red" / "a.mp4", seconds=0.1, size=(640, 576))
    write_video(tmp_path / "cup" / "blue" / "a.mp4", seconds=0.1, size=(576, 600))
    table = ClipFolderFrames(tmp_path)
    assert [table.read(row).size for row in range(2)] == [(512, 533), (569, 512)]


def test_bad_videos_are_listed_and_the_others_are_kept(tmp_path):
    write_mixed(tmp_path)
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
    assert [message.split(" cannot")[0][-8:] for message in bad] == ["bad1.mp4", "bad2.AVI"]
    times = [(tmp_path / name).stat().st_mtime_ns for name in frame_files(tmp_path)]
    for name in ("cup/red/bad1.mp4", "mug/x/bad2.AVI"):
        (tmp_path / name).unlink()
    whole = ClipFolderFrames(tmp_path)
    assert len(whole) == 16 and list(whole) == list(skipped), "as if the bad ones were not there"
    assert [(tmp_path / name).stat().st_mtime_ns for name in frame_files(tmp_path)] == times


def test_a_class_whose_only_video_is_bad_is_left_out(tmp_path):
    write_mixed(tmp_path)
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "only.mp4").write_bytes(b"no video")
    bad = []
    assert ClipFolderFrames(tmp_path, bad_videos=bad).classes == ("cup", "mug") and len(bad) == 1


@pytest.mark.parametrize("damage", ["flipped", "zeroed"])
def test_damaged_frames_of_a_video_are_taken_out_again(tmp_path, damage):
    write_mixed(tmp_path)
    ClipFolderFrames(tmp_path)
    path = tmp_path / frame_files(tmp_path)[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:60] + bytes([whole[60] ^ 1]) + whole[61:] if damage == "flipped" else bytes(len(whole)))
    os.utime(path, ns=(0, 0))  # a clock may tick too seldom to tell two writes apart
    ClipFolderFrames(tmp_path)
    assert path.read_bytes() == whole
    assert path.stat().st_mtime_ns > 0


def test_two_videos_of_one_name(tmp_path):
    write_clip_folder(tmp_path)
    for name in ("a.mp4", "a.mov"):
        (tmp_path / "class0" / "object0" / name).write_bytes(b"x")
    with pytest.raises(FrameTableError, match=r"a.mov and .*a.mp4 are both clip 'a'"):
        ClipFolderFrames(tmp_path)


def test_a_video_beside_the_images_made_from_it_is_ignored(tmp_path):
    write_clip_folder(tmp_path)
    before = ClipFolderFrames(tmp_path).content_hash()
    (tmp_path / "class0" / "object0" / "clip0" / "source.mp4").write_bytes(b"x")
    assert ClipFolderFrames(tmp_path).content_hash() == before


def test_a_tree_that_cannot_be_split_is_reported_before_videos_are_decoded(tmp_path):
    for name in "ab":
        (tmp_path / "cup" / name).mkdir(parents=True)
        (tmp_path / "cup" / name / "clip.mp4").write_bytes(b"x")
    with pytest.raises(FrameTableError, match=r"'cup' has 2 objects, .*held_out=2 leaves none"):
        ClipFolderFrames(tmp_path, held_out=2)
    write_image(tmp_path / "pin" / "only.png")
    with pytest.raises(FrameTableError, match="'pin' has a single image"):
        ClipFolderFrames(tmp_path)


def test_a_root_that_cannot_be_written(tmp_path):
    write_mixed(tmp_path)
    (tmp_path / ".crumb_frames").write_bytes(b"in the way")
    words = r"/.crumb_frames/1fps, which cannot be written: .*Make .* writable, or copy the clips to"
    with pytest.raises(FrameTableError, match=words):
        ClipFolderFrames(tmp_path)


def test_the_generator_passes_on_its_arguments(tmp_path):
    write_mixed(tmp_path)
    benchmark = ClipFolder(tmp_path, "offline", 1, held_out=1, fps=2)
    assert benchmark.protocol == "offline" and benchmark.run == 1
    assert benchmark.frame_table.content_hash() == ClipFolderFrames(tmp_path, 1, 1, fps=2).content_hash()
    assert len(benchmark.frame_table) == 4 * (2 + 4)


def test_only_videos_need_pyav(tmp_path, monkeypatch):
    write_clip_folder(tmp_path)
    monkeypatch.setitem(sys.modules, "av", None)
    assert len(ClipFolderFrames(tmp_path)) == 2 * 3 * 2 * 3 and not (tmp_path / ".crumb_frames").exists()
    (tmp_path / "class0" / "object0" / "a.mp4").write_bytes(b"x")
    with pytest.raises(ImportError, match=r'pip install "crumb-avalanche\[video\]"'):
        ClipFolderFrames(tmp_path)
