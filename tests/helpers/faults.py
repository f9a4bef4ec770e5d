"""Damage that hypothesis draws, disks that fail, and the rule of every test of faults:
nothing silent.

After a fault, the result is that of the undamaged case, or an error or a warning of
ours says what is wrong.
"""

import contextlib
import errno
import io
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


class OtherWordsError(ValueError):
    """A command said something else than without damage."""


def damaged(draw, data: bytes) -> bytes:
    """Return other bytes than given.

    A changed byte or digit, a span zeroed, moved or left out, a cut, or more.
    """
    how = draw(st.sampled_from(DAMAGES))
    last = max(0, len(data) - 1)
    start = draw(
        st.integers(0, last) | st.integers(0, min(last, 1023))
    )  # headers are short and decide most
    end = min(len(data), start + draw(st.sampled_from((1, 7, 64, 512))))
    if how == "byte" and data:
        new = bytes([data[start] ^ draw(st.integers(1, 255))]) + data[start + 1 :]
    elif how == "digit" and (
        digits := [
            position for position, byte in enumerate(data[:20_000]) if 48 <= byte <= 57
        ]
    ):
        start = draw(st.sampled_from(digits))
        new = draw(st.sampled_from("0123456789")).encode() + data[start + 1 :]
    elif how == "cut":
        new = b""
    elif how == "longer":
        start, new = (
            len(data),
            draw(st.sampled_from((b"\0", b"\n", bytes(512), data[:512]))),
        )
    else:
        spans = {
            "zeros": bytes(end - start),
            "moved": data[: end - start],
            "left out": b"",
        }
        new = spans.get(how, draw(st.binary(min_size=1, max_size=64))) + data[end:]
    damaged = data[:start] + new
    return damaged if damaged != data else data + b"\0"


def is_ours(error: BaseException) -> bool:
    """Whether a command would print an error as one line, in words of ours."""
    if not isinstance(error, Exception) or cli.words_for(error) is None:
        return False
    if isinstance(error, MemoryError | OtherWordsError) or (
        isinstance(error, OSError) and disk_advice(error)
    ):
        return True
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is None or traceback.tb_frame.f_code.co_filename.startswith(OURS)


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
    said = [
        str(warning.message) for warning in caught if warning.category is UserWarning
    ] + err.getvalue().splitlines()
    assert right(result) or said, f"silent: {what}"


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
        if not active or (event != "open" and event not in CHANGES):
            return
        if event == "open" and not (
            isinstance(arguments[2], int) and arguments[2] & WRITES
        ):
            return
        path = (
            os.fsdecode(arguments[0])
            if isinstance(arguments[0], str | bytes | os.PathLike)
            else ""
        )
        if path.startswith(str(folder)):
            watch(path)

    sys.addaudithook(hook)  # which cannot be removed
    try:
        yield
    finally:
        active = False


def command_killed_at(
    change: int, number: int, folder: str, arguments: list[str]
) -> None:
    """Do ``crumb ARGUMENTS`` in this process, which gets a signal before one of its
    changes of files in a folder.
    """
    left = [change]

    def watch(path: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with (
        watched_changes(Path(folder), watch),
        open(os.devnull, "w") as nothing,
        contextlib.redirect_stdout(nothing),
    ):
        sys.exit(cli.main(arguments))
