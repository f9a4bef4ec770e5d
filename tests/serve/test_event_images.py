"""Images that events name by their path in a folder."""

import pytest

from crumb_avalanche.serve import event_images
from crumb_avalanche.serve.event_images import EventImages


@pytest.fixture
def images(tmp_path, monkeypatch):
    """Images of a folder, of which files of ten bytes are read."""
    monkeypatch.setattr(event_images, "MOST_BYTES", 10)
    return EventImages(str(tmp_path))


def test_the_largest_file_that_is_read(images, tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"0123456789")
    assert images.read({"path": "a.jpg"}) == b"0123456789"


def test_a_larger_file_is_not_cut(images, tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"0123456789+")
    with pytest.raises(ValueError, match="the image has more than 10 bytes"):
        images.read({"path": "a.jpg"})
