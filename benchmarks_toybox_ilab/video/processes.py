"""Process pool that survives worker crashes."""

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
    """Call a function for each item in worker processes and yield the results as they finish.

    Close the generator to stop early; it waits for the items that have begun.

    Args:
        function: A module-level function, which new processes can import. It must not return None.
        items: The arguments.
        workers: Number of processes.

    Yields:
        Position of the item and the result, which is None if the item crashed its process.

    Raises:
        RuntimeError: If processes cannot be started.
        Exception: Any error of the function.
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
            # The item that crashed is unknown, so each running item is repeated in a process of its own.
            for position in running.values():
                yield position, _call_alone(function, items[position])


def _call_alone(function: Callable[[Any], Any], item: Any) -> Any:
    try:
        with _pool(1) as pool:
            return pool.submit(function, item).result()
    except BrokenProcessPool:
        return None


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Start worker processes and check that they start; on exit, cancel items that have not begun."""
    # Spawned, not forked: the parent may have threads that hold locks.
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
    """Ignore Ctrl+C, which reaches all processes of a terminal; only the parent handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
