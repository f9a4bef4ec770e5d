"""What tests of engines share."""

import pytest

from crumb_avalanche.runs.settings import RunSettings


@pytest.fixture
def base(clips):
    """Settings of a run of seconds."""
    return RunSettings(
        benchmark="clip_folder",
        dataset_root=str(clips),
        preset="paper",
        backbone="small_cnn",
        weights="none",
        image_size=32,
        strategy="finetune",
        first_epochs=1,
        threads=1,
        keep_learner=False,
        progress=False,
    )


@pytest.fixture
def another_version(monkeypatch):
    """This process has another version of the package than its workers."""
    name = "crumb_avalanche.runs.worker_check.library_versions"
    monkeypatch.setattr(name, lambda: {"crumb-avalanche": "99.0"})
