"""Before a stream: measure feature maps of a few images, fold the feature scale in, fill the codebook."""

import numpy as np
import torch
from torch.utils.data import Dataset

from crumb_avalanche.codebook_init import INITIALISERS
from crumb_avalanche.split_model import SplitModel

CHUNK = 8  # images that pass F at once
LOCATIONS = 32  # of a map, at least, that are looked at


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
    places = np.unique(np.linspace(0, len(images) - 1, measured_images).astype(int)).tolist()
    first, sample = None, []
    # A few images at a time, and some locations of each map: all maps at once would take more than the whole buffer.
    for start in range(0, len(places), CHUNK):
        batch = torch.stack([images[place][0] for place in places[start : start + CHUNK]])
        maps = model.features(batch.to(model.pixel_mean.device))
        first = maps[:4].clone() if first is None else first
        sample.append(some_locations(maps))
    sample = torch.cat(sample)
    factor = model.fold_feature_scale(sample, first)
    if model.codebook is not None:
        INITIALISERS[codebook_init](model.codebook, sample.mul_(factor), torch.Generator().manual_seed(seed))
    return model


def some_locations(maps: torch.Tensor) -> torch.Tensor:
    """``(B, C, 1, L)`` of ``(B, C, H, W)`` maps: locations evenly spread, at least 32 of a map that has as many."""
    flat = maps.flatten(2)
    step = max(1, flat.shape[2] // LOCATIONS)
    return flat[:, :, ::step].unsqueeze(2).clone()
