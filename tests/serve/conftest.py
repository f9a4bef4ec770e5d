"""Fixtures that tests of several rooms share, and a served learner."""

import pytest
from http_lessons import ORIGIN, TOKEN, teach
from learner_fixtures import make, network, served  # noqa: F401

from crumb_avalanche.learner.learner import Learner


@pytest.fixture
def shared(weights_file, tmp_path):
    """A learner that several ask and change, which was taught nothing."""
    pytest.importorskip("fastapi")
    from crumb_avalanche.serve.shared import SharedLearner

    path = tmp_path / "mine.safetensors"
    learner = Learner("recommended", "small_cnn", weights_file, 32)
    learner.save(path)
    shared = SharedLearner(learner, path)
    yield shared
    shared.close()


@pytest.fixture
def client(shared):
    """A client that has the token."""
    pytest.importorskip("httpx")
    from starlette.testclient import TestClient

    from crumb_avalanche.serve.server import application

    app = application(shared, TOKEN, [ORIGIN])
    with TestClient(app, ORIGIN, headers={"X-Crumb-Token": TOKEN}) as client:
        yield client


@pytest.fixture
def taught(client):
    """A client of a server that was taught red and green, four images each."""
    teach(client, "red")
    teach(client, "green")
    return client
