"""Splits of the networks of ``BACKBONES``, and of timm's by name.

``split_at`` splits any other.
"""

from functools import lru_cache
from typing import Any

from torch import nn

from crumb_avalanche.models.backbone_names import (
    PREFIX,
    PUBLISHED,
    Preprocessing,
    is_timm,
    preprocessing_of,
    published_by,
    source_of,
    timm_config,
    timm_name,
)
from crumb_avalanche.models.backbones import (
    BACKBONES,
    SQUEEZENET,
    Layers,
    squeezenet_ends,
)
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.networks import NETWORKS
from crumb_avalanche.models.row_length import largest_divisor, row_length
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.split_timm import split_timm, timm_network
from crumb_avalanche.models.weights import (
    WeightsError,
    check_and_load,
    packaged_weights,
    read_weights,
    renamed_weights,
    torchvision_weights,
)
from crumb_avalanche.system.process import float32_by_default, preserve_rng_state

CODEBOOK_DIM = 16  # length of a memory block, the paper's
MEMORIES_PER_IMAGE = 28  # of SqueezeNet, with the paper's rows


@lru_cache(maxsize=64)
def map_shape_of(
    name: str,
    cut_layer: int | str | None,
    image_size: int,
    fine_tuning: bool = False,
) -> tuple[int, int, int]:
    """Return the shape of a network's feature maps at the cut, ``(C, H, W)``.

    A model with random weights is built to measure it; the RNG state does not change.
    As that takes time, the shapes are remembered.

    Args:
        name: one of ``BACKBONES``, or ``timm:NAME``.
        cut_layer: number or name of the last layer before the cut; ``None`` for the
            usual one.
        image_size: side of the images in pixels.
        fine_tuning: whether small images are enlarged, as where P is fine-tuned.
    """
    with preserve_rng_state():
        model = random_backbone(
            name, cut_layer=cut_layer, image_size=image_size, fine_tuning=fine_tuning
        )
    return model.map_shape


def random_backbone(name: str, **cut: Any) -> SplitModel:
    """Split a network with random weights, one class and no codebook.

    Its shapes, sizes and speed are those of the network with any other weights.

    Args:
        name: see ``split_backbone``.
        cut: ``cut_layer``, ``image_size`` and ``fine_tuning`` of ``split_backbone``.
    """
    return split_backbone(name, None, n_classes=1, codebook=None, **cut)


def usual_codebook(model: SplitModel, is_fine_tuned: bool) -> Codebook:
    """Return the codebook that suits a model, without rows.

    It is the paper's for SqueezeNet. The paper's codes keep a tenth to a quarter of the
    maps of fine-tuned networks, so that P learns from other maps than it is tested on;
    rows chosen by distance keep more. They are as long as makes memories of the bytes
    of the paper's.
    """
    if not is_fine_tuned:
        return Codebook(codebook_dim=usual_codebook_dim(model))
    dim = row_length(model.map_shape, model.input_side, MEMORIES_PER_IMAGE)
    return Codebook(codebook_dim=dim, search="distance", filtered=True)


def usual_codebook_dim(model: SplitModel) -> int:
    """Return the length of memory blocks that suits a model.

    It is the paper's 16, or the largest divisor of the model's channels below.
    """
    return largest_divisor(model.map_shape[0], CODEBOOK_DIM)


@float32_by_default()
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
    fine_tuning: bool | None = None,
) -> SplitModel:
    """Split a network of torchvision or timm and give it a new head.

    Paper: "Feature extraction and classification"; its cut of SqueezeNet is the default
        one, and of MobileNetV2 that of the published code.

    The paper's learning rate of 1e-3 suits SqueezeNet. For it to suit MobileNetV2,
    EfficientNet-Lite, ResNet-18 and the networks of timm, their pretrained P is
    fine-tuned: batch norms use their pretrained statistics in training, too
    (``fixed_statistics``), the head centres its inputs and the layers below it learn a
    hundredth as fast (see ``CentredLinear``). Built-in ones see images below 128
    pixels enlarged to them (``smallest_side``).

    Example:
        >>> import torch
        >>> from crumb_avalanche import split_backbone
        >>> model = split_backbone("squeezenet1_0", None, n_classes=10)
        >>> model.map_shape
        (512, 13, 13)
        >>> images = torch.zeros(2, 3, 224, 224, dtype=torch.uint8)
        >>> model.classify(model.features(images)).shape
        torch.Size([2, 10])

    Args:
        name: one of ``BACKBONES``, or ``timm:NAME`` for a network of timm (extra
            ``timm``), with the last stage, or the last block of a transformer, after
            the cut. At 224 pixels the maps are 512x13x13 (SqueezeNet), 64x14x14
            (MobileNetV2), 112x14x14 (EfficientNet-Lite0) and 512x7x7 (ResNet-18);
            ``small_cnn`` gives 128x8x8 at 64 pixels. ``slim_resnet18``, ``resnet32``
            and ``mlp`` are Avalanche's, for small images, and are not cut.
        weights: ``"torchvision"`` takes the published weights of the network:
            torchvision's or timm's, which are downloaded, or those of
            ``efficientnet_lite0`` from an installed package (extra ``weights``).
            ``"timm"`` and ``"package"`` name these sources. A path reads a ``.npz``,
            ``.safetensors`` or ``.pth`` file; ``None`` keeps the random initialisation.
        n_classes: outputs of the new head.
        codebook: the codebook between F and P. ``True`` makes a ``Codebook()`` of 256
            memory blocks of 16 values (see ``usual_codebook_dim``), unless F is empty;
            for a fine-tuned P one that chooses rows by distance, of so few values that
            28 memories take the bytes of an image.
            ``None`` makes a model without one.
        cut_layer: number of leading ``features`` modules (ResNet-18: of conv1, bn1,
            relu, maxpool, layer1 to layer3 and the two blocks of layer4; timm: of
            stages) in F, or for timm the name of its last module. 0 leaves F empty: the
            whole network is plastic, and its maps are the normalised images.
        relu_logits: put a ReLU between SqueezeNet's last convolution and the pool (the
            reference code).
        head_kernel: kernel of SqueezeNet's last convolution, 1 (torchvision) or 3 (the
            reference code).
        image_size: side of the images in pixels; default 224, or that of a network of
            timm.
        preprocessing: ``Preprocessing.as_dict()``, instead of that of the network's
            name.
        fine_tuning: whether P is trained with the changes above; default for weights
            that are given. ``False`` trains as the paper does; ``True`` makes layers
            that the weights of a fine-tuned model fit. An empty F is trained as in the
            paper.

    Raises:
        ImportError: timm is needed and not installed.
        OSError: downloaded weights cannot be written.
        ValueError: unknown name, a cut beyond the last layer, or a codebook that does
            not fit the maps.
        WeightsError: weights that cannot be fetched or read, or are another model's.
    """
    _check_backbone(name)
    if preprocessing:
        network_preprocessing = Preprocessing(**preprocessing)
    else:
        network_preprocessing = preprocessing_of(name)
    if fine_tuning is None:
        fine_tuning = weights is not None
    is_fine_tuned = fine_tuning and _can_be_fine_tuned(name, cut_layer)
    if weights == "torchvision":
        weights = published_by(name)  # the usual one of the network
    model = _split(
        name,
        weights,
        cut_layer,
        n_classes=n_classes,
        relu_logits=relu_logits,
        head_kernel=head_kernel,
        image_size=image_size or network_preprocessing.size,
        is_fine_tuned=is_fine_tuned,
    )
    if is_fine_tuned:
        model.fixed_statistics = True
        model.centre_head()
    _set_preprocessing(model, network_preprocessing)
    model.backbone = name
    model.set_codebook(_codebook_for(model, codebook, is_fine_tuned=is_fine_tuned))
    return model


def _check_backbone(name: str) -> None:
    """Raise ValueError for the name of an unknown backbone."""
    if name not in BACKBONES and not is_timm(name):
        raise ValueError(
            f"backbone {name!r} is unknown; known are {', '.join(BACKBONES)} and "
            f"{PREFIX}NAME for those of timm; for others use split_at"
        )


def _can_be_fine_tuned(name: str, cut_layer: int | str | None) -> bool:
    """Return whether a network has a pretrained P that is fine-tuned where asked for.

    An empty F, ``cut_layer`` 0, is trained as in the paper.
    """
    if cut_layer == 0:
        return False
    return is_timm(name) or BACKBONES[name].fine_tuned


def _split(
    name: str,
    weights: str | None,
    cut_layer: int | str | None,
    *,
    n_classes: int,
    relu_logits: bool,
    head_kernel: int,
    image_size: int,
    is_fine_tuned: bool,
) -> SplitModel:
    """Split a network of ``BACKBONES`` or of timm, and give it a new head.

    Args:
        name, cut_layer, n_classes, relu_logits, head_kernel, image_size: see
            ``split_backbone``.
        weights: one of ``PUBLISHED``, a path, or ``None`` for random ones.
        is_fine_tuned: whether built-in networks see small images enlarged.

    Raises:
        ImportError, OSError, ValueError, WeightsError: see ``split_backbone``.
    """
    if is_timm(name):
        _check_usual_head(relu_logits, head_kernel)  # only SqueezeNet has others
        return split_timm(
            name,
            weights,
            n_classes=n_classes,
            cut_layer=cut_layer,
            image_size=image_size,
        )
    smallest_side = 0
    if is_fine_tuned:
        smallest_side = BACKBONES[name].smallest_side
    model = _split_built_in(
        name,
        weights,
        cut_layer,
        relu_logits=relu_logits,
        head_kernel=head_kernel,
        image_size=image_size,
        smallest_side=smallest_side,
    )
    model.reset_head(n_classes)
    return model


def _set_preprocessing(model: SplitModel, preprocessing: Preprocessing) -> None:
    """Set how a model normalises images, and how they are resized for it."""
    model.set_normalization(preprocessing.mean, preprocessing.std)
    model.interpolation = preprocessing.interpolation


def _codebook_for(
    model: SplitModel, codebook: Codebook | bool | None, is_fine_tuned: bool
) -> Codebook | None:
    """Return the codebook that is asked for: one that is given, the usual one or none.

    Args:
        model: that it is for.
        codebook: as for ``split_backbone``; ``True`` is none where F is empty.
        is_fine_tuned: whether P is fine-tuned.
    """
    if not isinstance(codebook, bool):
        return codebook
    if not codebook or model.extractor_is_empty:
        return None
    return usual_codebook(model, is_fine_tuned=is_fine_tuned)


def _check_usual_head(relu_logits: bool, head_kernel: int) -> None:
    """Raise ValueError for settings of SqueezeNet's head, given for another network."""
    if relu_logits or head_kernel != 1:
        raise ValueError(
            "relu_logits and head_kernel describe SqueezeNet's convolutional "
            "classifier; other backbones end in a linear layer, so leave "
            "relu_logits=False and head_kernel=1 there (of a command: --relu-logits "
            "false --head-kernel 1)"
        )


def _split_built_in(
    name: str,
    weights: str | None,
    cut_layer: int | str | None,
    *,
    relu_logits: bool,
    head_kernel: int,
    image_size: int,
    smallest_side: int,
) -> SplitModel:
    """Split one of ``BACKBONES`` into a ``SplitModel`` without a codebook.

    The head is that of the weights, with their number of outputs.

    Args:
        name: of the network.
        weights: one of ``PUBLISHED``, a path, or ``None`` for random ones.
        cut_layer: number of leading layers in the feature extractor; ``None`` for the
            usual one.
        relu_logits: put a ReLU behind SqueezeNet's last convolution.
        head_kernel: kernel of that convolution, 1 or 3.
        image_size: side of the images in pixels.
        smallest_side: side in pixels that smaller images are enlarged to.

    Raises:
        ValueError: there is no such cut, or another network has another head.
        WeightsError: weights that cannot be fetched or read, or are another model's.
    """
    backbone = BACKBONES[name]
    if isinstance(cut_layer, str):
        raise ValueError(
            f"cut_layer is {cut_layer!r}, but {name} is cut after a number of layers: "
            "give a number"
        )
    if backbone.build is None:
        network = NETWORKS[name]()
    else:
        network = backbone.build(image_size)
    if weights in PUBLISHED:
        _load_published(network, name, weights)
    elif weights is not None:
        check_and_load(network, read_weights(weights), str(weights))
    layers = backbone.layers(network)
    cut = backbone.cut if cut_layer is None else cut_layer
    if not 0 <= cut <= len(layers):
        raise ValueError(
            f"cut_layer is {cut}, but {name} has {len(layers)} layers to cut at; give "
            f"0 to {len(layers)}"
        )
    if backbone is SQUEEZENET:
        ends = squeezenet_ends(network, relu_logits, head_kernel)
    else:
        _check_usual_head(relu_logits, head_kernel)  # only SqueezeNet has others
        ends = backbone.ends(network)  # what follows the layers, by name
    plastic_layers = nn.Sequential()
    if layers:
        plastic_layers.add_module("features", _sequential(layers[cut:]))
    for end_name, module in ends.items():
        plastic_layers.add_module(end_name, module)
    return SplitModel(
        _sequential(layers[:cut]),
        plastic_layers,
        head="head",
        image_size=image_size,
        smallest_side=smallest_side,
    )


def _sequential(layers: Layers) -> nn.Sequential:
    """Return layers of a network as one module.

    A slice of a ``Sequential`` is one already, and keeps the names of its layers, which
    weight files have.
    """
    if isinstance(layers, nn.Sequential):
        return layers
    return nn.Sequential(*layers)


def _load_published(network: nn.Module, name: str, weights: str) -> None:
    """Load published weights into a network.

    Args:
        network: changed in place.
        name: of the network, one of ``BACKBONES``.
        weights: one of ``PUBLISHED``, who publishes them.

    Raises:
        WeightsError: these have no weights of the network, or they cannot be fetched.
    """
    usual_publisher = published_by(name)
    is_in_timm = weights == "timm" and name.startswith("efficientnet_lite")
    if weights != usual_publisher and not is_in_timm:
        raise WeightsError(
            f"{weights!r} has no weights of {name}; leave --weights out to take those "
            f"of {usual_publisher!r}"
        )
    source = source_of(name, weights)  # in words, for errors
    if weights == "torchvision":
        state = torchvision_weights(name)
    elif weights == "package":
        state = renamed_weights(packaged_weights(), network, source)
    else:
        name_in_timm = timm_name(name)
        image_size = timm_config(name_in_timm).input_size[-1]
        published_network = timm_network(
            name_in_timm, weights="timm", image_size=image_size
        )
        state = renamed_weights(published_network.state_dict(), network, source)
    check_and_load(network, state, source)
