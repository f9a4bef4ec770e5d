"""Which learners can be merged: those whose statistics are of the same features and of different images."""

from collections.abc import Sequence
from typing import Any, Protocol

from crumb_avalanche.learner.answer import Lesson
from crumb_avalanche.learner.kinds import REPLAY
from crumb_avalanche.learner.network import FrozenNetwork
from crumb_avalanche.models.runtimes import Runtime


class Mergeable(Protocol):
    """What of a ``Learner`` decides."""

    method: str
    network: FrozenNetwork
    lessons: list[Lesson]

    @property
    def features(self) -> dict[str, Any] | None:
        """The arguments of ``FeatureMoments``."""

    @property
    def runtime(self) -> Runtime:
        """What runs the network."""


def check_mergeable(one: Mergeable, other: Mergeable) -> None:
    """Raise ValueError if what ``other`` learned cannot be added to what ``one`` learned; see ``Learner.merge``."""
    if other is one:
        raise ValueError("a learner cannot be merged with itself; give two that were taught apart")
    if other.method != one.method:
        raise ValueError(
            f"a learner of method {other.method} cannot be merged into one of {one.method}: teach one of them "
            f"again, with method={one.method}"
        )
    one.network.check_same(other.network)
    if other.features != one.features:
        raise ValueError(
            f"a learner of features {other.features} cannot be merged into one of {one.features}: teach its "
            "images to this one"
        )
    if len({each.runtime.calibration and each.runtime.calibration.key for each in (one, other)}) > 1:
        raise ValueError(
            f"a learner of runtime {other.runtime} cannot be merged into one of {one.runtime}, whose features "
            "differ by percents: teach its images to this one"
        )
    if one.method in REPLAY:
        return  # its knowledge says why it cannot be merged at all
    if common := same_lessons(one.lessons, other.lessons):
        raise ValueError(
            f"both learners hold {_listed(common)}; their images would count twice: teach a new learner what one of "
            "the two was taught apart and merge that, or teach it to the other one"
        )


def same_lessons(ones: Sequence[Lesson], others: Sequence[Lesson]) -> list[Lesson]:
    """Return the lessons in both histories, without those of which one side forgot all images."""
    theirs = {lesson.id for lesson in others if lesson.images}
    return [lesson for lesson in ones if lesson.id and lesson.images and lesson.id in theirs]


def _listed(lessons: Sequence[Lesson]) -> str:
    """Name lessons by time and classes."""
    some = "; ".join(f"{lesson.when}: {', '.join(lesson.images)}" for lesson in lessons[:3])
    more = f"; and {len(lessons) - 3} more" if len(lessons) > 3 else ""
    return f"{'the same lesson' if len(lessons) == 1 else f'{len(lessons)} of the same lessons'} ({some}{more})"
