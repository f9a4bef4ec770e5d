"""What images looked like that were predicted before they were learned."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.learner.evidence import Evidence
from crumb_avalanche.learner.prior import Taught
from crumb_avalanche.system.value_types import StateError

# Classes of a record besides the true one; the others add little to a softmax.
RIVALS = 16
PER_CLIP = 20  # records of one clip, whose frames are near copies


class Records(NamedTuple):
    """Images that were predicted before they were learned.

    Each is judged by all classes, and by the other classes alone: so an image of a
    class that was never taught looks. The first images of a class are of the latter
    kind only.

    Attributes:
        labels: ``(n,)`` int64, the true class.
        clip_numbers: ``(n,)`` int64, number of the clip.
        images: ``(n,)`` int64, images of the true class that were learned at that time;
            0 for the first ones of a class.
        classes: ``(n,)`` int64, number of classes at that time.
        mean_log_clips: ``(n,)`` float32, mean logarithm of the clips that each class
            was learned from at that time; see ``Evidence.mean_log_clips``.
        shortage: ``(n,)`` float32, of images at that time; see ``shortage``.
        typicality: ``(n, 3)`` float32, see ``Evidence``.
        left_out: ``(n, 3)`` float32, the typicality without the true class.
        rivals: ``(n, 16)`` int64, the other classes with the largest scores; -1 for
            none.
        gaps: ``(n, 16)`` float32, their scores minus that of the true class, or for the
            first images of a class minus the largest one; -inf for none.
    """

    labels: Tensor
    clip_numbers: Tensor
    images: Tensor
    classes: Tensor
    mean_log_clips: Tensor
    shortage: Tensor
    typicality: Tensor
    left_out: Tensor
    rivals: Tensor
    gaps: Tensor

    @classmethod
    def none(cls) -> "Records":
        """Return no records."""
        numbers = torch.zeros(0, dtype=torch.int64)
        return cls(
            labels=numbers,
            clip_numbers=numbers,
            images=numbers,
            classes=numbers,
            mean_log_clips=torch.zeros(0, dtype=torch.float32),
            shortage=torch.zeros(0, dtype=torch.float32),
            typicality=torch.zeros(0, 3, dtype=torch.float32),
            left_out=torch.zeros(0, 3, dtype=torch.float32),
            rivals=torch.zeros(0, RIVALS, dtype=torch.int64),
            gaps=torch.zeros(0, RIVALS, dtype=torch.float32),
        )

    @classmethod
    def of_clip(cls, evidence: Evidence, label: int, clip_number: int) -> "Records":
        """Return records of how a clip was answered before it was learned, 20 at most.

        Args:
            evidence: of its frames: ``scores``, ``(n, C)``, with ``class_of_column``;
                and ``typicality``, ``(n, 3)``, also as ``left_out``, without the true
                class, if that is known.
            label: number of the true class.
            clip_number: of the clip.
        """
        count = min(len(evidence.scores), PER_CLIP)
        # Frames at equal distances in the clip.
        spread = torch.linspace(0, len(evidence.scores) - 1, count, dtype=torch.float32)
        rows = spread.round().long()
        scores = evidence.scores[rows]
        typicality = evidence.typicality[rows].float()
        # Of the true class: one number, or none if the class is not known.
        own_column = (evidence.class_of_column == label).nonzero().flatten()
        if len(own_column):
            # Images that the class was learned from before, 0 for a new one.
            images = evidence.image_counts[own_column].expand(count)
            left_out = _without_class(evidence)[rows].float()
            gaps = (scores - scores[:, own_column]).float()
            gaps[:, own_column] = -torch.inf  # the true class is no rival
        else:
            images = torch.zeros(count, dtype=torch.int64)
            left_out = typicality
            gaps = (scores - scores.amax(1, keepdim=True)).float()
        # The rivals of an image are the other classes with the largest scores; a gap is
        # the score of a rival minus that of the true class, or of the best one.
        largest = gaps.topk(min(RIVALS, gaps.shape[1]), 1)
        is_rival = largest.values > -torch.inf
        rivals = torch.where(is_rival, evidence.class_of_column[largest.indices], -1)
        n_missing = RIVALS - largest.values.shape[1]
        taught = evidence.taught
        return cls(
            labels=torch.full((count,), label),
            clip_numbers=torch.full((count,), clip_number),
            images=images,
            classes=torch.full((count,), taught.classes),
            mean_log_clips=torch.full(
                (count,), taught.mean_log_clips, dtype=torch.float32
            ),
            shortage=torch.full((count,), taught.shortage, dtype=torch.float32),
            typicality=typicality,
            left_out=left_out,
            rivals=functional.pad(rivals, (0, n_missing), value=-1),
            gaps=functional.pad(largest.values, (0, n_missing), value=-torch.inf),
        )

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> "Records":
        """Return records of earlier answers from their columns in a state.

        They are copies: the state may be that of a classifier that goes on learning.

        Args:
            state: the columns of the records, by name of the attribute.

        Raises:
            KeyError: a tensor is missing.
            StateError: a tensor has another shape.
        """
        records = cls(*(torch.as_tensor(state[name]).clone() for name in cls._fields))
        count = len(records.labels)
        empty_columns = cls.none()._asdict()
        for name, column in records._asdict().items():
            if column.shape != (count, *empty_columns[name].shape[1:]):
                raise StateError(
                    f"{name} of the confidence has the shape {tuple(column.shape)}, "
                    f"which does not fit {count} records; give what state_dict returned"
                )
        return records

    def where(self, mask: Tensor) -> "Records":
        """Return those records for which a ``(n,)`` bool is true."""
        return Records(*(values[mask] for values in self))

    @property
    def taught(self) -> Taught:
        """How much had been taught at the time of each record."""
        return Taught(
            self.mean_log_clips.double(), self.classes, self.shortage.double()
        )

    @property
    def is_of_first_images(self) -> Tensor:
        """Whether each record is of the first images of its class: ``(n,)`` bool."""
        return self.images == 0

    @property
    def of_known_classes(self) -> "Records":
        """The records of classes that were known at their time."""
        return self.where(~self.is_of_first_images)

    @property
    def weights(self) -> Tensor:
        """Weights with which each clip counts once, ``(n,)`` float64."""
        _, clips, sizes = self.clip_numbers.unique(
            return_inverse=True, return_counts=True
        )
        return 1 / sizes.double()[clips]

    def left_out_alone(self) -> "Records":
        """Return how all images looked to the other classes: as strange ones.

        They are records of first images of their classes. Those that only their own
        class judged are left out.
        """
        classes = self.classes - (~self.is_of_first_images).long()
        records = self._replace(
            typicality=self.left_out,
            images=torch.zeros_like(self.images),
            classes=classes,
        )
        return records.where(classes > 1)

    def shares(self, temperature: float) -> Tensor:
        """Return the largest probability of a class for each image, ``(n,)`` float64.

        Args:
            temperature: divisor of the scores.
        """
        # Scores minus that of the true class: of its rivals, and 0 of the class itself,
        # which is none for the first images of a class.
        gaps = self.gaps.double()
        own_gap = torch.where(self.is_of_first_images, -torch.inf, 0.0).unsqueeze(1)
        scores = torch.cat([own_gap, gaps], 1) / temperature
        return scores.softmax(1).amax(1)

    @property
    def number_of_clips(self) -> int:
        """Number of clips that the records are of."""
        return len(self.clip_numbers.unique())

    def joined_with(self, new: "Records", capacity: int) -> "Records":
        """Return these records and new ones below them, at most ``capacity``.

        Beyond it, the class with most records loses every second record, or its only
        one.
        """
        old_and_new_columns = zip(self, new, strict=True)
        records = Records(*map(torch.cat, old_and_new_columns))
        while len(records.labels) > capacity:
            labels, counts = records.labels.unique(return_counts=True)
            fullest = labels[counts.argmax()]  # the class with most records
            rows = (records.labels == fullest).nonzero().flatten()
            if len(rows) > 1:
                rows = rows[1::2]
            is_remaining = torch.ones(len(records.labels), dtype=torch.bool)
            is_remaining[rows] = False
            records = records.where(is_remaining)
        return records

    def without_class(self, label: int) -> "Records":
        """Return the records of the other classes, in which this class is no rival."""
        records = self.where(self.labels != label)
        is_forgotten = records.rivals == label
        rivals = records.rivals.masked_fill(is_forgotten, -1)
        gaps = records.gaps.masked_fill(is_forgotten, -torch.inf)
        return records._replace(rivals=rivals, gaps=gaps).with_rivals()

    def renumbered(self, new_of_old: Mapping[int, int], clips: int) -> "Records":
        """Return the records with other numbers of classes and clips.

        Args:
            new_of_old: the new number of each class; records of classes left out are
                not returned. Two classes may become one; records of the first images of
                one are not returned where the other was a rival, and so known before.
            clips: added to the numbers of clips.
        """
        new_labels = _renumbered(self.labels, new_of_old)
        # Classes with the largest scores besides the true one, (n, 16); -1 for none.
        rivals = _renumbered(self.rivals, new_of_old)
        is_true_class = rivals == new_labels[:, None]  # of two that became one
        was_known = is_true_class.any(1) & self.is_of_first_images
        rivals = rivals.masked_fill(is_true_class, -1)
        records = self._replace(
            labels=new_labels,
            clip_numbers=self.clip_numbers + clips,
            rivals=rivals,
            # Their scores minus that of the true class.
            gaps=self.gaps.masked_fill(rivals < 0, -torch.inf),
        )
        return records.where((new_labels >= 0) & ~was_known).with_rivals()

    def with_rivals(self) -> "Records":
        """Return the records that have a rival: a single class is always the answer."""
        return self.where((self.rivals >= 0).any(1))


def _without_class(evidence: Evidence) -> Tensor:
    """Return the typicality without the true class: that of a single one is as it is.

    Raises:
        ValueError: nothing was left out.
    """
    if len(evidence.class_of_column) == 1:
        return evidence.typicality
    if evidence.left_out is None:
        raise ValueError(
            "the evidence lacks left_out: give the true class to evidence(...)"
        )
    return evidence.left_out


def _renumbered(labels: Tensor, new_numbers: Mapping[int, int]) -> Tensor:
    """Return the new numbers of classes; -1 for those left out, and for -1.

    Args:
        labels: numbers of classes, of any shape; -1 for none.
        new_numbers: of each class that is not left out, by its old number.
    """
    left_out = 1 + max(new_numbers, default=0)  # row of classes without a new number
    table = torch.full((left_out + 1,), -1)
    for old, new in new_numbers.items():
        table[old] = new
    rows = labels.masked_fill(labels < 0, left_out).clamp_max(left_out)
    return table[rows]
