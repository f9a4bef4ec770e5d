"""An image file as an RGB image of 8 bits a channel."""

from os import PathLike

import numpy as np
from PIL import Image, ImageOps


def read_image(path: str | PathLike, upright: bool = False) -> Image.Image:
    """Read an image file; of 16-bit grey ones the upper 8 bits, where Pillow alone would make nearly all of it white.

    16-bit files without a value above 255 are taken as they are.

    Args:
        path: of the file.
        upright: turn it as its EXIF orientation says, which cameras write instead of turning the pixels.

    Raises:
        ValueError: floating-point or 32-bit pixels, whose range nobody knows.
        OSError: or whatever else Pillow raises for a file that it cannot read.
    """
    with Image.open(path) as image:
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
            f"its pixels are of mode {image.mode}, from {pixels.min()} to {pixels.max()}; images have 8 or 16 bits a "
            "channel: save it as such"
        )
    return Image.fromarray((pixels.astype(np.uint16) >> (8 * (pixels.max() > 0xFF))).astype(np.uint8))
