"""What a learner keeps of its last lessons, so that each of them can be taken back."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.lesson import Lesson, learn
from crumb_avalanche.system.tensor_file import tensor_bytes

MOST_KEPT = 16_000_000  # bytes


class Kept:
    """The features of a lesson, from which it can be learned again; no images.

    Args:
        room: most bytes; a lesson of more is not kept.

    Attributes:
        clips: class name and ``(n, ...)`` pieces of each clip, as they were learned.
        whole: whether these are all.
    """

    def __init__(self, room: int):
        self.room, self.whole, self.bytes = room, True, 0
        self.clips: list[tuple[str, list[Tensor]]] = []

    def __deepcopy__(self, memo: dict) -> "Kept":
        return self  # never changed after the lesson

    def add(self, label: str, place: int, features: Tensor) -> None:
        """Add a piece; the first one of a clip has the place 0."""
        self.bytes += tensor_bytes([features])
        if self.bytes > self.room:
            self.whole, self.clips = False, []
        elif self.whole:
            if place == 0:
                self.clips.append((label, []))
            self.clips[-1][1].append(features)

    def learn(self, classifier: Classifier) -> Lesson:
        """Learn the lesson again, in the same pieces."""
        clips = (
            (label, (([""] * len(piece), piece) for piece in pieces))
            for label, pieces in self.clips
        )
        return learn(classifier, clips, [])

    def renamed(self, old: str, new: str) -> "Kept":
        """Return the lesson with another name of a class, which may be that of a second one."""
        return self._of(
            [(new if label == old else label, pieces) for label, pieces in self.clips]
        )

    def without(self, name: str) -> "Kept":
        """Return the lesson without a class."""
        return self._of([clip for clip in self.clips if clip[0] != name])

    def _of(self, clips: list[tuple[str, list[Tensor]]]) -> "Kept":
        new = copy.copy(self)
        new.clips, new.bytes = (
            clips,
            tensor_bytes([piece for _, pieces in clips for piece in pieces]),
        )
        return new

    def state_dict(self) -> dict[str, Any]:
        """Return plain values, and the features of all clips in one tensor."""
        pieces = [piece for _, pieces in self.clips for piece in pieces]
        return {
            "labels": [label for label, _ in self.clips],
            "pieces": [[len(piece) for piece in pieces] for _, pieces in self.clips],
            "features": torch.cat(pieces) if pieces else torch.zeros(0, 1),
        }

    @classmethod
    def of_state(cls, state: dict[str, Any], room: int) -> "Kept":
        """Load what ``state_dict`` returned."""
        sizes = [size for pieces in state["pieces"] for size in pieces]
        parts: Iterator[Tensor] = iter(state["features"].split(sizes))
        clips = zip(state["labels"], state["pieces"], strict=True)
        return cls(room)._of(
            [(label, [next(parts) for _ in pieces]) for label, pieces in clips]
        )


class History:
    """The lessons of a learner; of the last ones the features, and what was learned before them.

    A lesson is taken back by learning the later ones again after what was learned
    before: the result equals a learner that never had it, to the bit. Features take at
    most ``room`` bytes; beyond it the oldest lessons can no longer be taken back. The
    last lesson always can, for which no features are needed.

    Args:
        room: see above.
        lessons: all lessons.
        before: what was learned before the last ones.
        kept: the features of the last ones, or ``None`` for those of a single one.
    """

    def __init__(
        self,
        room: int,
        lessons: Sequence[Lesson] = (),
        before: Classifier | None = None,
        kept: Sequence[Kept | None] = (),
    ):
        self.room, self.lessons, self.kept = room, list(lessons), list(kept)
        self.before = before if self.kept else None

    @property
    def next_number(self) -> int:
        """The number of the next lesson."""
        return 1 + max((lesson.number for lesson in self.lessons), default=0)

    @property
    def undoable(self) -> list[int]:
        """Numbers of the lessons that can be taken back."""
        return [
            lesson.number
            for lesson in self.lessons[len(self.lessons) - len(self.kept) :]
        ]

    def and_lesson(
        self, lesson: Lesson, before: Classifier, features: Kept | None
    ) -> "History":
        """Return the history with another lesson; ``before`` is what was learned before it."""
        features = features if features is not None and features.whole else None
        kept = [one for one in (*self.kept, features) if one is not None]
        gone, total, lessons = (
            0,
            sum(one.bytes for one in kept),
            [*self.lessons, lesson],
        )
        while total > self.room:
            total -= kept[gone].bytes
            gone += 1
        if features is None or None in self.kept or gone >= len(kept) - 1:
            return History(self.room, lessons, before, [features])
        first = copy.deepcopy(self.before) if gone else self.before
        assert first is not None
        for one in kept[:gone]:
            one.learn(first)
        return History(self.room, lessons, first, kept[gone:])

    def and_merged(self, lessons: Iterable[Lesson]) -> "History":
        """Return the history with the lessons of another learner, numbered anew; none can be taken back."""
        numbered = [
            replace(lesson, number=number)
            for number, lesson in enumerate(lessons, self.next_number)
        ]
        return History(self.room, [*self.lessons, *numbered])

    def with_other(
        self, number: int | None, change: Callable[[Lesson, Kept | None], Kept | None]
    ) -> "tuple[History, Classifier, Lesson]":
        """Learn the last lessons again, one of them changed or left out.

        Args:
            number: of the lesson; default the last one.
            change: function of the lesson and its features that returns others, or
                ``None`` to leave it out.

        Returns:
            The history, what is learned now, and the lesson as it was.

        Raises:
            ValueError: there is no such lesson, or it can no longer be taken back.
        """
        first, place = len(self.lessons) - len(self.kept), self._place(number)
        lesson, changed = (
            self.lessons[place],
            change(self.lessons[place], self.kept[place - first]),
        )
        kept = list(self.kept)
        kept[place - first : place - first + 1] = [] if changed is None else [changed]
        held = [
            one
            for one in self.lessons[first:]
            if changed is not None or one is not lesson
        ]
        classifier = copy.deepcopy(self.before)
        assert classifier is not None
        learned = [
            replace(
                one,
                **{
                    name: getattr(anew, name)
                    for name in ("images", "answered", "right", "notes", "doubts")
                },
            )
            for one, anew in (
                (one, features.learn(classifier))
                for one, features in zip(held, kept)
                if features
            )
        ]
        return (
            History(self.room, [*self.lessons[:first], *learned], self.before, kept),
            classifier,
            lesson,
        )

    def _place(self, number: int | None) -> int:
        numbers, undoable = [lesson.number for lesson in self.lessons], self.undoable
        if undoable and (number is None or number in undoable):
            return len(numbers) - 1 if number is None else numbers.index(number)
        which = (
            f"only {', '.join(map(str, undoable))} can be"
            if undoable
            else "none can be"
        )
        if number is not None and number not in numbers:
            raise ValueError(f"there is no lesson {number}; {which} taken back")
        named = (
            "there is no lesson to take back"
            if number is None
            else f"lesson {number} cannot be taken back, {which}"
        )
        if not numbers:
            raise ValueError(named)
        why = f"the features of the last lessons are kept, in {self.room:,} bytes, and not of those that were merged"
        raise ValueError(
            f"{named}: {why}; forget a class instead, or teach a new learner"
        )

    def rename(self, old: str, new: str) -> None:
        """Give a class another name, which may be that of a second one."""
        if self.before is not None and old in self.before.names:
            (self.before.move if new in self.before.names else self.before.rename)(
                old, new
            )
        self.kept = [one and one.renamed(old, new) for one in self.kept]
        self.lessons = [lesson.renamed(old, new) for lesson in self.lessons]

    def forget(self, name: str) -> None:
        """Remove a class."""
        if self.before is not None and name in self.before.names:
            self.before.forget(name)
        self.kept = [one and one.without(name) for one in self.kept]
        self.lessons = [lesson.without(name) for lesson in self.lessons]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the last lessons as plain values and tensors, which may share memory with this one."""
        return {
            "before": self.before and self.before.state_dict(),
            "kept": [one and one.state_dict() for one in self.kept],
        }

    @classmethod
    def of_state(
        cls,
        room: int,
        lessons: Sequence[Lesson],
        state: dict[str, Any],
        empty: Classifier,
    ) -> "History":
        """Load lessons, and what ``state_dict`` returned into a classifier without classes."""
        if state["before"] is None:
            return cls(room, lessons)
        empty.load_state_dict(state["before"])
        return cls(
            room,
            lessons,
            empty,
            [one and Kept.of_state(one, room) for one in state["kept"]],
        )


def renamed(lesson: Lesson, features: Kept | None, old: str, new: str) -> Kept:
    """Return the features of a lesson with another name of a class; raise ValueError if it has none or no features."""
    if old not in lesson.images:
        raise ValueError(
            f"lesson {lesson.number} shows {', '.join(lesson.images) or 'nothing'}, not {old}"
        )
    if features is None:
        raise ValueError(
            f"of lesson {lesson.number} no features are kept, so it cannot be learned under another name: take it back "
            f"with undo, and teach its images as {new}"
        )
    return features.renamed(old, new)
