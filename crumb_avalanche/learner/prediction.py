"""What a classifier says of clips: rankings, and what they looked like before."""

from dataclasses import dataclass

from torch import Tensor

from crumb_avalanche.learner.evidence import Evidence
from crumb_avalanche.learner.records import Records

# Names with their probabilities, most likely first, and whether a class explains what
# is shown.
Ranking = tuple[list[tuple[str, float]], bool]


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
