"""Regularised discriminant analysis as a strategy (Friedman, "Regularized Discriminant Analysis", JASA 1989)."""

import math

from crumb_avalanche.baselines.class_statistics import ClosedFormStrategy, closed_form
from crumb_avalanche.baselines.closed_form_settings import RdaSettings
from crumb_avalanche.baselines.entry import Entry, Recipe
from crumb_avalanche.closed_form.feature_moments import FeatureMoments
from crumb_avalanche.closed_form.packed_scatter import PackedScatter
from crumb_avalanche.closed_form.regularized_discriminant import RegularizedDiscriminant

# The full common covariance is stored if it leaves room for the first number of directions per class; more than the
# second number do not help then.
LEAST_BESIDE_WHOLE, MOST_BESIDE_WHOLE = 4, 32


def moments(settings: RdaSettings) -> FeatureMoments:
    """Build the features of the settings."""
    return FeatureMoments(settings.maps, settings.deviations, settings.power)


def build_rda(recipe: Recipe) -> ClosedFormStrategy:
    """Build the strategy with the directions per class, and perhaps the full common covariance, that the budget buys.

    The budget is what the statistics take at most: a class has fewer directions where it has fewer images.

    Raises:
        ValueError: the budget does not buy a direction for each class.
    """
    features, classes = moments(recipe.method), recipe.n_classes
    if recipe.mem_size < classes:
        raise ValueError(
            f"the budget buys {recipe.mem_size} principal directions, but the stream has {classes} classes, which need "
            "at least one each; raise the budget (mem_size)"
        )
    length = features.length(recipe.model)
    directions = recipe.mem_size // classes
    beside_whole = directions - math.ceil(PackedScatter.bytes_of(length) / (direction_bytes(length) * classes))
    whole = beside_whole >= LEAST_BESIDE_WHOLE
    kept = min(beside_whole, MOST_BESIDE_WHOLE) if whole else directions
    method = recipe.method
    statistics = RegularizedDiscriminant(classes, length, kept, whole, method.own, method.shrinkage)
    return closed_form(recipe, statistics, features)


def direction_bytes(length: int) -> int:
    """Return the bytes of one direction of one class."""
    return 2 * length


RDA = Entry(
    name="rda",
    summary="a Gaussian of frozen features for each class, with principal directions of its own",
    source="Friedman, Regularized Discriminant Analysis, JASA 1989; covariances as directions kept up to date",
    stores="a mean and principal directions for each class, and the common covariance where there is room for it",
    build=build_rda,
    method=RdaSettings,
    item_bytes=lambda model, method: direction_bytes(moments(method).length(model)),
    fixed_bytes=lambda model, method, n_classes: 4 * n_classes * (moments(method).length(model) + 4),
    each_class=True,
    gradient=False,
)
