"""Draw an image as dots, without surfaces, colours and lines, unlike the images that networks are pretrained on."""

import zlib

import numpy as np
from PIL import Image

# Largest probability of a dot at an edge, and probability of a dot anywhere.
ON_EDGES, ANYWHERE = 0.5, 0.02


def as_dots(image: Image.Image, name: str) -> Image.Image:
    """Draw white dots on black, dense where brightness changes; a name gives the same dots on every machine.

    Args:
        image: Any image.
        name: Seed of the random dots.

    Returns:
        An RGB image of the same size.
    """
    brightness = np.asarray(image.convert("L"), dtype=np.float64) / 255
    edges = np.abs(np.diff(brightness, axis=0, prepend=brightness[:1]))
    edges += np.abs(np.diff(brightness, axis=1, prepend=brightness[:, :1]))
    chance = np.clip(2 * edges, 0, ON_EDGES) + ANYWHERE
    drawn = np.random.default_rng(zlib.crc32(name.encode())).random(chance.shape) < chance
    return Image.fromarray((255 * drawn).astype(np.uint8)).convert("RGB")
