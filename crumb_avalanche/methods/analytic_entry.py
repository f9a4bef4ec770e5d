"""Ridge regression on random features that fill the budget: ACIL, F-OAL, and RanPAC with a ridge chosen as it learns.

Zhuang et al., "ACIL: Analytic Class-Incremental Learning with Absolute Memorization and Privacy Protection", NeurIPS
2022; Zhuang et al., "GACL: Exemplar-Free Generalized Analytic Continual Learning", NeurIPS 2024; Zhuang, Liu et al.,
"F-OAL: Forward-only Online Analytic Learning with Fast Training and Low Memory Footprint in Class Incremental
Learning", NeurIPS 2024.

These are the classifier of ``ranpac``: their recursion gives the weights that the Gram matrix and the class sums give
at once, for the same ridge. They differ in settings alone: number and activation of the random features, ridge, and,
for F-OAL, features of several layers.

Deviations: a ridge is in units of the mean of the Gram matrix's diagonal, so it grows with the images, where the
authors' is a constant. ACIL trains its network on the first classes; here it stays frozen. F-OAL averages the outputs
of all blocks of a transformer, which have equal sizes; here the means of the map at the cut and of the head's input,
which may have different sizes, are joined, and the random projection adds them up.
"""

from functools import partial

from crumb_avalanche.methods.closed_form_budget import (
    PAGE,
    features_of,
    fixed_projection_bytes,
    length_of,
    projection_of,
)
from crumb_avalanche.methods.closed_form_settings import AcilSettings, FoalSettings, ProjectionSettings
from crumb_avalanche.methods.closed_form_strategy import ClosedFormStrategy, closed_form
from crumb_avalanche.methods.entry import Entry, Recipe
from crumb_avalanche.methods.ranpac import RandomProjection

_STORES = "the Gram matrix of the random features, and their sum and number for each class"


def ridge_bytes(projection: int, n_classes: int) -> int:
    """Return the bytes of Gram matrix, class sums and counts."""
    return 4 * (projection * (projection + n_classes) + n_classes)


def build_ridge(recipe: Recipe, activation: str = "relu") -> ClosedFormStrategy:
    """Build the strategy with the random features of the settings, or that the budget buys."""
    method = recipe.method
    projection, length = projection_of(recipe, ridge_bytes), length_of(recipe.model, method)
    ridge = getattr(method, "ridge", 0.0)  # 0: chosen
    statistics = RandomProjection(recipe.n_classes, length, projection, ridge, recipe.seed, activation)
    return closed_form(recipe, statistics, features_of(method))


_by_the_page = partial(
    Entry, stores=_STORES, item_bytes=lambda model, method: PAGE, fixed_bytes=fixed_projection_bytes(ridge_bytes),
    gradient=False,
)  # fmt: skip
RANPAC_GCV = _by_the_page(
    name="ranpac_gcv",
    summary="ridge regression on a random projection of frozen features, its ridge chosen by cross validation",
    source="McDonnell et al., RanPAC, NeurIPS 2023; ridge by generalised cross validation (Golub et al., 1979)",
    build=build_ridge,
    method=ProjectionSettings,
)
ACIL = _by_the_page(
    name="acil",
    summary="ridge regression on a random projection of frozen features, as ranpac, filling the budget",
    source="Zhuang et al., ACIL, NeurIPS 2022; GACL, NeurIPS 2024",
    build=build_ridge,
    method=AcilSettings,
)
FOAL = _by_the_page(
    name="foal",
    summary="ridge regression on a random sigmoid projection of frozen features of two layers",
    source="Zhuang, Liu et al., F-OAL: Forward-only Online Analytic Learning, NeurIPS 2024",
    build=partial(build_ridge, activation="sigmoid"),
    method=FoalSettings,
)
