"""What a learner keeps of its last lessons, so that each of them can be taken back."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.lesson import Lesson
from crumb_avalanche.learner.lesson_features import LessonFeatures

MOST_KEPT = 16_000_000  # bytes of features of the last lessons


@dataclass(frozen=True)
class Replay:
    """The last lessons, learned again.

    Attributes:
        history: with what was counted this time.
        classifier: what is learned now.
    """

    history: "History"
    classifier: Classifier


@dataclass(frozen=True)
class History:
    """The lessons of a learner; of the last ones the features, and what was before.

    A lesson is taken back by learning the later ones again after what was learned
    before: the result equals a learner that never had it, to the bit. Features take at
    most ``room`` bytes; beyond it the oldest lessons can no longer be taken back. The
    last lesson always can, for which no features are needed.

    A history never changes, nor does what it holds: methods return another one.

    Attributes:
        room: see above.
        lessons: all lessons, in order.
        before: what was learned before the last ones; ``None`` if none can be taken
            back.
        features: of the last lessons, in order; ``None`` for a lesson of too many
            features, which is the only one then.
    """

    room: int
    lessons: tuple[Lesson, ...] = ()
    before: Classifier | None = None
    features: tuple[LessonFeatures | None, ...] = ()

    @property
    def next_number(self) -> int:
        """The number of the next lesson."""
        return 1 + max((lesson.number for lesson in self.lessons), default=0)

    @property
    def undoable(self) -> list[int]:
        """Numbers of the lessons that can be taken back."""
        return [lesson.number for lesson in self.lessons[self._first :]]

    @property
    def _first(self) -> int:
        """Index of the first lesson that can be taken back."""
        return len(self.lessons) - len(self.features)

    def and_lesson(
        self, lesson: Lesson, before: Classifier, features: LessonFeatures | None
    ) -> "History":
        """Return the history with another lesson.

        Args:
            lesson: what was learned.
            before: what was learned before it.
            features: of the lesson; ``None`` if they are too many.
        """
        lessons = (*self.lessons, lesson)
        last_alone = History(self.room, lessons, before, (features,))
        if features is None or None in self.features:
            return last_alone
        recent = [*filter(None, self.features), features]
        dropped = _excess(recent, self.room)
        if dropped >= len(self.features):
            return last_alone
        first = self.before
        if dropped:
            first = copy.deepcopy(self.before)
            assert first is not None
            for lesson_features in recent[:dropped]:
                lesson_features.learn(first)
        return History(self.room, lessons, first, tuple(recent[dropped:]))

    def and_merged(self, lessons: Iterable[Lesson]) -> "History":
        """Return the history with the lessons of another learner, numbered anew.

        None can be taken back then.
        """
        numbered = [
            replace(lesson, number=number)
            for number, lesson in enumerate(lessons, self.next_number)
        ]
        return History(self.room, (*self.lessons, *numbered))

    def undoable_lesson(self, number: int | None) -> Lesson:
        """Return a lesson that can be taken back, the last one for ``None``.

        Raises:
            ValueError: there is no such lesson, or it can no longer be taken back.
        """
        undoable = self.lessons[self._first :]
        if undoable and number is None:
            return undoable[-1]
        for lesson in undoable:
            if lesson.number == number:
                return lesson
        raise ValueError(self._why_not(number))

    def _why_not(self, number: int | None) -> str:
        """Say why a lesson cannot be taken back."""
        can = "none can be"
        if self.undoable:
            can = f"only {', '.join(map(str, self.undoable))} can be"
        if number is None:
            fact = "there is no lesson to take back"
        elif number in [lesson.number for lesson in self.lessons]:
            fact = f"lesson {number} cannot be taken back, {can}"
        else:
            return f"there is no lesson {number}; {can} taken back"
        if not self.lessons:
            return fact
        return (
            f"{fact}: the features of the last lessons are kept, in {self.room:,} "
            "bytes, and not of those that were merged; forget a class instead, or "
            "teach a new learner"
        )

    def features_of(self, lesson: Lesson) -> LessonFeatures | None:
        """Return the features of a lesson that can be taken back."""
        return self.features[self.lessons.index(lesson) - self._first]

    def replayed(self, changed: Lesson, features: LessonFeatures | None) -> Replay:
        """Learn the last lessons again, one of them changed or left out.

        Args:
            changed: one that can be taken back.
            features: what is learned in its place; ``None`` leaves it out.
        """
        classifier = copy.deepcopy(self.before)
        assert classifier is not None
        lessons = list(self.lessons[: self._first])
        replayed: list[LessonFeatures | None] = []
        recent = zip(self.lessons[self._first :], self.features, strict=True)
        for lesson, usual in recent:
            again = usual
            if lesson is changed:
                again = features
            if again is not None:
                lessons.append(lesson.learned_again(again.learn(classifier)))
                replayed.append(again)
        before = self.before if replayed else None
        history = History(self.room, tuple(lessons), before, tuple(replayed))
        return Replay(history, classifier)

    def renamed(self, old: str, new: str) -> "History":
        """Return the history with another name of a class, maybe that of another."""
        before = copy.deepcopy(self.before)
        if before is not None and old in before.names:
            if new in before.names:
                before.move(old, new)
            else:
                before.rename(old, new)
        features = [
            recorded and recorded.renamed(old, new) for recorded in self.features
        ]
        lessons = [lesson.renamed(old, new) for lesson in self.lessons]
        return History(self.room, tuple(lessons), before, tuple(features))

    def without_class(self, name: str) -> "History":
        """Return the history without a class."""
        before = copy.deepcopy(self.before)
        if before is not None and name in before.names:
            before.forget(name)
        features = [recorded and recorded.without(name) for recorded in self.features]
        lessons = [lesson.without(name) for lesson in self.lessons]
        return History(self.room, tuple(lessons), before, tuple(features))

    def state_dict(self) -> dict[str, Any]:
        """Return plain values and tensors, which may share memory, without lessons."""
        return {
            "before": self.before and self.before.state_dict(),
            "kept": [recorded and recorded.state_dict() for recorded in self.features],
        }

    @classmethod
    def of_state(
        cls,
        room: int,
        lessons: Sequence[Lesson],
        state: dict[str, Any],
        empty: Classifier,
    ) -> "History":
        """Load lessons and what ``state_dict`` returned.

        Args:
            room: see the class.
            lessons: all lessons.
            state: what ``state_dict`` returned.
            empty: a classifier without classes, which is changed.
        """
        if state["before"] is None:
            return cls(room, tuple(lessons))
        empty.load_state_dict(state["before"])
        features = [
            recorded and LessonFeatures.of_state(recorded) for recorded in state["kept"]
        ]
        return cls(room, tuple(lessons), empty, tuple(features))


def _excess(features: Sequence[LessonFeatures], room: int) -> int:
    """Return how many of the first lessons have to go for the rest to fit."""
    total = sum(lesson.bytes for lesson in features)
    count = 0
    while total > room:
        total -= features[count].bytes
        count += 1
    return count
