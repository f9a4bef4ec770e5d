"""Photos of one noisy colour, which a small network tells apart, as bytes of a file."""

import io

import numpy as np
from PIL import Image

COLOURS = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200)}


def encoded(image, kind="PNG", **options):
    """The bytes of an image's file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def photo(colour, seed=0, kind="PNG"):
    """The bytes of a photo of 40 x 40 pixels."""
    noise = np.random.default_rng(seed).normal(0, 20, (40, 40, 3))
    pixels = np.clip(noise + np.array(COLOURS[colour]), 0, 255).astype(np.uint8)
    return encoded(Image.fromarray(pixels), kind)


def opened(data):
    """The image of a file's bytes."""
    return Image.open(io.BytesIO(data))
