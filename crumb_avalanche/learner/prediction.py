"""What a classifier says of clips: rankings, and what they looked like before."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from crumb_avalanche.learner.evidence import Evidence
from crumb_avalanche.learner.records import Records

RUNNERS_UP = 4


class Ranking(NamedTuple):
    """The most likely classes of a frame, or of a clip.

    Attributes:
        classes: names with their probabilities, most likely first.
        is_known: whether the first one is named; else the answer is unknown. ``None``
            where nobody can tell.
    """

    classes: list[tuple[str, float]]
    is_known: bool | None


def rank(
    probabilities: Tensor,
    names: Sequence[str],
    is_known: Sequence[bool | None],
    runners_up: int,
) -> list[Ranking]:
    """Rank the classes of each row; of equal probabilities the first column is first.

    Args:
        probabilities: ``(n, C)``.
        names: of the ``C`` classes.
        is_known: of the ``n`` rows; see ``Ranking``.
        runners_up: most classes besides the first.
    """
    order = probabilities.argsort(dim=1, descending=True, stable=True)
    best_columns = order[:, : runners_up + 1].tolist()
    rankings = []
    for row, columns, row_is_known in zip(
        probabilities.tolist(), best_columns, is_known, strict=True
    ):
        classes = [(names[column], row[column]) for column in columns]
        rankings.append(Ranking(classes, row_is_known))
    return rankings


@dataclass(frozen=True)
class Observation:
    """What a clip that was predicted adds to the records of answers.

    Attributes:
        records: of its images; see ``Confidence``.
        losses: of each weighting of the views; see ``LookWeights``.
    """

    records: Records
    losses: Tensor


@dataclass(frozen=True)
class Prediction:
    """What the images of a clip looked like before they were learned.

    Attributes:
        evidence: of the ``n`` images, with scores that are logarithms of probabilities,
            but for a summand.
        known: whether the clip was called by a name.
        observation: what was recorded of it.
    """

    evidence: Evidence
    known: bool
    observation: Observation

    def has_column_of(self, number: int) -> bool:
        """Whether a class, by its number, was known and could be the answer."""
        return number in self.evidence.class_of_column

    def is_answer(self, number: int) -> bool:
        """Whether the clip was answered with a class, by its number."""
        return self.known and self.evidence.best == number
