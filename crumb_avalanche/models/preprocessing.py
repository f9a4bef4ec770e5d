"""What a backbone expects of its images."""

from dataclasses import asdict, dataclass
from typing import Any

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
