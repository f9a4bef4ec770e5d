"""The command ``crumb``: parse flags, arguments and settings files, call the code of a subcommand, print."""

import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType

from benchmarks_toybox_ilab.tables.disk_errors import cured
from benchmarks_toybox_ilab.tables.text import ListedError, printable, safe_output
from crumb_avalanche.system.process import limit_openmp_spin

CLOSED_PIPE = 128 + 13  # of SIGPIPE, as shells have it; Windows has no such signal
OUTPUT_LOST = 74  # EX_IOERR of sysexits.h
# Commands whose work is what they print.
ANSWERS = {
    "",
    "backbones",
    "learner show",
    "learner lessons",
    "predict",
    "serve",
    "strategies",
}
STOPPED = {
    **dict.fromkeys(
        ("demo", "prepare", "pretrain"),
        "what was finished is kept, and the same command resumes there",
    ),
    **dict.fromkeys(("connect", "serve"), "every change that was answered is saved"),
    "run": "the same command resumes after the last finished experience, or later with --checkpoint-every",
    "teach": "the lesson is not learned unless a line says so, and the same command starts it again",
}
# Module and function of the commands that have no module of their own here.
ELSEWHERE = {
    "connect": ("crumb_avalanche.cli.serve", "connect"),
    "demo": ("crumb_avalanche.cli.run", "demo"),
    "export": ("crumb_avalanche.cli.learner", "export"),
    "pretrain": ("crumb_avalanche.runs.pretrain", "main"),
    "report": ("crumb_avalanche.report.report", "main"),
    "strategies": ("crumb_avalanche.cli.run", "strategies"),
}
NO_MEMORY = "can't allocate memory"  # in torch's error
LOST_WORKER = re.compile(
    r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (is killed|exited unexpectedly)"
)  # so, too
# in errors of a loader process, whose traceback torch adds to their text
OF_WORKER = "in DataLoader worker process"


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand; print errors that the user can fix in one line.

    Returns:
        The exit code: 0; 1 for an error; 2 for arguments that cannot be read; 74 if all
        is done but standard output could not be written; 128 and the number of the
        signal that ended the command.
    """
    limit_openmp_spin()
    for number in range(
        3
        # or the first file that is opened takes the place of a closed stream, and what it
        # is sent
    ):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    given = sys.argv[1:] if arguments is None else arguments
    with safe_output(), terminated_as_interrupted():
        try:
            code = run_command(given)
        except (
            SystemExit
        ) as end:  # of the parser, whose --help is an answer of any command
            if end.code or not (lost := lost_output([])):
                raise
            return lost
        return lost_output(given) or code


def run_command(given: list[str]) -> int:
    """Run a subcommand as ``main`` does."""
    name = given[0] if given else ""
    try:
        with interrupted_later():
            # Here, because they take a while.
            from crumb_avalanche.cli.commands import COMMANDS
            from crumb_avalanche.cli.parser import parsed, usable_paths

            name, values = parsed(given)
        settings = COMMANDS[name].settings(**usable_paths(values))
        with short_warnings():
            with interrupted_later():
                module, function = ELSEWHERE.get(
                    name, (f"crumb_avalanche.cli.{name}", "main")
                )
                command = import_module(module)
            getattr(command, function)(settings)
        return 0
    except KeyboardInterrupt as error:
        kept = STOPPED.get(name, "the same command starts again")
        print(f"crumb {name}: stopped; {kept}", file=sys.stderr)
        return 128 + (
            signal.SIGTERM if isinstance(error, TerminatedError) else signal.SIGINT
        )  # as shells have it
    except (
        ValueError,
        OSError,
        ImportError,
        TypeError,
        RuntimeError,
        MemoryError,
    ) as error:
        if isinstance(error, OSError) and (lost := lost_output(given)):
            return lost
        if (text := words_for(error)) is None:
            raise  # a bug, not bad input: show the traceback
        shown = text if isinstance(error, ListedError) else printable(text)
        print(f"crumb {name}: {shown}", file=sys.stderr)
        return 1


def lost_output(given: list[str]) -> int:
    """Return the exit code of a command whose standard output takes no more, and say so; 0 if it takes all.

    Nothing is said of a reader that has read enough of an answer.
    """
    output = sys.stdout
    if output is None:  # it is closed
        return 0
    try:
        if (error := getattr(output, "error", None)) is not None:
            raise error
        output.flush()
    except OSError as error:
        output.error = None  # type: ignore[attr-defined]
        with suppress(OSError):  # Python's own flush at the end would fail, too
            os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        name, closed = given[0] if given else "", isinstance(error, BrokenPipeError)
        if not closed or ANSWERS.isdisjoint({name, " ".join(given[:2])}):
            words = f"standard output takes no more ({error.strerror}): what it says is lost, what it saves is saved"
            print(f"crumb {name}".rstrip() + f": {words}", file=sys.stderr)
        return CLOSED_PIPE if closed else OUTPUT_LOST
    return 0


def words_for(error: Exception) -> str | None:
    """Return what to print for an error that the user can cure; ``None`` for a bug."""
    if isinstance(error, MemoryError) or (
        type(error) is RuntimeError and NO_MEMORY in str(error)
    ):
        return "there is too little memory; close other programs, or lower --batch-size, --image-size or --workers"
    if type(error) is RuntimeError and LOST_WORKER.search(str(error)):
        return (
            "a loader process was killed, perhaps for want of memory; what was finished is kept: give the same command "
            "again, with fewer --workers or a smaller --batch-size"
        )
    if type(error).__module__ != "builtins" and OF_WORKER in str(error):
        return str(error).strip().splitlines()[-1].partition(": ")[2]
    if isinstance(error, OSError) and (text := cured(error)) is not None:
        return text
    curable = isinstance(error, ValueError | ImportError | FileExistsError)
    curable |= (
        isinstance(error, FileNotFoundError) and error.errno is None
    )  # with a message of ours
    return None if type(error).__module__ == "builtins" and not curable else str(error)


@contextmanager
def short_warnings() -> Iterator[None]:
    """Print warnings to the user as one line, without the line of code that warns."""
    usual = warnings.formatwarning

    def short(message: Warning | str, category: type[Warning], *place: object) -> str:
        return (
            f"warning: {printable(message)}\n"
            if category is UserWarning
            else usual(message, category, *place)
        )  # type: ignore[arg-type]

    warnings.formatwarning = short  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            # Pillow's, about images that open_image decodes at a reduced size or
            # refuses.
            warnings.filterwarnings("ignore", "Image size .* exceeds limit")
            yield
    finally:
        warnings.formatwarning = usual


class TerminatedError(KeyboardInterrupt):
    """SIGTERM: what catches an interrupt saves its work and ends."""


@contextmanager
def _handlers(
    handler: Callable[[int, FrameType | None], object], *signals: int
) -> Iterator[None]:
    """Handle signals in a block. Signals that the process ignores stay ignored; only a main thread can handle any."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in signals if main}
    chosen = [
        number
        for number, usual in before.items()
        if usual not in (None, signal.SIG_IGN)
    ]
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
    with _handlers(
        lambda number, frame: received.append(number), signal.SIGINT, signal.SIGTERM
    ):
        yield
    if received:
        signal.raise_signal(received[0])
