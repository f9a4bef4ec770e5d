"""Videos as clips."""

import os
import re
import sys
from itertools import chain

import numpy as np
import pytest
from clip_trees import read, save
from fake_videos import frame_number, write_video

from benchmarks_toybox_ilab.datasets.clip_folder import ClipFolderFrames
from benchmarks_toybox_ilab.tables.frame import BadFrameError
from crumb_avalanche.images import sources
from crumb_avalanche.images.sources import clips_of


def frame_numbers(source, **options):
    """The numbers of the frames of each clip."""
    clips = []
    for clip in clips_of(source, **options):
        clips.append([frame_number(image) for _, image in clip.frames])
    return clips


# Frames of a video


def test_a_short_video_five_times_a_second(video):
    assert frame_numbers(video) == [list(range(0, 30, 2))]


def test_no_frame_comes_twice(tmp_path):
    pytest.importorskip("av")
    slow = write_video(tmp_path / "slow.mp4", rate=2)
    assert frame_numbers(slow) == [list(range(6))]


def test_a_frame_names_its_time(video):
    ((_, _, frames),) = read(video, video.parent)
    assert frames[:3] == ["clip.mp4#t=0", "clip.mp4#t=0.2", "clip.mp4#t=0.4"]


def test_nothing_is_written_beside_a_video(video):
    frame_numbers(video)
    assert os.listdir(video.parent) == ["clip.mp4"]


@pytest.mark.parametrize(
    ("seconds", "rate"), [(0, 5), (3, 5), (8, 2.5), (20, 1), (3600, 1)]
)
def test_the_rate_by_length(monkeypatch, tmp_path, seconds, rate):
    monkeypatch.setattr(sources, "seconds_of", lambda video, most: seconds)
    assert sources._usual_frame_rate(tmp_path) == pytest.approx(rate, rel=0.01)


def test_sound_does_not_reduce_the_frames(tmp_path):
    pytest.importorskip("av")
    path = write_video(tmp_path / "a.mkv", seconds=6, sound=12)
    assert frame_numbers(path) == [list(range(0, 60, 3))]  # 20 of 6 seconds


# Videos beside photos


@pytest.fixture
def tree(tmp_path):
    """Two class folders with videos, a hidden one among them, and a photo."""
    pytest.importorskip("av")
    write_video(tmp_path / "mug" / "10.mp4", size=(720, 540))
    write_video(tmp_path / "cup/object/2.MP4")
    write_video(tmp_path / "cup/object/.hidden.mp4")
    save(tmp_path / "cup" / "a" / "x.png")
    return tmp_path


def test_videos_and_photos_are_all_taken(tree):
    clips = []
    for path, label, frames in read(tree, tree):
        clips.append((path, label, len(frames)))
    assert clips == [
        ("cup/a", "cup", 1),
        ("cup/object/2.MP4", "cup", 15),
        ("mug/10.mp4", "mug", 15),
    ]


def test_frames_are_those_of_a_run(tree):
    clips = []
    for clip in clips_of(tree):
        clips.append([np.asarray(image) for _, image in clip.frames])
    assert clips[2][0].shape == (512, 683, 3)
    table = ClipFolderFrames(tree, held_out=0, fps=5)
    assert len(table) == 31
    for row, image in enumerate(chain(*clips)):
        assert np.array_equal(image, table.read(row))


# Videos that are damaged


@pytest.fixture
def cut_video(tmp_path):
    """A video of 8 seconds without its last quarter."""
    pytest.importorskip("av")
    path = write_video(tmp_path / "cut.mp4", seconds=8, faststart=True)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 3 // 4])
    return path


def write_bad(folder, name, content):
    path = folder / name
    path.write_bytes(content)
    return path


def test_frames_before_the_damage_are_taken(cut_video):
    bad = []
    (numbers,) = frame_numbers(cut_video, on_bad="skip", report=bad.append)
    assert 0 < len(numbers) < 40
    assert numbers == list(range(0, 80, 2))[: len(numbers)]
    assert re.search(r"(truncated|cannot be decoded) after \d", bad[0].reason)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [("text.mp4", b"no video", "cannot be opened"), ("empty.mov", b"", "0 bytes")],
)
def test_a_file_that_is_no_video(tmp_path, name, content, reason):
    pytest.importorskip("av")
    path = write_bad(tmp_path, name, content)
    bad = []
    assert frame_numbers(path, on_bad="skip", report=bad.append) == [[]]
    assert bad[0].path == str(path)
    assert reason in bad[0].reason


def test_an_empty_video_cannot_be_repaired(tmp_path):
    # Given a video of 0 bytes
    path = write_bad(tmp_path, "empty.mp4", b"")
    # When it is read
    bad = []
    frame_numbers(path, on_bad="skip", report=bad.append)
    # Then no program is advised that would repair it
    reason = "is empty (0 bytes). Copy it again from its source, or remove it."
    assert bad[0].reason == reason


def test_bad_videos_are_left_out(video, cut_video):
    folder = cut_video.parent
    write_bad(folder, "empty.mov", b"")
    write_bad(folder, "text.mp4", b"no video")
    write_bad(folder, "whole.mp4", video.read_bytes())
    bad = []
    clips = frame_numbers(folder, on_bad="skip", report=bad.append)
    assert clips[1:] == [[], [], list(range(0, 30, 2))]
    names = [os.path.basename(file.path) for file in bad]
    assert names == ["cut.mp4", "empty.mov", "text.mp4"]


@pytest.mark.parametrize(
    ("name", "content"), [("text.mp4", b"no video"), ("empty.mov", b"")]
)
def test_a_bad_video_is_refused(tmp_path, name, content):
    pytest.importorskip("av")
    path = write_bad(tmp_path, name, content)
    with pytest.raises(BadFrameError, match=rf"{name}: .*on_bad='skip'"):
        frame_numbers(path)


def test_a_cut_video_is_refused(cut_video):
    with pytest.raises(BadFrameError, match=r"cut\.mp4: .*on_bad='skip'"):
        frame_numbers(cut_video)


# Without PyAV


@pytest.fixture
def without_pyav(tmp_path, monkeypatch):
    """A folder with a video and a photo."""
    write_bad(tmp_path, "a.mp4", b"no video")
    save(tmp_path / "b.png")
    monkeypatch.setitem(sys.modules, "av", None)
    return tmp_path


def test_a_video_without_pyav_is_left_out(without_pyav):
    bad = []
    clips = read(without_pyav, on_bad="skip", report=bad.append)
    assert [len(frames) for _, _, frames in clips] == [1, 0]
    assert 'pip install -e ".[video]"' in bad[0].reason


def test_a_video_without_pyav_is_refused(without_pyav):
    with pytest.raises(ImportError, match="PyAV"):
        read(without_pyav)
