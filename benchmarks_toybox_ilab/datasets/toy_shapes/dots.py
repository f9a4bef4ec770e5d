"""A picture told by dots alone: no surfaces, no colours, no lines, as nothing that a network was pretrained on."""

import zlib

import numpy as np
from PIL import Image

# Chance of a dot at an edge, at most, and anywhere.
ON_EDGES, ANYWHERE = 0.5, 0.02


def as_dots(image: Image.Image, name: str) -> Image.Image:
    """White dots on black, dense where brightness changes; the same name gives the same dots on every machine.

    Args:
        image: Any picture.
        name: What the dots are drawn from.

    Returns:
        An RGB image of the same size.
    """
    brightness = np.asarray(image.convert("L"), dtype=np.float64) / 255
    edges = np.abs(np.diff(brightness, axis=0, prepend=brightness[:1]))
    edges += np.abs(np.diff(brightness, axis=1, prepend=brightness[:, :1]))
    chance = np.clip(2 * edges, 0, ON_EDGES) + ANYWHERE
    drawn = np.random.default_rng(zlib.crc32(name.encode())).random(chance.shape) < chance
    return Image.fromarray((255 * drawn).astype(np.uint8)).convert("RGB")
