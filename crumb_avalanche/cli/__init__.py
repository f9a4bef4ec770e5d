"""The command ``crumb``: read arguments and settings, call a subcommand, print."""

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
from typing import Any

from benchmarks_toybox_ilab.tables.disk_errors import disk_advice
from benchmarks_toybox_ilab.tables.text import ListedError, printable, safe_output
from crumb_avalanche.system.process import limit_openmp_spin

CLOSED_PIPE = 128 + 13  # of SIGPIPE, as shells have it; Windows has no such signal
OUTPUT_LOST = 74  # EX_IOERR of sysexits.h
# Commands whose work is what they print; "" is ``crumb`` alone, which prints its help.
PRINTING_COMMANDS = {
    "",
    "backbones",
    "learner show",
    "learner lessons",
    "predict",
    "serve",
    "strategies",
}
# What to do after an interrupt, by command.
STOPPED_ADVICE = {
    **dict.fromkeys(
        ("demo", "prepare", "pretrain"),
        "what was finished is kept, and the same command resumes there",
    ),
    **dict.fromkeys(("connect", "serve"), "every change that was answered is saved"),
    "run": (
        "the same command resumes after the last finished experience, or later with "
        "--checkpoint-every"
    ),
    "teach": (
        "the lesson is not learned unless a line says so, and the same command starts "
        "it again"
    ),
}
# Module and function of the commands that have no module of their own here.
FUNCTIONS_ELSEWHERE = {
    "connect": ("crumb_avalanche.cli.serve", "connect"),
    "demo": ("crumb_avalanche.cli.run", "demo"),
    "export": ("crumb_avalanche.cli.learner", "export"),
    "pretrain": ("crumb_avalanche.runs.pretrain", "main"),
    "report": ("crumb_avalanche.report.report", "main"),
}
NO_MEMORY = "can't allocate memory"  # in torch's error
# in torch's error, too
LOST_WORKER = re.compile(
    r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (is killed|exited unexpectedly)"
)
# in errors of a loader process, whose traceback torch adds to their text
WORKER_TRACEBACK = "in DataLoader worker process"


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand; print errors that the user can fix in one line.

    Returns:
        The exit code: 0; 1 for an error; 2 for arguments that cannot be read; 74 if all
        is done but standard output could not be written; 128 and the number of the
        signal that ended the command.
    """
    limit_openmp_spin()  # of idle threads, which would slow down other processes
    open_standard_streams()
    if arguments is None:
        arguments = sys.argv[1:]
    with safe_output(), terminated_as_interrupted():
        try:
            code = run_command(arguments)
        except SystemExit as end:  # of the parser; --help is an answer of any command
            if end.code:
                raise
            lost_code = code_of_lost_output([])  # 0 if nothing is lost
            if lost_code:
                return lost_code
            raise
        return code_of_lost_output(arguments) or code


def open_standard_streams() -> None:
    """Open the null device in place of standard streams that the shell closed.

    Otherwise the first file that is opened takes their number, and what is printed; and
    Python has ``None`` for the streams, on which no library can print.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def run_command(arguments: list[str]) -> int:
    """Run a subcommand, print its error if it has one, and return the exit code.

    Args:
        arguments: of the command line; the first one names the command.

    Raises:
        SystemExit: of the parser, after ``--help`` or a wrong argument.
        Exception: a bug, whose traceback helps to find it.
    """
    name = arguments[0] if arguments else ""
    try:
        with interrupted_later():
            # Here, because they take a while.
            from crumb_avalanche.cli.commands import COMMANDS
            from crumb_avalanche.cli.parser import command_and_settings, usable_paths

            name, values = command_and_settings(arguments)
        settings = COMMANDS[name].settings(**usable_paths(values))  # checks them
        with short_warnings():
            command_function(name)(settings)
        return 0
    except KeyboardInterrupt as error:
        advice = STOPPED_ADVICE.get(name, "the same command starts again")
        print(f"crumb {name}: stopped; {advice}", file=sys.stderr)
        if isinstance(error, TerminatedError):
            return 128 + signal.SIGTERM
        return 128 + signal.SIGINT
    except (
        ValueError,
        OSError,
        ImportError,
        TypeError,
        RuntimeError,
        MemoryError,
    ) as error:
        lost_code = 0
        if isinstance(error, OSError):
            lost_code = code_of_lost_output(arguments)
        if lost_code:
            return lost_code
        text = words_for(error)
        if text is None:
            raise  # a bug, not bad input: show the traceback
        if not isinstance(error, ListedError):  # whose lines are printable
            text = printable(text)
        print(f"crumb {name}: {text}", file=sys.stderr)
        return 1


def command_function(name: str) -> Callable[[Any], None]:
    """Import the function of a command, which takes its settings."""
    usual_names = (f"crumb_avalanche.cli.{name}", "main")
    module_name, function_name = FUNCTIONS_ELSEWHERE.get(name, usual_names)
    with interrupted_later():
        module = import_module(module_name)
    return getattr(module, function_name)


def code_of_lost_output(arguments: list[str]) -> int:
    """Flush standard output, and return the exit code if it takes no more.

    Then a line on stderr says so, but not where the reader of an answer has read enough
    (``crumb predict ... | head``), and later output goes to the null device.

    Args:
        arguments: of the command line.

    Returns:
        ``CLOSED_PIPE``, ``OUTPUT_LOST``, or 0 if the output took all.
    """
    output: Any = sys.stdout
    try:
        # A ``SafeStream`` keeps the first error of writing instead of raising it.
        earlier_error = getattr(output, "error", None)
        if earlier_error is not None:
            raise earlier_error
        output.flush()
    except OSError as error:
        output.error = None
        with suppress(OSError):  # Python's own flush at the end would fail, too
            os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        name = arguments[0] if arguments else ""
        # Such as ``predict``, or ``learner show``.
        name_and_action = " ".join(arguments[:2])
        prints_answer = not PRINTING_COMMANDS.isdisjoint({name, name_and_action})
        is_closed_pipe = isinstance(error, BrokenPipeError)
        reader_has_enough = is_closed_pipe and prints_answer
        if not reader_has_enough:
            command = f"crumb {name}".rstrip()
            print(
                f"{command}: standard output takes no more ({error.strerror}): what it "
                "says is lost, what it saves is saved",
                file=sys.stderr,
            )
        return CLOSED_PIPE if is_closed_pipe else OUTPUT_LOST
    return 0


def words_for(error: Exception) -> str | None:
    """Return what to print for an error that the user can cure; ``None`` for a bug.

    A bug is an error of Python's own, whose text says nothing to a user.
    """
    text = str(error)
    error_class = type(error)
    is_runtime_error = error_class is RuntimeError
    if isinstance(error, MemoryError) or (is_runtime_error and NO_MEMORY in text):
        return (
            "there is too little memory; close other programs, or lower --batch-size, "
            "--image-size or --workers"
        )
    if is_runtime_error and LOST_WORKER.search(text):
        return (
            "a loader process was killed, perhaps for want of memory; what was "
            "finished is kept: give the same command again, with fewer --workers or a "
            "smaller --batch-size"
        )
    # Errors of libraries and of this package say what to do; Python's own may be bugs.
    is_of_package = error_class.__module__ != "builtins"
    # An error in a loader process has its traceback in its text: the last line counts.
    if is_of_package and WORKER_TRACEBACK in text:
        last_line = text.strip().splitlines()[-1]
        _, _, message = last_line.partition(": ")
        return message
    if isinstance(error, OSError):
        cure = disk_advice(error)
        if cure is not None:
            return cure
    # The system's own has a number.
    is_path_error = isinstance(error, FileNotFoundError | IsADirectoryError)
    is_path_error_of_ours = is_path_error and error.errno is None
    if is_of_package or is_path_error_of_ours:
        return text
    if isinstance(error, ValueError | ImportError | FileExistsError):
        return text
    return None


@contextmanager
def short_warnings() -> Iterator[None]:
    """Print warnings to the user as one line, in the ``with`` block.

    Warnings for programmers keep their form, with the line of code that warns.
    """
    default_format = warnings.formatwarning

    def short_format(
        message: Warning | str, category: type[Warning], *position: Any
    ) -> str:
        if category is UserWarning:
            return f"warning: {printable(message)}\n"
        return default_format(message, category, *position)

    warnings.formatwarning = short_format  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            # Pillow's, about images that open_image decodes at a reduced size or
            # refuses.
            warnings.filterwarnings("ignore", "Image size .* exceeds limit")
            yield
    finally:
        warnings.formatwarning = default_format


class TerminatedError(KeyboardInterrupt):
    """SIGTERM: what catches an interrupt saves its work and ends."""


@contextmanager
def _signals_handled_by(
    handler: Callable[[int, FrameType | None], object], *signals: int
) -> Iterator[None]:
    """Call a handler for signals in a ``with`` block, and restore what was set before.

    Signals that the process ignores stay ignored; only a main thread can handle any.
    """
    earlier_handlers: dict[int, Any] = {}  # by number of the signal
    if threading.current_thread() is threading.main_thread():
        for number in signals:
            earlier_handler = signal.getsignal(number)
            if earlier_handler not in (None, signal.SIG_IGN):
                earlier_handlers[number] = earlier_handler
    for number in earlier_handlers:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier_handler in earlier_handlers.items():
            signal.signal(number, earlier_handler)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Raise ``TerminatedError`` in the ``with`` block on SIGTERM.

    As Python raises ``KeyboardInterrupt`` on SIGINT.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise TerminatedError

    with _signals_handled_by(stop, signal.SIGTERM):
        yield


@contextmanager
def interrupted_later() -> Iterator[None]:
    """Delay SIGINT and SIGTERM to the end of the ``with`` block.

    For imports: modules written in C turn an interrupt into other errors, or into none.
    """
    received_signals: list[int] = []

    def note_signal(number: int, frame: FrameType | None) -> None:
        received_signals.append(number)

    with _signals_handled_by(note_signal, signal.SIGINT, signal.SIGTERM):
        yield
    if received_signals:
        signal.raise_signal(received_signals[0])
