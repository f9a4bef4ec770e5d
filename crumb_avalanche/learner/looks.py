"""The parts of an image that a learner looks at, and how much each counts.

An object that is shown is in the middle of the image. A close look leaves out its surroundings, a wide one shows an
object that fills the image. Which of them is more accurate depends on the stream, so their weights are learned.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.methods.features import middle_of

STEPS = {1: 1, 2: 10, 3: 4}  # of the weights that are tried, by number of looks
PRIOR = 8.0  # cost of the squared distance from equal weights, in units of the log-likelihood of a clip


@dataclass(frozen=True)
class Looks:
    """Central squares of an image, each brought to the size of the image.

    Args:
        shares: sides of the squares in units of the image's side, one to three numbers from 0.1 to 1.

    Raises:
        ValueError: they are none of these.
    """

    shares: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", tuple(float(share) for share in self.shares))
        if len(self.shares) not in STEPS or not all(0.1 <= share <= 1 for share in self.shares):
            raise ValueError(f"looks are {self.shares}; give one to three shares of the image's side, from 0.1 to 1")

    def __len__(self) -> int:
        return len(self.shares)

    def crops(self, pixels: Tensor) -> Iterator[Tensor]:
        """Yield ``(B, 3, h, w)`` uint8 pixels for each look at ``(B, 3, h, w)`` uint8 pixels."""
        for share in self.shares:
            yield pixels if share == 1 else enlarged(pixels.float(), share).to(torch.uint8)


WHOLE = Looks()


def enlarged(pixels: Tensor, share: float) -> Tensor:
    """Enlarge the middle of ``(B, 3, h, w)`` floating-point pixels from 0 to 255 to their size, in whole levels."""
    (top, bottom), (left, right) = (middle_of(length, share) for length in pixels.shape[2:])
    part = pixels[:, :, top:bottom, left:right]
    size = [int(length) for length in pixels.shape[2:]]
    return functional.interpolate(part, size=size, mode="bilinear", align_corners=False).round()


class LookWeights:
    """Weights of the scores of ``L`` looks: how well each weighting predicted clips before they were learned.

    The weights are the mean over a grid of weightings, by their likelihood of the clips' true classes, with a prior
    for equal weights. Losses are sums over clips, so that those of two learners are added.

    Args:
        looks: ``L``.
    """

    def __init__(self, looks: int):
        steps = STEPS[looks]
        parts = (part for part in itertools.product(range(steps + 1), repeat=looks) if sum(part) == steps)
        self._grid = torch.tensor(list(parts), dtype=torch.float64) / steps
        self.losses = torch.zeros(len(self._grid), dtype=torch.float64)

    def weights(self) -> Tensor:
        """Return ``(L,)`` float64 with the sum 1."""
        distances = (self._grid - 1 / self._grid.shape[1]).square().sum(1)
        return (-self.losses - PRIOR * distances).softmax(0) @ self._grid

    def observe(self, scores: Tensor, column: int) -> None:
        """Take in a clip that was predicted before it is learned.

        Args:
            scores: ``(n, L, C)`` float64 of its frames, divided by the temperature of the closed form.
            column: the true class.
        """
        shares = torch.einsum("gl,nlc->gnc", self._grid, scores).log_softmax(2)
        self.add(-shares[:, :, column].mean(1))

    def add(self, losses: Tensor) -> None:
        """Add the ``losses`` of another instance of as many looks."""
        self.losses = self.losses + losses
