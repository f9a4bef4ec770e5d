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
from crumb_avalanche.learner.taught_images import TaughtImages
from crumb_avalanche.system.tensor_file import tensor_bytes

MOST_KEPT = 16_000_000  # bytes of features of the last lessons
# Lessons of few images that are kept: all are learned again if the last is taken back.
MOST_LESSONS = 200


@dataclass(frozen=True)
class RelearnedLessons:
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
    before: the result equals a learner that never had it, to the bit, but for looks
    that features of later lessons lack. Lessons before the one taken back are repeated
    with what was observed of them, without predicting their clips anew, which takes
    most of the time. Features of at most 200 lessons are
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
        size = sum(lesson.bytes for lesson in filter(None, self.features))
        if self.classifier_before is not None:
            size += tensor_bytes(self.classifier_before.tensors())
        return size

    @property
    def _first(self) -> int:
        """Index in ``lessons`` of the first one that can be taken back."""
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
        # Lessons are taken back by learning the later ones again, so without features
        # of one of them, only the last lesson can be.
        only_last_undoable = History(self.room, lessons, classifier_before, (features,))
        if features is None or None in self.features:
            return only_last_undoable
        recent = [*filter(None, self.features), features]  # none of them is ``None``
        n_dropped = _count_dropped(recent, self.room)
        if n_dropped >= len(self.features):
            return only_last_undoable
        are_observed = all(lesson_features.observed for lesson_features in recent)
        if not are_observed:
            # The lessons before it give classes other numbers when learned again.
            recent[-1] = features.unobserved()
        before_recent = self.classifier_before
        if n_dropped:
            # Lessons that can no longer be taken back move into the classifier.
            before_recent = copy.deepcopy(self.classifier_before)
            assert before_recent is not None
            if not are_observed:
                keep_looks_of(before_recent, recent)
            taught = TaughtImages(before_recent.looks.n_views, self.room)
            for lesson_features in recent[:n_dropped]:
                # It learns them again, in place.
                lesson_features.repeat(before_recent, taught)
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
        """Return a lesson that can be taken back.

        Args:
            number: of the lesson; ``None`` is the last one of which images are left, or
                the last one if there are none.

        Raises:
            ValueError: there is no such lesson, or it can no longer be taken back.
        """
        undoable = self.lessons[self._first :]
        if undoable and number is None:
            with_images = [lesson for lesson in undoable if lesson.has_images]
            return (with_images or undoable)[-1]
        for lesson in undoable:
            if lesson.number == number:
                return lesson
        raise ValueError(self._why_not_undoable(number))

    def _why_not_undoable(self, number: int | None) -> str:
        """Say why a lesson cannot be taken back.

        Args:
            number: of the lesson; ``None`` is the last one.
        """
        can_be = "none can be"
        if self.undoable:
            can_be = f"only {', '.join(map(str, self.undoable))} can be"
        if number is None:
            refusal = "there is no lesson to take back"
        elif number in [lesson.number for lesson in self.lessons]:
            refusal = f"lesson {number} cannot be taken back, {can_be}"
        else:
            return f"there is no lesson {number}; {can_be} taken back"
        if not self.lessons:
            return refusal
        return (
            f"{refusal}: the features of the last {MOST_LESSONS} lessons are kept, as "
            f"far as they fit into {self.room:,} bytes, and not of those that were "
            "merged; forget a class instead, or teach a new learner"
        )

    def features_of(self, lesson: Lesson) -> LessonFeatures | None:
        """Return the features of a lesson that can be taken back."""
        return self.features[self.lessons.index(lesson) - self._first]

    def relearned(
        self, changed: Lesson, features: LessonFeatures | None
    ) -> RelearnedLessons:
        """Learn the last lessons again, one of them changed or left out.

        Args:
            changed: one that can be taken back.
            features: what is learned in its place; ``None`` leaves it out.

        Returns:
            The new history, and the classifier after all lessons.
        """
        # A copy: the history that this one replaces stays as it is.
        classifier = copy.deepcopy(self.classifier_before)
        assert classifier is not None
        lessons = list(self.lessons[: self._first])  # which cannot be taken back
        n_views = classifier.looks.n_views
        taught = TaughtImages(n_views, self.room)  # before the lesson learned next
        gone = TaughtImages(n_views)  # which the changed lesson was the first to have
        features_of_lessons: list[LessonFeatures | None] = []
        is_before_change = True
        recent = zip(self.lessons[self._first :], self.features, strict=True)
        for lesson, lesson_features in recent:
            if lesson is changed:
                is_before_change = False
                if lesson_features is not None:
                    lesson_features.add_new_to(gone)
                    # Of its images, these are taught without it, too.
                    lesson_features.add_repeated_to(taught)
                lesson_features = features
                keep_looks_of(classifier, self.features)
            if lesson_features is None:
                continue
            if is_before_change:
                # The classifier is as it was then: no clip that was observed is
                # predicted anew.
                features_of_lessons.append(lesson_features.repeat(classifier, taught))
                lessons.append(lesson)
            else:
                if lesson is not changed:
                    lesson_features.add_repeated_to(taught, gone)
                relearned = lesson_features.learn(classifier, taught)
                lessons.append(lesson.learned_again(relearned.lesson))
                features_of_lessons.append(relearned.features)
        classifier_before = None
        if features_of_lessons:
            classifier_before = self.classifier_before
        history = History(
            self.room, tuple(lessons), classifier_before, tuple(features_of_lessons)
        )
        return RelearnedLessons(history, classifier)

    def taught_images(self, n_views: int) -> TaughtImages:
        """Return the images of the lessons whose features are kept.

        Args:
            n_views: number of views of an image that features are of.
        """
        taught = TaughtImages(n_views, self.room)
        for lesson_features in self.features:
            if lesson_features is not None:
                lesson_features.add_to(taught)
        return taught

    def without_picture_of(self, lesson: Lesson, image: int) -> "History":
        """Return the history in which the picture of a lesson lacks an image.

        Args:
            lesson: found by its number.
            image: number of the image in the lesson, from 0.
        """
        lessons = []
        for own_lesson in self.lessons:
            if own_lesson.number == lesson.number:
                own_lesson = own_lesson.without_picture_of(image)
            lessons.append(own_lesson)
        return replace(self, lessons=tuple(lessons))

    def renamed(self, old: str, new: str) -> "History":
        """Return the history in which class ``old`` is called ``new``.

        If there is a class ``new``, the two become one.
        """
        # A copy: the history that this one replaces stays as it is.
        classifier_before = copy.deepcopy(self.classifier_before)
        if classifier_before is not None and old in classifier_before.classes.names:
            if new in classifier_before.classes.names:
                classifier_before.move(old, new)
            else:
                classifier_before.classes.rename(old, new)
        features: list[LessonFeatures | None] = []
        two_become_one = self._shows(new)  # a lesson shows the class of that name, too
        for lesson_features in self.features:
            if lesson_features is not None:
                lesson_features = lesson_features.renamed(old, new)
                if two_become_one:
                    # What was predicted of the two classes says nothing of the one.
                    lesson_features = lesson_features.unobserved()
            features.append(lesson_features)
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
        if classifier_before is not None and name in classifier_before.classes.names:
            classifier_before.forget(name)
        features: list[LessonFeatures | None] = []
        for lesson_features in self.features:
            if lesson_features is not None:
                lesson_features = lesson_features.without(name)
            features.append(lesson_features)
        lessons = [lesson.without(name) for lesson in self.lessons]
        return History(self.room, tuple(lessons), classifier_before, tuple(features))

    def state_dict(self) -> dict[str, Any]:
        """Return what takes lessons back, for the learner file; without the lessons.

        ``before`` is what was learned before the lessons that can be taken back,
        ``kept`` the features of each of them, and ``observations`` what was recorded of
        their clips before they were learned. Tensors may share memory with this
        history.
        """
        before = None
        if self.classifier_before is not None:
            before = self.classifier_before.state_dict()
        observations = []
        features_states = []
        for lesson_features in self.features:
            features_state = None
            if lesson_features is not None:
                features_state = lesson_features.state_dict()
                observations += lesson_features.observations
            features_states.append(features_state)
        return {
            "before": before,
            "kept": features_states,
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
            room: most bytes of features of lessons that can be taken back.
            lessons: all lessons.
            state: what ``state_dict`` returned: ``before``, what was learned before
                the lessons that can be taken back; ``kept``, the features of each of
                them or ``None``; and the ``observations`` of all.
            empty: a classifier without classes, which is changed.
        """
        if state["before"] is None:
            return cls(room, tuple(lessons))
        empty.load_state_dict(state["before"])
        records_of_clips: list[int] = []  # number of records of each clip with some
        for features_state in filter(None, state["kept"]):  # without ``None``
            records_of_clips += filter(None, features_state["records"])  # without 0
        # An iterator over those of all lessons: each lesson takes its own.
        observations = loaded_observations(state["observations"], records_of_clips)
        features = []
        for features_state in state["kept"]:
            lesson_features = None
            if features_state is not None:
                lesson_features = LessonFeatures.of_state(features_state, observations)
            features.append(lesson_features)
        return cls(room, tuple(lessons), empty, tuple(features))


def keep_looks_of(
    classifier: Classifier, lessons: Iterable[LessonFeatures | None]
) -> None:
    """Give up the looks that features of some lessons lack, before they are learned.

    Learned again, lessons may find another look to be enough than at first, of which
    later ones have no features.

    Args:
        classifier: that learns the lessons next; it is changed.
        lessons: those that it learns, maybe among others; ``None`` for one that it does
            not.
    """
    for lesson in lessons:
        if lesson is not None:
            for piece in lesson.pieces():
                classifier.give_up_looks_without(piece)


def _count_dropped(features: Sequence[LessonFeatures], room: int) -> int:
    """Return how many of the first lessons have to go for the rest to fit.

    Of too many lessons an eighth goes at once: each time that lessons go, the
    classifier of what was learned before the others is copied, which takes time.

    Args:
        features: of lessons, in order.
        room: most bytes of all of them.
    """
    n_dropped = 0
    if len(features) > MOST_LESSONS:
        n_dropped = len(features) - MOST_LESSONS + MOST_LESSONS // 8
    total_bytes = sum(lesson.bytes for lesson in features[n_dropped:])
    while total_bytes > room:
        total_bytes -= features[n_dropped].bytes
        n_dropped += 1
    return n_dropped
