"""What shows none of the classes: images that are drawn, and those shown as nothing.

An image is unknown if what is left of it without the directions of such images is not
like a class.
"""

import itertools

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.methods.typicality import DRAWN

NOTHING = ""  # the class name of what shows nothing
SIDE = 128  # of the images that are drawn, in pixels
SHAPES = 100  # of an image
# Rows of features of images that were shown as nothing; the latest ones stay.
MOST_SHOWN = 96
PER_PIECE = 8  # images of a piece of a clip; others are nearly the same
# Most that is asked of the cosine apart from what shows nothing, by backbone; others
# take the mean. They are sums of distance and cosine that 94 % of the taught objects
# exceed on photos for development: ``experiments/open_set.py --thresholds``.
THRESHOLDS = {"efficientnet_lite0": 0.63, "mobilenet_v2": 0.57, "squeezenet1_1": 0.48}
# Images are unknown whose cosine without the directions of what was shown as nothing is
# below this. Chosen by hand between the cosines of new views of the empty scene and of
# taught objects elsewhere, on the same scenes.
LEAST_APART = 0.15


def usual_threshold(backbone: str) -> float:
    """Return the threshold of a backbone, by its name; see ``THRESHOLDS``."""
    return THRESHOLDS.get(backbone, sum(THRESHOLDS.values()) / len(THRESHOLDS))


def drawn_images(side: int, number: int = DRAWN) -> Tensor:
    """Draw images that show no class, always the same ones.

    Features of photos are compared with theirs where a method tells images apart from
    those that show nothing. They are in turn of overlapping shapes and of coloured
    noise. Both have about the statistics of photos (Baradad et al., Learning to See by
    Looking at Noise, NeurIPS 2021).

    Args:
        side: of the images in pixels.
        number: of images.

    Returns:
        ``(number, 3, side, side)`` uint8.
    """
    rng = np.random.default_rng(0)
    painters = itertools.cycle((_shapes, _noise))
    images = np.stack([paint(rng) for paint in itertools.islice(painters, number)])
    channels_first = torch.from_numpy(images).permute(0, 3, 1, 2)
    pixels = functional.interpolate(channels_first, size=side, mode="bilinear")
    return pixels.round().clamp(0, 255).to(torch.uint8)


def _shapes(draws: np.random.Generator) -> np.ndarray:
    """Draw ellipses and rectangles, many of them small, that cover each other.

    Args:
        draws: random numbers.

    Returns:
        ``(SIDE, SIDE, 3)`` float64, from 0 to 255.
    """
    rows, columns = np.indices((SIDE, SIDE))
    image = np.zeros((SIDE, SIDE, 3))
    common_colour = draws.uniform(0, 255, 3)
    # In pixels, half of the width, from a distribution with a heavy tail.
    widths = 0.02 * SIDE / draws.random(SHAPES) ** 0.7
    for width in sorted(widths, reverse=True):  # large ones first, small ones on top
        width = min(width, 0.6 * SIDE)
        height = width * draws.uniform(0.4, 1)
        x, y = draws.uniform(0, SIDE, 2)
        across = np.abs(columns - x) / width
        down = np.abs(rows - y) / height
        is_ellipse = draws.random() < 0.5
        if is_ellipse:
            is_inside = np.hypot(across, down) < 1
        else:
            is_inside = np.maximum(across, down) < 1
        image[is_inside] = (common_colour + draws.uniform(0, 255, 3)) / 2
    return image


def _noise(draws: np.random.Generator) -> np.ndarray:
    """Draw noise whose amplitudes fall with the frequency f as 1 / f^a.

    Args:
        draws: random numbers.

    Returns:
        ``(SIDE, SIDE, 3)`` float64, around the middle of 0 to 255.
    """
    frequencies = np.hypot(*np.meshgrid(np.fft.fftfreq(SIDE), np.fft.fftfreq(SIDE)))
    frequencies[0, 0] = np.inf  # the mean is set below
    amplitudes = frequencies ** -draws.uniform(0.8, 1.8)
    white = np.fft.fft2(draws.normal(size=(SIDE, SIDE, 3)), axes=(0, 1))
    image = np.fft.ifft2(white * amplitudes[:, :, None], axes=(0, 1)).real
    image /= image.std((0, 1))
    # Channels of photos are much alike: each is mixed with 0.2 of the others.
    mixing = 0.4 * np.eye(3) + 0.2 + draws.normal(size=(3, 3)) * 0.1
    contrast = draws.uniform(25, 60)  # standard deviation in levels of 0 to 255
    brightness = draws.uniform(60, 190, 3)  # mean of each channel
    return image @ mixing * contrast + brightness
