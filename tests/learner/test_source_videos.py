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
from crumb_avalanche.learner import sources
from crumb_avalanche.learner.sources import clips_of


def numbers(source, **options):
    return [[frame_number(image) for _, image in clip.frames] for clip in clips_of(source, **options)]


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """3 seconds at 10 frames per second."""
    pytest.importorskip("av")
    return write_video(tmp_path_factory.mktemp("video") / "clip.mp4", faststart=True)


def test_a_video_is_sampled_without_a_frame_given_twice(video, tmp_path):
    assert numbers(video) == [[*range(0, 30, 2)]]  # a short one 5 times a second
    assert numbers(write_video(tmp_path / "slow.mp4", rate=2)) == [[*range(6)]]
    assert read(video, video.parent)[0][2][:3] == [f"clip.mp4#t={time}" for time in ("0", "0.2", "0.4")]
    assert os.listdir(video.parent) == ["clip.mp4"], "nothing is written beside a video"


@pytest.mark.parametrize(("seconds", "rate"), [(0, 5), (3, 5), (8, 2.5), (20, 1), (3600, 1)])
def test_the_rate_of_a_video_depends_on_its_length(monkeypatch, tmp_path, seconds, rate):
    monkeypatch.setattr(sources, "seconds_of", lambda video, most: seconds)
    assert sources._default_rate(tmp_path) == pytest.approx(rate, rel=0.01)


def test_sound_that_lasts_longer_does_not_reduce_the_frames(tmp_path):
    pytest.importorskip("av")
    path = write_video(tmp_path / "a.mkv", seconds=6, sound=12)
    assert numbers(path) == [list(range(0, 60, 3))]  # 20 of 6 seconds


def test_videos_and_photos_are_all_taken_and_frames_are_those_of_a_run(tmp_path):
    pytest.importorskip("av")
    write_video(tmp_path / "mug" / "10.mp4", size=(720, 540))
    for name in ("cup/object/2.MP4", "cup/object/.hidden.mp4"):
        write_video(tmp_path / name)
    save(tmp_path / "cup" / "a" / "x.png")
    clips = list(clips_of(tmp_path))
    frames = [[np.asarray(image) for _, image in clip.frames] for clip in clips]
    assert [(os.path.relpath(clip.path, tmp_path), clip.label, len(some)) for clip, some in zip(clips, frames)] == [
        *[("cup/a", "cup", 1), ("cup/object/2.MP4", "cup", 15), ("mug/10.mp4", "mug", 15)],
    ]
    table = ClipFolderFrames(tmp_path, held_out=0, fps=5)
    assert frames[2][0].shape == (512, 683, 3) and len(table) == 31
    assert all(np.array_equal(image, table.read(row)) for row, image in enumerate(chain(*frames)))


def test_bad_videos(video, tmp_path):
    whole = video.read_bytes()
    cut = write_video(tmp_path / "1_cut.mp4", seconds=8, faststart=True)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size * 3 // 4])
    (tmp_path / "2_text.mp4").write_bytes(b"no video")
    (tmp_path / "3_empty.mov").write_bytes(b"")
    (tmp_path / "4.mp4").write_bytes(whole)
    bad = []
    found = numbers(tmp_path, on_bad="skip", report=bad.append)
    assert 0 < len(found[0]) < 40 and found == [[*range(0, 80, 2)][: len(found[0])], [], [], [*range(0, 30, 2)]]
    assert [os.path.basename(entry.path) for entry in bad] == ["1_cut.mp4", "2_text.mp4", "3_empty.mov"]
    assert re.search(r"(truncated|cannot be decoded) after \d", bad[0].reason)
    assert "cannot be opened" in bad[1].reason and "0 bytes" in bad[2].reason
    for path in ("1_cut.mp4", "2_text.mp4", "3_empty.mov"):
        with pytest.raises(BadFrameError, match=rf"{path}: .*on_bad='skip'"):
            numbers(tmp_path / path)


def test_a_video_needs_pyav(tmp_path, monkeypatch):
    (tmp_path / "a.mp4").write_bytes(b"no video")
    save(tmp_path / "b.png")
    monkeypatch.setitem(sys.modules, "av", None)
    bad = []
    assert [len(frames) for _, _, frames in read(tmp_path, on_bad="skip", report=bad.append)] == [1, 0]
    assert 'pip install -e ".[video]"' in bad[0].reason
    with pytest.raises(ImportError, match="PyAV"):
        read(tmp_path)
