"""Convert arrays and tensors to images, and images to batches of pixels."""

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from benchmarks_toybox_ilab.tables.frame import whole_number
from benchmarks_toybox_ilab.tables.image import eight_bits, on_background

if TYPE_CHECKING:
    import torch

AT_A_TIME = 8  # images that are decoded and pass the network at once
_RULE = (
    "an array must be (H, W, C) or (N, H, W, C), a tensor (C, H, W) or (N, C, H, W), of 3 channels or 4 with alpha, "
    "uint8, uint16 or floating-point from 0 to 1, and not empty; convert others, or give a PIL image, which may be gray"
)


def is_array(source: object) -> bool:
    """Whether the source is a NumPy array or a PyTorch tensor."""
    return isinstance(source, np.ndarray) or _is_tensor(source)


def array_images(source: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the images of an array or a tensor, to be converted by `pixels_image`, one at a time.

    Args:
        source: `(H, W, C)` or `(N, H, W, C)` array, `(C, H, W)` or `(N, C, H, W)` tensor on any device, of 3 channels
            or 4 with alpha; uint8; uint16, of which the upper 8 of the bits that are used are kept (see `eight_bits`);
            or floating-point from 0 to 1, which is multiplied by 255 and rounded.
        name: Name of the source. The images of a batch are named `name[0]`, `name[1]` ...

    Raises:
        ValueError: If shape or dtype breaks the rule.
    """
    shape, tensor = tuple(source.shape), _is_tensor(source)
    floating = source.is_floating_point() if tensor else source.dtype.kind == "f"
    channels = shape[-3 if tensor else -1] if len(shape) in (3, 4) else 0
    kind = str(source.dtype).removeprefix("torch.") if tensor else source.dtype.name
    if channels not in (3, 4) or 0 in shape or not (floating or kind in ("uint8", "uint16")):
        what = "a tensor" if tensor else "an array"
        raise ValueError(f"{name} is {what} of shape {shape} and dtype {source.dtype}; {_RULE}.")
    if kind == "uint16":  # all images of a batch by the same bits
        values = np.moveaxis(source.cpu().numpy(), -3, -1) if tensor else source
        source = eight_bits(values.astype(np.uint16))
    if len(shape) == 3:
        return iter([(name, source)])
    return ((f"{name}[{row}]", source[row]) for row in range(shape[0]))


def batches(
    frames: Iterable[tuple[str, Image.Image]], size: int, image_size: int, interpolation: str = "bilinear"
) -> "Iterator[tuple[list[str], torch.Tensor]]":
    """Yield images in batches, resized to a square as `crumb run` does (`PixelTransform`).

    Images are taken and resized one at a time. The reduced decoding of large JPEG files is not used, because its result
    differs.

    Args:
        frames: Pairs of path and image, such as `Clip.frames`.
        size: Number of images in a batch; the last one may have less.
        image_size: Side in pixels.
        interpolation: Filter, as for `PixelTransform`.

    Yields:
        The paths, and `(B, 3, image_size, image_size)` uint8.

    Raises:
        ValueError: If `size` or `image_size` is not a whole number of at least 1.
    """
    import torch

    from benchmarks_toybox_ilab.streams.torch_dataset import PixelTransform

    size, side = whole_number("size", size, 1), whole_number("image_size", image_size, 1)
    transform = PixelTransform(side, interpolation)
    paths: list[str] = []
    pixels: list[torch.Tensor] = []
    for path, image in frames:
        paths.append(path)
        pixels.append(transform(image))
        del image  # before the next one is decoded
        if len(paths) == size:
            yield paths, torch.stack(pixels)
            paths, pixels = [], []
    if paths:
        yield paths, torch.stack(pixels)


def _is_tensor(source: object) -> bool:
    torch = sys.modules.get("torch")  # without it there is no tensor
    return torch is not None and isinstance(source, torch.Tensor)


def pixels_image(pixels: Any) -> Image.Image:
    """Convert an image of `array_images` to 8-bit RGB, on white where it has alpha.

    Raises:
        ValueError: If a value is NaN or outside 0 to 1.
    """
    if _is_tensor(pixels):
        pixels = pixels.detach().permute(1, 2, 0).cpu()
        pixels = (pixels.float() if pixels.is_floating_point() else pixels).numpy()
    if pixels.dtype != np.uint8:
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= 0 and high <= 1):  # also if they are NaN
            found = f"values from {low:g} to {high:g}" if low == low else "NaN"
            raise ValueError(
                f"holds {found}, but floating-point pixels must be from 0 to 1: divide values up to 255 by 255, "
                "and undo a normalisation by mean and standard deviation."
            )
        pixels = np.rint(pixels.astype(np.float32) * 255).astype(np.uint8)
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return on_background(image) if image.mode == "RGBA" else image
