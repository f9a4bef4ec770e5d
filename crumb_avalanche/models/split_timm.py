"""Splits of the networks of timm, with its weights."""

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks_toybox_ilab.tables.disk_errors import disk_advice
from crumb_avalanche.models.backbone_names import (
    PREFIX,
    import_timm,
    timm_config,
    without_download,
)
from crumb_avalanche.models.layers import Layout
from crumb_avalanche.models.split_at import CutError, split_after
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import WeightsError, read_weights

# What to do where weights cannot be had, for errors.
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
        weights: ``"timm"`` for the published ones, a path, or ``None`` for random ones.
        n_classes: outputs of the new head.
        cut_layer: a number of leading stages, or the name of a module.
        image_size: side of the images in pixels.

    Raises:
        ImportError: timm is not installed.
        ValueError: unknown name, or no cut there.
        WeightsError: weights that cannot be read or are another network's.
    """
    network = timm_network(name, weights, image_size)
    feature_info = getattr(network, "feature_info", None) or ()
    stages = [stage_info["module"] for stage_info in feature_info]  # names of modules
    module_names = ", ".join(child_name for child_name, _ in network.named_children())
    if isinstance(cut_layer, int):
        cut_module = _stage_of_number(name, stages, cut_layer)  # None for 0: F is empty
    elif cut_layer:
        cut_module = cut_layer
    elif len(stages) > 1:
        cut_module = stages[-2]
    else:
        raise ValueError(
            f"timm lists no stages of {name}: give --cut-layer, one of {module_names}"
        )
    # How tensors become maps: number of class token and registers, axis of channels.
    layout = Layout(
        prefix_tokens=getattr(network, "num_prefix_tokens", 0),
        channels_last=str(getattr(network, "output_fmt", "NCHW")).endswith("NHWC"),
    )
    head = _classifier_layer(network)  # name of the layer to replace
    if head is None:
        # Adds a layer to the network, and returns its name.
        head = _put_head_behind(network, image_size)
    choices = ", ".join(stages) or module_names
    try:
        model = split_after(
            network,
            cut_module,
            head,
            n_classes=n_classes,
            image_size=image_size,
            layout=layout,
        )
    except CutError as error:
        raise ValueError(
            f"{name} cannot be cut after {cut_module!r}: {error}. Give another "
            f"--cut-layer, one of {choices} or a module within; or split the network "
            "with split_at"
        ) from error
    if cut_module in stages:
        model.stages = tuple(stages[: stages.index(cut_module) + 1])
    elif cut_module:
        model.stages = (cut_module,)
    else:
        model.stages = ()
    return model


def _stage_of_number(name: str, stages: list[str], number: int) -> str | None:
    """Return the name of the stage to cut after; ``None`` for 0, before all stages.

    Args:
        name: of the network, for the error.
        stages: names of all stages, in order.
        number: of leading stages before the cut.

    Raises:
        ValueError: there are fewer stages.
    """
    if not 0 <= number <= len(stages):
        raise ValueError(
            f"cut_layer is {number}, but {name} has {len(stages)} stages to cut after "
            f"({', '.join(stages)}); give 0 to {len(stages)}, or the name of a module"
        )
    if number == 0:
        return None
    return stages[number - 1]


def timm_network(name: str, weights: str | None, image_size: int) -> nn.Module:
    """Build a network of timm with its weights, and a classifier.

    Args:
        name: ``timm:NAME``.
        weights: ``"timm"`` for the published ones, a path, or ``None`` for random ones.
        image_size: side of the images in pixels.

    Raises:
        ImportError: timm is not installed.
        ValueError: unknown name, or a size that the network does not take.
        WeightsError: weights that cannot be read or are another network's.
    """
    timm_name = name.removeprefix(PREFIX)
    arguments = _timm_arguments(name, weights, image_size)
    create_model = import_timm().create_model
    try:
        network = create_model(timm_name, pretrained=weights is not None, **arguments)
        # A network for images of any size cannot be traced: it is built for one.
        if getattr(network, "dynamic_img_size", False):
            state = network.state_dict()
            network = create_model(timm_name, dynamic_img_size=False, **arguments)
            network.load_state_dict(state)
    except (OSError, RuntimeError, ValueError, AssertionError, TypeError) as error:
        if isinstance(error, OSError) and disk_advice(error):
            raise
        raise _timm_error(error, name, weights, image_size) from error
    if isinstance(network.get_classifier(), nn.Identity):  # trained without labels
        network.reset_classifier(1)
    return network


def _timm_arguments(name: str, weights: str | None, image_size: int) -> dict[str, Any]:
    """Return the arguments of timm's ``create_model`` for size and weights.

    Args:
        name: ``timm:NAME``.
        weights: ``"timm"``, a path, which is read, or ``None``.
        image_size: side of the images in pixels.

    Raises:
        ImportError, ValueError: as for ``timm_config``.
        WeightsError: the file cannot be read.
    """
    config = timm_config(name)
    arguments: dict[str, Any] = {}
    # Networks of a fixed size take it as an argument; others take any size.
    if config.fixed_input_size and image_size != config.input_size[-1]:
        arguments["img_size"] = image_size
    if weights is not None and weights != "timm":  # a file
        state = read_weights(weights)  # tensors by name
        n_classes = _classes_in(state, config.classifier)
        arguments["num_classes"] = n_classes
        # timm translates older names, and resizes position embeddings.
        arguments["pretrained_cfg_overlay"] = {
            "state_dict": state,
            "num_classes": n_classes,
            "label_offset": 0,
            "custom_load": False,
            "source": "",
        }
    return arguments


def _timm_error(
    error: Exception, name: str, weights: str | None, image_size: int
) -> ValueError:
    """Return the error to raise for a network that timm could not create.

    Args:
        error: that timm raised; a RuntimeError is about the weights.
        name: ``timm:NAME``.
        weights: ``"timm"``, a path, or ``None``, as they were wanted.
        image_size: side of the images in pixels.
    """
    reason = _short_text(error)
    if isinstance(error, RuntimeError):
        if weights in (None, "timm"):
            return WeightsError(
                f"timm cannot give {name} its weights ({reason}); {_CURE}"
            )
        return WeightsError(
            f"{weights} does not fit {name} ({reason}): these are the weights of "
            "another network; choose the matching --backbone"
        )
    if weights == "timm":
        return WeightsError(
            f"the weights of {name} cannot be downloaded ({reason}); "
            f"{without_download()}. Or {_CURE}"
        )
    return ValueError(
        f"timm cannot build {name} for images of {image_size} pixels ({reason}); "
        "give another image_size"
    )


def _classes_in(
    state: dict[str, Tensor], classifier: str | tuple[str, ...] | None
) -> int:
    """Return the number of classes of the first head in weights; 0 without a head.

    Args:
        state: weights of a network of timm, by name.
        classifier: name of its head, or names of several, or ``None``.
    """
    if isinstance(classifier, str):
        classifier = (classifier,)
    for name in classifier or ():
        weight = state.get(f"{name}.weight")  # (classes, features)
        if weight is not None:
            return len(weight)
    return 0


def _short_text(error: BaseException) -> str:
    """Return what an error of timm says, in one line of moderate length."""
    text = " ".join(str(error).split()) or type(error).__name__
    if len(text) < 200:
        return text
    return text[:200] + " ..."


def _classifier_layer(network: nn.Module) -> str | None:
    """Return the name of the linear or convolutional layer of timm's classifier.

    Args:
        network: of timm.

    Returns:
        Its qualified name; ``None`` if there are two, as in distilled networks, or if
        it is the last layer of a pool by attention, as in CLIP's ResNets, which cannot
        be traced.
    """
    classifiers = network.get_classifier()
    if not isinstance(classifiers, tuple | list):
        classifiers = [classifiers]
    classifier_modules: set[nn.Module] = set()
    for classifier in classifiers:
        classifier_modules.update(classifier.modules())
    layer_names = []
    for name, module in network.named_modules():
        is_layer = isinstance(module, nn.Linear | nn.Conv2d)
        if is_layer and module in classifier_modules:
            layer_names.append(name)
    if len(layer_names) != 1:
        return None
    (layer_name,) = layer_names
    parent = network.get_submodule(layer_name.rpartition(".")[0])
    if type(parent).__name__.startswith("AttentionPool"):
        return None
    return layer_name


@torch.no_grad()
def _put_head_behind(network: nn.Module, image_size: int) -> str:
    """Put one linear layer behind what a network gives without its classifiers.

    A network with two distilled classifiers gives the mean of their inputs.

    Args:
        network: of timm; changed in place.
        image_size: side of the images in pixels.

    Returns:
        The name of the layer.

    Raises:
        ValueError: the network does not give one vector for an image.
    """
    network.reset_classifier(0)
    network.eval()
    features = network(torch.zeros(1, 3, image_size, image_size))
    if features.dim() != 2:
        raise ValueError(
            f"without its classifiers the network gives {tuple(features.shape)} for "
            "one image, not (1, features): choose a network with one classifier"
        )
    features_of = network.forward
    # Of one output, as the caller puts a head of its classes in its place.
    network.add_module("head_behind", nn.Linear(features.shape[1], 1))

    def logits(images: Tensor) -> Tensor:
        """Compute logits of images: the new forward pass."""
        return network.head_behind(features_of(images))

    network.forward = logits  # type: ignore[method-assign]
    return "head_behind"
