"""The parts of an image that a closed form looks at, and how much each counts.

A close look leaves out the surroundings of an object in the middle of the image, a wide
one shows an object that fills the image. Which of them is more accurate depends on the
stream, so their weights are learned, and a look that is not needed is given up. The
maps of a look may have two views, of which the second one lies closer to the middle: it
finds small objects without another pass of the network.
"""

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.methods.closed_form import ClosedForm
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.methods.look_shares import check_shares, shares_of, text_of
from crumb_avalanche.models.split_model import SplitModel

# Share of the side of the map that enters the plastic layers, and deviation of the
# weights of the head's input, in units of its side.
Window = tuple[float, float]
TOWARDS_MIDDLE: Window = (0.8, 0.18)  # of a look that is not the whole image
CLOSE: Window = (0.52, 0.117)  # of the second view of the closest look
MIDDLE_OF_WHOLE: Window = (0.6, 0.18)  # of the second view of the whole image
# Of the weights that are tried, by number of views.
STEPS = {1: 1, 2: 10, 3: 6, 4: 4, 5: 4}
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
LEAST_INNER = 0.1  # of FeatureMoments
# The copy that is asked before a clip is learned is brought up to date when so many
# times more images were learned.
GROWTH = 1.5


@dataclass(frozen=True)
class Looks:
    """Middle parts of an image, each resized to what the network takes.

    Args:
        shares: sides of the parts in units of the image's sides, one to three numbers
            from 0.1 to 1.

    Raises:
        ValueError: they are none of these, or one comes twice.
    """

    shares: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        """Check the shares, and make them floats."""
        shares = tuple(float(share) for share in self.shares)
        check_shares(shares)
        object.__setattr__(self, "shares", shares)

    @classmethod
    def of_text(cls, text: str) -> "Looks":
        """Return the looks of a text such as ``1,0.6``."""
        return cls(shares_of(text))

    def __str__(self) -> str:
        return text_of(self.shares)

    def __len__(self) -> int:
        return len(self.shares)

    @property
    def all(self) -> tuple[int, ...]:
        """The numbers of all looks."""
        return tuple(range(len(self.shares)))

    @property
    def views(self) -> int:
        """Number of views."""
        return len(self.look_of_views)

    @property
    def look_of_views(self) -> list[int]:
        """The number of the look that each view is of."""
        looks: list[int] = []
        for number, windows_of_look in enumerate(self._windows):
            looks += [number] * len(windows_of_look)
        return looks

    @property
    def _windows(self) -> list[list[Window | None]]:
        """The windows of the views of each look: where in its maps features are from.

        A look is a middle part of the image, and a view the features of a window of its
        maps; ``None`` is a view of all the maps. The closest look has two views, and so
        has the whole image beside other looks.
        """
        closest = min(self.shares)
        windows_of_looks: list[list[Window | None]] = []
        for share in self.shares:
            is_whole_image = share == 1
            if is_whole_image and closest == 1:
                windows_of_looks.append([None])
            elif is_whole_image:
                windows_of_looks.append([None, MIDDLE_OF_WHOLE])
            elif share == closest:
                windows_of_looks.append([TOWARDS_MIDDLE, CLOSE])
            else:
                windows_of_looks.append([TOWARDS_MIDDLE])
        return windows_of_looks

    def usual_weights(self) -> Tensor:
        """Return the weights of the views before any clip: ``(V,)`` float64.

        The view of a whole image weighs as much as all others together; without it all
        weigh the same. An object that fills the image needs this view, and one in a
        scene is learned from all views whatever they weigh.
        """
        weights = torch.ones(self.views, dtype=torch.float64)
        all_windows = itertools.chain.from_iterable(self._windows)
        for view, window in enumerate(all_windows):
            if window is None:
                weights[view] = max(1, self.views - 1)
        return weights / weights.sum()

    def windows(self, features: FeatureMoments) -> list[list[FeatureMoments]]:
        """Return for each look what is computed of its maps, an item for each view."""
        features_of_looks = []
        for windows_of_look in self._windows:
            features_of_looks.append(
                [_narrowed(features, window) for window in windows_of_look]
            )
        return features_of_looks


WHOLE = Looks()


def _narrowed(features: FeatureMoments, window: Window | None) -> FeatureMoments:
    """Return the features of a window within that of the features.

    Args:
        features: whose map has a middle that counts, and the head's input a window.
        window: see ``Window``; ``None`` leaves the features as they are.
    """
    if window is None:
        return features
    share, deviation = window
    if features.window:
        deviation = min(deviation, features.window)
    inner = max(LEAST_INNER, share * features.inner)
    return replace(features, inner=inner, window=deviation)


@dataclass(frozen=True)
class ViewFeatures:
    """Features of the views of images, which a closed form learns and scores.

    Attributes:
        moments: what is computed of the maps of a view.
        looks: the parts of an image that views are of.
    """

    moments: FeatureMoments = FeatureMoments()  # noqa: RUF009 - it never changes
    looks: Looks = WHOLE

    def __call__(
        self, model: SplitModel, looks: Sequence[Tensor], used: Sequence[int]
    ) -> Tensor:
        """Compute ``(B, V * D)`` float32 features of ``V`` views.

        Args:
            model: a model in any mode, which is restored.
            looks: images or maps of each look that is used, as for
                ``SplitModel.features``.
            used: number of each of these; features of the views of others are 0.
        """
        # All looks pass the network together, which is faster than alone.
        layers = self._layers(model, model.features(torch.cat(list(looks))))
        layers_of_looks = zip(*(layer.chunk(len(looks)) for layer in layers))
        layers_by_look = dict(zip(used, layers_of_looks, strict=True))
        features_of_views: list[Tensor | None] = []  # (B, D) each, None without a look
        for number, moments_of_views in enumerate(self.looks.windows(self.moments)):
            for moments in moments_of_views:
                features = None
                if number in layers_by_look:
                    features = moments.of_layers(list(layers_by_look[number]))
                features_of_views.append(features)
        return torch.cat(list(_without_gaps(features_of_views)), 1)

    def _layers(self, model: SplitModel, maps: Tensor) -> list[Tensor]:
        """Return the layers that features are computed of, see ``FeatureMoments``.

        They have locations where a view has a window.

        Args:
            model: a model in any mode, which is restored.
            maps: ``(B, C, H, W)``, of all looks.
        """
        if self.looks == WHOLE:
            return self.moments.layers(model, maps)
        windowed = _narrowed(self.moments, TOWARDS_MIDDLE)
        return windowed.layers(model, maps)

    def length(self, model: SplitModel) -> int:
        """Return ``D``, the number of features of a view."""
        maps = model.pixel_mean.new_zeros(1, *model.map_shape)
        return self.moments.of_layers(self._layers(model, maps)).shape[1]

    def of_head(self) -> "ViewFeatures":
        """Return the features of the head's input alone: the last ones of each view."""
        return replace(self, moments=self.moments.of_head())


def parts_of(settings: Any) -> tuple[ViewFeatures, dict[str, Any]]:
    """Divide the settings of a method in closed form.

    Args:
        settings: a dataclass of all its settings: ``looks``, the attributes of
            ``FeatureMoments``, and those of the form itself.

    Returns:
        What its features are computed by, and the arguments of the form's constructor
        by name.
    """
    form_settings = asdict(settings)
    looks = Looks.of_text(form_settings.pop("looks"))
    moment_settings = {}
    for setting in fields(FeatureMoments):
        moment_settings[setting.name] = form_settings.pop(setting.name)
    return ViewFeatures(FeatureMoments(**moment_settings), looks), form_settings


def _without_gaps(views: Sequence[Tensor | None]) -> Iterator[Tensor]:
    """Yield the features ``(B, D)`` of views, 0 for those that were not computed."""
    computed = next(features for features in views if features is not None)
    for features in views:
        yield torch.zeros_like(computed) if features is None else features


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

    Attributes:
        losses: of each weighting, the sum over clips, float64.
        squares: of each look, the sum over clips of the squared difference between the
            losses of its views alone and of all views, float64.
        clips: number of clips that were observed.
        used: numbers of the looks that are needed; those of all at first.
    """

    def __init__(self, looks: Looks):
        self.looks = looks
        n_views = looks.views
        steps = STEPS[n_views]
        # All weightings in steps; before them the usual weights of all views, and of
        # those of each look alone.
        steps_of_views = itertools.product(range(steps + 1), repeat=n_views)
        weightings = [numbers for numbers in steps_of_views if sum(numbers) == steps]
        weights_in_steps = torch.tensor(weightings, dtype=torch.float64) / steps
        self._usual = looks.usual_weights()
        usual_weights = torch.zeros(1 + len(looks), n_views, dtype=torch.float64)
        usual_weights[0] = self._usual
        for number in looks.all:
            views_of_look = self._views_of([number])
            usual_weights[1 + number, views_of_look] = self._usual_of(views_of_look)
        self._grid = torch.cat([usual_weights, weights_in_steps])  # (weightings, V)
        self.losses = torch.zeros(len(self._grid), dtype=torch.float64)
        self.squares = torch.zeros(len(looks), dtype=torch.float64)
        self.clips = 0
        self.used = looks.all

    def __deepcopy__(self, memo: dict) -> "LookWeights":
        return copy.copy(self)  # tensors are replaced, never changed in place

    @property
    def used_views(self) -> list[int]:
        """The numbers of the views of the looks that are used."""
        return self._views_of(self.used)

    def _views_of(self, looks: Sequence[int]) -> list[int]:
        """Return the numbers of the views of some looks."""
        look_of_view = enumerate(self.looks.look_of_views)
        return [view for view, look in look_of_view if look in looks]

    def views_in(self, features: Tensor) -> list[int]:
        """Return the numbers of the views that answer for images.

        These are the used ones. Features of before a look was given up, or taken again,
        may lack some.

        Args:
            features: ``(n, V, D)``, 0 where a view was not computed.
        """
        used = self.used_views
        if torch.jit.is_tracing() or len(used) == 1 or not len(features):
            return used
        is_computed = features.any(2).all(0).tolist()  # of each view, for all images
        return [view for view in used if is_computed[view]] or used

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
        usual = self._usual[list(views)]
        return usual / usual.sum()

    @property
    def is_learning(self) -> bool:
        """Whether clips still change the weights."""
        return self.looks.views > 1 and self.used == self.looks.all

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
        if not self.is_learning or scores.shape[1] < self.looks.views:
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
            losses: of each weighting; see ``__init__`` for the first ones.
        """
        return losses[1 : 1 + len(self.looks)] - losses[0]

    def settle(self) -> None:
        """Give up the other looks where the views of one are enough; see the class."""
        losses_alone = self.losses[1 : 1 + len(self.looks)]
        is_evident = float(losses_alone.max()) >= LEAST_EVIDENCE
        if len(self.used) == 1 or self.clips < LEAST_CLIPS or not is_evident:
            return
        means = self._excess_losses(self.losses) / self.clips
        variances = (self.squares / self.clips - means.square()).clamp_min(0)
        standard_errors = (variances / self.clips).sqrt()
        upper_bounds = means + CERTAIN * standard_errors
        if float(upper_bounds.min()) <= ENOUGH:
            self.used = (int(upper_bounds.argmin()),)

    def merge(self, other: "LookWeights") -> None:
        """Add the losses of another instance with the same looks.

        Looks that one of the two uses are used.
        """
        self.losses = self.losses + other.losses
        self.squares = self.squares + other.squares
        self.clips += other.clips
        self.used = tuple(sorted({*self.used, *other.used}))

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


class EarlierForm:
    """An earlier copy of a closed form, which answers for clips that are not learned.

    It is made anew in each lesson, and within one whenever there are half as many
    images again: each change of the statistics needs a new solution, which takes longer
    than an answer.
    """

    def __init__(self) -> None:
        self._form: ClosedForm | None = None  # the copy
        self._images = 0  # that the copy has learned

    def __deepcopy__(self, memo: dict) -> "EarlierForm":
        return copy.copy(self)  # the copy is replaced, never changed

    def forget(self) -> None:
        """Drop the copy, so that all that was learned so far answers next."""
        self._form = None

    def copy_of(self, statistics: ClosedForm) -> ClosedForm:
        """Return the copy of what was learned so far, made anew if it is too old."""
        n_learned = int(statistics.image_counts.sum())
        if self._form is None or n_learned >= GROWTH * self._images:
            self._form = copy.deepcopy(statistics)
            self._images = max(1, n_learned)
        return self._form

    def knowing(self, statistics: ClosedForm, label: int) -> ClosedForm | None:
        """Return a copy of statistics that predicts a clip before it is learned.

        Args:
            statistics: what was learned so far; an earlier copy is returned while it
                is recent enough.
            label: class of the clip.

        Returns:
            ``None`` if the copy does not know the class, or no other one.
        """
        form = self.copy_of(statistics)
        is_known = form.image_counts > 0
        knows_others = int(is_known.sum()) > 1
        knows_class = label < len(is_known) and bool(is_known[label])
        return form if knows_class and knows_others else None

    def state_dict(self) -> dict[str, Any]:
        """Return the copy, and how many images it learned."""
        form = None if self._form is None else self._form.state_dict()
        return {"form": form, "images": self._images}

    def load_state_dict(self, state: dict[str, Any], statistics: ClosedForm) -> None:
        """Load what ``state_dict`` returned.

        Args:
            state: see above.
            statistics: a form with the same settings.
        """
        self._form = None
        self._images = state["images"]
        if state["form"] is not None:
            self._form = statistics.like(state["form"])
            self._form.load_state_dict(state["form"])
