"""Regularised discriminant analysis as a strategy (Friedman, "Regularized Discriminant Analysis", JASA 1989)."""

from dataclasses import replace

from crumb_avalanche.baselines.class_statistics import ClosedFormStrategy, closed_form
from crumb_avalanche.baselines.closed_form_budget import (
    CELLS,
    bytes_of_direction,
    directions_beside_scatter,
    features_of,
    fixed_gaussian_bytes,
    length_of,
)
from crumb_avalanche.baselines.closed_form_settings import RdaSettings
from crumb_avalanche.baselines.entry import Entry, Recipe
from crumb_avalanche.closed_form.regularized_discriminant import RegularizedDiscriminant
from crumb_avalanche.models.split_model import SplitModel

MOST_BESIDE_SCATTER = 32  # directions of a class beside the full common covariance; more do not help
LEAST_WITH_CELLS = 8  # directions of a class; with fewer, fewer features answer better


def fit(model: SplitModel, method: RdaSettings, n_classes: int, budget: int | None) -> RdaSettings:
    """Decide ``cells`` where it is 0; see ``RdaSettings``."""
    if method.cells:
        return method
    each = LEAST_WITH_CELLS * n_classes
    least = fixed_gaussian_bytes(model, method, n_classes) + each * bytes_of_direction(model, method)
    if budget is None or budget >= least:
        return replace(method, cells=CELLS)
    return replace(method, cells=1, maps=False)


def build_rda(recipe: Recipe) -> ClosedFormStrategy:
    """Build the strategy with the directions per class, and perhaps the full common covariance, that the budget buys.

    The budget is what the statistics take at most: a class has fewer directions where it has fewer images.

    Raises:
        ValueError: the budget does not buy a direction for each class.
    """
    method, length = recipe.method, length_of(recipe.model, recipe.method)
    directions, whole = directions_beside_scatter(recipe, length)
    statistics = RegularizedDiscriminant(
        recipe.n_classes,
        length,
        min(directions, MOST_BESIDE_SCATTER) if whole else directions,
        whole,
        method.own,
        method.shrinkage,
        own_images=method.own_images,
        diagonal=method.diagonal,
        span=method.span,
        eight_bits=method.eight_bits,
    )
    return closed_form(recipe, statistics, features_of(method))


RDA = Entry(
    name="rda",
    summary="a Gaussian of frozen features for each class, with principal directions of its own",
    source="Friedman, Regularized Discriminant Analysis, JASA 1989; covariances as directions kept up to date",
    stores="a mean and principal directions for each class, and the common covariance where there is room for it",
    build=build_rda,
    method=RdaSettings,
    fit=fit,
    item_bytes=bytes_of_direction,
    fixed_bytes=fixed_gaussian_bytes,
    each_class=True,
    gradient=False,
)
