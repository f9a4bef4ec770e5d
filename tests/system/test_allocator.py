"""Tensors of a batch's size reuse freed memory."""

import subprocess
import sys

import pytest

from crumb_avalanche.system.allocator import keep_freed_memory

PAGES = """
import resource, sys, torch
from crumb_avalanche.system.allocator import keep_freed_memory
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    print(keep_freed_memory(), end=" ")
def batch():
    return torch.ones(11_000_000).mul(2)  # 44 MB, twice
for _ in range(10):
    batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_batches_reuse_memory():
    def said(*arguments: str) -> list[str]:
        done = subprocess.run([sys.executable, "-c", PAGES, *arguments], capture_output=True, text=True, check=True)
        return done.stdout.split()

    known, kept = said("keep") if sys.platform == "linux" else ("False", "0")
    if known == "False":
        pytest.skip("the C library is not glibc")
    # Ten pairs of batches are 215,000 pages of 4 kB; fewer where the system gives out larger ones.
    assert known == "True" and int(kept) < max(1000, int(said("leave")[0]) / 10)


def test_without_glibc_nothing_changes(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert keep_freed_memory() is False
