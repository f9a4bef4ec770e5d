"""Before a stream: measure feature maps of a few images, fold the feature scale in, fill the codebook."""

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
import torch
from torch.utils.data import Dataset

from crumb_avalanche.models.codebook_init import INITIALISERS
from crumb_avalanche.models.split_model import SplitModel

CHUNK = 4  # images that pass F at once
LOCATIONS = 16  # of a map, at least, that are looked at


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

    def maps_of_some() -> Iterator[torch.Tensor]:
        for start in range(0, len(places), CHUNK):
            batch = torch.stack([images[place][0] for place in places[start : start + CHUNK]])
            yield model.features(batch.to(model.pixel_mean.device))

    maps = maps_of_some()
    whole = next(maps)
    sample = sample_of(chain([whole], maps))
    factor = model.fold_feature_scale(sample, whole)
    if model.codebook is not None:
        INITIALISERS[codebook_init](model.codebook, sample.mul_(factor), torch.Generator().manual_seed(seed))
    return model


def sample_of(maps: Iterable[torch.Tensor]) -> torch.Tensor:
    """Evenly spread locations of feature maps, at least 16 of a map that has as many.

    All of 64 maps at once would take ten times CRUMB's whole memory, and say no more.

    Args:
        maps: ``(B, C, H, W)`` tensors, a few maps each.

    Returns:
        ``(N, C, 1, L)`` of all ``N`` maps.
    """
    kept = []
    for some in maps:
        flat = some.flatten(2)
        kept.append(flat[:, :, :: max(1, flat.shape[2] // LOCATIONS)].clone())
    return torch.cat(kept).unsqueeze(2)
