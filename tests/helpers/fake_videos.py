"""Small videos whose frames show their numbers, videos of any frames, and sound."""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SAMPLES = 48000  # of sound, a second
_CODECS = {".webm": "libvpx", ".mpg": "mpeg1video"}
_MILLISECOND = Fraction(1, 1000)
# What a frame of `write_video` shows: its number, as DARKEST + STEP * number.
_DARKEST = 10
_STEP = 3


def write_video(
    path: Path,
    seconds: float = 3,
    rate: int = 10,
    size: tuple[int, int] = (64, 48),
    stamps: Iterable[int] | None = None,
    **how: Any,
) -> Path:
    """Write a video whose frames show their number and a white upper left quarter.

    Args:
        path: The file; its folder is created if missing.
        seconds: Length.
        rate: Frames per second.
        size: Width and height.
        stamps: Times of the frames in milliseconds, instead of seconds x rate frames.
        **how: For `write_frames`.
    """
    width, height = size
    if stamps is None:
        stamps = range(round(seconds * rate))
        how["time_base"] = Fraction(1, rate)
    else:
        stamps = list(stamps)
        how["time_base"] = _MILLISECOND
    pictures = []
    for number in range(len(stamps)):
        picture = np.full((height, width, 3), _DARKEST + _STEP * number, np.uint8)
        picture[: height // 2, : width // 2] = 255
        pictures.append(picture)
    return write_frames(path, pictures, stamps, rate=rate, **how)


def write_frames(
    path: Path,
    pictures: Iterable[np.ndarray],
    stamps: Iterable[int] | None = None,
    *,
    rate: int = 10,
    time_base: Fraction | None = None,
    codec: str | None = None,
    options: dict[str, str] | None = None,
    matrix: tuple[int, ...] | None = None,
    aspect: Fraction | None = None,
    faststart: bool = False,
    sound: float = 0,
    live: bool = False,
) -> Path:
    """Write a video of any pictures.

    Args:
        path: The file; its folder is created if missing.
        pictures: `(H, W, 3)` arrays of bytes.
        stamps: Times of the frames, in units of `time_base`.
        rate: Frames per second.
        time_base: Seconds; the inverse of the rate if it is None.
        codec: Name of the encoder; None is the usual one of the container.
        options: Those of the encoder.
        matrix: Nine numbers that turn the picture.
        aspect: Width of a pixel by its height.
        faststart: Put the table of an MP4 file in front, so that one cut off can be
            opened.
        sound: Seconds of silence.
        live: Whether it is a recording that does not state its length.
    """
    import av

    pictures = list(pictures)
    height, width = pictures[0].shape[:2]
    codec = codec or _CODECS.get(path.suffix.lower(), "libx264")
    if options is None and codec == "libx264":
        options = {"crf": "1", "preset": "veryfast"}
    container_options = {}
    if live:
        container_options = {"live": "1"}
    elif faststart:
        container_options = {"movflags": "faststart"}
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options=container_options) as container:
        stream = container.add_stream(codec, rate=rate, options=options or {})
        stream.width = width
        stream.height = height
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.bit_rate = 4_000_000
        silence = None
        if sound:
            kind = "mp2" if path.suffix == ".mpg" else "aac"
            silence = container.add_stream(kind, rate=SAMPLES)
        if matrix is not None:
            stream.set_display_matrix(matrix)
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        if time_base == _MILLISECOND:
            stream.codec_context.time_base = time_base
        times = range(len(pictures)) if stamps is None else stamps
        for time, picture in zip(times, pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = time
            frame.time_base = time_base or Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if silence is not None:
            _add_silence(container, silence, sound)
    return path


def _add_silence(container: Any, stream: Any, seconds: float) -> None:
    """Encode silence of a second at a time."""
    import av

    for second in range(round(seconds)):
        nothing = np.zeros((1, SAMPLES), np.float32)
        frame = av.AudioFrame.from_ndarray(nothing, format="fltp", layout="mono")
        frame.sample_rate = SAMPLES
        frame.pts = SAMPLES * second
        frame.time_base = Fraction(1, SAMPLES)
        container.mux(stream.encode(frame))
    container.mux(stream.encode())


def frame_number(image: Image.Image) -> int:
    """Return the number of a frame of `write_video`.

    It is read from the brightness of the lower right quarter.
    """
    width, height = image.size
    pixels = np.asarray(image.convert("RGB"), float)
    quarter = pixels[height * 5 // 8 : -2, width * 5 // 8 : -2]
    return round((quarter.mean() - _DARKEST) / _STEP)


def video_frame_number(path: Path) -> int:
    """Return the number of a frame of `write_video` that was written to an image."""
    with Image.open(path) as image:
        return frame_number(image)


def write_sound(path: Path, cover: bytes | None = None) -> Path:
    """Write a second of silence, without images but perhaps a PNG file as the cover."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=SAMPLES)
        if cover is not None:
            container.add_attachment("cover.png", "image/png", cover)
        _add_silence(container, stream, 1)
    return path
