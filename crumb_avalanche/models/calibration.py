"""Calibrate a model: set feature scale and codebook from a few images."""

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
import torch
from torch.utils.data import Dataset

from crumb_avalanche.models.codebook import INITIALISERS
from crumb_avalanche.models.extraction import without_autocast
from crumb_avalanche.models.split_model import SplitModel

CHUNK = 4  # images that pass F at once
LOCATIONS = 16  # measured in each map, at least


@torch.no_grad()
def calibrate(
    model: SplitModel,
    images: Dataset,
    codebook_init: str = "matched",
    seed: int = 0,
    measured_images: int = 64,
) -> SplitModel:
    """Set the feature scale and the initial codebook of a new model.

    ``CRUMBStrategy`` and ``CRUMBPlugin`` with a codebook-out loss call it before the
    first experience of a model that is not calibrated. The paper fits the codebook
    once, to torchvision's maps ("Initializing the codebook matrix and CNN"); here it is
    fitted to the maps of these images. The scale is not in the paper.

    Args:
        model: changed in place: ``feature_scale``, biases of the plastic layers,
            ``codebook.blocks``, ``calibrated``.
        images: items ``(image, ...)`` of the first experience or of pretraining; ``(3,
            h, w)`` images as for ``SplitModel.extract``.
        codebook_init: a name in ``codebook.INITIALISERS``.
        seed: seed of the initialiser.
        measured_images: number of images to measure, evenly spread over the data set.

    Returns:
        The model.

    Raises:
        TypeError: the images are not tensors.
        ValueError: the initialiser is unknown, there are no images, or the maps are
            constant.
    """
    if codebook_init not in INITIALISERS:
        raise ValueError(
            f"codebook_init is {codebook_init!r}; known are {', '.join(INITIALISERS)}"
        )
    device = model.pixel_mean.device
    batches = some_of(images, measured_images)
    maps = (model.features(batch.to(device)) for batch in batches)
    first = next(maps)
    locations = sample_of(chain([first], maps))
    with without_autocast(device):
        factor = model.fold_feature_scale(locations, first)
        if model.codebook is not None:
            generator = torch.Generator().manual_seed(seed)
            initialise = INITIALISERS[codebook_init]
            initialise(model.codebook, locations.mul_(factor), generator)
    model.calibrated = True
    return model


def some_of(images: Dataset, count: int = 64) -> Iterator[torch.Tensor]:
    """Yield batches of at most ``count`` images, evenly spread over a data set.

    A batch is ``(b, 3, h, w)`` with ``b`` at most ``CHUNK``.

    Raises:
        TypeError: the images are not tensors.
        ValueError: there are none.
    """
    if count < 1 or not hasattr(images, "__len__") or not len(images):
        raise ValueError(
            f"there are no images to measure in a {type(images).__name__} "
            f"(measured_images={count}); give a data set, such as "
            "benchmark.train_stream[0].dataset, and at least 1"
        )
    spread = np.linspace(0, len(images) - 1, count).astype(int)
    indices = np.unique(spread).tolist()
    for start in range(0, len(indices), CHUNK):
        batch = [images[index][0] for index in indices[start : start + CHUNK]]
        if not isinstance(batch[0], torch.Tensor):
            raise TypeError(
                f"the images are {type(batch[0]).__name__}, not tensors; give the data "
                "set a transform such as torchvision's ToTensor()"
            )
        yield torch.stack(batch)


def sample_of(maps: Iterable[torch.Tensor]) -> torch.Tensor:
    """Take evenly spread locations of maps, at least ``LOCATIONS`` of each.

    All locations of 64 maps would take ten times the memory of CRUMB for the same
    result.

    Args:
        maps: batches of ``(B, C, H, W)`` maps.

    Returns:
        ``(N, C, 1, L)``: ``L`` locations of all ``N`` maps.
    """
    samples = []
    for batch in maps:
        values_bcl = batch.flatten(2)
        step = max(1, values_bcl.shape[2] // LOCATIONS)
        samples.append(values_bcl[:, :, ::step].clone())
    return torch.cat(samples).unsqueeze(2)
