"""Threads of a process sleep soon unless the user says otherwise."""

import os

import pytest

from crumb_avalanche.system.process import limit_openmp_spin


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
