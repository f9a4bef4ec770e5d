"""EWC, MAS and SI: penalties on changes of weights, without stored images.

They cover trainable weights and classes seen so far. ``statistics_bytes`` counts what
they keep.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.models.penultimate import evaluating
from crumb_avalanche.system.setting_ranges import NotNegative, Positive
from crumb_avalanche.training.replay_step import in_replay_step
from crumb_avalanche.training.stateful import StatefulPlugin

Tensors = dict[str, Tensor]  # by the name of a weight


def learning(model: nn.Module) -> Tensors:
    """Return the trainable weights of a model."""
    return {
        name: weight
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }


def copies(weights: Tensors) -> Tensors:
    """Return copies of weights."""
    return {name: weight.detach().clone() for name, weight in weights.items()}


def zeros_like(weights: Tensors) -> Tensors:
    """Return zeros in the shapes of weights."""
    return {name: torch.zeros_like(weight) for name, weight in weights.items()}


def measured(
    strategy,
    loss: Callable[[Tensor, Tensor], Tensor],
    slope: Callable[[Tensor], Tensor],
) -> Tensors:
    """Return the mean, over the images of an experience, of the ``slope`` of the gradients of each image's loss.

    ``loss`` is a function of logits ``(1, classes)`` and labels ``(1,)``. The model is
    in evaluation mode meanwhile.
    """
    weights = learning(strategy.model)
    found, images = (
        zeros_like(weights),
        DataLoader(strategy.adapted_dataset, batch_size=1),
    )
    with evaluating(strategy.model):
        for image, label, *_ in images:
            strategy.optimizer.zero_grad()
            loss(
                strategy.model(image.to(strategy.device)), label.to(strategy.device)
            ).backward()
            for name, weight in weights.items():
                if weight.grad is not None:
                    found[name] += slope(weight.grad)
    strategy.optimizer.zero_grad()
    return {name: total / len(images) for name, total in found.items()}


class Penalty(StatefulPlugin):
    """Adds ``weight`` times the sum of importance times squared shift of the trainable weights to the loss.

    Attributes:
        weight: weight of the sum, a setting.
        held: importances and old weights, for each of the penalties that add up; eight
            bytes for each weight.
    """

    kept = ("held",)
    weight: float

    def __init__(self, recipe: Recipe):
        super().__init__()
        self.held: list[tuple[Tensors, Tensors]] = []

    def limit(self, strategy) -> float:
        """Return the importance above which gradient descent on ``weight * importance * shift ** 2`` overshoots.

        At this limit, a step returns to the old weight; at twice the limit, steps grow
        without bound. Importances are clamped to it, so that the paper's strengths do
        not diverge at other learning rates than the paper's.
        """
        rate = max(group["lr"] for group in strategy.optimizer.param_groups)
        return 0.5 / (self.weight * rate) if self.weight * rate > 0 else float("inf")

    def before_backward(self, strategy, **kwargs):
        weights, penalty = (
            learning(strategy.model),
            torch.zeros((), device=strategy.device),
        )
        for importance, old in self.held:
            for name, weight in weights.items():
                if name in importance:
                    penalty = (
                        penalty + (importance[name] * (weight - old[name]).pow(2)).sum()
                    )
        strategy.loss = strategy.loss + self.weight * penalty

    def state_dict(self) -> dict[str, Any]:
        device = next(
            (value.device.type for pair in self.held for value in pair[0].values()),
            "cpu",
        )
        return super().state_dict() | {"device": device}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(
            {name: _placed(value, state["device"]) for name, value in state.items()}
        )


def _placed(value: Any, device: str) -> Any:
    """Return copies of nested tensors on a device; those of four axes in channels-last memory, as weights are."""
    if isinstance(value, Tensor):
        order = torch.channels_last if value.dim() == 4 else torch.contiguous_format
        return value.clone(memory_format=order).to(device)
    if isinstance(value, dict):
        return {name: _placed(one, device) for name, one in value.items()}
    return (
        type(value)(_placed(one, device) for one in value)
        if isinstance(value, list | tuple)
        else value
    )


@register(
    "ewc",
    summary="penalty on changes of weights by their Fisher information",
    source="Kirkpatrick et al., Overcoming catastrophic forgetting in neural networks, PNAS 2017",
    stores="importances and old weights of every experience",
)
class StreamEWC(Penalty):
    """EWC with the Fisher information on the labels of the stream, and a penalty for each experience.

    Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", 2017,
    eq. 3 without the factor of one half. With true labels it is the empirical Fisher
    information; with the most probable ones (the paper's port) it is not a Fisher
    information. Avalanche's ``EWCPlugin`` squares gradients of batch means instead.

    Attributes:
        weight: weight of the sum of Fisher information times squared shift (the paper's
            port: 100).
    """

    weight: NotNegative = 100.0

    def after_training_exp(self, strategy, **kwargs):
        def loss(logits: Tensor, labels: Tensor) -> Tensor:
            return strategy._criterion(strategy.seen_classes.mask(logits), labels)

        limit = self.limit(strategy)
        latest = measured(strategy, loss, torch.square)
        for name, importance in latest.items():
            held = sum(
                (earlier[name] for earlier, _ in self.held),
                torch.zeros_like(importance),
            )
            latest[name] = importance.minimum((limit - held).clamp(min=0))
        self.held.append((latest, copies(learning(strategy.model))))


@register(
    "mas",
    summary="penalty on changes of weights by how much the outputs depend on them",
    source="Aljundi et al., Memory Aware Synapses: Learning what (not) to forget, ECCV 2018",
    stores="importances and old weights",
)
class StreamMAS(Penalty):
    """MAS with importances summed over the experiences, of outputs for classes seen.

    Aljundi et al., "Memory Aware Synapses", 2018, eq. 3 and 4. The moving average of
    Avalanche's ``MASPlugin`` forgets the importances of early experiences; the paper
    adds them up.

    Attributes:
        weight: weight of the sum of importance times squared shift (MAS's authors and
            the paper's port: 1).
    """

    weight: NotNegative = 1.0

    def after_training_exp(self, strategy, **kwargs):
        seen = strategy.seen_classes.seen
        latest = measured(
            strategy,
            lambda logits, labels: logits[:, seen].norm(dim=1).pow(2).mean(),
            torch.abs,
        )
        if self.held:
            latest = {
                name: importance + self.held[0][0][name]
                for name, importance in latest.items()
            }
        limit = self.limit(strategy)
        latest = {
            name: importance.clamp(max=limit) for name, importance in latest.items()
        }
        self.held = [(latest, copies(learning(strategy.model)))]


@register(
    "si",
    summary="penalty on changes of weights by their share in lowering the loss",
    source="Zenke et al., Continual Learning Through Synaptic Intelligence, ICML 2017",
    stores="importances, path integrals and old weights",
)
class StreamSI(Penalty):
    """SI with path integrals over the gradient of the loss alone.

    Zenke et al., "Continual Learning Through Synaptic Intelligence", 2017, eq. 3 to 5.
    In Avalanche's ``SynapticIntelligencePlugin`` the integral is over the gradient of
    loss and penalty together, importances may be negative, and on a CPU the weights
    that it saves are views of the live ones, so that every shift is 0.

    Attributes:
        weight: weight of the sum of importance times squared shift, c of eq. 4 (the
            paper's port: 0.01).
        damping: summand of the squared shift that a path integral is divided by, xi of
            eq. 5 (the paper's port: 0.1).
    """

    weight: NotNegative = 0.01
    damping: Positive = 0.1

    kept = ("total", "path")

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        # importances of all experiences, which may be negative
        self.total: Tensors = {}
        self.path: Tensors = {}  # integrals in this experience
        self._before: Tensors = {}  # weights and gradients of the loss, in an iteration
        self._gradients: Tensors = {}

    def before_training_exp(self, strategy, **kwargs):
        weights = learning(strategy.model)
        self.total = self.total or zeros_like(weights)
        self.path = zeros_like(weights)
        self.held = [
            (self.held[0][0] if self.held else zeros_like(weights), copies(weights))
        ]

    def before_training_iteration(self, strategy, **kwargs):
        self._before = copies(learning(strategy.model))

    @torch.no_grad()
    def after_backward(self, strategy, **kwargs):
        """Keep the gradient of the loss alone, before it is clamped."""
        if in_replay_step(strategy):
            return
        (importance, old), before = self.held[0], self._before
        for name, weight in learning(strategy.model).items():
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
            self._gradients[name] = gradient - 2 * self.weight * importance[name] * (
                before[name] - old[name]
            )

    @torch.no_grad()
    def after_training_iteration(self, strategy, **kwargs):
        for name, weight in learning(strategy.model).items():
            self.path[name] -= self._gradients[name] * (weight - self._before[name])
        self._before, self._gradients = {}, {}

    @torch.no_grad()
    def after_training_exp(self, strategy, **kwargs):
        ((importance, old),) = self.held
        limit = self.limit(strategy)
        for name, weight in learning(strategy.model).items():
            self.total[name] += self.path[name] / (
                (weight - old[name]).square() + self.damping
            )
            importance[name] = self.total[name].clamp(0, limit)
