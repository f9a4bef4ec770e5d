"""What is known of answers before a learner has records of its own.

An image is judged by its *closeness*: the first two values of its typicality, added in
their units, or the second alone where classes have few images. Where they are cosines
of a whitened space, what closeness says was measured on streams for development,
network by network::

    python experiments/known_prior.py --backbone NAME --weights WEIGHTS
"""

from typing import NamedTuple

from torch import Tensor

LEAST_DEVIATION = 1e-6  # a smaller one is of equal values


class Taught(NamedTuple):
    """How much a learner was taught, or many learners: tensors of shape ``(n,)`` then.

    Attributes:
        mean_log_clips: mean logarithm of the clips of each class.
        classes: number of classes.
        shortage: of images; see ``shortage``.
    """

    mean_log_clips: Tensor | float
    classes: Tensor | float
    shortage: Tensor | float = 0.0


class Line(NamedTuple):
    """A value that is linear in what was taught.

    Attributes:
        start: for one clip of each of many classes.
        by_clips: for each unit of the mean logarithm of the clips of each class.
        by_few: for the inverse of the number of classes.
        by_shortage: for the shortage of images.
    """

    start: float
    by_clips: float = 0.0
    by_few: float = 0.0
    by_shortage: float = 0.0

    def at(self, taught: Taught) -> Tensor | float:
        """Return the value for what was taught."""
        return (
            self.start
            + self.by_clips * taught.mean_log_clips
            + self.by_few / taught.classes
            + self.by_shortage * taught.shortage
        )


class Prior(NamedTuple):
    """What is known of images before a learner has records.

    Attributes:
        known: mean closeness of new images of known classes.
        strange: mean closeness of images of other classes that look like them.
        slope: of the logarithm of the odds of a known class, by closeness.
        known_deviation, strange_deviation: of closeness.
        temperature: logarithm of the factor on the usual temperature.
        units: of the two values that are added.
        of_one: the prior of a learner with a single class, for which the first of the
            two values is 0; ``None`` uses this prior.
    """

    known: Line
    strange: Line
    slope: Line
    known_deviation: Line
    strange_deviation: Line
    temperature: Line
    units: tuple[float, float] = (1.0, 1.0)
    of_one: "Prior | None" = None

    def of_classes(self, count: int) -> "Prior":
        """Return the prior of a learner with so many classes."""
        if count == 1 and self.of_one is not None:
            return self.of_one
        return self

    def closeness(self, typicality: Tensor, shortage: Tensor | float) -> Tensor:
        """Return the closeness of images, ``(n,)`` float64; see ``closeness_of``."""
        return closeness_of(typicality, shortage, self.units)


def closeness_of(
    typicality: Tensor,
    shortage: Tensor | float,
    units: tuple[float, float] = (1.0, 1.0),
) -> Tensor:
    """Return the closeness of images, ``(n,)`` float64.

    Args:
        typicality: ``(n, 3)``, see ``Evidence``.
        shortage: of images of the classes: distances, the first of its values, say
            nothing where too few images tell what varies within a class.
        units: of the two values that are added.
    """
    distance, cosine = typicality[:, :2].double().unbind(1)
    unit_of_distance, unit_of_cosine = units
    return (1 - shortage) * distance / unit_of_distance + cosine / unit_of_cosine


# By network; nothing is known of others.
PRIORS = {
    "efficientnet_lite0": Prior(
        known=Line(start=0.8972, by_clips=0.125, by_few=-0.0541, by_shortage=-0.2127),
        strange=Line(
            start=0.6668, by_clips=0.1531, by_few=-0.2883, by_shortage=-0.0304
        ),
        slope=Line(start=4.8205, by_clips=6.686, by_shortage=0.3955),
        known_deviation=Line(start=0.2169, by_clips=-0.0879, by_shortage=-0.0803),
        strange_deviation=Line(start=0.2476, by_clips=-0.0506, by_shortage=-0.1227),
        temperature=Line(start=1.7114, by_clips=-1.302, by_shortage=1.6168),
        of_one=Prior(
            known=Line(start=0.8213, by_clips=0.0526, by_shortage=-0.1469),
            strange=Line(start=0.506, by_clips=0.0586, by_shortage=-0.0567),
            slope=Line(start=10.9691, by_clips=0.0027, by_shortage=-0.1391),
            known_deviation=Line(start=0.1397, by_clips=-0.0393, by_shortage=0.0085),
            strange_deviation=Line(start=0.1587, by_clips=0.0005, by_shortage=-0.0496),
            temperature=Line(start=0.0),
        ),
    ),
    "squeezenet1_0": Prior(
        known=Line(start=0.8052, by_clips=0.1267, by_few=0.0577, by_shortage=-0.0986),
        strange=Line(start=0.6095, by_clips=0.0889, by_few=0.1767, by_shortage=0.0162),
        slope=Line(start=3.6489, by_clips=4.402, by_shortage=-0.0173),
        known_deviation=Line(start=0.1969, by_clips=-0.0504, by_shortage=-0.0916),
        strange_deviation=Line(start=0.2195, by_clips=-0.034, by_shortage=-0.0997),
        temperature=Line(start=1.9561, by_clips=-1.1445, by_shortage=1.2657),
        of_one=Prior(
            known=Line(start=0.8542, by_clips=0.0145, by_shortage=-0.118),
            strange=Line(start=0.6827, by_clips=0.0151, by_shortage=-0.1064),
            slope=Line(start=8.9033, by_clips=-0.0238, by_shortage=-0.1843),
            known_deviation=Line(start=0.0906, by_clips=-0.0097, by_shortage=0.0308),
            strange_deviation=Line(start=0.1737, by_clips=-0.0116, by_shortage=-0.0239),
            temperature=Line(start=0.0),
        ),
    ),
}


def prior_of_records(typicality: Tensor, left_out: Tensor, shortage: Tensor) -> Prior:
    """Return a prior for values in any units, from images of known classes.

    Images of other classes are at least two deviations less close. Where they are
    farther than four, a quarter of the distance is the deviation.

    Args:
        typicality: ``(n, 3)`` of images that were predicted before they were learned.
        left_out: ``(n, 3)``, without their class.
        shortage: of images at that time, ``(n,)``.
    """
    values = typicality[:, :2].double()
    deviations = values.std(0, correction=0).clamp_min(LEAST_DEVIATION)
    units = (float(deviations[0]), float(deviations[1]))
    closeness = closeness_of(typicality, shortage, units)
    closeness_left_out = closeness_of(left_out, shortage, units)
    mean = float(closeness.mean())
    distance = mean - float(closeness_left_out.mean())
    deviation = float(closeness.std(correction=0))
    deviation = max(deviation, distance / 4, LEAST_DEVIATION)
    return Prior(
        known=Line(mean),
        strange=Line(mean - max(distance, 2 * deviation)),
        # Of the log-odds between two normal distributions of this deviation that are
        # two deviations apart.
        slope=Line(2 / deviation),
        known_deviation=Line(deviation),
        strange_deviation=Line(deviation),
        temperature=Line(0.0),
        units=units,
    )
