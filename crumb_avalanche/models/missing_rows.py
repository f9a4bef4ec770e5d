"""The order in which several processes compute the feature maps that a store lacks."""

from collections import deque
from collections.abc import Callable

import numpy as np
from torch.utils.data import Sampler


class MissingRows(Sampler):
    """Batch sampler of the images whose maps are missing at the time of the batch, in a random order.

    Processes that fill one store at the same time share the work because each has its own order. The order does not
    change which images make a batch, and drawing it leaves the global RNG state unchanged.

    Args:
        entries: function of row numbers that returns their entries, shared with the other processes; 0 where a map is
            missing.
        rows: ``(N,)`` row number of each item.
        size: items in a batch.

    Attributes:
        taken: the items of each batch that was drawn, oldest first.
    """

    def __init__(self, entries: Callable[[np.ndarray], np.ndarray], rows: np.ndarray, size: int):
        self.entries = entries
        self.rows = rows
        self.size = size
        self.taken: deque[np.ndarray] = deque()

    def __iter__(self):
        starts = np.arange(0, len(self.rows), self.size)
        for start in np.random.default_rng().permutation(starts):
            items = np.arange(start, min(start + self.size, len(self.rows)))
            items = items[self.entries(self.rows[items]) == 0]
            if len(items):
                self.taken.append(items)
                yield items.tolist()
