"""A file is there whole or not at all."""

import os

import pytest
import torch

from crumb_avalanche.weights import save_safetensors
from crumb_avalanche.whole_file import whole_file


def test_the_file_appears_at_the_end(tmp_path):
    path = tmp_path / "new" / "folder" / "file.txt"
    with whole_file(path) as unfinished:
        unfinished.write_text("first")
        assert not path.exists()
    assert path.read_text() == "first" and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_error_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "file.txt"
    path.write_text("first")
    with pytest.raises(type(error)), whole_file(path) as unfinished:
        unfinished.write_text("sec")
        raise error
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]


def test_two_writers_do_not_meet(tmp_path, monkeypatch):
    path = tmp_path / "file.txt"
    with whole_file(path) as one:
        one.write_text("one")
        monkeypatch.setattr("os.getpid", lambda: -1)
        with whole_file(path) as other:
            other.write_text("other")
        assert path.read_text() == "other"
    assert path.read_text() == "one"


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_others_may_read_what_they_may_read_of_plain_files(tmp_path, umask):
    before = os.umask(umask)
    try:
        (tmp_path / "plain").write_text("text")
        save_safetensors(tmp_path / "model.safetensors", {"rows": torch.ones(2)}, {})
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode for name in ("plain", "model.safetensors")]
    assert modes[0] == modes[1]
