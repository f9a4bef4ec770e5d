"""What is known of answers before a learner has records of its own.

An image is judged by its *closeness*: the first two values of its typicality, added in
their units. Where they are cosines of a whitened space, what closeness says was
measured on streams for development, network by network::

    python experiments/known_prior.py --backbone NAME --weights WEIGHTS
"""

from typing import NamedTuple

import torch
from torch import Tensor

LEAST_DEVIATION = 1e-6  # a smaller one is of equal values


class Line(NamedTuple):
    """A value that is linear in the number of clips and of classes.

    Attributes:
        start: for one clip of each of many classes.
        by_clips: for each unit of the mean logarithm of the clips of each class.
        by_few: for the inverse of the number of classes.
    """

    start: float
    by_clips: float = 0.0
    by_few: float = 0.0

    def at(self, clips: Tensor | float, classes: Tensor | float) -> Tensor | float:
        """Return the value.

        Args:
            clips: mean logarithm of the clips of each class.
            classes: number of classes.
        """
        return self.start + self.by_clips * clips + self.by_few / classes


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

    def closeness(self, typicality: Tensor) -> Tensor:
        """Return the closeness of images, ``(n,)`` float64, from ``(n, 3)``."""
        return typicality[:, :2].double() @ torch.tensor(
            [1 / unit for unit in self.units], dtype=torch.float64
        )


# By network; nothing is known of others.
PRIORS = {
    "efficientnet_lite0": Prior(
        known=Line(start=0.8972, by_clips=0.125, by_few=-0.0541),
        strange=Line(start=0.6668, by_clips=0.1531, by_few=-0.2883),
        slope=Line(start=4.8205, by_clips=6.686),
        known_deviation=Line(start=0.2169, by_clips=-0.0879),
        strange_deviation=Line(start=0.2476, by_clips=-0.0506),
        temperature=Line(start=1.7114, by_clips=-1.302),
        of_one=Prior(
            known=Line(start=0.8213, by_clips=0.0526),
            strange=Line(start=0.506, by_clips=0.0586),
            slope=Line(start=10.9691, by_clips=0.0027),
            known_deviation=Line(start=0.1397, by_clips=-0.0393),
            strange_deviation=Line(start=0.1587, by_clips=0.0005),
            temperature=Line(start=0.0),
        ),
    ),
    "squeezenet1_0": Prior(
        known=Line(start=0.8052, by_clips=0.1267, by_few=0.0577),
        strange=Line(start=0.6095, by_clips=0.0889, by_few=0.1767),
        slope=Line(start=3.6489, by_clips=4.402),
        known_deviation=Line(start=0.1969, by_clips=-0.0504),
        strange_deviation=Line(start=0.2195, by_clips=-0.034),
        temperature=Line(start=1.9561, by_clips=-1.1445),
        of_one=Prior(
            known=Line(start=0.8542, by_clips=0.0145),
            strange=Line(start=0.6827, by_clips=0.0151),
            slope=Line(start=8.9033, by_clips=-0.0238),
            known_deviation=Line(start=0.0906, by_clips=-0.0097),
            strange_deviation=Line(start=0.1737, by_clips=-0.0116),
            temperature=Line(start=0.0),
        ),
    ),
}


def prior_of_records(typicality: Tensor, left_out: Tensor) -> Prior:
    """Return a prior for values in any units, from images of known classes.

    Images of other classes are at least two deviations less close. Where they are
    farther than four, a quarter of the distance is the deviation.

    Args:
        typicality: ``(n, 3)`` of images that were predicted before they were learned.
        left_out: ``(n, 3)``, without their class.
    """
    values = typicality[:, :2].double()
    units = values.std(0, correction=0).clamp_min(LEAST_DEVIATION)
    closeness = (values / units).sum(1)
    closeness_left_out = (left_out[:, :2].double() / units).sum(1)
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
        units=(float(units[0]), float(units[1])),
    )
