"""Deep SRDA and LR-RGDA as strategies.

Khawand, Hanappe and Colliaux, "Continual Learning with Deep Streaming Regularized Discriminant Analysis", ICCV
Workshops 2023 (arXiv 2309.08353). Rao, Ha, Zhao, Liu and Alippi, "Scalable Analytic Classifiers with Associative Drift
Compensation for Class-Incremental Learning of Vision Transformers", 2026 (arXiv 2602.00144).
"""

from crumb_avalanche.methods.blended_gaussians import LowRankRda, StreamingRda
from crumb_avalanche.methods.closed_form_budget import (
    bytes_of_direction,
    directions_beside_scatter,
    directions_of,
    features_of,
    fixed_gaussian_bytes,
    length_of,
)
from crumb_avalanche.methods.closed_form_settings import LrRgdaSettings, SrdaSettings
from crumb_avalanche.methods.closed_form_strategy import ClosedFormStrategy, closed_form
from crumb_avalanche.methods.entry import Entry, Recipe


def build_srda(recipe: Recipe) -> ClosedFormStrategy:
    """Build the strategy with the directions per class that the budget buys: full covariances if it buys as many.

    Raises:
        ValueError: the budget does not buy a direction for each class.
    """
    method, length = recipe.method, length_of(recipe.model, recipe.method)
    directions = min(directions_of(recipe), length)
    statistics = StreamingRda(recipe.n_classes, length, directions, method.own, method.shrinkage)
    return closed_form(recipe, statistics, features_of(method))


def build_lr_rgda(recipe: Recipe) -> ClosedFormStrategy:
    """Build the strategy with the directions per class, and perhaps the full common covariance, that the budget buys.

    Raises:
        ValueError: the budget does not buy a direction for each class.
    """
    method, length = recipe.method, length_of(recipe.model, recipe.method)
    directions, whole = directions_beside_scatter(recipe, length)
    kept = min(directions, method.rank, length)
    statistics = LowRankRda(recipe.n_classes, length, kept, whole, method.own, method.common, method.ridge)
    return closed_form(recipe, statistics, features_of(method))


SRDA = Entry(
    name="srda",
    summary="a Gaussian of frozen features for each class, its covariance blended with the common one",
    source="Khawand et al., Continual Learning with Deep Streaming Regularized Discriminant Analysis, ICCVW 2023",
    stores="a mean and principal directions for each class, all of them where the budget buys as many",
    build=build_srda,
    method=SrdaSettings,
    item_bytes=bytes_of_direction,
    fixed_bytes=fixed_gaussian_bytes,
    each_class=True,
    gradient=False,
)
LR_RGDA = Entry(
    name="lr_rgda",
    summary="a Gaussian of frozen features for each class, with a covariance of low rank beside the common one",
    source="Rao et al., Scalable Analytic Classifiers with Associative Drift Compensation, arXiv 2602.00144",
    stores="a mean and principal directions for each class, and the common covariance where there is room for it",
    build=build_lr_rgda,
    method=LrRgdaSettings,
    item_bytes=bytes_of_direction,
    fixed_bytes=fixed_gaussian_bytes,
    each_class=True,
    gradient=False,
)
