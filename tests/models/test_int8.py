"""Runtime ``int8``: ranges measured on images, the same bits in any batch and copy, refused where they differ."""

import copy
import pickle

import pytest
import torch

from crumb_avalanche.models import int8
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.engines import TOLERANCE
from crumb_avalanche.models.int8 import restore
from crumb_avalanche.models.map_store import MapStore
from crumb_avalanche.models.runtimes import RuntimeRefusedError, use_runtime

for package in ("openvino", "onnx", "onnxruntime"):
    pytest.importorskip(package)


def network_of_seed(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return split_backbone("small_cnn", weights=None, n_classes=3, image_size=32, codebook=None)


@pytest.fixture
def network():
    return network_of_seed(0)


@pytest.fixture
def images():
    return torch.randint(0, 256, (19, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_ranges_of_images_decide_the_maps(network, images, tmp_path):
    expected, store = network.extract(images), MapStore(tmp_path, network, 3, "key").path
    runtime = use_runtime(network, "int8", [images[:8]])
    assert str(runtime).startswith("int8 ") and str(runtime).endswith(f"-{runtime.calibration.key}")
    assert "from torch's maps (allowed 0.2)" in runtime.described
    maps = network.extract(images)
    found = float((maps - expected).norm() / expected.norm())
    assert 0 < found < 0.1 and 0 < runtime.difference < 0.1
    for part in (slice(0, 1), slice(7, 12), slice(16, 19)):
        assert torch.equal(network.extract(images[part]), maps[part]), "the same bits in any batch"
    assert MapStore(tmp_path, network, 3, "key").path != store
    for copied in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert copied.runtime == runtime and torch.equal(copied.extract(images), maps)
    assert use_runtime(network, "auto") is use_runtime(network, "int8") is runtime
    with pytest.raises(RuntimeRefusedError, match=r"learned with runtime int8 .* those of torch: give --runtime int8"):
        use_runtime(network, "torch")
    again, other = network_of_seed(0), network_of_seed(0)
    assert use_runtime(again, "int8", [images[:4], images[4:8]]) == runtime, "the same images give the same graph"
    assert use_runtime(other, "int8", [images[8:]]) != runtime


def test_large_products_do_not_overflow_on_a_cpu_without_vnni(network, images):
    """Bright pixels and weights of one sign make the largest sums of two products."""
    with torch.no_grad():
        network.feature_extractor[0].weight.fill_(1)
    assert use_runtime(network, "int8", [images // 16 + 240]).difference < 0.05


def test_a_calibration_is_kept_and_checked(network, images, monkeypatch):
    runtime = use_runtime(network, "int8", [images])
    maps, state = network.extract(images), runtime.calibration.state_dict()
    loaded, fresh = network_of_seed(0), network_of_seed(0)
    restore(loaded, state, ["torch 2.4", str(runtime)])
    assert loaded.runtime == runtime and torch.equal(loaded.extract(images), maps)
    other = {**state, "graph": state["graph"].flip(0)}
    for kept, recorded, words in (
        (None, [str(runtime)], f"{runtime}, but the file holds no calibration: take the file"),
        (other, [str(runtime)], f"{runtime}, but it holds that of [0-9a-f]{{12}}: take the file"),
        (other, [], "int8 cannot run F"),
        ({**state, "means": state["means"] * 1.1}, [str(runtime)], "this machine computes other maps in int8"),
    ):
        with pytest.raises(RuntimeRefusedError, match=words):
            restore(fresh, kept, recorded)
    restore(fresh, None, ["torch 2.4"])
    assert fresh.runtime.name == "torch"

    def absent(graph):
        raise ImportError("No module named 'openvino'")

    monkeypatch.setattr(int8, "openvino_engine", absent)
    for call in (lambda: restore(fresh, state, [str(runtime)]), lambda: copy.deepcopy(network)):
        with pytest.raises(RuntimeRefusedError, match=r"'openvino'.*crumb-avalanche\[openvino,onnx\]"):
            call()


def test_what_cannot_be_calibrated_says_why(network, images, monkeypatch):
    for nothing in (None, iter(())):
        with pytest.raises(RuntimeRefusedError, match="measures ranges on images, and there are none: give them"):
            use_runtime(network, "int8", nothing)
    monkeypatch.setitem(TOLERANCE, "int8", 1e-6)
    with pytest.raises(RuntimeRefusedError, match=r"differs from torch by 0\.\d\d of the maps .*on 19 images.* 1e-06"):
        use_runtime(network, "int8", [images])
    network.precision = "bf16"
    with pytest.raises(RuntimeRefusedError, match="int8 runs on a CPU in float32, not on cpu in bf16"):
        use_runtime(network, "int8", [images])
    assert network.runtime.name == "torch"
