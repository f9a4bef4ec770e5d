"""Fixtures of these tests, and those that tests of several rooms share."""

import pytest
from fake_videos import write_video
from learner_fixtures import make, network, served  # noqa: F401


@pytest.fixture(scope="session")
def video(tmp_path_factory):
    """A video of 3 seconds with 10 frames per second."""
    pytest.importorskip("av")
    path = tmp_path_factory.mktemp("video") / "clip.mp4"
    return write_video(path, faststart=True)
