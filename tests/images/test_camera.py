"""A clip of a camera, with a video file or a made-up container in its place, and videos as clips."""

import os
import re
import sys
from fractions import Fraction
from itertools import chain, repeat
from types import SimpleNamespace

import numpy as np
import pytest
from clip_trees import read, save
from fake_videos import frame_number, write_video

from benchmarks_toybox_ilab.datasets.clip_folder import ClipFolderFrames
from benchmarks_toybox_ilab.tables.frame import BadFrameError
from crumb_avalanche.images import camera, sources
from crumb_avalanche.images.camera import CameraError, camera_clip
from crumb_avalanche.images.sources import clips_of


@pytest.mark.parametrize(
    ("platform", "device", "expected"),
    [
        ("linux", 0, ("/dev/video0", {"format": "v4l2"})),
        ("linux", "/dev/video2", ("/dev/video2", {"format": "v4l2"})),
        (
            "darwin",
            0,
            ("0", {"format": "avfoundation", "options": {"framerate": "30"}}),
        ),
        (
            "darwin",
            "FaceTime",
            ("FaceTime", {"format": "avfoundation", "options": {"framerate": "30"}}),
        ),
        ("win32", "My Camera", ("video=My Camera", {"format": "dshow"})),
        ("win32", "video=My Camera", ("video=My Camera", {"format": "dshow"})),
    ],
)
def test_the_platform_decides_how_a_camera_is_opened(
    video, monkeypatch, platform, device, expected
):
    opened, av = [], pytest.importorskip("av")

    def fake(name, timeout, real=av.open, **options):
        opened.append((name, options))
        return real(str(video))  # in place of the camera

    monkeypatch.setattr(av, "open", fake)
    monkeypatch.setattr(sys, "platform", platform)
    clip = camera_clip(device, seconds=2, fps=2, label="mug")
    assert opened == [], "opened when the first frame is taken"
    frames = list(clip.frames)
    assert opened == [expected]
    assert (clip.path, clip.label) == (f"camera {device}", "mug")
    assert [path for path, _ in frames] == [
        f"camera {device}#t={time}" for time in ("0", "0.5", "1", "1.5")
    ]
    assert [frame_number(image) for _, image in frames] == [0, 5, 10, 15]


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
    stamps, av = iter(stamps), pytest.importorskip("av")

    def decode(stream):
        for stamp in stamps:
            if isinstance(stamp, Exception):
                raise stamp
            frame = av.VideoFrame.from_ndarray(
                np.zeros((4, 6, 3), np.uint8), format="rgb24"
            )
            frame.pts, frame.time_base = round(1000 * stamp), Fraction(1, 1000)
            yield frame

    stream = SimpleNamespace(average_rate=None, sample_aspect_ratio=None)
    streams = SimpleNamespace(video=[stream])
    container = SimpleNamespace(streams=streams, decode=decode, close=closed)
    monkeypatch.setattr(av, "open", lambda name, timeout, **options: container)
    monkeypatch.setattr(camera.time, "sleep", lambda seconds: None)


def times(seconds=10, fps=10):
    return [
        path.partition("#t=")[2] for path, _ in camera_clip("x", seconds, fps).frames
    ]


NOT_YET = BlockingIOError(35, "unavailable")


@pytest.mark.parametrize(
    ("stamps", "options", "expected"),
    [
        ([NOT_YET, 5.0, NOT_YET, 5.1, 5.2], {}, ["0", "0.1", "0.2"]),  # asked again
        (
            [0, 0.1, 0.95, 1.0, 1.1],
            {"fps": 5},
            ["0", "0.8", "1"],
        ),  # late frames are not repeated
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
    pytest.importorskip("av")
    monkeypatch.setattr(sys, "platform", platform)
    cure = {"linux": "/dev/video", "darwin": "avfoundation", "win32": "dshow"}[platform]
    with pytest.raises(
        CameraError, match=rf"camera no such camera cannot be opened: .*{cure}"
    ):
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
    monkeypatch.setattr(
        sys, "platform", "win32" if "device" in arguments else sys.platform
    )
    with pytest.raises(ValueError, match=fact):
        camera_clip(**arguments)


def numbers(source, **options):
    return [
        [frame_number(image) for _, image in clip.frames]
        for clip in clips_of(source, **options)
    ]


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """3 seconds at 10 frames per second."""
    pytest.importorskip("av")
    return write_video(tmp_path_factory.mktemp("video") / "clip.mp4", faststart=True)


def test_a_video_is_sampled_without_a_frame_given_twice(video, tmp_path):
    assert numbers(video) == [[*range(0, 30, 2)]]  # a short one 5 times a second
    assert numbers(write_video(tmp_path / "slow.mp4", rate=2)) == [[*range(6)]]
    assert read(video, video.parent)[0][2][:3] == [
        f"clip.mp4#t={time}" for time in ("0", "0.2", "0.4")
    ]
    assert os.listdir(video.parent) == ["clip.mp4"], "nothing is written beside a video"


@pytest.mark.parametrize(
    ("seconds", "rate"), [(0, 5), (3, 5), (8, 2.5), (20, 1), (3600, 1)]
)
def test_the_rate_of_a_video_depends_on_its_length(
    monkeypatch, tmp_path, seconds, rate
):
    monkeypatch.setattr(sources, "seconds_of", lambda video, most: seconds)
    assert sources._default_rate(tmp_path) == pytest.approx(rate, rel=0.01)


def test_sound_that_lasts_longer_does_not_reduce_the_frames(tmp_path):
    pytest.importorskip("av")
    path = write_video(tmp_path / "a.mkv", seconds=6, sound=12)
    assert numbers(path) == [list(range(0, 60, 3))]  # 20 of 6 seconds


def test_videos_and_photos_are_all_taken_and_frames_are_those_of_a_run(tmp_path):
    pytest.importorskip("av")
    write_video(tmp_path / "mug" / "10.mp4", size=(720, 540))
    for name in ("cup/object/2.MP4", "cup/object/.hidden.mp4"):
        write_video(tmp_path / name)
    save(tmp_path / "cup" / "a" / "x.png")
    clips = list(clips_of(tmp_path))
    frames = [[np.asarray(image) for _, image in clip.frames] for clip in clips]
    assert [
        (os.path.relpath(clip.path, tmp_path), clip.label, len(some))
        for clip, some in zip(clips, frames)
    ] == [
        *[
            ("cup/a", "cup", 1),
            ("cup/object/2.MP4", "cup", 15),
            ("mug/10.mp4", "mug", 15),
        ],
    ]
    table = ClipFolderFrames(tmp_path, held_out=0, fps=5)
    assert frames[2][0].shape == (512, 683, 3) and len(table) == 31
    assert all(
        np.array_equal(image, table.read(row))
        for row, image in enumerate(chain(*frames))
    )


def test_bad_videos(video, tmp_path):
    whole = video.read_bytes()
    cut = write_video(tmp_path / "1_cut.mp4", seconds=8, faststart=True)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size * 3 // 4])
    (tmp_path / "2_text.mp4").write_bytes(b"no video")
    (tmp_path / "3_empty.mov").write_bytes(b"")
    (tmp_path / "4.mp4").write_bytes(whole)
    bad = []
    found = numbers(tmp_path, on_bad="skip", report=bad.append)
    assert 0 < len(found[0]) < 40 and found == [
        [*range(0, 80, 2)][: len(found[0])],
        [],
        [],
        [*range(0, 30, 2)],
    ]
    assert [os.path.basename(entry.path) for entry in bad] == [
        "1_cut.mp4",
        "2_text.mp4",
        "3_empty.mov",
    ]
    assert re.search(r"(truncated|cannot be decoded) after \d", bad[0].reason)
    assert "cannot be opened" in bad[1].reason and "0 bytes" in bad[2].reason
    for path in ("1_cut.mp4", "2_text.mp4", "3_empty.mov"):
        with pytest.raises(BadFrameError, match=rf"{path}: .*on_bad='skip'"):
            numbers(tmp_path / path)


def test_a_video_needs_pyav(tmp_path, monkeypatch):
    (tmp_path / "a.mp4").write_bytes(b"no video")
    save(tmp_path / "b.png")
    monkeypatch.setitem(sys.modules, "av", None)
    bad = []
    assert [
        len(frames) for _, _, frames in read(tmp_path, on_bad="skip", report=bad.append)
    ] == [1, 0]
    assert 'pip install -e ".[video]"' in bad[0].reason
    with pytest.raises(ImportError, match="PyAV"):
        read(tmp_path)
