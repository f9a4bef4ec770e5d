"""EWC, MAS and SI: penalties on changes of weights, without stored images.

They cover trainable weights and classes seen so far. ``statistics_bytes`` counts what they keep.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from avalanche.training.plugins import EWCPlugin, SupervisedPlugin
from avalanche.training.utils import copy_params_dict

from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.system.setting_ranges import InRange, NotNegative, Positive
from crumb_avalanche.system.tensor_bytes import tensor_bytes
from crumb_avalanche.training.avalanche_fixes import (
    PatchedMAS,
    PatchedSI,
    learning_view,
    parameters_of,
    values_of,
)
from crumb_avalanche.training.stream_strategy import StreamStrategy


def largest_importance(strategy, weight: float) -> float:
    """Return the importance above which gradient descent on ``weight * importance * shift ** 2`` overshoots.

    At this limit, a step returns to the old weight; at twice the limit, steps grow without bound. Importances are
    clamped to it, so that the paper's strengths do not diverge at other learning rates than the paper's.
    """
    rate = max(group["lr"] for group in strategy.optimizer.param_groups)
    return 0.5 / (weight * rate) if weight * rate > 0 else float("inf")


@dataclass(frozen=True)
class EWCSettings(InRange):
    """Settings of EWC.

    Attributes:
        weight: weight of the sum of Fisher information times squared shift (the paper's port: 100).
    """

    weight: NotNegative = 100.0


class StreamEWC(EWCPlugin):
    """Avalanche's EWC with the Fisher information measured through ``learning_view``, on the labels of the stream.

    Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", 2017, eq. 3 without the factor of one
    half. With true labels it is the empirical Fisher information; with the most probable ones (the paper's port) it is
    not a Fisher information.
    """

    def __init__(self, settings: EWCSettings):
        super().__init__(settings.weight)

    @property
    def statistics_bytes(self) -> int:
        """Bytes of importances and old weights: eight for a weight and experience."""
        kept = [*self.importances.values(), *self.saved_params.values()]
        return tensor_bytes(one.data for by_name in kept for one in by_name.values())

    def after_training_exp(self, strategy, **kwargs):
        with learning_view(strategy, strategy.seen_classes.mask) as view:
            super().after_training_exp(view, **kwargs)
        *earlier, latest = self.importances.values()
        limit = largest_importance(strategy, self.ewc_lambda)
        for name, importance in latest.items():
            held = sum((one[name].data for one in earlier), torch.zeros_like(importance.data))
            importance.data = importance.data.minimum((limit - held).clamp(min=0))

    def state_dict(self) -> dict:
        """Importances and old weights by experience."""
        return {
            "importances": {number: values_of(kept) for number, kept in self.importances.items()},
            "saved_params": {number: values_of(kept) for number, kept in self.saved_params.items()},
        }

    def load_state_dict(self, state: dict) -> None:
        """Load what ``state_dict`` returned."""
        for name, kept in (("importances", self.importances), ("saved_params", self.saved_params)):
            kept.clear()
            kept.update({number: parameters_of(values) for number, values in state[name].items()})


@dataclass(frozen=True)
class MASSettings(InRange):
    """Settings of MAS.

    Attributes:
        weight: weight of the sum of importance times squared shift (MAS's authors and the paper's port: 1).
    """

    weight: NotNegative = 1.0


class StreamMAS(PatchedMAS):
    """Avalanche's MAS with importances measured through ``learning_view`` and summed over the experiences.

    Aljundi et al., "Memory Aware Synapses", 2018, eq. 3 and 4. Avalanche's moving average forgets the importances of
    early experiences; the paper adds them up.
    """

    def __init__(self, settings: MASSettings):
        super().__init__(lambda_reg=settings.weight)

    @property
    def statistics_bytes(self) -> int:
        """Bytes of importances and old weights: eight for a weight."""
        return tensor_bytes(one.data for kept in (self.importance, self.params) for one in (kept or {}).values())

    def after_training_exp(self, strategy, **kwargs):
        seen = strategy.seen_classes.seen
        with learning_view(strategy, lambda logits: logits[:, seen]) as view:
            importance = self._get_importance(view)
            self.params = copy_params_dict(view.model)
        limit = largest_importance(strategy, self._lambda)
        for name, latest in importance.items():
            earlier = self.importance[name].data if self.importance else 0
            latest.data = (latest.data + earlier).clamp(max=limit)
        self.importance = importance


@dataclass(frozen=True)
class SISettings(InRange):
    """Settings of SI.

    Attributes:
        weight: weight of the sum of importance times squared shift (the paper's port: 0.01).
        damping: summand of the squared shift that a path integral is divided by (the paper's port: 0.1).
    """

    weight: NotNegative = 0.01
    damping: Positive = 0.1


class StreamSI(PatchedSI):
    """``PatchedSI`` with limited importances and a count of its bytes."""

    def __init__(self, settings: SISettings):
        super().__init__(settings.weight, settings.damping)
        self.weight = settings.weight

    @property
    def statistics_bytes(self) -> int:
        """Bytes of importances, their sums, path integrals, gradients and three copies of the weights: 28 each."""
        return tensor_bytes(self.kept)

    def after_training_exp(self, strategy, **kwargs):
        super().after_training_exp(strategy, **kwargs)
        for importance in self.ewc_data[1].values():
            importance.data = importance.data.clamp(max=largest_importance(strategy, self.weight))


def _builder(plugin: Callable[[Any], SupervisedPlugin]) -> Callable[[Recipe], StreamStrategy]:
    """Return a function that builds fine-tuning with a plugin that takes the method's settings."""

    def build(recipe: Recipe) -> StreamStrategy:
        return StreamStrategy(optimizer=recipe.optimizer(), **recipe.common(plugin(recipe.method)))

    return build


register(
    "ewc",
    summary="penalty on changes of weights by their Fisher information",
    source="Kirkpatrick et al., Overcoming catastrophic forgetting in neural networks, PNAS 2017",
    stores="importances and old weights of every experience",
    settings=EWCSettings,
)(_builder(StreamEWC))
register(
    "mas",
    summary="penalty on changes of weights by how much the outputs depend on them",
    source="Aljundi et al., Memory Aware Synapses: Learning what (not) to forget, ECCV 2018",
    stores="importances and old weights",
    settings=MASSettings,
)(_builder(StreamMAS))
register(
    "si",
    summary="penalty on changes of weights by their share in lowering the loss",
    source="Zenke et al., Continual Learning Through Synaptic Intelligence, ICML 2017",
    stores="importances, path integrals and old weights",
    settings=SISettings,
)(_builder(StreamSI))
