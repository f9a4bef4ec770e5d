"""Cache F(x) of stored images in memory: F is frozen, so it need not run again at every replay."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor

USUAL_CAPACITY = 512


class FeatureMemo:
    """Least-recently-used cache of the feature maps of ``uint8`` images, looked up by the images' content.

    It saves time where runs are compared: a ``FeatureCache`` holds maps of the stream's images only, and its plugin
    adds this cache for the images of a replay buffer. It is not part of a method's memory. An image passes F alone, so
    that its map does not depend on the rest of its batch.

    Args:
        capacity: maps kept, ``4 * C * H * W`` bytes each (346,112 for 512x13x13).

    Attributes:
        found: images whose maps were cached.
        computed: images that passed F.
    """

    def __init__(self, capacity: int = USUAL_CAPACITY):
        self.capacity = capacity
        self.found = 0
        self.computed = 0
        self._maps: OrderedDict[bytes, Tensor] = OrderedDict()

    def __getstate__(self):
        return {**self.__dict__, "_maps": OrderedDict()}

    def clear(self) -> None:
        """Forget all maps."""
        self._maps.clear()

    def maps(self, images: Tensor, extract: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the maps of a batch, ``(B, C, H, W)``.

        Args:
            images: ``(B, 3, h, w)`` ``uint8``.
            extract: F, from ``(1, 3, h, w)`` images to ``(1, C, H, W)`` maps.
        """
        maps = []
        for image in images:
            key = hashlib.blake2b(image.cpu().contiguous().numpy().data, digest_size=16).digest()
            known = self._maps.pop(key, None)
            if known is None:
                self.computed += 1
                known = extract(image[None])[0]
            else:
                self.found += 1
            self._maps[key] = known
            maps.append(known)
        while len(self._maps) > self.capacity:
            self._maps.popitem(last=False)
        return torch.stack(maps).contiguous(memory_format=torch.channels_last)
