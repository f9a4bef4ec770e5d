"""A process: threads that sleep soon unless the user says otherwise, and tensors of a batch that reuse freed memory."""

import ctypes
import os
import subprocess
import sys

import pytest
import torch

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


IDLE = """
import os, torch
from crumb_avalanche.system.process import end_idle_threads
def threads():
    return set(os.listdir("/proc/self/task"))  # ids, not a count: an ended thread may be listed for a moment
torch.set_num_threads(2)
alone = threads()
tensor = torch.arange(1e6)
expected = tensor * 3
started = threads() - alone
end_idle_threads()
again = tensor * 3
kept = started <= threads()
print(len(started), kept, torch.equal(again, expected), torch.get_num_threads())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(torch._C.__file__), "omp_pause_resource_all"), reason="the OpenMP of this torch is older"
)
@pytest.mark.parametrize(("environment", "kept"), [({}, False), ({"GOMP_SPINCOUNT": "2000"}, True)])
def test_threads_that_spin_for_long_are_ended_and_started_again(environment, kept):
    assert printed(IDLE, environment) == ["1", str(kept), "True", "2"]
