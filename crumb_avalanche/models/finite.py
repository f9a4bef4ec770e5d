"""Refuse feature maps that are not finite, before anything is computed from them."""

import torch
from torch import Tensor

LARGEST_FEATURE = 1e12  # sums of squares of larger features overflow float32


class BadFeaturesError(ValueError):
    """Some images have feature maps that are not finite or too large.

    Args:
        message: the error.
        images: ``(n, ...)``, these images.
    """

    def __init__(self, message: str, images: Tensor):
        super().__init__(message)
        self.images = images


def usable(maps: Tensor) -> Tensor:
    """Return whether feature maps are finite and at most 1e12 in absolute value, as a bool on their device.

    Args:
        maps: ``(B, C, H, W)``.
    """
    if not maps.numel():
        return torch.ones((), dtype=torch.bool, device=maps.device)
    last = maps.is_contiguous(memory_format=torch.channels_last)
    # In the order of memory, which is a hundred times faster; NaN if a value is.
    low, high = (maps.permute(0, 2, 3, 1) if last else maps).aminmax()
    return (low >= -LARGEST_FEATURE) & (high <= LARGEST_FEATURE)


def check_maps(maps: Tensor, images: Tensor) -> None:
    """Check the feature maps of a batch.

    Args:
        maps: ``(B, C, H, W)``.
        images: ``(B, ...)``, what they were computed from.

    Raises:
        BadFeaturesError: a value is NaN, infinite, or above 1e12 in absolute value; says of which images.
    """
    if usable(maps):
        return
    odd = ~(maps.flatten(1).abs() <= LARGEST_FEATURE)  # comparisons with NaN are false
    rows = odd.any(1).nonzero().flatten()
    value = float(maps.flatten(1)[rows[0]][odd[rows[0]]][0])
    raise BadFeaturesError(
        f"{len(rows)} of {len(maps)} images have feature maps that cannot be used, the first one (number "
        f"{int(rows[0])} of its batch) with a value of {value}; feature maps must be finite and at most "
        f"{LARGEST_FEATURE:g} in absolute value: replace the image or leave it out; if there are many, look at the "
        "weights",
        images[rows],
    )
