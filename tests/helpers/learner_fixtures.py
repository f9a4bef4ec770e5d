"""Learners with a small network of random weights."""

import numpy as np
import pytest
from small_lessons import SIZE

from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.network import FrozenNetwork


@pytest.fixture(scope="session")
def network(weights_file):
    return FrozenNetwork.build("small_cnn", weights_file, SIZE)


@pytest.fixture(scope="session")
def make(network):
    """A function that makes a learner with random weights, always the same."""

    def made(method="recommended", budget_bytes=4_000_000):
        learner = Learner.__new__(Learner)
        learner._set_up(
            "rda" if method == "recommended" else method, network, budget_bytes
        )
        return learner

    return made


@pytest.fixture(scope="module")
def served(tmp_path_factory, weights_file):
    """A client of a server of two classes, what it knows, and the learner's file."""
    pytest.importorskip("fastapi")
    from starlette.testclient import TestClient

    from crumb_avalanche.serve.server import application
    from crumb_avalanche.serve.shared import SharedLearner

    origin, token = "http://127.0.0.1:8000", "the-token"
    path = tmp_path_factory.mktemp("served") / "mine.safetensors"
    learner = Learner("ncm", "small_cnn", weights_file, 32)
    for number, name in enumerate(("red", "green")):
        learner.teach(np.full((1, 32, 32, 3), 80 + 90 * number, np.uint8), name)
    learner.save(path)
    shared = SharedLearner(learner, path)
    with TestClient(
        application(shared, token, [origin]), origin, headers={"X-Crumb-Token": token}
    ) as client:
        yield (
            client,
            lambda: [(info.name, info.images) for info in shared.learner.classes],
            path,
        )
    shared.close()
