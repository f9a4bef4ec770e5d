"""What changes in a learner that was taught: names, classes and lessons."""

from numbers import Integral, Real

from benchmarks_toybox_ilab.tables.names import check_near, normal_name
from crumb_avalanche.images.clips import check_label
from crumb_avalanche.learner.lesson_record import Lesson
from crumb_avalanche.learner.network import NetworkError, are_same, check_same
from crumb_avalanche.learner.predictor import Predictor
from crumb_avalanche.learner.state import State
from crumb_avalanche.methods.run_header import LearnerError
from crumb_avalanche.system.setting_ranges import LEAST_STRICT, MOST_STRICT


class ChangeableLearner(Predictor):
    """Changes names, classes and lessons; ``Learner`` adds teaching and files.

    Each change replaces the state as a whole.
    """

    @property
    def lessons(self) -> list[Lesson]:
        """What each call of ``teach`` did, without lessons that were taken back."""
        return list(self._state.history.lessons)

    @property
    def undoable(self) -> list[int]:
        """Numbers of the lessons that ``undo`` takes back, which are the last ones."""
        return self._state.history.undoable

    @property
    def undo_bytes(self) -> int:
        """Bytes of what ``undo`` needs, besides ``bytes``; bounded, see ``undo``.

        Features of the last lessons, and what was learned before them; a learner file
        holds both.
        """
        return self._state.history.bytes

    def _replace_state(self, old: State, new: State) -> None:
        """Assign the state that a change led to, which is all that a change assigns.

        Raises:
            LearnerError: another change was made since this one began, by a function
                that it called, such as ``progress``: two threads take turns.
        """
        if self._state is not old:
            raise LearnerError(
                "the learner was changed by what a lesson called while it was learned, "
                "so the lesson is dropped and the other change stays: change a learner "
                "before a lesson or after it"
            )
        self._state = new

    def _state_with_nothing(self) -> State:
        """Return the state, with the features of drawn images that show nothing."""
        state = self._state
        state.classifier.draw_nothing(self.network.model)
        return state

    def set_strict(self, strict: float) -> None:
        """Set the threshold: the confidence from which on a class is named.

        It has no effect while there are ``missing_clips``.

        Args:
            strict: the threshold; images below it are answered as unknown.

        Raises:
            ValueError: it is not a number from 0.01 to 0.99.
        """
        self.check_teachable()  # raises if it can only be asked
        is_number = isinstance(strict, Real)
        if not is_number or not LEAST_STRICT <= strict <= MOST_STRICT:
            raise ValueError(
                f"strict is {strict!r}; give a confidence from {LEAST_STRICT} to "
                f"{MOST_STRICT}, from which on a class is named"
            )
        with self._lock:
            self._replace_state(self._state, self._state.with_strict(float(strict)))

    def rename(self, old: str, new: str, new_class: bool = False) -> None:
        """Give a class another name.

        Raises:
            ValueError: there is no class ``old``, or ``new`` is taken, not allowed as a
                name, or, unless ``new_class``, nearly the name of another class.
        """
        self.check_teachable()
        old = normal_name(old)
        new = check_label(new)
        with self._lock:
            state = self._state
            if not new_class:
                self._check_other_names(old, new)
            self._replace_state(state, state.renamed(old, new))

    def _check_other_names(self, old: str, new: str) -> None:
        """Raise DoubtfulNameError if ``new`` is nearly the name of another class."""
        check_near([new], [name for name in self._names if name != old])

    def forget(self, name: str) -> str:
        """Remove the class ``name`` with all that is stored of it alone, for good.

        What ``undo`` restores is without it, too.

        Returns:
            What remains of its images in statistics that classes share; empty if
            nothing does.

        Raises:
            ValueError: there is no class of this name.
        """
        self.check_teachable()  # raises if it can only be asked
        name = normal_name(name)
        with self._lock:
            state = self._state
            new_state = state.without_class(name)
            self._replace_state(state, new_state)
            return new_state.classifier.statistics.remains_after_forget

    def undo(self, lesson: int | None = None) -> Lesson:
        """Take a lesson back and return it.

        From then on the learner answers as one that never had it, but for looks that
        were given up before later lessons: these have no features of them.

        The features of the last lessons are kept for this: of at most 200, as many as
        fit into four times ``budget_bytes``, at most 16 MB; and what was learned before
        them, at most ``budget_bytes``. They are learned again without the one taken
        back. None that was merged can be taken back. See ``undoable`` and
        ``undo_bytes``.

        Args:
            lesson: its number; default the last one, but for lessons whose classes were
                all forgotten.

        Raises:
            TypeError: the number is none.
            ValueError: there is no such lesson, or it can no longer be taken back.
        """
        self.check_teachable()  # raises if it can only be asked
        if lesson is not None:
            _check_number(lesson)  # raises
        with self._lock:
            state = self._state
            taken_back = state.history.undoable_lesson(lesson)  # raises if it is not
            self._replace_state(state, state.without_lesson(taken_back))
            return taken_back

    def _changeable_lesson(self, number: int) -> Lesson:
        """Return a lesson whose images can be moved or removed, by its number.

        Raises:
            TypeError: the number is none.
            ValueError: there is no such lesson, or it is too long ago.
        """
        _check_number(number)  # raises
        history = self._state.history
        if number in history.undoable:
            return history.undoable_lesson(number)
        can_be = "none of a lesson can be"
        if history.undoable:
            numbers = ", ".join(map(str, history.undoable))
            can_be = f"only those of {numbers} can be"
        if number not in [lesson.number for lesson in history.lessons]:
            raise ValueError(
                f"there is no lesson {number} whose images could be changed; {can_be}"
            )
        raise ValueError(
            f"images of lesson {number} can no longer be changed, {can_be}: the "
            "features of the last lessons are kept, as far as they fit into "
            f"{history.room:,} bytes, and not of those that were merged; move or "
            "forget a class instead, or teach a new learner"
        )

    def remove_image(self, lesson: int, image: int) -> None:
        """Remove one image of a lesson.

        From then on the learner answers as one that never had it.

        Args:
            lesson: number of a lesson that can be taken back; see ``undoable``.
            image: its number in the lesson, from 0, in the order in which images were
                shown.

        Raises:
            TypeError: the number of the lesson is none.
            ValueError: there is no such lesson or image, or it can no longer be
                removed; or it is the only image of the lesson: see ``undo``.
        """
        self.check_teachable()  # raises if it can only be asked
        with self._lock:
            state = self._state
            changed = self._changeable_lesson(lesson)  # raises if it is not
            self._replace_state(state, state.without_image(changed, image))

    def move(
        self, old: str, new: str, lesson: int | None = None, new_class: bool = False
    ) -> None:
        """Make the images of a class those of another one.

        For a lesson or a class that was given a wrong name.

        Args:
            old: name of the class that the images were given as.
            new: name of the class that they show, which may be new.
            lesson: number of the only lesson whose images are meant, which is learned
                again; default all.
            new_class: take ``new`` as it is given, also if it is nearly the name of
                another class.

        Raises:
            TypeError: the number of the lesson is none.
            ValueError: there is no class ``old``; the lesson does not exist, has no
                images of ``old`` or can no longer be undone; ``new`` is ``old`` or is
                not allowed as a name; ``new`` is nearly the name of another class and
                ``new_class`` is not set.
        """
        self.check_teachable()  # raises if it can only be asked
        old = normal_name(old)
        new = check_label(new)
        with self._lock:
            state = self._state
            state.classifier.classes.find(old)  # raises if there is none
            if new == old:
                raise ValueError(
                    f"the images are those of {old} already; give the name of another "
                    "class"
                )
            if not new_class:
                self._check_other_names(old, new)
            if lesson is None:
                new_state = state.moved(old, new)
            else:
                # Raises if the lesson does not exist or is too long ago.
                changeable = self._changeable_lesson(lesson)
                new_state = state.with_lesson_moved(changeable, old, new)
            self._replace_state(state, new_state)

    def merge(self, other: "ChangeableLearner", new_class: bool = False) -> None:
        """Add what another learner learned, as if this one had been taught its lessons.

        Args:
            other: a learner with the same method, network and image size; it is not
                changed.
            new_class: keep classes apart also if their names are nearly the same;
                classes of the same name are one.

        Raises:
            TypeError: the other is no learner.
            DoubtfulNameError: a class of the other has nearly the name of one of this,
                and ``new_class`` is false.
            ValueError: the other is this one or holds one of its lessons, or has
                another method, network or image size; or the classes of both do not fit
                into the budget.
        """
        if not isinstance(other, ChangeableLearner):
            raise TypeError(
                f"other is {type(other).__name__}; give a Learner, such as "
                "Learner.load(path)"
            )
        with self._lock:
            self.check_teachable()  # both raise if a learner can only be asked
            other.check_teachable()
            if other is self:
                raise ValueError(
                    "a learner cannot be merged with itself; give two that were taught "
                    "apart"
                )
            check_same(self.network, other.network)  # raises
            # With features of drawn images that show no class, which it compares with.
            state = self._state_with_nothing()
            added = other._state  # once: another thread may teach it meanwhile
            state.check_mergeable(added)  # raises
            if not new_class:
                names = [info.name for info in added.classifier.classes.infos]
                check_near(names, self._names)
            self._replace_state(state, state.merged(added))

    def take_over(self, other: "ChangeableLearner") -> None:
        """Know what another learner knows, and nothing of what was known before.

        Args:
            other: one with the same network, which may be loaded without it; it is not
                changed.

        Raises:
            NetworkError: the network is another one.
        """
        if not are_same(self.network, other.network):
            raise NetworkError("the learners have different networks")
        with self._lock:
            self._replace_state(self._state, other._state)
            self.method = other.method


def _check_number(lesson: object) -> None:
    """Raise TypeError if the number of a lesson is no whole number, or a bool."""
    if isinstance(lesson, bool) or not isinstance(lesson, Integral):
        raise TypeError(
            f"lesson is {lesson!r} ({type(lesson).__name__}); give the number of a "
            "lesson, such as lessons[0].number"
        )
