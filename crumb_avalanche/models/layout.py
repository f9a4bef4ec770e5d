"""Layout of what the stages of a network return."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Layout of what the stages of a network return.

    Attributes:
        prefix_tokens: number of class tokens and registers before the patches of a transformer.
        channels_last: whether maps are ``(B, H, W, C)``.
    """

    prefix_tokens: int = 0
    channels_last: bool = False

    def grid(self, tokens: int) -> tuple[int, int]:
        """Return height and width of the patches among a number of tokens; images are square."""
        patches = tokens - self.prefix_tokens
        side = math.isqrt(patches)
        return (side, side) if side**2 == patches else (patches, 1)
