"""RanPAC as a strategy.

McDonnell, Gong, Parvaneh, Abbasnejad and van den Hengel, "RanPAC: Random Projections and Pre-trained Models for
Continual Learning", NeurIPS 2023; without its first-session fine-tuning, because F and P stay frozen here.
"""

from dataclasses import dataclass

from crumb_avalanche.baselines.class_statistics import closed_form
from crumb_avalanche.baselines.entry import Entry
from crumb_avalanche.closed_form.feature_moments import feature_length
from crumb_avalanche.closed_form.random_projection import RandomProjection


@dataclass(frozen=True)
class RanpacSettings:
    """Settings of RanPAC.

    Attributes:
        projection: length M of the random features; the Gram matrix takes ``4 * M**2`` bytes. The authors' 10,000 take
            400 MB; 640 keep within the 2.26 MB of 15 images, up to 240 classes.
        ridge: of the regression, in units of the Gram matrix's mean diagonal. (The authors choose it anew after every
            experience on images held back, which a single pass does not have.)
    """

    projection: int = 640
    ridge: float = 1e-3

    def __post_init__(self):
        if self.projection < 1:
            raise ValueError(f"projection is {self.projection}; give at least 1 random feature")
        if not self.ridge > 0:
            raise ValueError(f"ridge is {self.ridge}; give a positive number, or the equations may have no solution")


RANPAC = Entry(
    name="ranpac",
    summary="ridge regression on a random projection of frozen features",
    source="McDonnell et al., RanPAC: Random Projections and Pre-trained Models for Continual Learning, NeurIPS 2023",
    stores="the Gram matrix of the random features, and their sum for each class",
    build=lambda recipe: closed_form(
        recipe,
        RandomProjection(
            recipe.n_classes, feature_length(recipe.model), recipe.method.projection, recipe.method.ridge, recipe.seed
        ),
    ),
    method=RanpacSettings,
    fixed_bytes=lambda model, method, n_classes: 4 * method.projection * (method.projection + n_classes),
    gradient=False,
)
