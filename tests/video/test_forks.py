"""A forked process leaves the videos that its parent reads alone."""

import gc

import pytest
from fake_videos import write_video
from forked import exit_code_of_fork

from benchmarks_toybox_ilab.video.sampling import VideoError, sampled_frames


@pytest.fixture
def video(tmp_path):
    """A video that FFmpeg decodes in several threads."""
    pytest.importorskip("av")
    return write_video(tmp_path / "clip.mp4", size=(640, 480), faststart=True)


def leave_in_a_cycle(video):
    frames = sampled_frames(video, fps=10)
    next(frames)
    holder = [frames]
    holder.append(holder)


def leave_to_an_error(video):
    try:
        frames = sampled_frames(video, fps=10)
        next(frames)
        raise RuntimeError
    except RuntimeError as error:
        cycle = error  # noqa: F841  # refers to this frame, which refers to it


def leave_at_the_damage(video):
    content = video.read_bytes()
    video.write_bytes(content[: len(content) * 3 // 4])
    try:
        list(sampled_frames(video, fps=10))
    except VideoError as error:
        cycle = error  # noqa: F841


@pytest.mark.parametrize(
    "leave", [leave_in_a_cycle, leave_to_an_error, leave_at_the_damage]
)
def test_child_collects_garbage(video, no_collector, leave):
    leave(video)
    assert exit_code_of_fork(gc.collect) == 0


def close_and_collect(frames):
    frames.close()
    gc.collect()


def test_child_closes_a_reader(video, no_collector):
    frames = sampled_frames(video, fps=10)
    next(frames)
    assert exit_code_of_fork(close_and_collect, frames) == 0


def test_parent_reads_on(video):
    frames = sampled_frames(video, fps=10)
    next(frames)
    exit_code_of_fork(close_and_collect, frames)
    assert len(list(frames)) == 29


def test_child_reads_its_own(video, no_collector):
    leave_in_a_cycle(video)

    def read():
        assert len(list(sampled_frames(video, fps=10))) == 30

    assert exit_code_of_fork(read) == 0
