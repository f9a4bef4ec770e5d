"""Colours of videos: HDR, wide gamut, ranges and matrices, and transparency."""

from fractions import Fraction

import numpy as np
import pytest

from benchmarks_toybox_ilab.video.colours import srgb
from benchmarks_toybox_ilab.video.sampling import VideoError, picture, sampled_frames

av = pytest.importorskip("av")

# Parts of the light of a white page, and what they are in 8 bits of sRGB.
LIGHT = [0, 0.05, 0.18, 0.5, 1, 4]
SEEN = [0, 63, 118, 188, 255, 255]
# Signals of the same light in HDR, where the page has 203 nits: by the formulas of
# ITU-R BT.2100.
PQ = [0, 0.3009, 0.4109, 0.5096, 0.5807, 0.7291]
HLG = [0, 0.2558, 0.4362, 0.6323, 0.75, 0.9681]
TRANSFERS = {16: PQ, 18: HLG}


def write(path, codec, pixel_format, frames, **colours):
    """Write frames, (H, W, C) arrays of any pixel format, with what the file says of
    their colours.
    """
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10)
        stream.height = frames[0].height
        stream.width = frames[0].width
        stream.pix_fmt = pixel_format
        for name, value in colours.items():
            setattr(stream.codec_context, name, value)
        for number, frame in enumerate(frames):
            frame.pts = number
            frame.time_base = Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def greys(signals, transfer):
    """A frame of 10 bits of greys beside each other, in the limited range, with BT.2020
    primaries.
    """
    frame = av.VideoFrame(32 * len(signals), 32, "yuv420p10le")
    luma = [64 + 876 * signal for signal in signals]
    grey = [512] * len(signals)
    for plane, values, width in zip(frame.planes, (luma, grey, grey), (32, 16, 16)):
        line = np.repeat(np.rint(values).astype(np.uint16), width)
        pixels = np.zeros((plane.height, plane.line_size // 2), np.uint16)
        pixels[:, : len(line)] = line
        plane.update(pixels.tobytes())
    frame.colorspace = 9
    frame.color_range = 1
    frame.color_trc = transfer
    frame.color_primaries = 9
    return frame


@pytest.mark.parametrize("transfer", [16, 18])
def test_hdr_looks_as_on_a_page(tmp_path, transfer):
    frame = greys(TRANSFERS[transfer], transfer)
    seen = {
        "colorspace": 9,
        "color_range": 1,
        "color_trc": transfer,
        "color_primaries": 9,
    }
    path = write(tmp_path / "a.mkv", "ffv1", "yuv420p10le", [frame], **seen)
    (image,) = sampled_frames(path, 1)
    assert np.asarray(image, int)[16, 16::32] == pytest.approx(
        np.repeat(SEEN, 3).reshape(-1, 3), abs=2
    )


def test_colours_of_hdr_and_of_wide_gamut():
    # The red of sRGB in BT.2020, linear: (0.6274, 0.0691, 0.0164); its signals by the
    # formulas.
    red = np.rint(np.array([[[0.5325, 0.327, 0.2201]]]) * 65535).astype(np.uint16)
    assert srgb(red, 16, 9)[0, 0].tolist() == pytest.approx([255, 0, 0], abs=6)
    # Of Display P3, with sRGB's curve: (0.9175, 0.2003, 0.1386).
    red = np.rint(np.array([[[0.9175, 0.2003, 0.1386]]]) * 65535).astype(np.uint16)
    assert srgb(red, 13, 12)[0, 0].tolist() == pytest.approx([255, 0, 0], abs=2)
    assert srgb(red, 13, 1)[0, 0].tolist() == [234, 51, 35]  # as it is
    grey = np.full((1, 1, 3), 32768, np.uint16)
    assert srgb(grey, 14, 9)[0, 0].tolist() == [128] * 3


@pytest.mark.parametrize("transfer", [16, 18])
def test_hdr_of_unknown_primaries_has_those_of_bt2020(transfer):
    red = np.rint(np.array([[[0.5325, 0.327, 0.2201]]]) * 65535).astype(np.uint16)
    assert srgb(red, transfer, 2).tolist() == srgb(red, transfer, 9).tolist()
    assert srgb(red, transfer, 1).tolist() != srgb(red, transfer, 9).tolist()


@pytest.mark.parametrize(
    ("matrix", "full", "expected"),
    # Luma 100, Cb -38, Cr +72 of 219 and 224 steps from 16, or of 255.
    [
        (1, False, (226.9, 67.5, 17.5)),
        (5, False, (212.7, 53.9, 21.2)),
        (1, True, (213.4, 73.4, 29.5)),
        (5, True, (200.9, 61.7, 32.7)),
        (9, False, (218.7, 58.1, 16.4)),
    ],
)
def test_matrices_and_ranges(matrix, full, expected):
    planes = np.full((72, 64), 100, np.uint8)
    planes[48:60] = 90
    planes[60:] = 200
    frame = av.VideoFrame.from_ndarray(planes, format="yuv420p")
    frame.colorspace = matrix
    frame.color_range = 2 if full else 1
    assert np.asarray(picture(frame, None))[20, 20] == pytest.approx(expected, abs=3)


@pytest.mark.parametrize(
    ("name", "codec", "pixel_format"),
    [("a.mov", "png", "rgba"), ("a.mkv", "ffv1", "yuva420p")],
)
def test_transparency_is_laid_on_white(tmp_path, name, codec, pixel_format):
    pixels = np.zeros((48, 64, 4), np.uint8)
    pixels[:, :32] = (200, 0, 0, 255)
    pixels[:, 32:] = (0, 180, 90, 0)  # colours that nobody sees
    frame = av.VideoFrame.from_ndarray(pixels, format="rgba")
    frames = [frame.reformat(format=pixel_format) for _ in range(3)]
    path = write(tmp_path / name, codec, pixel_format, frames)
    images = list(sampled_frames(path, 10))
    colours = [image.getpixel((10, 24)) for image in images]
    hidden = [image.getpixel((54, 24)) for image in images]
    assert np.array(colours) == pytest.approx(np.array([(200, 0, 0)] * 3), abs=3)
    assert hidden == [(255, 255, 255)] * 3


def test_hdr_is_refused_where_it_would_be_read_wrong(tmp_path, monkeypatch):
    path = write(
        tmp_path / "a.mkv", "ffv1", "yuv420p10le", [greys(PQ, 16)], color_trc=16
    )

    class OldFrame:
        pass

    monkeypatch.setattr(av, "VideoFrame", OldFrame)
    with pytest.raises(
        VideoError, match=r"is HDR, which PyAV .* pip install -U av, or save it as SDR"
    ):
        next(sampled_frames(path, 1))
