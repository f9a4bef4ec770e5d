"""Pass F and P a few images at a time, as many as fit the caches of a CPU."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

# Most maps that P takes at a time on a CPU. They fit its caches: a third faster than batches of 128.
MAPS_AT_A_TIME = 24


def extract_in_parts(
    extract: Callable[[Tensor], Tensor],
    images: Tensor,
    at_a_time: int,
    same_alone: dict[tuple, bool],
    circumstances: tuple,
) -> Tensor:
    """Compute the maps of images on a CPU, without gradients; that of an image has the same bits in any batch.

    Args:
        extract: computes maps; treats each image of a batch of 2 to ``at_a_time`` alike.
        images: ``(B, 3, h, w)``.
        at_a_time: most images of a call.
        same_alone: whether ``extract`` gives a single image the same bits as in a pair, by shape and circumstances;
            filled where it was not measured.
        circumstances: what else the bits depend on.

    Returns:
        ``(B, C, H, W)``, not an inference tensor: P trains on it.
    """
    with torch.inference_mode():
        parts = []
        for some in images.split(at_a_time):
            if len(some) != 1 or _is_same_alone(extract, some.shape[1:], same_alone, circumstances):
                parts.append(extract(some))
            else:
                parts.append(extract(some.expand(2, -1, -1, -1))[:1])
    return torch.cat(parts)


def _is_same_alone(
    extract: Callable[[Tensor], Tensor], shape: torch.Size, found: dict[tuple, bool], circumstances: tuple
) -> bool:
    """Return whether an image of noise has the same bits alone and in a pair; measured once for a shape."""
    key = shape, *circumstances
    if key not in found:
        noise = torch.rand(1, *shape, generator=torch.Generator().manual_seed(0)).expand(2, -1, -1, -1)
        found[key] = torch.equal(extract(noise)[:1], extract(noise[:1]))
    return found[key]


def classify_in_parts(layers: nn.Module, maps: Tensor, training: bool) -> Tensor:
    """Compute P's outputs of ``(B, C, H, W)`` maps, all at once where P mixes images, or not on a CPU.

    Args:
        layers: P.
        maps: its input.
        training: whether P is in training mode, in which batch norm mixes images.
    """
    parts = -(-len(maps) // MAPS_AT_A_TIME)
    if maps.device.type != "cpu" or parts < 2 or (training and _mixes_images(layers)):
        return layers(maps)
    at_a_time = -(-len(maps) // parts)
    # Not tensor_split or slices, whose gradients are each as large as the whole batch.
    return torch.cat([layers(some) for some in maps.split(at_a_time)])


def _mixes_images(layers: nn.Module) -> bool:
    """Return whether the outputs of an image in training mode depend on its batch."""
    return any(isinstance(layer, _BatchNorm) for layer in layers.modules())
