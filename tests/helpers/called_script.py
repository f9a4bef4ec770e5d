"""Scripts of experiments/ called as from the command line, and handmade run folders
that they read.
"""

import contextlib
import io
import json
import runpy
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def called(script: str, *options) -> subprocess.CompletedProcess:
    """Do what ``python experiments/SCRIPT.py OPTIONS`` does, in this process, as
    importing the library takes seconds.

    Processes that a script starts are forked from a server that the tests of all
    scripts share.
    """
    arguments = [str(EXPERIMENTS / f"{script}.py"), *map(str, options)]
    out, err = io.StringIO(), io.StringIO()
    code = None
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", arguments),
    ):
        try:
            runpy.run_path(arguments[0], run_name="__main__")
        except SystemExit as end:
            code = end.code
        if isinstance(code, str):  # as Python itself does
            print(code, file=sys.stderr)
            code = 1
    return subprocess.CompletedProcess(
        arguments, code or 0, out.getvalue(), err.getvalue()
    )


def made_run(
    folder: Path,
    right: int,
    images: int = 200,
    first: float = 90.0,
    joint: bool = False,
    shift: int = 0,
):
    """A finished run that has the first `right` of its test images right.

    Args:
        folder: of the run.
        right: number of right answers; final accuracy is their share.
        images: of the test set, two classes in turn.
        first: accuracy in percent after the first experience.
        joint: whether all classes were learned at once.
        shift: of the row numbers, so that the test images are others.
    """
    folder.mkdir(parents=True)
    final = 100 * right / images
    after = [final] if joint else [first, final]
    result = {
        "final_accuracy": final,
        "learning_rate": 0.003,
        "accuracy_after": after,
        "final_accuracy_per_experience": [final, final],
    }
    labels = np.arange(images) % 2
    answers = np.where(np.arange(images) < right, labels, 1 - labels)
    rows = np.arange(images) + shift
    columns = dict(
        row=rows.astype(np.int32),
        label=labels.astype(np.int32),
        answer=answers.astype(np.int32),
        confidence=np.full(images, 0.5, dtype=np.float32),
    )
    np.savez(folder / "predictions.npz", **columns)
    (folder / "result.json").write_text(json.dumps(result))
    return folder
