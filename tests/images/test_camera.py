"""A clip of a camera, with a video file or a made-up container in its place."""

import sys
from fractions import Fraction
from itertools import repeat
from types import SimpleNamespace

import numpy as np
import pytest
from fake_videos import frame_number

from benchmarks_toybox_ilab.video.sampling import VideoError
from crumb_avalanche.images import camera
from crumb_avalanche.images.camera import CameraError, camera_clip

AVFOUNDATION = {"format": "avfoundation", "options": {"framerate": "30"}}


def frame_numbers(clip):
    return [frame_number(image) for _, image in clip.frames]


# A video file in the place of a camera


@pytest.fixture
def opened(video, monkeypatch):
    """Name and options of each camera that was opened; a video file is in its place."""
    av = pytest.importorskip("av")
    cameras = []
    open_file = av.open

    def open_camera(name, timeout, **options):
        cameras.append((name, options))
        return open_file(str(video))

    monkeypatch.setattr(av, "open", open_camera)
    return cameras


@pytest.mark.parametrize(
    ("platform", "device", "name", "options"),
    [
        ("linux", 0, "/dev/video0", {"format": "v4l2"}),
        ("linux", "/dev/video2", "/dev/video2", {"format": "v4l2"}),
        ("darwin", 0, "0", AVFOUNDATION),
        ("darwin", "FaceTime", "FaceTime", AVFOUNDATION),
        ("win32", "My Camera", "video=My Camera", {"format": "dshow"}),
        ("win32", "video=My Camera", "video=My Camera", {"format": "dshow"}),
    ],
)
def test_opening_on_a_platform(opened, monkeypatch, platform, device, name, options):
    monkeypatch.setattr(sys, "platform", platform)
    list(camera_clip(device).frames)
    assert opened == [(name, options)]


def test_opened_with_the_first_frame(opened):
    frames = camera_clip().frames
    assert opened == []
    next(frames)
    assert len(opened) == 1


def test_path_and_label_of_a_clip(opened):
    clip = camera_clip("/dev/video2", label="mug")
    assert (clip.path, clip.label) == ("camera /dev/video2", "mug")


def test_a_frame_names_its_time(opened):
    clip = camera_clip("/dev/video2", seconds=2, fps=2)
    assert [path for path, _ in clip.frames] == [
        "camera /dev/video2#t=0",
        "camera /dev/video2#t=0.5",
        "camera /dev/video2#t=1",
        "camera /dev/video2#t=1.5",
    ]


def test_frames_of_those_times(opened):
    assert frame_numbers(camera_clip(seconds=2, fps=2)) == [0, 5, 10, 15]


@pytest.mark.parametrize(
    ("seconds", "fps", "expected"),
    [
        (1, 10, list(range(10))),
        (0.5, 50, [0, 1, 2, 3, 4]),
        (10, 1, [0, 10, 20]),
        (1, 3, [0, 4, 7]),
        (0.01, 1, [0]),
    ],
)
def test_rate_and_length_of_a_clip(video, seconds, fps, expected):
    assert frame_numbers(camera_clip(str(video), seconds, fps)) == expected


def test_images_of_a_camera(video):
    for _, image in camera_clip(str(video)).frames:
        assert image.mode == "RGB"
        assert image.size == (64, 48)


# A made-up container in the place of a camera


def fake_camera(monkeypatch, stamps, closed=lambda: None):
    """Open a camera whose frames have these time stamps in seconds.

    An exception among them is raised in its place.
    """
    av = pytest.importorskip("av")
    remaining = iter(stamps)  # goes on where an exception was raised

    def decode(stream):
        for stamp in remaining:
            if isinstance(stamp, Exception):
                raise stamp
            pixels = np.zeros((4, 6, 3), np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = round(1000 * stamp)
            frame.time_base = Fraction(1, 1000)
            yield frame

    stream = SimpleNamespace(average_rate=None, sample_aspect_ratio=None)
    streams = SimpleNamespace(video=[stream])
    container = SimpleNamespace(streams=streams, decode=decode, close=closed)
    monkeypatch.setattr(av, "open", lambda name, timeout, **options: container)
    seconds = iter(range(1000))  # each look at the clock is a second later
    monkeypatch.setattr(camera.time, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(camera.time, "sleep", lambda seconds: None)


def frame_times(seconds=10, fps=10):
    clip = camera_clip("x", seconds, fps)
    return [path.partition("#t=")[2] for path, _ in clip.frames]


def test_a_camera_is_closed_with_its_clip(monkeypatch):
    events = []
    fake_camera(monkeypatch, [0, 0.1, 0.2], closed=lambda: events.append("closed"))
    frames = camera_clip("x").frames
    next(frames)
    assert events == []
    frames.close()
    assert events == ["closed"]


NOT_YET = BlockingIOError(35, "unavailable")


def test_a_frame_that_is_not_there_yet(monkeypatch):
    fake_camera(monkeypatch, [NOT_YET, 5.0, NOT_YET, 5.1, 5.2])
    assert frame_times() == ["0", "0.1", "0.2"]


def test_late_frames_are_not_repeated(monkeypatch):
    fake_camera(monkeypatch, [0, 0.1, 0.95, 1.0, 1.1])
    assert frame_times(fps=5) == ["0", "0.8", "1"]


def test_time_stamps_that_stand_still_end(monkeypatch):
    fake_camera(monkeypatch, repeat(3.0))
    assert frame_times(seconds=2) == ["0"]


def test_a_long_clip_has_more_time(monkeypatch):
    """The clock is two seconds later at each frame."""
    fake_camera(monkeypatch, range(20))
    assert frame_times(seconds=40, fps=1) == list(map(str, range(20)))


@pytest.mark.parametrize(
    ("stamps", "words"),
    [
        ([], "gives no frame"),
        (repeat(NOT_YET), "gives no frame in 10 seconds"),
        ([0, OSError(19, "No such device")], "stops: No such device"),
    ],
    ids=["empty", "silent", "unplugged"],
)
def test_a_camera_without_frames(monkeypatch, stamps, words):
    fake_camera(monkeypatch, stamps)
    with pytest.raises(CameraError, match=rf"camera x {words}.*connected"):
        frame_times()


# What is wrong


@pytest.mark.parametrize(
    ("platform", "cure"),
    [("linux", "/dev/video"), ("darwin", "avfoundation"), ("win32", "dshow")],
)
def test_a_camera_that_is_not_there(monkeypatch, platform, cure):
    pytest.importorskip("av")
    monkeypatch.setattr(sys, "platform", platform)
    words = rf"camera no such camera cannot be opened: .*{cure}"
    with pytest.raises(CameraError, match=words):
        list(camera_clip("no such camera").frames)


def test_a_video_that_is_not_there():
    with pytest.raises(
        FileNotFoundError, match=r"no file or folder absent\.mp4; check"
    ):
        camera_clip("absent.mp4")


def test_a_damaged_video_file(tmp_path):
    pytest.importorskip("av")
    path = tmp_path / "clip.mp4"
    path.write_bytes(bytes(999))
    words = r"^video .*clip\.mp4 cannot be opened: .*\. Copy it again from its source"
    with pytest.raises(VideoError, match=words):
        list(camera_clip(str(path)).frames)


def test_frames_have_the_path_of_a_file(video):
    pytest.importorskip("av")
    name, _ = next(camera_clip(str(video)).frames)
    assert name == f"{video}#t=0"


def test_pyav_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"\.\[video\]"):
        list(camera_clip().frames)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"seconds": 0}, r"seconds is 0.*above 0"),
        ({"seconds": float("inf")}, "seconds is inf"),
        ({"seconds": "5"}, "seconds is '5'"),
        ({"fps": 0}, r"fps is 0.*above 0"),
        ({"label": "a/b"}, "'a/b'"),
    ],
)
def test_wrong_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        camera_clip(**arguments)


def test_windows_has_no_numbers(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ValueError, match=r"device is 0.*its name.*dshow"):
        camera_clip(device=0)
