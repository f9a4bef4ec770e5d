"""GEM: steps that do not raise the loss of any past experience, measured on a few of its images."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from crumb_avalanche.memory.selection import SelectionRule
from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.methods.registry import register
from crumb_avalanche.methods.replay import ImageMemoryPlugin
from crumb_avalanche.system.setting_ranges import NotNegative

# Added to the diagonal of the Gram matrix, relative to its largest eigenvalue: weights
# of gradients that repeat or oppose each other would be unbounded. Products that stay
# negative are projected away once more.
_RIDGE = 1e-10
_PRODUCT_TOLERANCE = 1e-9
_REFINEMENTS = 10


@dataclass
class ExperienceShares(SelectionRule):
    """Stores a uniform sample (reservoir) of each experience's images, with equal shares of the capacity.

    GEM's authors keep the last images, which in a stream of clips are of one clip and
    one class. Shares shrink as experiences come; a past experience gives up random
    memories. The groups of ``Slots`` are experiences here.

    Attributes:
        experience: number of the current experience.
        share: most memories of one experience.
        offered: images of the current experience so far.
    """

    every_class_holds_one = False

    experience: int = -1
    share: int = 0
    offered: int = 0

    def begin_experience(self, slots: Slots, coming, batch_size):
        experiences = self.experience + 2
        if experiences > slots.capacity:
            raise ValueError(
                f"mem_size={slots.capacity} cannot hold a memory of each of {experiences} experiences; raise mem_size "
                f"(or the budget) to at least {experiences}, or put more classes into an experience"
            )
        self.experience += 1
        self.offered = 0
        self.share = slots.capacity // experiences
        return slots.trim(self.share)

    def choose(self, slots, labels):
        chosen = []
        for position in range(len(labels)):
            self.offered += 1
            if slots.count(self.experience) == self.share:
                if slots.random.random() >= self.share / self.offered:
                    continue
                slots.release(self.experience)
            chosen.append((position, slots.take(self.experience)))
        return chosen

    def past(self, slots: Slots) -> list[list[int]]:
        """Return the slots of each past experience."""
        return [
            held
            for number, held in slots.by_class.items()
            if held and number != self.experience
        ]


def dual_solution(
    gram: np.ndarray, products: np.ndarray, least: np.ndarray
) -> np.ndarray:
    """Compute the weights of past gradients in GEM's step (eq. 12): minimise ``v P v / 2 + b v``, ``v >= least``.

    With ``P = A'A`` and ``v = u + least`` this is the non-negative least-squares
    problem ``min |A u - c|``. The authors add 0.001 to the diagonal of ``P`` at any
    scale, so that products of small gradients stay negative; here it is relative.

    Args:
        gram: ``P``, ``(t, t)`` float64, products of the past gradients with each other.
        products: ``b``, ``(t,)`` float64, their products with the present gradient.
        least: ``(t,)`` float64, not negative.
    """
    values, vectors = np.linalg.eigh(gram)
    roots = np.sqrt(values.clip(min=0) + _RIDGE * values[-1])
    linear = products + gram @ least
    return nnls(roots[:, None] * vectors.T, -(vectors.T @ linear) / roots)[0] + least


def project(gradient: Tensor, references: Tensor, margin: float = 0.0) -> Tensor:
    """The gradient nearest to the present one whose product with no past gradient is negative (eq. 8 to 12).

    Args:
        gradient: ``(n,)``, returned itself where no product is negative.
        references: ``(t, n)`` past gradients.
        margin: see ``GEMPlugin``; above 0 a corrected step goes along every past
            gradient.
    """
    past, present = references.double(), gradient.double()
    # Rows of length 1: gradients of an experience known by heart are tiny beside
    # others.
    lengths = past.norm(dim=1)
    past = past / lengths.clamp(min=torch.finfo(torch.float64).tiny)[:, None]
    products = (past @ present).cpu().numpy()
    if not (products < 0).any() or not np.isfinite(products).all():
        return gradient  # what is not finite is for the strategy's guard to report
    gram, least = (past @ past.T).cpu().numpy(), margin * lengths.cpu().numpy()
    tolerance = _PRODUCT_TOLERANCE * float(present.norm())
    for _ in range(_REFINEMENTS):
        weights = dual_solution(gram, products, least)
        present = present + torch.from_numpy(weights).to(past) @ past
        products, least = (past @ present).cpu().numpy(), np.zeros(len(gram))
        if (products >= -tolerance).all():
            break
    return present.to(gradient.dtype)


@register(
    "gem",
    summary="gradients are projected so that no past experience's loss rises",
    source="Lopez-Paz and Ranzato, Gradient Episodic Memory for Continual Learning, NeurIPS 2017",
    stores="raw images, an equal share for every experience",
)
class GEMPlugin(ImageMemoryPlugin):
    """Corrects each gradient by those of the past experiences' memories, before the step.

    At every step P runs forward and backward on the memories of each past experience,
    in training mode and with the loss over the classes seen so far. No gradients are
    kept, so the memories are all the bytes. Momentum, weight decay and clamping come
    after the correction, so the step may still go slightly against a past gradient;
    GEM's authors use none of them, the paper's port uses the first two.

    Attributes:
        margin: least weight of each past gradient in a corrected step,
            ``memory_strength`` of GEM's authors (0.5; the paper's port: 1).
    """

    margin: NotNegative = 0.5

    rule = ExperienceShares

    def after_backward(self, strategy, **kwargs):
        past = self.storage_policy.rule.past(self.storage_policy.slots)
        if not past:
            return
        weights = [
            weight for weight in strategy.model.parameters() if weight.requires_grad
        ]
        with strategy.model.stopwatch.measure("replay"):
            losses = (
                strategy._criterion(*self.memory_logits(strategy, torch.tensor(held)))
                for held in past
            )
            # Generators, so that one graph is held at a time.
            gradients = (
                torch.autograd.grad(loss, weights, allow_unused=True) for loss in losses
            )
            references = torch.stack([_flat(some, weights) for some in gradients])
            gradient = _flat([weight.grad for weight in weights], weights)
            corrected = project(gradient, references, self.margin)
            if corrected is not gradient:
                parts = corrected.split([weight.numel() for weight in weights])
                for weight, part in zip(weights, parts):
                    weight.grad = torch.empty_like(weight).copy_(
                        part.view_as(weight)
                    )  # in the weight's order of axes


def _flat(gradients, weights: list[Tensor]) -> Tensor:
    """Concatenate gradients, with zeros for weights without one."""
    pairs = zip(gradients, weights)
    return torch.cat(
        [(torch.zeros_like(w) if g is None else g).reshape(-1) for g, w in pairs]
    )
