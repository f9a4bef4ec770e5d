"""Splits of known networks, and of timm's by name; ``split_at`` splits any other.

Cuts as in the paper: SqueezeNet before ``features[12]``, MobileNetV2 before ``features[8]``.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from crumb_avalanche.models.backbone_names import PREFIX, is_timm, preprocessing_of
from crumb_avalanche.models.codebook import Codebook, check_codebook, largest_divisor
from crumb_avalanche.models.layers import AveragingConv2d
from crumb_avalanche.models.networks import NETWORKS, SmallCNN
from crumb_avalanche.models.preprocessing import Preprocessing
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import check_and_load, read_weights, torchvision_weights


def _squeezenet(network: nn.Module, cut_layer: int, relu_logits: bool, head_kernel: int, **split) -> SplitModel:
    # torchvision's classifier: dropout, 1x1 convolution, ReLU, global average pool. The reference code has a 3x3
    # convolution and keeps the ReLU, so its logits are never negative. Without both, the average can come first.
    if head_kernel == 1 and not relu_logits:
        head = AveragingConv2d(512, network.num_classes)
    else:
        head = nn.Conv2d(512, network.num_classes, kernel_size=head_kernel, padding=head_kernel // 2)
    if head_kernel == 1:
        head.load_state_dict(network.classifier[1].state_dict())
    plastic_layers = nn.Sequential()
    plastic_layers.add_module("features", network.features[cut_layer:])
    plastic_layers.add_module("dropout", network.classifier[0])
    plastic_layers.add_module("head", head)
    if relu_logits:
        plastic_layers.add_module("relu", nn.ReLU())
    plastic_layers.add_module("pool", nn.AdaptiveAvgPool2d(1))
    plastic_layers.add_module("flatten", nn.Flatten())
    return SplitModel(network.features[:cut_layer], plastic_layers, "head", **split)


def _mobilenet_v2(network: nn.Module, cut_layer: int, relu_logits: bool, head_kernel: int, **split) -> SplitModel:
    _only_squeezenet(relu_logits, head_kernel)
    plastic_layers = nn.Sequential()
    plastic_layers.add_module("features", network.features[cut_layer:])
    plastic_layers.add_module("pool", nn.AdaptiveAvgPool2d(1))
    plastic_layers.add_module("flatten", nn.Flatten())
    plastic_layers.add_module("dropout", network.classifier[0])
    plastic_layers.add_module("head", network.classifier[1])
    return SplitModel(network.features[:cut_layer], plastic_layers, "head", **split)


def _resnet18(network: nn.Module, cut_layer: int, relu_logits: bool, head_kernel: int, **split) -> SplitModel:
    """Cut after ``cut_layer`` of the layers conv1, bn1, relu, maxpool, layer1 to layer3, and two blocks of layer4."""
    _only_squeezenet(relu_logits, head_kernel)
    n = network
    layers = [n.conv1, n.bn1, n.relu, n.maxpool, n.layer1, n.layer2, n.layer3, *n.layer4]
    plastic_layers = nn.Sequential()
    plastic_layers.add_module("features", nn.Sequential(*layers[cut_layer:]))
    plastic_layers.add_module("pool", n.avgpool)
    plastic_layers.add_module("flatten", nn.Flatten())
    plastic_layers.add_module("head", n.fc)
    return SplitModel(nn.Sequential(*layers[:cut_layer]), plastic_layers, "head", **split)


def _small_cnn(network: nn.Module, cut_layer: int, relu_logits: bool, head_kernel: int, **split) -> SplitModel:
    _only_squeezenet(relu_logits, head_kernel)
    plastic_layers = nn.Sequential()
    plastic_layers.add_module("features", network.features[cut_layer:])
    plastic_layers.add_module("pool", network.pool)
    plastic_layers.add_module("flatten", nn.Flatten())
    plastic_layers.add_module("head", network.classifier)
    return SplitModel(network.features[:cut_layer], plastic_layers, "head", **split)


def _every_second(maps: torch.Tensor) -> torch.Tensor:
    """Return every second row and column of ``(B, C, H, W)``."""
    return maps[:, :, ::2, ::2]


def _for_small_images(layers: Callable[[nn.Module], tuple[list[nn.Module], nn.Module]]) -> Callable[..., SplitModel]:
    """Make a split of one of Avalanche's networks, which take 32 pixels only; the pool here takes any size.

    Args:
        layers: function that returns the convolutional layers of a network, in order, and its head.
    """

    def split(network: nn.Module, cut_layer: int, relu_logits: bool, head_kernel: int, **split) -> SplitModel:
        _only_squeezenet(relu_logits, head_kernel)
        for module in network.modules():
            if hasattr(module, "transform_function"):
                module.transform_function = _every_second  # a lambda there would not pickle
        features, head = layers(network)
        plastic_layers = nn.Sequential()
        plastic_layers.add_module("features", nn.Sequential(*features[cut_layer:]))
        plastic_layers.add_module("pool", nn.AdaptiveAvgPool2d(1))
        plastic_layers.add_module("flatten", nn.Flatten())
        plastic_layers.add_module("head", head)
        return SplitModel(nn.Sequential(*features[:cut_layer]), plastic_layers, "head", **split)

    return split


def _slim_resnet18(network: nn.Module) -> tuple[list[nn.Module], nn.Module]:
    n = network
    return [n.conv1, n.bn1, nn.ReLU(), n.layer1, n.layer2, n.layer3, n.layer4], n.linear


def _resnet32(network: nn.Module) -> tuple[list[nn.Module], nn.Module]:
    # After these four come the pool and a flattening.
    return list(network.feature_extractor.children())[:4], network.classifier


def _mlp(network: nn.Module, cut_layer: int, relu_logits: bool, head_kernel: int, **split) -> SplitModel:
    _only_squeezenet(relu_logits, head_kernel)
    if cut_layer != 0:
        raise ValueError(f"mlp has no maps to cut at: give cut_layer=0, not {cut_layer}")
    plastic_layers = nn.Sequential()
    plastic_layers.add_module("flatten", nn.Flatten())
    plastic_layers.add_module("features", network.features)
    plastic_layers.add_module("head", network.classifier)
    return SplitModel(nn.Sequential(), plastic_layers, "head", **split)


def _network(name: str, image_size: int) -> nn.Module:
    """Build the uncut network with random weights."""
    if name == "small_cnn":
        return SmallCNN()
    if name in NETWORKS:
        return NETWORKS[name]()
    from avalanche import models as of_avalanche  # takes seconds to import

    return _OF_AVALANCHE[name](of_avalanche, image_size)


_OF_AVALANCHE: dict[str, Callable] = {
    "slim_resnet18": lambda models, image_size: models.SlimResNet18(10, nf=20),
    "resnet32": lambda models, image_size: models.make_icarl_net(10),
    # Two hidden layers of 100.
    "mlp": lambda models, image_size: models.SimpleMLP(10, 3 * image_size**2, hidden_size=100, hidden_layers=2),
}


def _only_squeezenet(relu_logits: bool, head_kernel: int) -> None:
    if relu_logits or head_kernel != 1:
        raise ValueError(
            "relu_logits and head_kernel describe SqueezeNet's convolutional classifier; other backbones end in a "
            "linear layer, so leave relu_logits=False and head_kernel=1 there"
        )


BACKBONES: dict[str, tuple[Callable[..., SplitModel], int]] = {
    "squeezenet1_0": (_squeezenet, 12),
    "squeezenet1_1": (_squeezenet, 12),
    "mobilenet_v2": (_mobilenet_v2, 8),
    "resnet18": (_resnet18, 8),  # REMIND's cut, between the last two blocks
    "small_cnn": (_small_cnn, 12),
    # For small images, not cut; the networks of some of the paper's competitors.
    "slim_resnet18": (_for_small_images(_slim_resnet18), 0),
    "resnet32": (_for_small_images(_resnet32), 0),
    "mlp": (_mlp, 0),
}


CODEBOOK_DIM = 16  # the paper's


def usual_codebook_dim(model: SplitModel) -> int:
    """Return the length of memory blocks that suits a model: 16, or the largest divisor of its channels below."""
    return largest_divisor(model.map_shape[0], CODEBOOK_DIM)


def split_backbone(
    name: str = "squeezenet1_0",
    weights: str | None = "torchvision",
    *,
    n_classes: int,
    codebook: Codebook | bool | None = True,
    cut_layer: int | str | None = None,
    relu_logits: bool = False,
    head_kernel: int = 1,
    image_size: int | None = None,
    preprocessing: dict[str, Any] | None = None,
) -> SplitModel:
    """Split a network of torchvision or timm and give it a new head.

    Paper: "Feature extraction and classification"; its cuts of SqueezeNet and MobileNetV2 are the default ones.

    Args:
        name: one of ``BACKBONES``, or ``timm:NAME`` for a network of timm (extra ``timm``), with the last stage, or the
            last block of a transformer, after the cut. At 224 pixels the maps are 512x13x13 (SqueezeNet), 64x14x14
            (MobileNetV2) and 512x7x7 (ResNet-18); ``small_cnn`` gives 128x8x8 at 64 pixels. ``slim_resnet18``,
            ``resnet32`` and ``mlp`` are Avalanche's, for small images, and are not cut.
        weights: ``"torchvision"`` or ``"timm"`` downloads the weights that the library of the network publishes; a path
            reads a ``.npz``, ``.safetensors`` or ``.pth`` file; ``None`` keeps the random initialisation.
        n_classes: outputs of the new head.
        codebook: the codebook between F and P. ``True`` makes a ``Codebook()`` of 256 memory blocks of 16 values (see
            ``usual_codebook_dim``), unless F is empty; ``None`` makes a model without one.
        cut_layer: number of leading ``features`` modules (ResNet-18: see ``_resnet18``; timm: of stages) in F, or for
            timm the name of its last module. 0 leaves F empty: the whole network is plastic, and
            its maps are the normalised images.
        relu_logits: put a ReLU between SqueezeNet's last convolution and the pool (the reference code).
        head_kernel: kernel of SqueezeNet's last convolution, 1 (torchvision) or 3 (the reference code).
        image_size: side of the images in pixels; default 224, or that of a network of timm.
        preprocessing: ``Preprocessing.as_dict()``, instead of that of the network's name.

    Raises:
        ImportError: timm is needed and not installed.
        OSError: downloaded weights cannot be written.
        ValueError: unknown name, a cut beyond the last layer, or a codebook that does not fit the maps.
        WeightsError: weights that cannot be fetched or read, or are another model's.
    """
    timm = is_timm(name)
    if name not in BACKBONES and not timm:
        raise ValueError(
            f"backbone {name!r} is unknown; known are {', '.join(BACKBONES)} and {PREFIX}NAME for those of timm; for "
            "others use split_at"
        )
    wanted = Preprocessing(**preprocessing) if preprocessing else preprocessing_of(name)
    image_size = image_size or wanted.size
    if timm:
        _only_squeezenet(relu_logits, head_kernel)
        from crumb_avalanche.models.timm_backbones import split_timm

        source = "timm" if weights == "torchvision" else weights
        model = split_timm(name, source, n_classes=n_classes, cut_layer=cut_layer, image_size=image_size)
        model.set_normalization(wanted.mean, wanted.std)
        model.normalization_set = False  # the Normalize of a data set's own transform replaces it
        model.interpolation = wanted.interpolation
    else:
        model = _split_own(name, weights, cut_layer, relu_logits, head_kernel, image_size)
        model.reset_head(n_classes)
    if isinstance(codebook, bool):
        codebook = Codebook(codebook_dim=usual_codebook_dim(model)) if codebook and len(model.stages) else None
    check_codebook(codebook, model.map_shape[0])
    model.codebook = codebook
    return model


def _split_own(
    name: str, weights: str | None, cut_layer: int | str | None, relu_logits: bool, head_kernel: int, image_size: int
) -> SplitModel:
    """Split one of ``BACKBONES``, without a codebook, and keep its head."""
    split, default_cut = BACKBONES[name]
    if isinstance(cut_layer, str):
        raise ValueError(f"cut_layer is {cut_layer!r}, but {name} is cut after a number of layers: give a number")
    network = _network(name, image_size)
    if weights == "torchvision":
        check_and_load(network, torchvision_weights(name), f"torchvision's weights of {name}")
    elif weights is not None:
        check_and_load(network, read_weights(weights), str(weights))
    cut_layer = default_cut if cut_layer is None else cut_layer
    model = split(
        network,
        cut_layer=cut_layer,
        relu_logits=relu_logits,
        head_kernel=head_kernel,
        image_size=image_size,
    )
    frozen = len(model.feature_extractor)
    if frozen != cut_layer:  # a slice beyond the end raises nothing
        layers = frozen + len(model.plastic_layers.features)
        raise ValueError(f"cut_layer is {cut_layer}, but {name} has {layers} layers to cut at; give 0 to {layers}")
    return model
