"""The ready splits, and ``split_at`` for other networks; the runtimes of F."""

import copy
import pickle
import re
from functools import partial

import pytest
import torch
from torch import nn
from torchvision import models

from crumb_avalanche.models import runtimes
from crumb_avalanche.models.backbones import BACKBONES, split_backbone
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.map_store import MapStore
from crumb_avalanche.models.networks import NETWORKS, SmallCNN
from crumb_avalanche.models.runtimes import RUNTIMES, RuntimeRefusedError, use_runtime
from crumb_avalanche.models.split_at import split_at

SHAPES = {
    "squeezenet1_0": (512, 13, 13),
    "squeezenet1_1": (512, 13, 13),
    "mobilenet_v2": (64, 14, 14),
    "resnet18": (512, 7, 7),
}
LITE = {
    "efficientnet_lite0": (224, (112, 14, 14)),
    "efficientnet_lite1": (240, (112, 15, 15)),
    "efficientnet_lite2": (260, (120, 17, 17)),
}


def images(size=64, count=2):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", SHAPES)
def test_networks_are_those_of_torchvision_to_the_bit_and_split_ones_still_are(name):
    """Initial weights for a seed, outputs and gradients; and the text of the layers, which is a key of map caches."""
    # torchvision's SqueezeNet has a ReLU behind its last convolution, which is a choice
    # here.
    relu = {"relu_logits": True} if "squeezenet" in name else {}
    model = split_backbone(
        name, None, n_classes=1000, **relu, codebook=Codebook(16, 16)
    ).eval()
    assert (model.image_size, model.map_shape, model.n_classes) == (
        224,
        SHAPES[name],
        1000,
    )
    networks, states, outputs = [], [], []
    for build in (NETWORKS[name], partial(models.get_model, name, weights=None)):
        torch.manual_seed(3)
        networks.append(build())
        states.append(
            {**networks[-1].state_dict(), "next random number": torch.rand(1)}
        )
        logits = networks[-1](images(40))  # in training mode, with dropout
        networks[-1].eval()
        gradients = torch.autograd.grad(logits.sum(), networks[-1].parameters())
        outputs.append([logits, networks[-1](images(40)), *gradients])
    assert list(states[0]) == list(states[1]) and all(
        map(torch.equal, states[0].values(), states[1].values())
    )
    assert all(map(torch.equal, *outputs))
    assert repr(networks[0]) == repr(networks[1])
    parts = [
        *model.feature_extractor.state_dict().values(),
        *model.plastic_layers.state_dict().values(),
    ]
    networks[1].load_state_dict(dict(zip(networks[1].state_dict(), parts, strict=True)))
    torch.testing.assert_close(
        model(images()), networks[1](images()), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", LITE)
def test_efficientnets_are_those_of_timm(name):
    timm = pytest.importorskip("timm")
    twin = timm.create_model(f"tf_{name}", num_classes=7).eval()
    model = split_backbone(name, None, n_classes=7, image_size=64, codebook=None).eval()
    values = iter(twin.state_dict().values())
    for part in (model.feature_extractor, model.plastic_layers):
        part.load_state_dict(dict(zip(part.state_dict(), values)))
    for side in (64, 75):  # strides pad even and odd sides differently
        torch.testing.assert_close(
            model(images(side)), twin(images(side)), rtol=1e-4, atol=1e-5
        )
    config, (size, shape) = twin.pretrained_cfg, LITE[name]
    usual = split_backbone(name, None, n_classes=7)
    assert (usual.image_size, usual.map_shape) == (size, shape) and config[
        "input_size"
    ] == (3, size, size)
    assert (*usual.pixel_mean.flatten(), *usual.pixel_std.flatten()) == (
        *config["mean"],
        *config["std"],
    )


@pytest.mark.parametrize(
    "name, cut, shape",
    [
        *((name, None, None) for name in BACKBONES),
        *(
            ("squeezenet1_0", 3, (96, 14, 14)),
            ("mobilenet_v2", 4, (24, 16, 16)),
            ("slim_resnet18", 5, (40, 32, 32)),
        ),
    ],
)
def test_every_backbone_and_other_cuts(name, cut, shape):
    at = {} if cut is None else {"cut_layer": cut}
    model = split_backbone(name, None, n_classes=2, **at, image_size=64, codebook=None)
    assert shape in (None, model.map_shape) and model(images()).shape == (2, 2)


def test_the_head_of_the_reference_code():
    common = dict(n_classes=4, image_size=64, codebook=None)
    model = split_backbone(
        "squeezenet1_0", None, head_kernel=3, relu_logits=True, **common
    )
    head = model.plastic_layers.head
    assert (head.kernel_size, head.padding, head.out_channels) == ((3, 3), (1, 1), 4)
    assert model(images()).min() >= 0
    torch.manual_seed(0)
    assert split_backbone("squeezenet1_0", None, **common)(images()).min() < 0
    with pytest.raises(
        ValueError, match="relu_logits and head_kernel describe SqueezeNet"
    ):
        split_backbone("resnet18", None, head_kernel=3, **common)


@pytest.mark.parametrize(
    "wrong, kind, words",
    [
        (dict(n_classes=0), ValueError, "n_classes is 0; give 1 or more"),
        (dict(n_classes=2.0), TypeError, "n_classes is 2.0; give a whole number"),
        (
            dict(codebook=256),
            TypeError,
            r"codebook is 256; give a Codebook, such as Codebook\(256, 16\), or None",
        ),
        (
            dict(image_size=(64, 64)),
            TypeError,
            r"image_size is \(64, 64\); give a whole number",
        ),
    ],
)
def test_wrong_arguments_are_errors(wrong, kind, words):
    arguments = dict(n_classes=2, codebook=Codebook(8, 16), image_size=64) | wrong
    with pytest.raises(kind, match=words):
        split_backbone("small_cnn", None, **arguments)
    with pytest.raises(kind, match=words):
        split_at(SmallCNN(), "features.12", **arguments)


def test_split_at_equals_the_whole_network():
    network = models.resnet18(weights=None).eval()
    wanted = network(images())
    fc = network.fc
    model = split_at(
        network, "layer4.0", n_classes=1000, codebook=Codebook(8, 16), image_size=64
    ).eval()
    assert model.map_shape == (512, 2, 2)
    model.plastic_layers.head.load_state_dict(fc.state_dict())
    torch.testing.assert_close(model(images()), wanted, rtol=1e-4, atol=1e-5)
    # Nothing of F is among the plastic layers, and the other way round.
    frozen, plastic = (
        set(map(id, part.parameters()))
        for part in (model.feature_extractor, model.plastic_layers)
    )
    assert not frozen & plastic and len(frozen | plastic) == len(
        list(models.resnet18(weights=None).parameters())
    )


class Skipping(nn.Module):
    """A network whose last sum needs the output of ``first``, and whose head, used last, is its first child."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 10)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.third = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        first = self.first(x)
        return self.head((first + self.third(self.second(first))).mean((2, 3)))


def test_split_at_names_the_crossing_connection():
    with pytest.raises(
        ValueError,
        match=re.escape(
            "cannot be cut after 'second': add also needs first from before"
        ),
    ):
        split_at(Skipping(), "second", n_classes=2, image_size=16)
    assert split_at(Skipping(), "first", n_classes=2, image_size=16)(
        images(16)
    ).shape == (2, 2)
    with pytest.raises(
        ValueError,
        match=re.escape(
            "'layer9': it has no node 'layer9'; around it are first, second"
        ),
    ):
        split_at(Skipping(), "layer9", n_classes=2, image_size=16)
    with pytest.raises(
        ValueError, match="no linear or convolutional layer that is used once follows"
    ):
        split_at(models.resnet18(weights=None), "fc", n_classes=2)


def test_a_codebook_is_made_by_default_where_f_is_not_empty():
    made = split_backbone("small_cnn", None, n_classes=2, image_size=32).codebook
    assert (made.codebook_size, made.codebook_dim) == (
        256,
        16,
    ) and not made.blocks.any()
    own = Codebook(8, 8)
    assert (
        split_backbone(
            "small_cnn", None, n_classes=2, image_size=32, codebook=own
        ).codebook
        is own
    )
    for none in (None, False):
        assert (
            split_backbone(
                "small_cnn", None, n_classes=2, image_size=32, codebook=none
            ).codebook
            is None
        )
    assert split_backbone("mlp", None, n_classes=2, image_size=8).codebook is None


@pytest.fixture
def network():
    """A network with batch norm, whose statistics are not those of a new one."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = split_backbone(
            "small_cnn", weights=None, n_classes=3, image_size=32, codebook=None
        )
        for layer in model.feature_extractor:
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.running_mean.normal_()
                layer.running_var.uniform_(0.5, 2)
    return model


@pytest.fixture
def images_of():
    return torch.randint(
        0,
        256,
        (19, 3, 32, 32),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(1),
    )


def test_a_runtime_computes_the_maps_of_torch(network, images_of, tmp_path):
    name = "onnxruntime"
    pytest.importorskip(name), pytest.importorskip("onnx")
    expected = network.extract(images_of)
    plain = MapStore(tmp_path, network, 3, "key").path
    runtime = use_runtime(network, name)
    assert (
        runtime is network.runtime
        and str(runtime) == f"{name} {runtime.version}"
        and runtime.difference < 1e-5
    )
    maps = network.extract(images_of)
    assert (
        0 < float((maps - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    )
    assert (
        maps.is_contiguous(memory_format=torch.channels_last)
        and not maps.is_inference()
    )
    for part in (slice(0, 1), slice(7, 12), slice(16, 19)):
        assert torch.equal(network.extract(images_of[part]), maps[part]), (
            "the same bits in any batch"
        )
    assert MapStore(tmp_path, network, 3, "key").path != plain
    for copied in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert copied.runtime.name == "torch" and torch.equal(
            copied.extract(images_of), expected
        )


def test_other_maps_are_refused(network, images_of, monkeypatch):
    expected = network.extract(images_of)
    monkeypatch.setitem(
        runtimes.BUILDERS,
        "compiled",
        lambda network, example: lambda images: network(images) * 1.001,
    )
    with pytest.raises(
        RuntimeRefusedError,
        match=r"compiled differs from torch by 1\.0e-03.*1e-04.*--runtime torch",
    ):
        use_runtime(network, "compiled")
    assert network.runtime.name == "torch" and torch.equal(
        network.extract(images_of), expected
    )
    monkeypatch.setitem(
        runtimes.BUILDERS,
        "compiled",
        lambda network, example: lambda images: network(images) / 0,
    )
    with pytest.raises(RuntimeRefusedError, match="differs from torch by nan"):
        use_runtime(network, "compiled")


def test_what_cannot_run_says_why(network, monkeypatch):
    def absent(network, example):
        raise ImportError("No module named 'onnxruntime'")

    monkeypatch.setitem(runtimes.BUILDERS, "onnxruntime", absent)
    with pytest.raises(
        RuntimeRefusedError, match=r'install -e "\.\[onnx\]".*--runtime torch'
    ):
        use_runtime(network, "onnxruntime")
    with pytest.raises(ValueError, match=f"'tpu'.*auto, {', '.join(RUNTIMES)}"):
        use_runtime(network, "tpu")
    network.precision = "bf16"
    with pytest.raises(
        RuntimeRefusedError,
        match=r"onnxruntime runs on a CPU in float32, not on cpu in bf16",
    ):
        use_runtime(network, "onnxruntime")
    empty = split_backbone(
        "small_cnn",
        weights=None,
        n_classes=2,
        image_size=32,
        codebook=None,
        cut_layer=0,
    )
    assert use_runtime(empty, "onnxruntime").name == "torch", "F is empty"


def test_auto_is_onnxruntime_where_it_can_run_f_else_torch(network, monkeypatch):
    monkeypatch.delenv("CRUMB_RUNTIME")
    monkeypatch.setitem(
        runtimes.BUILDERS, "onnxruntime", lambda network, example: network
    )
    monkeypatch.setattr(runtimes, "version", lambda name: "1")
    assert str(use_runtime(network, "auto")) == "onnxruntime 1"
    monkeypatch.setenv("CRUMB_RUNTIME", "torch")
    assert use_runtime(network, "auto").name == "torch"
    monkeypatch.delenv("CRUMB_RUNTIME")
    monkeypatch.setitem(
        runtimes.BUILDERS,
        "onnxruntime",
        lambda network, example: lambda images: network(images) + 1,
    )
    assert use_runtime(network, "auto").name == "torch", "refused"
    network.precision = "bf16"
    assert use_runtime(network, "auto").name == "torch"
