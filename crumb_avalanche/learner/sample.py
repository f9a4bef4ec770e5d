"""Some images of a source, to measure what they are like."""

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np
from torch import Tensor

from crumb_avalanche.learner.pixels import AT_A_TIME, batches
from crumb_avalanche.learner.sources import clips_of, files_of, opened


def sample(source: Any, image_size: int, interpolation: str, count: int = 64) -> Iterator[Tensor]:
    """Yield batches of at most ``count`` images, of a path evenly spread over its clips and their photos.

    Of other sources the first images are taken. Files that cannot be read are left out.

    Args:
        source: as for ``clips_of``; one that can be read several times.
        image_size, interpolation: as for ``batches``.
        count: see above.
    """
    if isinstance(source, str | os.PathLike):
        clips = _spread(list(files_of(source, on_bad="skip", report=_silent)), count)
        each = count // len(clips)
        spread = [replace(clip, files=tuple(_spread(clip.files, each))) for clip in clips]
        frames = chain.from_iterable(islice(clip.frames, each) for clip in opened(spread, "skip", _silent))
    else:
        frames = chain.from_iterable(clip.frames for clip in clips_of(source, on_bad="skip", report=_silent))
    some = islice(frames, count)
    return (pixels for _, pixels in batches(some, AT_A_TIME, image_size, interpolation))


def _spread(items: Any, count: int) -> list[Any]:
    return [items[place] for place in np.unique(np.linspace(0, len(items) - 1, count).astype(int))]


def _silent(bad: object) -> None:
    """What cannot be read is reported where it is learned."""
