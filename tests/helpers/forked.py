"""Processes that have the library imported, forked from the server that sweeps use.

Importing takes seconds.
"""

import contextlib
import multiprocessing
import os
import sys

CONTEXT = multiprocessing.get_context("forkserver")
# Processes round as that of the tests does.
ROUNDING = ["other_rounding"] if "CRUMB_TEST_ROUNDING" in os.environ else []
CONTEXT.set_forkserver_preload(["crumb_avalanche.runs.run", *ROUNDING])


def _crumb(arguments, output, errors):
    from crumb_avalanche.cli import main

    with contextlib.ExitStack() as files:
        files.enter_context(
            contextlib.redirect_stdout(files.enter_context(open(output, "w")))
        )
        if errors:
            files.enter_context(
                contextlib.redirect_stderr(files.enter_context(open(errors, "w")))
            )
        sys.exit(main(arguments))


def start_crumb(*arguments, output=os.devnull, errors=None):
    """Start ``crumb ARGUMENTS`` in a process that prints to a file."""
    return start(_crumb, list(map(str, arguments)), output, errors)


def exit_code_of_fork(target, *arguments):
    """The exit code of a function in a process forked from this one.

    ``None`` if it hangs.
    """
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    process.join(60)
    code = process.exitcode
    process.kill()
    process.join()
    return code


def start(target, *arguments):
    """Start a function of a module in a process."""
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    return process
