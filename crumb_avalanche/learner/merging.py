"""Which learners can be merged: those whose statistics are of the same features and of different images."""

from typing import Any, Protocol

from crumb_avalanche.learner.network import FrozenNetwork
from crumb_avalanche.models.runtimes import Runtime


class Mergeable(Protocol):
    """What of a ``Learner`` decides."""

    method: str
    network: FrozenNetwork

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
