"""Networks of timm as backbones: ``timm:NAME``, with timm's weights and preprocessing. Needs the extra ``timm``."""

from typing import Any

from torch import Tensor, nn

from crumb_avalanche.models.backbone_names import PREFIX, config_of, import_timm
from crumb_avalanche.models.layers import Layout
from crumb_avalanche.models.split_at import CutError, split_after
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import WeightsError, read_weights
from crumb_avalanche.system.atomic_file import cured

_CURE = "give a file (--weights FILE), or 'none' for random weights (in Python weights=FILE or None)"


def split_timm(
    name: str,
    weights: str | None,
    *,
    n_classes: int,
    cut_layer: int | str | None,
    image_size: int,
) -> SplitModel:
    """Split a network of timm before its last stage, or after ``cut_layer``: a number of leading stages, or a module.

    Stages are what timm lists in ``feature_info``: those that halve the map, or the blocks of a transformer.
    ``weights`` is ``"timm"``, a path, or ``None``. ImportError: timm is not installed; ValueError: unknown name, or no
    cut there; WeightsError: weights that cannot be read or are another network's.
    """
    network = _network(name, weights, image_size)
    stages = [one["module"] for one in getattr(network, "feature_info", None) or ()]
    modules = ", ".join(name for name, _ in network.named_children())
    if isinstance(cut_layer, int):
        if cut_layer > len(stages):
            raise ValueError(
                f"cut_layer is {cut_layer}, but {name} has {len(stages)} stages to cut after ({', '.join(stages)}); "
                f"give 0 to {len(stages)}, or the name of a module"
            )
        stage = stages[cut_layer - 1] if cut_layer else None
    else:
        stage = cut_layer or (stages[-2] if len(stages) > 1 else None)
        if stage is None:
            raise ValueError(f"timm lists no stages of {name}: give --cut-layer, one of {modules}")
    layout = Layout(
        prefix_tokens=getattr(network, "num_prefix_tokens", 0),
        channels_last=str(getattr(network, "output_fmt", "NCHW")).endswith("NHWC"),
    )
    head = _head(name, network)
    try:
        model = split_after(network, stage, head, n_classes=n_classes, image_size=image_size, layout=layout)
    except CutError as error:
        raise ValueError(
            f"{name} cannot be cut after {stage!r}: {error}. Give another --cut-layer, one of "
            f"{', '.join(stages) or modules} or a module within; or split the network with split_at"
        ) from error
    model.stages = tuple(stages[: stages.index(stage) + 1]) if stage in stages else (stage,) if stage else ()
    return model


def timm_weights(name: str) -> dict[str, Tensor]:
    """Download the weights of ``timm:NAME``; errors as for ``split_timm``."""
    return _network(name, "timm", config_of(name).input_size[-1]).state_dict()


def _network(name: str, weights: str | None, image_size: int) -> nn.Module:
    short = name.removeprefix(PREFIX)
    config = config_of(name)
    arguments: dict[str, Any] = {}
    # Networks of a fixed size take it as an argument; others take any size.
    if config.fixed_input_size and image_size != config.input_size[-1]:
        arguments["img_size"] = image_size
    if weights is not None and weights != "timm":
        state = read_weights(weights)
        heads = (config.classifier,) if isinstance(config.classifier, str) else config.classifier or ()
        rows = [len(state[f"{head}.weight"]) for head in heads if f"{head}.weight" in state]
        count = rows[0] if rows else 0
        # timm translates older names, and resizes position embeddings.
        overlay = {"state_dict": state, "num_classes": count, "label_offset": 0, "custom_load": False, "source": ""}
        arguments |= {"num_classes": count, "pretrained_cfg_overlay": overlay}
    try:
        network = _created(short, weights is not None, arguments)
    except RuntimeError as error:
        if weights in (None, "timm"):
            raise WeightsError(f"timm cannot give {name} its weights ({_first(error)}); {_CURE}") from error
        raise WeightsError(
            f"{weights} does not fit {name} ({_first(error)}): these are the weights of another network; choose the "
            "matching --backbone"
        ) from error
    except (OSError, ValueError, AssertionError, TypeError) as error:
        if isinstance(error, OSError) and cured(error):
            raise
        if weights == "timm":
            raise WeightsError(f"the weights of {name} cannot be downloaded ({_first(error)}); {_CURE}") from error
        raise ValueError(
            f"timm cannot build {name} for images of {image_size} pixels ({_first(error)}); give another image_size"
        ) from error
    if isinstance(network.get_classifier(), nn.Identity):  # trained without labels
        network.reset_classifier(1)
    return network


def _created(name: str, pretrained: bool, arguments: dict[str, Any]) -> nn.Module:
    network = import_timm().create_model(name, pretrained=pretrained, **arguments)
    if not getattr(network, "dynamic_img_size", False):
        return network
    # Sizes that depend on the image cannot be traced.
    fixed = import_timm().create_model(name, dynamic_img_size=False, **arguments)
    fixed.load_state_dict(network.state_dict())
    return fixed


def _first(error: BaseException) -> str:
    """Return what an error says, in one line of moderate length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 200 else text[:200] + " ..."


def _head(name: str, network: nn.Module) -> str:
    """Return the name of the one linear or convolutional layer of the classifier."""
    found = network.get_classifier()
    found = list(found) if isinstance(found, tuple | list) else [found]
    layers = {part for one in found for part in one.modules() if isinstance(part, nn.Linear | nn.Conv2d)}
    names = [path for path, module in network.named_modules() if module in layers]
    if len(names) != 1:
        raise ValueError(
            f"the classifier of {name} has {len(names)} linear or convolutional layers ({', '.join(names)}), and a "
            "backbone must have one: choose a network that is not distilled"
        )
    return names[0]
