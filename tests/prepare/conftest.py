"""A quiet `prepare` for every test of this folder."""

import pytest
from prepare_runs import Runner


@pytest.fixture
def run():
    return Runner()


@pytest.fixture
def said(run):
    return run.said
