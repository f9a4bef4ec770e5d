"""Read image files as RGB with 8 bits per channel."""

from os import PathLike

import numpy as np
from PIL import Image, ImageOps


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
    with Image.open(path) as image:
        image.load()
        if upright:
            ImageOps.exif_transpose(image, in_place=True)  # without a copy where nothing is rotated
        return image if image.mode == "RGB" else to_rgb(image)


def to_rgb(image: Image.Image, upright: bool = False) -> Image.Image:
    """Convert an opened image to 8-bit RGB as `read_image` does; the result shares no memory with the image.

    Raises:
        ValueError: If the pixels are floating-point or 32-bit numbers, whose range is unknown.
        OSError: If Pillow cannot decode the image; it may raise other errors, too.
    """
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
