"""Splits of known networks, and of timm's by name; ``split_at`` splits any other.

Cuts as in the paper: SqueezeNet before ``features[12]``, MobileNetV2 before
``features[8]``. EfficientNet-Lite is cut before the last stride.
"""

from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from benchmarks_toybox_ilab.tables.disk_errors import cured
from crumb_avalanche.models.backbone_names import (
    PREFIX,
    PREPROCESSING,
    PUBLISHED,
    Preprocessing,
    config_of,
    import_timm,
    is_timm,
    preprocessing_of,
    published_by,
    source_of,
    timm_name,
    without_download,
)
from crumb_avalanche.models.codebook import Codebook, check_codebook
from crumb_avalanche.models.layers import AveragingConv2d, Layout
from crumb_avalanche.models.networks import NETWORKS
from crumb_avalanche.models.row_length import largest_divisor, row_length
from crumb_avalanche.models.split_at import CutError, split_after
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import (
    WeightsError,
    check_and_load,
    in_order,
    packaged_weights,
    read_weights,
    torchvision_weights,
)
from crumb_avalanche.system.process import float32_by_default, preserve_rng_state

Layers: TypeAlias = nn.Sequential | list[nn.Module]
Ends = dict[str, nn.Module]


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


def _squeezenet_ends(
    network: Any, relu_logits: bool = False, head_kernel: int = 1
) -> Ends:
    """Build SqueezeNet's layers behind its ``features``; see ``split_backbone``."""
    # torchvision's classifier: dropout, 1x1 convolution, ReLU, global average pool. The
    # reference code has a 3x3 convolution and keeps the ReLU, so its logits are never
    # negative. Without both, the average can come first.
    if head_kernel == 1 and not relu_logits:
        head: nn.Conv2d = AveragingConv2d(512, network.num_classes)
    else:
        head = nn.Conv2d(
            512, network.num_classes, kernel_size=head_kernel, padding=head_kernel // 2
        )
    if head_kernel == 1:
        head.load_state_dict(network.classifier[1].state_dict())
    ends: Ends = {"dropout": network.classifier[0], "head": head}
    if relu_logits:
        ends["relu"] = nn.ReLU()
    return ends | _pooled()


def _pooled(head: nn.Module | None = None, **between: nn.Module) -> Ends:
    """Return a pool of maps of any size, what follows it, and the head."""
    ends: Ends = {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), **between}
    if head is not None:
        ends["head"] = head
    return ends


def _every_second(maps: Tensor) -> Tensor:
    """Return every second row and column of ``(B, C, H, W)``."""
    return maps[:, :, ::2, ::2]


def _of_avalanche(name: str, *arguments: Any, **settings: Any) -> nn.Module:
    """Build one of Avalanche's networks, which take 32 pixels only."""
    from avalanche import models  # takes seconds to import

    network = getattr(models, name)(*arguments, **settings)
    for module in network.modules():
        if hasattr(module, "transform_function"):
            module.transform_function = _every_second  # a lambda there would not pickle
    return network


def _mobilenet_ends(network: Any) -> Ends:
    return _pooled(network.classifier[1], dropout=network.classifier[0])


# A discriminant on the features of MobileNetV2 names half of the images of four toy
# classes in 64 pixels, and nearly nine tenths of them enlarged to 128.
SMALLEST_SIDE = 128


def _mobilenet(cut: int) -> Backbone:
    """Return a network of inverted residuals that is cut after a number of layers."""
    return Backbone(
        cut, _features, _mobilenet_ends, fine_tuned=True, smallest_side=SMALLEST_SIDE
    )


_features = attrgetter("features")
_SQUEEZENET = Backbone(12, _features, _squeezenet_ends)
BACKBONES: dict[str, Backbone] = {
    "squeezenet1_0": _SQUEEZENET,
    "squeezenet1_1": _SQUEEZENET,
    "mobilenet_v2": _mobilenet(8),
    "efficientnet_lite0": _mobilenet(12),
    "efficientnet_lite1": _mobilenet(16),
    "efficientnet_lite2": _mobilenet(16),
    "resnet18": Backbone(  # REMIND's cut, between the last two blocks
        8,
        lambda n: [
            n.conv1,
            n.bn1,
            n.relu,
            n.maxpool,
            n.layer1,
            n.layer2,
            n.layer3,
            *n.layer4,
        ],
        lambda n: _pooled(n.fc),
        fine_tuned=True,
        smallest_side=SMALLEST_SIDE,
    ),
    "small_cnn": Backbone(12, _features, lambda n: _pooled(n.classifier)),
    # For small images, not cut; the networks of some of the paper's competitors.
    "slim_resnet18": Backbone(
        0,
        lambda n: [n.conv1, n.bn1, nn.ReLU(), n.layer1, n.layer2, n.layer3, n.layer4],
        lambda n: _pooled(n.linear),
        lambda side: _of_avalanche("SlimResNet18", 10, nf=20),
    ),
    "resnet32": Backbone(
        0,
        lambda n: list(n.feature_extractor.children())[
            :4
        ],  # after these come the pool and a flattening
        lambda n: _pooled(n.classifier),
        lambda side: _of_avalanche("make_icarl_net", 10),
    ),
    "mlp": Backbone(  # two hidden layers of 100
        0,
        lambda n: [],
        lambda n: {
            "flatten": nn.Flatten(),
            "features": n.features,
            "head": n.classifier,
        },
        lambda side: _of_avalanche(
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


CODEBOOK_DIM = 16  # the paper's
MEMORIES_PER_IMAGE = 28  # of SqueezeNet, with the paper's rows


@lru_cache(maxsize=64)
def map_shape_of(
    name: str,
    cut_layer: int | str | None,
    image_size: int,
    fine_tuning: bool = False,
) -> tuple[int, int, int]:
    """Return the shape of the map at the cut, ``(C, H, W)``; see ``split_backbone``.

    Does not change the RNG state.
    """
    with preserve_rng_state():
        model = split_backbone(
            name,
            None,
            n_classes=1,
            codebook=None,
            cut_layer=cut_layer,
            image_size=image_size,
            fine_tuning=fine_tuning,
        )
    return model.map_shape


def usual_codebook(model: SplitModel, is_fine_tuned: bool) -> Codebook:
    """Return the codebook that suits a model, without rows.

    It is the paper's for SqueezeNet. The paper's codes keep a tenth to a quarter of the
    maps of fine-tuned networks, so that P learns from other maps than it is tested on;
    rows chosen by distance keep more. They are as long as makes memories of the bytes
    of the paper's.
    """
    if not is_fine_tuned:
        return Codebook(codebook_dim=usual_codebook_dim(model))
    length = row_length(model.map_shape, model.input_side, MEMORIES_PER_IMAGE)
    return Codebook(codebook_dim=length, search="distance", filtered=True)


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

    Paper: "Feature extraction and classification"; its cuts of SqueezeNet and
        MobileNetV2 are the default ones.

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
    timm = is_timm(name)
    if name not in BACKBONES and not timm:
        raise ValueError(
            f"backbone {name!r} is unknown; known are {', '.join(BACKBONES)} and "
            f"{PREFIX}NAME for those of timm; for others use split_at"
        )
    if preprocessing:
        expected = Preprocessing(**preprocessing)
    else:
        expected = preprocessing_of(name)
    image_size = image_size or expected.size
    if fine_tuning is None:
        fine_tuning = weights is not None
    is_fine_tuned = fine_tuning and cut_layer != 0
    if weights == "torchvision":
        weights = published_by(name)
    if timm:
        _only_squeezenet(relu_logits, head_kernel)
        model = split_timm(
            name,
            weights,
            n_classes=n_classes,
            cut_layer=cut_layer,
            image_size=image_size,
        )
    else:
        is_fine_tuned = is_fine_tuned and BACKBONES[name].fine_tuned
        smallest_side = 0
        if is_fine_tuned:
            smallest_side = BACKBONES[name].smallest_side
        model = _split_own(
            name,
            weights,
            cut_layer,
            relu_logits,
            head_kernel,
            image_size,
            smallest_side,
        )
        model.reset_head(n_classes)
    if is_fine_tuned:
        model.fixed_statistics = True
        model.centre_head()
    model.set_normalization(expected.mean, expected.std)
    model.interpolation = expected.interpolation
    model.backbone = name
    if codebook is False or (codebook is True and not model.stages):
        codebook = None
    elif codebook is True:
        codebook = usual_codebook(model, is_fine_tuned)
    check_codebook(codebook, model.map_shape[0])
    model.codebook = codebook
    return model


def _only_squeezenet(relu_logits: bool, head_kernel: int) -> None:
    if relu_logits or head_kernel != 1:
        raise ValueError(
            "relu_logits and head_kernel describe SqueezeNet's convolutional "
            "classifier; other backbones end in a linear layer, so leave "
            "relu_logits=False and head_kernel=1 there"
        )


def _split_own(
    name: str,
    weights: str | None,
    cut_layer: int | str | None,
    relu_logits: bool,
    head_kernel: int,
    image_size: int,
    smallest_side: int,
) -> SplitModel:
    """Split one of ``BACKBONES``, without a codebook, and keep its head."""
    known = BACKBONES[name]
    if isinstance(cut_layer, str):
        raise ValueError(
            f"cut_layer is {cut_layer!r}, but {name} is cut after a number of layers: "
            "give a number"
        )
    network = NETWORKS[name]() if known.build is None else known.build(image_size)
    if weights in PUBLISHED:
        _load_published(network, name, weights)
    elif weights is not None:
        check_and_load(network, read_weights(weights), str(weights))
    layers = known.layers(network)
    cut = known.cut if cut_layer is None else cut_layer
    if not 0 <= cut <= len(layers):
        raise ValueError(
            f"cut_layer is {cut}, but {name} has {len(layers)} layers to cut at; give "
            f"0 to {len(layers)}"
        )
    if known is _SQUEEZENET:
        ends = _squeezenet_ends(network, relu_logits, head_kernel)
    else:
        _only_squeezenet(relu_logits, head_kernel)
        ends = known.ends(network)
    plastic_layers = nn.Sequential()
    if layers:
        plastic_layers.add_module("features", _sequential(layers[cut:]))
    for end_name, module in ends.items():
        plastic_layers.add_module(end_name, module)
    return SplitModel(
        _sequential(layers[:cut]),
        plastic_layers,
        "head",
        image_size=image_size,
        smallest_side=smallest_side,
    )


def _sequential(layers: Layers) -> nn.Sequential:
    """Return layers as one module.

    A slice of a ``Sequential`` is one already, and keeps the names of its layers, which
    weight files have.
    """
    if isinstance(layers, nn.Sequential):
        return layers
    return nn.Sequential(*layers)


def _load_published(network: nn.Module, name: str, weights: str) -> None:
    """Load the weights that one of ``PUBLISHED`` has of one of ``BACKBONES``."""
    usual = published_by(name)
    is_in_timm = weights == "timm" and name.startswith("efficientnet_lite")
    if weights != usual and not is_in_timm:
        raise WeightsError(
            f"{weights!r} has no weights of {name}; leave --weights out to take those "
            f"of {usual!r}"
        )
    source = source_of(name, weights)
    if weights == "torchvision":
        state = torchvision_weights(name)
    elif weights == "package":
        state = in_order(packaged_weights(), network, source)
    else:
        name_in_timm = timm_name(name)
        size = config_of(name_in_timm).input_size[-1]
        published = _network(name_in_timm, "timm", size)
        state = in_order(published.state_dict(), network, source)
    check_and_load(network, state, source)


# Networks of timm, with its weights and preprocessing.

_CURE = (
    "give a file (--weights FILE), or 'none' for random weights (in Python "
    "weights=FILE or None)"
)


def split_timm(
    name: str,
    weights: str | None,
    *,
    n_classes: int,
    cut_layer: int | str | None,
    image_size: int,
) -> SplitModel:
    """Split a network of timm before its last stage, or after ``cut_layer``.

    Stages are what timm lists in ``feature_info``: those that halve the map, or the
    blocks of a transformer.

    Args:
        name: ``timm:NAME``.
        weights: ``"timm"``, a path, or ``None``.
        n_classes: outputs of the new head.
        cut_layer: a number of leading stages, or the name of a module.
        image_size: side of the images in pixels.

    Raises:
        ImportError: timm is not installed.
        ValueError: unknown name, or no cut there.
        WeightsError: weights that cannot be read or are another network's.
    """
    network = _network(name, weights, image_size)
    feature_info = getattr(network, "feature_info", None) or ()
    stages = [stage["module"] for stage in feature_info]
    modules = ", ".join(name for name, _ in network.named_children())
    if isinstance(cut_layer, int):
        stage = _stage_of_number(name, stages, cut_layer)
    else:
        stage = cut_layer or None
        if stage is None and len(stages) > 1:
            stage = stages[-2]
        if stage is None:
            raise ValueError(
                f"timm lists no stages of {name}: give --cut-layer, one of {modules}"
            )
    layout = Layout(
        prefix_tokens=getattr(network, "num_prefix_tokens", 0),
        channels_last=str(getattr(network, "output_fmt", "NCHW")).endswith("NHWC"),
    )
    head = _head(network)
    if head is None:
        head = _put_head_behind(network, image_size)
    try:
        model = split_after(
            network,
            stage,
            head,
            n_classes=n_classes,
            image_size=image_size,
            layout=layout,
        )
    except CutError as error:
        raise ValueError(
            f"{name} cannot be cut after {stage!r}: {error}. Give another --cut-layer, "
            f"one of {', '.join(stages) or modules} or a module within; or split the "
            "network with split_at"
        ) from error
    if stage in stages:
        model.stages = tuple(stages[: stages.index(stage) + 1])
    elif stage:
        model.stages = (stage,)
    else:
        model.stages = ()
    return model


def _stage_of_number(name: str, stages: list[str], number: int) -> str | None:
    """Return the last of a number of leading stages; ``None`` if it is 0."""
    if not 0 <= number <= len(stages):
        raise ValueError(
            f"cut_layer is {number}, but {name} has {len(stages)} stages to cut after "
            f"({', '.join(stages)}); give 0 to {len(stages)}, or the name of a module"
        )
    return stages[number - 1] if number else None


def _network(name: str, weights: str | None, image_size: int) -> nn.Module:
    """Build a network of timm; the arguments and errors are those of ``split_timm``."""
    short = name.removeprefix(PREFIX)
    config = config_of(name)
    arguments: dict[str, Any] = {}
    # Networks of a fixed size take it as an argument; others take any size.
    if config.fixed_input_size and image_size != config.input_size[-1]:
        arguments["img_size"] = image_size
    if weights is not None and weights != "timm":
        state = read_weights(weights)
        count = _classes_in(state, config.classifier)
        # timm translates older names, and resizes position embeddings.
        overlay = {
            "state_dict": state,
            "num_classes": count,
            "label_offset": 0,
            "custom_load": False,
            "source": "",
        }
        arguments |= {"num_classes": count, "pretrained_cfg_overlay": overlay}
    create_model = import_timm().create_model
    try:
        network = create_model(short, pretrained=weights is not None, **arguments)
        # Sizes that depend on the image cannot be traced.
        if getattr(network, "dynamic_img_size", False):
            state = network.state_dict()
            network = create_model(short, dynamic_img_size=False, **arguments)
            network.load_state_dict(state)
    except RuntimeError as error:
        if weights in (None, "timm"):
            raise WeightsError(
                f"timm cannot give {name} its weights ({_first(error)}); {_CURE}"
            ) from error
        raise WeightsError(
            f"{weights} does not fit {name} ({_first(error)}): these are the weights "
            "of another network; choose the matching --backbone"
        ) from error
    except (OSError, ValueError, AssertionError, TypeError) as error:
        if isinstance(error, OSError) and cured(error):
            raise
        if weights == "timm":
            raise WeightsError(
                f"the weights of {name} cannot be downloaded ({_first(error)}); "
                f"{without_download()}. Or {_CURE}"
            ) from error
        raise ValueError(
            f"timm cannot build {name} for images of {image_size} pixels "
            f"({_first(error)}); give another image_size"
        ) from error
    if isinstance(network.get_classifier(), nn.Identity):  # trained without labels
        network.reset_classifier(1)
    return network


def _classes_in(
    state: dict[str, Tensor], classifier: str | tuple[str, ...] | None
) -> int:
    """Return the number of classes of the first head in a state; 0 without a head."""
    if isinstance(classifier, str):
        classifier = (classifier,)
    for name in classifier or ():
        weight = state.get(f"{name}.weight")
        if weight is not None:
            return len(weight)
    return 0


def _first(error: BaseException) -> str:
    """Return what an error says, in one line of moderate length."""
    text = " ".join(str(error).split()) or type(error).__name__
    if len(text) < 200:
        return text
    return text[:200] + " ..."


def _head(network: nn.Module) -> str | None:
    """Return the name of the one linear or convolutional layer of the classifier.

    ``None`` if there are two, as in distilled networks, or if it is the last layer of a
    pool by attention, as in CLIP's ResNets, which cannot be traced.
    """
    classifiers = network.get_classifier()
    if not isinstance(classifiers, tuple | list):
        classifiers = [classifiers]
    in_classifiers = set().union(*(module.modules() for module in classifiers))
    names = [
        path
        for path, module in network.named_modules()
        if module in in_classifiers and isinstance(module, nn.Linear | nn.Conv2d)
    ]
    if len(names) != 1:
        return None
    parent = network.get_submodule(names[0].rpartition(".")[0])
    if type(parent).__name__.startswith("AttentionPool"):
        return None
    return names[0]


@torch.no_grad()
def _put_head_behind(network: nn.Module, image_size: int) -> str:
    """Put one linear layer behind what a network gives without its classifiers.

    Two distilled classifiers give the mean of their inputs.

    Returns:
        The name of the layer.
    """
    network.reset_classifier(0)
    network.eval()
    values = network(torch.zeros(1, 3, image_size, image_size))
    if values.dim() != 2:
        raise ValueError(
            f"without its classifiers the network gives {tuple(values.shape)} for one "
            "image, not (1, features): choose a network with one classifier"
        )
    features_of = network.forward
    network.add_module("head_behind", nn.Linear(values.shape[1], 1))

    def logits(images: Tensor) -> Tensor:
        return network.head_behind(features_of(images))

    network.forward = logits  # type: ignore[method-assign]
    return "head_behind"
