"""Random resized crops of feature maps, one for each map, as matrix products (REMIND, ECCV 2020, section 3.3)."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

RATIOS = (3 / 4, 4 / 3)  # of width to height, as usual for images
TRIES = 10


def random_boxes(count: int, height: int, width: int, scale: float, random: np.random.Generator) -> np.ndarray:
    """Draw boxes inside a map.

    The area is uniform between ``scale`` and 1 times that of the map, the ratio log-uniform between 3/4 and 4/3. A box
    that does not fit is drawn again; after ten tries it is the whole map.

    Returns:
        ``(count, 4)`` int64: first row, first column, rows, columns.
    """
    area = random.uniform(scale, 1, (count, TRIES)) * height * width
    ratio = np.exp(random.uniform(*np.log(RATIOS), (count, TRIES)))
    rows = np.maximum(np.round(np.sqrt(area / ratio)), 1).astype(np.int64)
    columns = np.maximum(np.round(np.sqrt(area * ratio)), 1).astype(np.int64)
    fits = (rows <= height) & (columns <= width)
    first = fits.argmax(axis=1)
    every = np.arange(count)
    rows = np.where(fits[every, first], rows[every, first], height)
    columns = np.where(fits[every, first], columns[every, first], width)
    top = random.integers(height - rows + 1)
    left = random.integers(width - columns + 1)
    return np.stack([top, left, rows, columns], axis=1)


def _weights(start: Tensor, size: Tensor, length: int) -> Tensor:
    """Compute ``(n, length, length)`` weights of each old row (last axis) in each new one.

    ``size`` old rows from ``start`` on are stretched to ``length`` (linear interpolation, pixel centres, as
    ``interpolate`` does).
    """
    size = size.unsqueeze(1)
    place = ((torch.arange(length, device=size.device) + 0.5) * size / length - 0.5).clamp_min(0)
    low = place.floor().long().minimum(size - 1)
    high = (low + 1).minimum(size - 1)
    share = (place - low).unsqueeze(2)
    first = start.unsqueeze(1)
    lower, upper = functional.one_hot(first + low, length), functional.one_hot(first + high, length)
    return lower * (1 - share) + upper * share


def crop_and_resize(maps: Tensor, boxes: np.ndarray) -> Tensor:
    """Crop a box of each map and resize it to the size of the map, bilinearly.

    Args:
        maps: ``(n, C, H, W)`` float32.
        boxes: ``(n, 4)``, see ``random_boxes``.

    Returns:
        ``(n, C, H, W)``, channels-last in memory.
    """
    count, channels, height, width = maps.shape
    top, left, rows, columns = torch.from_numpy(boxes).to(maps.device).unbind(1)
    values = maps.permute(0, 2, 3, 1).reshape(count, height, width * channels)
    values = torch.bmm(_weights(top, rows, height).to(maps), values).view(count, height, width, channels)
    values = _weights(left, columns, width).to(maps).unsqueeze(1) @ values
    return values.permute(0, 3, 1, 2)


def random_resized_crops(maps: Tensor, scale: float, random: np.random.Generator) -> Tensor:
    """Crop a random box of each map and resize it to the size of the map.

    Args:
        maps: ``(n, C, H, W)`` float32.
        scale: smallest share of the area.
        random: of the boxes.
    """
    return crop_and_resize(maps, random_boxes(len(maps), *maps.shape[2:], scale, random))
