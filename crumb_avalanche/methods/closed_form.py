"""Base class of all classifiers in closed form: statistics of features, plain torch."""

import copy
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from crumb_avalanche.methods.budgeted_statistics import BudgetedStatistics
from crumb_avalanche.methods.class_tensors import grown
from crumb_avalanche.methods.feature_statistics import CPU, isolated
from crumb_avalanche.methods.typicality import Typicality
from crumb_avalanche.models.extraction import LARGEST_FEATURE, without_autocast
from crumb_avalanche.system.named_values import attributes
from crumb_avalanche.system.tensor_file import storage_bytes, tensors_of
from crumb_avalanche.system.value_types import StateError

# Score of a class without images: below all others, and finite in float32.
NO_DENSITY = -1e30
LOWEST_SCORE = -1e29  # of a class with images
Form = TypeVar("Form", bound="ClosedForm")


class SolvedClassifier(nn.Module):
    """The classifier of a closed form as it is now, in operations that exporters trace.

    What is learned is constant in it. It maps ``(B, D)`` float features to ``(B, C)``
    float64 scores of the ``C`` classes with images.
    """

    def __init__(self, form: "ClosedForm", solution: Any):
        super().__init__()
        self.form = form
        self.solution = solution

    def forward(self, features: Tensor) -> Tensor:
        """Score ``(B, D)`` features: ``(B, C)`` float64, see the class."""
        with without_autocast(features.device):
            scores = self.form._answers(features.double(), self.solution)
            return scores.clamp_min(LOWEST_SCORE)


class _TypicalSpace(NamedTuple):
    """What ``ClosedForm.typicality`` caches, and what it was computed from."""

    solution: Any
    nothing: Tensor | None
    space: Any


class ClosedForm(BudgetedStatistics):
    """Statistics of features that are updated batch by batch, and score new features.

    They are merged, saved and loaded; see ``FeatureStatistics`` for how a subclass
    declares its settings, and ``BudgetedStatistics`` for their bytes.

    ``grow`` adds classes at any time; the statistics do not depend on when. The time of
    ``update`` depends on the batch and the number of features, not on the number of
    classes. The first ``scores`` after a change solves for the classifier and caches
    its solution, which ``copy.deepcopy`` shares.

    Attributes:
        moments: arguments of ``FeatureMoments`` that differ from its defaults in a run,
            where they are settings, too.
        temperature: divisor of the scores: the softmax of the quotients are the
            probabilities of the classes. Values of subclasses are below the median of
            the best temperatures for held-out images of 40 of 50 classes of CIFAR-100
            and of Tiny-ImageNet, with features of SqueezeNet 1.0.
        apart_from_nothing: whether ``typicality`` sees images apart from those that
            show nothing.
        settings: arguments of the constructor by name; ``n_classes`` follows ``grow``.
    """

    moments: ClassVar[dict[str, Any]] = {}
    temperature: ClassVar[float] = 1.0
    apart_from_nothing: ClassVar[bool] = False
    # Settings in which statistics that are merged may differ.
    _free: ClassVar[frozenset[str]] = frozenset({"n_classes"})
    # Attributes that are replaced, never changed in place: copies share them.
    _cached_names: ClassVar[tuple[str, ...]] = ("_solution",)
    # What ``typicality`` caches; it may be outdated.
    _typical: _TypicalSpace | None = None
    # What ``derived_bytes`` depends on, and the bytes.
    _derived: tuple[Any, int] = (None, 0)

    def __deepcopy__(self: Form, memo: dict) -> Form:
        for name in (*self._cached_names, "_typical"):
            cached = getattr(self, name)
            memo[id(cached)] = cached
        copied = copy.copy(self)
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_typical": None}

    # What a subclass defines

    @abstractmethod
    def _update(self, features: Tensor, labels: Tensor) -> None:
        """Add at least one checked image: ``(B, D)`` float, ``(B,)`` int64."""

    @abstractmethod
    def _solve(self, seen: Tensor) -> Any:
        """Return what ``_answers`` needs.

        Args:
            seen: ``(n_classes,)`` bool, the classes with images, at least one.
        """

    @abstractmethod
    def _answers(self, features: Tensor, solution: Any) -> Tensor:
        """Score the ``C`` classes of a solution: ``(B, D)`` to ``(B, C)``, float64."""

    @abstractmethod
    def _merge(self, other: Any, labels: dict[int, int]) -> None:
        """Add classes of another instance with the same settings.

        Args:
            other: the other instance, which is not changed.
            labels: the number in this instance of each class of the other one.
        """

    def _typical_space(self, nothing: Tensor | None) -> Any:
        """Return what ``_typicality`` needs and is computed once after each change."""
        return None

    def _typicality(
        self, features: Tensor, space: Any, left_out: int | None
    ) -> Typicality:
        """Measure how typical images are of the classes; a default for subclasses.

        All three values of an image are its largest score, divided by the temperature.

        Args:
            features: ``(B, D)`` float64.
            space: what ``_typical_space`` returned, for subclasses; without effect.
            left_out: column of a class; the values are measured without it, too, as if
                it had not been learned. ``None`` for no class.

        Returns:
            The scores ``(B, C)`` of the classes with images, and the values ``(B, 3)``.
        """

        def values_of(scores: Tensor) -> Tensor:
            """Return values ``(B, 3)`` of scores ``(B, C)``."""
            largest_score = scores.amax(1, keepdim=True) / self.temperature
            return largest_score.expand(-1, 3)

        scores = self.classifier()(features)
        return Typicality.of_scores(scores, values_of, left_out)

    def _grow(self, n_classes: int) -> None:
        """Add classes up to a larger number."""
        for name in self.by_class:
            setattr(self, name, grown(getattr(self, name), n_classes))

    def _forget(self, label: int) -> None:
        """Remove a class that has images; with the last one, what all classes share."""
        for name in self.by_class:
            getattr(self, name)[label] = 0
        if not self.image_counts.any():
            for name in self.shared:
                getattr(self, name).zero_()

    @property
    def remains_after_forget(self) -> str:
        """What ``forget`` leaves of the images of a class, in words; maybe nothing."""
        return ""

    # Learning

    @isolated
    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add images to the statistics; the next scores solve for a new classifier.

        Args:
            features: ``(B, D)`` float, on the CPU; at most 1e12 in absolute value.
            labels: ``(B,)`` whole numbers, the classes, on the CPU.

        Raises:
            ValueError: a shape or type does not fit, a feature is not finite or too
                large, or there is no such class. The statistics are unchanged then.
        """
        self._check_batch(features, labels)
        if len(labels):
            self._update(features.detach(), labels.long())
            self._solution = None  # the cached one is outdated

    @isolated
    def grow(self, n_classes: int) -> None:
        """Add classes without images; scores of the other classes stay as they are.

        Args:
            n_classes: number of classes afterwards.

        Raises:
            ValueError: there are more classes already.
        """
        n_present = self.settings["n_classes"]
        if n_classes < n_present:
            raise ValueError(
                f"n_classes is {n_classes}, but there are {n_present} classes already; "
                "give at least as many, and remove single classes with forget"
            )
        self._grow(n_classes)
        self.settings["n_classes"] = n_classes

    @isolated
    def forget(self, label: int) -> None:
        """Remove all that is held of one class alone; it can be taught again.

        ``remains_after_forget`` names what a matrix shared by all classes keeps until
        the last class is removed.

        Raises:
            ValueError: there is no such class.
        """
        self._check_label(label)
        if self.image_counts[label]:
            self._forget(label)
            self._solution = None

    @isolated
    def merge(
        self, other: "ClosedForm", labels: Mapping[int, int] | None = None
    ) -> None:
        """Add the statistics of another instance of the same class and settings.

        The result is that of one instance trained on both parts, up to rounding, unless
        the class says otherwise.

        Args:
            other: the other instance, which is not changed; ``n_classes`` may differ.
            labels: the number in this instance of each class of ``other`` that has
                images; default the same numbers. Classes are added where a number needs
                it. Two classes may get the same number.

        Raises:
            StateError: the other instance has another class or other settings.
            ValueError: ``labels`` lacks a class, or has a negative number.
        """
        if type(other) is not type(self):
            raise StateError(
                f"{type(other).__name__} cannot be merged into {type(self).__name__}; "
                "give the same kind"
            )
        # Raises where they differ, but for the settings that are free to.
        self._check_settings(other.settings, verb="merged", free=self._free)
        new_labels = _new_labels(other.image_counts, labels)
        if not new_labels:
            return
        if other is self:
            other = copy.deepcopy(self)  # whose classes stay while these change
        n_needed = max(new_labels.values()) + 1
        self.grow(max(self.settings["n_classes"], n_needed))
        self._merge(other, new_labels)
        self._solution = None  # the cached one is outdated

    def keep_features(self, count: int) -> None:
        """Keep the last features; the statistics are of them alone from then on."""
        raise NotImplementedError(f"{type(self).__name__} drops no features")

    # Answering

    def scores(self, features: Tensor) -> Tensor:
        """Score the classes; the largest score is the answer.

        Args:
            features: ``(B, D)`` float, on the CPU; at most 1e12 in absolute value.

        Returns:
            ``(B, n_classes)`` float64; -1e30 (``NO_DENSITY``) for classes without
            images, and at least -1e29 for all others.

        Raises:
            ValueError: the shape does not fit, or a feature is not finite or too large.
            TypeError: ``_answers`` of a subclass returns another number of classes.
        """
        self._check_features(features)
        seen = self.image_counts > 0  # (n_classes,) bool, classes with images
        scores = torch.full((len(features), len(seen)), NO_DENSITY, dtype=torch.float64)
        if seen.any():
            classifier = self.classifier()  # solved for, or cached
            answers = classifier(features)
            expected_shape = (len(features), int(seen.sum()))
            if answers.shape != expected_shape:
                raise TypeError(
                    f"{type(self).__name__}._answers returns scores of the shape "
                    f"{tuple(answers.shape)}, not {expected_shape}: a column for each "
                    "class with images, as _solve gets them in seen; take these rows "
                    "alone, as self.sums[seen]"
                )
            scores[:, seen] = answers
        return scores

    def classifier(self) -> SolvedClassifier:
        """Return the classifier of the classes with images, at least one."""
        return SolvedClassifier(self, self.solution())

    @isolated
    def solution(self) -> Any:
        """Return what ``scores`` computes from, for the classes with images.

        There must be at least one.
        """
        if self._solution is None:  # only after a change
            self._solution = self._solve(self.image_counts > 0)
        return self._solution

    def typicality(
        self,
        features: Tensor,
        nothing: Tensor | None = None,
        left_out: int | None = None,
    ) -> Typicality:
        """Score images, and measure how typical they are of the classes with images.

        What "typical" means is the method's own: by default, the largest score. It
        tells images of known classes from others.

        Args:
            features: ``(B, D)`` float, on the CPU.
            nothing: ``(n, D)`` features of images that show nothing, as in
                ``MeansSpan.against_background``; for forms that are
                ``apart_from_nothing``.
            left_out: column of one of at least two classes with images; the values are
                measured without it, too, as if it had not been learned.

        Returns:
            Scores ``(B, C)`` of the ``C`` classes with images, and three values of each
            image, larger ones of more typical images.
        """
        # What does not depend on the images is computed once after each change.
        space = self._cached_typical_space(nothing)
        with without_autocast(CPU):
            return self._typicality(features.double(), space, left_out)

    @isolated
    def _cached_typical_space(self, nothing: Tensor | None) -> Any:
        """Return the space of ``_typical_space``, computed anew after each change."""
        solution = self.solution()  # another one after each change
        cached = self._typical
        if cached is not None:
            is_current = cached.solution is solution
            if is_current and cached.nothing is nothing:
                return cached.space
        space = self._typical_space(nothing)
        self._typical = _TypicalSpace(solution=solution, nothing=nothing, space=space)
        return space

    @property
    def derived_bytes(self) -> int:
        """Bytes of the solution that ``scores`` computes from, and caches.

        They depend on shapes and on which classes have images. Where these are as at
        the last measurement, its bytes are returned; else the classifier is solved for.
        """
        seen = self.image_counts > 0  # (n_classes,) bool, classes with images
        # What the bytes depend on; they are remembered, as solving takes time.
        shapes = seen.tolist(), [tensor.shape for tensor in self.tensors()]
        measured_shapes, measured_bytes = self._derived  # the last measurement
        if self._solution is None and measured_shapes == shapes:
            return measured_bytes
        if seen.any():
            self.solution()  # fills the cache
        cached = attributes(self, self._cached_names)
        cached_bytes = storage_bytes(tensors_of(cached))
        self._derived = shapes, cached_bytes
        return cached_bytes

    # Checks

    def _check_label(self, label: int) -> None:
        """Raise ``ValueError`` unless the statistics have room for a class."""
        n_classes = self.settings["n_classes"]
        if not 0 <= label < n_classes:
            raise ValueError(
                f"there is no class {label} among {n_classes} (from 0); add classes "
                "with grow"
            )

    def _check_batch(self, features: Tensor, labels: Tensor) -> None:
        """Raise ``ValueError`` for images that cannot be learned.

        Args:
            features: to be ``(B, length)`` of finite floats.
            labels: to be ``(B,)`` whole numbers of existing classes.
        """
        length = self.settings["length"]
        if labels.dim() != 1 or features.shape != (len(labels), length):
            raise ValueError(
                f"features have the shape {tuple(features.shape)} and labels "
                f"{tuple(labels.shape)}; give (B, {length}) and (B,)"
            )
        if labels.is_floating_point() or labels.dtype == torch.bool:
            raise ValueError(
                f"labels are {labels.dtype}; give whole numbers, such as torch.int64"
            )
        self._check_features(features)
        if len(labels):
            self._check_label(int(labels.min()))
            self._check_label(int(labels.max()))

    def _check_features(self, features: Tensor) -> None:
        """Raise ``ValueError`` unless features are ``(B, length)``, finite and small.

        At most ``LARGEST_FEATURE`` in absolute value, so that squares do not overflow.
        """
        length = self.settings["length"]
        if features.dim() != 2 or features.shape[1] != length:
            raise ValueError(
                f"features have the shape {tuple(features.shape)}; give (B, {length})"
            )
        is_usable = features.abs() <= LARGEST_FEATURE  # comparisons with NaN are false
        if not is_usable.all():
            row = int((~is_usable).any(1).nonzero()[0])
            first_bad = float(features[row][~is_usable[row]][0])
            raise ValueError(
                f"row {row} of the features holds {first_bad}; features must be finite "
                f"and at most {LARGEST_FEATURE:g} in absolute value: leave this image "
                "out"
            )


def _new_labels(
    image_counts: Tensor, labels: Mapping[int, int] | None
) -> dict[int, int]:
    """Return the new number of each class that is merged into another instance.

    Args:
        image_counts: ``(n_classes,)``, images of each class of the merged instance;
            classes without images are left out.
        labels: new number of each class, by its number in the merged instance; default
            the same numbers.

    Returns:
        The new number of each class with images, by its number in the merged instance.

    Raises:
        ValueError: ``labels`` lacks a class with images, or has a negative number.
    """
    with_images = image_counts.nonzero().flatten().tolist()
    if labels is None:
        return {label: label for label in with_images}
    for label in with_images:
        if label not in labels:
            raise ValueError(
                f"labels has no number for class {label}, which has images; give one "
                "for each class"
            )
    new_labels = {label: labels[label] for label in with_images}
    lowest = min(new_labels.values(), default=0)
    if lowest < 0:
        raise ValueError(f"labels holds {lowest}; give class numbers from 0")
    return new_labels
