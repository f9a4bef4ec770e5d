"""Where the time goes: seconds per named part, disjoint."""

import time
from collections import defaultdict
from contextlib import contextmanager


class Stopwatch:
    """Accumulates wall seconds under names; inside a measured part no other part is counted.

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
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start
            self._busy = False
