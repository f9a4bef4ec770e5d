"""Find the normalisation of a data set's images in its transforms."""

from collections.abc import Iterable
from typing import Any

from torchvision import transforms
from torchvision.transforms import v2

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

    Args:
        dataset: an ``AvalancheDataset`` or any data set that keeps its transforms in ``transform`` or ``transforms``.

    Returns:
        ``None`` if there is no ``Normalize``, or one that cannot be seen, as within a function.

    Raises:
        ValueError: two that differ.
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
