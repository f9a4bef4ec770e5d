"""FeCAM as a strategy.

Goswami, Liu, Twardowski and van de Weijer, "FeCAM: Exploiting the Heterogeneity of Class Distributions in Exemplar-Free
Continual Learning", NeurIPS 2023; with covariances that are updated batch by batch.
"""

from crumb_avalanche.methods.closed_form_budget import (
    bytes_of_direction,
    directions_of,
    features_of,
    fixed_gaussian_bytes,
    length_of,
)
from crumb_avalanche.methods.closed_form_settings import FecamSettings
from crumb_avalanche.methods.closed_form_strategy import ClosedFormStrategy, closed_form
from crumb_avalanche.methods.entry import Entry, Recipe
from crumb_avalanche.methods.fecam import FeCAM
from crumb_avalanche.methods.packed_scatter import PackedScatter
from crumb_avalanche.models.split_model import SplitModel


def build_fecam(recipe: Recipe) -> ClosedFormStrategy:
    """Build the strategy with one common covariance, or with the directions per class that the budget buys.

    Raises:
        ValueError: the budget does not buy a direction for each class.
    """
    method, length = recipe.method, length_of(recipe.model, recipe.method)
    directions = 0 if method.covariance == "common" else min(directions_of(recipe), length)
    statistics = FeCAM(recipe.n_classes, length, directions, method.shrink_diagonal, method.shrink_others, method.tukey)
    return closed_form(recipe, statistics, features_of(method))


def fixed_bytes(model: SplitModel, method: FecamSettings, n_classes: int) -> int:
    """Return the bytes of means and counts, and of the common covariance."""
    if method.covariance == "class":
        return fixed_gaussian_bytes(model, method, n_classes)
    length = length_of(model, method)
    return 4 * n_classes * (length + 1) + PackedScatter.bytes_of(length)


FECAM = Entry(
    name="fecam",
    summary="class means of frozen features, nearest by Mahalanobis distance",
    source="Goswami et al., FeCAM: Exploiting the Heterogeneity of Class Distributions, NeurIPS 2023",
    stores="a mean and principal directions for each class; or a mean for each class, and one covariance",
    build=build_fecam,
    method=FecamSettings,
    item_bytes=bytes_of_direction,
    fixed_bytes=fixed_bytes,
    gradient=False,
)
