"""Small videos whose frames show their numbers, and sound without images."""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image


def write_video(
    path: Path,
    seconds: float = 3,
    rate: int = 10,
    size: tuple[int, int] = (64, 48),
    codec: str | None = None,
    stamps: Iterable[int] | None = None,
    matrix: tuple[int, ...] | None = None,
    faststart: bool = False,
    sound: float = 0,
    live: bool = False,
) -> Path:
    """Write a video whose frames show their number (see `video_frame_number`) and a white upper left quarter.

    `stamps` are the times of the frames in milliseconds, instead of seconds x rate
    frames; `matrix` is nine numbers that turn the picture; `faststart` puts the table
    of an MP4 file in front, so that one cut off can be opened. `sound` is so many
    seconds of silence; a `live` recording does not state its length.
    """
    import av

    codec = codec or {".webm": "libvpx", ".mpg": "mpeg1video"}.get(
        path.suffix.lower(), "libx264"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"live": "1"} if live else {"movflags": "faststart"} if faststart else {}
    with av.open(str(path), "w", options=options) as container:
        options = {"crf": "1", "preset": "veryfast"} if codec == "libx264" else {}
        stream = container.add_stream(codec, rate=rate, options=options)
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.bit_rate = 4_000_000
        silence = (
            container.add_stream("mp2" if path.suffix == ".mpg" else "aac", rate=48000)
            if sound
            else None
        )
        if matrix is not None:
            stream.set_display_matrix(matrix)
        if stamps is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for number, stamp in enumerate(
            range(round(seconds * rate)) if stamps is None else stamps
        ):
            picture = np.full((size[1], size[0], 3), 10 + 3 * number, np.uint8)
            picture[: size[1] // 2, : size[0] // 2] = 255
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = (
                stamp,
                Fraction(1, rate if stamps is None else 1000),
            )
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if silence is not None:
            _add_silence(container, silence, sound)
    return path


def _add_silence(container, stream, seconds: float) -> None:
    """Encode silence of a second at a time."""
    import av

    for second in range(round(seconds)):
        frame = av.AudioFrame.from_ndarray(
            np.zeros((1, 48000), np.float32), format="fltp", layout="mono"
        )
        frame.sample_rate, frame.pts, frame.time_base = (
            48000,
            48000 * second,
            Fraction(1, 48000),
        )
        container.mux(stream.encode(frame))
    container.mux(stream.encode())


def frame_number(image: Image.Image) -> int:
    """The number of a frame of `write_video`, from the brightness of its lower right quarter."""
    width, height = image.size
    return round(
        (
            np.asarray(image.convert("RGB"), float)[
                height * 5 // 8 : -2, width * 5 // 8 : -2
            ].mean()
            - 10
        )
        / 3
    )


def video_frame_number(path: Path) -> int:
    """The number of a frame of `write_video` that was written to an image."""
    with Image.open(path) as image:
        return frame_number(image)


def write_sound(path: Path) -> Path:
    """Write a second of silence, without images."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        _add_silence(container, container.add_stream("aac", rate=48000), 1)
    return path
