"""The ready splits, ``split_at`` for other networks, and the runtimes of F."""

import copy
import pickle
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from torchvision import models

from crumb_avalanche.models import runtimes
from crumb_avalanche.models.backbones import BACKBONES
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.layers import trainable
from crumb_avalanche.models.map_store import MapStore
from crumb_avalanche.models.networks import NETWORKS, SmallCNN
from crumb_avalanche.models.runtimes import RUNTIMES, RuntimeRefusedError, use_runtime
from crumb_avalanche.models.split_at import split_at
from crumb_avalanche.models.split_backbone import split_backbone
from crumb_avalanche.models.weights import weights_hash

no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
# A tensor on the device "meta" has a shape alone: as on a GPU, an operation refuses
# tensors of another device.
DEVICES = ["meta", pytest.param("cuda", marks=[pytest.mark.cuda, no_gpu])]
CODEBOOK_WITH_BUFFERS = dict(tables=2, grouping="correlated", filtered=True)
# The map of each network after its usual cut.
MAPS = {
    "squeezenet1_0": (512, 13, 13),
    "squeezenet1_1": (512, 13, 13),
    "mobilenet_v2": (64, 14, 14),
    "resnet18": (512, 7, 7),
}
# The image size and the map.
LITE = {
    "efficientnet_lite0": (224, (112, 14, 14)),
    "efficientnet_lite1": (240, (112, 15, 15)),
    "efficientnet_lite2": (260, (120, 17, 17)),
}


def images(size=64, count=2):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, size, size, generator=generator)


def split_small(**arguments):
    return split_backbone("small_cnn", None, n_classes=2, image_size=32, **arguments)


def load_in_order(network, tensors):
    """Load tensors into a network by their order."""
    tensors = iter(tensors)
    state = {name: next(tensors) for name in network.state_dict()}
    network.load_state_dict(state)


# torchvision's networks


@dataclass(frozen=True)
class Drawn:
    """A network with weights of a seed, and the next random number."""

    network: nn.Module
    next_number: torch.Tensor


def drawn(build):
    torch.manual_seed(3)
    return Drawn(build(), torch.rand(1))


def in_training(network):
    """Logits with dropout, and their gradients."""
    torch.manual_seed(4)
    network.train()
    logits = network(images(40))
    return [logits, *torch.autograd.grad(logits.sum(), network.parameters())]


@pytest.fixture
def ours(name):
    return drawn(NETWORKS[name])


@pytest.fixture
def torchvisions(name):
    return drawn(partial(models.get_model, name, weights=None))


EVERY_NETWORK = pytest.mark.parametrize("name", MAPS)


@EVERY_NETWORK
def test_initial_weights_are_torchvisions(ours, torchvisions):
    state = ours.network.state_dict()
    expected = torchvisions.network.state_dict()
    assert list(state) == list(expected)
    assert all(map(torch.equal, state.values(), expected.values()))
    assert torch.equal(ours.next_number, torchvisions.next_number)


@EVERY_NETWORK
def test_gradients_are_torchvisions(ours, torchvisions):
    gradients = in_training(ours.network)
    assert all(map(torch.equal, gradients, in_training(torchvisions.network)))


@EVERY_NETWORK
def test_outputs_are_torchvisions(ours, torchvisions):
    logits = ours.network.eval()(images(40))
    assert torch.equal(logits, torchvisions.network.eval()(images(40)))


@EVERY_NETWORK
def test_layers_are_written_as_torchvisions(ours, torchvisions):
    # The text is a key of map caches.
    assert repr(ours.network) == repr(torchvisions.network)


def split_as_torchvision(name):
    """The split of a network with its 1,000 classes."""
    # torchvision's SqueezeNet has a ReLU behind its last convolution, which is a choice
    # here.
    options = {"relu_logits": True} if "squeezenet" in name else {}
    codebook = Codebook(16, 16)
    return split_backbone(name, None, n_classes=1000, codebook=codebook, **options)


@EVERY_NETWORK
def test_shapes_of_a_split(name):
    model = split_as_torchvision(name)
    assert model.image_size == 224
    assert model.map_shape == MAPS[name]
    assert model.n_classes == 1000


@EVERY_NETWORK
def test_a_split_computes_as_the_network(name, torchvisions):
    model = split_as_torchvision(name).eval()
    network = torchvisions.network.eval()
    frozen = model.feature_extractor.state_dict()
    plastic = model.plastic_layers.state_dict()
    load_in_order(network, [*frozen.values(), *plastic.values()])
    logits = model(images())
    torch.testing.assert_close(logits, network(images()), rtol=1e-4, atol=1e-5)


# timm's EfficientNets

EVERY_LITE = pytest.mark.parametrize("name", LITE)


@pytest.fixture
def timms(name):
    timm = pytest.importorskip("timm")
    return timm.create_model(f"tf_{name}", num_classes=7).eval()


@EVERY_LITE
@pytest.mark.parametrize("side", [64, 75])  # strides pad even and odd sides differently
def test_efficientnets_compute_as_timms(name, timms, side):
    model = split_backbone(name, None, n_classes=7, image_size=64, codebook=None).eval()
    tensors = iter(timms.state_dict().values())
    load_in_order(model.feature_extractor, tensors)
    load_in_order(model.plastic_layers, tensors)
    logits = model(images(side))
    torch.testing.assert_close(logits, timms(images(side)), rtol=1e-4, atol=1e-5)


@EVERY_LITE
def test_images_of_efficientnets_are_timms(name, timms):
    model = split_backbone(name, None, n_classes=7)
    config = timms.pretrained_cfg
    size, map_shape = LITE[name]
    assert (model.image_size, model.map_shape) == (size, map_shape)
    assert config["input_size"] == (3, size, size)
    assert tuple(model.pixel_mean.flatten()) == config["mean"]
    assert tuple(model.pixel_std.flatten()) == config["std"]


# Every backbone


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_has_an_output_for_each_class(name):
    model = split_backbone(name, None, n_classes=2, image_size=64, codebook=None)
    assert model(images()).shape == (2, 2)


@pytest.mark.parametrize(
    ("name", "cut", "map_shape"),
    [
        ("squeezenet1_0", 3, (96, 14, 14)),
        ("mobilenet_v2", 4, (24, 16, 16)),
        ("slim_resnet18", 5, (40, 32, 32)),
    ],
)
def test_other_cuts(name, cut, map_shape):
    model = split_backbone(
        name, None, n_classes=2, cut_layer=cut, image_size=64, codebook=None
    )
    assert model.map_shape == map_shape
    assert model(images()).shape == (2, 2)


def squeezenet(**arguments):
    return split_backbone(
        "squeezenet1_0", None, n_classes=4, image_size=64, codebook=None, **arguments
    )


def test_the_head_of_the_reference_code():
    model = squeezenet(head_kernel=3, relu_logits=True)
    head = model.plastic_layers.head
    assert (head.kernel_size, head.padding) == ((3, 3), (1, 1))
    assert head.out_channels == 4
    assert model(images()).min() >= 0


def test_logits_may_be_negative_by_default():
    torch.manual_seed(0)
    assert squeezenet()(images()).min() < 0


def test_the_reference_head_is_squeezenets():
    words = "relu_logits and head_kernel describe SqueezeNet"
    with pytest.raises(ValueError, match=words):
        split_backbone("resnet18", None, n_classes=4, image_size=64, head_kernel=3)


WRONG = pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"n_classes": 0}, ValueError, "n_classes is 0; give 1 or more"),
        ({"n_classes": 2.0}, TypeError, "n_classes is 2.0; give a whole number"),
        (
            {"codebook": 256},
            TypeError,
            r"codebook is 256; give a Codebook, such as Codebook\(256, 16\), or None",
        ),
        (
            {"image_size": (64, 64)},
            TypeError,
            r"image_size is \(64, 64\); give a whole number",
        ),
    ],
)
RIGHT = {"n_classes": 2, "codebook": Codebook(8, 16), "image_size": 64}


@WRONG
def test_wrong_arguments_of_a_backbone(wrong, error, words):
    with pytest.raises(error, match=words):
        split_backbone("small_cnn", None, **{**RIGHT, **wrong})


@WRONG
def test_wrong_arguments_of_a_split(wrong, error, words):
    with pytest.raises(error, match=words):
        split_at(SmallCNN(), "features.12", **{**RIGHT, **wrong})


# Cuts of any network


def split_resnet(network):
    codebook = Codebook(8, 16)
    return split_at(
        network, "layer4.0", n_classes=1000, codebook=codebook, image_size=64
    )


def test_split_at_equals_the_whole_network():
    network = models.resnet18(weights=None).eval()
    expected = network(images())
    head = network.fc.state_dict()
    model = split_resnet(network).eval()
    model.plastic_layers.head.load_state_dict(head)
    assert model.map_shape == (512, 2, 2)
    torch.testing.assert_close(model(images()), expected, rtol=1e-4, atol=1e-5)


def test_no_layer_is_on_both_sides():
    model = split_resnet(models.resnet18(weights=None))
    frozen = set(map(id, model.feature_extractor.parameters()))
    plastic = set(map(id, model.plastic_layers.parameters()))
    assert not frozen & plastic
    parameters = list(models.resnet18(weights=None).parameters())
    assert len(frozen | plastic) == len(parameters)


def two_convolutions():
    """The nodes "1" and "3" end in a ReLU behind a convolution."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )


def split_after_node(network, node, **settings):
    return split_at(network, node, n_classes=4, image_size=16, **settings)


def test_a_split_network_stays_as_it_is():
    # Given a network in training
    network = two_convolutions()
    weights_before = weights_hash(network)
    # When it is split, and the model is calibrated
    model = split_after_node(network, "1")
    calibrate(model, TensorDataset(images(16)))
    # Then the model is scaled, and the network is as it was
    assert model.feature_scale != 1
    assert weights_hash(network) == weights_before
    assert network.training
    assert all(weight.requires_grad for weight in network.parameters())


def test_a_network_is_split_again():
    # Given a network that was split behind its second convolution
    network = two_convolutions()
    split_after_node(network, "3")
    # When it is split before that
    model = split_after_node(network, "1")
    # Then the second convolution is trained, as the head is
    assert len(trainable(model.plastic_layers)) == 4


@pytest.mark.parametrize("device", DEVICES)
def test_a_network_is_split_on_its_device(device):
    # Given a network that was moved to a device
    network = two_convolutions().to(device)
    # When it is split, with a codebook that was not
    codebook = Codebook(8, 4, **CODEBOOK_WITH_BUFFERS)
    model = split_after_node(network, "1", codebook=codebook)
    # Then all of the model is there
    tensors = [*model.parameters(), *model.buffers()]
    assert {tensor.device.type for tensor in tensors} == {device}


class Skipping(nn.Module):
    """A network whose last sum needs the output of ``first``.

    Its head, used last, is its first child.
    """

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 10)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.third = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        first = self.first(x)
        return self.head((first + self.third(self.second(first))).mean((2, 3)))


def test_a_cut_before_a_skip():
    model = split_at(Skipping(), "first", n_classes=2, image_size=16)
    assert model(images(16)).shape == (2, 2)


@pytest.mark.parametrize(
    ("network", "layer", "words"),
    [
        (
            Skipping,
            "second",
            "cannot be cut after 'second': add also needs first from before",
        ),
        (
            Skipping,
            "layer9",
            "'layer9': it has no node 'layer9'; around it are first, second",
        ),
        (
            models.resnet18,
            "fc",
            "no linear or convolutional layer that is used once follows",
        ),
    ],
    ids=["skip", "unknown", "last"],
)
def test_a_cut_that_cannot_be(network, layer, words):
    with pytest.raises(ValueError, match=words):
        split_at(network(), layer, n_classes=2, image_size=16)


# Codebooks


def test_a_codebook_is_made_by_default():
    codebook = split_small().codebook
    assert (codebook.codebook_size, codebook.codebook_dim) == (256, 16)
    assert not codebook.blocks.any()


def test_a_codebook_that_is_given():
    codebook = Codebook(8, 8)
    assert split_small(codebook=codebook).codebook is codebook


@pytest.mark.parametrize("codebook", [None, False])
def test_no_codebook(codebook):
    assert split_small(codebook=codebook).codebook is None


def test_without_frozen_layers_there_is_no_codebook():
    assert split_backbone("mlp", None, n_classes=2, image_size=8).codebook is None


# Runtimes of F


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


@pytest.fixture(scope="module")
def pixels():
    generator = torch.Generator().manual_seed(1)
    size = (19, 3, 32, 32)
    return torch.randint(0, 256, size, dtype=torch.uint8, generator=generator)


@pytest.fixture
def onnx(network):
    """The network in ONNX Runtime."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    use_runtime(network, "onnxruntime")
    return network


def test_a_runtime_says_what_it_is(onnx):
    assert str(onnx.runtime) == f"onnxruntime {onnx.runtime.version}"
    assert onnx.runtime.difference < 1e-5


def test_a_runtime_computes_the_maps_of_torch(network, pixels):
    pytest.importorskip("onnxruntime")
    expected = network.extract(pixels)
    use_runtime(network, "onnxruntime")
    difference = float((network.extract(pixels) - expected).abs().max())
    assert 0 < difference <= 1e-5 * float(expected.abs().max())


def test_maps_of_a_runtime_can_be_trained_on(onnx, pixels):
    maps = onnx.extract(pixels)
    assert maps.is_contiguous(memory_format=torch.channels_last)
    assert not maps.is_inference()


@pytest.mark.parametrize("rows", [slice(0, 1), slice(7, 12), slice(16, 19)])
def test_maps_of_a_runtime_are_the_same_in_any_batch(onnx, pixels, rows):
    assert torch.equal(onnx.extract(pixels[rows]), onnx.extract(pixels)[rows])


def test_a_runtime_has_maps_of_its_own(network, tmp_path):
    pytest.importorskip("onnxruntime")
    path = MapStore(tmp_path, network, 3, "key").path
    use_runtime(network, "onnxruntime")
    assert MapStore(tmp_path, network, 3, "key").path != path


def pickled(network):
    return pickle.loads(pickle.dumps(network))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_a_copy_runs_in_torch(network, pixels, copied):
    pytest.importorskip("onnxruntime")
    expected = network.extract(pixels)
    use_runtime(network, "onnxruntime")
    copy_of_it = copied(network)
    assert copy_of_it.runtime.name == "torch"
    assert torch.equal(copy_of_it.extract(pixels), expected)


def set_runtime(monkeypatch, name, change=lambda maps: maps):
    """Replace a runtime by one that changes the maps of torch."""

    def build(network, example):
        return lambda images: change(network(images))

    monkeypatch.setitem(runtimes.BUILDERS, name, build)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda maps: maps * 1.001,
            r"compiled differs from torch by 1\.0e-03.*1e-04.*--runtime torch",
        ),
        (lambda maps: maps / 0, "differs from torch by nan"),
    ],
    ids=["different", "nan"],
)
def test_other_maps_are_refused(network, pixels, monkeypatch, change, words):
    expected = network.extract(pixels)
    set_runtime(monkeypatch, "compiled", change)
    with pytest.raises(RuntimeRefusedError, match=words):
        use_runtime(network, "compiled")
    assert network.runtime.name == "torch"
    assert torch.equal(network.extract(pixels), expected)


def test_a_runtime_that_is_not_installed(network, monkeypatch):
    def absent(network, example):
        raise ImportError("No module named 'onnxruntime'")

    monkeypatch.setitem(runtimes.BUILDERS, "onnxruntime", absent)
    words = r'install -e "\.\[onnx\]".*--runtime torch'
    with pytest.raises(RuntimeRefusedError, match=words):
        use_runtime(network, "onnxruntime")


def test_an_unknown_runtime(network):
    words = f"'tpu'.*auto, {', '.join(RUNTIMES)}"
    with pytest.raises(ValueError, match=words):
        use_runtime(network, "tpu")


def test_onnx_runtime_has_float32_alone(network):
    network.precision = "bf16"
    words = r"onnxruntime runs on a CPU in float32, not on cpu in bf16"
    with pytest.raises(RuntimeRefusedError, match=words):
        use_runtime(network, "onnxruntime")


def test_without_frozen_layers_it_is_torch():
    empty = split_small(codebook=None, cut_layer=0)
    assert use_runtime(empty, "onnxruntime").name == "torch"


# The runtime that is chosen where none is named


@pytest.fixture
def trial(monkeypatch):
    """ONNX Runtime is tried, with the maps of torch."""
    monkeypatch.delenv("CRUMB_RUNTIME")
    set_runtime(monkeypatch, "onnxruntime")
    monkeypatch.setattr(runtimes, "version", lambda name: "1")


@pytest.mark.usefixtures("trial")
def test_auto_is_onnxruntime(network):
    assert str(use_runtime(network, "auto")) == "onnxruntime 1"


@pytest.mark.usefixtures("trial")
def test_auto_is_what_the_environment_says(network, monkeypatch):
    monkeypatch.setenv("CRUMB_RUNTIME", "torch")
    assert use_runtime(network, "auto").name == "torch"


@pytest.mark.usefixtures("trial")
def test_auto_is_torch_where_maps_differ(network, monkeypatch):
    set_runtime(monkeypatch, "onnxruntime", lambda maps: maps + 1)
    assert use_runtime(network, "auto").name == "torch"


@pytest.mark.usefixtures("trial")
def test_auto_is_torch_in_another_precision(network):
    network.precision = "bf16"
    assert use_runtime(network, "auto").name == "torch"
