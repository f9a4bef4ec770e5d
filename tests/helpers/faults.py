"""Damage that hypothesis draws, disks that fail, and the rule of every test of faults:
nothing silent.

After a fault, the result is that of the undamaged case, or an error or a warning of
ours says what is wrong.
"""

import contextlib
import errno
import io
import itertools
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from hypothesis import strategies as st

import benchmarks_toybox_ilab
import crumb_avalanche
from benchmarks_toybox_ilab.tables.disk_errors import disk_advice
from crumb_avalanche import cli

OURS = tuple(
    str(Path(package.__file__).parent)
    for package in (benchmarks_toybox_ilab, crumb_avalanche)
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {"os.rename", "os.mkdir", "os.truncate", "os.link", "os.symlink"}
DAMAGES = ("byte",) * 5 + (
    "digit",
    "zeros",
    "noise",
    "cut",
    "longer",
    "moved",
    "left out",
)

HEADER = 1024  # first bytes of a file, damaged more often
DIGITS = b"0123456789"
SEARCHED = 20_000  # bytes at the start of a file in which digits are changed


class OtherWordsError(ValueError):
    """A command said something else than without damage."""


def damaged(draw, data: bytes) -> bytes:
    """Return other bytes than given.

    A changed byte or digit, a span zeroed, moved or left out, a cut, or more.
    """
    kind = draw(st.sampled_from(DAMAGES))
    last = max(0, len(data) - 1)
    # Headers are short and decide most.
    in_header = st.integers(0, min(last, HEADER - 1))
    start = draw(st.integers(0, last) | in_header)
    length = draw(st.sampled_from((1, 7, 64, 512)))
    end = min(len(data), start + length)
    changed = _with_damage(draw, kind, data, start, end)
    return changed if changed != data else data + b"\0"


def _with_damage(draw, kind: str, data: bytes, start: int, end: int) -> bytes:
    """Return bytes with damage of a kind, in or from a span."""
    before = data[:start]
    after = data[end:]
    if kind == "byte" and data:
        return before + _other_byte(draw, data[start]) + data[start + 1 :]
    if kind == "digit" and digit_positions(data):
        return _with_other_digit(draw, data)
    if kind == "zeros":
        return before + bytes(end - start) + after
    if kind == "moved":
        return before + data[: end - start] + after
    if kind == "left out":
        return before + after
    if kind == "cut":
        return before
    if kind == "longer":
        return data + draw(st.sampled_from((b"\0", b"\n", bytes(512), data[:512])))
    return before + draw(st.binary(min_size=1, max_size=64)) + after


def _other_byte(draw, byte: int) -> bytes:
    """Return another byte."""
    return bytes([byte ^ draw(st.integers(1, 255))])


def digit_positions(data: bytes) -> list[int]:
    """Return where the first bytes of a file are digits."""
    return [position for position, byte in enumerate(data[:SEARCHED]) if byte in DIGITS]


def _with_other_digit(draw, data: bytes) -> bytes:
    """Return bytes with another digit in the place of one."""
    position = draw(st.sampled_from(digit_positions(data)))
    digit = draw(st.sampled_from(DIGITS))
    return data[:position] + bytes([digit]) + data[position + 1 :]


def is_ours(error: BaseException) -> bool:
    """Whether a command would print an error as one line, in words of ours."""
    if not isinstance(error, Exception) or cli.words_for(error) is None:
        return False
    if isinstance(error, MemoryError | OtherWordsError):
        return True
    if isinstance(error, OSError) and disk_advice(error):
        return True
    return _is_raised_by_us(error)


def _is_raised_by_us(error: Exception) -> bool:
    """Whether the innermost frame of an error is in our packages, or it has none."""
    traceback = error.__traceback__
    if traceback is None:
        return True
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code.co_filename.startswith(OURS)


def check(
    act: Callable[[], object], right: Callable[[object], bool], what: object = ""
) -> None:
    """Do something with damaged files.

    Fail unless its result is right, or words of ours say what is wrong.
    """
    err = io.StringIO()
    with (
        warnings.catch_warnings(record=True) as caught,
        contextlib.redirect_stderr(err),
    ):
        warnings.simplefilter("always")
        try:
            result = act()
        except Exception as error:
            if not is_ours(error):
                raise
            return
    messages = err.getvalue().splitlines()
    for warning in caught:
        if warning.category is UserWarning:
            messages.append(str(warning.message))
    assert right(result) or messages, f"silent: {what}"


@contextlib.contextmanager
def full_disk(folder: Path, pattern: str = "*") -> Iterator[None]:
    """Let files below a folder that are flushed to the disk meet "no space left"."""
    flush = os.fsync

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if any(os.path.samestat(status, path.stat()) for path in folder.rglob(pattern)):
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(descriptor)

    os.fsync = fsync
    try:
        yield
    finally:
        os.fsync = flush


@contextlib.contextmanager
def watched_changes(folder: Path, watch: Callable[[str], None]) -> Iterator[None]:
    """Call a function with the path before each change of a file below a folder by
    Python code of this process.
    """
    active = True

    def hook(event: str, arguments: tuple) -> None:
        if not active or not _is_change(event, arguments):
            return
        path = arguments[0]
        if not isinstance(path, str | bytes | os.PathLike):  # a file's descriptor
            return
        if os.fsdecode(path).startswith(str(folder)):
            watch(os.fsdecode(path))

    sys.addaudithook(hook)  # which cannot be removed
    try:
        yield
    finally:
        active = False


def _is_change(event: str, arguments: tuple) -> bool:
    """Whether an audit event is a change of a file."""
    if event != "open":
        return event in CHANGES
    flags = arguments[2]
    return isinstance(flags, int) and bool(flags & WRITES)


def command_killed_at(
    change: int, number: int, folder: str, arguments: list[str]
) -> None:
    """Do ``crumb ARGUMENTS`` in this process, which gets a signal before one of its
    changes of files in a folder.
    """
    changes = itertools.count(1)

    def watch(path: str) -> None:
        if next(changes) == change:
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with (
        watched_changes(Path(folder), watch),
        open(os.devnull, "w") as nothing,
        contextlib.redirect_stdout(nothing),
    ):
        sys.exit(cli.main(arguments))
