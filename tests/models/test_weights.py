"""Weight files: what goes in comes out, and nothing in them is ever run."""

import errno
import os
import pickle
import re

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from crumb_avalanche.models import weights
from crumb_avalanche.models.weights import (
    WeightsError,
    check_and_load,
    load_weights,
    read_metadata,
    read_weights,
    save_safetensors,
    weights_hash,
)


def network(seed=0, width=4):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.Linear(width, 2))


def write(path, state):
    """A state dict in the format that the suffix names."""
    if path.suffix == ".npz":
        np.savez(path, **{name: value.numpy() for name, value in state.items()})
    elif path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=path.suffix == ".pth")
    return path


@pytest.mark.parametrize("suffix", weights.SUFFIXES)
def test_every_format_gives_the_same_weights_back(tmp_path, suffix):
    source, target = network(1), network(2)
    load_weights(target, write(tmp_path / f"w{suffix}", source.state_dict()))
    for name, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], value), name


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".npz"])
def test_code_in_a_file_is_refused_and_not_run(tmp_path, suffix):
    path, trap = tmp_path / f"evil{suffix}", tmp_path / "sprung"
    if suffix == ".npz":
        np.savez(path, a=np.array([Trap(trap)], dtype=object))
    elif suffix == ".pth":
        torch.save({"a": Trap(trap)}, path)
    else:
        path.write_bytes(pickle.dumps({"a": Trap(trap)}, protocol=2))
    with pytest.raises(WeightsError, match=r"cannot be read.*it must hold tensors only"):
        read_weights(path)
    assert not trap.exists()


def test_the_trap_would_have_sprung(tmp_path):
    pickle.loads(pickle.dumps(Trap(tmp_path / "sprung"))).close()
    assert (tmp_path / "sprung").exists()


@pytest.mark.parametrize("suffix", weights.SUFFIXES)
def test_a_truncated_file_is_an_error_wherever_it_ends(tmp_path, suffix):
    path = write(tmp_path / f"w{suffix}", network().state_dict())
    whole = path.read_bytes()
    for end in [0, 1, 7, *range(20, len(whole) - 1, len(whole) // 12)]:
        path.write_bytes(whole[:end])
        with pytest.raises(WeightsError, match=re.escape(f"weight file {path} cannot be read")):
            read_weights(path)


def test_what_is_no_state_dict_is_an_error(tmp_path):
    for number, content in enumerate(([torch.ones(1)], {"epoch": 3})):
        path = tmp_path / f"{number}.pth"
        torch.save(content, path)
        with pytest.raises(WeightsError, match="does not hold a state dict"):
            read_weights(path)


def test_no_file_and_unknown_suffix(tmp_path):
    with pytest.raises(WeightsError, match=re.escape(f"there is no weight file {tmp_path / 'w.npz'}")):
        read_weights(tmp_path / "w.npz")
    (tmp_path / "w.h5").touch()
    with pytest.raises(WeightsError, match=re.escape("ends in '.h5'; known are .npz, .safetensors, .pth, .pt")):
        read_weights(tmp_path / "w.h5")


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda s: s.pop("2.weight"), "zoo.npz has no '2.weight', which Sequential needs"),
        (
            lambda s: s.update({"0.weight": torch.ones(5, 3, 3, 3), "2.bias": torch.ones(9)}),
            "zoo.npz has '0.weight' of shape (5, 3, 3, 3), Sequential needs (4, 3, 3, 3)",
        ),
        (lambda s: s.update({"fc": torch.ones(1)}), "zoo.npz has 'fc', which Sequential has no place for"),
    ],
)
def test_weights_of_another_model_change_nothing_and_name_the_first_mismatch(change, words):
    model, state = network(1), network(2).state_dict()
    before = weights_hash(model)
    change(state)
    with pytest.raises(WeightsError, match=re.escape(words) + ".*another model; choose the matching"):
        check_and_load(model, state, "zoo.npz")
    assert weights_hash(model) == before


def test_batch_counters_may_be_absent():
    model, state = network(1), network(2).state_dict()
    del state["1.num_batches_tracked"]
    check_and_load(model, state, "w.npz")
    assert torch.equal(model[0].weight, state["0.weight"])


def test_saving_keeps_values_and_metadata(tmp_path):
    table = torch.arange(24.0).view(1, 2, 3, 4)
    tensors = {"a": table.contiguous(memory_format=torch.channels_last), "b": table[0, 1], "same": table}
    path = tmp_path / "new folder" / "w.safetensors"
    save_safetensors(path, tensors, {"format": "x", "note": "été"})
    read = read_weights(path)
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)
    assert read_metadata(path) == {"format": "x", "note": "été"}
    assert os.listdir(path.parent) == ["w.safetensors"]


def test_a_save_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "w.safetensors"
    save_safetensors(path, {"a": torch.ones(2)}, {"version": "old"})

    def full_disk(tensors, temporary, metadata):
        with open(temporary, "wb") as file:
            file.write(b"half a")
        raise OSError("no space left on device")

    monkeypatch.setattr(weights, "save_file", full_disk)
    with pytest.raises(OSError, match="no space left"):
        save_safetensors(path, {"a": torch.zeros(2)}, {"version": "new"})
    assert os.listdir(tmp_path) == ["w.safetensors"]
    assert read_metadata(path) == {"version": "old"}
    assert read_weights(path)["a"].tolist() == [1, 1]


def test_a_full_disk_is_told_as_the_system_does(tmp_path, monkeypatch):
    def full_disk(tensors, temporary, metadata):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(weights, "save_file", full_disk)
    with pytest.raises(OSError, match=r"No space left on device.*w\.safetensors") as caught:
        save_safetensors(tmp_path / "w.safetensors", {"a": torch.zeros(2)}, {})
    assert caught.value.errno == errno.ENOSPC and os.listdir(tmp_path) == []


def test_metadata_of_no_or_half_a_file_is_an_error(tmp_path):
    path = tmp_path / "w.safetensors"
    with pytest.raises(WeightsError, match="there is no file"):
        read_metadata(path)
    path.write_bytes(b"half")
    with pytest.raises(WeightsError, match=re.escape("is no complete .safetensors file")):
        read_metadata(path)


def test_the_hash_sees_every_value_and_nothing_else():
    assert weights_hash(network(1)) == weights_hash(network(1).to(memory_format=torch.channels_last))
    other = network(1)
    with torch.no_grad():
        other[1].running_mean[2] += 1e-6
    assert weights_hash(network(1)) != weights_hash(other)
