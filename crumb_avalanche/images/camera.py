"""Frames of a camera, read with PyAV."""

import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks_toybox_ilab.datasets.clip_folder import SHORT_SIDE
from benchmarks_toybox_ilab.tables.folders import is_video
from benchmarks_toybox_ilab.tables.forks import closed_by_its_process
from benchmarks_toybox_ilab.tables.names import check_name
from benchmarks_toybox_ilab.video.extract import frame_rate
from benchmarks_toybox_ilab.video.interlaced import Deinterlacer
from benchmarks_toybox_ilab.video.sampling import (
    Clock,
    VideoError,
    display_matrix,
    load_av,
    picture,
    pixel_aspect,
    video_error,
)
from crumb_avalanche.images.clips import Clip, Frames

PATIENCE = 10.0  # seconds without a frame before giving up
_TOLERANCE = 0.005  # seconds; time stamps are rounded
# How a camera is named on each platform, for errors.
_NAMES = {
    "linux": "/dev/video0, or 0; list the cameras with `ls /dev/video*`",
    "darwin": (
        "a number or a name; list them with `ffmpeg -f avfoundation -list_devices true "
        "-i ''`"
    ),
    "win32": "its name; list them with `ffmpeg -f dshow -list_devices true -i dummy`",
}
# Pairs of seconds since the first frame, and a function that converts the frame to an
# image.
TimedFrames = Iterator[tuple[float, Callable[[], Image.Image]]]


class CameraError(OSError):
    """A camera cannot be opened or stops; says which, why, and what to do."""


def camera_clip(
    device: str | int = 0,
    seconds: float = 10.0,
    fps: float = 5.0,
    label: str | None = None,
) -> Clip:
    """Return the frames of a camera as a clip.

    The camera is opened when the first frame is taken. Frames have at most 512 pixels
    on the short side. A camera with less than `fps` frames per second gives fewer.

    Args:
        device: on Linux a device file or its number, on macOS a number or a name, on
            Windows a name; or a video file, or the address of a stream, such as
            `rtsp://host/path`.
        seconds: length of the clip.
        fps: frames per second.
        label: class name of the clip.

    Raises:
        ValueError: `seconds` or `fps` is not a number above 0, `label` breaks the rule
            of `check_name`, or `device` is a number on Windows.
        FileNotFoundError: `device` is the path of a video that does not exist.
        CameraError: from `Clip.frames`, if the camera cannot be opened, stops, or gives
            no frame in 10 seconds.
        VideoError: from `Clip.frames`, if a video file cannot be read.
        ImportError: from `Clip.frames`, if PyAV is not installed.
    """
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    is_length = is_number and 0 < seconds < math.inf
    if not is_length:
        raise ValueError(f"seconds is {seconds!r}, but must be a number above 0.")
    if label is not None:
        label = check_name(label)
    name = shown_device(device)
    frames = camera_frames(device, seconds)
    return Clip(name, label, _sampled_frames(name, frames, frame_rate(fps)))


def shown_device(device: str | int) -> str:
    """Return the name of a camera in paths and errors, without a password in it.

    That of a file is its path.
    """
    if is_file(device):
        return str(device)
    return f"camera {re.sub(r'//[^/@]*@', '//', str(device))}"


def is_file(device: str | int) -> bool:
    """Whether a device is a file: one that exists, or the name of a video."""
    if isinstance(device, int) or "://" in device:
        return False
    return os.path.isfile(device) or is_video(Path(device))


def _opening_arguments(device: str | int) -> tuple[str, dict[str, Any]]:
    """Return name and options that PyAV opens a camera with on this platform.

    Args:
        device: a device file, a number, a name, a video file, or the address of a
            stream.

    Raises:
        FileNotFoundError: the device is the path of a video that does not exist.
        ValueError: the device is a number on Windows.
    """
    if isinstance(device, str):
        if device.isdecimal():  # as the command line gives it
            device = int(device)
        elif is_file(device):
            if not os.path.lexists(device):
                raise FileNotFoundError(
                    f"there is no file or folder {device}; check the path."
                )
            return os.path.abspath(device), {}
        elif device.startswith("rtsp") and "://" in device:
            return device, {"options": {"rtsp_transport": "tcp"}}
        elif "://" in device:
            return device, {}
    if sys.platform == "win32":
        if isinstance(device, int):
            raise ValueError(
                f"device is {device}, but on Windows a camera is given by "
                f"{_NAMES['win32']}."
            )
        return f"video={device.removeprefix('video=')}", {"format": "dshow"}
    if sys.platform == "darwin":
        # FFmpeg's default of 29.97 frames per second is refused by cameras that offer
        # 30.
        return str(device), {"format": "avfoundation", "options": {"framerate": "30"}}
    if isinstance(device, int):
        device = f"/dev/video{device}"
    return device, {"format": "v4l2"}


def _sampled_frames(name: str, frames: TimedFrames, fps: float) -> Frames:
    """Yield `fps` frames of a camera a second, as pairs of path and image.

    Each second is divided into `fps` steps, and the first frame of each step is taken.
    A step without a frame, because the camera was late, is left out.

    Args:
        name: of the camera, with which paths begin.
        frames: all frames of the camera: seconds after the first one, and a function
            that returns the image.
        fps: frames per second.
    """
    next_step = 0  # the first one without a frame
    with closing(frames):  # type: ignore[type-var]
        for seconds, to_image in frames:
            if seconds >= next_step / fps:
                step = math.floor(seconds * fps)
                next_step = step + 1
                yield f"{name}#t={step / fps:g}", to_image()


def camera_frames(device: str | int, seconds: float = math.inf) -> TimedFrames:
    """Return the frames of a camera, which is opened when the first one is taken.

    Args:
        device: a device file, a number, a name, a video file, or the address of a
            stream.
        seconds: after the first frame, at which the frames end.

    Returns:
        Pairs of the time in seconds since the first frame, and a function that converts
        the frame to an image.
    """
    name, options = _opening_arguments(device)
    return _timed_frames(device, name, options, seconds)


def _timed_frames(
    device: str | int, name: str, options: dict[str, Any], seconds: float
) -> TimedFrames:
    """Open a camera, and yield its frames with their times.

    Args:
        device: as the user gave it, for errors.
        name, options: what PyAV opens it with.
        seconds: after the first frame, at which it ends.

    Yields:
        Seconds after the first frame, and a function without arguments that returns the
        image: most frames are never converted.

    Raises:
        CameraError: the camera cannot be opened, stops, or gives no frame.
        VideoError: the same of a file.
    """
    av = load_av()
    try:
        container = av.open(name, timeout=PATIENCE, **options)
    except Exception as error:
        raise _camera_error(device, "cannot be opened", error) from error
    with closed_by_its_process(container):
        if not container.streams.video:
            raise _camera_error(device, "has no video stream")
        stream = container.streams.video[0]
        clock = Clock(float(stream.average_rate or 30))
        aspect = pixel_aspect(stream)
        # Ends the clip also if time stamps stand still.
        deadline = time.monotonic() + PATIENCE + seconds
        has_frames = False
        decoded_frames = _decoded_frames(container, stream, device)
        for time_stamp, frame in _deinterlaced_frames(decoded_frames, clock):
            frame_time = time_stamp + _TOLERANCE
            if frame_time >= seconds or time.monotonic() > deadline:
                break
            if not has_frames:
                matrix = display_matrix(frame)  # of the whole stream
                has_frames = True
            yield frame_time, partial(picture, frame, SHORT_SIDE, matrix, aspect)
        if not has_frames:
            raise _camera_error(device, "gives no frame")


def _deinterlaced_frames(
    frames: Iterator[Any], clock: Clock
) -> Iterator[tuple[float, Any]]:
    """Yield the frames of a camera without combs, with their times in seconds.

    An interlaced frame comes one frame later, since it needs the next one.

    Args:
        frames: PyAV's, decoded.
        clock: turns their time stamps into seconds since the first.
    """
    deinterlace = Deinterlacer()
    for frame in frames:
        yield from deinterlace(clock(frame.time), frame)
    yield from deinterlace.rest()


def _decoded_frames(container: Any, stream: Any, device: str | int) -> Iterator[Any]:
    """Yield the decoded frames of a camera.

    Args:
        container, stream: PyAV's, of the opened camera.
        device: as the user gave it, for errors.

    Raises:
        CameraError: the camera stops, or gives no frame in ``PATIENCE`` seconds.
        VideoError: the file is damaged.
    """
    last_frame_time = time.monotonic()
    while True:
        try:
            for frame in container.decode(stream):
                yield frame
                last_frame_time = time.monotonic()
            return
        except BlockingIOError as error:  # macOS: there is no frame yet
            if time.monotonic() - last_frame_time > PATIENCE:
                problem = f"gives no frame in {PATIENCE:g} seconds"
                raise _camera_error(device, problem) from error
            time.sleep(0.01)
        except Exception as error:
            raise _camera_error(device, "stops", error) from error


def _camera_error(
    device: str | int, problem: str, error: Exception | None = None
) -> CameraError | VideoError:
    """Return the error of a camera: what is wrong, why, and how cameras are named.

    That of a file says how to repair it.
    """
    reason = ""
    if error is not None:
        reason = f": {getattr(error, 'strerror', None) or error}"
    if is_file(device):
        return video_error(Path(str(device)), f"{problem}{reason}")
    names = _NAMES.get(sys.platform, _NAMES["linux"])
    return CameraError(
        f"{shown_device(device)} {problem}{reason}. Check that it is connected, that "
        "no other program uses it, and that this program may use it. A camera is given "
        f"by {names}."
    )
