"""Networks of timm as backbones: ``timm:NAME``, with timm's weights and preprocessing. Needs the extra ``timm``.

timm is imported when one of its networks is asked for.
"""

import difflib
from dataclasses import asdict, dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

from torch import nn

from crumb_avalanche.models.layers import Layout
from crumb_avalanche.models.split_at import CutError, split_after
from crumb_avalanche.models.split_model import PIXEL_MEAN, PIXEL_STD, SplitModel
from crumb_avalanche.models.weights import WeightsError, read_weights
from crumb_avalanche.system.atomic_file import cured
from crumb_avalanche.system.rng_state import preserve_rng_state

PREFIX = "timm:"  # of the names of timm's networks
_CURE = "give a file (--weights FILE), or 'none' for random weights (in Python weights=FILE or None)"


@dataclass(frozen=True)
class Preprocessing:
    """How images become the input of a network: resized to a square, divided by 255, and normalised.

    Attributes:
        size: side in pixels.
        interpolation: Pillow's filter, in lower case.
        mean, std: by channel, where white is 1.
    """

    size: int = 224
    interpolation: str = "bilinear"
    mean: tuple[float, ...] = PIXEL_MEAN
    std: tuple[float, ...] = PIXEL_STD

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, equal before and after JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def is_timm(backbone: str) -> bool:
    """Whether a backbone is one of timm's."""
    return backbone.startswith(PREFIX)


def import_timm() -> ModuleType:
    """Return timm.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import timm
    except ImportError as error:
        raise ImportError(f"{PREFIX}NAME needs timm: pip install 'crumb-avalanche[timm]'") from error
    return timm


@lru_cache(maxsize=64)
def config_of(backbone: str) -> Any:
    """Return timm's ``PretrainedCfg`` of ``timm:NAME``.

    Raises:
        ImportError: timm is not installed.
        ValueError: timm has no network of that name.
    """
    timm, name = import_timm(), backbone.removeprefix(PREFIX)
    network = name.partition(".")[0]
    if not timm.is_model(name):
        near = difflib.get_close_matches(network, timm.list_models(), 5, 0.5)
        nearest = f"the nearest names are {', '.join(near)}" if near else "none is near"
        raise ValueError(f"timm has no network {name!r}; {nearest}: timm.list_models('*WORD*') finds others")
    try:
        return timm.get_pretrained_cfg(name) or timm.models.PretrainedCfg()
    except RuntimeError as error:
        raise ValueError(f"{error} timm has weights {', '.join(timm.list_pretrained(f'{network}.*'))}") from error


def full_name(backbone: str) -> str:
    """Return ``timm:NETWORK.TAG`` of ``timm:NETWORK``, and other names as they are.

    Which weights are the default of a network may change with timm's version; the tag names them.

    Raises:
        ImportError: timm is needed and not installed.
        ValueError: timm has no network of that name.
    """
    if not is_timm(backbone) or "." in backbone:
        return backbone
    tag = config_of(backbone).tag
    return f"{backbone}.{tag}" if tag else backbone


def preprocessing_of(backbone: str) -> Preprocessing:
    """Return what a backbone expects of its images, as timm gives it for its own; errors as for ``full_name``."""
    if not is_timm(backbone):
        return Preprocessing()
    config = config_of(backbone)
    from timm.data import resolve_data_config

    found = resolve_data_config({}, pretrained_cfg=config.to_dict())
    return Preprocessing(found["input_size"][-1], found["interpolation"], tuple(found["mean"]), tuple(found["std"]))


def source_of(backbone: str) -> str:
    """Say where the published weights of one of timm's networks come from; errors as for ``full_name``."""
    licence = config_of(backbone).license
    return f"timm's weights of {backbone}" + (f" ({licence})" if licence else "")


@lru_cache(maxsize=64)
def map_channels(name: str, cut_layer: int | str | None, image_size: int) -> int:
    """Return the number of channels of the map at the cut; see ``split_timm``. Does not change the RNG state."""
    with preserve_rng_state():
        model = split_timm(name, None, n_classes=1, cut_layer=cut_layer, image_size=image_size)
    return model.map_shape[0]


def split_timm(
    name: str,
    weights: str | None,
    *,
    n_classes: int,
    cut_layer: int | str | None,
    image_size: int,
) -> SplitModel:
    """Split a network of timm before its last stage, or after ``cut_layer``.

    Stages are what timm lists in ``feature_info``: those that halve the map, or the blocks of a transformer.

    Args:
        name: ``timm:NAME``.
        weights: ``"timm"`` downloads; a path reads a file; ``None`` keeps the random initialisation.
        n_classes: outputs of the new head.
        cut_layer: number of leading stages in F, or the name of the last module of F; default all stages but one.
        image_size: side of the images in pixels.

    Raises:
        ImportError: timm is not installed.
        ValueError: unknown name, or a network that cannot be cut there.
        WeightsError: weights that cannot be read or are another network's.
    """
    network = _network(name, weights, image_size)
    stages = [one["module"] for one in getattr(network, "feature_info", None) or ()]
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
            raise ValueError(f"timm lists no stages of {name}: give --cut-layer, one of {_modules(network)}")
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
            f"{', '.join(stages) or _modules(network)} or a module within; or split the network with split_at"
        ) from error
    model.stages = tuple(stages[: stages.index(stage) + 1]) if stage in stages else (stage,) if stage else ()
    return model


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


def _modules(network: nn.Module) -> str:
    return ", ".join(name for name, _ in network.named_children())


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
