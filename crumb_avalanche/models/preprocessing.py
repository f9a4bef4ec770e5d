"""What a backbone expects of its images. Imports neither torch nor timm until it is asked about one of timm's."""

from dataclasses import asdict, dataclass
from typing import Any

PREFIX = "timm:"  # of the names of timm's networks
PIXEL_MEAN = (0.485, 0.456, 0.406)
PIXEL_STD = (0.229, 0.224, 0.225)


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


def full_name(backbone: str) -> str:
    """Return the name of a backbone with the tag of its weights, if it is one of timm's.

    Raises:
        ImportError: timm is not installed.
        ValueError: timm has no network of that name.
    """
    if not is_timm(backbone):
        return backbone
    from crumb_avalanche.models import timm_backbones

    return timm_backbones.full_name(backbone)


def source_of(backbone: str) -> str:
    """Say where the published weights of one of timm's networks come from; errors as for ``full_name``."""
    from crumb_avalanche.models import timm_backbones

    licence = timm_backbones.licence_of(backbone)
    return f"the weights of {backbone}" + (f" ({licence})" if licence else "")


def preprocessing_of(backbone: str) -> Preprocessing:
    """Return what a backbone expects; errors as for ``full_name``."""
    if not is_timm(backbone):
        return Preprocessing()
    from crumb_avalanche.models import timm_backbones

    return timm_backbones.preprocessing_of(backbone)
