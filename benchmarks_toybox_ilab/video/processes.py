"""Work for several processes where one item may bring its process down, and no other item is to suffer from that."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any


def run_in_processes(function: Callable[[Any], Any], items: Sequence, workers: int) -> Iterator[tuple[int, Any]]:
    """What the function returns for each item, as they are finished.

    When the caller stops early, items that have begun are waited for; close the generator.

    Args:
        function: Of a module, so that a new process can import it. Returns anything but None.
        items: Its arguments.
        workers: Number of processes.

    Yields:
        Position of the item and what was returned; None if the process died of it.

    Raises:
        RuntimeError: If processes cannot be started.
        Exception: What the function raises.
    """
    waiting = deque(range(len(items)))
    while waiting:
        running = {}
        try:
            with _pool(workers) as pool:
                while waiting or running:
                    while waiting and len(running) < 2 * workers:
                        running[pool.submit(function, items[waiting[0]])] = waiting[0]
                        waiting.popleft()
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        result = future.result()
                        yield running.pop(future), result
        except BrokenProcessPool:
            # Nobody says which item the dead process was at: each that was running gets a process of its own.
            for position in running.values():
                yield position, _alone(function, items[position])


def _alone(function: Callable[[Any], Any], item: Any) -> Any:
    try:
        with _pool(1) as pool:
            return pool.submit(function, item).result()
    except BrokenProcessPool:
        return None


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes of which one has proved to start; on leaving, what has not begun is cancelled."""
    # Not forked: the parent may have threads that hold locks.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _ignore_interrupts)
    try:
        try:
            pool.submit(os.getpid).result()
        except BrokenProcessPool as error:
            raise RuntimeError(
                'worker processes do not start. In a script, call this below `if __name__ == "__main__":`, or stay in '
                "this process with workers=1."
            ) from error
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _ignore_interrupts() -> None:
    """Ctrl+C reaches all processes of a terminal; the parent alone decides what to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
