"""Extract frames from video files: one lossless image every 1/fps seconds.

Each clip is extracted completely or not at all.

Needs PyAV, which brings FFmpeg: `pip install -e ".[video]"`.
"""

import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks_toybox_ilab.tables.disk import files_digest
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.progress import terminal_bar
from benchmarks_toybox_ilab.video.sampling import Size, VideoError, sampled_frames


def frame_rate(fps: float) -> float:
    """Return the frames per second to take of a video, as float.

    Raises:
        ValueError: If it is not a finite number above 0.
    """
    is_number = isinstance(fps, int | float) and not isinstance(fps, bool)
    if not is_number or not 0 < fps < math.inf:
        raise ValueError(f"fps is {fps!r}, but must be a number above 0.")
    return float(fps)


@dataclass(frozen=True)
class Job:
    """The frames of a video at times 0, 1/fps, 2/fps ... as PNG files.

    Attributes:
        video: The file.
        folder: Folder for the frames; created if missing.
        prefix: What the names of frames begin with, before their number, which counts
            from 1.
        digits: Least number of digits of the number.
        fps: Frames per second of the video.
        size: Size of the images: None (that of the video), the largest short side in
            pixels, or (width, height).
    """

    video: Path
    folder: Path
    prefix: str = ""
    digits: int = 1
    fps: float = 1.0
    size: Size = None

    def name(self, number: int) -> str:
        """Return the file name of frame `number` of the clip, which counts from 1."""
        return f"{self.prefix}{number:0{self.digits}d}.png"

    @property
    def _hidden_prefix(self) -> str:
        """What the names of this clip's hidden files begin with."""
        return "." + (self.prefix.strip("._- ") or "frames")

    @property
    def _marker_file(self) -> Path:
        """The file that is written last.

        It marks a finished clip, and holds what its frames depend on.
        """
        return self.folder / f"{self._hidden_prefix}.json"

    def _dependencies(self) -> dict[str, Any]:
        """Return what the frames of the clip depend on, as its marker file has it.

        Raises:
            VideoError: If the video does not exist.
        """
        try:
            status = self.video.stat()
        except OSError as error:
            raise VideoError(
                f"there is no video file {self.video}; restore it."
            ) from error
        return {
            "video_bytes": status.st_size,
            "video_mtime_ns": status.st_mtime_ns,
            "first": self.name(1),  # with the prefix and digits of all names
            "fps": float(self.fps),
            # As JSON gives it back, which has no tuples.
            "size": list(self.size) if isinstance(self.size, tuple) else self.size,
        }

    @property
    def is_finished(self) -> bool:
        """Whether all frames are as written, of this video and this job."""
        return self.finished_frames() is not None

    def finished_frames(self) -> list[str] | None:
        """Return the file names of the frames if the clip is finished, else None.

        It is if all are as written, and neither the video nor the job has changed.
        """
        try:
            # It is written after all frames.
            marker = json.loads(self._marker_file.read_text(encoding="utf-8"))
            count = marker.pop("frames")
            names = list(map(self.name, range(1, count + 1)))
            digest = marker.pop("frames_sha256")
            # The rest of the marker is what the frames depended on.
            if not names or marker != self._dependencies():
                return None
            if digest != self._frames_digest(self.folder, names):
                return None
            return names
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _frames_digest(self, folder: Path, names: Iterable[str]) -> str:
        """Return the SHA-256 over the frames of these names in a folder."""
        return files_digest([folder / name for name in names])

    def extract(self, threads: int = 0) -> list[str]:
        """Write the frames of the video, turned as players show them, unless finished.

        They are written to a hidden folder and moved at the end.

        Args:
            threads: Number of decoder threads; 0 lets the decoder choose.

        Returns:
            The file names of the frames in order.

        Raises:
            VideoError, ImportError: As `sampled_frames`.
            FrameTableError: If the frames cannot be written.
        """
        names = self.finished_frames()
        if names is not None:
            return names
        dependencies = self._dependencies()  # before the frames are read
        sampled = sampled_frames(self.video, self.fps, self.size, threads)
        with closing(sampled) as images:
            first = next(images)  # a bad file fails here, before anything is written
            try:
                return self._write_clip(chain([first], images), dependencies)
            except OSError as error:
                # Another process may have finished the clip and removed our folder.
                names = self.finished_frames()
                if names is not None:
                    return names
                raise FrameTableError(
                    f"the frames of {self.video} cannot be written to {self.folder}: "
                    f"{error.strerror or error}. Make the folder writable or make room "
                    "there, and run the same again; finished clips are kept."
                ) from error

    def _write_clip(
        self, images: Iterable[Image.Image], dependencies: dict[str, Any]
    ) -> list[str]:
        """Write the frames of the clip to a hidden folder, and move them at the end.

        Args:
            images: The frames in order.
            dependencies: What they depend on, for the marker file.

        Returns:
            The file names of the frames; those of another process if it was quicker.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        prefix = f"{self._hidden_prefix}."
        hidden_folder = tempfile.mkdtemp(prefix=prefix, suffix=".part", dir=self.folder)
        unfinished = Path(hidden_folder)
        try:
            names = []
            for number, image in enumerate(images, 1):
                name = self.name(number)
                _save_frame(image, unfinished / name)
                names.append(name)
            digest = self._frames_digest(unfinished, names)
            names_of_other_process = self.finished_frames()
            if names_of_other_process is not None:
                return names_of_other_process
            # Frames are replaced from here on: the clip is not finished until the end.
            self._marker_file.unlink(missing_ok=True)
            # Frames of another rate or video, or left by a killed process.
            for file in self._paths_named(rf"{re.escape(self.prefix)}\d+\.png"):
                file.unlink()
            for name in names:
                os.replace(unfinished / name, self.folder / name)
            marker = {**dependencies, "frames": len(names), "frames_sha256": digest}
            (unfinished / "marker").write_text(json.dumps(marker), encoding="utf-8")
            os.replace(unfinished / "marker", self._marker_file)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        # Folders of processes that were killed.
        abandoned = rf"{re.escape(self._hidden_prefix)}\.[^.]+\.part"
        for folder in self._paths_named(abandoned):
            shutil.rmtree(folder, ignore_errors=True)
        return names

    def _paths_named(self, pattern: str) -> list[Path]:
        """Return the paths in the folder of the frames whose names match a pattern."""
        names = filter(re.compile(pattern).fullmatch, os.listdir(self.folder))
        return [self.folder / name for name in names]


def _save_frame(image: Image.Image, path: Path) -> None:
    """Write a frame as PNG."""
    # A third of the time of the usual level 6, for a quarter more bytes.
    image.save(path, compress_level=1)


def extract_many(
    jobs: Iterable[Job], workers: int = 1, progress: Callable[..., Any] = terminal_bar
) -> dict[Path, str]:
    """Extract the frames of many videos.

    Finished clips are skipped, and a bad video does not stop the others.

    On an interrupt or an error, clips that have begun are finished first, and all
    finished clips are kept.

    Args:
        jobs: The videos and the folders for their frames.
        workers: Number of threads; FFmpeg and Pillow release the interpreter's lock.
            With 1 the decoder chooses its own.
        progress: Makes a progress bar of the videos, with the number of frames so far;
            see `terminal_bar`.

    Returns:
        A message by the path of each video that gave no frames, in the order of the
        jobs.

    Raises:
        FrameTableError, ImportError: As `Job.extract`.
    """
    jobs = list(jobs)
    frame_count = 0
    decoder_threads = 0 if workers == 1 else 1

    def count_or_error(job: Job) -> int | str:
        """Extract a video; return its number of frames, or why it gives none."""
        try:
            return len(job.extract(decoder_threads))
        except VideoError as error:
            return str(error)

    with (
        progress(len(jobs), "extracting frames", " videos") as bar,
        ThreadPoolExecutor(workers) as threads,
    ):
        futures = [threads.submit(count_or_error, job) for job in jobs]
        try:
            for future in as_completed(futures):
                outcome = future.result()
                if isinstance(outcome, int):
                    frame_count += outcome
                bar.set_postfix_str(f"{frame_count} images", refresh=False)
                bar.update()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    failures: dict[Path, str] = {}
    for job, future in zip(jobs, futures):
        outcome = future.result()
        if isinstance(outcome, str):
            failures[job.video] = outcome
    return failures
