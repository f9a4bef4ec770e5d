"""Answers for frames as they come.

They come from a camera, a stream, a video, a function or an iterator of arrays.
"""

import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from PIL import Image

from crumb_avalanche.images.sources import array_images, decoded_image, is_array
from crumb_avalanche.learner.answer import Answer
from crumb_avalanche.learner.evidence import Evidence

# Seconds since the first frame, and a function that converts the frame to an image.
Timed = Iterator[tuple[float, Callable[[], Image.Image]]]
# The same, and how many frames were dropped before it.
Counted = Iterator[tuple[float, Callable[[], Image.Image], int]]


@dataclass(frozen=True)
class Watched(Answer):
    """Answer for the frames of the last moments, together.

    Attributes:
        time: seconds since the first frame.
        changed: whether this is a moment that matters: another class, or something
            unknown, has been seen for half a window, also the first one.
        dropped: frames since the last answer that came too fast.
    """

    time: float = 0.0
    changed: bool = False
    dropped: int = 0

    def as_dict(self) -> dict:
        """Return plain values for JSON."""
        return {
            **super().as_dict(),
            "time": round(self.time, 3),
            "changed": self.changed,
            "dropped": self.dropped,
        }


class Window:
    """The frames of the last seconds, which are answered as one clip.

    Of each it holds the evidence: scores of the classes, and how typical the frame is
    of them; see ``Evidence``.

    Args:
        seconds: length of the window.
    """

    def __init__(self, seconds: float):
        self._seconds = seconds
        # Time of each frame in seconds, and its evidence, or outputs of ``RunAnswers``.
        self._recent: deque[tuple[float, Any]] = deque()

    def joined_with(self, evidence: Any, now: float) -> Any:
        """Add a frame; return the evidence of all frames in the window as a clip's.

        Frames before the window, or before a lesson that changed the classes, go.

        Args:
            evidence: of the new frame: scores of the classes, and how typical it is of
                them; see ``Classifier.evidence``.
            now: time of the new frame in seconds.
        """
        self._recent.append((now, evidence))
        while True:
            seconds, oldest = self._recent[0]
            is_in_window = seconds >= now - self._seconds
            if is_in_window and same_classes(oldest, evidence):
                break
            self._recent.popleft()
        return together([of_frame for _, of_frame in self._recent])


def same_classes(evidence: Any, other: Any) -> bool:
    """Whether two frames have evidence of the same classes and kinds.

    A lesson may come between them. Outputs of ``RunAnswers`` are always alike.
    """
    if not isinstance(evidence, Evidence):
        return True
    has_same_kinds = (evidence.apart is None) == (other.apart is None)
    return has_same_kinds and torch.equal(
        evidence.class_of_column, other.class_of_column
    )


def together(frames: list[Any]) -> Any:
    """Join what single frames of a window say of the classes to that of one clip.

    Args:
        frames: of each frame its ``Evidence`` (scores of the classes, and how typical
            the frame is of them), a row each; or its outputs, ``(1, classes)``, for
            what a run left.

    Returns:
        The same with a row for each frame.
    """
    last = frames[-1]  # all frames have its classes
    if not isinstance(last, Evidence):
        return torch.cat(frames)
    apart = None
    if last.apart is not None:
        apart = torch.cat([frame.apart for frame in frames])
    return last._replace(
        scores=torch.cat([frame.scores for frame in frames]),
        typicality=torch.cat([frame.typicality for frame in frames]),
        apart=apart,
        left_out=None,
    )


class Changes:
    """Which answers are changes: to another one, given for half a window.

    Args:
        window: in seconds.
    """

    def __init__(self, window: float):
        self._window = window
        self._answer = ""
        self._since = 0.0  # seconds at which the answer became this one
        self._reported: str | None = None  # what the last change was to

    def observe(self, answer: str, seconds: float) -> bool:
        """Take in an answer; return whether it is a change."""
        if answer != self._answer:
            self._answer = answer
            self._since = seconds
        has_lasted = seconds - self._since >= self._window / 2
        is_change = answer != self._reported and has_lasted
        if is_change:
            self._reported = answer
        return is_change


def frames_of(
    source: Any, bgr: bool, live: bool | None, fps: float | None
) -> tuple[str, Iterator[tuple[float, Image.Image, int]]]:
    """Return the name of a source, and its frames.

    Args:
        source: number or name of a camera, path of a video, address of a stream,
            function that returns a frame, or iterator of frames.
        bgr: whether the channels of arrays are blue, green and red.
        live: whether frames that come too fast are dropped; ``None`` decides by the
            source.
        fps: most frames for a second; ``None`` is no limit.

    Returns:
        The name; and for each frame the seconds since the first, the image, and the
        number of frames dropped before it.
    """
    is_single_array = is_array(source) and source.ndim == 3
    if is_single_array or isinstance(source, bool | Image.Image):
        raise TypeError(
            f"the source is {type(source).__name__}; give predict a single image, and "
            "watch a stream of them"
        )
    if isinstance(source, int | str | os.PathLike):
        return _frames_of_device(source, live, fps)
    if callable(source):
        images: Iterable[Any] = _images_from(source)
    elif isinstance(source, Iterable):
        images = source
    else:
        raise TypeError(
            f"the source is {type(source).__name__}; give a camera's number, a video, "
            "an address such as rtsp://..., a function that returns a frame, or an "
            "iterator of frames"
        )
    timed = _timed(images, bgr)
    counted = _counted(timed, live)
    return "the source", _sampled(counted, fps)


def _frames_of_device(
    source: int | str | os.PathLike, live: bool | None, fps: float | None
) -> tuple[str, Iterator[tuple[float, Image.Image, int]]]:
    """Return the name and the frames of a camera, a stream or a video.

    Args:
        source: number or name of a camera, path of a video, or address of a stream.
        live: whether frames that come too fast are dropped; a video then plays at its
            own speed. ``None`` is false for videos alone.
        fps: most frames for a second; ``None`` is no limit.

    Returns:
        The name; and for each frame the seconds since the first, the image, and the
        number of frames dropped before it.
    """
    from crumb_avalanche.images.camera import camera_frames, is_file, shown_device

    device = source if isinstance(source, int) else os.fsdecode(source)
    is_recorded = is_file(device)
    if live is None:
        live = not is_recorded
    timed: Timed = camera_frames(device)
    if is_recorded and live:
        timed = _played(timed)
    counted = _counted(timed, live)
    return shown_device(device), _sampled(counted, fps)


def _images_from(function: Callable[[], Any]) -> Iterator[Any]:
    """Yield the images that a function returns until it returns ``None``."""
    while True:
        image = function()
        if image is None:  # iter(function, None) would compare arrays
            return
        yield image


def _timed(images: Iterable[Any], bgr: bool) -> Timed:
    """Yield arrays and PIL images as frames, with the time at which they came.

    Args:
        images: ``(H, W, C)`` arrays, or PIL images.
        bgr: whether the channels of arrays are blue, green and red.

    Yields:
        Seconds at which the frame came, from when the first one was asked for; and a
        function that returns the RGB image: frames that are dropped are never
        converted.

    Raises:
        TypeError: a frame is neither.
    """
    begin = time.monotonic()
    for number, image in enumerate(images):
        if not isinstance(image, Image.Image):
            if not is_array(image) or len(image.shape) != 3:
                raise TypeError(
                    f"frame {number} is {type(image).__name__}; give (H, W, 3) arrays "
                    "or PIL images"
                )
            # Checks the array, and yields its only image with its name.
            ((_, image),) = array_images(image, f"frame {number}")
        yield time.monotonic() - begin, partial(_rgb_image, image, bgr)


def _rgb_image(frame: Any, bgr: bool) -> Image.Image:
    """Return the RGB image of a frame, an array or a PIL image."""
    image = decoded_image(frame)
    if not bgr:
        return image
    blue, green, red = image.split()
    return Image.merge("RGB", (red, green, blue))


def _closed(frames: Timed) -> AbstractContextManager:
    """Close the source of frames at the end: an open video has threads."""
    return closing(frames)  # type: ignore[type-var]


def _counted(frames: Timed, live: bool | None) -> Counted:
    """Yield the newest frame each time if they are ``live``, else all frames."""
    if live:
        return _newest_frames(frames)
    return _all_frames(frames)


def _all_frames(frames: Timed) -> Counted:
    """Yield all frames: none is dropped."""
    with _closed(frames):
        for seconds, frame in frames:
            yield seconds, frame, 0


def _played(frames: Timed) -> Timed:
    """Yield the frames of a file at their time, as a camera would give them."""
    begin = time.monotonic()
    with _closed(frames):
        for seconds, frame in frames:
            time.sleep(max(0.0, begin + seconds - time.monotonic()))
            yield seconds, frame


def _newest_frames(frames: Timed) -> Counted:
    """Yield the newest frame each time, of frames that a thread reads."""
    reader = _Reader(frames)
    reader.start()
    try:
        while True:
            latest = reader.latest()
            if isinstance(latest, _End):
                if latest.error is not None:
                    raise latest.error
                return
            yield latest.seconds, latest.frame, latest.dropped
    finally:
        reader.stop()


@dataclass(frozen=True)
class _Latest:
    """A frame, its time in seconds, and how many were dropped before it."""

    seconds: float
    frame: Callable[[], Image.Image]
    dropped: int


@dataclass(frozen=True)
class _End:
    """The end of the frames, and the error that ended them."""

    error: BaseException | None


class _Reader(threading.Thread):
    """Reads frames as they come and holds the newest one; the end follows the last."""

    def __init__(self, frames: Timed):
        super().__init__(daemon=True)
        self._frames = frames
        self._held: queue.Queue[_Latest | _End] = queue.Queue(1)
        self._stops = threading.Event()

    def run(self) -> None:
        """Read until the frames end or ``stop`` is called."""
        end = _End(None)
        try:
            with _closed(self._frames):
                for seconds, frame in self._frames:
                    self._hold(seconds, frame)
                    if self._stops.is_set():
                        return
        except BaseException as error:
            end = _End(error)
        while not self._stops.is_set():
            with suppress(queue.Full):  # the last frame is not dropped for the end
                return self._held.put(end, timeout=0.1)

    def _hold(self, seconds: float, frame: Callable[[], Image.Image]) -> None:
        """Put a frame in the place of one that was not taken yet."""
        dropped = 0
        with suppress(queue.Empty):
            waiting = self._held.get_nowait()
            assert isinstance(waiting, _Latest)  # the end is put last
            dropped = waiting.dropped + 1
        self._held.put_nowait(_Latest(seconds, frame, dropped))

    def latest(self) -> _Latest | _End:
        """Return the newest frame that was not returned yet; waits for one."""
        return self._held.get()

    def stop(self) -> None:
        """Stop reading; the source is closed after the frame that is read now."""
        self._stops.set()
        self.join(timeout=1)


def _sampled(
    frames: Counted, fps: float | None
) -> Iterator[tuple[float, Image.Image, int]]:
    """Yield the images of at most ``fps`` frames for a second of their time.

    Only these are converted to images.

    Args:
        frames: for each, its seconds, a function that returns the image, and the number
            of frames dropped before it.
        fps: ``None`` is no limit.

    Yields:
        Its seconds, its image, and the number of frames dropped since the last one.
    """
    next_tick = 0  # in units of 1 / fps; frames before are dropped
    dropped = 0  # since the last frame that was yielded
    with closing(frames):  # type: ignore[type-var]
        for seconds, frame, dropped_before in frames:
            dropped += dropped_before
            if fps is not None:
                if seconds < next_tick / fps:
                    dropped += 1
                    continue
                next_tick = math.floor(seconds * fps) + 1
            yield seconds, frame(), dropped
            dropped = 0
