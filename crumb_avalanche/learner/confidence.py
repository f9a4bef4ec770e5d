"""How sure answers are: probabilities of the classes, and of none of them.

Both follow from clips that were predicted before they were learned, and from a prior
that was measured on other streams.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.learner.evidence import Evidence
from crumb_avalanche.learner.nothing import LEAST_APART
from crumb_avalanche.learner.prior import Prior, Taught, prior_of_records
from crumb_avalanche.learner.records import Records
from crumb_avalanche.methods.shortage import shortage
from crumb_avalanche.system.value_types import StateError

# Confidence from which on a class is named, unless it is set, and the share of images
# of known classes that is less sure. Of shares of 0.1, 0.15 and 0.2 chosen in a
# simulation on the streams of ``experiments/known_prior.py``, which is not kept; an
# earlier rule was given up because it named too many look-alikes of ETH-80.
STRICT = 0.8
REFUSED = 0.15
# Probability below which an image is unknown in any case: less than 1 % of held-out
# images of CIFAR-100 and Tiny-ImageNet are below.
DOUBTFUL = 0.1
CERTAIN = 40.0  # logarithm of odds, as a large number
# Deviations from the mean of a normal distribution to the quantile of that share.
BELOW_MEAN = -NormalDist().inv_cdf(REFUSED)
LEAST_LESSONS = 5  # after which records count alone that are of the present classes
# Deviation of the logarithm of the temperature from that of the prior; of 1, 0.25 and
# 0.1 the best of these.
DEVIATION = 0.25
# Lessons as which the prior counts beside those recorded: for how close images are, and
# for the rates of errors.
LESSONS_OF_PRIOR = 3.0
LESSONS_OF_RATES = 10.0
# Deviations by which things that look much like a class are closer than other things
# are on average: no more of them are named than a learner says in all trials of each
# stream for development of ``experiments/named_unknown.py``. By 0.7 this holds in 96 %
# of those of groceries, and less is known of other streams.
ALIKE = 1.0
CLEAR = 0.95  # of the classes' probability, the share of the most likely one
# Logarithm of the largest odds of an image at LEAST_APART, and its growth beyond.
ODDS_APART = 0.0
STEEPNESS_APART = 100.0
REJECTED = 0.05  # share of images of known classes that are like images of nothing


class Rates(NamedTuple):
    """How often a learner errs about what it knows.

    Attributes:
        refused: share of the images of classes taught that are called unknown.
        named: share of the images of other things that are called by a name.
        named_alike: the same at most, of things that look much like a class taught.
    """

    refused: float
    named: float
    named_alike: float


@dataclass(frozen=True)
class _Fit:
    """What was fitted to the records.

    Attributes:
        key: the classes, images and clips that it holds for.
        prior: see ``Prior``; ``None`` until there are records to make one of.
        temperature: factor on the usual temperature.
        shift: by how much closer than the prior says images of known classes are.
        excess: by how much closer beyond the shift images of other classes are.
        least_apart: cosine apart from what shows nothing, from which on an image may
            show something; ``None`` until five lessons were recorded.
    """

    key: tuple[Any, ...]
    prior: Prior | None
    temperature: float
    shift: float = 0.0
    excess: float = 0.0
    least_apart: float | None = None

    def least_named(self, strict: float) -> float:
        """Return the probability from which on a class is named; see ``known``."""
        if self.prior is None:
            return min(strict, DOUBTFUL)
        return strict


class Confidence:
    """Probabilities of classes, from images that were predicted before learned.

    No image is held out. ``add_lesson`` takes the records of each clip before the clip
    is learned: how its classes scored images that they had not seen yet, and how the
    other classes did alone, for which the image is of an unknown thing.

    The probability of class ``c`` is ``k p_c``. ``p`` is the softmax of the scores
    divided by a temperature, and ``k`` the probability that the image shows any class,
    a logistic function of its *closeness* to the classes; see ``Prior``. A class is
    named if its probability is at least the learner's ``strict``; by default of 0.8, 15
    % of the images of known classes are meant to be below.

    *Temperature*: maximum of the likelihood of the true classes, each lesson counting
    once, with a normal prior of deviation 0.25 for its logarithm. Records from a time
    when their class had less than half of its present images, or when there were less
    than half of the present classes, do not count. If fewer than five lessons are left,
    those of few classes count, too, and if need be all do.

    *Closeness*: the prior says how close images of known classes and of others are, by
    the number of clips and of classes. Both are moved by the difference between the 15
    % quantiles of the prior and of what was recorded of known classes, each lesson
    counting once, the prior as three. If the classes are closer to each other than the
    prior says, images have to be closer by half as much: as many more of known classes
    are refused as fewer of others are named.

    *Nothing*: from five lessons on, images are unknown whose cosine apart from what
    shows nothing is below that of 95 % of the records, of which no more than ``usual``
    is asked. Images that look like what was shown as nothing always are.

    Args:
        prior: of the network; ``None`` for values in other units than cosines. Then an
            image is of a known class as long as less than five lessons were recorded,
            and a class is named from a probability of 0.1 on.
        usual: see ``nothing.usual_threshold``; without effect without a prior.
        capacity: largest number of records; beyond it, the class with most loses every
            second one.
    """

    def __init__(
        self,
        prior: Prior | None = None,
        usual: float | None = None,
        capacity: int = 1000,
    ):
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; give at least 1 record")
        self.prior = prior
        self.usual = usual
        self.capacity = capacity
        self._records = Records.none()
        self._next_lesson = 0  # number of the next clip that is recorded
        self._fit: _Fit | None = None  # computed when it is needed

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._records.labels)

    @property
    def lessons(self) -> int:
        """Number of clips of known classes that were recorded."""
        return self._of_known.number_of_lessons

    @property
    def _of_known(self) -> Records:
        """The records of classes that were known."""
        return self._records.where(~self._records.is_of_first_images)

    def observe(self, evidence: Evidence, label: int) -> None:
        """Record a clip before it is learned; one call is one lesson.

        Leave out clips of an object that was learned before: they are easier than new
        objects.

        Args:
            evidence: of the clip's images from statistics without them; see
                ``Records.of_lesson``.
            label: the true class.
        """
        self.add_lesson(Records.of_lesson(evidence, label, self._next_lesson))

    def add_lesson(self, records: Records) -> None:
        """Add the records of a clip, as the next lesson.

        Images of which a single class is known are no records: it is always the answer.
        """
        lessons = torch.full_like(records.lessons, self._next_lesson)
        records = records._replace(lessons=lessons).with_rivals()
        if len(records.labels):
            self._add(records)
            self._next_lesson += 1

    def _add(self, new: Records) -> None:
        """Add records; what was fitted to fewer no longer holds."""
        self._records = self._records.joined_with(new, self.capacity)
        self._fit = None

    # Answers

    def probabilities(self, evidence: Evidence) -> Tensor:
        """Return ``(B, C)`` float64 probabilities of the columns' classes.

        Their sum is the probability that the image shows any of them.
        """
        among_classes = self.calibrated(evidence).scores.softmax(1)  # if it shows one
        return among_classes * self.odds(evidence).sigmoid().unsqueeze(1)

    def of_clip(self, evidence: Evidence) -> Tensor:
        """Return ``(1, C)`` probabilities for all images together, as those of a clip.

        Scores and logarithms of odds are means.
        """
        scores = self.calibrated(evidence).scores.mean(0, keepdim=True)
        return scores.softmax(1) * self.odds(evidence).mean().sigmoid()

    def known(self, probabilities: Tensor, evidence: Evidence, strict: float) -> Tensor:
        """Return whether the most likely class of each row is named: ``(n,)`` bool.

        Args:
            probabilities: ``(n, C)``, of images or of clips.
            evidence: of the images.
            strict: probability from which on a class is named; that of the learner. It
                holds where something is known of images of other classes; else all are
                named that are not doubtful.
        """
        return probabilities.amax(1) >= self._fit_for(evidence).least_named(strict)

    def calibrated(self, evidence: Evidence) -> Evidence:
        """Return the evidence with scores whose softmax is over the known classes."""
        return evidence._replace(scores=evidence.scores / self.temperature(evidence))

    def temperature(self, evidence: Evidence) -> float:
        """Return the factor on the usual temperature of the closed form."""
        return self._fit_for(evidence).temperature

    def odds(self, evidence: Evidence) -> Tensor:
        """Return logarithms of the odds that images show any class: ``(B,)`` float64.

        Those of images that look like what was shown as nothing are low.

        Args:
            evidence: how typical ``B`` images are of the classes.
        """
        fit = self._fit_for(evidence)  # to earlier answers; cached
        # Computed, where torch.full would be traced as a constant number of images.
        odds = 0 * evidence.typicality[:, 0] + CERTAIN
        if fit.prior is not None:
            taught = evidence.taught
            closeness = fit.prior.closeness(evidence.typicality, taught.shortage)
            odds = _odds(fit, closeness, taught)
        if fit.least_apart is not None:
            odds = _limited(odds, evidence.typicality[:, 2], fit.least_apart)
        if evidence.apart is not None:
            odds = _limited(odds, evidence.apart, LEAST_APART)
        return odds.clamp(-CERTAIN, CERTAIN)

    # Fitting

    def _fit_for(self, evidence: Evidence) -> _Fit:
        """Return what was fitted for the classes that gave the evidence."""
        counts = zip(
            evidence.class_of_column.tolist(),
            evidence.image_counts.tolist(),
            strict=True,
        )
        return self._fit_of(dict(counts), evidence.mean_log_clips)

    def _fit_of(self, images: Mapping[int, int], clips: float) -> _Fit:
        """Return what is fitted to the records, cached till the classes change.

        Args:
            images: number of images that each class was learned from, by number of the
                class.
            clips: mean logarithm of the clips of each class.
        """
        key = (*images.items(), clips)
        if self._fit is None or self._fit.key != key:
            self._fit = self._fitted(key, images, clips)
        return self._fit

    def _fitted(
        self, key: tuple[Any, ...], images: Mapping[int, int], clips: float
    ) -> _Fit:
        """Fit prior, temperature, shift and thresholds to the records.

        Records say how images were answered before they were learned.

        Args:
            key: what it is cached by.
            images: number of images of each class, by number of the class.
            clips: mean logarithm of the clips of each class.
        """
        records = self._of_known  # of classes that were known before
        present = self._of_present(records, images)  # of times like the present
        prior = self.prior
        if prior is None and present.number_of_lessons >= LEAST_LESSONS:
            prior = prior_of_records(
                present.typicality, present.left_out, present.shortage.double()
            )
        centre = 0.0
        taught = Taught(clips, len(images), shortage(list(images.values())))
        if prior is not None:
            prior = prior.of_classes(len(images))
            centre = float(prior.temperature.at(taught))
        fit = _Fit(key, prior, temperature=_temperature(present, centre))
        # What was recorded compares classes: it says nothing of a single one.
        if self.prior is not None and len(images) > 1:
            shift = _shift(self.prior, records, taught)
            surplus = _mean_surplus(self.prior, self._records.left_out_alone())
            fit = replace(fit, shift=shift, excess=max(0.0, surplus - shift))
        if self.usual is None or present.number_of_lessons < LEAST_LESSONS:
            return fit
        apart_from_nothing = present.typicality[:, 2]
        least = _quantile(apart_from_nothing, _weights(present), REJECTED)
        return replace(fit, least_apart=min(least, self.usual))

    @staticmethod
    def _of_present(records: Records, images: Mapping[int, int]) -> Records:
        """Return the records that hold for the present classes, if they are enough.

        They are of times when their class had half of its present images, and there
        were half of the present classes. Else only the first has to hold, or neither.

        Args:
            records: of clips that were predicted before they were learned.
            images: number of images of each present class, by number of the class.
        """
        images_now = torch.tensor([images.get(c, 0) for c in records.labels.tolist()])
        has_many_images = 2 * records.images >= images_now
        has_many_classes = 2 * records.classes >= len(images)
        for mask in (has_many_images & has_many_classes, has_many_images):
            chosen = records.where(mask)
            if chosen.number_of_lessons >= LEAST_LESSONS:
                return chosen
        return records

    # Errors

    def rates(self, strict: float, images: Mapping[int, int], clips: float) -> Rates:
        """Return how often a learner with so many images of its classes errs.

        What was recorded counts beside the prior, each lesson once. Of other things no
        less are named than the prior says: classes that are far apart tell little of
        what looks like one of them. How many are named of what does follows from the
        prior alone: records say what other classes look like, not what is to come.

        Args:
            strict: confidence from which on a class is named, below 1.
            images: of each class, by number; at least two.
            clips: mean logarithm of the clips of each class.
        """
        fit = self._fit_of(images, clips)
        known = self._of_present(self._of_known, images)
        # Each image as if its class had not been taught.
        strange = self._of_present(self._records.left_out_alone(), images)
        least = fit.least_named(strict)  # probability from which on a class is named
        is_refused = _confidence(fit, known) < least
        is_named = _confidence(fit, strange) >= least
        taught = Taught(clips, len(images), shortage(list(images.values())))
        expected = _expected(fit, strict, taught)  # by the prior alone
        named = max(expected.named, _mixed(expected.named, is_named, strange))
        return Rates(
            refused=_mixed(expected.refused, is_refused, known),
            named=named,
            named_alike=max(expected.named_alike, named),
        )

    # Changes of classes

    def forget(self, label: int) -> None:
        """Remove the records of a class, and the class from those of others."""
        self._records = self._records.without_class(label)
        self._fit = None

    def merge(self, other: "Confidence", mine_of_theirs: Mapping[int, int]) -> None:
        """Add the records of another instance.

        Args:
            other: the other instance; it is not changed.
            mine_of_theirs: the number in this instance of each class of ``other``;
                records of classes left out are not added.
        """
        self._add(other._records.renumbered(mine_of_theirs, self._next_lesson))
        self._next_lesson += other._next_lesson

    def state_dict(self) -> dict[str, Any]:
        """Return the columns of the records by name, and ``next``.

        ``next`` is the number of the clip that is recorded next.
        """
        return {"next": self._next_lesson, **self._records._asdict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned; the fit follows from it.

        Args:
            state: columns of ``Records`` by name, which say how images were answered
                before they were learned; and ``next``, the number of the next clip.

        Raises:
            StateError: a tensor is missing or has another shape.
        """
        try:
            records = Records.of_state(state)
            next_lesson = int(state["next"])
        except KeyError as error:
            raise StateError(
                f"the state of the confidence lacks {error}; give what state_dict "
                "returned"
            ) from error
        self._records = records
        self._next_lesson = next_lesson
        self._fit = None


def _odds(fit: _Fit, closeness: Tensor, taught: Taught) -> Tensor:
    """Return logarithms of the odds that images show any class: ``(n,)``.

    They grow linearly with closeness, from the odds at the least closeness of what is
    named.

    Args:
        fit: what was fitted to earlier answers, with a prior.
        closeness: ``(n,)``, how close the images are to the nearest class.
        taught: how much; what the prior expects depends on it.
    """
    prior = fit.prior
    assert prior is not None
    below_mean = BELOW_MEAN * prior.known_deviation.at(taught)
    quantile = prior.known.at(taught) - below_mean
    least_closeness = quantile + fit.shift + fit.excess / 2  # of what is named
    # One class has the share CLEAR of the probability of any class, and STRICT in all.
    odds_of_least = _logit(STRICT / CLEAR)
    slope = prior.slope.at(taught)
    return odds_of_least + slope * (closeness - least_closeness)


def _logit(share: float) -> float:
    """Return the logarithm of the odds of a probability."""
    return math.log(share / (1 - share))


def _limited(odds: Tensor, apart: Tensor, least: float) -> Tensor:
    """Return odds that are low where a cosine is below a threshold: ``(n,)``."""
    return torch.minimum(odds, ODDS_APART + STEEPNESS_APART * (apart - least))


def _confidence(fit: _Fit, records: Records) -> Tensor:
    """Return the probability of the most likely class of each record, ``(n,)``."""
    shares = records.shares(fit.temperature)
    if fit.prior is None:
        return shares
    taught = records.taught
    closeness = fit.prior.closeness(records.typicality, taught.shortage)
    odds = _odds(fit, closeness, taught)
    if fit.least_apart is not None:
        odds = _limited(odds, records.typicality[:, 2].double(), fit.least_apart)
    return shares * odds.sigmoid()


def _shift(prior: Prior, records: Records, taught: Taught) -> float:
    """Return by how much closer images of known classes are than the prior says.

    It is the difference between the 15 % quantiles of both, measured in deviations of
    the prior at the time of each record, and returned in units of closeness of now.

    Args:
        prior: counts as some lessons without a difference.
        records: images of known classes, as they were answered before they were
            learned.
        taught: how much was taught by now; what the prior expects depends on it.
    """
    if not len(records.labels):
        return 0.0
    then = records.taught  # at the time of each record
    closeness = prior.closeness(records.typicality, then.shortage)
    difference = closeness - prior.known.at(then)
    expected_deviation = prior.known_deviation.at(then)
    weights = _weights(records)
    quantile = _quantile(difference / expected_deviation, weights, REFUSED)
    shift = quantile + BELOW_MEAN  # the quantile of the prior is -BELOW_MEAN
    n_lessons = float(weights.sum())
    shift *= n_lessons / (n_lessons + LESSONS_OF_PRIOR)
    return shift * float(prior.known_deviation.at(taught))


def _mean_surplus(prior: Prior, records: Records) -> float:
    """Return by how much closer images of other classes are than the prior says.

    It is the mean over lessons; the prior counts as some without a difference.
    """
    then = records.taught  # at the time of each record
    closeness = prior.closeness(records.typicality, then.shortage)
    surplus = closeness - prior.strange.at(then)
    weights = _weights(records)
    return float((weights @ surplus) / (weights.sum() + LESSONS_OF_PRIOR))


def _mixed(expected: float, errs: Tensor, records: Records) -> float:
    """Return the rate of an error: its share among records, and the expected one.

    Args:
        expected: rate that the prior expects, which counts as some lessons.
        errs: ``(n,)`` bool, whether each record is an error.
        records: ``n`` of them; each lesson counts once.
    """
    weights = _weights(records)
    errors = float(weights @ errs.double()) + LESSONS_OF_RATES * expected
    return errors / (float(weights.sum()) + LESSONS_OF_RATES)


def _expected(fit: _Fit, strict: float, taught: Taught) -> Rates:
    """Return the rates of errors that follow from the prior and what moved it.

    Closeness is normally distributed, of known classes and of others. Things that look
    like a class are closer by ``ALIKE`` deviations of others. They are not moved where
    the known classes are less close than the prior says: few records say so by chance.
    Closeness alone decides: for half of all images, those of other things too, one
    class has more than 0.999 of the probability of all classes.

    Args:
        fit: what was fitted to the records.
        strict: confidence from which on a class is named, below 1.
        taught: how much; what the prior expects depends on it.
    """
    prior = fit.prior
    if prior is None:  # every image is named
        return Rates(refused=0.0, named=1.0, named_alike=1.0)
    # Closeness, relative to the mean of images of known classes.
    known = NormalDist(0.0, float(prior.known_deviation.at(taught)))
    apart = float(prior.strange.at(taught) - prior.known.at(taught))
    strange = NormalDist(apart, float(prior.strange_deviation.at(taught)))
    # A number that is added to a NormalDist moves its mean.
    alike = strange + ALIKE * strange.stdev + max(0.0, -fit.shift)
    # Closeness from which on a class is named, beyond the mean of known images.
    slope = float(prior.slope.at(taught))
    beyond_quantile = (_logit(strict) - _logit(STRICT / CLEAR)) / slope
    least_closeness = beyond_quantile - BELOW_MEAN * known.stdev
    # All are moved by the shift; by the excess others, and the threshold by half of it.
    return Rates(
        refused=known.cdf(least_closeness + fit.excess / 2),
        named=1 - strange.cdf(least_closeness - fit.excess / 2),
        named_alike=1 - alike.cdf(least_closeness - fit.excess / 2),
    )


def _temperature(records: Records, centre: float) -> float:
    """Return the temperature with the largest posterior density, to 0.1 %.

    The loss is the cross-entropy of the true classes, and that of a normal prior
    for the logarithm. Of 21 logarithms the best one is the middle of finer ones.

    Args:
        records: of images of known classes, as they were answered before they were
            learned.
        centre: of the prior: the logarithm of the most likely temperature without
            records.
    """
    weights = _weights(records)
    # A gap is the score of another class minus that of the true one, whose own is 0:
    # their logsumexp is the cross-entropy.
    gaps = functional.pad(records.gaps.double(), (1, 0))
    best = centre  # logarithm of the temperature
    step = 0.5
    while step > 1e-4:
        candidates = best + step * torch.linspace(-10, 10, 21, dtype=torch.float64)
        temperatures = candidates.exp()[:, None, None]
        cross_entropies = (gaps / temperatures).logsumexp(2)  # (candidates, records)
        prior_losses = ((candidates - centre) / DEVIATION).square() / 2
        losses = cross_entropies @ weights + prior_losses
        best = float(candidates[int(losses.argmin())])
        step /= 8
    return float(torch.tensor(best, dtype=torch.float32).exp())


def _quantile(values: Tensor, weights: Tensor, share: float) -> float:
    """Return the value below which a share of the weights is."""
    ordered, order = values.double().sort()
    below = weights[order].cumsum(0) / weights.sum()
    return float(ordered[int((below < share).sum())])


def _weights(records: Records) -> Tensor:
    """Return ``(n,)`` float64 weights with which each lesson counts once."""
    _, lessons, sizes = records.lessons.unique(return_inverse=True, return_counts=True)
    return 1 / sizes.double()[lessons]


def expected_calibration_error(
    probabilities: Tensor, correct: Tensor, bins: int = 15
) -> float:
    """Return the mean difference between confidence and accuracy.

    Over bins of equal width (Guo et al., ICML 2017). In each bin the difference of the
    means times its share of the images is the sum of differences by the number of all.

    Args:
        probabilities: ``(n,)``, the largest probability of each image.
        correct: ``(n,)`` bool, whether the answer is right.
        bins: number of bins; a probability on the border of two counts in the lower
            one.
    """
    probabilities = probabilities.double()
    bin_of_image = (probabilities * bins).ceil().long().clamp(1, bins) - 1
    difference = probabilities - correct.double()
    sum_of_bin = difference.new_zeros(bins).index_add_(0, bin_of_image, difference)
    return float(sum_of_bin.abs().sum() / len(difference))
