"""Before a stream: measure feature maps of a few images, fold the feature scale in, fill the codebook."""

import numpy as np
import torch
from torch.utils.data import Dataset

from crumb_avalanche.codebook_init import INITIALISERS
from crumb_avalanche.split_model import SplitModel


@torch.no_grad()
def prepare(
    model: SplitModel, images: Dataset, codebook_init: str = "matched", seed: int = 0, measured_images: int = 64
) -> SplitModel:
    """Make a freshly built model ready to learn, from images of the first experience (or of pretraining).

    Args:
        model: changed in place: ``feature_scale``, biases of the plastic layers, ``codebook.blocks``.
        images: items ``(image, ...)``, images as for ``SplitModel.extract``.
        codebook_init: a name in ``codebook_init.INITIALISERS``.
        seed: of the initialiser.
        measured_images: how many images, evenly spread over the data set, are looked at.

    Returns:
        The model.

    Raises:
        ValueError: unknown initialiser, or maps without any spread.
    """
    if codebook_init not in INITIALISERS:
        raise ValueError(f"codebook_init is {codebook_init!r}; known are {', '.join(INITIALISERS)}")
    places = np.unique(np.linspace(0, len(images) - 1, measured_images).astype(int))
    batch = torch.stack([images[int(place)][0] for place in places]).to(model.pixel_mean.device)
    maps = model.features(batch)
    factor = model.fold_feature_scale(maps)
    if model.codebook is not None:
        INITIALISERS[codebook_init](model.codebook, maps * factor, torch.Generator().manual_seed(seed))
    return model
