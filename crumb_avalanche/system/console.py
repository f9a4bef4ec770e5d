"""SIGTERM as Ctrl-C, and imports without either."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class TerminatedError(KeyboardInterrupt):
    """SIGTERM: what catches an interrupt saves its work and ends."""


@contextmanager
def _handlers(handler: Callable[[int, FrameType | None], object], *signals: int) -> Iterator[None]:
    """Handle signals in a block. Signals that the process ignores stay ignored; only a main thread can handle any."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in signals if main}
    chosen = [number for number, usual in before.items() if usual not in (None, signal.SIG_IGN)]
    for number in chosen:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in chosen:
            signal.signal(number, before[number])


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Raise ``TerminatedError`` in the block on SIGTERM, as Python raises ``KeyboardInterrupt`` on SIGINT."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TerminatedError

    with _handlers(stop, signal.SIGTERM):
        yield


@contextmanager
def interrupted_later() -> Iterator[None]:
    """Delay SIGINT and SIGTERM to the end of the block.

    For imports: modules written in C turn an interrupt into other errors, or into none.
    """
    received: list[int] = []
    with _handlers(lambda number, frame: received.append(number), signal.SIGINT, signal.SIGTERM):
        yield
    if received:
        signal.raise_signal(received[0])
