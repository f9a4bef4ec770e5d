"""Records of images that were predicted before they were learned, which the confidence is calibrated on."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from crumb_avalanche.learner.evidence import Evidence
from crumb_avalanche.system.tensor_file import StateError

RIVALS = 16  # classes of a record besides the true one; the others add little to a softmax
PER_LESSON = 20  # records of one lesson: frames of a clip are near copies


def rows_of_lesson(images: int) -> Tensor:
    """Return the rows of a lesson's images that become records, spread evenly: ``(n,)`` int64."""
    return torch.linspace(0, images - 1, min(images, PER_LESSON)).round().long()


class Records(NamedTuple):
    """Images of learned classes, each predicted before it was learned.

    Attributes:
        labels: ``(n,)`` int64, the true class.
        lessons: ``(n,)`` int64, number of the lesson.
        images: ``(n,)`` int64, images of the true class that were learned at that time.
        classes: ``(n,)`` int64, number of classes at that time.
        typicality: ``(n, 3)`` float32, see ``Evidence``.
        without: ``(n, 3)`` float32, that without the true class; nan where too few other classes were known.
        rivals: ``(n, 16)`` int64, the other classes with the largest scores; -1 for none.
        gaps: ``(n, 16)`` float32, their scores minus that of the true class; -inf for none.
    """

    labels: Tensor
    lessons: Tensor
    images: Tensor
    classes: Tensor
    typicality: Tensor
    without: Tensor
    rivals: Tensor
    gaps: Tensor

    @classmethod
    def none(cls) -> "Records":
        """Return no records."""
        none, three = torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3)
        return cls(none, none, none, none, three, three, none.view(0, 1).expand(0, RIVALS), torch.zeros(0, RIVALS))

    @classmethod
    def of_lesson(cls, evidence: Evidence, label: int, lesson: int, without: Tensor | None) -> "Records":
        """Return the records of a lesson; arguments as for ``Confidence.observe``, and the number of the lesson."""
        column = (evidence.labels == label).nonzero().flatten()
        rows = rows_of_lesson(len(evidence.scores))
        scores = evidence.scores[rows]
        gaps = (scores - scores[:, column]).float()
        gaps[:, column] = -torch.inf
        gaps, places = gaps.topk(min(RIVALS, gaps.shape[1]), 1)
        rivals = torch.where(gaps > -torch.inf, evidence.labels[places], -1)
        empty = RIVALS - gaps.shape[1]
        return cls(
            torch.full((len(rows),), label),
            torch.full((len(rows),), lesson),
            evidence.counts[column].expand(len(rows)),
            torch.full((len(rows),), len(evidence.labels)),
            evidence.typicality[rows].float(),
            (torch.full_like(evidence.typicality, torch.nan) if without is None else without)[rows].float(),
            torch.nn.functional.pad(rivals, (0, empty), value=-1),
            torch.nn.functional.pad(gaps, (0, empty), value=-torch.inf),
        )

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> "Records":
        """Return copies of the records of a state, which has an entry for each attribute.

        Raises:
            KeyError: a tensor is missing.
            StateError: a tensor has another shape.
        """
        loaded = cls(*(torch.as_tensor(state[name]).clone() for name in cls._fields))
        for name, values, own in zip(cls._fields, loaded, cls.none(), strict=True):
            if values.shape != (len(loaded.labels), *own.shape[1:]):
                raise StateError(
                    f"{name} of the confidence has the shape {tuple(values.shape)}, which does not fit "
                    f"{len(loaded.labels)} records; give what state_dict returned"
                )
        return loaded

    def where(self, keep: Tensor) -> "Records":
        """Return the records of a ``(n,)`` bool."""
        return Records(*(values[keep] for values in self))

    def and_those(self, new: "Records", capacity: int) -> "Records":
        """Return these and new records; beyond the capacity, the class with most loses every second one."""
        records = Records(*(torch.cat(pair) for pair in zip(self, new, strict=True)))
        while len(records.labels) > capacity:
            labels, numbers = records.labels.unique(return_counts=True)
            fullest = (records.labels == labels[numbers.argmax()]).nonzero().flatten()
            keep = torch.ones(len(records.labels), dtype=torch.bool)
            keep[fullest[1::2] if len(fullest) > 1 else fullest] = False
            records = records.where(keep)
        return records

    def without_class(self, label: int) -> "Records":
        """Return the records of the other classes, in which this class is no rival."""
        kept = self.where(self.labels != label)
        gone = kept.rivals == label
        return kept._replace(rivals=kept.rivals.masked_fill(gone, -1), gaps=kept.gaps.masked_fill(gone, -torch.inf))

    def renumbered(self, labels: Mapping[int, int], lessons: int) -> "Records":
        """Return the records with other numbers of classes and lessons.

        Args:
            labels: the new number of each class; records of classes left out are not returned.
            lessons: added to the numbers of lessons.
        """
        numbers = torch.full((2 + max(labels, default=0),), -1)  # the last one is for -1 and classes left out
        for before, label in labels.items():
            numbers[before] = label
        last = len(numbers) - 1
        new_labels = numbers[self.labels.clamp_max(last)]
        rivals = numbers[self.rivals.masked_fill(self.rivals < 0, last).clamp_max(last)]
        rivals = rivals.masked_fill(rivals == new_labels[:, None], -1)  # two classes became one
        new = self._replace(
            labels=new_labels,
            lessons=self.lessons + lessons,
            rivals=rivals,
            gaps=self.gaps.masked_fill(rivals < 0, -torch.inf),
        )
        return new.where(new_labels >= 0)
