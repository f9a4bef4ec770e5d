"""Conversion between uint8 pixels and normalised floats.

``mean`` and ``std`` are ``(1, 3, 1, 1)``, in units where white is 1.
"""

import warnings

import torch
from torch import Tensor


def normalized(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Normalise ``(B, 3, h, w)`` pixels to float32; return float images as float32."""
    return (images.float() / 255 - mean) / std if images.dtype == torch.uint8 else images.float()


def pixels_of(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Convert ``(B, 3, h, w)`` normalised images to uint8 pixels; return uint8 images unchanged.

    Raises:
        ValueError: a pixel is not between 0 and 255 if the normalisation is taken back.
    """
    if images.dtype == torch.uint8:
        return images
    pixels = (images * std + mean) * 255
    low, high = torch.stack(pixels.aminmax()).tolist()
    if not (low > -0.51 and high < 255.51):  # half a level is lost by rounding
        means, deviations = _rounded(mean), _rounded(std)
        raise ValueError(
            f"pixels would be from {low:.1f} to {high:.1f}, not 0 to 255, for images normalised with mean {means} "
            f"and deviation {deviations}: say how they are, with model.set_normalization(mean, std)"
        )
    return pixels.round().clamp(0, 255).to(torch.uint8)


def warn_of_range(images: Tensor, mean: Tensor, std: Tensor) -> None:
    """Warn if ``(B, 3, h, w)`` float images seem to be from 0 to 255 or from 0 to 1 where normalised ones are meant."""
    low, high = map(float, images.aminmax())
    black, white = float((-mean / std).min()), float(((1 - mean) / std).max())
    if float((images * std + mean).max()) > 10:  # white is 1
        warnings.warn(
            f"the images have values up to {high:.0f}, where white is expected to be about {white:.1f}: divide by 255 "
            "before the normalisation, or call model.set_normalization([0], [1 / 255])",
            stacklevel=2,
        )
    elif black <= -1 and 0 <= low < high - 0.5 and high <= 1:
        warnings.warn(
            f"the images have values from {low:.1f} to {high:.1f}, where black is expected to be about {black:.1f} and "
            f"white {white:.1f}: add Normalize({_rounded(mean)}, {_rounded(std)}) behind ToTensor, or, for a network "
            "that takes images from 0 to 1, call model.set_normalization([0], [1])",
            stacklevel=2,
        )


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.flatten().tolist()]
