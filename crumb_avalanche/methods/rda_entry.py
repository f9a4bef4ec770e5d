"""Regularised discriminant analysis as a strategy (Friedman, "Regularized Discriminant Analysis", JASA 1989)."""

from dataclasses import replace

from crumb_avalanche.methods.closed_form_budget import (
    bytes_of_direction,
    directions_beside_scatter,
    directions_of,
    features_of,
    fixed_gaussian_bytes,
    length_of,
)
from crumb_avalanche.methods.closed_form_settings import CELLS, RdaSettings
from crumb_avalanche.methods.closed_form_strategy import ClosedFormStrategy, closed_form
from crumb_avalanche.methods.direction_budget import (
    LEAST_OF_ALL_FEATURES,
    MOST_DIRECTIONS,
    class_bytes,
    share_budget,
)
from crumb_avalanche.methods.entry import Entry, Recipe
from crumb_avalanche.methods.features import OF_HEAD, FeatureMoments, feature_length, of_head
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.tensor_file import StateError

# Settings of the statistics that are decided while learning, or that older states lack.
DECIDED = ("n_classes", "length", "whole", "total_directions", "part", "part_share")
MOST_BESIDE_SCATTER = 32  # directions of a class beside the full common covariance, of ``known_classes``


class GrowingDiscriminant(ClosedFormStrategy):
    """Regularised discriminant analysis that shares a budget among the classes so far.

    A class more takes a place for each number up to its own. When fewer than eight directions of each class would be
    left, the features of the map are dropped, and those of the head's input stay.

    Args:
        budget: most bytes of the statistics.
        dropping: whether features of the map may be dropped.
        arguments: see ``ClosedFormStrategy``; the statistics are those of no class.
    """

    features: FeatureMoments
    statistics: RegularizedDiscriminant

    def __init__(self, *, budget: int, dropping: bool, **arguments):
        super().__init__(**arguments)
        self.budget, self.dropping = budget, dropping

    @property
    def decided_settings(self):
        return {} if self.features.maps or not self.dropping else dict(OF_HEAD)

    def _learn(self, features, labels):
        classes = int(labels.max()) + 1
        if classes > self.statistics.settings["n_classes"]:
            self._make_room(classes)
        self.statistics.update(features[:, -self.statistics.settings["length"] :], labels)

    def _make_room(self, classes: int) -> None:
        self.statistics.grow(classes)
        settings, eight_bits = self.statistics.settings, self.statistics.settings["eight_bits"]
        places = self.statistics.classes.means.untyped_storage().nbytes() // (4 * settings["length"])  # some in reserve
        least = places * class_bytes(settings["length"], LEAST_OF_ALL_FEATURES, eight_bits)
        if self.dropping and self.features.maps and least > self.budget:
            self._keep_head()
            places = classes
        share_budget(self.statistics, places, self.budget)

    def _keep_head(self) -> None:
        self.features = of_head(self.features)
        self.statistics.keep_features(feature_length(self.model))

    def load_state_dict(self, state, strict=True):
        self._fit_state(state["method"])
        super().load_state_dict(state, strict)

    def load_answer_state(self, state):
        self._fit_state(state["method"])
        super().load_answer_state(state)

    def _fit_state(self, state: dict) -> None:
        """Build statistics without images that can load a state, and the features that belong to it."""
        settings = {**RegularizedDiscriminant._older, **state["settings"]}
        decided = {name: settings[name] for name in DECIDED}
        if decided["length"] == self.statistics.settings["length"]:
            pass
        elif self.dropping and decided["length"] == feature_length(self.model):
            self.features = of_head(self.features)
        else:
            raise StateError(
                f"the state has {decided['length']} features, but this strategy {self.statistics.settings['length']}; "
                "build it with the settings that the state was made with"
            )
        self.statistics = RegularizedDiscriminant(**{**self.statistics.settings, **decided})


def fit(model: SplitModel, method: RdaSettings, n_classes: int, budget: int | None) -> RdaSettings:
    """Decide ``cells`` where it is 0 and the number of classes is known; see ``RdaSettings``."""
    if method.cells or not method.known_classes:
        return method
    length = length_of(model, method)
    if budget is None or budget >= n_classes * class_bytes(length, LEAST_OF_ALL_FEATURES, method.eight_bits):
        return replace(method, cells=CELLS)
    return replace(method, **OF_HEAD)


def drops(method: RdaSettings) -> bool:
    """Return whether features of the map may be dropped."""
    return method.maps and not method.cells and not method.known_classes


def charged_bytes(model: SplitModel, method: RdaSettings, n_classes: int) -> int:
    """Return ``Entry.fixed_bytes``: those of the classes' means, of the features that are never dropped."""
    if drops(method):
        return n_classes * class_bytes(feature_length(model), 0, method.eight_bits)
    return fixed_gaussian_bytes(model, method, n_classes)


def build_rda(recipe: Recipe) -> ClosedFormStrategy:
    """Build the strategy.

    The budget is what the statistics take at most: a class has fewer directions where it has fewer images.

    Raises:
        ValueError: the budget does not buy a direction for each class.
    """
    method, length, each = recipe.method, length_of(recipe.model, recipe.method), directions_of(recipe)
    if method.known_classes:
        each, whole = directions_beside_scatter(recipe, length)
        each = min(each, MOST_BESIDE_SCATTER) if whole else each
        statistics = statistics_of(method, recipe.n_classes, length, each, whole, part_of(recipe.model, method))
        return closed_form(recipe, statistics, features_of(method))
    # The bytes that mem_size was computed from.
    budget = recipe.mem_size * bytes_of_direction(recipe.model, method)
    budget += charged_bytes(recipe.model, method, recipe.n_classes)
    return closed_form(
        recipe,
        statistics_of(method, 0, length, MOST_DIRECTIONS, False, part_of(recipe.model, method)),
        features_of(method),
        GrowingDiscriminant,
        budget=budget,
        dropping=drops(method),
    )


def part_of(model: SplitModel, method: RdaSettings) -> int:
    """Return the number of features of the head's input, which have a share of their own; 0 for none."""
    return length_of(model, replace(method, **OF_HEAD)) if method.maps and method.head_share else 0


def statistics_of(
    method: RdaSettings, n_classes: int, length: int, directions: int, whole: bool, part: int
) -> RegularizedDiscriminant:
    """Build statistics with the settings."""
    return RegularizedDiscriminant(
        n_classes,
        length,
        directions,
        whole,
        method.own,
        method.shrinkage,
        own_images=method.own_images,
        diagonal=method.diagonal,
        span=method.span,
        eight_bits=method.eight_bits,
        part=part,
        part_share=method.head_share if part else 0.0,
    )


RDA = Entry(
    name="rda",
    summary="a Gaussian of frozen features for each class, with principal directions of its own",
    source="Friedman, Regularized Discriminant Analysis, JASA 1989; covariances as directions kept up to date",
    stores="a mean and principal directions for each class",
    build=build_rda,
    method=RdaSettings,
    fit=fit,
    item_bytes=bytes_of_direction,
    fixed_bytes=charged_bytes,
    each_class=True,
    gradient=False,
)
