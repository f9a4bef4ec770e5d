"""F(x) of stored images, kept in working memory: F is frozen, so it need not run again at every replay."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor

USUAL_CAPACITY = 512


class FeatureMemo:
    """The feature maps of the ``uint8`` images met last, found again by the images' content.

    It saves time where runs are compared on a big machine; a ``FeatureCache`` switches it on, for it spares F only for
    images of the stream, not for stored ones. It belongs to no method's memory, and a robot would not have it. An image
    passes F alone, so that its map does not depend on what else is in its batch.

    Args:
        capacity: maps kept, ``4 * C * H * W`` bytes each (346,112 for 512x13x13); the longest unused goes first.

    Attributes:
        found, computed: images that were in it, and that had to pass F.
    """

    def __init__(self, capacity: int = USUAL_CAPACITY):
        self.capacity = capacity
        self.found = 0
        self.computed = 0
        self._maps: OrderedDict[bytes, Tensor] = OrderedDict()

    def __getstate__(self):
        return {**self.__dict__, "_maps": OrderedDict()}

    def maps(self, images: Tensor, extract: Callable[[Tensor], Tensor]) -> Tensor:
        """``(B, C, H, W)`` maps of ``(B, 3, h, w)`` ``uint8`` images.

        Args:
            images: the images.
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
