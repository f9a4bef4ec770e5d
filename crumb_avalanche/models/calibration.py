"""Calibrate a model: set feature scale and codebook from a few images."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from crumb_avalanche.models.channel_groups import group_channels_
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.extraction import without_autocast
from crumb_avalanche.models.initialisers import INITIALISERS
from crumb_avalanche.models.layers import CentredLinear
from crumb_avalanche.models.map_filter import FilterEquations
from crumb_avalanche.models.penultimate import evaluating, penultimate
from crumb_avalanche.models.split_model import SplitModel

CHUNK = 4  # images that pass F at once
LOCATIONS = 16  # measured in each map, at least
# Measured in each map where rows, tables or a filter are fitted, at least: they need
# more locations than a scale does.
FITTED_LOCATIONS = 64
IMAGES = 64  # that are measured
FITTED_IMAGES = 128  # that are measured where rows, tables or a filter are fitted
HELD_OUT = 32  # images that the error of the codes is measured on
LOSSY = 0.5  # error above which codes lose more of a map than they keep


@torch.no_grad()
def calibrate(
    model: SplitModel,
    images: Dataset,
    codebook_init: str | None = None,
    seed: int = 0,
    measured_images: int | None = None,
) -> SplitModel:
    """Set the feature scale and the initial codebook of a new model.

    ``CRUMBPlugin`` and strategies that take gradient steps call it before the first
    experience of a model that needs it (see ``SplitModel.needs_calibration``). The
    paper fits the codebook once, to
    torchvision's maps ("Initializing the codebook matrix and CNN"); here it is fitted
    to the maps of these images. The scale is not in the paper.

    Afterwards the error of the codes is measured on other images (see
    ``measure_codes``), if the model trains on them (``quantized_training``).

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from crumb_avalanche import calibrate, split_backbone
        >>> images = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
        >>> model = split_backbone("small_cnn", None, n_classes=4, image_size=32)
        >>> model.needs_calibration
        True
        >>> calibrate(model, TensorDataset(images)).needs_calibration
        False

    Args:
        model: changed in place: ``feature_scale``, biases of the plastic layers, what
            a ``CentredLinear`` takes off, ``codebook``, ``codes_error``,
            ``calibrated``.
        images: items ``(image, ...)`` of the first experience or of pretraining; ``(3,
            h, w)`` images, uint8 pixels or normalised floats.
        codebook_init: a name in ``initialisers.INITIALISERS``; default ``matched``, as
            in the paper, and ``kmeans`` for a codebook that chooses rows by distance.
        seed: seed of the initialiser.
        measured_images: number of images to measure, evenly spread over the data set;
            default 64, or 128 for a codebook that chooses rows by distance or has
            tables, an order of channels or a filter.

    Returns:
        The model.

    Raises:
        TypeError: the images are not tensors.
        ValueError: the initialiser is unknown, there are no images, or the maps are
            constant.
    """
    codebook = model.codebook
    if codebook_init is None:
        codebook_init = usual_init(codebook)
    if codebook_init not in INITIALISERS:
        raise ValueError(
            f"codebook_init is {codebook_init!r}; known are {', '.join(INITIALISERS)}"
        )
    # A codebook with other settings than the paper's is fitted to more images.
    is_fitted = codebook is not None and not codebook.is_paper
    if measured_images is None:
        measured_images = FITTED_IMAGES if is_fitted else IMAGES
    n_locations = FITTED_LOCATIONS if is_fitted else LOCATIONS
    measured_indices = spread_indices(images, measured_images)
    measured = _measure(model, batches_of(images, measured_indices), n_locations)
    with without_autocast(model.pixel_mean.device):
        # From now on the model multiplies its maps by the factor.
        factor = model.fold_feature_scale(measured.locations, measured.first_maps)
        _centre_head(model, measured.head_inputs, factor)
        if codebook is not None:
            locations = measured.locations.mul_(factor)
            _fill_codebook(codebook, locations, codebook_init, seed)
            _fit_filter(model, codebook, images, measured_indices)  # where it has one
    model.calibrated = True
    if codebook is not None and model.quantized_training:
        measure_codes(model, images, measured_indices)
    return model


def usual_init(codebook: Codebook | None) -> str:
    """Return the initialiser that suits a codebook; the paper's without one."""
    if codebook is not None and codebook.search == "distance":
        return "kmeans"
    return "matched"


class Measured(NamedTuple):
    """What ``calibrate`` measures of ``N`` images, before it changes the model.

    Attributes:
        first_maps: ``(b, C, H, W)`` float32, the complete maps of the first batch.
        locations: ``(N, C, 1, L)`` float32, some locations of all maps.
        head_inputs: ``(b, D)`` of each batch, where the head is a ``CentredLinear``;
            else none.
    """

    first_maps: torch.Tensor
    locations: torch.Tensor
    head_inputs: list[torch.Tensor]


def _measure(
    model: SplitModel, batches: Iterable[torch.Tensor], n_locations: int
) -> Measured:
    """Compute the maps of images, and what is kept of them.

    Args:
        model: computes the maps, and the inputs of its head.
        batches: of images, ``(b, 3, h, w)``; at least one.
        n_locations: number of locations of each map, at least.
    """
    head = model.plastic_layers.get_submodule(model.head)
    first_maps = None
    samples = []  # (b, C, L) of each batch
    head_inputs = []
    for batch in batches:
        maps = model.features(batch.to(model.pixel_mean.device))
        if first_maps is None:
            first_maps = maps
        if isinstance(head, CentredLinear):
            with evaluating(model):
                head_inputs.append(penultimate(model, maps))
        samples.append(sampled_locations(maps, n_locations))
    assert first_maps is not None, "there is at least one batch"
    return Measured(
        first_maps=first_maps,
        locations=torch.cat(samples).unsqueeze(2),
        head_inputs=head_inputs,
    )


def _centre_head(
    model: SplitModel, head_inputs: list[torch.Tensor], factor: float
) -> None:
    """Let the head take the mean of its inputs off, where it is a ``CentredLinear``.

    Args:
        model: its head is changed.
        head_inputs: ``(b, D)`` of each batch, before the maps were scaled.
        factor: of the maps since then.
    """
    head = model.plastic_layers.get_submodule(model.head)
    if isinstance(head, CentredLinear):
        head.centre(torch.cat(head_inputs) * factor)


def _fill_codebook(
    codebook: Codebook, locations: torch.Tensor, codebook_init: str, seed: int
) -> None:
    """Set the order of channels of a codebook, where it has one, and its rows.

    Args:
        codebook: changed in place.
        locations: ``(N, C, 1, L)`` of scaled maps.
        codebook_init: name of the initialiser.
        seed: of its draws.
    """
    generator = torch.Generator().manual_seed(seed)
    initialise = INITIALISERS[codebook_init]
    group_channels_(codebook, locations)  # where it orders channels
    initialise(codebook, locations, generator)  # sets its rows


def _fit_filter(
    model: SplitModel, codebook: Codebook, images: Dataset, indices: Sequence[int]
) -> None:
    """Fit the filter of a codebook, where it has one, to the maps of some images."""
    if codebook.map_filter is None:
        return
    equations = FilterEquations(model.map_shape[0])
    for batch in batches_of(images, indices):
        maps = model.features(batch.to(model.pixel_mean.device))
        unfiltered = codebook.concatenate(codebook.encode(maps))
        equations.add(unfiltered, maps)
    equations.solve(codebook.map_filter)


@torch.no_grad()
def measure_codes(
    model: SplitModel,
    images: Dataset,
    fitted_indices: Sequence[int] = (),
    most: int = HELD_OUT,
) -> float:
    """Measure how much of the feature maps is lost by encoding them.

    It is the sum of squared errors of decoded maps, divided by the sum of squares of
    the maps: 0 where codes keep all of a map, 1 where they say as little as zeros, and
    more where they harm. Warns above ``LOSSY``, a half.

    Args:
        model: with a codebook; its ``codes_error`` is set.
        images: a data set of items ``(image, ...)``, images ``(3, h, w)``.
        fitted_indices: indices of images that the codebook was fitted to. Others are
            taken, evenly spread; these only where there are no others.
        most: largest number of images to take.

    Returns:
        The error.
    """
    codebook = model.codebook
    assert codebook is not None, "only a codebook makes codes"
    all_indices = range(len(images))  # type: ignore[arg-type]
    candidates = sorted(set(all_indices).difference(fitted_indices))
    if not candidates:
        candidates = list(fitted_indices)
    # Evenly spread; where candidates are fewer, several positions are the same.
    positions = np.linspace(0, len(candidates) - 1, most).astype(int)
    indices = [candidates[position] for position in np.unique(positions)]
    error = 0.0  # sums of squares, in float64: there are many small ones
    energy = 0.0
    for batch in batches_of(images, indices):
        maps = model.features(batch.to(model.pixel_mean.device))
        decoded = codebook.decode(codebook.encode(maps))
        error += float((decoded - maps).square().sum(dtype=torch.float64))
        energy += float(maps.square().sum(dtype=torch.float64))
    model.codes_error = error / energy
    if model.codes_error > LOSSY:
        warn_of_error(codebook, model.codes_error)
    return model.codes_error


def warn_of_error(codebook: Codebook, error: float) -> None:
    """Warn that codes lose more than a half of the maps, and name what loses less."""
    if codebook.is_paper:
        cure = (
            "rows chosen by distance keep more at the same bytes: --preset tuned, or "
            "Codebook(search='distance', tables=3, grouping='correlated', "
            "filtered=True)"
        )
    else:
        shorter = max(1, codebook.codebook_dim // 2)
        cure = f"shorter rows keep more, such as codebook_dim={shorter}"
    warnings.warn(
        f"the codes keep {kept_text(error)} of the feature maps; {cure}", stacklevel=3
    )


def kept_text(error: float) -> str:
    """Return the share of the maps that codes keep, as text: 76 %."""
    return f"{100 * max(0.0, 1 - error):.0f} %"


def spread_indices(images: Dataset, count: int) -> list[int]:
    """Return the indices of at most ``count`` images, evenly spread over a data set.

    Raises:
        ValueError: there are none.
    """
    if count < 1 or not hasattr(images, "__len__") or not len(images):
        raise ValueError(
            f"there are no images to measure in a {type(images).__name__} "
            f"(measured_images={count}); give a data set, such as "
            "benchmark.train_stream[0].dataset, and at least 1"
        )
    positions = np.linspace(0, len(images) - 1, count).astype(int)
    return np.unique(positions).tolist()


def batches_of(images: Dataset, indices: Sequence[int]) -> Iterator[torch.Tensor]:
    """Yield images of a data set in batches, ``(b, 3, h, w)``.

    Args:
        images: a data set of items ``(image, ...)``, images ``(3, h, w)``.
        indices: of the images in it, in order; ``CHUNK`` (4) make a batch.

    Raises:
        TypeError: the images are not tensors.
    """
    for start in range(0, len(indices), CHUNK):
        batch_indices = indices[start : start + CHUNK]
        batch = [images[index][0] for index in batch_indices]
        if not isinstance(batch[0], torch.Tensor):
            raise TypeError(
                f"the images are {type(batch[0]).__name__}, not tensors; give the data "
                "set a transform such as torchvision's ToTensor()"
            )
        yield torch.stack(batch)


def sampled_locations(maps: torch.Tensor, n_locations: int = LOCATIONS) -> torch.Tensor:
    """Take evenly spread locations of maps, at least ``n_locations`` of each.

    All locations of 64 maps would take ten times the memory of CRUMB for the same
    result.

    Args:
        maps: ``(B, C, H, W)``.
        n_locations: number of locations that are wanted of each map; maps that have
            fewer give all.

    Returns:
        ``(B, C, L)``: ``L`` locations of all ``B`` maps.
    """
    values_bcl = maps.flatten(2)
    step = max(1, values_bcl.shape[2] // n_locations)
    # Without a copy, the view would keep all locations in memory.
    return values_bcl[:, :, ::step].clone()
