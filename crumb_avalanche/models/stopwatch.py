"""Seconds spent in named, disjoint parts."""

import time
from collections import defaultdict
from contextlib import contextmanager

import torch


class Stopwatch:
    """Accumulates wall seconds by name; a part measured inside another one counts for the outer one.

    On a GPU, a part starts and ends when all work of the GPU is done, which slows a run a little.

    Attributes:
        seconds: name -> seconds so far.
    """

    def __init__(self):
        self.seconds: dict[str, float] = defaultdict(float)
        self._busy = False

    @contextmanager
    def measure(self, name: str):
        """Add the time of the ``with`` block to ``name``, unless an outer block is being measured."""
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
    """Return the time once the GPU, if one is used, has finished: its calls return before the work is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()
