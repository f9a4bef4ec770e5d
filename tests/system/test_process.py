"""A process: threads that sleep soon unless the user says otherwise, and tensors of a batch that reuse freed memory."""

import os
import subprocess
import sys

import pytest

from crumb_avalanche.system.process import SPIN_SETTINGS

CODE = """
import os, sys
from crumb_avalanche.system.process import limit_openmp_spin
limit_openmp_spin()
print("torch" in sys.modules, os.environ.get("GOMP_SPINCOUNT"), os.environ.get("OMP_WAIT_POLICY"))
"""


def printed(code, environment):
    """Return the words that a process prints in an environment with these settings of threads alone."""
    others = {name: value for name, value in os.environ.items() if name not in SPIN_SETTINGS}
    done = subprocess.run([sys.executable, "-c", code], env=others | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, ["False", "2000", "None"]),
        ({"GOMP_SPINCOUNT": "7"}, ["False", "7", "None"]),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, ["False", "None", "ACTIVE"]),
    ],
)
def test_threads_sleep_soon_unless_the_user_says_otherwise(environment, words):
    assert printed(CODE, environment) == words
