"""Processes that have the library imported, forked from the server that sweeps use: importing takes seconds."""

import contextlib
import multiprocessing
import os
import runpy
import sys

CONTEXT = multiprocessing.get_context("forkserver")
# Processes round as that of the tests does.
ROUNDING = ["other_rounding"] if "CRUMB_TEST_ROUNDING" in os.environ else []
CONTEXT.set_forkserver_preload(["crumb_avalanche.runs.run", *ROUNDING])


def _crumb(arguments, output):
    from crumb_avalanche.cli import main

    with open(output, "w") as file, contextlib.redirect_stdout(file):
        sys.exit(main(arguments))


def _script(arguments, environment):
    os.environ.update(environment)
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


def start_crumb(*arguments, output=os.devnull):
    """Start ``crumb ARGUMENTS`` in a process that prints to a file."""
    return _started(_crumb, list(map(str, arguments)), output)


def start_script(*arguments, **environment):
    """Start ``python ARGUMENTS`` in a process, with variables of its environment."""
    return _started(_script, list(map(str, arguments)), environment)


def _started(target, *arguments):
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    return process
