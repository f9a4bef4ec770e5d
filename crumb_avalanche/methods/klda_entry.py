"""KLDA as a strategy.

Momeni, Mazumder and Liu, "Continual Learning Using a Kernel-Based Method Over Foundation Models", AAAI 2025.
"""

from crumb_avalanche.methods.closed_form_budget import (
    PAGE,
    features_of,
    fixed_projection_bytes,
    length_of,
    projection_of,
)
from crumb_avalanche.methods.closed_form_settings import KldaSettings
from crumb_avalanche.methods.closed_form_strategy import ClosedFormStrategy, closed_form
from crumb_avalanche.methods.entry import Entry, Recipe
from crumb_avalanche.methods.klda import KernelLDA
from crumb_avalanche.methods.packed_scatter import PackedScatter


def klda_bytes(projection: int, n_classes: int) -> int:
    """Return the bytes of the common scatter, means and counts."""
    return PackedScatter.bytes_of(projection) + 4 * n_classes * (projection + 1)


def build_klda(recipe: Recipe) -> ClosedFormStrategy:
    """Build the strategy with the random Fourier features of the settings, or that the budget buys."""
    method = recipe.method
    projection = projection_of(recipe, klda_bytes)
    length = length_of(recipe.model, method)
    statistics = KernelLDA(recipe.n_classes, length, projection, method.gamma, method.shrinkage, recipe.seed)
    return closed_form(recipe, statistics, features_of(method))


KLDA = Entry(
    name="klda",
    summary="linear discriminant analysis of random Fourier features of frozen features",
    source="Momeni et al., Continual Learning Using a Kernel-Based Method Over Foundation Models, AAAI 2025",
    stores="a mean of the random features for each class, and one covariance; not the random matrix, which has a seed",
    build=build_klda,
    method=KldaSettings,
    item_bytes=lambda model, method: PAGE,
    fixed_bytes=fixed_projection_bytes(klda_bytes),
    gradient=False,
)
