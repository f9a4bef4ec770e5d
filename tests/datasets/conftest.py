"""Folders that tests of several data sets share."""

import pytest


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    """Where Avalanche keeps data."""
    from avalanche.benchmarks.datasets import dataset_utils

    config = dataset_utils.AVALANCHE_CONFIG
    monkeypatch.setitem(config, "dataset_location", str(tmp_path))
    return tmp_path
