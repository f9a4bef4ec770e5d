"""A clip of a camera, with a video file or a made-up container in its place."""

import sys
from contextlib import nullcontext
from itertools import repeat
from types import SimpleNamespace

import numpy as np
import pytest
from fake_videos import frame_number, write_video

from crumb_avalanche.learner import camera
from crumb_avalanche.learner.camera import CameraError, camera_clip

av = pytest.importorskip("av")


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """3 seconds at 10 frames per second."""
    return write_video(tmp_path_factory.mktemp("video") / "clip.mp4")


@pytest.fixture
def opened(monkeypatch, video):
    """What the camera is opened with; the video is opened in its place."""
    calls = []
    real = av.open

    def fake(name, timeout, **options):
        calls.append((name, options))
        return real(str(video))

    monkeypatch.setattr(av, "open", fake)
    return calls


@pytest.mark.parametrize(
    ("platform", "device", "expected"),
    [
        ("linux", 0, ("/dev/video0", {"format": "v4l2"})),
        ("linux", "/dev/video2", ("/dev/video2", {"format": "v4l2"})),
        ("darwin", 0, ("0", {"format": "avfoundation", "options": {"framerate": "30"}})),
        ("darwin", "FaceTime", ("FaceTime", {"format": "avfoundation", "options": {"framerate": "30"}})),
        ("win32", "My Camera", ("video=My Camera", {"format": "dshow"})),
        ("win32", "video=My Camera", ("video=My Camera", {"format": "dshow"})),
    ],
)
def test_the_platform_decides_how_a_camera_is_opened(opened, monkeypatch, platform, device, expected):
    monkeypatch.setattr(sys, "platform", platform)
    clip = camera_clip(device, seconds=2, fps=2, label="mug")
    assert opened == [], "opened when the first frame is taken"
    frames = list(clip.frames)
    assert opened == [expected]
    assert (clip.path, clip.label) == (f"camera {device}", "mug")
    assert [path for path, _ in frames] == [f"camera {device}#t={time}" for time in ("0", "0.5", "1", "1.5")]
    assert [frame_number(image) for _, image in frames] == [0, 5, 10, 15]


@pytest.mark.parametrize(
    ("seconds", "fps", "expected"),
    [(1, 10, list(range(10))), (0.5, 50, [0, 1, 2, 3, 4]), (10, 1, [0, 10, 20]), (1, 3, [0, 4, 7]), (0.01, 1, [0])],
)
def test_a_file_in_place_of_a_camera(video, seconds, fps, expected):
    frames = list(camera_clip(str(video), seconds, fps).frames)
    assert [frame_number(image) for _, image in frames] == expected
    assert all(image.mode == "RGB" and image.size == (64, 48) for _, image in frames)


def test_the_camera_is_closed_when_the_clip_is_left(monkeypatch):
    events = []
    fake_camera(monkeypatch, [0, 0.1, 0.2], closed=lambda: events.append("closed"))
    frames = camera_clip("x").frames
    next(frames)
    assert events == []
    frames.close()
    assert events == ["closed"]


def fake_camera(monkeypatch, stamps, closed=lambda: None):
    """A camera whose frames have these time stamps; an exception among them is raised there."""
    stamps = iter(stamps)
    picture = av.VideoFrame.from_ndarray(np.zeros((4, 6, 3), np.uint8), format="rgb24")

    def decode(stream):
        for stamp in stamps:
            if isinstance(stamp, Exception):
                raise stamp
            parts = {name: getattr(picture, name) for name in ("side_data", "colorspace", "format", "to_image")}
            yield SimpleNamespace(time=stamp, **parts)

    class Container(nullcontext):
        streams = SimpleNamespace(video=[SimpleNamespace(average_rate=None)])

        def __exit__(self, *error):
            closed()

    Container.decode = staticmethod(decode)
    monkeypatch.setattr(av, "open", lambda name, timeout, **options: Container())
    monkeypatch.setattr(camera.time, "sleep", lambda seconds: None)


def times(seconds=10, fps=10):
    return [path.partition("#t=")[2] for path, _ in camera_clip("x", seconds, fps).frames]


NOT_YET = BlockingIOError(35, "unavailable")


@pytest.mark.parametrize(
    ("stamps", "options", "expected"),
    [
        ([NOT_YET, 5.0, NOT_YET, 5.1, 5.2], {}, ["0", "0.1", "0.2"]),  # asked again
        ([0, 0.1, 0.95, 1.0, 1.1], {"fps": 5}, ["0", "0.8", "1"]),  # late frames are not repeated
        (repeat(3.0), {"seconds": 2}, ["0"]),  # time stamps that stand still end too
        ([], {}, "gives no frame"),
        (repeat(NOT_YET), {}, "gives no frame in 10 seconds"),
        ([0, OSError(19, "No such device")], {}, "stops: No such device"),
    ],
)
def test_frames_come_at_their_time_and_end(monkeypatch, stamps, options, expected):
    fake_camera(monkeypatch, stamps)
    clock = iter(range(1000))
    monkeypatch.setattr(camera.time, "monotonic", lambda: next(clock))
    if isinstance(expected, list):
        assert times(**options) == expected
    else:
        with pytest.raises(CameraError, match=rf"camera x {expected}.*connected"):
            times(**options)


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_a_camera_that_is_not_there(monkeypatch, platform):
    monkeypatch.setattr(sys, "platform", platform)
    cure = {"linux": "/dev/video", "darwin": "avfoundation", "win32": "dshow"}[platform]
    with pytest.raises(CameraError, match=rf"camera no such camera cannot be opened: .*{cure}"):
        list(camera_clip("no such camera").frames)


def test_pyav_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"\.\[video\]"):
        list(camera_clip().frames)


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ({"seconds": 0}, r"seconds is 0.*above 0"),
        ({"seconds": float("inf")}, "seconds is inf"),
        ({"seconds": "5"}, "seconds is '5'"),
        ({"fps": 0}, r"fps is 0.*above 0"),
        ({"label": "a/b"}, "'a/b'"),
        ({"device": 0}, r"device is 0.*its name.*dshow"),
    ],
)
def test_arguments(monkeypatch, arguments, fact):
    monkeypatch.setattr(sys, "platform", "win32" if "device" in arguments else sys.platform)
    with pytest.raises(ValueError, match=fact):
        camera_clip(**arguments)
