"""Checkpoint files: whole or not there, the newest good one is found, others' are refused, nothing in them is run."""

import errno
import json
import pickle

import pytest
import torch

from crumb_avalanche.models import weights
from crumb_avalanche.training import checkpoint
from crumb_avalanche.training.checkpoint import CheckpointError, CheckpointFolder, digest

SETTINGS = {"learning_rate": 0.001, "strategy": "crumb"}
TENSORS = {"t0": torch.arange(6.0).view(2, 3), "t1": torch.tensor(7), "t2": torch.empty(0)}


@pytest.fixture
def files(tmp_path):
    return CheckpointFolder(tmp_path / "resume", SETTINGS)


def test_what_is_written_is_read(files):
    assert files.newest() is None
    files.write({"place": 3}, '{"a": 1}', TENSORS)
    found = files.newest()
    assert (found.number, found.notes, found.tree) == (0, {"place": 3}, '{"a": 1}')
    assert all(torch.equal(found.tensors[name], TENSORS[name]) for name in TENSORS)


def test_the_newest_two_are_kept(files):
    for place in range(5):
        files.write({"place": place}, "{}", TENSORS)
    assert files.numbers() == [4, 3]
    assert files.newest().notes == {"place": 4}


def test_all_is_removed_but_a_name(files):
    files.clear()  # nothing there yet
    files.write({}, "{}", TENSORS)
    (files.folder / "maps").mkdir()
    (files.folder / "maps" / "lock").touch()
    (files.folder / "lock").touch()
    files.clear(but="lock")
    assert [path.name for path in files.folder.iterdir()] == ["lock"]
    files.clear()
    assert not files.folder.exists()


def test_the_newest_is_removed_last(files, monkeypatch):
    for place in range(2):
        files.write({"place": place}, "{}", TENSORS)
    (files.folder / "maps").mkdir()
    unlink = type(files.folder).unlink

    def cut_off(path, missing_ok=False):
        if path == files.path(1):
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    monkeypatch.setattr(type(files.folder), "unlink", cut_off)
    with pytest.raises(KeyboardInterrupt):
        files.clear()
    assert [path.name for path in files.folder.iterdir()] == ["00000001.safetensors"]


@pytest.mark.parametrize("position", [0.001, 0.3, 0.6, 0.999])
def test_a_flipped_bit_anywhere_is_noticed_and_the_one_before_it_is_taken(files, position):
    files.write({"place": 0}, '{"a": 1}', TENSORS)
    path = files.write({"place": 1}, '{"a": 1}', TENSORS)
    content = bytearray(path.read_bytes())
    content[int(position * len(content))] ^= 0x10
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=r"00000001.safetensors is damaged; looking at the one before it"):
        assert files.newest().notes == {"place": 0}


def test_a_damaged_one_is_given_up_before_the_good_one(files):
    for place in range(3):
        files.write({"place": place}, "{}", TENSORS)
    files.path(2).write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="is damaged"):
        files.newest()
    files.write({"place": 3}, "{}", TENSORS)
    assert files.numbers() == [3, 1]
    files.path(3).write_bytes(b"damaged too")
    with pytest.warns(UserWarning, match="is damaged"):
        assert files.newest().notes == {"place": 1}
    files.clear()
    for place in range(5):
        files.write({"place": place}, "{}", TENSORS)
    assert files.numbers() == [4, 3]


def test_a_cut_off_file_and_nothing_good_at_all(files):
    path = files.write({}, "{}", TENSORS)
    path.write_bytes(path.read_bytes()[:40])
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole"),
    ):
        files.newest()


def test_a_pickle_in_its_place_is_never_run(files, tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "run"), "w"))

    path = files.write({}, "{}", TENSORS)
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.warns(UserWarning, match="is damaged"), pytest.raises(CheckpointError, match="remove that folder"):
        files.newest()
    assert not (tmp_path / "run").exists()


def test_other_settings_are_refused_by_name(files):
    files.write({}, "{}", TENSORS)
    other = CheckpointFolder(files.folder, {**SETTINGS, "learning_rate": 0.01})
    words = "holds checkpoints made with learning_rate=0.001, not 0.01; go on with the same settings, use another"
    with pytest.raises(CheckpointError, match=words):
        other.newest()


def test_a_full_disk_leaves_the_earlier_ones(files, monkeypatch):
    files.write({"place": 0}, "{}", TENSORS)

    def full(tensors, path, metadata):
        with open(path, "wb") as file:
            file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(weights, "save_file", full)
    words = r"00000001.safetensors cannot be written \(.*No space left on device\); the one before it is untouched"
    with pytest.raises(CheckpointError, match=words):
        files.write({"place": 1}, "{}", TENSORS)
    assert [path.name for path in files.folder.iterdir()] == ["00000000.safetensors"]
    assert files.newest().notes == {"place": 0}


def test_the_digest_depends_on_everything():
    texts = {"settings": "a", "notes": "b", "tree": "c"}
    first = digest(texts, TENSORS)
    others = [
        digest({**texts, "tree": "d"}, TENSORS),
        digest(texts, {**TENSORS, "t1": torch.tensor(8)}),
        digest(texts, {**TENSORS, "t0": torch.arange(6.0).view(3, 2)}),
        digest(texts, {**TENSORS, "t0": TENSORS["t0"].double()}),
        digest(texts, {name: TENSORS[name] for name in ("t0", "t1")}),
    ]
    assert len({first, *others}) == 6
    assert digest(dict(reversed(texts.items())), dict(reversed(TENSORS.items()))) == first


def test_metadata_are_plain_text(files):
    path = files.write({"place": 1}, "{}", TENSORS)
    metadata = weights.read_metadata(path)
    assert metadata["format"] == checkpoint.FORMAT and json.loads(metadata["settings"]) == SETTINGS
