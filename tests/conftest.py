"""One thread, so that tests neither fight for cores nor depend on their number; no deadline on a busy machine."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile("quick", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("quick")


def pytest_runtest_setup(item):
    torch.set_num_threads(1)  # a command that a test before ran may have set its own number
