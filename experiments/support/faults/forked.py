"""Forked children of this warm process: what a command does in a process of its own, without seconds of imports."""

import errno
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from support.faults.case import ForeignWordsError, HangError

from crumb_avalanche import cli

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink", "shutil.rmtree"}
_watchers: list[Callable[[str, str], None]] = []


def _hook(event: str, arguments: tuple) -> None:
    """Audit hook that passes on changes of files; it cannot be removed, so that there is one."""
    if _watchers and (event == "open" or event in CHANGES):
        path = arguments[0]
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & WRITES):
            return
        for watch in _watchers:
            watch(event, os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else "")


def watch_changes(watch: Callable[[str, str], None]) -> None:
    """Call a function with event and path before each change of a file by Python code of this process."""
    if not getattr(sys, "_campaign_hooked", False):
        sys._campaign_hooked = True
        sys.addaudithook(_hook)
    _watchers.append(watch)


def unwatch(watch: Callable[[str, str], None]) -> None:
    """Stop calling a function."""
    _watchers.remove(watch)


class Child(NamedTuple):
    """A forked process, and the file of what it prints as errors."""

    pid: int
    said: Path


class Ended(NamedTuple):
    """How a child ended: exit code, or minus the number of its signal; and what it said."""

    code: int
    said: str


def fork(work: Callable[[], int | None], said: Path) -> Child:
    """Do some work in a forked process."""
    pid = os.fork()
    if pid:
        return Child(pid, said)
    code = 99
    try:
        gc.disable()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        errors = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(errors, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        code = work() or 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(child: Child, limit: float) -> Ended:
    """Wait for a child.

    Raises:
        HangError: it did not end in time, and was killed.
        ForeignWordsError: it printed a traceback.
    """
    deadline = time.monotonic() + limit
    while True:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > deadline:
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
            raise HangError
        time.sleep(0.002)
    said = child.said.read_text(errors="replace") if child.said.exists() else ""
    if "Traceback (most recent" in said:
        raise ForeignWordsError(said[-2000:])
    return Ended(os.waitstatus_to_exitcode(status), said)


def crumb(*arguments: object) -> Callable[[], int]:
    """Work for ``fork``: a command."""
    return lambda: cli.main([str(argument) for argument in arguments])


def disk_error(number: int, path: str) -> OSError:
    """The error that the system raises."""
    return OSError(number, os.strerror(number), path)


DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES)
