"""How much each look counts: learned from clips, before these are learned."""

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.methods.looks import Looks

# Of the weights that are tried, by number of views.
STEPS = {1: 1, 2: 10, 3: 6, 4: 4}
# Cost of the squared distance from the usual weights, in units of the log-likelihood of
# a clip.
PRIOR = 8.0
# Of an image; 0 is of what was not compared. Classes of few images are sure of what
# they do not know, which is worth no more than other mistakes.
LEAST_LOSS = 1e-9
MOST_LOSS = 3.0
LEAST_CLIPS = 20  # observed before a look is given up
# Sum of the losses of one look alone before that: two clips that it gets wrong. Where
# every look is right, clips do not tell which one is needed.
LEAST_EVIDENCE = 5.0
# A look is enough alone if it costs less log-likelihood of a clip than this, for
# certain: by so many standard errors.
ENOUGH = 0.02
CERTAIN = 2.0
ROUNDING = 1e-9  # of a sum of weights
ALL_VIEWS = 0  # the weighting of all views with the usual weights


class LookWeights:
    """Weights of the scores of ``V`` views, and which looks are needed at all.

    They follow how well each weighting predicted clips before they were learned: they
    are the mean over a grid of weightings, by their likelihood of the clips' true
    classes, with a prior for the usual weights; of an image it is at least ``exp(-3)``.
    Losses are sums over clips, so that those of two learners are added.

    From 20 clips on, of which a look alone gets two wrong or more, ``settle`` gives the
    other looks up where the views of one alone are as good as all views, with the usual
    weights: two standard errors above its mean, the difference of losses is below 0.02.

    Args:
        looks: what the views are of.
        used: numbers of the looks that are needed; default all.

    Attributes:
        losses: of each weighting, the sum over clips, float64.
        squares: of each look, the sum over clips of the squared difference between the
            losses of its views alone and of all views, float64.
        clips: number of clips that were observed.
        used: numbers of the looks that are needed.
    """

    def __init__(self, looks: Looks, used: Sequence[int] | None = None):
        self.looks = looks
        n_views = looks.n_views
        steps = STEPS[n_views]
        # The weightings: of all views as is usual after LEAST_CLIPS clips; of the views
        # of each look alone, equally; then all in steps.
        steps_of_views = itertools.product(range(steps + 1), repeat=n_views)
        weightings = [numbers for numbers in steps_of_views if sum(numbers) == steps]
        weights_in_steps = torch.tensor(weightings, dtype=torch.float64) / steps
        usual_weights = looks.usual_weights(LEAST_CLIPS).unsqueeze(0)  # ALL_VIEWS
        weights_alone = torch.zeros(len(looks), n_views, dtype=torch.float64)
        for number in looks.all:
            views_of_look = self.looks.views_of([number])
            weights_alone[number, views_of_look] = 1 / len(views_of_look)
        self._looks_alone = slice(1, 1 + len(looks))  # weightings of single looks
        # (weightings, V)
        self._grid = torch.cat([usual_weights, weights_alone, weights_in_steps])
        self.losses = torch.zeros(len(self._grid), dtype=torch.float64)
        self.squares = torch.zeros(len(looks), dtype=torch.float64)
        self.clips = 0
        self.used = looks.all if used is None else tuple(used)

    def __deepcopy__(self, memo: dict) -> "LookWeights":
        return copy.copy(self)  # tensors are replaced, never changed in place

    @property
    def used_views(self) -> list[int]:
        """The numbers of the views of the looks that are used."""
        return self.looks.views_of(self.used)

    def views_in(self, features: Tensor) -> list[int]:
        """Return the numbers of the views that answer for images.

        These are those of the used looks. Features that were computed while other looks
        were used may lack some of them.

        Args:
            features: ``(n, V, D)``, 0 where a look was not computed.

        Raises:
            ValueError: they lack all used looks, but have others.
        """
        used = self.used_views
        if torch.jit.is_tracing() or not len(features):
            return used
        computed: list[int] = []
        for look in self.used:
            views = self.looks.views_of([look])
            if features[:, views].any():
                computed += views
        if features.any() and not computed:
            raise ValueError(
                "the features are of other looks than those that are used by now: "
                "compute them anew from the images"
            )
        return computed or used

    def weights(self, views: Sequence[int] | None = None) -> Tensor:
        """Return the weights by which the scores of some views are added.

        They are the mean of a grid of weightings by their posterior: the likelihood of
        the clips observed so far, with a prior for the usual weights.

        Args:
            views: numbers of the views; default the used ones.

        Returns:
            ``(len(views),)`` float64 with the sum 1.
        """
        chosen_views = self.used_views if views is None else list(views)
        grid = self._grid[:, chosen_views]  # (weightings, chosen views)
        # Weightings that give the other views nothing.
        is_of_chosen = grid.sum(1) > 1 - ROUNDING
        distances = (grid - self._usual_of(chosen_views)).square().sum(1)
        # Losses are negative log-likelihoods, summed over clips.
        log_posterior = (-self.losses - PRIOR * distances)[is_of_chosen]
        return log_posterior.softmax(0) @ grid[is_of_chosen]

    def _usual_of(self, views: Sequence[int]) -> Tensor:
        """Return the usual weights of some views alone, with the sum 1."""
        usual = self.looks.usual_weights(self.clips)[list(views)]
        return usual / usual.sum()

    @property
    def best(self) -> int:
        """Number of the used look whose views have the largest sum of weights."""
        weight_of_view = dict(zip(self.used_views, self.weights().tolist()))
        weight_of_look = {}
        for look in self.used:
            views = self.looks.views_of([look])
            weight_of_look[look] = sum(weight_of_view[view] for view in views)
        return max(weight_of_look, key=weight_of_look.__getitem__)

    @property
    def is_learning(self) -> bool:
        """Whether clips still change the weights."""
        return self.looks.n_views > 1 and self.used == self.looks.all

    def losses_of(self, scores: Tensor, column: int) -> Tensor:
        """Return what a clip adds to the loss of each weighting of the views.

        The loss is the negative log-likelihood of the true class, mean over the frames.

        Args:
            scores: ``(n, V', C)`` float64, of ``n`` frames, ``V'`` views that answer
                and ``C`` classes, divided by the temperature of the closed form. Where
                these are not all views, nothing is compared, and the losses are 0.
            column: of the true class.

        Returns:
            ``(weightings,)`` float64.
        """
        if not self.is_learning or scores.shape[1] < self.looks.n_views:
            return torch.zeros_like(self.losses)
        # Scores of each weighting g, image n and class c.
        mixed_scores = torch.einsum("gv,nvc->gnc", self._grid, scores)
        log_likelihoods = mixed_scores.log_softmax(2)[:, :, column]
        # Bounded, so that one sure mistake does not outweigh all other clips.
        return (-log_likelihoods).clamp(LEAST_LOSS, MOST_LOSS).mean(1)

    def observe(self, scores: Tensor, column: int) -> None:
        """Take in a clip that was predicted before it is learned; see ``losses_of``."""
        self.add_losses(self.losses_of(scores, column))

    def add_losses(self, losses: Tensor) -> None:
        """Add the losses of a clip, as ``losses_of`` returned them.

        Losses of 0 are of a clip for which nothing was compared.
        """
        if not losses.any():
            return
        self.losses = self.losses + losses
        self.squares = self.squares + self._excess_losses(losses).square()
        self.clips += 1

    def _excess_losses(self, losses: Tensor) -> Tensor:
        """Return the losses of each look alone minus that of all views: ``(L,)``.

        Args:
            losses: of each weighting.
        """
        return losses[self._looks_alone] - losses[ALL_VIEWS]

    def settle(self) -> None:
        """Give up the other looks where the views of one are enough; see the class."""
        losses_alone = self.losses[self._looks_alone]
        is_evident = float(losses_alone.max()) >= LEAST_EVIDENCE
        has_all_looks = self.used == self.looks.all and len(self.looks) > 1
        if not has_all_looks or self.clips < LEAST_CLIPS or not is_evident:
            return
        means = self._excess_losses(self.losses) / self.clips
        variances = (self.squares / self.clips - means.square()).clamp_min(0)
        standard_errors = (variances / self.clips).sqrt()
        upper_bounds = means + CERTAIN * standard_errors
        if float(upper_bounds.min()) <= ENOUGH:
            self.used = (int(upper_bounds.argmin()),)

    def merge(self, other: "LookWeights") -> None:
        """Add the losses of another instance with the same looks.

        The used looks stay as they are.
        """
        self.losses = self.losses + other.losses
        self.squares = self.squares + other.squares
        self.clips += other.clips

    def state_dict(self) -> dict[str, Any]:
        """Return what was observed, and the looks that are used."""
        return {
            "losses": self.losses,
            "squares": self.squares,
            "clips": self.clips,
            "used": list(self.used),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned."""
        self.losses = state["losses"]
        self.squares = state["squares"]
        self.clips = state["clips"]
        self.used = tuple(state["used"])
