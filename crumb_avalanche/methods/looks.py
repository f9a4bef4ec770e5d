"""The parts of an image that a closed form looks at, and how much each counts.

A close look leaves out the surroundings of an object in the middle of the image, a wide
one shows an object that fills the image. Which of them is more accurate depends on the
stream, so their weights are learned, and a look that is not needed is given up. The
maps of the closest look have two views, of which the second one lies closer to the
middle: it finds small objects without another pass of the network.
"""

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.methods.look_shares import check_shares, shares_of, text_of
from crumb_avalanche.models.split_model import SplitModel

# Share of the side of the map that enters the plastic layers, and deviation of the
# weights of the head's input, in units of its side.
Window = tuple[float, float]
TOWARDS_MIDDLE: Window = (0.8, 0.18)  # of a look that is not the whole image
CLOSE: Window = (0.52, 0.117)  # of the second view of the closest look
# Of the view of the whole image, among the usual weights of several looks: before any
# clip, and after many. Half-way between them after so many clips.
WHOLE_AT_FIRST = 0.25
WHOLE_LATER = 0.9
CLIPS_HALFWAY = 10
LEAST_INNER = 0.1  # of FeatureMoments


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
    def n_views(self) -> int:
        """Number of views."""
        return len(self.look_of_views)

    @property
    def look_of_views(self) -> list[int]:
        """The number of the look that each view is of."""
        looks: list[int] = []
        for number, windows_of_look in enumerate(self._windows):
            looks += [number] * len(windows_of_look)
        return looks

    def views_of(self, looks: Collection[int]) -> list[int]:
        """Return the numbers of the views of some looks, in order."""
        look_of_view = enumerate(self.look_of_views)
        return [view for view, look in look_of_view if look in looks]

    @property
    def _windows(self) -> list[list[Window | None]]:
        """The windows of the views of each look: where in its maps features are from.

        A look is a middle part of the image, and a view the features of a window of its
        maps; ``None`` is a view of all the maps. The closest look has two views, unless
        it is the whole image.
        """
        closest = min(self.shares)
        windows_of_looks: list[list[Window | None]] = []
        for share in self.shares:
            if share == 1:
                windows_of_looks.append([None])
            elif share == closest:
                windows_of_looks.append([TOWARDS_MIDDLE, CLOSE])
            else:
                windows_of_looks.append([TOWARDS_MIDDLE])
        return windows_of_looks

    def usual_weights(self, n_clips: int) -> Tensor:
        """Return the weights of the views that hold without evidence: ``(V,)`` float64.

        The whole image has a quarter at first, beside other looks, and up to nine
        tenths the more clips were predicted: where scenes mislead, the first clips
        cannot tell, but later ones soon do; where the object fills the image, hardly
        any clip ever tells that the other views cost accuracy. Without the whole image,
        all views weigh the same.

        Args:
            n_clips: number of clips that were predicted before they were learned.
        """
        weights = torch.ones(self.n_views, dtype=torch.float64)
        all_windows = list(itertools.chain.from_iterable(self._windows))
        if None in all_windows and self.n_views > 1:
            progress = n_clips / (n_clips + CLIPS_HALFWAY)
            whole = WHOLE_AT_FIRST + (WHOLE_LATER - WHOLE_AT_FIRST) * progress
            weights *= (1 - whole) / (self.n_views - 1)
            weights[all_windows.index(None)] = whole
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
