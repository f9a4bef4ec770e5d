"""Standard output and error that may be closed, or on a full disk; SIGTERM as Ctrl-C, and imports without either."""

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any


class Stream:
    """A text stream whose file, ``None`` if it is closed, may take no more; what is written from then on is lost.

    Attributes:
        error: why the file takes no more, if so.
        stops: whether ``write`` and ``flush`` raise that error.
    """

    def __init__(self, file: Any):
        self.stops = False
        self.error: OSError | None = None
        if file is None:
            self.error, file = OSError(errno.EBADF, "it is closed"), open(os.devnull, "w")  # noqa: SIM115 - to the end
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        """Write a text; see ``stops`` for errors."""
        self._try(self._file.write, text)
        return len(text)

    def flush(self) -> None:
        """Hand all that was written to the system; see ``stops`` for errors."""
        self._try(self._file.flush)

    def _try(self, action: Any, *arguments: str) -> None:
        if self.error is None:
            try:
                action(*arguments)
            except OSError as error:
                self.error = error
                with suppress(OSError):  # Python's own flush at the end would fail again
                    os.dup2(os.open(os.devnull, os.O_WRONLY), self._file.fileno())
        if self.error is not None and self.stops:
            raise self.error


@contextmanager
def guarded_streams() -> Iterator[Stream]:
    """Replace standard output and error by a ``Stream`` each in the block; yield that of the output."""
    for number in range(3):  # or the first file that is opened takes the place of a closed stream, and what it is sent
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    usual = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = output, _ = Stream(sys.stdout), Stream(sys.stderr)
    try:
        yield output
    finally:
        output.stops = False
        output.flush()
        sys.stdout, sys.stderr = usual


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
