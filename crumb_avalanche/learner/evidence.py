"""How images relate to the classes of a closed form, and where in an image it shows."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from crumb_avalanche.learner.prior import Taught
from crumb_avalanche.methods.closed_form import ClosedForm
from crumb_avalanche.methods.shortage import shortage

NOT_FINITE = (
    "the statistics of the classes give scores that are not finite; teach anew, or "
    "load a copy"
)
MOST_CLIPS = 4  # of a class; what more of them change was not measured


# Attributes of ``Evidence`` that have a row for each image.
ROWS = ("scores", "typicality", "apart", "left_out")


class Evidence(NamedTuple):
    """Scores and distances of ``B`` images, from a closed form of ``C`` classes.

    Attributes:
        scores: ``(B, C)`` float64, divided by the usual temperature of the closed form.
        class_of_column: ``(C,)`` int64, number of the class of each column of
            ``scores``, in increasing order.
        image_counts: ``(C,)`` int64, images that each class was learned from.
        typicality: ``(B, 3)`` float64, larger for images like those of the classes: the
            closeness to the nearest class relative to that of an image of any class;
            the cosine between the image and the class mean of nearest direction; and
            that cosine apart from images that show nothing, where there are any. In a
            whitened space the first two are in units of a cosine, to be added.
        apart: ``(B,)`` float64, the last one without the directions of what was shown
            as nothing; ``None`` if nothing was.
        left_out: ``(B, 3)`` float64, the typicality if one class had not been learned;
            ``None`` if none was left out.
        clip_counts: ``(C,)`` int64, clips that each class was learned from; ``None``
            counts as one each.
    """

    scores: Tensor
    class_of_column: Tensor
    image_counts: Tensor
    typicality: Tensor
    apart: Tensor | None = None
    left_out: Tensor | None = None
    clip_counts: Tensor | None = None

    @property
    def mean_log_clips(self) -> float:
        """Mean logarithm of the clips of each class; see ``mean_log``."""
        if self.clip_counts is None:
            return 0.0
        return mean_log(self.clip_counts.tolist())

    @property
    def taught(self) -> Taught:
        """How much the classes were taught that gave the evidence."""
        image_counts = self.image_counts.tolist()
        return Taught(
            mean_log_clips=self.mean_log_clips,
            classes=len(image_counts),
            shortage=shortage(image_counts),
        )

    @property
    def best(self) -> int:
        """The class with the largest mean score: the answer for all images together."""
        best_column = self.scores.mean(0).argmax()
        return int(self.class_of_column[best_column])

    @classmethod
    def of_looks(
        cls, evidence_of_looks: "Sequence[Evidence]", views_of_looks: Sequence[int]
    ) -> "Evidence":
        """Join the evidence of several looks at the same images.

        Args:
            evidence_of_looks: from forms that know the same classes; its rows are
                views, image by image.
            views_of_looks: number of views of each look.

        Returns:
            A row for each view of each image: of the first image those of all looks in
            order, then of the next one.
        """

        def joined(name: str) -> Tensor:
            """Join an attribute of all looks, image by image."""
            by_image = []
            for of_look, views in zip(evidence_of_looks, views_of_looks, strict=True):
                by_image.append(getattr(of_look, name).unflatten(0, (-1, views)))
            return torch.cat(by_image, 1).flatten(0, 1)

        first = evidence_of_looks[0]
        names = [name for name in ROWS if getattr(first, name) is not None]
        counts = first.image_counts // views_of_looks[0]  # images, not their views
        return first._replace(
            image_counts=counts, **{name: joined(name) for name in names}
        )

    def mean_of_views(self, weights: Tensor) -> "Evidence":
        """Return the evidence of ``n`` images: weighted means over their views.

        Args:
            weights: ``(V,)``, with the sum 1, of the views that each image has here:
                ``n * V`` rows, image by image.
        """
        if len(weights) == 1:
            return self
        means = {}
        for name in ROWS:
            values = getattr(self, name)
            if values is not None:
                by_view = values.reshape(-1, len(weights), values[0].numel())
                mean = (by_view * weights[:, None]).sum(1)
                means[name] = mean.reshape(-1, *values.shape[1:])
        return self._replace(**means)


def mean_log(clips: Sequence[int]) -> float:
    """Return the mean logarithm of the clips of each class, of which 4 count at most.

    Args:
        clips: of each class, at least one class.
    """
    logs = [math.log(min(max(1, count), MOST_CLIPS)) for count in clips]
    return sum(logs) / len(logs)


def evidence(
    statistics: ClosedForm,
    features: Tensor,
    nothing: Tensor | None = None,
    left_out: int | None = None,
) -> Evidence:
    """Compute scores of images, and how typical they are of the classes.

    What typical means is the method's own: see ``ClosedForm.typicality``.

    Args:
        statistics: a closed form with at least one class.
        features: ``(B, D)`` float, on the CPU.
        nothing: ``(n, D)`` features of images that show nothing, ``DRAWN`` of them
            drawn, the others shown; for forms that are ``apart_from_nothing``.
        left_out: a class without which typicality is measured, too; without effect
            where it has no images, or no other class has.

    Raises:
        ValueError: the closed form has no class yet, or its scores are not finite: no
            images have such statistics.
    """
    classes = statistics.image_counts.nonzero().flatten()  # those with images
    if not len(classes):
        raise ValueError(
            "the closed form has no class yet; update it with images first"
        )
    column = None  # of the class that is left out
    if left_out is not None and len(classes) > 1 and left_out in classes:
        column = int((classes < left_out).sum())  # columns are in the order of numbers
    try:
        typicality = statistics.typicality(features, nothing, column)
    except torch.linalg.LinAlgError as error:
        raise ValueError(NOT_FINITE) from error
    scores = typicality.scores
    values = typicality.values
    if not bool(scores.isfinite().all() and values.isfinite().all()):
        raise ValueError(NOT_FINITE)
    return Evidence(
        scores=scores / statistics.temperature,
        class_of_column=classes,
        image_counts=statistics.image_counts[classes].long(),
        typicality=values,
        apart=typicality.apart,
        left_out=typicality.left_out,
    )
