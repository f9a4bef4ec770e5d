"""Checkpoint files: atomic, the newest good one is found, those of other settings are refused, no code in them runs."""

import errno
import warnings

import pytest
import torch
from crafted import crafted, json_of
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from crumb_avalanche.system import tensor_file
from crumb_avalanche.training import checkpoint
from crumb_avalanche.training.checkpoint import CheckpointError, CheckpointFolder

SETTINGS = {"learning_rate": 0.001, "strategy": "crumb"}
TENSORS = {"t0": torch.arange(6.0).view(2, 3), "t1": torch.tensor(7), "t2": torch.empty(0)}


@pytest.fixture
def files(tmp_path):
    return CheckpointFolder(tmp_path / "resume", SETTINGS)


def test_a_checkpoint_reads_back_and_the_newest_two_are_kept(files):
    assert files.newest() is None
    for place in range(3):
        files.write({"place": place}, TENSORS)
    found = files.newest()
    assert (found.number, found.notes, files.numbers()) == (2, {"place": 2}, [2, 1])
    assert all(torch.equal(found.state[name], TENSORS[name]) for name in TENSORS)


def test_clear_keeps_the_given_file_and_removes_the_newest_last(files, monkeypatch):
    files.clear()  # nothing there yet
    for place in range(2):
        files.write({"place": place}, TENSORS)
    (files.folder / "maps").mkdir()
    (files.folder / "maps" / "lock").touch()
    unlink = type(files.folder).unlink

    def cut_off(path, missing_ok=False):
        if path == files.path(1):
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(files.folder), "unlink", cut_off)
        files.clear()
    assert [path.name for path in files.folder.iterdir()] == ["00000001.safetensors"]
    (files.folder / "lock").touch()
    files.clear(but="lock")
    assert [path.name for path in files.folder.iterdir()] == ["lock"]
    files.clear()
    assert not files.folder.exists()


def test_damaged_checkpoints_are_passed_over_and_removed_first(files):
    for place in range(3):
        files.write({"place": place}, TENSORS)
    files.path(2).write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="is damaged"):
        files.newest()
    files.write({"place": 3}, TENSORS)
    assert files.numbers() == [3, 1]
    files.path(3).write_bytes(files.path(3).read_bytes()[:40])
    with pytest.warns(UserWarning, match="is damaged"):
        assert files.newest().notes == {"place": 1}
    tensor_file.write_state(files.path(1), TENSORS, {"format": "of another program", "settings": "{}", "notes": "{}"})
    words = r"all checkpoints in .* are damaged; remove that folder"
    with pytest.warns(UserWarning, match="its format is of another"), pytest.raises(CheckpointError, match=words):
        files.newest()


def test_a_full_disk_leaves_the_earlier_ones(files, monkeypatch):
    files.write({"place": 0}, TENSORS)

    def full(tensors, path, metadata):
        with open(path, "wb") as file:
            file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tensor_file, "save_file", full)
    words = r"00000001.safetensors cannot be written \(.*No space left on device\); the one before it is untouched"
    with pytest.raises(CheckpointError, match=words):
        files.write({"place": 1}, TENSORS)
    assert [path.name for path in files.folder.iterdir()] == ["00000000.safetensors"]
    assert files.newest().notes == {"place": 0}


@settings(max_examples=100, phases=[Phase.generate])
@given(data=st.data())
def test_100_crafted_checkpoints(tmp_path_factory, data):
    """One that somebody wrote by hand, with right checksums, is read as it is or passed over with a line."""
    parts = {"settings": SETTINGS, "notes": {"place": 1}, "state": {**TENSORS, "list": [1, {"a": 2}]}}
    changed = crafted(data.draw, parts)
    files = CheckpointFolder(tmp_path_factory.mktemp("crafted"), SETTINGS)
    try:
        about = {name: json_of(changed[name]) for name in ("settings", "notes") if name in changed}
        tensor_file.write_state(files.path(0), changed.get("state"), {"format": checkpoint.FORMAT, **about})
    except (ValueError, RecursionError, TypeError):
        return  # no file can hold it
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = files.newest()
        except CheckpointError as error:
            assert "\n" not in str(error)
        else:
            assert isinstance(found.notes, dict)
    assert all("\n" not in str(one.message) for one in said)
