"""RanPAC as a strategy.

McDonnell, Gong, Parvaneh, Abbasnejad and van den Hengel, "RanPAC: Random Projections and Pre-trained Models for
Continual Learning", NeurIPS 2023; without fine-tuning on the first experience, because F and P stay frozen here.
"""

from crumb_avalanche.methods.closed_form_settings import RanpacSettings
from crumb_avalanche.methods.closed_form_strategy import closed_form
from crumb_avalanche.methods.entry import Entry
from crumb_avalanche.methods.features import feature_length
from crumb_avalanche.methods.ranpac import RandomProjection

RANPAC = Entry(
    name="ranpac",
    summary="ridge regression on a random projection of frozen features",
    source="McDonnell et al., RanPAC: Random Projections and Pre-trained Models for Continual Learning, NeurIPS 2023",
    stores="the Gram matrix of the random features, and their sum and number for each class",
    build=lambda recipe: closed_form(
        recipe,
        RandomProjection(
            recipe.n_classes, feature_length(recipe.model), recipe.method.projection, recipe.method.ridge, recipe.seed
        ),
    ),
    method=RanpacSettings,
    fixed_bytes=lambda model, method, n_classes: 4 * (method.projection * (method.projection + n_classes) + n_classes),
    gradient=False,
)
