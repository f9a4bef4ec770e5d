"""Runtime ``int8``: ranges measured on images, the same bits in any batch and copy, refused where they differ."""

import copy
import pickle

import pytest
import torch

from crumb_avalanche.models import int8, runtimes
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.engines import TOLERANCE
from crumb_avalanche.models.int8 import Calibration, restore
from crumb_avalanche.models.map_store import MapStore
from crumb_avalanche.models.runtimes import RuntimeRefusedError, use_runtime


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


@pytest.fixture
def packages():
    for package in ("openvino", "onnx", "onnxruntime"):
        pytest.importorskip(package)


def test_ranges_of_images_decide_the_maps(packages, network, images, tmp_path):
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
    assert not torch.equal(other.extract(images), maps)


def test_a_calibration_is_kept_and_checked(packages, network, images, monkeypatch):
    runtime = use_runtime(network, "int8", [images])
    maps, state = network.extract(images), runtime.calibration.state_dict()
    loaded = network_of_seed(0)
    restore(loaded, state, ["torch 2.4", str(runtime)])
    assert loaded.runtime == runtime and torch.equal(loaded.extract(images), maps)
    fresh = network_of_seed(0)
    with pytest.raises(RuntimeRefusedError, match=f"{runtime}, but the file holds no calibration: take the file"):
        restore(fresh, None, [str(runtime)])
    with pytest.raises(RuntimeRefusedError, match=f"{runtime}, but it holds that of [0-9a-f]{{12}}: take the file"):
        restore(fresh, {**state, "graph": state["graph"].flip(0)}, [str(runtime)])
    with pytest.raises(RuntimeRefusedError, match="int8 cannot run F"):
        restore(fresh, {**state, "graph": state["graph"].flip(0)}, [])
    with pytest.raises(RuntimeRefusedError, match="this machine computes other maps in int8"):
        restore(fresh, {**state, "means": state["means"] * 1.1}, [str(runtime)])
    restore(fresh, None, ["torch 2.4"])
    assert fresh.runtime.name == "torch"

    def absent(graph):
        raise ImportError("No module named 'openvino'")

    monkeypatch.setattr(int8, "openvino_engine", absent)
    with pytest.raises(RuntimeRefusedError, match=r"'openvino'.*crumb-avalanche\[openvino,onnx\]"):
        restore(fresh, state, [str(runtime)])
    with pytest.raises(RuntimeRefusedError, match=r"'openvino'.*crumb-avalanche\[openvino,onnx\]"):
        copy.deepcopy(network)


def test_what_cannot_be_calibrated_says_why(packages, network, images, monkeypatch):
    with pytest.raises(RuntimeRefusedError, match="measures ranges on images, and there are none: give them"):
        use_runtime(network, "int8")
    with pytest.raises(RuntimeRefusedError, match="there are none"):
        use_runtime(network, "int8", iter(()))
    monkeypatch.setitem(TOLERANCE, "int8", 1e-6)
    with pytest.raises(RuntimeRefusedError, match=r"differs from torch by 0\.\d\d of the maps .*on 19 images.* 1e-06"):
        use_runtime(network, "int8", [images])
    network.precision = "bf16"
    with pytest.raises(RuntimeRefusedError, match="int8 runs on a CPU in float32, not on cpu in bf16"):
        use_runtime(network, "int8", [images])
    assert network.runtime.name == "torch"


def test_auto_never_takes_int8(network, monkeypatch):
    def never(*arguments):
        raise AssertionError

    monkeypatch.setattr(int8, "open_int8", never)
    monkeypatch.setattr(runtimes, "TRIAL_SECONDS", 0)
    assert "int8" not in runtimes.trial(network)[1]


def test_the_state_of_a_calibration_is_plain():
    known = Calibration(b"graph", torch.ones(2), 0.1)
    again = Calibration.of_state(known.state_dict())
    assert (again.graph, again.key, again.difference) == (b"graph", known.key, 0.1)
    assert torch.equal(again.means, known.means)
