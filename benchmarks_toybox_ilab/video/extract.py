"""Frames out of video files: one lossless image for every 1/fps seconds, each clip whole or not at all.

Needs PyAV, which brings FFmpeg: `pip install "crumb-avalanche[video]"`.
"""

import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from PIL import Image

from benchmarks_toybox_ilab.tables.disk import check_room
from benchmarks_toybox_ilab.tables.frame import FrameTableError, whole_number
from benchmarks_toybox_ilab.video.processes import run_in_processes
from benchmarks_toybox_ilab.video.sampling import Size, VideoError, expected_frames, load_av, sampled_frames

__all__ = ["VIDEO_EXTENSIONS", "Job", "VideoError", "extract_frames", "extract_many", "frame_rate", "is_video"]

VIDEO_EXTENSIONS = (
    *(".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg"),
    *(".3gp", ".3g2", ".mts", ".m2ts", ".wmv", ".flv", ".ogv"),
)

_PATTERN = re.compile(r"(?P<before>[^/\\]*)%(?:0(?P<digits>\d+))?d(?P<after>[^/\\]*\.png)")
_BYTES_A_PIXEL = 3 * 0.6  # of a PNG of a photograph
_PROBES = 50  # videos that are opened to estimate the room for the frames of all


def is_video(path: Path) -> bool:
    """Whether a name ends as those of video files do, in any case."""
    return path.suffix.lower() in VIDEO_EXTENSIONS


def frame_rate(fps: float) -> float:
    """The rate as float.

    Raises:
        ValueError: If it is not a finite number above 0.
    """
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < math.inf:
        raise ValueError(f"fps is {fps!r}, but must be a number above 0.")
    return float(fps)


@dataclass(frozen=True)
class Job:
    """One video to take frames of; arguments as those of `extract_frames`.

    Raises:
        ValueError: If pattern, fps or size breaks its rule.
    """

    video: Path
    folder: Path
    pattern: str
    fps: float = 1.0
    size: Size = None

    def __post_init__(self) -> None:
        if _PATTERN.fullmatch(self.pattern) is None:
            raise ValueError(f"pattern is {self.pattern!r}, but must be a file name such as clip_%d.png or %06d.png.")
        frame_rate(self.fps)
        for pixels in self.size if isinstance(self.size, tuple) else () if self.size is None else (self.size,):
            whole_number("size", pixels, 1)
        if isinstance(self.size, tuple) and len(self.size) != 2:
            raise ValueError(f"size is {self.size!r}, but must be width and height, the short side's limit, or None.")

    def name(self, number: int) -> str:
        """File name of a frame, counted from 1."""
        parts = _PATTERN.fullmatch(self.pattern)
        return f"{parts['before']}{number:0{parts['digits'] or 1}d}{parts['after']}"

    def is_name(self, name: str) -> bool:
        """Whether a file is called as a frame of this clip."""
        parts = _PATTERN.fullmatch(self.pattern)
        return re.fullmatch(rf"{re.escape(parts['before'])}\d+{re.escape(parts['after'])}", name) is not None

    @property
    def hidden_stem(self) -> str:
        """How hidden files of this clip begin."""
        return "." + (_PATTERN.fullmatch(self.pattern)["before"].strip("._- ") or "frames")

    @property
    def marker(self) -> Path:
        """The file that is written last."""
        return self.folder / f"{self.hidden_stem}.json"

    def is_part(self, name: str) -> bool:
        """Whether a folder holds unfinished frames of this clip."""
        return re.fullmatch(rf"{re.escape(self.hidden_stem)}\.[^.]+\.part", name) is not None

    def record(self) -> dict:
        """What the frames depend on, as it is kept in the marker."""
        try:
            status = self.video.stat()
        except OSError as error:
            raise VideoError(f"there is no video file {self.video}; restore it.") from error
        size = list(self.size) if isinstance(self.size, tuple) else self.size
        return {
            "video_bytes": status.st_size,
            "video_mtime_ns": status.st_mtime_ns,
            "pattern": self.pattern,
            "fps": float(self.fps),
            "size": size,
        }

    def finished(self) -> list[str] | None:
        """Names of the frames, if they are all there and the video is as it was."""
        try:
            marked = json.loads(self.marker.read_text(encoding="utf-8"))
            names = [self.name(number + 1) for number in range(marked.pop("frames"))]
            there = set(os.listdir(self.folder))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return names if names and marked == self.record() and there.issuperset(names) else None


def extract_frames(
    video: str | Path, folder: str | Path, pattern: str, fps: float = 1.0, size: Size = None, threads: int = 0
) -> list[str]:
    """Write the frames of a video at times 0, 1/fps, 2/fps ... after its first frame as PNG files.

    A clip is written whole or not at all: frames go to a hidden folder beside their place and are moved there at the
    end, then a hidden marker file says that they are finished. Where it does, and neither the video (by its size and
    time of change) nor the arguments are different from then, nothing is done. Frames are upright, as players show
    them.

    Args:
        video: The file.
        folder: Where the frames go; made if it is not there.
        pattern: Name of a frame, with %d or %06d in place of its number, counted from 1; ends in .png.
        fps: Frames to be taken of each second of the video.
        size: Of the images: None (as the video), the most pixels that the short side may have, or (width, height).
        threads: Threads of the decoder; 0 lets it choose.

    Returns:
        The names of the frames below folder, in order; at least one.

    Raises:
        VideoError: If the file cannot be opened, has no video stream, has no frame, or is damaged or cut off.
        FrameTableError: If the frames cannot be written.
        ImportError: If PyAV is not installed.
        ValueError: If pattern, fps or size breaks its rule.
    """
    return _extract(Job(Path(video), Path(folder), pattern, fps, size), threads)


def extract_many(
    jobs: Iterable[Job], workers: int = 1, progress: Callable[[int, int, int], object] | None = None
) -> list[tuple[Path, str]]:
    """Take the frames of many videos; what is finished already is skipped, and a bad video stops no other.

    On an interrupt, the clips that worker processes are at are finished first, and all finished clips stay.

    Args:
        jobs: The videos and where their frames go.
        workers: Number of processes, with one thread each; 1 decodes in this process, with as many threads as the
            decoder likes. With more, a script must call this below `if __name__ == "__main__":`.
        progress: Called with (videos done, videos in all, frames so far), also for those skipped and failed.

    Returns:
        (video, message) of each video that gave no frames, in the order of the jobs.

    Raises:
        FrameTableError: If the disk has too little room for the frames (by an estimate), or they cannot be written.
        ImportError: If PyAV is not installed and there is anything to do.
        RuntimeError: If worker processes cannot be started.
    """
    jobs = list(jobs)
    workers = whole_number("workers", workers, 1)
    todo, done, frames = [], 0, 0
    for job in jobs:
        names = job.finished() if job.video.is_file() else None
        if names is None:
            todo.append(job)
        else:
            done, frames = done + 1, frames + len(names)
    if done and progress is not None:
        progress(done, len(jobs), frames)
    if not todo:
        return []
    load_av()
    which = f"{len(todo)} videos" if len(todo) > 1 else f"video {todo[0].video}"
    check_room(todo[0].folder, _expected_bytes(todo), f"taking the frames out of {which}")
    failures = {}
    with closing(_attempts(todo, min(workers, len(todo)))) as attempts:
        for position, (count, message) in attempts:
            if message is not None:
                failures[position] = message
            done, frames = done + 1, frames + count
            if progress is not None:
                progress(done, len(jobs), frames)
    return [(todo[position].video, failures[position]) for position in sorted(failures)]


def _extract(job: Job, threads: int) -> list[str]:
    record = job.record()
    names = job.finished()
    if names is not None:
        return names
    with closing(sampled_frames(job.video, job.fps, job.size, threads)) as images:
        first = next(images)  # a bad file fails here, before anything is written
        try:
            return _write(job, record, chain([first], images))
        except OSError as error:
            names = job.finished()
            if names is not None:  # another process was at the same clip, finished it and tidied up
                return names
            raise FrameTableError(
                f"the frames of {job.video} cannot be written to {job.folder}: {error.strerror or error}. Make the "
                "folder writable or make room there, and do the same again; finished clips are kept."
            ) from error


def _write(job: Job, record: dict, images: Iterable[Image.Image]) -> list[str]:
    job.folder.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{job.hidden_stem}.", suffix=".part", dir=job.folder))
    try:
        names = []
        for number, image in enumerate(images, 1):
            names.append(job.name(number))
            _save(image, part / names[-1])
        finished = job.finished()
        if finished is not None:
            return finished
        job.marker.unlink(missing_ok=True)
        for entry in os.listdir(job.folder):
            if job.is_name(entry):  # of another rate, of a video that was replaced, or from before a kill
                os.unlink(job.folder / entry)
        for name in names:
            os.replace(part / name, job.folder / name)
        (part / "marker").write_text(json.dumps({**record, "frames": len(names)}), encoding="utf-8")
        os.replace(part / "marker", job.marker)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    for entry in os.listdir(job.folder):
        if job.is_part(entry):  # left by a process that was killed
            shutil.rmtree(job.folder / entry, ignore_errors=True)
    return names


def _save(image: Image.Image, path: Path) -> None:
    image.save(path)


def _expected_bytes(jobs: list[Job]) -> int:
    """Room for the frames of all jobs, from what some of the videos say of their length and the file sizes of all."""
    probed_bytes = probed_frames_bytes = 0
    for job in jobs[:: -(-len(jobs) // _PROBES)]:
        try:
            frames, pixels = expected_frames(job.video, job.fps, job.size)
        except VideoError:
            continue
        probed_bytes += job.video.stat().st_size
        probed_frames_bytes += int(frames * pixels * _BYTES_A_PIXEL)
    total = sum(job.video.stat().st_size for job in jobs if job.video.is_file())
    return total * probed_frames_bytes // probed_bytes if probed_bytes else 0


def _attempt(job: Job, threads: int = 1) -> tuple[int, str | None]:
    """Number of frames, or 0 and what is wrong with the video."""
    try:
        return len(_extract(job, threads)), None
    except VideoError as error:
        return 0, str(error)


def _attempts(jobs: list[Job], workers: int) -> Iterator[tuple[int, tuple[int, str | None]]]:
    """Position and `_attempt` of each job, as they are finished."""
    if workers == 1:
        for position, job in enumerate(jobs):
            yield position, _attempt(job, threads=0)
        return
    with closing(run_in_processes(_attempt, jobs, workers)) as results:
        for position, result in results:
            crashed = (
                f"video {jobs[position].video} makes its decoder crash, or take too much memory; replace or remove it."
            )
            yield position, result or (0, crashed)
