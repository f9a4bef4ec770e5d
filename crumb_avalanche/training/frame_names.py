"""Name the frames whose feature maps cannot be used."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.models.extraction import BadFeaturesError
from crumb_avalanche.system.rng_state import preserve_rng_state


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
    """Return the number of the first item with the same image."""
    with preserve_rng_state():
        for place in range(len(dataset)):
            one = dataset[place][0]
            if isinstance(one, Tensor) and one.shape == image.shape and torch.allclose(one, image, 0, 0, True):
                return place
    return None
