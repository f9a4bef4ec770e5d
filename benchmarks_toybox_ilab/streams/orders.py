"""The protocols by name, and the orders of classes, clips and frames of a run, drawn from its seed."""

from collections.abc import Sequence

import numpy as np

from benchmarks_toybox_ilab.tables.frame_table import FrameTable

PROTOCOLS = ("class_instance", "class_iid", "offline")

# Which child of the run's seed draws what, so that one more draw of one kind leaves the others as they are.
_CLASS_ORDER, _CLIP_ORDER, _FRAME_ORDER = range(3)


class PortableDraws:
    """The orders of a run, each from a child of its seed, so that one more draw of a kind leaves the others alone."""

    def __init__(self, run: int) -> None:
        self.run = run

    def _permutation(self, count: int, *child: int) -> np.ndarray:
        return np.random.default_rng(np.random.SeedSequence(self.run, spawn_key=child)).permutation(count)

    def classes(self, count: int) -> np.ndarray:
        """An order of the classes of a group; call it once for each group, in order."""
        self._group = getattr(self, "_group", -1) + 1
        return self._permutation(count, _CLASS_ORDER, *([self._group] if self._group else []))

    def clips(self, count: int, experience: int) -> np.ndarray:
        """An order of the clips of an experience."""
        return self._permutation(count, _CLIP_ORDER, experience)

    def frames(self, count: int, experience: int) -> np.ndarray:
        """An order of the frames of an experience."""
        return self._permutation(count, _FRAME_ORDER, experience)


class ReferenceDraws:
    """The orders of a run as the published code of the paper draws them.

    One of numpy's legacy generators, seeded with the run, shuffles the classes and then, experience by experience, the
    clips, which are first brought into the order of `numbered_clips`; frames are permuted by a new one, seeded with the
    run in every experience (what `pandas.DataFrame.sample` does with a `random_state`). Which frame comes where in
    class_iid also depends on the row order of the published index files, of which not all were published: here it is
    the table's.
    """

    def __init__(self, run: int) -> None:
        self.run = run
        self._random = np.random.RandomState(run)

    def classes(self, count: int) -> np.ndarray:
        """An order of the classes of a group; call it once for each group, in order."""
        return self.clips(count, 0)

    def clips(self, count: int, experience: int) -> np.ndarray:
        """An order of the clips of an experience; call it once for each experience, in order."""
        order = np.arange(count)
        self._random.shuffle(order)
        return order

    def frames(self, count: int, experience: int) -> np.ndarray:
        """An order of the frames of an experience."""
        return np.random.RandomState(self.run).permutation(count)


def numbered_clips(table: FrameTable, clips: list[np.ndarray], classes: Sequence[str]) -> list[np.ndarray]:
    """Clips by number of object, session and class, as the published code sorts them before they are shuffled.

    An object's number is its place in its class, and a session's its place in its object, in the order of the table's
    rows; a class's is its place in `classes`. In published index files of CORe50 objects may be numbered through all
    classes instead.
    """
    objects: dict[str, list[str]] = {}
    sessions: dict[tuple[str, str], list[str]] = {}

    def place(known: list[str], name: str) -> int:
        if name not in known:
            known.append(name)
        return known.index(name)

    keys = {}
    for clip in sorted(clips, key=min):
        frame = table[int(clip[0])]
        item = place(objects.setdefault(frame.class_name, []), frame.object_name)
        session = place(sessions.setdefault((frame.class_name, frame.object_name), []), frame.session)
        keys[int(clip[0])] = item, session, classes.index(frame.class_name)
    return sorted(clips, key=lambda clip: keys[int(clip[0])])
