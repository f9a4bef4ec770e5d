"""What a learner keeps of its last lessons, so that each of them can be taken back."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.lesson_features import (
    LessonFeatures,
    loaded_observations,
    observations_state,
)
from crumb_avalanche.learner.lesson_record import Lesson
from crumb_avalanche.system.tensor_file import tensor_bytes

MOST_KEPT = 16_000_000  # bytes of features of the last lessons
# Lessons of few images that are kept: all are learned again if the last is taken back.
MOST_LESSONS = 200


@dataclass(frozen=True)
class Replay:
    """The outcome of learning the last lessons again, one changed or left out.

    Attributes:
        history: the lessons with what was observed this time.
        classifier: what is learned after them.
    """

    history: "History"
    classifier: Classifier


@dataclass(frozen=True)
class History:
    """The lessons of a learner, and what takes the last ones back.

    A lesson is taken back by learning the later ones again after what was learned
    before: the result equals a learner that never had it, to the bit. Lessons before
    the one taken back are repeated with what was observed of them, without predicting
    their clips anew, which takes most of the time. Features of at most 200 lessons are
    kept, and at most ``room`` bytes; the oldest lessons can no longer be taken back.
    The last lesson always can, for which no features are needed.

    A history never changes, nor does what it holds: methods return another one.

    Attributes:
        room: see above.
        lessons: all lessons, in order.
        classifier_before: what was learned before the lessons that can be taken back;
            ``None`` if none can be.
        features: of the lessons that can be taken back, in order; ``None`` for a lesson
            of too many features, which is the only one then.
    """

    room: int
    lessons: tuple[Lesson, ...] = ()
    classifier_before: Classifier | None = None
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
    def bytes(self) -> int:
        """Bytes of what takes lessons back: features, and what was learned before."""
        size = sum(recorded.bytes for recorded in filter(None, self.features))
        if self.classifier_before is not None:
            size += tensor_bytes(self.classifier_before.tensors())
        return size

    @property
    def _first(self) -> int:
        """Index of the first lesson that can be taken back."""
        return len(self.lessons) - len(self.features)

    def with_lesson(
        self,
        lesson: Lesson,
        classifier_before: Classifier,
        features: LessonFeatures | None,
    ) -> "History":
        """Return the history with a lesson more; oldest features go if room is short.

        Args:
            lesson: the new lesson.
            classifier_before: what was learned before the new lesson.
            features: of the new lesson; ``None`` if they are too many.
        """
        lessons = (*self.lessons, lesson)
        last_undoable_alone = History(
            self.room, lessons, classifier_before, (features,)
        )
        if features is None or None in self.features:
            return last_undoable_alone
        recent = [*filter(None, self.features), features]
        n_dropped = _excess(recent, self.room)
        if n_dropped >= len(self.features):
            return last_undoable_alone
        before_recent = self.classifier_before
        if n_dropped:
            # Lessons that can no longer be taken back move into the classifier.
            before_recent = copy.deepcopy(self.classifier_before)
            assert before_recent is not None
            for lesson_features in recent[:n_dropped]:
                lesson_features.repeat(before_recent)
        return History(self.room, lessons, before_recent, tuple(recent[n_dropped:]))

    def with_merged(self, lessons: Iterable[Lesson]) -> "History":
        """Return the history with the lessons of another learner, numbered anew.

        None can be taken back then.
        """
        numbered = []
        for number, lesson in enumerate(lessons, self.next_number):
            numbered.append(replace(lesson, number=number))
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
            f"{fact}: the features of the last {MOST_LESSONS} lessons are kept, as far "
            f"as they fit into {self.room:,} bytes, and not of those that were merged; "
            "forget a class instead, or teach a new learner"
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
        classifier = copy.deepcopy(self.classifier_before)
        assert classifier is not None
        lessons = list(self.lessons[: self._first])
        replayed: list[LessonFeatures | None] = []
        is_after_change = False
        recent = zip(self.lessons[self._first :], self.features, strict=True)
        for lesson, recorded in recent:
            lesson_features = recorded
            if lesson is changed:
                is_after_change = True
                lesson_features = features
            if lesson_features is None:
                continue
            if not is_after_change:
                # The classifier is as it was then: no clip is predicted anew.
                lesson_features.repeat(classifier)
                lessons.append(lesson)
                replayed.append(lesson_features)
                continue
            relearned = lesson_features.learn(classifier)
            lessons.append(lesson.learned_again(relearned.lesson))
            replayed.append(relearned.features)
        classifier_before = None
        if replayed:
            classifier_before = self.classifier_before
        history = History(self.room, tuple(lessons), classifier_before, tuple(replayed))
        return Replay(history, classifier)

    def without_picture_of(self, lesson: Lesson, image: int) -> "History":
        """Return the history in which the picture of a lesson lacks an image."""
        lessons = []
        for present in self.lessons:
            if present.number == lesson.number:
                present = present.without_picture_of(image)
            lessons.append(present)
        return replace(self, lessons=tuple(lessons))

    def renamed(self, old: str, new: str) -> "History":
        """Return the history in which class ``old`` is called ``new``.

        If there is a class ``new``, the two become one.
        """
        classifier_before = copy.deepcopy(self.classifier_before)
        if classifier_before is not None and old in classifier_before.names:
            if new in classifier_before.names:
                classifier_before.move(old, new)
            else:
                classifier_before.rename(old, new)
        features: list[LessonFeatures | None] = []
        two_become_one = self._shows(new)
        for recorded in self.features:
            renamed = recorded and recorded.renamed(old, new)
            if renamed is not None and two_become_one:
                renamed = renamed.unobserved()
            features.append(renamed)
        lessons = [lesson.renamed(old, new) for lesson in self.lessons]
        return History(self.room, tuple(lessons), classifier_before, tuple(features))

    def with_strict(self, strict: float) -> "History":
        """Return the history of a learner with another ``Classifier.strict``."""
        before = copy.deepcopy(self.classifier_before)
        if before is not None:
            before.strict = strict
        return replace(self, classifier_before=before)

    def _shows(self, name: str) -> bool:
        """Whether a class was shown in any lesson."""
        return any(name in lesson.images for lesson in self.lessons)

    def without_class(self, name: str) -> "History":
        """Return the history without a class."""
        classifier_before = copy.deepcopy(self.classifier_before)
        if classifier_before is not None and name in classifier_before.names:
            classifier_before.forget(name)
        features = [recorded and recorded.without(name) for recorded in self.features]
        lessons = [lesson.without(name) for lesson in self.lessons]
        return History(self.room, tuple(lessons), classifier_before, tuple(features))

    def state_dict(self) -> dict[str, Any]:
        """Return what takes lessons back, for the learner file; without the lessons.

        Tensors may share memory with this history.
        """
        observations = []
        for recorded in filter(None, self.features):
            observations += recorded.observations
        return {
            "before": self.classifier_before and self.classifier_before.state_dict(),
            "kept": [recorded and recorded.state_dict() for recorded in self.features],
            "observations": observations_state(observations),
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
        counts: list[int] = []
        for recorded in filter(None, state["kept"]):
            counts += filter(None, recorded["records"])
        observations = loaded_observations(state["observations"], counts)
        features = []
        for recorded in state["kept"]:
            loaded = recorded and LessonFeatures.of_state(recorded, observations)
            features.append(loaded)
        return cls(room, tuple(lessons), empty, tuple(features))


def _excess(features: Sequence[LessonFeatures], room: int) -> int:
    """Return how many of the first lessons have to go for the rest to fit.

    Of too many lessons an eighth goes at once: what was learned before the others is
    copied each time.
    """
    count = 0
    if len(features) > MOST_LESSONS:
        count = len(features) - MOST_LESSONS + MOST_LESSONS // 8
    total = sum(lesson.bytes for lesson in features[count:])
    while total > room:
        total -= features[count].bytes
        count += 1
    return count
