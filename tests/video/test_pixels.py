"""Videos as players show them: pixels that are not square, and two fields a frame."""

import io
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from fake_videos import write_frames, write_sound, write_video
from PIL import Image, ImageDraw

from benchmarks_toybox_ilab.video import interlaced
from benchmarks_toybox_ilab.video.interlaced import Deinterlacer
from benchmarks_toybox_ilab.video.sampling import VideoError, sampled_frames

pytest.importorskip("av")

ONE = 1 << 16
CLOCKWISE = (0, ONE, 0, -ONE, 0, 0, 0, 0, 1 << 30)
# Encoders' options with which the frames are marked as interlaced.
INTERLACED = {
    "a.mpg": ("mpeg2video", {"flags": "+ildct+ilme"}),
    "a.mp4": ("libx264", {"x264-params": "tff=1", "crf": "1"}),
    "a.mkv": ("libx264", {"x264-params": "bff=1", "crf": "1"}),
    "a.ts": ("mpeg2video", {"flags": "+ildct+ilme"}),
    "a.mts": ("libx264", {"x264-params": "tff=1", "crf": "1"}),
    "a.avi": ("mpeg2video", {"flags": "+ildct+ilme"}),
    "without stamps.h264": ("libx264", {"x264-params": "tff=1", "crf": "1"}),
}


def squeezed_circle(width, height):
    """Return a circle as a camera stores it whose pixels are not square."""
    canvas = Image.new("RGB", (192, 192))
    ImageDraw.Draw(canvas).ellipse((20, 20, 172, 172), "white")
    return np.asarray(canvas.resize((width, height)))


def sides_of_white(image):
    """Return width and height of the white shape in an image."""
    left, upper, right, lower = image.convert("L").point(lambda x: x > 128).getbbox()
    return right - left, lower - upper


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi"])
@pytest.mark.parametrize(
    ("stored", "aspect"),
    [
        ((96, 192), Fraction(2)),
        ((192, 96), Fraction(1, 2)),
        ((144, 192), Fraction(4, 3)),
    ],
)
def test_a_circle_is_round(tmp_path, name, stored, aspect):
    codec = "mpeg4" if name == "a.avi" else "libx264"
    path = write_frames(
        tmp_path / name, [squeezed_circle(*stored)], aspect=aspect, codec=codec
    )
    (image,) = sampled_frames(path, 1)
    assert image.size == (192, 192)
    assert sides_of_white(image) == pytest.approx((153, 153), abs=2)


@pytest.mark.parametrize(("size", "expected"), [(96, (96, 96)), ((64, 48), (64, 48))])
def test_a_circle_is_round_at_a_size(tmp_path, size, expected):
    circle = squeezed_circle(96, 192)
    path = write_frames(tmp_path / "a.mp4", [circle], aspect=Fraction(2))
    (image,) = sampled_frames(path, 1, size)
    assert image.size == expected


def test_pixels_are_widened_before_the_turn(tmp_path):
    picture = np.zeros((64, 96, 3), np.uint8)
    path = write_frames(
        tmp_path / "a.mp4", [picture], aspect=Fraction(2), matrix=CLOCKWISE
    )
    (image,) = sampled_frames(path, 1)
    assert image.size == (64, 192)


def test_an_aspect_that_no_camera_has(tmp_path):
    path = write_video(tmp_path / "a.mp4", seconds=0.1, aspect=Fraction(200))
    (image,) = sampled_frames(path, 1)
    assert image.size == (64, 48)


def moving_bar(frames=12):
    """Return frames of which the odd lines show a bar a moment later."""
    pictures = []
    for number in range(frames):
        picture = np.full((64, 96, 3), 30, np.uint8)
        left = 4 + 5 * number
        picture[0::2, left : left + 12] = 220
        picture[1::2, left + 3 : left + 15] = 220
        pictures.append(picture)
    return pictures


def combs(image):
    """Return how much lines differ from those beside them."""
    pixels = np.asarray(image, float)[..., 1]
    between = (pixels[:-2] + pixels[2:]) / 2
    return np.abs(pixels[1:-1] - between).mean()


@pytest.mark.parametrize("name", INTERLACED)
def test_interlaced_video_has_no_combs(tmp_path, name):
    codec, options = INTERLACED[name]
    path = write_frames(
        tmp_path / name, moving_bar(), codec=codec, options=options, rate=25
    )
    images = list(sampled_frames(path, 25))
    assert len(images) == 12
    assert max(map(combs, images)) < 2


@pytest.mark.parametrize("name", INTERLACED)
def test_deinterlaced_frames_keep_their_times(tmp_path, name):
    codec, options = INTERLACED[name]
    path = write_frames(
        tmp_path / name, moving_bar(), codec=codec, options=options, rate=25
    )
    images = list(sampled_frames(path, 5))
    columns = [np.asarray(image, float)[32, :, 1] for image in images]
    bars = [np.flatnonzero(column > 128).mean() for column in columns]
    # The frames 0, 5 and 10.
    assert np.diff(bars).tolist() == pytest.approx([25, 25], abs=1.5)


def test_combs_of_progressive_video_stay(tmp_path):
    path = write_frames(tmp_path / "a.mp4", moving_bar(), rate=25)
    assert min(map(combs, sampled_frames(path, 25))) > 8


@pytest.mark.parametrize(
    ("height", "is_filtered"), [(2, False), (3, False), (4, True), (48, True)]
)
def test_pictures_of_few_lines_are_not_filtered(monkeypatch, height, is_filtered):
    filtered = []
    frame = SimpleNamespace(
        width=16,
        height=height,
        format=SimpleNamespace(name="yuv420p"),
        interlaced_frame=True,
    )
    graph = SimpleNamespace(push=filtered.append, pull=lambda: frame)
    monkeypatch.setattr(interlaced, "_deinterlacing_graph", lambda frame: graph)
    assert list(Deinterlacer()(0.5, frame)) == [(0.5, frame)]
    assert bool(filtered) == is_filtered


def test_one_interlaced_frame(tmp_path):
    codec, options = INTERLACED["a.mpg"]
    path = write_frames(
        tmp_path / "a.mpg", moving_bar(1), codec=codec, options=options, rate=25
    )
    assert len(list(sampled_frames(path, 25))) == 1


def test_the_cover_of_a_song_is_no_video(tmp_path):
    cover = io.BytesIO()
    Image.new("RGB", (32, 32)).save(cover, "PNG")
    path = write_sound(tmp_path / "a.mkv", cover.getvalue())
    with pytest.raises(VideoError, match="no video stream, but only a cover, audio;"):
        next(sampled_frames(path, 1))
