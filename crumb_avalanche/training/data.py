"""What a data set says of its items: labels, normalisation, names of frames; and data sets without labels."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import finalize

import torch
from avalanche.benchmarks import benchmark_from_datasets, with_task_labels
from avalanche.benchmarks.utils import ConstantSequence, DataAttribute, TaskAwareSupervisedClassificationDataset
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset
from torchvision import transforms
from torchvision.transforms import v2

from crumb_avalanche.models.extraction import BadFeaturesError
from crumb_avalanche.system.rng_state import preserve_rng_state

_read: dict[int, list[int]] = {}  # by id: Avalanche's data sets have no hash


def labels_of(dataset: Dataset) -> list[int]:
    """Return the label of each item: ``targets``, or the second value of each item where a data set has none.

    Without ``targets`` every item is read once; the global RNG state is restored afterwards.
    """
    targets = getattr(dataset, "targets", None)
    if targets is not None:
        return list(map(int, targets))
    if id(dataset) not in _read:
        with preserve_rng_state():
            _read[id(dataset)] = [int(dataset[number][1]) for number in range(len(dataset))]
        finalize(dataset, _read.pop, id(dataset), None)
    return list(_read[id(dataset)])


def use_int64_labels(strategy: Any, targets: bool = False) -> None:
    """Convert the labels of a strategy's batch to int64: losses take no other, data sets have ``int16`` and ``int32``.

    With ``targets``, the batch may have ``(B, classes)`` targets instead, which stay as they are.
    """
    labels = strategy.mb_y
    if targets and labels.dim() == 2:
        return
    if labels.is_floating_point() or labels.dim() != 1:
        raise TypeError(
            f"the labels of a batch are {labels.dtype} of shape {tuple(labels.shape)}; give each image the number of "
            "its class, a whole one"
        )
    if labels.dtype != torch.int64:
        strategy.mbatch[1] = labels.long()


# Where Avalanche's data sets, PyTorch's wrappers and torchvision's data sets and compositions keep their parts.
_PARTS = (
    "_flat_data",
    "_datasets",
    "_transform_groups",
    "_frozen_transform_groups",
    "transform_groups",
    "dataset",
    "datasets",
    "transform",
    "transforms",
)

Normalization = tuple[tuple[float, ...], tuple[float, ...]]


def normalization_of(dataset: Any) -> Normalization | None:
    """Return mean and standard deviation of torchvision's ``Normalize`` in the transforms of a data set.

    ``None`` if there is no ``Normalize``, or one that cannot be seen, as within a function; two that differ are an
    error.
    """
    found = set(_walk(dataset, set()))
    if len(found) > 1:
        raise ValueError(
            f"the images are normalised in {len(found)} ways ({', '.join(map(str, sorted(found)))}), but stored images "
            "have one: give all data sets the same transform, or call model.set_normalization(mean, std)"
        )
    return found.pop() if found else None


def _walk(part: Any, known: set[int]) -> Iterable[Normalization]:
    if id(part) in known or part is None:
        return
    known.add(id(part))
    if isinstance(part, (transforms.Normalize, v2.Normalize)):
        yield tuple(map(float, part.mean)), tuple(map(float, part.std))
    elif isinstance(part, dict):
        for value in part.values():
            yield from _walk(value, known)
    elif isinstance(part, (list, tuple)):
        for value in part:
            yield from _walk(value, known)
    else:
        for name in _PARTS:
            yield from _walk(getattr(part, name, None), known)


@contextmanager
def named_frames(strategy: Any) -> Iterator[None]:
    """Add the name of the first such frame to a ``BadFeaturesError``, looked up by content in the current experience.

    It is the path in the ``frame_table`` of the benchmark, else the number in the experience; none if no image of the
    experience is the same, as under random transforms.
    """
    try:
        yield
    except BadFeaturesError as error:
        name = _name(strategy, error.images[0])
        if name is None:
            raise
        raise BadFeaturesError(f"{name}: {error}", error.images) from error


def _name(strategy: Any, image: Tensor) -> str | None:
    experience = getattr(strategy, "experience", None)
    if experience is None:
        return None
    # A cache puts maps in the place of images, in the same order.
    for dataset in (getattr(strategy, "adapted_dataset", None), experience.dataset):
        place = None if dataset is None else _place(dataset, image.cpu())
        if place is not None and place < len(experience.dataset):
            table = getattr(getattr(experience.origin_stream, "benchmark", None), "frame_table", None)
            rows = getattr(experience.dataset, "frame_row", None)
            if table is None or rows is None:
                return f"image {place} of experience {experience.current_experience}"
            row = int(rows[place])
            return f"frame {table.path[row]} (row {row} of the frame table)"
    return None


def _place(dataset: Any, image: Tensor) -> int | None:
    with preserve_rng_state():
        for place in range(len(dataset)):
            one = dataset[place][0]
            if isinstance(one, Tensor) and one.shape == image.shape and torch.allclose(one, image, 0, 0, True):
                return place
    return None


def unlabelled_experience(pixels: Tensor) -> Any:
    """Make an experience of ``(B, 3, h, w)`` uint8 images for ``strategy.eval``, whose metrics mean nothing."""
    images = TensorDataset(pixels, torch.zeros(len(pixels), dtype=torch.int64))  # evaluation wants labels for its loss
    attributes = [
        DataAttribute(ConstantSequence(0, len(pixels)), "targets"),
        DataAttribute(ConstantSequence(0, len(pixels)), "targets_task_labels", use_in_getitem=True),
    ]
    dataset = TaskAwareSupervisedClassificationDataset([images], data_attributes=attributes)
    return with_task_labels(benchmark_from_datasets(test=[dataset])).test_stream[0]
