"""A process: threads that sleep soon unless the user says otherwise, and tensors of a batch that reuse freed memory."""

import os
import subprocess
import sys

import pytest

from crumb_avalanche.system.process import limit_openmp_spin

CODE = "import sys, crumb_avalanche.system.process; assert 'torch' not in sys.modules"


@pytest.mark.parametrize(
    ("given", "after"),
    [
        ({}, {"GOMP_SPINCOUNT": "2000"}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
    ],
)
def test_threads_sleep_soon_unless_the_user_says_otherwise(given, after, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(given))
    limit_openmp_spin()
    assert os.environ == after


def test_settings_of_threads_can_be_made_before_torch_is_imported():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
