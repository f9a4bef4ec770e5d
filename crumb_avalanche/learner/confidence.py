"""Probabilities and unknown images, calibrated on clips that were predicted before they were learned."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from crumb_avalanche.learner.evidence import Evidence
from crumb_avalanche.learner.nothing import LEAST_APART
from crumb_avalanche.system.tensor_file import StateError

LEAST_LESSONS = 5  # observed before the threshold is fitted
REJECTED = 0.05  # share of images of known classes below each of the two thresholds
# Factors of the deviations by which the sum and the cosine exceed their thresholds; the
# smaller product counts. A steep cosine hardly changes the order of images above its
# threshold.
STEEPNESS = (1.0, 4.0)
# deviation of the logarithm of the temperature from the usual one; of 1, 0.25 and 0.1
# the best of these
PRIOR = 0.25
# probability that less than 1 % of held-out images of CIFAR-100 and Tiny-ImageNet stay
# below
DOUBTFUL = 0.1
RIVALS = (
    16  # classes of a record besides the true one; the others add little to a softmax
)
PER_LESSON = 20  # records of one lesson: frames of a clip are near copies


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
        none = torch.zeros(0, dtype=torch.int64)
        rivals = none.view(0, 1).expand(0, RIVALS)
        return cls(
            none,
            none,
            none,
            none,
            torch.zeros(0, 3, dtype=torch.float32),
            rivals,
            torch.zeros(0, RIVALS, dtype=torch.float32),
        )

    @classmethod
    def of_lesson(cls, evidence: Evidence, label: int, lesson: int) -> "Records":
        """Return the records of a lesson; arguments as for ``Confidence.observe``, and the number of the lesson."""
        column = (evidence.labels == label).nonzero().flatten()
        images = len(evidence.scores)
        rows = (
            torch.linspace(0, images - 1, min(images, PER_LESSON), dtype=torch.float32)
            .round()
            .long()
        )  # spread evenly
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
        """Return those records for which a ``(n,)`` bool is true."""
        return Records(*(values[keep] for values in self))

    def of_first(self, *masks: Tensor) -> "Records":
        """Return the records of the first mask that leaves enough lessons, or all."""
        for mask in masks:
            if len(self.lessons[mask].unique()) >= LEAST_LESSONS:
                return self.where(mask)
        return self

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
        return kept._replace(
            rivals=kept.rivals.masked_fill(gone, -1),
            gaps=kept.gaps.masked_fill(gone, -torch.inf),
        )

    def renumbered(self, labels: Mapping[int, int], lessons: int) -> "Records":
        """Return the records with other numbers of classes and lessons.

        Args:
            labels: the new number of each class; records of classes left out are not
                returned.
            lessons: added to the numbers of lessons.
        """
        numbers = torch.full(
            (2 + max(labels, default=0),), -1
        )  # the last one is for -1 and classes left out
        for before, label in labels.items():
            numbers[before] = label
        last = len(numbers) - 1
        new_labels = numbers[self.labels.clamp_max(last)]
        rivals = numbers[self.rivals.masked_fill(self.rivals < 0, last).clamp_max(last)]
        rivals = rivals.masked_fill(
            rivals == new_labels[:, None], -1
        )  # two classes became one
        new = self._replace(
            labels=new_labels,
            lessons=self.lessons + lessons,
            rivals=rivals,
            gaps=self.gaps.masked_fill(rivals < 0, -torch.inf),
        )
        return new.where(new_labels >= 0)


class _Fit(NamedTuple):
    """Units of relative distance and cosine, and thresholds and units of what ``_sums`` returns; ``(2,)`` each."""

    scales: Tensor
    least: Tensor
    units: Tensor

    def familiarity(self, typicality: Tensor) -> Tensor:
        """Return ``(B,)`` float64 from ``(B, 3)``: below 0 for unknown images."""
        return ((_sums(typicality, self.scales) - self.least) / self.units).amin(1)


class Confidence:
    """Temperature and threshold from records of images that were predicted before they were learned.

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

    def __init__(self, capacity: int = 2000, usual: float | None = None):
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; give at least 1 record")
        self.capacity, self.usual = capacity, usual
        self._records = Records.none()
        self._next = 0
        self._cache: tuple[tuple[int, ...], float, _Fit | None] | None = None

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._records.labels)

    @property
    def lessons_missing(self) -> int:
        """Lessons to be observed before the threshold is fitted."""
        return max(0, LEAST_LESSONS - len(self._records.lessons.unique()))

    def observe(self, evidence: Evidence, label: int) -> None:
        """Record a clip of a class before it is learned; one call is one lesson.

        Leave out clips of an object that was learned before: they are easier than new
        objects. A clip of a new class is no record, because no score is right for it.

        Args:
            evidence: evidence of the clip's images from statistics without them.
            label: the true class.
        """
        if label in evidence.labels and len(evidence.labels) > 1:
            self._add(Records.of_lesson(evidence, label, self._next))
            self._next += 1

    def _add(self, new: Records) -> None:
        self._records, self._cache = self._records.and_those(new, self.capacity), None

    def probabilities(self, evidence: Evidence) -> Tensor:
        """Return ``(B, C)`` float64 probabilities of the columns' classes, if the image shows one of them."""
        return self.calibrated(evidence).scores.softmax(1)

    def calibrated(self, evidence: Evidence) -> Evidence:
        """Return the evidence with scores whose softmax are the probabilities."""
        return evidence._replace(scores=evidence.scores / self.temperature(evidence))

    def temperature(self, evidence: Evidence) -> float:
        """Return the factor on the usual temperature of the closed form."""
        return self._fitted(evidence)[0]

    def familiarity(self, evidence: Evidence) -> Tensor:
        """Return ``(B,)`` float64, how well the classes explain each image: below 0 for unknown ones.

        The mean over the frames of a clip says the same of the clip.
        """
        temperature, fit = self._fitted(evidence)
        if fit is not None:
            familiarity = fit.familiarity(evidence.typicality)
        else:
            confident = (evidence.scores / temperature).log_softmax(1).amax(1)
            familiarity = confident - torch.tensor(DOUBTFUL, dtype=torch.float64).log()
            if self.usual is not None:
                familiarity = torch.minimum(
                    familiarity, evidence.typicality[:, :2].sum(1) - self.usual
                )
        return (
            familiarity
            if evidence.apart is None
            else torch.minimum(familiarity, evidence.apart - LEAST_APART)
        )

    def known(self, evidence: Evidence) -> Tensor:
        """Return ``(B,)`` bool, whether a class explains each image."""
        return self.familiarity(evidence) >= 0

    def forget(self, label: int) -> None:
        """Remove the records of a class, and the class from those of others."""
        self._records, self._cache = self._records.without_class(label), None

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
            loaded, following = Records.of_state(state), int(state["next"])
        except KeyError as error:
            raise StateError(
                f"the state of the confidence lacks {error}; give what state_dict returned"
            ) from error
        self._records, self._next, self._cache = loaded, following, None

    def _fitted(self, evidence: Evidence) -> tuple[float, _Fit | None]:
        """Return temperature and fit for the present numbers of images; cached until either changes."""
        key = (*evidence.labels.tolist(), *evidence.counts.tolist())
        if self._cache is None or self._cache[0] != key:
            records = self._records
            now = dict(
                zip(evidence.labels.tolist(), evidence.counts.tolist(), strict=True)
            )
            images = 2 * records.images >= torch.tensor(
                [now.get(label, 0) for label in records.labels.tolist()]
            )
            classes = 2 * records.classes >= len(now)
            temperature = _temperature(records.of_first(images & classes, images))
            of_unknown = records.of_first(images & classes, classes)
            enough = len(of_unknown.lessons.unique()) >= LEAST_LESSONS
            self._cache = (
                key,
                temperature,
                _fit(of_unknown, self.usual) if enough else None,
            )
        return self._cache[1:]


def _temperature(records: Records) -> float:
    """Return the temperature with the largest posterior density, to 0.1 %."""
    weights = _shares(records)
    gaps = torch.nn.functional.pad(
        records.gaps.double(), (1, 0)
    )  # 0 for the true class
    centre, step = 0.0, 0.5
    while step > 1e-4:
        logs = centre + step * torch.linspace(-10, 10, 21, dtype=torch.float64)
        losses = [
            weights @ (gaps / log.exp()).logsumexp(1) + (log / PRIOR).square() / 2
            for log in logs
        ]
        centre, step = float(logs[int(torch.stack(losses).argmin())]), step / 8
    return float(torch.tensor(centre, dtype=torch.float32).exp())


def _fit(records: Records, usual: float | None) -> _Fit:
    """Return the thresholds of images of known classes; that of the cosine is at most ``usual``."""
    shares = _shares(records)
    # With a usual threshold, both are in units of a cosine.
    scales = torch.ones(2, dtype=torch.float64)
    if usual is None:
        scales = records.typicality[:, :2].double().std(0, correction=0).clamp_min(1e-6)
    values = _sums(records.typicality, scales)
    ordered, order = values.sort(0)
    below = shares[order].cumsum(0) / shares.sum()
    least = ordered.gather(0, (below < REJECTED).sum(0, keepdim=True))[0]
    if usual is not None:
        least[1].clamp_max_(usual)
    units = values.std(0, correction=0).clamp_min(1e-6) / torch.tensor(
        STEEPNESS, dtype=torch.float64
    )
    return _Fit(scales, least, units)


def _sums(typicality: Tensor, scales: Tensor) -> Tensor:
    """Return relative distance plus cosine, in their units, and the cosine apart; ``(B, 2)`` float64."""
    typicality = typicality.double()
    return torch.stack([(typicality[:, :2] / scales).sum(1), typicality[:, 2]], 1)


def _shares(records: Records) -> Tensor:
    """Return ``(n,)`` float64 weights of the records, with which each lesson counts once."""
    _, lessons, sizes = records.lessons.unique(return_inverse=True, return_counts=True)
    return 1 / sizes.double()[lessons]


def expected_calibration_error(
    probabilities: Tensor, correct: Tensor, bins: int = 15
) -> float:
    """Return the mean difference between confidence and accuracy, over bins of equal width (Guo et al., ICML 2017).

    Args:
        probabilities: ``(n,)``, the largest probability of each image.
        correct: ``(n,)`` bool, whether the answer is right.
        bins: number of bins; a probability on the border of two counts in the lower
            one.
    """
    places = (probabilities.double() * bins).ceil().long().clamp(1, bins) - 1
    surplus = probabilities.double() - correct.double()
    return float(
        surplus.new_zeros(bins).index_add_(0, places, surplus).abs().sum()
        / len(surplus)
    )
