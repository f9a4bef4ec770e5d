"""Regularised discriminant analysis as a strategy (Friedman, "Regularized Discriminant Analysis", JASA 1989)."""

import math

from crumb_avalanche.baselines.class_statistics import ClosedFormStrategy, closed_form
from crumb_avalanche.baselines.closed_form_settings import RdaSettings
from crumb_avalanche.baselines.entry import Entry, Recipe
from crumb_avalanche.closed_form.feature_moments import FeatureMoments
from crumb_avalanche.closed_form.packed_scatter import PackedScatter
from crumb_avalanche.closed_form.regularized_discriminant import RegularizedDiscriminant

# The common covariance is kept whole where that leaves the first number of directions a class; beside it more than the
# second are of no use.
LEAST_BESIDE_WHOLE, MOST_BESIDE_WHOLE = 4, 32


def moments(settings: RdaSettings) -> FeatureMoments:
    """The features that the settings ask for."""
    return FeatureMoments(settings.maps, settings.deviations, settings.power)


def build_rda(recipe: Recipe) -> ClosedFormStrategy:
    """As many directions a class as the budget buys, and the common covariance if it leaves enough of them.

    Raises:
        ValueError: it does not buy one for each class.
    """
    features, classes = moments(recipe.method), recipe.n_classes
    if recipe.mem_size < classes:
        raise ValueError(
            f"the budget buys {recipe.mem_size} principal directions, but the stream has {classes} classes, which take "
            "one each at least; raise the budget (mem_size)"
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
    """Bytes of one direction of one class."""
    return 2 * length


RDA = Entry(
    name="rda",
    summary="a Gaussian of frozen features for each class, with principal directions of its own",
    source="Friedman, Regularized Discriminant Analysis, JASA 1989; covariances as directions kept up to date",
    stores="a mean and principal directions for each class, and the common covariance where there is room for it",
    build=build_rda,
    method=RdaSettings,
    item_bytes=lambda model, method: direction_bytes(moments(method).length(model)),
    fixed_bytes=lambda model, method, n_classes: 4 * n_classes * (moments(method).length(model) + 2),
    each_class=True,
    gradient=False,
)
