"""Images of every format, mode, depth, orientation and alpha.

They end in the right pixels, damaged ones in one line. What is expected is computed
from the numbers that were drawn, by other means than the reader's.
"""

import struct
from dataclasses import dataclass

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

# Of each format the channels that it may have (1 grey, 2 with alpha, 3 colours, 4 with
# alpha), and the bits of a channel.
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


# Formats whose file has an orientation.
WITH_ORIENTATION = {
    "png",
    "deep.png",
    "few.png",
    "tif",
    "deep.tif",
    "big.tif",
    "deflate.tif",
    "webp",
}


@dataclass(frozen=True)
class Drawn:
    """An image and what it is written as.

    Attributes:
        name: of the format.
        pixels: `(H, W, channels)` uint16, with `bits` in use.
        bits: of a channel.
        orientation: of EXIF.
        damage: position of a byte to change, modulo the length of the file, or None.
    """

    name: str
    pixels: np.ndarray
    bits: int
    orientation: int
    damage: int | None

    @property
    def shallow(self):
        """The pixels with the fewest bytes that hold them."""
        if self.bits == 8:
            return self.pixels.astype(np.uint8)
        return self.pixels


@st.composite
def images(draw, name):
    """Images of a format."""
    channels, depths = (FILES | MEMORY)[name]
    bits = draw(st.sampled_from(depths))
    shape = st.tuples(st.integers(1, 5), st.integers(1, 5), st.sampled_from(channels))
    levels = st.integers(0, 2**bits - 1)
    pixels = draw(numbers.arrays(np.uint16, draw(shape), elements=levels))
    # Without a bright pixel nothing says how many bits are used.
    pixels[0, 0] = 2**bits - 1
    if name == "gif":  # written with few colours
        pixels = np.where(pixels > 127, np.uint16(255), np.uint16(0))
    orientation = 1
    if name in WITH_ORIENTATION:
        orientation = draw(st.sampled_from(list(TURNED)))
    damage = None
    if name in FILES:
        damage = draw(st.none() | st.integers(0, 500))
    return Drawn(name, pixels, bits, orientation, damage)


def expected(drawn):
    """The upright RGB pixels on white, as floating-point numbers."""
    if drawn.bits > 8:
        values = drawn.pixels >> (drawn.bits - 8)
    else:
        values = drawn.pixels * 255 // (2**drawn.bits - 1)
    values = TURNED[drawn.orientation](values.astype(float))
    colours = values
    if values.shape[2] in (2, 4):
        alpha = values[..., -1:] / 255
        colours = values[..., :-1] * alpha + 255 * (1 - alpha)
    return np.broadcast_to(colours, (*colours.shape[:2], 3))


# Images in memory


def pillow_image(pixels):
    """A PIL image of 8 bits, or of 16 in one channel."""
    if pixels.shape[2] == 1:
        return Image.fromarray(pixels[..., 0])
    return Image.fromarray(pixels)


def in_memory(drawn):
    if drawn.name == "array":
        return drawn.shallow
    if drawn.name == "tensor":
        return torch.from_numpy(np.moveaxis(drawn.shallow, -1, 0).copy())
    return pillow_image(drawn.shallow)


# Files


def orientation_chunk(orientation):
    """EXIF with one entry in a chunk of a PNG file."""
    header = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0"
    return chunk(b"eXIf", header + struct.pack("<HHI", orientation, 0, 0))


def write_raw_png(path, drawn):
    bits = drawn.bits if drawn.bits <= 8 else 16
    write_png(path, drawn.pixels, bits, orientation_chunk(drawn.orientation))


def write_raw_tiff(path, drawn):
    order = ">" if drawn.name == "big.tif" else "<"
    deflate = drawn.name == "deflate.tif"
    write_tiff(path, drawn.shallow, order, deflate, {274: drawn.orientation})


def write_pgm(path, drawn):
    if drawn.bits == 8:
        pillow_image(drawn.shallow).save(path, "PPM")
        return
    height, width, _ = drawn.pixels.shape
    header = b"P5 %d %d 65535\n" % (width, height)
    path.write_bytes(header + drawn.pixels.astype(">u2").tobytes())


def write_palette_png(path, drawn):
    height, width, channels = drawn.pixels.shape
    rows = drawn.shallow.reshape(-1, channels)
    colours, indices = np.unique(rows, axis=0, return_inverse=True)
    image = Image.fromarray(indices.reshape(height, width).astype(np.uint8), "P")
    image.putpalette(colours[:, :3].tobytes())
    options = {}
    if channels == 4:
        options["transparency"] = colours[:, 3].tobytes()
    image.save(path, **options)


def write_webp(path, drawn):
    exif = Image.Exif()
    exif[0x0112] = drawn.orientation
    image = pillow_image(drawn.shallow)
    image.save(path, "WEBP", lossless=True, exact=True, exif=exif)


def write_jpeg_2000(path, drawn):
    pillow_image(drawn.shallow).save(path, "JPEG2000", irreversible=False)


def write_with_pillow(path, drawn):
    pillow_image(drawn.shallow).save(path, drawn.name.upper())


WRITERS = {
    "png": write_raw_png,
    "palette.png": write_palette_png,
    "tif": write_raw_tiff,
    "pgm": write_pgm,
    "webp": write_webp,
    "jp2": write_jpeg_2000,
}


def write_file(folder, drawn):
    """Write an image, with its damage."""
    extension = drawn.name.rpartition(".")[2]
    write = WRITERS.get(drawn.name) or WRITERS.get(extension, write_with_pillow)
    if extension == "gif":
        extension = "jpg"  # what counts is the content
    path = folder / f"image.{extension}"
    write(path, drawn)
    if drawn.damage is not None:
        content = bytearray(path.read_bytes())
        content[drawn.damage % len(content)] ^= 1 + drawn.damage % 255
        path.write_bytes(content)
    return path


def read_frame(source):
    """The only frame of a source."""
    (clip,) = clips_of(source)
    ((_, image),) = clip.frames
    return np.asarray(image)


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
@settings(max_examples=settings.default.max_examples // 5)  # of 18 formats
def test_a_file_is_read_right_or_if_damaged_refused(tmp_path_factory, name, data):
    """What else a damaged file shows is not known, but it is an image."""
    drawn = data.draw(images(name))
    path = write_file(tmp_path_factory.mktemp("image"), drawn)
    try:
        frame = read_frame(path)
    except BadFrameError as error:
        assert drawn.damage is not None
        assert "image." in str(error)
        assert "\n" not in str(error)
        return
    assert frame.dtype == np.uint8
    assert frame.ndim == 3 and frame.shape[2] == 3
    if drawn.damage is None:
        assert frame == pytest.approx(expected(drawn), abs=1)


@pytest.mark.parametrize("name", MEMORY)
@given(data=st.data())
@settings(max_examples=settings.default.max_examples // 5)
def test_an_image_in_memory_is_read_right(name, data):
    drawn = data.draw(images(name))
    frame = read_frame(in_memory(drawn))
    assert frame.dtype == np.uint8
    assert frame == pytest.approx(expected(drawn), abs=1)
