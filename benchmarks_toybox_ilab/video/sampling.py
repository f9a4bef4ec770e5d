"""Decode the frames of a video file at a given rate and size, and detect damaged or truncated files."""

import math
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks_toybox_ilab.tables.forks import (
    closed_by_its_process,
    collect_nothing_of_the_parent,
)
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.image import on_background
from benchmarks_toybox_ilab.video.colours import HDR, is_wide, srgb

Size = (
    int | tuple[int, int] | None
)  # largest short side in pixels, exact (width, height), or None to keep the size

DECODING = {
    "err_detect": "explode"
}  # raise errors that decoders detect and would hide by repeating earlier pixels
_ADVICE = (
    "Copy it again from its source, repair it (`ffmpeg -i {name} repaired.mp4` keeps what can be decoded), "
    "or remove it."
)
_TIME_TOLERANCE = (
    0.005  # seconds; containers round time stamps, Matroska to milliseconds
)
# seconds; a larger jump, or one back by a second, resets the clock (joined recordings)
_LONGEST_GAP = 60
_MISSING_SECONDS = 0.5  # tolerated at the end of a complete file
_STATED_LENGTH = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)")


class VideoError(FrameTableError):
    """A video file gives no frames or not all of them; the message says which file, why, and what to do."""


def load_av() -> Any:
    """Import PyAV, an optional dependency; ImportError says how to install it."""
    try:
        import av
    except ImportError as error:
        raise ImportError(
            'frames of videos are read with PyAV: pip install -e ".[video]"'
        ) from error
    collect_nothing_of_the_parent()
    return av


def sampled_frames(
    video: Path, fps: float, size: Size = None, threads: int = 0
) -> Iterator[Image.Image]:
    """Yield the frames of a video at times 0, 1/fps, 2/fps ... after its first frame, at least one.

    Each is the first frame whose time stamp is not below that time, so a frame may be
    repeated if the video has fewer frames per second.

    Args:
        video: The file.
        fps: Frames per second to yield.
        size: Size of the images: None, the largest short side in pixels, or width and
            height.
        threads: Number of decoder threads; 0 lets the decoder choose.

    Raises:
        VideoError: If the file has no video or no frame that can be decoded, or is
            damaged or truncated, after its good frames.
        ImportError: If PyAV is not installed.
    """
    tolerance = min(_TIME_TOLERANCE, 0.25 / fps)
    taken = 0
    try:
        for time, frame in _timed_frames(video, threads):
            image = None
            if taken == 0:
                matrix = display_matrix(frame)
            while time >= taken / fps - tolerance:
                image = image or picture(frame, size, matrix)
                yield image
                taken += 1
    except (VideoError, ImportError):
        raise
    # FFmpeg's errors inherit from many built-in ones.
    except Exception as error:
        where = f" after {time:.1f} s" if taken else ""
        raise _video_error(
            video, f"cannot be decoded{where}: {_reason(error)}"
        ) from error


def seconds_of(video: Path, most: float) -> float:
    """The seconds that the pictures of a video last, by the time stamps of its packets; no more than about `most`.

    What a header states may be the length of the sound, or begin before the pictures.
    VideoError if it has none.
    """
    with _opened(video, 1) as (container, stream):
        begin, end, step = math.inf, -math.inf, 1 / _rate(stream)
        with suppress(
            load_av().error.FFmpegError
        ):  # of a damaged file what can be read
            for number, packet in enumerate(
                packet for packet in container.demux(stream) if packet.size
            ):
                stamp = packet.dts if packet.pts is None else packet.pts
                time = (
                    number * step if stamp is None else float(stamp * packet.time_base)
                )
                if not packet.is_discard:
                    lasts = (
                        float(packet.duration * packet.time_base)
                        if packet.duration
                        else step
                    )
                    begin, end = min(begin, time), max(end, time + lasts)
                if end - begin >= most:
                    break
        return max(end - begin, 0.0)


class Clock:
    """Convert time stamps, which may be missing, jump, or begin anywhere, to seconds since the first frame.

    Args:
        rate: Frames per second, used where time stamps are missing.
    """

    def __init__(self, rate: float) -> None:
        self._step = 1 / rate
        self._time: float | None = None
        self._origin: float | None = None

    def __call__(self, stamp: float | None) -> float:
        """Return the time of the next frame, never less than that of the previous one."""
        if self._time is None:
            self._time, self._origin = 0.0, stamp
        elif stamp is None:
            self._time += self._step
        else:
            if (
                self._origin is None
                or not -1 <= stamp - self._origin - self._time <= _LONGEST_GAP
            ):
                self._origin = stamp - self._time - self._step
            self._time = max(self._time, stamp - self._origin)
        return self._time


def upright(image: Image.Image, matrix: bytes | None) -> Image.Image:
    """Rotate and mirror a frame by its display matrix (nine 32-bit integers or None), to the nearest quarter turn."""
    if matrix is None:
        return image
    a, b, _, c, d = struct.unpack("=9i", matrix[:36])[:5]  # x' = ax + cy, y' = bx + dy
    if abs(b) + abs(c) > abs(a) + abs(d):
        a, d = c, b
        image = image.transpose(Image.Transpose.TRANSPOSE)
    if a < 0:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if d < 0:
        image = image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    return image


def display_matrix(frame: Any) -> bytes | None:
    """Return the display matrix of a stream's first frame, which holds for all of them.

    Call it for one frame of a stream: a frame and its side data refer to each other, so
    its pixels stay in memory until the garbage collector runs.
    """
    # By number: PyAV 19 iterates over types, and earlier ones over data.
    entries = map(frame.side_data.__getitem__, range(len(frame.side_data)))
    return next(
        (bytes(data) for data in entries if data.type.name == "DISPLAYMATRIX"), None
    )


def picture(frame: Any, size: Size, matrix: bytes | None = None) -> Image.Image:
    """Convert a decoded frame to an upright image of the given size: sRGB, on white where it is transparent."""
    # By default PyAV 12 reads every video as BT.601. The result is RGB in any case.
    how = (
        {"src_colorspace": "ITU709", "dst_colorspace": "ITU601"}
        if frame.colorspace == 1
        else {}
    )
    # A forked process that frees a frame would wait for the threads of a converter
    # which the frame keeps.
    convert = load_av().video.reformatter.VideoReformatter().reformat
    transfer, primaries = (
        getattr(frame, "color_trc", 2),
        getattr(frame, "color_primaries", 2),
    )
    clear = frame.format.has_palette or any(
        part.is_alpha for part in frame.format.components
    )
    if is_wide(transfer, primaries):
        deep = convert(
            frame, format="rgba64le" if clear else "rgb48le", **how
        ).to_ndarray()
        pixels = srgb(deep[..., :3], transfer, primaries)
        pixels = np.concatenate([pixels, (deep[..., 3:] >> 8).astype(np.uint8)], axis=2)
        image = Image.fromarray(pixels)
    else:
        image = Image.fromarray(
            convert(frame, format="rgba" if clear else "rgb24", **how).to_ndarray()
        )
    image = upright(on_background(image) if clear else image, matrix)
    # Pillow rounds correctly; FFmpeg's scaler, as set by PyAV, darkens the image by one
    # grey level.
    if isinstance(size, int):
        width, height, short = image.width, image.height, min(image.size)
        size = (
            (round(width * size / short), round(height * size / short))
            if short > size
            else None
        )
    return (
        image
        if size in (None, image.size)
        else image.resize(size, Image.Resampling.BICUBIC)
    )


def _timed_frames(video: Path, threads: int) -> Iterator[tuple[float, Any]]:
    """Yield every frame and its time after the first; skip damaged frames before the first good one."""
    with _opened(video, threads) as (container, stream):
        rate = _rate(stream)
        clock, time, first, end, begun = Clock(rate), 0.0, None, 0.0, False
        for packet in container.demux(stream):
            if begun and packet.is_corrupt:
                raise _video_error(video, f"is damaged or truncated after {time:.1f} s")
            begun = begun or not packet.is_corrupt
            for frame in packet.decode():
                if (
                    frame.is_corrupt and first is None
                ):  # a recording that begins between two key frames
                    continue
                if frame.is_corrupt:
                    raise _video_error(
                        video, f"is damaged or truncated after {time:.1f} s"
                    )
                # AVI stores only decoding times, so PyAV's display times are wrong for
                # frames that are reordered.
                stamp = frame.dts if container.format.name == "avi" else frame.pts
                stamp = (
                    None
                    if stamp is None or frame.time_base is None
                    else float(stamp * frame.time_base)
                )
                first = (stamp or 0.0) if first is None else first
                time = clock(stamp)
                yield time, frame
            last = packet.dts if packet.pts is None else packet.pts
            if last is not None:
                end = max(
                    end, float((last + (packet.duration or 0)) * packet.time_base)
                )
        if first is None:
            raise _video_error(video, "has no frame that can be decoded")
        # Some containers count from 0, others from the first frame: use the longer
        # length.
        shown, stated = (
            max(end, end - first, time + 1 / rate),
            _stated_seconds(container, stream, rate),
        )
        if stated - shown > _MISSING_SECONDS:
            raise _video_error(
                video,
                f"is truncated: it should last {stated:.1f} s, but ends after {shown:.1f} s",
            )


def _rate(stream: Any) -> float:
    return float(stream.average_rate or stream.guessed_rate or 25)


def _stated_seconds(container: Any, stream: Any, rate: float) -> float:
    """The length of the complete file according to its header; 0 for containers that do not state it."""
    formats = container.format.name.split(",")
    if "avi" in formats:
        return stream.frames / rate
    if "mov" in formats and stream.duration:
        return float(stream.duration * stream.time_base)
    if (
        "mov" in formats or "matroska" in formats
    ):  # the stream's length in Matroska is FFmpeg's guess
        if match := _STATED_LENGTH.match(stream.metadata.get("DURATION", "")):
            hours, minutes, seconds = map(float, match.groups())
            return 3600 * hours + 60 * minutes + seconds
        if (
            len(container.streams) == 1 and container.duration
        ):  # otherwise it may be the length of the audio
            return container.duration / 1e6
    return 0.0


@contextmanager
def _opened(video: Path, threads: int) -> Iterator[tuple[Any, Any]]:
    """Open a file and its first video stream."""
    if not video.is_file():
        raise VideoError(f"there is no video file {video}; restore it.")
    if not video.stat().st_size:
        raise _video_error(video, "is empty (0 bytes)")
    av = load_av()
    # PyAV 19 lacks the argument.
    metadata = (
        {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}
    )
    try:
        # Absolute, because FFmpeg reads the text before a colon as a protocol.
        container = av.open(str(video.absolute()), **metadata)
    except Exception as error:
        raise _video_error(video, f"cannot be opened: {_reason(error)}") from error
    with closed_by_its_process(container):
        if not container.streams.video:
            others = (
                ", ".join(sorted({stream.type for stream in container.streams}))
                or "nothing"
            )
            raise VideoError(
                f"video {video} has no video stream, but only {others}; replace or remove it."
            )
        stream = container.streams.video[0]
        if stream.codec_context is None:
            raise _video_error(video, "is of a codec that FFmpeg does not know")
        if getattr(stream.codec_context, "color_trc", 2) in HDR and not hasattr(
            av.VideoFrame, "color_trc"
        ):
            raise VideoError(
                f"video {video} is HDR, which PyAV {av.__version__} does not tell of its frames: pip install -U av, or "
                "save it as SDR."
            )
        stream.thread_type = "AUTO"
        stream.codec_context.thread_count = threads
        stream.codec_context.options = DECODING
        yield container, stream


def _video_error(video: Path, what: str) -> VideoError:
    return VideoError(f"video {video} {what}. {_ADVICE.format(name=video.name)}")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
