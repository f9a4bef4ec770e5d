"""A learner does not change with its file, which other programs may write to.

They do so in place, as ``cp backup.safetensors mine.safetensors`` does.
"""

import pytest
from small_lessons import images, same, taught

from crumb_avalanche.learner.learner import Learner


def overwrite(path, content):
    """Write to the file that is there, instead of replacing it."""
    with open(path, "r+b") as file:
        file.truncate(0)
        file.write(content)


@pytest.fixture
def content(request, make, tmp_path):
    """What is written to the file: nothing, zeros, or another learner."""
    if request.param == "nothing":
        return b""
    path = tmp_path / "other.safetensors"
    taught(make("ncm"), classes=2).save(path)
    content = path.read_bytes()
    return content if request.param == "another learner" else bytes(len(content))


@pytest.mark.parametrize(
    "content", ["nothing", "zeros", "another learner"], indirect=True
)
def test_a_learner_whose_file_is_overwritten(make, tmp_path, content):
    """It answers, learns, and can be saved elsewhere as if nothing had happened."""
    path = tmp_path / "mine.safetensors"
    expected = taught(make("ncm"))
    expected.save(path)
    learner = Learner.load(path)
    overwrite(path, content)
    assert same(learner, expected)
    learner.teach(images(5), "c5")
    expected.teach(images(5), "c5")
    learner.save(tmp_path / "elsewhere.safetensors")
    assert same(Learner.load(tmp_path / "elsewhere.safetensors"), expected)
