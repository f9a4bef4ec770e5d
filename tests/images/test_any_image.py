"""Images of every format, mode, depth, orientation and alpha end in the right pixels, or damaged ones in one line.

What is expected is computed from the numbers that were drawn, by other means than the
reader's.
"""

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numbers
from PIL import Image
from raw_images import chunk, write_png, write_tiff

from benchmarks_toybox_ilab.tables.frame import BadFrameError
from crumb_avalanche.images.sources import clips_of

# Format: channels that it may have (1 grey, 2 with alpha, 3 colours, 4 with alpha), and
#     bits of a channel.
FILES = {
    "png": ((1, 2, 3, 4), (8, 16)),
    "deep.png": ((1,), (10, 12, 14)),
    "few.png": ((1,), (1, 2, 4)),
    "palette.png": ((3, 4), (8,)),
    "tif": ((1, 3, 4), (8, 16)),
    "deep.tif": ((1,), (10, 12, 14)),
    "big.tif": ((1, 3, 4), (8, 16)),
    "deflate.tif": ((1, 3, 4), (8, 16)),
    "gif": ((3, 4), (8,)),
    "webp": ((3, 4), (8,)),
    "bmp": ((1, 3), (8,)),
    "tga": ((1, 3, 4), (8,)),
    "pgm": ((1,), (8, 16)),
    "jp2": ((1, 3, 4), (8,)),
}
MEMORY = {
    "array": ((3, 4), (8, 10, 16)),
    "tensor": ((3, 4), (8, 12, 16)),
    "pil": ((1, 2, 3, 4), (8,)),
    "deep pil": ((1,), (10, 16)),
}
TURNED = {  # EXIF orientation: how a viewer turns the stored pixels
    1: lambda pixels: pixels,
    2: np.fliplr,
    3: lambda pixels: np.rot90(pixels, 2),
    4: np.flipud,
    5: lambda pixels: np.swapaxes(pixels, 0, 1),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: np.rot90(np.swapaxes(pixels, 0, 1), 2),
    8: np.rot90,
}


@st.composite
def images(draw, name):
    """Pixels of a kind of image, bits of a channel, orientation, and the position of a byte to damage or None."""
    channels, depths = (FILES | MEMORY)[name]
    bits, count = draw(st.sampled_from(depths)), draw(st.sampled_from(channels))
    shape = (draw(st.integers(1, 5)), draw(st.integers(1, 5)), count)
    pixels = draw(
        numbers.arrays(np.uint16, shape, elements=st.integers(0, 2**bits - 1))
    )
    pixels[0, 0] = (
        2**bits - 1
    )  # without a bright pixel nothing says how many bits are used
    if name == "gif":  # written with few colours
        pixels = np.where(pixels > 127, np.uint16(255), np.uint16(0))
    turns = name in (
        "png",
        "deep.png",
        "few.png",
        "tif",
        "deep.tif",
        "big.tif",
        "deflate.tif",
        "webp",
    )
    orientation = draw(st.sampled_from(list(TURNED))) if turns else 1
    place = draw(st.integers(-500, 500)) if name in FILES else -1
    return pixels, bits, orientation, place if place >= 0 else None


def expected(pixels, bits, orientation):
    """The upright RGB pixels on white, as floating-point numbers."""
    values = pixels >> (bits - 8) if bits > 8 else pixels * 255 // (2**bits - 1)
    values = TURNED[orientation](values.astype(float))
    colours, alpha = values, 255.0
    if values.shape[2] in (2, 4):
        colours, alpha = values[..., :-1], values[..., -1:]
    colours = colours * alpha / 255 + 255 - alpha
    return np.broadcast_to(colours, (*colours.shape[:2], 3))


def written(folder, name, pixels, bits, orientation):
    """The source: a file, or an image in memory."""
    kind = name.rpartition(".")[2]
    path = folder / (
        "image.jpg" if kind == "gif" else f"image.{kind}"
    )  # what counts is the content
    height, width, channels = pixels.shape
    if kind == "png" and name != "palette.png":
        exif = chunk(
            b"eXIf",
            b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0"
            + struct.pack("<HHI", orientation, 0, 0),
        )
        return write_png(path, pixels, bits if bits <= 8 else 16, exif)
    if kind == "tif":
        shallow = pixels.astype(np.uint8 if bits == 8 else np.uint16)
        return write_tiff(
            path,
            shallow,
            ">" if name == "big.tif" else "<",
            name == "deflate.tif",
            {274: orientation},
        )
    if name == "pgm" and bits == 16:
        path.write_bytes(
            b"P5 %d %d 65535\n" % (width, height) + pixels.astype(">u2").tobytes()
        )
        return path
    if name == "array":
        return pixels.astype(np.uint8) if bits == 8 else pixels
    if name == "tensor":
        shallow = pixels.astype(np.uint8) if bits == 8 else pixels
        return torch.from_numpy(np.moveaxis(shallow, -1, 0).copy())
    if name == "deep pil":
        return Image.fromarray(pixels[..., 0])
    image = Image.fromarray(
        pixels.astype(np.uint8)[..., 0] if channels == 1 else pixels.astype(np.uint8)
    )
    if name == "pil":
        return image
    if name == "palette.png":
        colours, places = np.unique(
            pixels.reshape(-1, channels), axis=0, return_inverse=True
        )
        image = Image.fromarray(places.reshape(height, width).astype(np.uint8), "P")
        image.putpalette(colours[:, :3].astype(np.uint8).tobytes())
        alpha = (
            {"transparency": colours[:, 3].astype(np.uint8).tobytes()}
            if channels == 4
            else {}
        )
        image.save(path, **alpha)
        return path
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {
        "webp": {"lossless": True, "exact": True, "exif": exif},
        "jp2": {"irreversible": False},
    }
    image.save(
        path,
        {"jp2": "JPEG2000", "pgm": "PPM"}.get(kind, kind.upper()),
        **options.get(kind, {}),
    )
    return path


@pytest.mark.parametrize("name", [*FILES, *MEMORY])
@given(data=st.data())
@settings(max_examples=settings.default.max_examples // 5)  # of 18 kinds
def test_an_image_is_read_right_or_refused(tmp_path_factory, name, data):
    pixels, bits, orientation, damage = data.draw(images(name))
    source = written(tmp_path_factory.mktemp("image"), name, pixels, bits, orientation)
    if damage is not None:
        data = bytearray(source.read_bytes())
        data[damage % len(data)] ^= 1 + damage % 255
        source.write_bytes(data)
    try:
        (frame,) = [
            np.asarray(image) for clip in clips_of(source) for _, image in clip.frames
        ]
    except BadFrameError as error:
        assert damage is not None and "\n" not in str(error) and "image." in str(error)
        return
    assert frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3
    if damage is None:
        assert frame == pytest.approx(expected(pixels, bits, orientation), abs=1)
