"""Read image files as RGB with 8 bits per channel."""

import os
from os import PathLike

import numpy as np
from PIL import Image, ImageOps

MOST_PIXELS = 89_478_485  # decoded at a time, 268 MB as RGB; beyond it, Pillow warns


def read_image(path: str | PathLike, upright: bool = False) -> Image.Image:
    """Read an image file as 8-bit RGB.

    A 16-bit grey image keeps its upper 8 bits (Pillow alone would clip nearly all of it to white), or its lower 8 bits
    if no value is above 255.

    Args:
        path: Path of the file.
        upright: Rotate the image as its EXIF orientation says.

    Raises:
        ValueError: If the pixels are floating-point or 32-bit numbers, whose range is unknown.
        OSError: If Pillow cannot read the file; it may raise other errors, too.
    """
    with open_image(path) as image:
        image.load()
        if upright:
            ImageOps.exif_transpose(image, in_place=True)  # without a copy where nothing is rotated
        return image if image.mode == "RGB" else to_rgb(image)


def open_image(path: str | PathLike) -> Image.Image:
    """Open an image file of at most `MOST_PIXELS`; a larger JPEG is set to be decoded at a half, quarter or eighth.

    Raises:
        ValueError: If the path is a pipe or a device, or the image is too large.
        OSError: If Pillow cannot read the file; it may raise other errors, too.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would block, and a device never end
        raise ValueError("it is not a regular file; give a file of an image")
    too_large = f"more than {MOST_PIXELS:,} pixels; reduce it, or save it as JPEG, which is decoded at a reduced size"
    try:
        image = Image.open(path)
    except Image.DecompressionBombError as error:
        raise ValueError(f"it has far {too_large}") from error
    width, height = image.size
    parts = next((parts for parts in (1, 2, 4, 8) if width * height <= MOST_PIXELS * parts**2), 8)
    if parts > 1:
        image.draft(None, (width // parts, height // parts))
    if image.width * image.height > MOST_PIXELS:
        image.close()
        raise ValueError(f"it has {width} x {height} pixels, {too_large}")
    return image


def to_rgb(image: Image.Image, upright: bool = False) -> Image.Image:
    """Convert an opened image to 8-bit RGB as `read_image` does; the result shares no memory with the image.

    Raises:
        ValueError: If the pixels are floating-point or 32-bit numbers, whose range is unknown, or there are none.
        OSError: If Pillow cannot decode the image; it may raise other errors, too.
    """
    if 0 in image.size:
        raise ValueError(f"it has {image.width} x {image.height} pixels; give an image with at least one")
    image.load()
    if upright:
        image = ImageOps.exif_transpose(image)
    if image.mode == "F" or image.mode.startswith("I"):
        image = _eight_bits(image)
    return image.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    pixels = np.asarray(image)
    if image.mode == "F" or pixels.min() < 0 or pixels.max() > 0xFFFF:
        raise ValueError(
            f"its pixels are of mode {image.mode}, from {pixels.min()} to {pixels.max()}; save it "
            "with 8 or 16 bits per channel"
        )
    return Image.fromarray((pixels.astype(np.uint16) >> (8 * (pixels.max() > 0xFF))).astype(np.uint8))
