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
from crumb_avalanche.images.look_shares import LEAST_SHARE, MOST_LOOKS
from crumb_avalanche.methods.features import FeatureMoments, middle_of

# Size of the windows of the second view of the closest look, in units of the usual.
CLOSE = 0.65
STEPS = {1: 1, 2: 10, 3: 6, 4: 5}  # of the weights that are tried, by number of views
# Cost of the squared distance from equal weights, in units of the log-likelihood of a
# clip.
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
        shares = tuple(float(share) for share in self.shares)
        object.__setattr__(self, "shares", shares)
        in_range = all(LEAST_SHARE <= share <= 1 for share in shares)
        if not (1 <= len(shares) <= MOST_LOOKS and in_range):
            raise ValueError(
                f"looks are {shares}; give one to three shares of the image's side, "
                "from 0.1 to 1"
            )

    @property
    def views(self) -> int:
        """Number of views: one of each look, and a second one of the closest.

        The whole image has no second view.
        """
        return len(self.shares) + (min(self.shares) < 1)

    def windows(self, features: FeatureMoments) -> list[list[FeatureMoments]]:
        """Return for each look what is computed of its maps, an item for each view."""
        windows = [[features] for _ in self.shares]
        closest = self.shares.index(min(self.shares))
        if self.shares[closest] < 1:
            inner, window = max(0.1, CLOSE * features.inner), CLOSE * features.window
            windows[closest].append(replace(features, inner=inner, window=window))
        return windows

    def transform(
        self, size: int, interpolation: str
    ) -> Callable[[Image.Image], Tensor]:
        """Return a function of an RGB image to uint8 pixels.

        These are ``(3, size, size)`` of the whole image, else ``(L, 3, size, size)`` of
        ``L`` looks. Each look is cut out of the image as it is, so that small objects
        keep their details, and resized as ``PixelTransform`` does.
        """
        resized = PixelTransform(size, interpolation)
        if self == WHOLE:
            return resized

        def resized_looks(image: Image.Image) -> Tensor:
            return torch.stack([resized(middle(image, share)) for share in self.shares])

        return resized_looks

    def of(self, pixels: Tensor) -> list[Tensor]:
        """Return ``(B, 3, h, w)`` of each look, of stacked ``transform`` results."""
        if self == WHOLE:
            return [pixels]
        return list(pixels.unbind(1))


WHOLE = Looks()


def middle(image: Image.Image, share: float) -> Image.Image:
    """Cut the middle out of an image, a share of its sides."""
    left, right = middle_of(image.width, share)
    top, bottom = middle_of(image.height, share)
    return image.crop((left, top, right, bottom))


class LookWeights:
    """Weights of the scores of ``V`` views.

    They follow how well each weighting predicted clips before they were learned: they
    are the mean over a grid of weightings, by their likelihood of the clips' true
    classes, with a prior for equal weights. Losses are sums over clips, so that those
    of two learners are added.

    Args:
        views: ``V``.
    """

    def __init__(self, views: int):
        steps = STEPS[views]
        steps_of_views = itertools.product(range(steps + 1), repeat=views)
        weightings = [numbers for numbers in steps_of_views if sum(numbers) == steps]
        self._grid = torch.tensor(weightings, dtype=torch.float64) / steps
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
        self.add(self.losses_of(scores, column))

    def losses_of(self, scores: Tensor, column: int) -> Tensor:
        """Return what ``observe`` adds to the losses of each weighting."""
        shares = torch.einsum("gv,nvc->gnc", self._grid, scores).log_softmax(2)
        return -shares[:, :, column].mean(1)

    def add(self, losses: Tensor) -> None:
        """Add the ``losses`` of another instance of as many views."""
        self.losses = self.losses + losses
