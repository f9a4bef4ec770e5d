"""Clips to extract frames from, and helpers to inspect the result."""

import shutil
from pathlib import Path

import pytest
from fake_videos import video_frame_number, write_video

from benchmarks_toybox_ilab.video.extract import Job


def whole_and_cut(folder):
    """A complete clip of 3 s at 10 frames/s, and the same truncated to three quarters."""
    pytest.importorskip("av")
    whole = write_video(folder / "whole.mp4", faststart=True)
    (folder / "cut.mp4").write_bytes(whole.read_bytes()[: whole.stat().st_size * 3 // 4])
    return folder


def extract(video, folder, prefix="", fps=1.0, size=None, digits=1):
    """Extract the frames of a video; return their names."""
    return Job(Path(video), Path(folder), prefix, digits, fps, size).extract()


def shown(folder, names):
    return [video_frame_number(folder / name) for name in names]


def files(folder):
    """Every file below a folder, hidden or not."""
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())


def jobs(clips, out, names):
    """One job for each name, on copies of the clips: whole0, cut1 ..."""
    for name in names:
        (out / "videos").mkdir(parents=True, exist_ok=True)
        shutil.copy(clips / f"{name.rstrip('0123456789')}.mp4", out / "videos" / f"{name}.mp4")
    return [Job(out / "videos" / f"{name}.mp4", out / "frames", f"{name}_") for name in names]
