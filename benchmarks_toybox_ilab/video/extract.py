"""Extract frames from video files: one lossless image every 1/fps seconds, each clip completely or not at all.

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

from benchmarks_toybox_ilab.tables.digests import digest_of
from benchmarks_toybox_ilab.tables.disk import check_room
from benchmarks_toybox_ilab.tables.frame import FrameTableError, whole_number
from benchmarks_toybox_ilab.video.processes import run_in_processes
from benchmarks_toybox_ilab.video.sampling import Size, VideoError, expected_frames, load_av, sampled_frames

__all__ = ["Job", "VideoError", "extract_frames", "extract_many", "frame_rate"]

_PATTERN = re.compile(r"(?P<before>[^/\\]*)%(?:0(?P<digits>\d+))?d(?P<after>[^/\\]*\.png)")
_BYTES_A_PIXEL = 3 * 0.6  # size of a photograph as PNG
_PROBES = 50  # number of videos opened to estimate the size of all frames


def frame_rate(fps: float) -> float:
    """Return the rate as float.

    Raises:
        ValueError: If it is not a finite number above 0.
    """
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < math.inf:
        raise ValueError(f"fps is {fps!r}, but must be a number above 0.")
    return float(fps)


@dataclass(frozen=True)
class Job:
    """One video to extract frames from; see the arguments of `extract_frames`.

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
        """File name of frame `number`, which counts from 1."""
        parts = _PATTERN.fullmatch(self.pattern)
        return f"{parts['before']}{number:0{parts['digits'] or 1}d}{parts['after']}"

    def is_name(self, name: str) -> bool:
        """Whether a file name is that of a frame of this clip."""
        parts = _PATTERN.fullmatch(self.pattern)
        return re.fullmatch(rf"{re.escape(parts['before'])}\d+{re.escape(parts['after'])}", name) is not None

    @property
    def hidden_stem(self) -> str:
        """The first part of the names of this clip's hidden files."""
        return "." + (_PATTERN.fullmatch(self.pattern)["before"].strip("._- ") or "frames")

    @property
    def marker(self) -> Path:
        """The file that is written last and marks a finished clip."""
        return self.folder / f"{self.hidden_stem}.json"

    def is_part(self, name: str) -> bool:
        """Whether a folder name is that of unfinished frames of this clip."""
        return re.fullmatch(rf"{re.escape(self.hidden_stem)}\.[^.]+\.part", name) is not None

    def record(self) -> dict:
        """What the frames depend on; saved in the marker."""
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
        """Names of the frames if all are as written and neither the video nor the arguments have changed, else None.

        Frames of earlier versions have no digests; it is enough that they exist.
        """
        try:
            marked = json.loads(self.marker.read_text(encoding="utf-8"))
            names = [self.name(number + 1) for number in range(marked.pop("frames"))]
            digest = marked.pop("frames_sha256", None)
            there = set(os.listdir(self.folder))
            if not names or marked != self.record() or not there.issuperset(names):
                return None
            return names if digest in (None, digest_of([self.folder / name for name in names])) else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def extract_frames(
    video: str | Path, folder: str | Path, pattern: str, fps: float = 1.0, size: Size = None, threads: int = 0
) -> list[str]:
    """Write the frames of a video at times 0, 1/fps, 2/fps ... after its first frame as PNG files.

    Frames are written to a hidden folder and moved to `folder` at the end; then a hidden marker file records that the
    clip is finished. Nothing is done if the marker exists and neither the video (its size and modification time), the
    frames (their content), nor the arguments have changed. Frames are rotated as players show them.

    Args:
        video: The file.
        folder: Folder for the frames; created if missing.
        pattern: File name of a frame with %d or %06d for its number, which counts from 1; ends in .png.
        fps: Frames per second of the video.
        size: Size of the images: None (that of the video), the largest short side in pixels, or (width, height).
        threads: Number of decoder threads; 0 lets the decoder choose.

    Returns:
        The file names of the frames in order; at least one.

    Raises:
        VideoError: If the file cannot be opened, has no video stream or no frame, or is damaged or truncated.
        FrameTableError: If the frames cannot be written.
        ImportError: If PyAV is not installed.
        ValueError: If pattern, fps or size breaks its rule.
    """
    return _extract(Job(Path(video), Path(folder), pattern, fps, size), threads)


def extract_many(
    jobs: Iterable[Job], workers: int = 1, progress: Callable[[int, int, int], object] | None = None
) -> list[tuple[Path, str]]:
    """Extract the frames of many videos; skip finished clips, and go on after a bad video.

    On an interrupt, worker processes finish their current clips first, and all finished clips are kept.

    Args:
        jobs: The videos and the folders for their frames.
        workers: Number of processes with one thread each; 1 decodes in this process and lets the decoder choose its
            threads. With more, a script must call this below `if __name__ == "__main__":`.
        progress: Called with (videos done, total number of videos, frames so far), also for skipped and failed videos.

    Returns:
        (video, message) for each video that gave no frames, in the order of the jobs.

    Raises:
        FrameTableError: If the disk has too little room for the frames (estimated), or they cannot be written.
        ImportError: If PyAV is not installed and a clip is unfinished.
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
    check_room(todo[0].folder, _expected_bytes(todo), f"extracting the frames of {which}")
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
            if names is not None:  # another process finished the same clip and removed our folder
                return names
            raise FrameTableError(
                f"the frames of {job.video} cannot be written to {job.folder}: {error.strerror or error}. Make the "
                "folder writable or make room there, and run the same again; finished clips are kept."
            ) from error


def _write(job: Job, record: dict, images: Iterable[Image.Image]) -> list[str]:
    job.folder.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{job.hidden_stem}.", suffix=".part", dir=job.folder))
    try:
        names = []
        for number, image in enumerate(images, 1):
            names.append(job.name(number))
            _save(image, part / names[-1])
        digest = digest_of([part / name for name in names])
        finished = job.finished()
        if finished is not None:
            return finished
        job.marker.unlink(missing_ok=True)
        for entry in os.listdir(job.folder):
            if job.is_name(entry):  # of another rate or video, or left by a killed process
                os.unlink(job.folder / entry)
        for name in names:
            os.replace(part / name, job.folder / name)
        marked = {**record, "frames": len(names), "frames_sha256": digest}
        (part / "marker").write_text(json.dumps(marked), encoding="utf-8")
        os.replace(part / "marker", job.marker)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    for entry in os.listdir(job.folder):
        if job.is_part(entry):  # left by a process that was killed
            shutil.rmtree(job.folder / entry, ignore_errors=True)
    return names


def _save(image: Image.Image, path: Path) -> None:
    image.save(path, compress_level=1)  # of PNG: a third of the time of the usual 6, for a quarter more bytes


def _expected_bytes(jobs: list[Job]) -> int:
    """Estimate the size of all frames from the lengths of some videos and the file sizes of all."""
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
    """Extract a clip; return the number of frames and None, or 0 and an error message."""
    try:
        return len(_extract(job, threads)), None
    except VideoError as error:
        return 0, str(error)


def _attempts(jobs: list[Job], workers: int) -> Iterator[tuple[int, tuple[int, str | None]]]:
    """Yield the position and `_attempt` of each job as it finishes."""
    if workers == 1:
        for position, job in enumerate(jobs):
            yield position, _attempt(job, threads=0)
        return
    with closing(run_in_processes(_attempt, jobs, workers)) as results:
        for position, result in results:
            crashed = (
                f"video {jobs[position].video} crashes its decoder or takes too much memory; replace or remove it."
            )
            yield position, result or (0, crashed)
