"""What records of earlier answers say of the present classes, beside a prior."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.learner.prior import Prior, Taught, prior_of_records
from crumb_avalanche.learner.records import Records

# Confidence from which on a class is named, unless it is set, and the share of images
# of known classes that is less sure. Of shares of 0.1, 0.15 and 0.2 chosen in a
# simulation on the streams of ``experiments/known_prior.py``, which is not kept; an
# earlier rule was given up because it named too many look-alikes of ETH-80.
STRICT = 0.8
REFUSED = 0.15
# Probability below which an image is unknown in any case: less than 1 % of held-out
# images of CIFAR-100 and Tiny-ImageNet are below.
DOUBTFUL = 0.1
# Deviations from the mean of a normal distribution to the quantile of that share.
BELOW_MEAN = -NormalDist().inv_cdf(REFUSED)
LEAST_CLIPS = 5  # after which records count alone that are of the present classes
# Deviation of the logarithm of the temperature from that of the prior; of 1, 0.25 and
# 0.1 the best of these.
DEVIATION = 0.25
CLIPS_OF_PRIOR = 3.0  # as which it counts for how close images are
CLEAR = 0.95  # of the classes' probability, the share of the most likely one
# Largest log-odds of an image at LEAST_APART, and its growth beyond.
LOG_ODDS_APART = 0.0
STEEPNESS_APART = 100.0
REJECTED = 0.05  # share of images of known classes that are like images of nothing


@dataclass(frozen=True)
class RecordFit:
    """What was fitted to the records, for the classes that are known by now.

    Attributes:
        taught: how much they were taught.
        prior: see ``Prior``; ``None`` until there are records to make one of.
        temperature: factor on the usual temperature.
        shift: by how much closer than the prior says images of known classes are.
        excess: by how much closer beyond the shift images of other classes are.
        least_apart: cosine apart from what shows nothing, from which on an image may
            show something; ``None`` until five clips were recorded.
    """

    taught: Taught
    prior: Prior | None
    temperature: float
    shift: float = 0.0
    excess: float = 0.0
    least_apart: float | None = None

    @classmethod
    def of_records(
        cls,
        records: Records,
        images: Mapping[int, int],
        taught: Taught,
        prior: Prior | None,
        usual: float | None,
    ) -> "RecordFit":
        """Fit prior, temperature, shift and thresholds to the records.

        Args:
            records: how images were answered before they were learned.
            images: number of images of each class, by number of the class.
            taught: how much these classes were taught.
            prior: of the network; ``None`` makes one of the records, once they are
                enough.
            usual: see ``nothing.usual_threshold``.
        """
        of_known = records.of_known_classes
        present = records_of_present(of_known, images)
        n_clips = present.number_of_clips
        present_prior = prior
        if prior is None and n_clips >= LEAST_CLIPS:
            present_prior = prior_of_records(
                present.typicality, present.left_out, present.shortage.double()
            )
        centre = 0.0  # of the prior for the logarithm of the temperature
        if present_prior is not None:
            present_prior = present_prior.of_classes(len(images))
            centre = float(present_prior.temperature.at(taught))
        temperature = _temperature(present, centre)
        fit = cls(taught, present_prior, temperature)
        # What was recorded compares classes: it says nothing of a single one.
        if prior is not None and len(images) > 1:
            shift = _shift(prior, of_known, taught)
            surplus = _mean_surplus(prior, records.left_out_alone())
            fit = replace(fit, shift=shift, excess=max(0.0, surplus - shift))
        if usual is None or n_clips < LEAST_CLIPS:
            return fit
        apart_from_nothing = present.typicality[:, 2]
        least = _quantile(apart_from_nothing, present.weights, REJECTED)
        return replace(fit, least_apart=min(least, usual))

    def least_named(self, strict: float) -> float:
        """Return the probability from which on a class is named.

        Args:
            strict: that of the learner; see ``Confidence.known``.
        """
        if self.prior is None:
            return min(strict, DOUBTFUL)
        return strict

    def log_odds(self, typicality: Tensor, taught: Taught) -> Tensor:
        """Return logarithms of the odds that images show any class: ``(n,)`` float64.

        They grow linearly with closeness, from the odds at the least closeness of what
        is named.

        Args:
            typicality: ``(n, 3)``, of images; see ``Evidence``.
            taught: how much was taught when they were asked about.

        Raises:
            ValueError: there is no prior, so that nothing is known of the odds.
        """
        prior = self.prior
        if prior is None:
            raise ValueError("without a prior no odds are known; ask for it first")
        below_mean = BELOW_MEAN * prior.known_deviation.at(taught)
        quantile = prior.known.at(taught) - below_mean
        least_closeness = quantile + self.shift + self.excess / 2  # of what is named
        closeness = prior.closeness(typicality, taught.shortage)
        slope = prior.slope.at(taught)
        return LOG_ODDS_OF_LEAST + slope * (closeness - least_closeness)

    def confidences(self, records: Records) -> Tensor:
        """Return the probability of the most likely class of each record: ``(n,)``."""
        shares = records.shares(self.temperature)
        if self.prior is None:
            return shares
        log_odds = self.log_odds(records.typicality, records.taught)
        if self.least_apart is not None:
            apart = records.typicality[:, 2].double()
            log_odds = limited_log_odds(log_odds, apart, self.least_apart)
        return shares * log_odds.sigmoid()


def logit(share: float) -> float:
    """Return the logarithm of the odds of a probability."""
    return math.log(share / (1 - share))


# Of an image of the least closeness that is named: one class has the share CLEAR of the
# probability of any class, and STRICT in all.
LOG_ODDS_OF_LEAST = logit(STRICT / CLEAR)


def limited_log_odds(log_odds: Tensor, apart: Tensor, least: float) -> Tensor:
    """Return log-odds that are low where a cosine is below a threshold: ``(n,)``."""
    return torch.minimum(log_odds, LOG_ODDS_APART + STEEPNESS_APART * (apart - least))


def records_of_present(records: Records, images: Mapping[int, int]) -> Records:
    """Return the records from times with about as many images and classes as now.

    Then the class of the record had at least half of its present images, and there were
    at least half of the present classes. If these records are of fewer than
    ``LEAST_CLIPS`` clips, the number of classes does not count; if they still are,
    all records are returned.

    Args:
        records: of clips that were predicted before they were learned.
        images: number of images of each present class, by number of the class.
    """
    images_now = torch.tensor([images.get(c, 0) for c in records.labels.tolist()])
    has_many_images = 2 * records.images >= images_now
    has_many_classes = 2 * records.classes >= len(images)
    for mask in (has_many_images & has_many_classes, has_many_images):
        chosen = records.where(mask)
        if chosen.number_of_clips >= LEAST_CLIPS:
            return chosen
    return records


def _shift(prior: Prior, records: Records, taught: Taught) -> float:
    """Return by how much closer images of known classes are than the prior says.

    It is the difference between the 15 % quantiles of both, measured in deviations of
    the prior at the time of each record, and returned in units of closeness of now.

    Args:
        prior: counts as some clips without a difference.
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
    weights = records.weights
    quantile = _quantile(difference / expected_deviation, weights, REFUSED)
    shift = quantile + BELOW_MEAN  # the quantile of the prior is -BELOW_MEAN
    n_clips = float(weights.sum())
    shift *= n_clips / (n_clips + CLIPS_OF_PRIOR)
    return shift * float(prior.known_deviation.at(taught))


def _mean_surplus(prior: Prior, records: Records) -> float:
    """Return by how much closer images of other classes are than the prior says.

    It is the mean over clips; the prior counts as some without a difference.
    """
    then = records.taught  # at the time of each record
    closeness = prior.closeness(records.typicality, then.shortage)
    surplus = closeness - prior.strange.at(then)
    weights = records.weights
    return float((weights @ surplus) / (weights.sum() + CLIPS_OF_PRIOR))


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
    weights = records.weights
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
