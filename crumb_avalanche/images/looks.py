"""The parts of an image that a learner looks at, and how much each counts.

An object that is shown is in the middle of the image. A close look leaves out its
surroundings, a wide one shows an object that fills the image. Which of them is more
accurate depends on the stream, so their weights are learned. The maps of the closest
look have two views, as usual and close to the middle, which finds small objects without
another pass of the network.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from PIL import Image
from torch import Tensor

from benchmarks_toybox_ilab.streams.torch_dataset import PixelTransform
from crumb_avalanche.methods.features import FeatureMoments, middle_of

MOST = 3
# size of the windows of the second view of the closest look, in units of the usual ones
CLOSE = 0.65
STEPS = {1: 1, 2: 10, 3: 6, 4: 5}  # of the weights that are tried, by number of views
# cost of the squared distance from equal weights, in units of the log-likelihood of a
# clip
PRIOR = 8.0


@dataclass(frozen=True)
class Looks:
    """Middle parts of an image, each resized to what the network takes.

    Args:
        shares: sides of the parts in units of the image's sides, one to three numbers
            from 0.1 to 1.

    Raises:
        ValueError: they are none of these.
    """

    shares: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", tuple(float(share) for share in self.shares))
        if not 1 <= len(self.shares) <= MOST or not all(
            0.1 <= share <= 1 for share in self.shares
        ):
            raise ValueError(
                f"looks are {self.shares}; give one to three shares of the image's side, from 0.1 to 1"
            )

    @property
    def views(self) -> int:
        """Number of views: one of each look, and a second one of the closest unless it is the whole image."""
        return len(self.shares) + (min(self.shares) < 1)

    def windows(self, features: FeatureMoments) -> list[list[FeatureMoments]]:
        """Return for each look what is computed of its maps, in one item for each view."""
        windows = [[features] for _ in self.shares]
        closest = self.shares.index(min(self.shares))
        if self.shares[closest] < 1:
            inner, window = max(0.1, CLOSE * features.inner), CLOSE * features.window
            windows[closest].append(replace(features, inner=inner, window=window))
        return windows

    def transform(
        self, size: int, interpolation: str
    ) -> Callable[[Image.Image], Tensor]:
        """Return a function of an RGB image: ``(3, size, size)`` uint8 of the whole image, else ``(L, 3, size, size)``.

        Each look is cut out of the image as it is, so that small objects keep their
        details, and resized as ``PixelTransform`` does.
        """
        resized = PixelTransform(size, interpolation)
        if self == WHOLE:
            return resized

        return lambda image: torch.stack(
            [resized(middle(image, share)) for share in self.shares]
        )

    def of(self, pixels: Tensor) -> list[Tensor]:
        """Return ``(B, 3, h, w)`` of each look, from a batch of what ``transform`` returns."""
        return [pixels] if self == WHOLE else list(pixels.unbind(1))


WHOLE = Looks()


def middle(image: Image.Image, share: float) -> Image.Image:
    """Cut the middle out of an image, a share of its sides."""
    (left, right), (top, bottom) = (middle_of(length, share) for length in image.size)
    return image.crop((left, top, right, bottom))


class LookWeights:
    """Weights of the scores of ``V`` views: how well each weighting predicted clips before they were learned.

    The weights are the mean over a grid of weightings, by their likelihood of the
    clips' true classes, with a prior for equal weights. Losses are sums over clips, so
    that those of two learners are added.

    Args:
        views: ``V``.
    """

    def __init__(self, views: int):
        steps = STEPS[views]
        parts = (
            part
            for part in itertools.product(range(steps + 1), repeat=views)
            if sum(part) == steps
        )
        self._grid = torch.tensor(list(parts), dtype=torch.float64) / steps
        self.losses = torch.zeros(len(self._grid), dtype=torch.float64)

    def weights(self) -> Tensor:
        """Return ``(V,)`` float64 with the sum 1."""
        distances = (self._grid - 1 / self._grid.shape[1]).square().sum(1)
        return (-self.losses - PRIOR * distances).softmax(0) @ self._grid

    def observe(self, scores: Tensor, column: int) -> None:
        """Take in a clip that was predicted before it is learned.

        Args:
            scores: ``(n, V, C)`` float64 of its frames, divided by the temperature of
                the closed form.
            column: the true class.
        """
        shares = torch.einsum("gv,nvc->gnc", self._grid, scores).log_softmax(2)
        self.add(-shares[:, :, column].mean(1))

    def add(self, losses: Tensor) -> None:
        """Add the ``losses`` of another instance of as many views."""
        self.losses = self.losses + losses
