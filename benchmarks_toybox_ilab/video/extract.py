"""Extract frames from video files: one lossless image every 1/fps seconds, each clip completely or not at all.

Needs PyAV, which brings FFmpeg: `pip install "crumb-avalanche[video]"`.
"""

import json
import math
import multiprocessing
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from queue import SimpleQueue

from PIL import Image

from benchmarks_toybox_ilab.tables.disk import check_room, digest_of
from benchmarks_toybox_ilab.tables.frame import FrameTableError, whole_number
from benchmarks_toybox_ilab.video.sampling import Size, VideoError, expected_frames, load_av, sampled_frames

__all__ = ["Job", "VideoError", "extract_many", "frame_rate"]

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
    """The frames of a video at times 0, 1/fps, 2/fps ... after its first frame, as PNG files.

    Attributes:
        video: The file.
        folder: Folder for the frames; created if missing.
        prefix: What the names of frames begin with, before their number, which counts from 1.
        digits: Least number of digits of the number.
        fps: Frames per second of the video.
        size: Size of the images: None (that of the video), the largest short side in pixels, or (width, height).

    Raises:
        ValueError: If fps or size breaks its rule.
    """

    video: Path
    folder: Path
    prefix: str = ""
    digits: int = 1
    fps: float = 1.0
    size: Size = None

    def __post_init__(self) -> None:
        frame_rate(self.fps)
        sides = self.size if isinstance(self.size, tuple) else (self.size,) * 2
        if len(sides) != 2:
            raise ValueError(f"size is {self.size!r}, but must be width and height, the short side's limit, or None.")
        for pixels in sides if self.size is not None else ():
            whole_number("size", pixels, 1)

    def name(self, number: int) -> str:
        """File name of frame `number`, which counts from 1."""
        return f"{self.prefix}{number:0{self.digits}d}.png"

    @property
    def _hidden(self) -> str:
        """What the names of this clip's hidden files begin with."""
        return "." + (self.prefix.strip("._- ") or "frames")

    @property
    def _marker(self) -> Path:
        """The file that is written last: it marks a finished clip, and holds what its frames depend on."""
        return self.folder / f"{self._hidden}.json"

    def _record(self) -> dict:
        try:
            status = self.video.stat()
        except OSError as error:
            raise VideoError(f"there is no video file {self.video}; restore it.") from error
        size = list(self.size) if isinstance(self.size, tuple) else self.size
        video = {"video_bytes": status.st_size, "video_mtime_ns": status.st_mtime_ns}
        return {**video, "first": self.name(1), "fps": float(self.fps), "size": size}

    def finished(self) -> list[str] | None:
        """Names of the frames if all are as written and neither the video nor the job has changed, else None."""
        try:
            marked = json.loads(self._marker.read_text(encoding="utf-8"))
            names = [self.name(number + 1) for number in range(marked.pop("frames"))]
            digest = marked.pop("frames_sha256")
            if not names or marked != self._record():
                return None
            return names if digest == digest_of([self.folder / name for name in names]) else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def extract(self, threads: int = 0) -> list[str]:
        """Write the frames, rotated as players show them; nothing is done if that is `finished`.

        They are written to a hidden folder and moved at the end.

        Args:
            threads: Number of decoder threads; 0 lets the decoder choose.

        Returns:
            The file names of the frames in order; at least one.

        Raises:
            VideoError: If the file cannot be opened, has no video stream or no frame, or is damaged or truncated.
            FrameTableError: If the frames cannot be written.
            ImportError: If PyAV is not installed.
        """
        record = self._record()
        names = self.finished()
        if names is not None:
            return names
        with closing(sampled_frames(self.video, self.fps, self.size, threads)) as images:
            first = next(images)  # a bad file fails here, before anything is written
            try:
                return self._write(record, chain([first], images))
            except OSError as error:
                names = self.finished()
                if names is not None:  # another process finished the same clip and removed our folder
                    return names
                raise FrameTableError(
                    f"the frames of {self.video} cannot be written to {self.folder}: {error.strerror or error}. Make "
                    "the folder writable or make room there, and run the same again; finished clips are kept."
                ) from error

    def _write(self, record: dict, images: Iterable[Image.Image]) -> list[str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f"{self._hidden}.", suffix=".part", dir=self.folder))
        try:
            names = []
            for number, image in enumerate(images, 1):
                names.append(self.name(number))
                _save(image, part / names[-1])
            digest = digest_of([part / name for name in names])
            finished = self.finished()
            if finished is not None:
                return finished
            self._marker.unlink(missing_ok=True)
            frame = re.compile(rf"{re.escape(self.prefix)}\d+\.png")
            for entry in filter(frame.fullmatch, os.listdir(self.folder)):
                os.unlink(self.folder / entry)  # of another rate or video, or left by a killed process
            for name in names:
                os.replace(part / name, self.folder / name)
            marked = {**record, "frames": len(names), "frames_sha256": digest}
            (part / "marker").write_text(json.dumps(marked), encoding="utf-8")
            os.replace(part / "marker", self._marker)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        left = re.compile(rf"{re.escape(self._hidden)}\.[^.]+\.part")  # by a process that was killed
        for entry in filter(left.fullmatch, os.listdir(self.folder)):
            shutil.rmtree(self.folder / entry, ignore_errors=True)
        return names


def _save(image: Image.Image, path: Path) -> None:
    image.save(path, compress_level=1)  # of PNG: a third of the time of the usual 6, for a quarter more bytes


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
        names = job.finished()
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
        return len(job.extract(threads)), None
    except VideoError as error:
        return 0, str(error)


def _attempts(jobs: list[Job], workers: int) -> Iterator[tuple[int, tuple[int, str | None]]]:
    """Yield the position and `_attempt` of each job as it finishes.

    Each worker is a pool of one process, so that a crash tells which video it was. Close the generator to stop early;
    it waits for the videos that have begun.
    """
    if workers == 1:
        yield from ((position, _attempt(job, threads=0)) for position, job in enumerate(jobs))
        return
    pools: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()
    for _ in range(workers):
        pools.put(_pool())

    def attempt(job: Job) -> tuple[int, str | None]:
        pool = pools.get()
        try:
            return pool.submit(_attempt, job).result()
        except BrokenProcessPool:
            pool = _pool()
            return 0, f"video {job.video} crashes its decoder or takes too much memory; replace or remove it."
        finally:
            pools.put(pool)

    threads = ThreadPoolExecutor(workers)
    try:
        _check_start(pools)
        positions = {threads.submit(attempt, job): position for position, job in enumerate(jobs)}
        yield from ((positions[done], done.result()) for done in as_completed(positions))
    finally:
        threads.shutdown(cancel_futures=True)
        for _ in range(workers):
            pools.get().shutdown()


def _pool() -> ProcessPoolExecutor:
    """A worker process that ignores Ctrl+C, which reaches all processes of a terminal: only the parent handles it."""
    # Spawned, not forked: the parent may have threads that hold locks.
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, spawn, signal.signal, (signal.SIGINT, signal.SIG_IGN))


def _check_start(pools: "SimpleQueue[ProcessPoolExecutor]") -> None:
    pool = pools.get()
    pools.put(pool)
    try:
        pool.submit(os.getpid).result()
    except BrokenProcessPool as error:
        raise RuntimeError(
            'worker processes do not start. In a script, call this below `if __name__ == "__main__":`, or stay in this '
            "process with workers=1."
        ) from error
