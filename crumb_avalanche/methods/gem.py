"""GEM: steps that do not raise the loss of any past experience.

Lopez-Paz and Ranzato, "Gradient Episodic Memory for Continual Learning", NeurIPS 2017.
The loss is measured on a few images of each past experience.
"""

from collections.abc import Sequence, Sized
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from crumb_avalanche.memory.selection import SelectionRule
from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.methods.replay import ImageMemoryPlugin
from crumb_avalanche.models.layers import trainable
from crumb_avalanche.system.setting_ranges import NotNegative

# Added to the diagonal of the Gram matrix, relative to its largest eigenvalue: weights
# of gradients that repeat or oppose each other would be unbounded. Products that stay
# negative are projected away once more.
_RIDGE = 1e-10
_PRODUCT_TOLERANCE = 1e-9
_REFINEMENTS = 10


@dataclass
class ExperienceShares(SelectionRule):
    """Stores a uniform sample (reservoir) of each experience's images.

    Experiences have equal shares of the capacity. GEM's authors keep the last images,
    which in a stream of clips are of one clip and one class. Shares shrink as
    experiences come; a past experience gives up random memories. The groups of
    ``Slots`` are experiences here.

    Attributes:
        experience: number of the current experience, from 0; -1 before the first.
        share: most memories of one experience.
        offered: images of the current experience so far.
    """

    every_class_holds_one = False
    groups_are_classes = False

    experience: int = field(init=False, default=-1)
    share: int = field(init=False, default=0)
    offered: int = field(init=False, default=0)

    def begin_experience(
        self, slots: Slots, coming: dict[int, int], batch_size: int
    ) -> list[int]:
        """Give each experience, with the one that begins, an equal share of the slots.

        Memories are grouped by experience, not by class.

        Args:
            slots: of the buffer; past experiences lose what is above their share.
            coming, batch_size: without effect.

        Returns:
            The slots that are freed.

        Raises:
            ValueError: there are fewer slots than experiences.
        """
        experience = self.experience + 1  # counted from 0
        n_experiences = experience + 1
        check_room_for_experiences(slots.capacity, n_experiences)
        self.experience = experience
        self.offered = 0
        self.share = slots.capacity // n_experiences
        return slots.trim(self.share)

    def choose(self, slots: Slots, labels: Sequence[int]) -> list[tuple[int, int]]:
        """Choose images so that all of the experience are stored equally likely.

        It is reservoir sampling: once the share of the experience is full, an image
        replaces a random one with the probability ``share / images offered``.

        Args:
            slots: of the buffer, grouped by experience; changed in place.
            labels: of the batch, of which only the number matters.

        Returns:
            Position in the batch and slot of each image that is stored.
        """
        chosen = []
        for position in range(len(labels)):
            self.offered += 1
            is_full = slots.count(self.experience) == self.share
            if is_full:
                is_stored = slots.random.random() < self.share / self.offered
                if not is_stored:
                    continue
                slots.release(self.experience)
            chosen.append((position, slots.take(self.experience)))
        return chosen

    def past_slots(self, slots: Slots) -> list[list[int]]:
        """Return the slots of each past experience that has memories."""
        return [
            members
            for experience, members in slots.by_class.items()
            if members and experience != self.experience
        ]


def check_room_for_experiences(capacity: int, n_experiences: int) -> None:
    """Raise ValueError for less than a memory of each experience."""
    if n_experiences > capacity:
        raise ValueError(
            f"mem_size={capacity} cannot hold a memory of each of "
            f"{n_experiences} experiences; raise mem_size (or the budget) to at "
            f"least {n_experiences}, or put more classes into an experience"
        )


def dual_solution(
    gram: np.ndarray, products: np.ndarray, least: np.ndarray
) -> np.ndarray:
    """Compute the weights ``v`` of the past gradients in GEM's step (eq. 12).

    They minimise ``v P v / 2 + b v``, ``v >= least``. With ``P = A'A`` and ``v = u +
    least`` this is the non-negative least-squares problem ``min |A u - c|``. The
    authors add 0.001 to the diagonal of ``P`` at any scale, so that products of small
    gradients stay negative; here it is relative.

    Args:
        gram: ``P``, ``(t, t)`` float64, products of the past gradients with each other.
        products: ``b``, ``(t,)`` float64, their products with the present gradient.
        least: ``(t,)`` float64, least weight of each past gradient, not negative.

    Returns:
        ``v``, ``(t,)`` float64.
    """
    eigenvalues, vectors = np.linalg.eigh(gram)
    roots = np.sqrt(eigenvalues.clip(min=0) + _RIDGE * eigenvalues[-1])
    root_of_gram = roots[:, None] * vectors.T  # A
    linear = products + gram @ least  # of the problem in u
    target = -(vectors.T @ linear) / roots  # c
    above_least, _ = nnls(root_of_gram, target)  # u
    return above_least + least


def project(gradient: Tensor, references: Tensor, margin: float = 0.0) -> Tensor:
    """Return the nearest gradient that raises no past loss (eq. 8 to 12).

    Its products with all past gradients are at least 0. It is the gradient plus a
    weighted sum of the past ones.

    Args:
        gradient: ``(n,)`` of all weights, returned itself where no product is negative.
        references: ``(t, n)``, gradients of the losses of ``t`` past experiences.
        margin: least weight of each past gradient in that sum; above 0 a corrected step
            goes along every past gradient.

    Returns:
        ``(n,)`` of the dtype of ``gradient``.
    """
    past = references.double()
    projected = gradient.double()
    # Rows of length 1: gradients of an experience known by heart are tiny beside
    # others.
    lengths = past.norm(dim=1)
    past = past / lengths.clamp(min=torch.finfo(torch.float64).tiny)[:, None]
    products = (past @ projected).cpu().numpy()
    if not np.isfinite(products).all():
        return gradient  # which the strategy's guard reports
    raises_a_past_loss = (products < 0).any()
    if not raises_a_past_loss:
        return gradient
    gram = (past @ past.T).cpu().numpy()
    least_weights = margin * lengths.cpu().numpy()
    tolerance = _PRODUCT_TOLERANCE * float(projected.norm())
    # Products that the ridge leaves negative are projected away once more.
    for _ in range(_REFINEMENTS):
        weights = dual_solution(gram, products, least_weights)
        projected = projected + torch.from_numpy(weights).to(past) @ past
        products = (past @ projected).cpu().numpy()
        least_weights = np.zeros(len(gram))  # the margin is taken once
        if (products >= -tolerance).all():
            break
    return projected.to(gradient.dtype)


@register(
    "gem",
    summary="gradients are projected so that no past experience's loss rises",
    source=(
        "Lopez-Paz and Ranzato, Gradient Episodic Memory for Continual Learning, "
        "NeurIPS 2017"
    ),
    stores="raw images, an equal share for every experience",
    each_experience=True,
)
class GEMPlugin(ImageMemoryPlugin):
    """Corrects each gradient by those of the past experiences' memories.

    At every step P runs forward and backward on the memories of each past experience,
    in training mode and with the loss over the classes seen so far. No gradients are
    kept, so the memories are all the bytes. Momentum, weight decay and clamping come
    after the correction, so the step may still go slightly against a past gradient;
    GEM's authors use none of them, the paper's port uses the first two.

    Args:
        recipe: what the strategy is built from.
        margin: least weight of each past gradient in a corrected step,
            ``memory_strength`` of GEM's authors (0.5; the paper's port: 1).
    """

    def __init__(self, recipe: Recipe, *, margin: NotNegative = 0.5):
        self.shares = ExperienceShares()
        super().__init__(recipe, self.shares)
        self.margin = margin

    def after_train_dataset_adaptation(self, strategy, **kwargs):
        """Raise ValueError for more experiences than memories, before any is learned.

        The stream says how many come, if it has a length.
        """
        super().after_train_dataset_adaptation(strategy, **kwargs)
        stream = getattr(strategy.experience, "origin_stream", None)
        if isinstance(stream, Sized):
            check_room_for_experiences(self.storage_policy.max_size, len(stream))

    def before_training_exp(self, strategy, **kwargs):
        """Begin an experience, also one that begins again after a stop or an error."""
        self.shares.experience = strategy.clock.train_exp_counter - 1
        super().before_training_exp(strategy, **kwargs)

    def after_backward(self, strategy, **kwargs):
        """Turn the gradient so that the loss of no earlier experience increases.

        The gradients of all trained weights are replaced by the nearest ones whose
        products with the gradient on the memories of each past experience are at least
        0.
        """
        # Slots of the memories, a list for each past experience.
        slots_of_experiences = self.shares.past_slots(self.storage_policy.slots)
        if not slots_of_experiences:
            return
        weights = list(trainable(strategy.model).values())
        with strategy.model.stopwatch.measure("replay"):
            past_gradients = [
                self._gradient_of_memories(strategy, torch.tensor(slots), weights)
                for slots in slots_of_experiences
            ]
            gradient = _flat_gradient([weight.grad for weight in weights], weights)
            projected = project(gradient, torch.stack(past_gradients), self.margin)
            is_changed = projected is not gradient
            if is_changed:
                _set_gradients(weights, projected)

    def _gradient_of_memories(
        self, strategy, slots: Tensor, weights: list[Tensor]
    ) -> Tensor:
        """Compute the gradient of the loss of memories, ``(n,)``."""
        logits, labels = self.memory_logits(strategy, slots)
        loss = strategy._criterion(logits, labels)
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        return _flat_gradient(gradients, weights)


def _flat_gradient(gradients: Sequence[Tensor | None], weights: list[Tensor]) -> Tensor:
    """Concatenate gradients, with zeros for weights without one: ``(n,)``."""
    flat = []
    for gradient, weight in zip(gradients, weights, strict=True):
        if gradient is None:
            gradient = torch.zeros_like(weight)
        flat.append(gradient.reshape(-1))
    return torch.cat(flat)


def _set_gradients(weights: list[Tensor], gradient: Tensor) -> None:
    """Set the gradients of weights to the parts of a ``(n,)`` one."""
    gradients = gradient.split([weight.numel() for weight in weights])
    for weight, flat in zip(weights, gradients, strict=True):
        # In the weight's order of axes.
        weight.grad = torch.empty_like(weight).copy_(flat.view_as(weight))
