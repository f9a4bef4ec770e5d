"""Frames of a table as a PyTorch dataset, and two transforms from frames to tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from benchmarks_toybox_ilab.tables.normalization import IMAGENET_MEAN, IMAGENET_STD


class FrameDataset(Dataset):
    """Rows of a table in the given order, as `(image, label)`.

    Args:
        table: The table.
        rows: Row numbers, `(n,)` integers; a row may be repeated.
        transform: Applied to the PIL image; None keeps it.
        labels: Label of each row of the table, `(N,)` integers; None are the table's.

    Attributes:
        targets: The labels, list of n int.

    Raises:
        BadFrameError: If an item is taken whose file is missing, truncated or not an
            image.
    """

    def __init__(
        self,
        table: FrameTable,
        rows: Sequence[int] | np.ndarray,
        transform: Callable[[Image.Image], object] | None = None,
        labels: np.ndarray | None = None,
    ) -> None:
        self.table = table
        self.rows = np.asarray(rows, dtype=np.int64)
        self.transform = transform
        if labels is None:
            labels = table.labels
        self.targets: list[int] = labels[self.rows].tolist()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[object, int]:
        image = self.table.read(int(self.rows[index]))
        label = self.targets[index]
        if self.transform is None:
            return image, label
        return self.transform(image), label


@dataclass(frozen=True)
class PixelTransform:
    """Resize an image: PIL image -> `(3, size, size)` uint8, `3 * size * size` bytes.

    With one of Pillow's antialiased filters. The aspect ratio is not kept, as in the
    paper. The repr describes the whole transform, so it can key a cache.

    Args:
        size: Side in pixels.
        interpolation: Name of the filter: `bilinear`, `bicubic` or another of
            `PIL.Image.Resampling`, in lower case.

    Raises:
        KeyError: If Pillow has no filter of this name; when an image is transformed.
    """

    size: int = 224
    interpolation: str = "bilinear"

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """Transform an image to pixels, `(3, size, size)` uint8."""
        if image.mode != "RGB":  # convert would copy it
            image = image.convert("RGB")
        interpolation = Image.Resampling[self.interpolation.upper()]
        image = image.resize((self.size, self.size), interpolation)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


@dataclass(frozen=True)
class ImageNetTransform:
    """Resize and normalise an image: PIL image -> `(3, size, size)` float32.

    `normalize_pixels` of `PixelTransform`, identical to the bit.

    Args:
        size: Side in pixels.
    """

    size: int = 224

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """Transform an image to normalised pixels, `(3, size, size)` float32."""
        return normalize_pixels(PixelTransform(self.size)(image))


def normalize_pixels(pixels: torch.Tensor) -> torch.Tensor:
    """Normalise uint8 pixels for ImageNet networks.

    Divide by 255, subtract the mean, divide by the standard deviation.
    Mean and standard deviation of the channels are those published with torchvision's
    ImageNet weights.

    Args:
        pixels: `(..., 3, H, W)` uint8.

    Returns:
        The same shape in float32, on the same device.
    """
    images = pixels.to(torch.float32).div(255)
    mean = images.new_tensor(IMAGENET_MEAN).view(3, 1, 1)
    std = images.new_tensor(IMAGENET_STD).view(3, 1, 1)
    return images.sub(mean).div(std)


pixel_transform = PixelTransform
"""Transform frames to uint8, a quarter of the bytes of float32.

For caches, or to normalise on the accelerator.
"""
imagenet_transform = ImageNetTransform
"""Transform frames as networks pretrained on ImageNet expect them."""
