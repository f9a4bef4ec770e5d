"""Pipes are refused, and large images decoded in a bounded memory."""

import os

import pytest
from PIL import Image

from benchmarks_toybox_ilab.tables import image as module
from benchmarks_toybox_ilab.tables.image import read_image


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "frame.png")
    with pytest.raises(ValueError, match="not a regular file"):
        read_image(tmp_path / "frame.png")
    with pytest.raises(ValueError, match="not a regular file"):
        read_image(os.devnull)


def test_a_large_jpeg_is_reduced_and_a_large_png_refused(tmp_path, monkeypatch):
    image = Image.new("RGB", (200, 100), (200, 30, 30))
    image.save(tmp_path / "a.jpg")
    image.save(tmp_path / "a.png")
    monkeypatch.setattr(module, "MOST_PIXELS", 20_000)
    assert read_image(tmp_path / "a.jpg").size == read_image(tmp_path / "a.png").size == (200, 100)
    monkeypatch.setattr(module, "MOST_PIXELS", 5_000)
    small = read_image(tmp_path / "a.jpg")
    assert small.size == (100, 50) and small.getpixel((50, 25)) == pytest.approx((200, 30, 30), abs=3)
    with pytest.raises(ValueError, match="200 x 100 pixels, more than 5,000 pixels; reduce it, or save it as JPEG"):
        read_image(tmp_path / "a.png")
    monkeypatch.setattr(module, "MOST_PIXELS", 330)
    assert read_image(tmp_path / "a.jpg").size == (25, 13)
    monkeypatch.setattr(module, "MOST_PIXELS", 300)
    with pytest.raises(ValueError, match="200 x 100 pixels, more than 300 pixels"):
        read_image(tmp_path / "a.jpg")


def test_what_pillow_takes_for_an_attack_is_refused(tmp_path, monkeypatch):
    Image.new("L", (100, 100)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ValueError, match=r"far more than .* pixels; reduce it"):
        read_image(tmp_path / "a.png")
