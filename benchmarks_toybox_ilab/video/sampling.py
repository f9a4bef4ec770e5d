"""Decode the frames of a video file at a given rate and size.

Frames look as players show them: rotated, with square pixels, without the combs of
interlaced video, in sRGB. Damaged and truncated files are detected.
"""

import math
import re
import struct
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
from benchmarks_toybox_ilab.video.interlaced import Deinterlacer

# Largest short side in pixels, exact (width, height), or None to keep the size.
Size = int | tuple[int, int] | None

# Raise errors that decoders detect and would hide by repeating earlier pixels.
DECODING = {"err_detect": "explode"}
_ADVICE = (
    "Copy it again from its source, repair it (`ffmpeg -i {name} repaired.mp4` keeps "
    "what can be decoded), or remove it."
)
# seconds; containers round time stamps, Matroska to milliseconds
_TIME_TOLERANCE = 0.005
# seconds; a larger jump, or one back by a second, resets the clock (joined recordings)
_LONGEST_GAP = 60
_MISSING_SECONDS = 0.5  # tolerated at the end of a complete file
_STATED_LENGTH = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)")
# Width of a pixel by its height, or the inverse; a file that states more is wrong.
_MOST_OBLONG = 8
_BT709 = 1  # number of the matrix in ITU-T H.273
_UNKNOWN = 2  # transfer function or primaries, in the same standard
_MICROSECONDS = 1e6  # in a second; FFmpeg's unit for the length of a file


class VideoError(FrameTableError):
    """A video file gives no frames or not all of them.

    The message says which file, why, and what to do.
    """


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
) -> Generator[Image.Image, None, None]:
    """Yield the frames of a video at times 0, 1/fps, 2/fps ... after its first frame.

    Each is the first frame whose time stamp is not below that time, so a frame may be
    repeated if the video has fewer frames per second. At least one is yielded.

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
    tolerance = min(_TIME_TOLERANCE, 0.25 / fps)  # seconds, as time stamps are rounded
    count = 0  # of the images that were yielded; the next one is that of count / fps
    time = 0.0
    try:
        with _opened_video(video, threads) as (container, stream):
            aspect = pixel_aspect(stream)
            for time, frame in _timed_frames(video, container, stream):
                if count == 0:  # time 0 is that of the first frame
                    matrix = display_matrix(frame)
                image = None
                while time >= count / fps - tolerance:
                    if image is None:
                        image = picture(frame, size, matrix, aspect)
                    yield image
                    count += 1
    except (VideoError, ImportError):
        raise
    # FFmpeg's errors inherit from many built-in ones.
    except Exception as error:
        where = f" after {time:.1f} s" if count else ""
        raise video_error(
            video, f"cannot be decoded{where}: {_reason_of(error)}"
        ) from error


def seconds_of(video: Path, most: float) -> float:
    """Return the seconds that the pictures of a video last; no more than about `most`.

    By the time stamps of its packets: what a header states may be the length of the
    sound, or begin before the pictures. 0 if there is none that can be read.

    Raises:
        VideoError: If the file cannot be opened or has no video.
    """
    begin = math.inf
    end = -math.inf
    with _opened_video(video, 1) as (container, stream):
        step = 1 / _frames_per_second(stream)  # seconds from one frame to the next
        # Without the empty packet at the end, which is to empty the decoder.
        packets = (packet for packet in container.demux(stream) if packet.size)
        # Of a damaged file, what can be read counts.
        with suppress(load_av().error.FFmpegError):
            for number, packet in enumerate(packets):
                time = _packet_time(packet)
                if time is None:
                    time = number * step
                if not packet.is_discard:  # players do not show it
                    begin = min(begin, time)
                    end = max(end, time + (_packet_seconds(packet) or step))
                if end - begin >= most:
                    break
    return max(end - begin, 0.0)


def _packet_time(packet: Any) -> float | None:
    """Return when a packet of a video is shown, or else decoded, in seconds.

    None if the packet does not say.
    """
    stamp = packet.pts
    if stamp is None:
        stamp = packet.dts
    if stamp is None:
        return None
    return float(stamp * packet.time_base)


def _packet_seconds(packet: Any) -> float:
    """Return the seconds that a packet of a video lasts; 0 if it does not say."""
    if not packet.duration:
        return 0.0
    return float(packet.duration * packet.time_base)


class Clock:
    """Convert time stamps to seconds since the first frame.

    Stamps may be missing, jump, or begin anywhere.

    Args:
        rate: Frames per second, used where time stamps are missing.
    """

    def __init__(self, rate: float) -> None:
        self._step = 1 / rate
        self._time: float | None = None  # of the previous frame
        self._origin: float | None = None  # the stamp of time 0

    def __call__(self, stamp: float | None) -> float:
        """Return the time of the next frame, never less than that of the previous."""
        if self._time is None:
            self._time = 0.0
            self._origin = stamp
        elif stamp is None:
            self._time += self._step
        else:
            if self._origin is None or self._is_jump(stamp - self._origin - self._time):
                # The clock goes on by one frame.
                self._origin = stamp - self._time - self._step
            self._time = max(self._time, stamp - self._origin)
        return self._time

    def _is_jump(self, seconds: float) -> bool:
        """Whether a step of seconds between two frames is no pause of a recording."""
        return not -1 <= seconds <= _LONGEST_GAP


# Pictures


def picture(
    frame: Any, size: Size, matrix: bytes | None = None, aspect: float = 1.0
) -> Image.Image:
    """Convert a decoded frame to an upright image of the given size.

    The image is sRGB, and lies on white where the frame is transparent.

    Args:
        frame: A frame of PyAV.
        size: Size of the image: None for that of the frame, the largest short side in
            pixels, or width and height.
        matrix: The display matrix of the video, nine 32-bit integers that rotate and
            mirror the frame; None leaves it as it is.
        aspect: Width of a pixel of the frame by its height.
    """
    width = frame.width
    height = frame.height
    # The shorter sides of pixels are enlarged, so that nothing is lost.
    if aspect > 1:
        width = round(width * aspect)
    else:
        height = round(height / aspect)
    image = upright(_frame_as_srgb(frame), matrix)
    if is_transposed(matrix):
        width, height = height, width
    target = _target_size(width, height, size)
    if image.size == target:
        return image
    # Pillow rounds correctly; FFmpeg's scaler, as set by PyAV, darkens the image by one
    # grey level.
    return image.resize(target, Image.Resampling.BICUBIC)


def _target_size(width: int, height: int, size: Size) -> tuple[int, int]:
    """Return width and height of the image of a frame, in pixels.

    Args:
        width, height: Of the frame as it is shown, upright and with square pixels.
        size: Size of the image: None for that of the frame, the largest short side in
            pixels, or width and height.
    """
    if size is None:
        return width, height
    if isinstance(size, tuple):
        return size
    short_side = min(width, height)
    if short_side <= size:
        return width, height
    return round(width * size / short_side), round(height * size / short_side)


def _frame_as_srgb(frame: Any) -> Image.Image:
    """Convert a decoded frame to an image as photos are, 8-bit sRGB without alpha.

    Transparent frames are laid on white; the size stays.

    Args:
        frame: A frame of PyAV, of any pixel format.
    """
    has_alpha = _has_alpha(frame)
    transfer = getattr(frame, "color_trc", _UNKNOWN)
    primaries = getattr(frame, "color_primaries", _UNKNOWN)
    if is_wide(transfer, primaries):  # HDR, or colours beyond sRGB
        pixel_format = "rgba64le" if has_alpha else "rgb48le"
        pixels_16bit = _frame_pixels(frame, pixel_format)
        colours = srgb(pixels_16bit[..., :3], transfer, primaries)
        alpha = (pixels_16bit[..., 3:] >> 8).astype(np.uint8)  # 0 channels without it
        pixels = np.concatenate([colours, alpha], axis=2)
    else:
        pixel_format = "rgba" if has_alpha else "rgb24"
        pixels = _frame_pixels(frame, pixel_format)
    image = Image.fromarray(pixels)
    if has_alpha:
        return on_background(image)
    return image


def _frame_pixels(frame: Any, pixel_format: str) -> np.ndarray:
    """Return the pixels of a video frame, `(H, W, channels)` `uint8` or `uint16`.

    Args:
        frame: A frame of PyAV.
        pixel_format: FFmpeg's name of the format to convert it to, such as "rgb24".
    """
    # By default PyAV 12 reads every video as BT.601. The result is RGB in any case.
    colour_spaces = {}
    if frame.colorspace == _BT709:
        colour_spaces = {"src_colorspace": "ITU709", "dst_colorspace": "ITU601"}
    # A forked process that frees a frame would wait for the threads of a converter
    # which the frame keeps: this one is not the frame's.
    converter = load_av().video.reformatter.VideoReformatter()
    converted = converter.reformat(frame, format=pixel_format, **colour_spaces)
    return converted.to_ndarray()


def _has_alpha(frame: Any) -> bool:
    """Whether pixels of a frame of PyAV may be transparent."""
    if frame.format.has_palette:
        return True
    return any(component.is_alpha for component in frame.format.components)


def pixel_aspect(stream: Any) -> float:
    """Return the width of a stream's pixels by their height.

    It is not 1 in DVDs, DV, television and HDV. 1 if the stream does not state it, or
    what no camera has.
    """
    aspect = float(stream.sample_aspect_ratio or 1)
    if not 1 / _MOST_OBLONG <= aspect <= _MOST_OBLONG:
        return 1.0
    return aspect


def display_matrix(frame: Any) -> bytes | None:
    """Return the display matrix of a stream's first frame, which holds for all of them.

    Call it for one frame of a stream: a frame and its side data refer to each other, so
    its pixels stay in memory until the garbage collector runs.
    """
    # By number: PyAV 19 iterates over types, and earlier ones over data.
    entries = map(frame.side_data.__getitem__, range(len(frame.side_data)))
    matrices = (bytes(data) for data in entries if data.type.name == "DISPLAYMATRIX")
    return next(matrices, None)


def upright(image: Image.Image, matrix: bytes | None) -> Image.Image:
    """Rotate and mirror a frame by its display matrix, to the nearest quarter turn.

    Args:
        image: The frame.
        matrix: The display matrix, nine 32-bit integers; None leaves the frame as it
            is.
    """
    if matrix is None:
        return image
    turn = _Turn.from_matrix(matrix)  # x' = ax + cy, y' = bx + dy
    across = turn.a  # how far a step to the right goes to the right
    down = turn.d  # and a step down goes down
    if is_transposed(matrix):  # a step to the right goes up or down
        across = turn.c
        down = turn.b
        image = image.transpose(Image.Transpose.TRANSPOSE)
    if across < 0:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if down < 0:
        image = image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    return image


def is_transposed(matrix: bytes | None) -> bool:
    """Whether the display matrix of a video exchanges width and height."""
    if matrix is None:
        return False
    turn = _Turn.from_matrix(matrix)
    return abs(turn.b) + abs(turn.c) > abs(turn.a) + abs(turn.d)


@dataclass(frozen=True)
class _Turn:
    """What a display matrix does to directions: x' = ax + cy, y' = bx + dy."""

    a: int
    b: int
    c: int
    d: int

    @classmethod
    def from_matrix(cls, matrix: bytes) -> "_Turn":
        """Read them from the nine 32-bit integers of a display matrix."""
        a, b, _, c, d = struct.unpack("=5i", matrix[:20])
        return cls(a=a, b=b, c=c, d=d)


# Files


def _timed_frames(
    video: Path, container: Any, stream: Any
) -> Iterator[tuple[float, Any]]:
    """Yield every frame of a video without combs, and its seconds after the first.

    Damaged frames before the first good one are skipped.
    """
    deinterlace = Deinterlacer()
    for time, frame in _decoded_frames(video, container, stream):
        yield from deinterlace(time, frame)
    yield from deinterlace.rest()


def _decoded_frames(
    video: Path, container: Any, stream: Any
) -> Iterator[tuple[float, Any]]:
    """Yield every frame of a video as it is stored, and its time after the first.

    Args:
        video: The file, for errors.
        container, stream: As PyAV opened them.

    Raises:
        VideoError: If no frame can be decoded, or at the first damage after a good
            frame, or at the end if it comes too early.
    """
    rate = _frames_per_second(stream)
    clock = Clock(rate)  # from a time stamp to seconds after the first frame
    time = 0.0  # of the last frame, in seconds after the first
    end = 0.0  # of the last packet, as a time stamp in seconds
    first_stamp: float | None = None  # of the first good frame, in seconds
    had_good_packet = False
    for packet in container.demux(stream):
        if had_good_packet and packet.is_corrupt:
            raise _damage_error(video, time)
        had_good_packet = had_good_packet or not packet.is_corrupt
        for frame in packet.decode():
            if frame.is_corrupt:
                if first_stamp is None:
                    continue  # a recording that begins between two key frames
                raise _damage_error(video, time)
            stamp = _stamp_of_frame(container, frame)
            if first_stamp is None:
                first_stamp = stamp or 0.0
            time = clock(stamp)
            yield time, frame
        packet_time = _packet_time(packet)
        if packet_time is not None:
            end = max(end, packet_time + _packet_seconds(packet))
    if first_stamp is None:
        raise video_error(video, "has no frame that can be decoded")
    # A first stamp below 0 lies before the 0 from which packets are counted.
    seconds_of_packets = end - min(first_stamp, 0.0)
    seconds_of_frames = time + 1 / rate
    seconds = max(seconds_of_packets, seconds_of_frames)
    stated_seconds = _stated_seconds(container, stream, rate)
    if stated_seconds - seconds > _MISSING_SECONDS:
        raise video_error(
            video,
            f"is truncated: it should last {stated_seconds:.1f} s, but ends after "
            f"{seconds:.1f} s",
        )


def _stamp_of_frame(container: Any, frame: Any) -> float | None:
    """Return the time stamp of a video frame in seconds; None if it has none.

    AVI stores only decoding times, so PyAV's display times are wrong for frames that
    are reordered.
    """
    stamp = frame.dts if container.format.name == "avi" else frame.pts
    if stamp is None or frame.time_base is None:
        return None
    return float(stamp * frame.time_base)


def _frames_per_second(stream: Any) -> float:
    """Return the frame rate of a video stream; 25 if nothing tells it."""
    return float(stream.average_rate or stream.guessed_rate or 25)


def _stated_seconds(container: Any, stream: Any, rate: float) -> float:
    """Return the seconds that the complete video lasts according to its header.

    0 for containers that do not state it.

    Args:
        container, stream: As PyAV opened them.
        rate: Frames per second.
    """
    formats = container.format.name.split(",")
    if "avi" in formats:
        return stream.frames / rate
    if "mov" in formats and stream.duration:
        return float(stream.duration * stream.time_base)
    if "mov" not in formats and "matroska" not in formats:
        return 0.0
    # The stream's length in Matroska is FFmpeg's guess.
    match = _STATED_LENGTH.match(stream.metadata.get("DURATION", ""))
    if match:
        hours, minutes, seconds = map(float, match.groups())
        return 3600 * hours + 60 * minutes + seconds
    # Of several streams it may be the length of the sound.
    if len(container.streams) == 1 and container.duration:
        return container.duration / _MICROSECONDS
    return 0.0


@contextmanager
def _opened_video(video: Path, threads: int) -> Iterator[tuple[Any, Any]]:
    """Open a video file; yield PyAV's container and its first stream of pictures.

    Args:
        video: The file.
        threads: Number of decoder threads; 0 lets the decoder choose.

    Raises:
        VideoError: If it cannot be opened, or FFmpeg or PyAV cannot decode it.
        ImportError: If PyAV is not installed.
    """
    if not video.is_file():
        raise VideoError(f"there is no video file {video}; restore it.")
    if not video.stat().st_size:
        raise VideoError(
            f"video {video} is empty (0 bytes). Copy it again from its source, or "
            "remove it."
        )
    av = load_av()
    options: dict[str, str] = {}
    if int(av.__version__.split(".")[0]) < 19:  # PyAV 19 lacks the argument
        options = {"metadata_errors": "replace"}
    try:
        # Absolute, because FFmpeg reads the text before a colon as a protocol.
        container = av.open(str(video.absolute()), **options)
    except Exception as error:
        raise video_error(video, f"cannot be opened: {_reason_of(error)}") from error
    with closed_by_its_process(container):
        stream = _video_stream(video, container)
        if stream.codec_context is None:
            raise video_error(video, "is of a codec that FFmpeg does not know")
        transfer = getattr(stream.codec_context, "color_trc", _UNKNOWN)
        if transfer in HDR and not hasattr(av.VideoFrame, "color_trc"):
            raise VideoError(
                f"video {video} is HDR, which PyAV {av.__version__} does not tell of "
                "its frames: pip install -U av, or save it as SDR."
            )
        stream.thread_type = "AUTO"
        stream.codec_context.thread_count = threads
        stream.codec_context.options = DECODING
        yield container, stream


def _video_stream(video: Path, container: Any) -> Any:
    """Return the first stream of moving pictures; covers are streams of video, too."""
    has_cover = False
    for stream in container.streams.video:
        if not _is_cover(stream):
            return stream
        has_cover = True
    other_types = {stream.type for stream in container.streams} - {"video"}
    if has_cover:
        other_types.add("a cover")
    holds = ", ".join(sorted(other_types)) or "nothing"
    raise VideoError(
        f"video {video} has no video stream, but only {holds}; replace or remove it."
    )


def _is_cover(stream: Any) -> bool:
    """Whether a video stream is a picture that is attached to the file."""
    disposition = getattr(stream, "disposition", None)
    return "attached_pic" in str(getattr(disposition, "name", disposition))


def _damage_error(video: Path, time: float) -> VideoError:
    """Return the error for a video with damage after `time` seconds."""
    return video_error(video, f"is damaged or truncated after {time:.1f} s")


def video_error(video: Path, problem: str) -> VideoError:
    """Return the error for a video file: what is wrong, and what to do."""
    return VideoError(f"video {video} {problem}. {_ADVICE.format(name=video.name)}")


def _reason_of(error: Exception) -> str:
    """Return why FFmpeg or the system failed, without the path of the video."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
