"""Probabilities and unknown images.

Both are calibrated on clips that were predicted before they were learned.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.learner.evidence import Evidence
from crumb_avalanche.learner.nothing import LEAST_APART
from crumb_avalanche.system.value_types import StateError

LEAST_LESSONS = 5  # observed before the threshold is fitted
REJECTED = 0.05  # share of images of known classes below each of the two thresholds
# Factors of the deviations by which the sum and the cosine exceed their thresholds; the
# smaller product counts. A steep cosine hardly changes the order of images above its
# threshold.
STEEPNESS = (1.0, 4.0)
# Deviation of the logarithm of the temperature from the usual one; of 1, 0.25 and 0.1
# the best of these.
PRIOR = 0.25
# Probability that less than 1 % of held-out images of CIFAR-100 and Tiny-ImageNet stay
# below.
DOUBTFUL = 0.1
# Classes of a record besides the true one; the others add little to a softmax.
RIVALS = 16
PER_LESSON = 20  # records of one lesson: frames of a clip are near copies
LEAST_DEVIATION = 1e-6  # a smaller one is of equal values


class Records(NamedTuple):
    """Images of learned classes, each predicted before it was learned.

    Attributes:
        labels: ``(n,)`` int64, the true class.
        lessons: ``(n,)`` int64, number of the lesson.
        images: ``(n,)`` int64, images of the true class that were learned at that time.
        classes: ``(n,)`` int64, number of classes at that time.
        typicality: ``(n, 3)`` float32, see ``Evidence``.
        rivals: ``(n, 16)`` int64, the other classes with the largest scores; -1 for
            none.
        gaps: ``(n, 16)`` float32, their scores minus that of the true class; -inf for
            none.
    """

    labels: Tensor
    lessons: Tensor
    images: Tensor
    classes: Tensor
    typicality: Tensor
    rivals: Tensor
    gaps: Tensor

    @classmethod
    def none(cls) -> "Records":
        """Return no records."""
        numbers = torch.zeros(0, dtype=torch.int64)
        return cls(
            labels=numbers,
            lessons=numbers,
            images=numbers,
            classes=numbers,
            typicality=torch.zeros(0, 3, dtype=torch.float32),
            rivals=torch.zeros(0, RIVALS, dtype=torch.int64),
            gaps=torch.zeros(0, RIVALS, dtype=torch.float32),
        )

    @classmethod
    def of_lesson(cls, evidence: Evidence, label: int, lesson: int) -> "Records":
        """Return the records of a lesson.

        Args:
            evidence, label: see ``Confidence.observe``.
            lesson: its number.
        """
        images = len(evidence.scores)
        count = min(images, PER_LESSON)
        spread = torch.linspace(0, images - 1, count, dtype=torch.float32)
        rows = spread.round().long()
        column = (evidence.labels == label).nonzero().flatten()
        scores = evidence.scores[rows]
        gaps = (scores - scores[:, column]).float()
        gaps[:, column] = -torch.inf
        largest = gaps.topk(min(RIVALS, gaps.shape[1]), 1)
        is_rival = largest.values > -torch.inf
        rivals = torch.where(is_rival, evidence.labels[largest.indices], -1)
        empty = RIVALS - largest.values.shape[1]
        return cls(
            labels=torch.full((len(rows),), label),
            lessons=torch.full((len(rows),), lesson),
            images=evidence.counts[column].expand(len(rows)),
            classes=torch.full((len(rows),), len(evidence.labels)),
            typicality=evidence.typicality[rows].float(),
            rivals=functional.pad(rivals, (0, empty), value=-1),
            gaps=functional.pad(largest.values, (0, empty), value=-torch.inf),
        )

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> "Records":
        """Return copies of the records of a state with an entry for each attribute.

        Raises:
            KeyError: a tensor is missing.
            StateError: a tensor has another shape.
        """
        records = cls(*(torch.as_tensor(state[name]).clone() for name in cls._fields))
        count = len(records.labels)
        empty = cls.none()._asdict()
        for name, values in records._asdict().items():
            if values.shape != (count, *empty[name].shape[1:]):
                raise StateError(
                    f"{name} of the confidence has the shape {tuple(values.shape)}, "
                    f"which does not fit {count} records; give what state_dict returned"
                )
        return records

    def where(self, mask: Tensor) -> "Records":
        """Return those records for which a ``(n,)`` bool is true."""
        return Records(*(values[mask] for values in self))

    @property
    def number_of_lessons(self) -> int:
        """Number of lessons that the records are of."""
        return len(self.lessons.unique())

    def of_first(self, *masks: Tensor) -> "Records":
        """Return the records of the first mask that leaves enough lessons, or all."""
        for mask in masks:
            records = self.where(mask)
            if records.number_of_lessons >= LEAST_LESSONS:
                return records
        return self

    def joined_with(self, new: "Records", capacity: int) -> "Records":
        """Return these records and new ones below them.

        Beyond the capacity, the class with most records loses every second one; a class
        with a single record loses it.
        """
        columns = [torch.cat(pair) for pair in zip(self, new, strict=True)]
        records = Records(*columns)
        while len(records.labels) > capacity:
            labels, counts = records.labels.unique(return_counts=True)
            of_fullest = records.labels == labels[counts.argmax()]
            index = of_fullest.nonzero().flatten()
            dropped = index[1::2] if len(index) > 1 else index
            mask = torch.ones(len(records.labels), dtype=torch.bool)
            mask[dropped] = False
            records = records.where(mask)
        return records

    def without_class(self, label: int) -> "Records":
        """Return the records of the other classes, in which this class is no rival."""
        records = self.where(self.labels != label)
        forgotten = records.rivals == label
        return records._replace(
            rivals=records.rivals.masked_fill(forgotten, -1),
            gaps=records.gaps.masked_fill(forgotten, -torch.inf),
        )

    def renumbered(self, labels: Mapping[int, int], lessons: int) -> "Records":
        """Return the records with other numbers of classes and lessons.

        Args:
            labels: the new number of each class; records of classes left out are not
                returned. Two classes may become one.
            lessons: added to the numbers of lessons.
        """
        new_labels = _renumbered(self.labels, labels)
        rivals = _renumbered(self.rivals, labels)
        # A rival that is the true class now is none.
        rivals = rivals.masked_fill(rivals == new_labels[:, None], -1)
        records = self._replace(
            labels=new_labels,
            lessons=self.lessons + lessons,
            rivals=rivals,
            gaps=self.gaps.masked_fill(rivals < 0, -torch.inf),
        )
        return records.where(new_labels >= 0)


def _renumbered(values: Tensor, numbers: Mapping[int, int]) -> Tensor:
    """Return the new numbers of classes; -1 for those left out, and for -1."""
    last = 1 + max(numbers, default=0)  # stands for classes without a new number
    table = torch.full((last + 1,), -1)
    for old, new in numbers.items():
        table[old] = new
    return table[values.masked_fill(values < 0, last).clamp_max(last)]


class _Thresholds(NamedTuple):
    """What separates known from unknown images.

    Attributes:
        scales: units of relative distance and cosine, ``(2,)`` float64.
        least: of what ``_sums`` returns, for a known image; ``(2,)``.
        units: of what ``_sums`` returns; ``(2,)``.
    """

    scales: Tensor
    least: Tensor
    units: Tensor

    def familiarity(self, typicality: Tensor) -> Tensor:
        """Return ``(B,)`` float64 from ``(B, 3)``: below 0 for unknown images."""
        excess = _sums(typicality, self.scales) - self.least
        return (excess / self.units).amin(1)


@dataclass(frozen=True)
class _Fit:
    """What was fitted to the records.

    Attributes:
        key: numbers and image counts of the classes that it holds for.
        temperature: factor on the usual temperature.
        thresholds: ``None`` until enough lessons are observed.
    """

    key: tuple[int, ...]
    temperature: float
    thresholds: _Thresholds | None


class Confidence:
    """Temperature and threshold, from images that were predicted before learned.

    No image is held out. ``observe`` takes the evidence of each clip before the clip is
    learned. If the class was known by then, the images become records; how the classes
    scored images that they had not seen yet is what calibrates them. Records from a
    time when their class had less than half of its present images, or when there were
    less than half of the present classes, do not count for temperature and threshold.
    If fewer than five lessons are left, those of few classes count for the temperature,
    too, and those of few images for the threshold; if need be all do.

    *Temperature*: maximum of the likelihood of the true classes, each lesson counting
    once, with a normal prior of deviation 0.25 for its logarithm, so that it starts
    from the usual one of the closed form.

    *Unknown*: an image is known if the sum of its relative distance to the nearest
    class and its cosine with a class mean, without ``usual`` in units of their
    deviations, and its cosine apart from what shows nothing are above their 5 %
    quantiles over the records, each lesson counting once; of the latter cosine no more
    than ``usual`` is asked. The sum tells classes that were never learned, the cosine
    apart from nothing what shows no object at all. Before five lessons are observed,
    images whose largest probability is below 0.1 are unknown, and those whose sum is
    below ``usual``. Images that look like what was shown as nothing always are.

    Args:
        capacity: largest number of records, 236 bytes each; beyond it, the class with
            most loses every second one.
        usual: threshold of the sum before five lessons, and largest one of the cosine
            after them; ``None`` if the space is not whitened. See
            ``nothing.usual_threshold``.
    """

    def __init__(self, capacity: int = 1000, usual: float | None = None):
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; give at least 1 record")
        self.capacity = capacity
        self.usual = usual
        self._records = Records.none()
        self._next = 0  # number of the next lesson
        self._fit: _Fit | None = None  # computed when it is needed

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._records.labels)

    @property
    def lessons_missing(self) -> int:
        """Lessons to be observed before the threshold is fitted."""
        return max(0, LEAST_LESSONS - self._records.number_of_lessons)

    def observe(self, evidence: Evidence, label: int) -> None:
        """Record a clip of a class before it is learned; one call is one lesson.

        Leave out clips of an object that was learned before: they are easier than new
        objects. A clip of a new class is no record, because no score is right for it.

        Args:
            evidence: evidence of the clip's images from statistics without them.
            label: the true class.
        """
        if label in evidence.labels and len(evidence.labels) > 1:
            self.add_lesson(Records.of_lesson(evidence, label, self._next))

    def add_lesson(self, records: Records) -> None:
        """Add the records of a clip, as the next lesson."""
        lessons = torch.full_like(records.lessons, self._next)
        self._add(records._replace(lessons=lessons))
        self._next += 1

    def _add(self, new: Records) -> None:
        """Add records; what was fitted to fewer no longer holds."""
        self._records = self._records.joined_with(new, self.capacity)
        self._fit = None

    def probabilities(self, evidence: Evidence) -> Tensor:
        """Return ``(B, C)`` float64 probabilities of the columns' classes.

        They are those if the image shows one of the classes.
        """
        return self.calibrated(evidence).scores.softmax(1)

    def calibrated(self, evidence: Evidence) -> Evidence:
        """Return the evidence with scores whose softmax are the probabilities."""
        return evidence._replace(scores=evidence.scores / self.temperature(evidence))

    def temperature(self, evidence: Evidence) -> float:
        """Return the factor on the usual temperature of the closed form."""
        return self._fitted(evidence).temperature

    def familiarity(self, evidence: Evidence) -> Tensor:
        """Return ``(B,)`` float64, how well the classes explain each image.

        It is below 0 for unknown images. The mean over the frames of a clip says the
        same of the clip.
        """
        fit = self._fitted(evidence)
        if fit.thresholds is None:
            familiarity = self._usual_familiarity(evidence, fit.temperature)
        else:
            familiarity = fit.thresholds.familiarity(evidence.typicality)
        if evidence.apart is None:
            return familiarity
        return torch.minimum(familiarity, evidence.apart - LEAST_APART)

    def _usual_familiarity(self, evidence: Evidence, temperature: float) -> Tensor:
        """Return the familiarity as long as few lessons were observed."""
        largest = (evidence.scores / temperature).log_softmax(1).amax(1)
        familiarity = largest - torch.tensor(DOUBTFUL, dtype=torch.float64).log()
        if self.usual is None:
            return familiarity
        excess = evidence.typicality[:, :2].sum(1) - self.usual
        return torch.minimum(familiarity, excess)

    def known(self, evidence: Evidence) -> Tensor:
        """Return ``(B,)`` bool, whether a class explains each image."""
        return self.familiarity(evidence) >= 0

    def forget(self, label: int) -> None:
        """Remove the records of a class, and the class from those of others."""
        self._records = self._records.without_class(label)
        self._fit = None

    def merge(self, other: "Confidence", labels: Mapping[int, int]) -> None:
        """Add the records of another instance.

        Args:
            other: the other instance; it is not changed.
            labels: the number in this instance of each class of ``other``; records of
                classes left out are not added.
        """
        self._add(other._records.renumbered(labels, self._next))
        self._next += other._next

    def state_dict(self) -> dict[str, Any]:
        """Return the records."""
        return {"next": self._next, **self._records._asdict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned.

        Raises:
            StateError: a tensor is missing or has another shape.
        """
        try:
            records = Records.of_state(state)
            following = int(state["next"])
        except KeyError as error:
            raise StateError(
                f"the state of the confidence lacks {error}; give what state_dict "
                "returned"
            ) from error
        self._records = records
        self._next = following
        self._fit = None

    def _fitted(self, evidence: Evidence) -> _Fit:
        """Return the fit for the present numbers of images, cached till they change."""
        labels = evidence.labels.tolist()
        counts = evidence.counts.tolist()
        key = (*labels, *counts)
        if self._fit is None or self._fit.key != key:
            self._fit = self._fitted_to(key, dict(zip(labels, counts, strict=True)))
        return self._fit

    def _fitted_to(self, key: tuple[int, ...], images: dict[int, int]) -> _Fit:
        """Fit temperature and thresholds; ``images`` are those of each class now."""
        records = self._records
        present = [images.get(label, 0) for label in records.labels.tolist()]
        of_many_images = 2 * records.images >= torch.tensor(present)
        of_many_classes = 2 * records.classes >= len(images)
        of_both = of_many_images & of_many_classes
        temperature = _temperature(records.of_first(of_both, of_many_images))
        for_thresholds = records.of_first(of_both, of_many_classes)
        thresholds = None
        if for_thresholds.number_of_lessons >= LEAST_LESSONS:
            thresholds = _thresholds(for_thresholds, self.usual)
        return _Fit(key, temperature, thresholds)


def _temperature(records: Records) -> float:
    """Return the temperature with the largest posterior density, to 0.1 %."""
    weights = _weights(records)
    # The true class has the gap 0.
    gaps = functional.pad(records.gaps.double(), (1, 0))
    centre = 0.0
    step = 0.5
    while step > 1e-4:
        logs = centre + step * torch.linspace(-10, 10, 21, dtype=torch.float64)
        losses = []
        for log in logs:
            loss = weights @ (gaps / log.exp()).logsumexp(1)
            losses.append(loss + (log / PRIOR).square() / 2)
        centre = float(logs[int(torch.stack(losses).argmin())])
        step /= 8
    return float(torch.tensor(centre, dtype=torch.float32).exp())


def _thresholds(records: Records, usual: float | None) -> _Thresholds:
    """Return the thresholds of images of known classes.

    Args:
        records: at least one.
        usual: most that is asked of the cosine, whose units the distance has, too;
            ``None`` where the distance has others.
    """
    typicality = records.typicality.double()
    if usual is None:
        scales = typicality[:, :2].std(0, correction=0).clamp_min(LEAST_DEVIATION)
    else:
        scales = torch.ones(2, dtype=torch.float64)
    values = _sums(typicality, scales)
    least = _quantiles(values, _weights(records))
    if usual is not None:
        least[1].clamp_max_(usual)
    deviations = values.std(0, correction=0).clamp_min(LEAST_DEVIATION)
    steepness = torch.tensor(STEEPNESS, dtype=torch.float64)
    return _Thresholds(scales, least, deviations / steepness)


def _quantiles(values: Tensor, weights: Tensor) -> Tensor:
    """Return the value of each column of ``(n, 2)`` below which 5 % of the weights are.

    Args:
        values: ``(n, 2)``.
        weights: ``(n,)``.

    Returns:
        ``(2,)``.
    """
    ordered, order = values.sort(0)
    below = weights[order].cumsum(0) / weights.sum()
    rows = (below < REJECTED).sum(0, keepdim=True)
    return ordered.gather(0, rows)[0]


def _sums(typicality: Tensor, scales: Tensor) -> Tensor:
    """Return what has thresholds, ``(B, 2)`` float64.

    These are relative distance plus cosine, in their units, and the cosine apart.
    """
    typicality = typicality.double()
    sums = (typicality[:, :2] / scales).sum(1)
    return torch.stack([sums, typicality[:, 2]], 1)


def _weights(records: Records) -> Tensor:
    """Return ``(n,)`` float64 weights with which each lesson counts once."""
    _, lessons, sizes = records.lessons.unique(return_inverse=True, return_counts=True)
    return 1 / sizes.double()[lessons]


def expected_calibration_error(
    probabilities: Tensor, correct: Tensor, bins: int = 15
) -> float:
    """Return the mean difference between confidence and accuracy.

    Over bins of equal width (Guo et al., ICML 2017).

    Args:
        probabilities: ``(n,)``, the largest probability of each image.
        correct: ``(n,)`` bool, whether the answer is right.
        bins: number of bins; a probability on the border of two counts in the lower
            one.
    """
    probabilities = probabilities.double()
    index = (probabilities * bins).ceil().long().clamp(1, bins) - 1
    surplus = probabilities - correct.double()
    sums = surplus.new_zeros(bins).index_add_(0, index, surplus)
    return float(sums.abs().sum() / len(surplus))
