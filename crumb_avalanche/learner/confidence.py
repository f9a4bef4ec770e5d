"""How sure answers are: probabilities of the classes, and of none of them.

Both follow from clips that were predicted before they were learned, and from a prior
that was measured on other streams.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.learner.evidence import Evidence
from crumb_avalanche.learner.nothing import LEAST_APART
from crumb_avalanche.learner.prior import Prior, Taught
from crumb_avalanche.learner.rates import Rates, expected_rates, mixed
from crumb_avalanche.learner.record_fit import (
    LEAST_CLIPS,
    RecordFit,
    limited_log_odds,
    records_of_present,
)
from crumb_avalanche.learner.records import Records
from crumb_avalanche.methods.shortage import shortage
from crumb_avalanche.system.value_types import StateError

CERTAIN = 40.0  # logarithm of odds, as a large number


class Confidence:
    """Probabilities of classes, from images that were predicted before learned.

    No image is held out. ``add_clip`` takes the records of each clip before the clip
    is learned: how its classes scored images that they had not seen yet, and how the
    other classes did alone, for which the image is of an unknown thing.

    The probability of class ``c`` is ``k p_c``. ``p`` is the softmax of the scores
    divided by a temperature, and ``k`` the probability that the image shows any class,
    a logistic function of its *closeness* to the classes; see ``Prior``. A class is
    named if its probability is at least the learner's ``strict``; by default of 0.8, 15
    % of the images of known classes are meant to be below.

    *Temperature*: maximum of the likelihood of the true classes, each clip counting
    once, with a normal prior of deviation 0.25 for its logarithm. Records from a time
    when their class had less than half of its present images, or when there were less
    than half of the present classes, do not count. If fewer than five clips are left,
    those of few classes count, too, and if need be all do.

    *Closeness*: the prior says how close images of known classes and of others are, by
    the number of clips and of classes. Both are moved by the difference between the 15
    % quantiles of the prior and of what was recorded of known classes, each clip
    counting once, the prior as three. If the classes are closer to each other than the
    prior says, images have to be closer by half as much: as many more of known classes
    are refused as fewer of others are named.

    *Nothing*: from five clips on, images are unknown whose cosine apart from what
    shows nothing is below that of 95 % of the records, of which no more than ``usual``
    is asked. Images that look like what was shown as nothing always are.

    Args:
        prior: of the network; ``None`` for values in other units than cosines. Then an
            image is of a known class as long as less than five clips were recorded,
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
        self._next_clip = 0  # number of the next clip that is recorded
        # Computed when it is needed, with what it was computed for.
        self._fit: tuple[Any, RecordFit] | None = None

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._records.labels)

    @property
    def number_of_clips(self) -> int:
        """Number of clips of known classes that were recorded."""
        return self._records.of_known_classes.number_of_clips

    @property
    def missing_clips(self) -> int:
        """Number of clips of known classes that a prior of records still lacks.

        Until there is one, unknown things are not told; 0 with one of the network.
        """
        if self.prior is not None:
            return 0
        return max(0, LEAST_CLIPS - self.number_of_clips)

    def add_clip(self, records: Records) -> None:
        """Add the records of a clip, as the next one.

        Leave out clips of an object that was learned before: they are easier than new
        objects. Images of which a single class is known are no records: it is always
        the answer.
        """
        clip_numbers = torch.full_like(records.clip_numbers, self._next_clip)
        records = records._replace(clip_numbers=clip_numbers).with_rivals()
        if len(records.labels):
            self._add(records)
            self._next_clip += 1

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
        return among_classes * self.log_odds(evidence).sigmoid().unsqueeze(1)

    def of_clip(self, evidence: Evidence) -> Tensor:
        """Return ``(1, C)`` probabilities for all images together, as those of a clip.

        Scores and logarithms of odds are means.
        """
        scores = self.calibrated(evidence).scores.mean(0, keepdim=True)
        return scores.softmax(1) * self.log_odds(evidence).mean().sigmoid()

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

    def log_odds(self, evidence: Evidence) -> Tensor:
        """Return logarithms of the odds that images show any class: ``(B,)`` float64.

        Those of images that look like what was shown as nothing are low.

        Args:
            evidence: how typical ``B`` images are of the classes.
        """
        fit = self._fit_for(evidence)  # to earlier answers; cached
        # Computed, where torch.full would be traced as a constant number of images.
        log_odds = 0 * evidence.typicality[:, 0] + CERTAIN
        if fit.prior is not None:
            log_odds = fit.log_odds(evidence.typicality, fit.taught)
        if fit.least_apart is not None:
            apart = evidence.typicality[:, 2]
            log_odds = limited_log_odds(log_odds, apart, fit.least_apart)
        if evidence.apart is not None:
            log_odds = limited_log_odds(log_odds, evidence.apart, LEAST_APART)
        return log_odds.clamp(-CERTAIN, CERTAIN)

    # Fitting

    def _fit_for(self, evidence: Evidence) -> RecordFit:
        """Return what was fitted for the classes that gave the evidence."""
        counts = zip(
            evidence.class_of_column.tolist(),
            evidence.image_counts.tolist(),
            strict=True,
        )
        return self._fit_of(dict(counts), evidence.mean_log_clips)

    def _fit_of(self, images: Mapping[int, int], mean_log_clips: float) -> RecordFit:
        """Return what is fitted to the records, cached till the classes change.

        Args:
            images: number of images that each class was learned from, by number of the
                class.
            mean_log_clips: mean logarithm of the clips of each class.
        """
        key = (dict(images), mean_log_clips)
        if self._fit is None or self._fit[0] != key:
            taught = Taught(
                mean_log_clips, len(images), shortage(list(images.values()))
            )
            fit = RecordFit.of_records(
                self._records, images, taught, self.prior, self.usual
            )
            self._fit = (key, fit)
        return self._fit[1]

    # Errors

    def rates(
        self, strict: float, images: Mapping[int, int], mean_log_clips: float
    ) -> Rates:
        """Return how often a learner with so many images of its classes errs.

        What was recorded counts beside the prior, each clip once. Of other things no
        less are named than the prior says: classes that are far apart tell little of
        what looks like one of them. How many are named of what does follows from the
        prior alone: records say what other classes look like, not what is to come.

        Args:
            strict: confidence from which on a class is named, below 1.
            images: of each class, by number; at least two.
            mean_log_clips: mean logarithm of the clips of each class.
        """
        fit = self._fit_of(images, mean_log_clips)
        known = records_of_present(self._records.of_known_classes, images)
        # Each image as if its class had not been taught.
        strange = records_of_present(self._records.left_out_alone(), images)
        least = fit.least_named(strict)  # probability from which on a class is named
        is_refused = fit.confidences(known) < least
        is_named = fit.confidences(strange) >= least
        expected = expected_rates(fit, strict)  # by the prior alone
        named = max(expected.named, mixed(expected.named, is_named, strange))
        return Rates(
            refused=mixed(expected.refused, is_refused, known),
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
        self._add(other._records.renumbered(mine_of_theirs, self._next_clip))
        self._next_clip += other._next_clip

    def state_dict(self) -> dict[str, Any]:
        """Return the columns of the records by name, and ``next``.

        ``next`` is the number of the clip that is recorded next.
        """
        return {"next": self._next_clip, **self._records._asdict()}

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
            next_clip = int(state["next"])
        except KeyError as error:
            raise StateError(
                f"the state of the confidence lacks {error}; give what state_dict "
                "returned"
            ) from error
        self._records = records
        self._next_clip = next_clip
        self._fit = None
