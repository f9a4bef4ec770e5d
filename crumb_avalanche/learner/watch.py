"""Answers for frames as they come: of a camera, a stream, a video, a function or an iterator of arrays."""

import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from PIL import Image

from crumb_avalanche.images.sources import array_images, is_array, pixels_image
from crumb_avalanche.learner.answer import Answer
from crumb_avalanche.learner.evidence import Evidence

Timed = Iterator[tuple[float, Callable[[], Image.Image]]]


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


def same_classes(one: Any, other: Any) -> bool:
    """Whether two frames have values of the same classes and kinds: a lesson may come between them."""
    if not isinstance(one, Evidence):
        return True
    return torch.equal(one.labels, other.labels) and (one.apart is None) == (
        other.apart is None
    )


def together(found: list[Any]) -> Any:
    """Return the evidence of frames as that of a clip."""
    if not isinstance(found[0], Evidence):
        return torch.cat(found)
    last = found[-1]
    rows = [
        name
        for name in ("scores", "typicality", "apart")
        if getattr(last, name) is not None
    ]
    return last._replace(
        **{name: torch.cat([getattr(one, name) for one in found]) for name in rows}
    )


def frames_of(
    source: Any, bgr: bool, live: bool | None, fps: float | None
) -> tuple[str, Iterator[tuple[float, Any, int]]]:
    """Return the name of a source, and its frames: seconds, image, and frames dropped before it.

    Args:
        source, bgr, live, fps: see ``Predictor.watch``.
    """
    if (
        isinstance(source, bool)
        or (is_array(source) and source.ndim == 3)
        or isinstance(source, Image.Image)
    ):
        raise TypeError(
            f"the source is {type(source).__name__}; give predict a single image, and watch a stream of them"
        )
    if isinstance(source, int | str | os.PathLike):
        from crumb_avalanche.images.camera import camera_frames, shown_device

        device = source if isinstance(source, int) else os.fsdecode(source)
        file = isinstance(device, str) and os.path.isfile(device)
        live = not file if live is None else live
        timed: Timed = camera_frames(device)
        timed = _played(timed) if file and live else timed
        return shown_device(device), _sampled(
            _newest(timed) if live else ((*one, 0) for one in timed), fps
        )
    if callable(source):
        images: Iterable[Any] = _called(source)
    elif isinstance(source, Iterable):
        images = source
    else:
        raise TypeError(
            f"the source is {type(source).__name__}; give a camera's number, a video, an address such as rtsp://..., a "
            "function that returns a frame, or an iterator of frames"
        )
    given = _given(images, bgr)
    return "the source", _sampled(
        _newest(given) if live else ((*one, 0) for one in given), fps
    )


def _called(function: Callable[[], Any]) -> Iterator[Any]:
    while (
        image := function()
    ) is not None:  # iter(function, None) would compare arrays
        yield image


def _given(images: Iterable[Any], bgr: bool) -> Timed:
    """Yield images of arrays and PIL images, with the time at which they came."""
    begin = time.monotonic()
    for number, image in enumerate(images):
        if not isinstance(image, Image.Image):
            if not is_array(image) or len(image.shape) != 3:
                raise TypeError(
                    f"frame {number} is {type(image).__name__}; give (H, W, 3) arrays or PIL images"
                )
            ((_, image),) = array_images(image, f"frame {number}")
        yield time.monotonic() - begin, partial(_picture, image, bgr)


def _picture(image: Any, bgr: bool) -> Image.Image:
    found = (
        image.convert("RGB") if isinstance(image, Image.Image) else pixels_image(image)
    )
    return Image.merge("RGB", found.split()[::-1]) if bgr else found


def _played(frames: Timed) -> Timed:
    """Yield the frames of a file at their time, as a camera would give them."""
    begin = time.monotonic()
    for stamp, frame in frames:
        time.sleep(max(0.0, begin + stamp - time.monotonic()))
        yield stamp, frame


def _newest(frames: Timed) -> Iterator[tuple[float, Callable[[], Image.Image], int]]:
    """Yield of frames that are read by a thread the newest one each time, and how many were dropped before it."""
    held: queue.Queue = queue.Queue(1)
    stops, dropped = threading.Event(), 0

    def put(item: Any) -> None:
        nonlocal dropped
        while not stops.is_set():
            try:
                return held.put_nowait(item)
            except queue.Full:
                try:
                    held.get_nowait()
                    dropped += 1
                except queue.Empty:
                    pass

    def read() -> None:
        try:
            for one in frames:
                put((*one, None))
                if stops.is_set():
                    return
            end: BaseException | None = None
        except BaseException as error:
            end = error
        while not stops.is_set():  # after the last frame, which is not dropped for it
            try:
                return held.put((0.0, None, end or StopIteration()), timeout=0.1)
            except queue.Full:
                continue

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        while True:
            stamp, frame, end = held.get()
            if isinstance(end, StopIteration):
                return
            if end is not None:
                raise end
            before, dropped = dropped, 0
            yield stamp, frame, before
    finally:
        stops.set()
        thread.join(timeout=1)


def _sampled(
    frames: Iterator[tuple[float, Callable[[], Image.Image], int]], fps: float | None
) -> Iterator[tuple[float, Image.Image, int]]:
    """Yield frames, at most ``fps`` for a second of their time; only these are converted to images."""
    taken = dropped = 0
    for stamp, frame, before in frames:
        dropped += before
        if fps is not None:
            if stamp < taken / fps:
                dropped += 1
                continue
            taken = math.floor(stamp * fps) + 1
        yield stamp, frame(), dropped
        dropped = 0
