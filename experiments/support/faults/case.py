"""A kind of fault, a case of it, and its judge."""

import contextlib
import io
import re
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import benchmarks_toybox_ilab
import crumb_avalanche
from crumb_avalanche import cli
from crumb_avalanche.system.atomic_file import cured

VERDICTS = ("clean", "traceback", "hang", "silent")
OURS = tuple(str(Path(package.__file__).parent) for package in (benchmarks_toybox_ilab, crumb_avalanche))


LEAST_WORK = 0.02  # share of the processor of a process that works on a busy machine


class HangError(BaseException):
    """A case took longer than its kind allows."""


class ForeignWordsError(Exception):
    """A command printed the words of a library, or a traceback, or failed without a word."""


class Kind:
    """A kind of fault: a valid base, damages of it, and what is done with the damaged base.

    ``__init__`` makes the base in ``folder``. ``damage`` draws a damage and says which, ``act`` uses what was damaged,
    ``right`` says whether a result of ``act`` is that of the undamaged base, ``restore`` undoes damage and act.

    Args:
        folder: empty folder of the kind.
    """

    limit = 60.0  # seconds, of a case

    def __init__(self, folder: Path):
        self.folder = folder
        self.usual: frozenset[str] = frozenset()
        self.expected: Any = None

    def learn_base(self) -> None:
        """Record result and words of the undamaged base."""
        with heard() as words:
            self.expected = self.act()
        self.usual = frozenset(words)

    def damage(self, random: Random) -> str:
        raise NotImplementedError

    def act(self) -> Any:
        raise NotImplementedError

    def right(self, found: Any) -> bool:
        return found == self.expected

    def restore(self) -> None:
        """Undo damage and act."""

    def close(self) -> None:
        """Release what the base holds."""


class Case(NamedTuple):
    """A judged case: its verdict, what was damaged, and what was said or raised."""

    verdict: str
    damage: str
    said: str


def judge(kind: Kind, random: Random) -> Case:
    """Do a case and judge it.

    *Clean*: the result is that of the undamaged base, or an error or a warning of ours says that something is wrong.
    *Traceback*: another error. *Hang*: no end in time. *Silent*: another result, and not a word.
    """
    what = kind.damage(random)
    try:
        with time_limit(kind.limit), heard() as words:
            found = kind.act()
            right = kind.right(found)
        said = "\n".join(sorted(words - kind.usual))
        return Case("clean" if right or said else "silent", what, said or repr(found)[:300])
    except HangError:
        return Case("hang", what, "")
    except (Exception, SystemExit) as error:
        if is_ours(error):
            return Case("clean", what, str(error))
        return Case("traceback", what, traceback.format_exc()[-3000:])
    finally:
        kind.restore()


def is_ours(error: BaseException) -> bool:
    """Whether a command would print an error as one line, and the words in it are ours."""
    if not isinstance(error, Exception) or isinstance(error, ForeignWordsError) or cli.words_for(error) is None:
        return False
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and cured(error)):
        return True
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is None or place.tb_frame.f_code.co_filename.startswith(OURS)


def in_general(text: str) -> str:
    """A message without its numbers, which differ between equal messages."""
    return re.sub(r"\d+", "#", text)


@contextlib.contextmanager
def heard() -> Iterator[set[str]]:
    """Collect what a user would see: lines of standard error, and warnings."""
    words: set[str] = set()
    err = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(err):
        warnings.simplefilter("always")
        yield words
    words |= {in_general(str(one.message)) for one in caught if one.category is UserWarning}
    words |= {in_general(line) for line in err.getvalue().splitlines() if line.strip()}


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise ``HangError`` in the block when the time is over.

    A process that works and has had less time of the processor than that gets more, for other work on the machine is no
    hang; one that waits does not.
    """
    start = last = time.process_time()

    def stop(number: int, frame: object) -> None:
        nonlocal last
        now = time.process_time()
        if now - start >= seconds or now - last < LEAST_WORK * seconds:
            raise HangError
        last = now
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Done(NamedTuple):
    """A finished command."""

    code: int
    out: str


def command(*arguments: object) -> Done:
    """Run ``crumb`` in this process.

    Raises:
        ForeignWordsError: it failed without a word, or in words that are not ours.
        KeyboardInterrupt: the campaign was interrupted.
    """
    errors: list[Exception] = []
    words_for = cli.words_for

    def listening(error: Exception) -> str | None:
        errors.append(error)
        return words_for(error)

    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(cli, "words_for", listening),
    ):
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    if code in (130, 143):  # the command took an interrupt of the campaign for its own
        raise KeyboardInterrupt
    text = err.getvalue()
    if errors and not is_ours(errors[0]):
        raise ForeignWordsError(f"{type(errors[0]).__name__}: {text[-500:]}") from errors[0]
    if "Traceback (most recent" in text or (code and not text.strip()):
        raise ForeignWordsError(f"exit {code}: {text[-500:]}")
    if len(lines := text.strip().splitlines()) > 20 and code:
        raise ForeignWordsError(f"{len(lines)} lines: {text[:500]}")
    sys.stderr.write(text)
    return Done(code, out.getvalue())
