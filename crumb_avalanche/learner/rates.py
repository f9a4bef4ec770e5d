"""How often a learner errs: known things refused, unknown things named."""

from statistics import NormalDist
from typing import NamedTuple

from torch import Tensor

from crumb_avalanche.learner.record_fit import (
    BELOW_MEAN,
    LOG_ODDS_OF_LEAST,
    RecordFit,
    logit,
)
from crumb_avalanche.learner.records import Records

CLIPS_OF_RATES = 10.0  # as which the expected rates count beside those recorded
# Deviations by which things that look much like a class are closer than other things
# are on average: no more of them are named than a learner says in all trials of each
# stream for development of ``experiments/named_unknown.py``. By 0.7 this holds in 96 %
# of those of groceries, and less is known of other streams.
ALIKE = 1.0


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


def mixed(expected: float, errs: Tensor, records: Records) -> float:
    """Return the rate of an error: its share among records, and the expected one.

    Args:
        expected: rate that the prior expects, which counts as some clips.
        errs: ``(n,)`` bool, whether each record is an error.
        records: ``n`` of them; each clip counts once.
    """
    weights = records.weights
    errors = float(weights @ errs.double()) + CLIPS_OF_RATES * expected
    # At most 1, which two sums that are rounded may exceed.
    return min(1.0, errors / (float(weights.sum()) + CLIPS_OF_RATES))


def expected_rates(fit: RecordFit, strict: float) -> Rates:
    """Return the rates of errors that follow from the prior and what moved it.

    Closeness is normally distributed, of known classes and of others. Things that look
    like a class are closer by ``ALIKE`` deviations of others. They are not moved where
    the known classes are less close than the prior says: few records say so by chance.
    Closeness alone decides: for half of all images, those of other things too, one
    class has more than 0.999 of the probability of all classes.

    Args:
        fit: what was fitted to the records.
        strict: confidence from which on a class is named, below 1.
    """
    prior = fit.prior
    taught = fit.taught
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
    beyond_quantile = (logit(strict) - LOG_ODDS_OF_LEAST) / slope
    least_closeness = beyond_quantile - BELOW_MEAN * known.stdev
    # All are moved by the shift; by the excess others, and the threshold by half of it.
    return Rates(
        refused=known.cdf(least_closeness + fit.excess / 2),
        named=1 - strange.cdf(least_closeness - fit.excess / 2),
        named_alike=1 - alike.cdf(least_closeness - fit.excess / 2),
    )
