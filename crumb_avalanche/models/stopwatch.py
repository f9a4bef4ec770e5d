"""Seconds spent in named, disjoint parts."""

import time
from collections import defaultdict, deque
from contextlib import contextmanager

import torch


class Stopwatch:
    """Accumulates wall seconds by name; a part measured inside another one counts for the outer one.

    On a GPU, whose calls return before their work is done, a part lasts from when the GPU begins its work to when it
    ends it. Nothing waits for that until ``seconds`` is read. A ``SplitModel`` sets ``device`` to its own.
    """

    def __init__(self, device: torch.device | str = "cpu"):
        self.device = torch.device(device)
        self._seconds: dict[str, float] = defaultdict(float)
        self._busy = False
        self._running: deque = deque()  # (name, event at its begin, event at its end)

    def __getstate__(self):
        return {"device": self.device, "_seconds": self.seconds, "_busy": False, "_running": deque()}

    @property
    def seconds(self) -> dict[str, float]:
        """Name -> seconds so far; waits for a GPU that is at work."""
        self._collect(wait=True)
        return self._seconds

    @contextmanager
    def measure(self, name: str):
        """Add the time of the ``with`` block to ``name``, unless an outer block is being measured."""
        if self._busy:
            yield
            return
        self._busy = True
        on_gpu = self.device.type == "cuda"
        start = self._event() if on_gpu else time.perf_counter()
        try:
            yield
        finally:
            if on_gpu:
                self._running.append((name, start, self._event()))
                self._collect(wait=False)
            else:
                self._seconds[name] += time.perf_counter() - start
            self._busy = False

    def _event(self) -> torch.cuda.Event:
        """Return an event that the GPU passes after the work that it was given so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _collect(self, wait: bool) -> None:
        """Add the parts that the GPU has done; with ``wait`` all of them."""
        while self._running and (wait or self._running[0][2].query()):
            name, start, end = self._running.popleft()
            end.synchronize()
            self._seconds[name] += start.elapsed_time(end) / 1000
