"""The pixels of the parts of an image that a closed form looks at."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from benchmarks_toybox_ilab.streams.torch_dataset import PixelTransform
from crumb_avalanche.methods.features import middle_of


def middle(image: Image.Image, share: float) -> Image.Image:
    """Cut the middle out of an image; ``share`` is that of its sides."""
    left, right = middle_of(image.width, share)
    top, bottom = middle_of(image.height, share)
    return image.crop((left, top, right, bottom))


@dataclass(frozen=True)
class MiddleTransform:
    """Cut out the middle of an RGB image and resize it: ``(3, size, size)`` uint8.

    It is cut out of the image as it is, so that small objects keep their details, and
    resized as ``PixelTransform`` does. The repr describes the whole transform.

    Attributes:
        share: of the sides of the image.
        size: side in pixels.
        interpolation: name of the filter.
    """

    share: float
    size: int
    interpolation: str = "bilinear"

    def __call__(self, image: Image.Image) -> Tensor:
        """Transform one image."""
        resized = PixelTransform(self.size, self.interpolation)
        return resized(middle(image, self.share))


@dataclass(frozen=True)
class LookTransform:
    """Return the looks at an RGB image: ``(L, 3, size, size)`` uint8.

    Attributes:
        shares: of the sides of the image, of each look.
        size: side in pixels.
        interpolation: name of the filter.
    """

    shares: tuple[float, ...]
    size: int
    interpolation: str = "bilinear"

    @property
    def transforms(self) -> list["MiddleTransform | PixelTransform"]:
        """The transform of each look."""
        transforms: list[MiddleTransform | PixelTransform] = []
        for share in self.shares:
            if share == 1:
                transforms.append(PixelTransform(self.size, self.interpolation))
            else:
                middle_part = MiddleTransform(share, self.size, self.interpolation)
                transforms.append(middle_part)
        return transforms

    def __call__(self, image: Image.Image) -> Tensor:
        """Transform one image."""
        return torch.stack([transform(image) for transform in self.transforms])


def looks_of(stacked: Tensor) -> Sequence[Tensor]:
    """Split a batch of the looks at images into a batch for each look.

    Args:
        stacked: ``(B, L, 3, h, w)`` results of ``LookTransform``, or their maps,
            ``(B, L, C, H, W)``; without the axis ``L`` they are of one look.

    Returns:
        ``L`` tensors, ``(B, 3, h, w)`` or ``(B, C, H, W)``.
    """
    if stacked.dim() == 4:
        return [stacked]
    return stacked.unbind(1)
