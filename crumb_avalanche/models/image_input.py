"""The images that a network takes: their size and how they are normalised."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Self

from benchmarks_toybox_ilab.tables.normalization import IMAGENET_MEAN, IMAGENET_STD
from crumb_avalanche.models.extraction import rounded, warn_of_range
from crumb_avalanche.system.setting_ranges import ImageSize, check_count


class ImageInput(nn.Module):
    """Base of a network that takes images as pixels or as normalised floats.

    Args:
        image_size: side of the images in pixels.
        smallest_side: side in pixels that smaller images are enlarged to; 0 for none.

    Attributes:
        interpolation: Pillow's filter that images are resized with, in lower case.
        pixel_mean, pixel_std: ``(1, 3, 1, 1)`` float32 buffers, mean and deviation of
            the normalisation, in units where white is 1.
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, image_size: int, smallest_side: int):
        super().__init__()
        check_count("image_size", image_size, ImageSize)
        self.image_size = image_size
        self.smallest_side = smallest_side
        self.interpolation = "bilinear"
        # Whether float images were compared with the normalisation, which warns once.
        self._range_checked = False
        self._register_normalization("pixel_mean", IMAGENET_MEAN)
        self._register_normalization("pixel_std", IMAGENET_STD)

    def _register_normalization(self, name: str, values: Sequence[float]) -> None:
        """Register a number for each channel as a ``(1, 3, 1, 1)`` buffer.

        It is not saved: it says how the user's images are normalised.
        """
        by_channel = torch.tensor(values, dtype=torch.float32).view(1, 3, 1, 1)
        self.register_buffer(name, by_channel, persistent=False)

    @property
    def input_side(self) -> int:
        """Side in pixels of the images that the network sees."""
        return max(self.image_size, self.smallest_side)

    def set_normalization(self, mean: Sequence[float], std: Sequence[float]) -> Self:
        """Set how float images are normalised that the model is given.

        They are ``(pixel - mean) / std`` of pixels from 0 to 1. The default is
        ImageNet's mean and deviation. ``uint8`` images are normalised by the model
        itself. Images of ``ToTensor`` alone have mean 0 and standard deviation 1,
        images from 0 to 255 mean 0 and standard deviation 1/255.

        Args:
            mean, std: one number for each of the three channels, or one for all, in
                units where white is 1.

        Raises:
            RuntimeError: there are neither one nor three numbers.
        """
        mean_by_channel = torch.as_tensor(mean, dtype=torch.float32).view(1, -1, 1, 1)
        std_by_channel = torch.as_tensor(std, dtype=torch.float32).view(1, -1, 1, 1)
        self.pixel_mean.copy_(mean_by_channel)
        self.pixel_std.copy_(std_by_channel)
        return self

    def pixels(self, images: Tensor) -> Tensor:
        """Take the normalisation of images back.

        Args:
            images: ``(B, 3, h, w)``, normalised floats, or ``uint8`` pixels, which are
                returned as they are.

        Returns:
            ``(B, 3, h, w)`` ``uint8`` pixels.

        Raises:
            ValueError: a pixel is not between 0 and 255 if the normalisation is taken
                back.
        """
        if images.dtype == torch.uint8:
            return images
        pixels = (images * self.pixel_std + self.pixel_mean) * 255
        low, high = torch.stack(pixels.aminmax()).tolist()
        is_in_range = low > -0.51 and high < 255.51  # half a level is lost by rounding
        if not is_in_range:
            raise ValueError(
                f"pixels would be from {low:.1f} to {high:.1f}, not 0 to 255, for "
                f"images normalised with mean {rounded(self.pixel_mean)} and deviation "
                f"{rounded(self.pixel_std)}: say how they are, with "
                "model.set_normalization(mean, std)"
            )
        return pixels.round().clamp(0, 255).to(torch.uint8)

    def require_images(self, images: Tensor) -> None:
        """Raise unless a tensor holds images, and warn once if they are not normalised.

        Args:
            images: to be ``(B, 3, h, w)``, ``uint8`` or normalised floats; of floats,
                the range of the first batch is looked at.

        Raises:
            TypeError: the images are neither ``uint8`` nor floats.
            ValueError: they are not ``(B, 3, h, w)``.
        """
        if not (images.dtype == torch.uint8 or images.is_floating_point()):
            raise TypeError(
                f"the images are {images.dtype}; give uint8 pixels, or normalised "
                "floats"
            )
        if images.dim() != 4 or images.shape[1] != 3:
            raise ValueError(
                f"the images are {tuple(images.shape)}, not (B, 3, h, w); for grey "
                "images, repeat the channel in the transform: "
                "transforms.Lambda(lambda image: image.expand(3, -1, -1)) after "
                "ToTensor()"
            )
        if images.dtype != torch.uint8 and not self._range_checked:
            self._range_checked = True
            warn_of_range(images, self.pixel_mean, self.pixel_std)

    def normalized(self, images: Tensor) -> Tensor:
        """Normalise ``images``, ``(B, 3, h, w)`` ``uint8``, to float32.

        Floats are normalised already. Images below ``smallest_side`` are enlarged.
        """
        images_bchw = images.float()
        if images.dtype == torch.uint8:
            images_bchw = (images_bchw / 255 - self.pixel_mean) / self.pixel_std
        return self._enlarged(images_bchw)

    def _enlarged(self, images_bchw: Tensor) -> Tensor:
        """Enlarge images whose shorter side is below ``smallest_side``."""
        height, width = images_bchw.shape[2:]
        shorter_side = min(height, width)
        if shorter_side >= self.smallest_side:
            return images_bchw
        size = (
            round(height * self.smallest_side / shorter_side),
            round(width * self.smallest_side / shorter_side),
        )
        return functional.interpolate(images_bchw, size, mode="bilinear")
