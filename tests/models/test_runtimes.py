"""Runtimes of F: the same maps up to rounding, refused where they differ."""

import copy
import pickle

import pytest
import torch

from crumb_avalanche.models import runtimes
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.map_store import MapStore
from crumb_avalanche.models.runtimes import RUNTIMES, RuntimeRefusedError, use_runtime


@pytest.fixture
def network():
    """A network with batch norm, whose statistics are not those of a new one."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = split_backbone("small_cnn", weights=None, n_classes=3, image_size=32, codebook=None)
        for layer in model.feature_extractor:
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.running_mean.normal_()
                layer.running_var.uniform_(0.5, 2)
    return model


@pytest.fixture
def images():
    return torch.randint(0, 256, (19, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_a_runtime_computes_the_maps_of_torch(network, images, tmp_path):
    name = "onnxruntime"
    pytest.importorskip(name), pytest.importorskip("onnx")
    expected = network.extract(images)
    plain = MapStore(tmp_path, network, 3, "key").path
    runtime = use_runtime(network, name)
    assert runtime is network.runtime and str(runtime) == f"{name} {runtime.version}" and runtime.difference < 1e-5
    maps = network.extract(images)
    assert 0 < float((maps - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    assert maps.is_contiguous(memory_format=torch.channels_last) and not maps.is_inference()
    for part in (slice(0, 1), slice(7, 12), slice(16, 19)):
        assert torch.equal(network.extract(images[part]), maps[part]), "the same bits in any batch"
    assert MapStore(tmp_path, network, 3, "key").path != plain
    for copied in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert copied.runtime.name == "torch" and torch.equal(copied.extract(images), expected)


def test_other_maps_are_refused(network, images, monkeypatch):
    expected = network.extract(images)
    monkeypatch.setitem(runtimes.BUILDERS, "compiled", lambda network, example: lambda images: network(images) * 1.001)
    with pytest.raises(RuntimeRefusedError, match=r"compiled differs from torch by 1\.0e-03.*1e-04.*--runtime torch"):
        use_runtime(network, "compiled")
    assert network.runtime.name == "torch" and torch.equal(network.extract(images), expected)
    monkeypatch.setitem(runtimes.BUILDERS, "compiled", lambda network, example: lambda images: network(images) / 0)
    with pytest.raises(RuntimeRefusedError, match="differs from torch by nan"):
        use_runtime(network, "compiled")


def test_what_cannot_run_says_why(network, monkeypatch):
    def absent(network, example):
        raise ImportError("No module named 'onnxruntime'")

    monkeypatch.setitem(runtimes.BUILDERS, "onnxruntime", absent)
    with pytest.raises(RuntimeRefusedError, match=r'install -e "\.\[onnx\]".*--runtime torch'):
        use_runtime(network, "onnxruntime")
    with pytest.raises(ValueError, match=f"'tpu'.*auto, {', '.join(RUNTIMES)}"):
        use_runtime(network, "tpu")
    network.precision = "bf16"
    with pytest.raises(RuntimeRefusedError, match=r"onnxruntime runs on a CPU in float32, not on cpu in bf16"):
        use_runtime(network, "onnxruntime")
    empty = split_backbone("small_cnn", weights=None, n_classes=2, image_size=32, codebook=None, cut_layer=0)
    assert use_runtime(empty, "onnxruntime").name == "torch", "F is empty"


def test_auto_is_onnxruntime_where_it_can_run_f_else_torch(network, monkeypatch):
    monkeypatch.delenv("CRUMB_RUNTIME")
    monkeypatch.setitem(runtimes.BUILDERS, "onnxruntime", lambda network, example: network)
    monkeypatch.setattr(runtimes, "version", lambda name: "1")
    assert str(use_runtime(network, "auto")) == "onnxruntime 1"
    monkeypatch.setenv("CRUMB_RUNTIME", "torch")
    assert use_runtime(network, "auto").name == "torch"
    monkeypatch.delenv("CRUMB_RUNTIME")
    monkeypatch.setitem(runtimes.BUILDERS, "onnxruntime", lambda network, example: lambda images: network(images) + 1)
    assert use_runtime(network, "auto").name == "torch", "refused"
    network.precision = "bf16"
    assert use_runtime(network, "auto").name == "torch"
