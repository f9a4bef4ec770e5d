"""Call the scripts of experiments/ as from the command line."""

import contextlib
import io
import runpy
import subprocess
import sys
from unittest import mock

from made_runs import EXPERIMENTS


def called(script: str, *options) -> subprocess.CompletedProcess:
    """Do what ``python experiments/SCRIPT.py OPTIONS`` does, in this process, as importing the library takes seconds.

    Processes that a script starts are forked from a server that the tests of all scripts share.
    """
    arguments = [str(EXPERIMENTS / f"{script}.py"), *map(str, options)]
    out, err = io.StringIO(), io.StringIO()
    code = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.object(sys, "argv", arguments):
        try:
            runpy.run_path(arguments[0], run_name="__main__")
        except SystemExit as end:
            code = end.code
        if isinstance(code, str):  # as Python itself does
            print(code, file=sys.stderr)
            code = 1
    return subprocess.CompletedProcess(arguments, code or 0, out.getvalue(), err.getvalue())
