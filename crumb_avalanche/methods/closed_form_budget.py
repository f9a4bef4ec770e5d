"""What a budget of bytes buys of classifiers in closed form."""

import math
from collections.abc import Callable

from crumb_avalanche.methods.closed_form_settings import CELLS, FeatureSettings, ProjectionSettings
from crumb_avalanche.methods.directions import direction_bytes, fixed_bytes
from crumb_avalanche.methods.entry import Recipe
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.methods.packed_scatter import PackedScatter
from crumb_avalanche.models.split_model import SplitModel

# Random features have no fixed bytes each, because matrices grow with their square: they are bought by the page.
PAGE = 4096
WITHOUT_BUDGET = 640  # random features
LEAST_BESIDE_SCATTER = 4  # directions of a class; with fewer, the full common covariance is not stored


def features_of(settings: FeatureSettings) -> FeatureMoments:
    """Build the features of the settings."""
    return FeatureMoments(
        maps=settings.maps,
        deviations=settings.deviations,
        power=settings.power,
        equal_lengths=settings.equal_lengths,
        cells=settings.cells or CELLS,
    )


def length_of(model: SplitModel, settings: FeatureSettings) -> int:
    """Return ``D``, the number of features."""
    return features_of(settings).length(model)


def fixed_projection_bytes(bytes_of: Callable[[int, int], int]) -> Callable[[SplitModel, ProjectionSettings, int], int]:
    """Return ``Entry.fixed_bytes`` of a method with random features, given their bytes by ``projection_of``."""
    return lambda model, method, n_classes: bytes_of(method.projection, n_classes) if method.projection else 0


def projection_of(recipe: Recipe, bytes_of: Callable[[int, int], int]) -> int:
    """Return the number of random features: that of the settings, or the largest that the budget buys.

    Args:
        recipe: arguments of the strategy, with the budget in pages.
        bytes_of: function of the numbers of random features and of classes that returns the bytes of the statistics.
    """
    if recipe.method.projection or not recipe.mem_size:
        return recipe.method.projection or WITHOUT_BUDGET
    bought = 1
    while bytes_of(bought + 1, recipe.n_classes) <= recipe.mem_size * PAGE:
        bought += 1
    return bought


def directions_of(recipe: Recipe) -> int:
    """Return the number of principal directions of each class that the budget buys.

    Raises:
        ValueError: it does not buy a direction for each class.
    """
    if recipe.mem_size < recipe.n_classes:
        raise ValueError(
            f"the budget buys {recipe.mem_size} principal directions, but the stream has {recipe.n_classes} classes, "
            "which need at least one each; raise the budget (mem_size)"
        )
    return recipe.mem_size // recipe.n_classes


def directions_beside_scatter(recipe: Recipe, length: int) -> tuple[int, bool]:
    """Return the number of directions of each class, and whether the full common covariance is stored beside them.

    Raises:
        ValueError: the budget does not buy a direction for each class.
    """
    directions = directions_of(recipe)
    one = bytes_of_direction(recipe.model, recipe.method)
    beside = directions - math.ceil(PackedScatter.bytes_of(length) / (one * recipe.n_classes))
    return (beside, True) if beside >= LEAST_BESIDE_SCATTER else (directions, False)


def bytes_of_direction(model: SplitModel, settings: FeatureSettings) -> int:
    """Return the bytes of one direction of one class."""
    return direction_bytes(length_of(model, settings), getattr(settings, "eight_bits", False))


def fixed_gaussian_bytes(model: SplitModel, settings: FeatureSettings, n_classes: int) -> int:
    """Return ``Entry.fixed_bytes`` of a method that stores means and directions."""
    return n_classes * fixed_bytes(length_of(model, settings), getattr(settings, "eight_bits", False))
