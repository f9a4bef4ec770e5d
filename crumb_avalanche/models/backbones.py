"""The table of known networks, and where each is cut.

SqueezeNet is cut before ``features[12]``, the paper's "layer 12". Of MobileNetV2 it
quantises the "14 x 14 x 64 input to MobileNetV2's sixth layer"; that this is the input
of ``features[8]`` is from the published code. EfficientNet-Lite is cut before the last
stride. ``split_backbone`` makes a model of one of them.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor, nn

from crumb_avalanche.models.backbone_names import PREPROCESSING, Preprocessing
from crumb_avalanche.models.layers import AveragingConv2d

Layers: TypeAlias = nn.Sequential | list[nn.Module]
Ends = dict[str, nn.Module]  # what follows the layers of a network in P, by name


class Backbone(NamedTuple):
    """A network and where it is cut.

    Attributes:
        cut: number of leading layers in F.
        layers: function of a network that returns the layers that may be cut between,
            in order.
        ends: function of a network that returns what follows them in P, by name, with
            the ``head``.
        build: function of a side in pixels that returns the network with random
            weights; default that of ``NETWORKS``.
        fine_tuned: whether pretrained P is trained as ``split_backbone`` says.
        smallest_side: side in pixels that smaller images are then enlarged to.
    """

    cut: int
    layers: Callable[[Any], Layers]
    ends: Callable[[Any], Ends]
    build: Callable[[int], nn.Module] | None = None
    fine_tuned: bool = False
    smallest_side: int = 0


def squeezenet_ends(
    network: Any, relu_logits: bool = False, head_kernel: int = 1
) -> Ends:
    """Build SqueezeNet's layers behind its ``features``, by name.

    Args:
        network: SqueezeNet, whose dropout and last convolution are taken over.
        relu_logits: whether a ReLU stands between the last convolution and the pool.
        head_kernel: kernel of the last convolution: 1 as in torchvision, or 3 with
            random weights.
    """
    # torchvision's classifier: dropout, 1x1 convolution, ReLU, global average pool. The
    # reference code has a 3x3 convolution and keeps the ReLU, so its logits are never
    # negative. Without both, the average can come first.
    can_average_first = head_kernel == 1 and not relu_logits
    if can_average_first:
        head: nn.Conv2d = AveragingConv2d(512, network.num_classes)
    else:
        head = nn.Conv2d(
            512, network.num_classes, kernel_size=head_kernel, padding=head_kernel // 2
        )
    if head_kernel == 1:  # the kernel of the published weights
        head.load_state_dict(network.classifier[1].state_dict())
    ends: Ends = {"dropout": network.classifier[0], "head": head}
    if relu_logits:
        ends["relu"] = nn.ReLU()
    return ends | _pool_and_head()


def _pool_and_head(head: nn.Module | None = None, **between: nn.Module) -> Ends:
    """Return a pool of maps of any size, layers between, and the head if given."""
    ends: Ends = {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), **between}
    if head is not None:
        ends["head"] = head
    return ends


def _every_second(maps: Tensor) -> Tensor:
    """Return every second row and column of ``(B, C, H, W)``."""
    return maps[:, :, ::2, ::2]


def _network_of_avalanche(name: str, *arguments: Any, **settings: Any) -> nn.Module:
    """Build one of Avalanche's networks, which take images of 32 pixels only.

    Args:
        name: in ``avalanche.models``.
        *arguments, **settings: of its constructor.
    """
    from avalanche import models  # takes seconds to import

    network = getattr(models, name)(*arguments, **settings)
    for module in network.modules():
        if hasattr(module, "transform_function"):
            module.transform_function = _every_second  # a lambda there would not pickle
    return network


def _mobilenet_ends(network: Any) -> Ends:
    """Return MobileNetV2's pool, dropout and head."""
    return _pool_and_head(network.classifier[1], dropout=network.classifier[0])


# A discriminant on the features of MobileNetV2 names half of the images of four toy
# classes in 64 pixels, and nearly nine tenths of them enlarged to 128.
SMALLEST_SIDE = 128


def _mobilenet(cut: int) -> Backbone:
    """Return the backbone of a MobileNetV2 or EfficientNet-Lite, cut at a layer."""
    return Backbone(
        cut=cut,
        layers=_features,
        ends=_mobilenet_ends,
        fine_tuned=True,
        smallest_side=SMALLEST_SIDE,
    )


def _resnet18_layers(network: Any) -> Layers:
    """Return the layers of ResNet-18 that may be cut between."""
    return [
        network.conv1,
        network.bn1,
        network.relu,
        network.maxpool,
        network.layer1,
        network.layer2,
        network.layer3,
        *network.layer4,
    ]


def _slim_resnet18_layers(network: Any) -> Layers:
    """Return the layers of Avalanche's SlimResNet18, with its ReLU as a module."""
    return [
        network.conv1,
        network.bn1,
        nn.ReLU(),
        network.layer1,
        network.layer2,
        network.layer3,
        network.layer4,
    ]


def _resnet32_layers(network: Any) -> Layers:
    """Return the layers of Avalanche's iCaRL network before its pool."""
    return list(network.feature_extractor.children())[:4]


def _mlp_ends(network: Any) -> Ends:
    """Return the whole of Avalanche's SimpleMLP, which has no maps."""
    return {
        "flatten": nn.Flatten(),
        "features": network.features,
        "head": network.classifier,
    }


_features = attrgetter("features")
SQUEEZENET = Backbone(cut=12, layers=_features, ends=squeezenet_ends)
BACKBONES: dict[str, Backbone] = {
    "squeezenet1_0": SQUEEZENET,
    "squeezenet1_1": SQUEEZENET,
    "mobilenet_v2": _mobilenet(8),
    "efficientnet_lite0": _mobilenet(12),
    "efficientnet_lite1": _mobilenet(16),
    "efficientnet_lite2": _mobilenet(16),
    "resnet18": Backbone(
        cut=8,  # REMIND's, between the last two blocks
        layers=_resnet18_layers,
        ends=lambda network: _pool_and_head(network.fc),
        fine_tuned=True,
        smallest_side=SMALLEST_SIDE,
    ),
    "small_cnn": Backbone(
        cut=12,
        layers=_features,
        ends=lambda network: _pool_and_head(network.classifier),
    ),
    # For small images, not cut; the networks of some of the paper's competitors.
    "slim_resnet18": Backbone(
        cut=0,
        layers=_slim_resnet18_layers,
        ends=lambda network: _pool_and_head(network.linear),
        build=lambda side: _network_of_avalanche("SlimResNet18", 10, nf=20),
    ),
    "resnet32": Backbone(
        cut=0,
        layers=_resnet32_layers,
        ends=lambda network: _pool_and_head(network.classifier),
        build=lambda side: _network_of_avalanche("make_icarl_net", 10),
    ),
    "mlp": Backbone(  # two hidden layers of 100
        cut=0,
        layers=lambda network: [],
        ends=_mlp_ends,
        build=lambda side: _network_of_avalanche(
            "SimpleMLP", 10, 3 * side**2, hidden_size=100, hidden_layers=2
        ),
    ),
}


def register_backbone(
    name: str, backbone: Backbone, preprocessing: Preprocessing | None = None
) -> None:
    """Add a network to ``BACKBONES``, or replace one.

    Runs and learners take it by name.

    Args:
        name: of the network.
        backbone: has a ``build``.
        preprocessing: what it expects of its images; default ``Preprocessing()``.
    """
    BACKBONES[name] = backbone
    PREPROCESSING[name] = preprocessing or Preprocessing()
