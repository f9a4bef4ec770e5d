"""All that a learner learned, as one value: a change builds the next one."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crumb_avalanche.learner.answering import Answering
from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.history import MOST_KEPT, History
from crumb_avalanche.learner.lesson import check_apart
from crumb_avalanche.learner.lesson_features import LessonFeatures
from crumb_avalanche.learner.lesson_record import Lesson
from crumb_avalanche.methods.run_header import LearnerError


@dataclass(frozen=True)
class State:
    """What a learner answers with, and the lessons that led there.

    A state never changes, nor does what answers in it, but for what is computed when
    it is first needed: solutions of the statistics, and features of drawn images. Each
    method works on copies and returns another state, so that an error or an interrupt
    at any point leaves the learner with the state from before. Learners may share one.

    Attributes:
        answering: what answers; a ``Classifier`` for a learner that can be taught.
        history: the lessons, and what ``undo`` needs of the last ones.
    """

    answering: Answering
    history: History

    def __deepcopy__(self, memo: dict) -> "State":
        return self

    @property
    def classifier(self) -> Classifier:
        """What answers, and can be taught.

        Raises:
            LearnerError: it is what a run left, which can be asked alone.
        """
        if not isinstance(self.answering, Classifier):
            raise LearnerError("what a run left can be asked, but not changed")
        return self.answering

    @classmethod
    def empty(cls, classifier: Classifier) -> "State":
        """Return the state before the first lesson, with a classifier without classes.

        Of the last 200 lessons, features are kept in four times the budget, at most
        16 MB.
        """
        return cls(classifier, History(min(4 * classifier.budget_bytes, MOST_KEPT)))

    def with_lesson(
        self, lesson: Lesson, classifier: Classifier, features: LessonFeatures | None
    ) -> "State":
        """Return the state after a lesson.

        Args:
            lesson: what was learned.
            classifier: a copy of the one here, which learned it.
            features: of the lesson; ``None`` if they are too many to be kept.
        """
        history = self.history.with_lesson(lesson, self.classifier, features)
        return State(classifier, history)

    def without_lesson(self, lesson: Lesson) -> "State":
        """Return the state of a learner that never had a lesson.

        Args:
            lesson: what ``History.undoable_lesson`` returned.
        """
        relearned = self.history.relearned(lesson, None)
        return State(relearned.classifier, relearned.history)

    def with_lesson_moved(self, lesson: Lesson, old: str, new: str) -> "State":
        """Return the state that a learner would have if a lesson had had another label.

        Args:
            lesson: one that can be taken back, as ``History.undoable_lesson`` returns
                it.
            old, new: names of the class: as it was given, and the right one.

        Raises:
            ValueError: the lesson does not show ``old``, or has no features.
        """
        if old not in lesson.images:
            shows = ", ".join(lesson.images) or "nothing"
            raise ValueError(f"lesson {lesson.number} shows {shows}, not {old}")
        features = self.history.features_of(lesson)
        if features is None:
            raise ValueError(
                f"of lesson {lesson.number} no features are kept, so it cannot be "
                "learned under another name: take it back with undo, and teach its "
                f"images as {new}"
            )
        relearned = self.history.relearned(lesson, features.renamed(old, new))
        return State(relearned.classifier, relearned.history)

    def without_image(self, lesson: Lesson, number: int) -> "State":
        """Return the state that a learner would have if a lesson had had an image less.

        Args:
            lesson: one that can be taken back, as ``History.undoable_lesson`` returns
                it.
            number: of the image in the lesson, from 0.

        Raises:
            ValueError: the lesson has no such image, or shows nothing, or it is the
                only one, or no features are kept.
        """
        n_images = sum(lesson.images.values())
        if lesson.nothing or not 0 <= number < n_images:
            raise ValueError(
                f"lesson {lesson.number} has {n_images} images of classes, and no "
                f"image {number} (from 0)"
            )
        if n_images == 1:
            raise ValueError(
                f"image {number} is the only one of lesson {lesson.number}: take the "
                "lesson back with undo"
            )
        features = self.history.features_of(lesson)
        if features is None:
            raise ValueError(
                f"of lesson {lesson.number} no features are kept, so that none of its "
                "images can be removed: take it back with undo"
            )
        relearned = self.history.relearned(lesson, features.without_image(number))
        return State(
            relearned.classifier, relearned.history.without_picture_of(lesson, number)
        )

    def renamed(self, old: str, new: str) -> "State":
        """Return the state with another name of a class: ``TaughtClasses.rename``."""
        if new == old:
            self.classifier.classes.find(old)  # raises if there is none
            return self
        classifier = copy.deepcopy(self.classifier)
        classifier.classes.rename(old, new)
        return State(classifier, self.history.renamed(old, new))

    def moved(self, old: str, new: str) -> "State":
        """Return the state with the images of a class as those of another one.

        Raises:
            ValueError: there is no class ``old``.
        """
        if new not in self.classifier.classes.names:
            return self.renamed(old, new)
        classifier = copy.deepcopy(self.classifier)
        classifier.move(old, new)
        return State(classifier, self.history.renamed(old, new))

    def with_strict(self, strict: float) -> "State":
        """Return the state with another confidence from which on a class is named."""
        classifier = copy.deepcopy(self.classifier)
        classifier.strict = strict
        return State(classifier, self.history.with_strict(strict))

    def without_class(self, name: str) -> "State":
        """Return the state without a class; see ``Classifier.forget``."""
        classifier = copy.deepcopy(self.classifier)
        classifier.forget(name)
        return State(classifier, self.history.without_class(name))

    def check_mergeable(self, other: "State") -> None:
        """Raise ValueError for a state of another method, or of the same lessons."""
        self.classifier.check_mergeable(other.classifier)
        check_apart(self.history.lessons, other.history.lessons)

    def merged(self, other: "State") -> "State":
        """Return the state of a learner that had the lessons of another one, too.

        None of its lessons can be taken back. See ``Classifier.merge``.
        """
        classifier = copy.deepcopy(self.classifier)
        classifier.merge(other.classifier)
        return State(classifier, self.history.with_merged(other.history.lessons))

    def state_dict(self) -> dict[str, Any]:
        """Return what a learner file holds besides the network.

        Plain values and tensors, which may share memory with this state.
        """
        lessons = self.history.lessons
        classifier = self.classifier
        return {
            "method": classifier.method,
            "budget_bytes": classifier.budget_bytes,
            "features": dict(vars(classifier.features)),
            "head_length": classifier.head_length,
            "looks": list(classifier.looks.shares),
            "strict": classifier.strict,
            "rates": classifier.rates and classifier.rates._asdict(),
            "missing_clips": classifier.missing_clips,
            "undoable": len(self.history.features),
            "lessons": [lesson.state_dict() for lesson in lessons],
            "history": self.history.state_dict(),
            "pictures": [lesson.picture_state() for lesson in lessons],
            **classifier.state_dict(),
        }

    def loaded(self, state: dict[str, Any], lessons: Sequence[Lesson]) -> "State":
        """Return the state that a ``state_dict`` describes.

        Args:
            state: what ``state_dict`` returned, of a classifier with the same settings
                as the one here, which has no classes.
            lessons: all lessons, in order.

        Raises:
            StateError: it is of other features, or of other statistics.
        """
        classifier = copy.deepcopy(self.classifier)
        classifier.strict = state["strict"]
        # The history fills it with what was learned before the lessons that can be
        # taken back.
        classifier_before = copy.deepcopy(classifier)
        classifier.load_state_dict(state)
        history = History.of_state(
            self.history.room, lessons, state["history"], classifier_before
        )
        return State(classifier, history)
