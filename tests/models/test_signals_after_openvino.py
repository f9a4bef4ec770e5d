"""Signals reach a process that has closed networks of OpenVINO, in any order."""

import subprocess
import sys

import pytest

SCRIPT = """
import gc, signal
import torch
from crumb_avalanche.models.engines import onnx_of
from crumb_avalanche.models.int8 import openvino_engine

graph = onnx_of(torch.nn.Conv2d(3, 4, 3), torch.zeros(1, 3, 8, 8))
first, second = openvino_engine(graph), openvino_engine(graph)
assert first(torch.zeros(2, 3, 8, 8)).equal(second(torch.zeros(2, 3, 8, 8)))
del first
gc.collect()
del second
gc.collect()
signal.signal(signal.SIGTERM, lambda *_: print("saved"))
signal.raise_signal(signal.SIGTERM)
"""


def test_a_signal_is_handled_after_two_networks_are_closed():
    for package in ("openvino", "onnx"):
        pytest.importorskip(package)
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "saved\n"), done.stderr
