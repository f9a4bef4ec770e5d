"""The protocols by name, and the orders of classes, clips and frames of a run, drawn from its seed."""

from collections.abc import Sequence

import numpy as np

from benchmarks_toybox_ilab.tables.frame_table import FrameTable

PROTOCOLS = ("class_instance", "class_iid", "offline")
"""Names of the protocols (paper, "Training protocols"): clips one after the other, frames shuffled within an
experience, all classes at once."""

# Children of the run's seed, one per kind of draw, so that another draw of one kind does not change the others.
_CLASS_ORDER, _CLIP_ORDER, _FRAME_ORDER = range(3)


class PortableDraws:
    """The orders of a `run`, its seed, each drawn from a child of it, so that they do not influence each other."""

    def __init__(self, run: int) -> None:
        self.run = run
        self._groups = 0

    def classes(self, count: int) -> np.ndarray:
        """Shuffle the `count` classes of a group, `(count,)` int64; call it once per group, in order."""
        self._groups += 1
        return self._order(_CLASS_ORDER, count, self._groups - 1)

    def clips(self, count: int, experience: int) -> np.ndarray:
        """Shuffle the `count` clips of an `experience`, whose number counts from 0, `(count,)` int64."""
        return self._order(_CLIP_ORDER, count, experience)

    def frames(self, count: int, experience: int) -> np.ndarray:
        """Shuffle the `count` frames of an `experience`, whose number counts from 0, `(count,)` int64."""
        return self._order(_FRAME_ORDER, count, experience)

    def _order(self, kind: int, count: int, number: int) -> np.ndarray:
        child = (kind,) if kind == _CLASS_ORDER and number == 0 else (kind, number)
        return np.random.default_rng(np.random.SeedSequence(self.run, spawn_key=child)).permutation(count)


class ReferenceDraws(PortableDraws):
    """The orders of a run as the published code of the paper draws them.

    One of numpy's legacy generators, seeded with the run, shuffles the classes and then the clips of each experience,
    which are first sorted by `numbered_clips`; call `classes` and then `clips` in the order of the stream. Frames are
    permuted by a new generator in each experience, also seeded with the run, as `pandas.DataFrame.sample` does with a
    `random_state`. The frame order of class_iid also depends on the row order of the published index files, which are
    not all available; here it is the table's.

    Args:
        run: Seed of the draws.
    """

    def __init__(self, run: int) -> None:
        super().__init__(run)
        self._random = np.random.RandomState(run)

    def _order(self, kind: int, count: int, number: int) -> np.ndarray:
        if kind == _FRAME_ORDER:
            return np.random.RandomState(self.run).permutation(count)
        order = np.arange(count)
        self._random.shuffle(order)
        return order


def numbered_clips(table: FrameTable, clips: list[np.ndarray], classes: Sequence[str]) -> list[np.ndarray]:
    """Sort clips by number of object, session and class, as the published code does before it shuffles them.

    Objects are numbered within their class and sessions within their object, in the order of the table's rows; classes
    by their position in `classes`. The published index files of CORe50 may number objects across classes instead.
    """
    objects: dict[str, list[str]] = {}
    sessions: dict[tuple[str, str], list[str]] = {}

    def position(known: list[str], name: str) -> int:
        if name not in known:
            known.append(name)
        return known.index(name)

    keys = {}
    for clip in sorted(clips, key=min):
        frame = table[int(clip[0])]
        item = position(objects.setdefault(frame.class_name, []), frame.object_name)
        session = position(sessions.setdefault((frame.class_name, frame.object_name), []), frame.session)
        keys[int(clip[0])] = item, session, classes.index(frame.class_name)
    return sorted(clips, key=lambda clip: keys[int(clip[0])])
