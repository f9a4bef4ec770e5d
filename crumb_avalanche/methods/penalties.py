"""EWC, MAS and SI: penalties on changes of weights, without stored images.

They cover trainable weights and classes seen so far. ``statistics_bytes`` counts what
they keep.
"""

from collections.abc import Callable, Mapping
from itertools import starmap
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.models.layers import CentredLinear, trainable, undamped
from crumb_avalanche.models.penultimate import evaluating
from crumb_avalanche.system.setting_ranges import NotNegative, Positive
from crumb_avalanche.training.replay_step import in_replay_step
from crumb_avalanche.training.stateful import StatefulPlugin

Tensors = dict[str, Tensor]  # by the name of a weight


def copies(weights: Mapping[str, Tensor]) -> Tensors:
    """Return copies of weights."""
    return {name: weight.detach().clone() for name, weight in weights.items()}


def zeros_like(weights: Mapping[str, Tensor]) -> Tensors:
    """Return zeros in the shapes of weights."""
    return {name: torch.zeros_like(weight) for name, weight in weights.items()}


def moved(tensors: Mapping[str, Tensor], device: torch.device) -> Tensors:
    """Return tensors on a device: the very ones that lie there."""
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def mean_importances(
    strategy,
    loss: Callable[[Tensor, Tensor], Tensor],
    importance: Callable[[Tensor], Tensor],
) -> Tensors:
    """Return how important each weight is, on average over an experience's images.

    Gradients are of one image at a time, since that of a batch is the mean of theirs.
    The model is in evaluation mode meanwhile, and a ``CentredLinear`` head damps no
    gradient.

    Args:
        strategy: gives the model and the experience; the gradients are 0 afterwards.
        loss: a function of logits ``(1, classes)`` and labels ``(1,)``.
        importance: a function of a weight's gradient for an image, such as its square.

    Returns:
        A tensor of the shape of each trained weight, by name.
    """
    weights = trainable(strategy.model)
    totals = zeros_like(weights)
    loader = DataLoader(strategy.adapted_dataset, batch_size=1)
    with evaluating(strategy.model), undamped(strategy.model):
        for image, label, *_ in loader:
            strategy.optimizer.zero_grad()
            logits = strategy.model(image.to(strategy.device))
            label = label.long().to(strategy.device)
            loss(logits, label).backward()
            for name, weight in weights.items():
                if weight.grad is not None:
                    totals[name] += importance(weight.grad)
    strategy.optimizer.zero_grad()
    return {name: total / len(loader) for name, total in totals.items()}


class Anchor(NamedTuple):
    """What a penalty pulls weights to.

    Attributes:
        importance: of each weight.
        weights: their old values.
    """

    importance: Tensors
    weights: Tensors


class Penalty(StatefulPlugin):
    """Adds ``weight`` times the sum of importance times squared shift to the loss.

    The shift is that of the trainable weights.

    Args:
        recipe: what the strategy is built from.
        weight: weight of the sum.

    Attributes:
        anchors: one for each of the penalties that add up; eight bytes for each
            weight.
    """

    state_names: ClassVar[tuple[str, ...]] = ("anchors",)

    def __init__(self, recipe: Recipe, *, weight: NotNegative):
        super().__init__()
        self.weight = weight
        self.anchors: list[Anchor] = []

    def limit(self, strategy) -> float:
        """Return the importance above which gradient descent overshoots.

        It descends ``weight * importance * shift ** 2``. At this limit, a step returns
        to the old weight; at twice the limit, steps grow without bound. Importances are
        clamped to it, so that the paper's strengths do not diverge at other learning
        rates than the paper's.
        """
        rate = max(group["lr"] for group in strategy.optimizer.param_groups)
        strength = self.weight * rate
        if strength > 0:
            return 0.5 / strength
        return float("inf")

    def before_training_exp(self, strategy, **kwargs):
        """Move the anchors of a loaded state to the device of the strategy."""
        self.anchors = [
            Anchor(
                importance=moved(anchor.importance, strategy.device),
                weights=moved(anchor.weights, strategy.device),
            )
            for anchor in self.anchors
        ]

    def before_backward(self, strategy, **kwargs):
        """Add the penalty on the shift of the weights to the loss."""
        weights = trainable(strategy.model)
        penalty = torch.zeros((), dtype=torch.float32, device=strategy.device)
        for anchor in self.anchors:
            for name, weight in weights.items():
                if name in anchor.importance:
                    squared_shift = (weight - anchor.weights[name]).pow(2)
                    penalties = anchor.importance[name] * squared_shift
                    penalty = penalty + penalties.sum()
        strategy.loss = strategy.loss + self.weight * penalty

    def state_dict(self) -> dict[str, Any]:
        """Return the anchors as plain values."""
        return super().state_dict() | {"anchors": list(map(tuple, self.anchors))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a copy of what ``state_dict`` returned, of any device."""
        state = _copied(state)
        state["anchors"] = list(starmap(Anchor, state["anchors"]))
        super().load_state_dict(state)


def _copied(value: Any) -> Any:
    """Return copies of the tensors of a nested state.

    Those of four axes are in channels-last memory, as weights are.

    Args:
        value: a tensor, dict, list or tuple of such values, or a plain value, which is
            returned itself.
    """
    if isinstance(value, Tensor):
        memory_format = torch.contiguous_format
        if value.dim() == 4:
            memory_format = torch.channels_last
        return value.clone(memory_format=memory_format)
    if isinstance(value, dict):
        return {name: _copied(nested) for name, nested in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(nested) for nested in value]
    return value


@register(
    "ewc",
    summary="penalty on changes of weights by their Fisher information",
    source=(
        "Kirkpatrick et al., Overcoming catastrophic forgetting in neural networks, "
        "PNAS 2017"
    ),
    stores="importances and old weights of every experience",
)
class StreamEWC(Penalty):
    """EWC with the Fisher information on the labels, and a penalty for each experience.

    Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", 2017,
    eq. 3 without the factor of one half. With true labels it is the empirical Fisher
    information; with the most probable ones (the paper's port) it is not a Fisher
    information. Avalanche's ``EWCPlugin`` squares gradients of batch means instead.

    Args:
        recipe: what the strategy is built from.
        weight: weight of the sum of Fisher information times squared shift (the paper's
            port: 100).
    """

    def __init__(self, recipe: Recipe, *, weight: NotNegative = 100.0):
        super().__init__(recipe, weight=weight)

    def after_training_exp(self, strategy, **kwargs):
        """Remember the weights and their importance: the Fisher information (EWC).

        It is the mean over images of the squared gradient of the loss. Both become an
        anchor, from which later experiences are penalised for moving the weights.
        """
        if not len(strategy.adapted_dataset):
            return  # no images, of which there is no mean

        def image_loss(logits: Tensor, labels: Tensor) -> Tensor:
            """Compute the loss over the classes seen so far, of one image."""
            return strategy._criterion(strategy.seen_classes.mask(logits), labels)

        # Importance above which gradient descent on the penalty overshoots.
        limit = self.limit(strategy)
        fisher_information = mean_importances(
            strategy, loss=image_loss, importance=torch.square
        )
        importances: Tensors = {}
        for name, information in fisher_information.items():
            sum_of_anchors = torch.zeros_like(information)
            for anchor in self.anchors:
                sum_of_anchors = sum_of_anchors + anchor.importance[name]
            # The penalties add up, and so do their limits.
            limit_left = (limit - sum_of_anchors).clamp(min=0)
            importances[name] = information.minimum(limit_left)
        weights = copies(trainable(strategy.model))
        self.anchors.append(Anchor(importance=importances, weights=weights))


@register(
    "mas",
    summary="penalty on changes of weights by how much the outputs depend on them",
    source=(
        "Aljundi et al., Memory Aware Synapses: Learning what (not) to forget, ECCV "
        "2018"
    ),
    stores="importances and old weights",
)
class StreamMAS(Penalty):
    """MAS with importances summed over the experiences, of outputs for classes seen.

    Aljundi et al., "Memory Aware Synapses", 2018, eq. 3 and 4. The moving average of
    Avalanche's ``MASPlugin`` forgets the importances of early experiences; the paper
    adds them up.

    Args:
        recipe: what the strategy is built from.
        weight: weight of the sum of importance times squared shift (MAS's authors and
            the paper's port: 1).
    """

    def __init__(self, recipe: Recipe, *, weight: NotNegative = 1.0):
        super().__init__(recipe, weight=weight)

    def after_training_exp(self, strategy, **kwargs):
        """Remember the weights and the sum of their importances so far (MAS).

        The importance in an experience is the mean over images of the absolute gradient
        of the outputs' squared length. Both are the anchor, from which later
        experiences are penalised for moving the weights.
        """
        if not len(strategy.adapted_dataset):
            return  # no images, of which there is no mean
        seen = strategy.seen_classes.seen  # columns of the classes

        def squared_length(logits: Tensor, labels: Tensor) -> Tensor:
            """Compute the squared length of logits ``(1, classes)``."""
            return logits[:, seen].norm(dim=1).pow(2).mean()

        # Importance above which gradient descent on the penalty overshoots.
        limit = self.limit(strategy)
        new_importances = mean_importances(
            strategy, loss=squared_length, importance=torch.abs
        )
        importances: Tensors = {}
        for name, importance in new_importances.items():
            if self.anchors:
                importance = importance + self.anchors[0].importance[name]
            importances[name] = importance.clamp(max=limit)
        weights = copies(trainable(strategy.model))
        self.anchors = [Anchor(importance=importances, weights=weights)]


@register(
    "si",
    summary="penalty on changes of weights by their share in lowering the loss",
    source=(
        "Zenke et al., Continual Learning Through Synaptic Intelligence, ICML 2017"
    ),
    stores="importances, path integrals and old weights",
)
class StreamSI(Penalty):
    """SI with path integrals over the gradient of the loss alone.

    Zenke et al., "Continual Learning Through Synaptic Intelligence", 2017, eq. 3 to 5.
    In Avalanche's ``SynapticIntelligencePlugin`` the integral is over the gradient of
    loss and penalty together, importances may be negative, and on a CPU the weights
    that it saves are views of the live ones, so that every shift is 0.

    Args:
        recipe: what the strategy is built from.
        weight: weight of the sum of importance times squared shift, c of eq. 4 (the
            paper's port: 0.01).
        damping: summand of the squared shift that a path integral is divided by, xi of
            eq. 5 (the paper's port: 0.1).

    Attributes:
        total: importances of all experiences, which may be negative.
        path: integrals in this experience.
    """

    state_names: ClassVar[tuple[str, ...]] = ("total", "path")

    def __init__(
        self,
        recipe: Recipe,
        *,
        weight: NotNegative = 0.01,
        damping: Positive = 0.1,
    ):
        super().__init__(recipe, weight=weight)
        self.damping = damping
        self.total: Tensors = {}
        self.path: Tensors = {}
        # Weights before the step of an iteration, and gradients of its loss.
        self._weights_before: Tensors = {}
        self._gradients: Tensors = {}

    def before_training_exp(self, strategy, **kwargs):
        """Begin the path integrals, and pull weights to their values of now."""
        super().before_training_exp(strategy, **kwargs)
        weights = trainable(strategy.model)
        if not self.total:
            self.total = zeros_like(weights)
        self.total = moved(self.total, strategy.device)
        self.path = zeros_like(weights)
        importance = zeros_like(weights)
        if self.anchors:
            importance = self.anchors[0].importance
        self.anchors = [Anchor(importance=importance, weights=copies(weights))]

    def before_training_iteration(self, strategy, **kwargs):
        """Remember the weights before the step."""
        self._weights_before = copies(trainable(strategy.model))

    @torch.no_grad()
    def after_backward(self, strategy, **kwargs):
        """Keep the gradient of the loss without the penalty, before it is clamped.

        It is that of the weights, minus that of the penalty ``strength * importance *
        shift ** 2``, where ``self.weight`` is the strength, and the shift that of the
        weights before this step, which the optimizer has not taken yet. The path
        integral of the experience is computed from it after the step. Below a
        ``CentredLinear`` head, the gradient of the loss is the damped one divided by
        the damping.
        """
        if in_replay_step(strategy):
            return
        anchor = self.anchors[0]
        model = strategy.model
        head = model.plastic_layers.get_submodule(model.head)
        damping = 1.0  # of the gradient below the head
        if isinstance(head, CentredLinear):
            damping = head.DAMPING
        for name, weight in trainable(model).items():
            gradient = weight.grad
            if gradient is None:
                gradient = torch.zeros_like(weight)
            shift = self._weights_before[name] - anchor.weights[name]
            penalty_gradient = 2 * self.weight * anchor.importance[name] * shift
            loss_gradient = gradient - penalty_gradient
            if not name.startswith(f"plastic_layers.{model.head}."):
                loss_gradient = loss_gradient / damping
            self._gradients[name] = loss_gradient

    @torch.no_grad()
    def after_training_iteration(self, strategy, **kwargs):
        """Add the step to the path integrals: minus gradient times shift."""
        for name, weight in trainable(strategy.model).items():
            step = weight - self._weights_before[name]
            self.path[name] -= self._gradients[name] * step
        self._weights_before = {}
        self._gradients = {}

    @torch.no_grad()
    def after_training_exp(self, strategy, **kwargs):
        """Add the path integrals to the importances of the weights (eq. 5)."""
        (anchor,) = self.anchors
        limit = self.limit(strategy)
        for name, weight in trainable(strategy.model).items():
            squared_shift = (weight - anchor.weights[name]).square()
            self.total[name] += self.path[name] / (squared_shift + self.damping)
            anchor.importance[name] = self.total[name].clamp(0, limit)
