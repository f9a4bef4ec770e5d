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
    adds this cache for the images of a replay buffer. It is not part of a method's memory. On a CPU an image passes F
    alone, so that its map does not depend on the rest of its batch; a GPU takes all that are missing at once.

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
            extract: F, from ``(n, 3, h, w)`` images to ``(n, C, H, W)`` maps.
        """
        pixels = images.cpu().contiguous().numpy()
        keys = [hashlib.blake2b(one.data, digest_size=16).digest() for one in pixels]
        missing = {key: place for place, key in reversed([*enumerate(keys)]) if key not in self._maps}
        self.computed += len(missing)
        self.found += len(keys) - len(missing)
        places = sorted(missing.values())
        at_a_time = 1 if images.device.type == "cpu" else max(1, len(places))
        for start in range(0, len(places), at_a_time):
            some = places[start : start + at_a_time]
            maps = extract(images[some])
            for place, one in zip(some, maps):
                self._maps[keys[place]] = one if len(some) == 1 else one.clone()  # a view would keep all the others
        for key in keys:
            self._maps.move_to_end(key)
        found = torch.stack([self._maps[key] for key in keys])
        while len(self._maps) > self.capacity:
            self._maps.popitem(last=False)
        return found.contiguous(memory_format=torch.channels_last)
