"""Learners with a small network of random weights."""

import pytest
from patch_images import SIZE

from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.network import FrozenNetwork


@pytest.fixture(scope="session")
def network(weights_file):
    return FrozenNetwork.build("small_cnn", weights_file, SIZE)


@pytest.fixture
def make(network):
    """A function that makes a learner with random weights, always the same."""

    def made(method="recommended", budget_bytes=4_000_000):
        learner = Learner.__new__(Learner)
        learner._set_up("rda" if method == "recommended" else method, network, budget_bytes)
        return learner

    return made
