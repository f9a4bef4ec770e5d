"""Where the time goes: seconds per named part, disjoint."""

import time
from collections import defaultdict
from contextlib import contextmanager

import torch


class Stopwatch:
    """Accumulates wall seconds under names; inside a measured part no other part is counted.

    On a GPU a part begins and ends when all work given to it is done, which slows a run a little.

    Attributes:
        seconds: name -> seconds so far.
    """

    def __init__(self):
        self.seconds: dict[str, float] = defaultdict(float)
        self._busy = False

    @contextmanager
    def measure(self, name: str):
        """Count the time of the ``with`` block under ``name``, unless an outer block is being measured."""
        if self._busy:
            yield
            return
        self._busy = True
        start = _now()
        try:
            yield
        finally:
            self.seconds[name] += _now() - start
            self._busy = False


def _now() -> float:
    """The time, when the GPU, where one is used, has done what it was given: its work is only ordered by a call."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()
