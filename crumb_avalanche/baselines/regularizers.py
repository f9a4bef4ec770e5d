"""EWC, SI, MAS and LwF: nothing of the stream is stored; old weights, or old answers, are held on to.

Only weights that learn are held, and only classes seen so far count. What is kept is told as ``statistics_bytes``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from avalanche.training.plugins import EWCPlugin, SupervisedPlugin
from avalanche.training.utils import copy_params_dict
from torch import Tensor, nn

from crumb_avalanche.baselines.entry import Entry, Recipe
from crumb_avalanche.baselines.exemplars import OldNetwork
from crumb_avalanche.baselines.penalty_settings import EWCSettings, LwFSettings, MASSettings, SISettings
from crumb_avalanche.system.tensor_bytes import tensor_bytes
from crumb_avalanche.training.avalanche_fixes import (
    PatchedMAS,
    PatchedSI,
    learning_view,
    parameters_of,
    values_of,
)
from crumb_avalanche.training.batch_plugin import BatchPlugin
from crumb_avalanche.training.stream_strategy import StreamStrategy


def largest_importance(strategy, weight: float) -> float:
    """The importance beyond which gradient descent on ``weight * importance * shift ** 2`` steps over the old weight.

    Its steps would grow without end where the importance is twice that. So strong a weight is held within a step or two
    at this limit already. Importances are cut off there, lest the paper's strengths diverge at learning rates other
    than the paper's.
    """
    rate = max(group["lr"] for group in strategy.optimizer.param_groups)
    return 0.5 / (weight * rate) if weight * rate > 0 else float("inf")


class StreamEWC(EWCPlugin):
    """The host's EWC, its Fisher information measured as ``learning_view`` says, on the labels of the stream.

    Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", 2017, eq. 3 without its one half. With
    true labels the Fisher information is the empirical one; with the model's likeliest (the paper's port) it is none.

    Args:
        settings: see ``EWCSettings``.
    """

    def __init__(self, settings: EWCSettings):
        mode, decay = ("online", settings.decay) if settings.online else ("separate", None)
        super().__init__(settings.weight, mode=mode, decay_factor=decay)

    @property
    def statistics_bytes(self) -> int:
        """Importances and old weights: eight bytes a weight and experience, or a weight if ``online``."""
        kept = [*self.importances.values(), *self.saved_params.values()]
        return tensor_bytes(one.data for by_name in kept for one in by_name.values())

    def after_training_exp(self, strategy, **kwargs):
        with learning_view(strategy, strategy.seen_classes.mask) as view:
            super().after_training_exp(view, **kwargs)
        *earlier, latest = self.importances.values()  # one alone if online
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


class StreamMAS(PatchedMAS):
    """The host's MAS, its importances measured as ``learning_view`` says, and summed over the experiences.

    Aljundi et al., "Memory Aware Synapses", 2018, eq. 3 and 4. The host's own moving average forgets the importances of
    early experiences, which the paper adds up.

    Args:
        settings: see ``MASSettings``.
    """

    def __init__(self, settings: MASSettings):
        super().__init__(lambda_reg=settings.weight)
        self.decay = settings.decay

    @property
    def statistics_bytes(self) -> int:
        """Importances and old weights: eight bytes a weight."""
        return tensor_bytes(one.data for kept in (self.importance, self.params) for one in (kept or {}).values())

    def after_training_exp(self, strategy, **kwargs):
        seen = strategy.seen_classes.seen
        with learning_view(strategy, lambda logits: logits[:, seen]) as view:
            importance = self._get_importance(view)
            self.params = copy_params_dict(view.model)
        limit = largest_importance(strategy, self._lambda)
        for name, latest in importance.items():
            earlier = self.decay * self.importance[name].data if self.importance else 0
            latest.data = (latest.data + earlier).clamp(max=limit)
        self.importance = importance


class StreamSI(PatchedSI):
    """The host's SI, mended, with its bytes told.

    Args:
        settings: see ``SISettings``.
    """

    def __init__(self, settings: SISettings):
        super().__init__(settings.weight, settings.damping)
        self.weight = settings.weight

    @property
    def statistics_bytes(self) -> int:
        """Importances, their sums, path integrals, gradients and three copies of the weights: 28 bytes a weight."""
        return tensor_bytes(self.kept)

    def after_training_exp(self, strategy, **kwargs):
        super().after_training_exp(strategy, **kwargs)
        for importance in self.ewc_data[1].values():
            importance.data = importance.data.clamp(max=largest_importance(strategy, self.weight))


def distillation_loss(logits: Tensor, old_logits: Tensor, classes: Sequence[int], temperature: float) -> Tensor:
    """Kullback-Leibler divergence of the answers over some classes from the old ones, averaged over the images.

    Its gradient is that of the modified cross-entropy of LwF (eq. 2), but it is 0 where nothing was forgotten.

    Args:
        logits, old_logits: ``(B, n)``; a gradient flows to the first only.
        classes: which of the ``n`` outputs take part in both softmaxes.
        temperature: that logits are divided by.
    """
    answers = (logits[:, classes] / temperature).log_softmax(1)
    old_answers = (old_logits[:, classes] / temperature).log_softmax(1)
    return nn.functional.kl_div(answers, old_answers, reduction="batchmean", log_target=True)


class StreamLwF(BatchPlugin):
    """Distils the plastic layers as they were after the latest experience, over the classes that they had seen.

    Li and Hoiem, "Learning without Forgetting", 2016. The host's plugin needs task labels, copies F too and runs it a
    second time on every batch, and its old model drops out units as in training.

    Args:
        settings: see ``LwFSettings``.

    Attributes:
        old_network: the weights of the plastic layers then, as float32; empty in the first experience.
        old_classes: that it was trained on.
    """

    def __init__(self, settings: LwFSettings):
        super().__init__()
        self.settings = settings
        self.old_network = OldNetwork(half=False)
        self.old_classes: list[int] = []

    @property
    def statistics_bytes(self) -> int:
        """The old plastic layers."""
        return self.old_network.bytes

    def before_backward(self, strategy, **kwargs):
        if not self.old_network.state:
            return
        old = self.old_network.logits(strategy.model, self.batch.feature_map)
        loss = distillation_loss(strategy.mb_output, old, self.old_classes, self.settings.temperature)
        strategy.loss = strategy.loss + self.settings.alpha * loss

    def after_training_exp(self, strategy, **kwargs):
        self.old_network.take(strategy.model)
        self.old_classes = list(strategy.seen_classes.seen)

    def state_dict(self):
        return super().state_dict() | {
            "old_classes": list(self.old_classes),
            "old_network": self.old_network.state_dict(),
        }

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.old_classes = list(state["old_classes"])
        self.old_network.load_state_dict(state["old_network"])


def _builder(plugin: Callable[[Any], SupervisedPlugin]) -> Callable[[Recipe], StreamStrategy]:
    """What builds fine-tuning with a plugin that takes the method's settings."""

    def build(recipe: Recipe) -> StreamStrategy:
        return StreamStrategy(optimizer=recipe.optimizer(), **recipe.common(plugin(recipe.method)))

    return build


EWC = Entry(
    name="ewc",
    summary="weights are held by their Fisher information",
    source="Kirkpatrick et al., Overcoming catastrophic forgetting in neural networks, PNAS 2017",
    stores="importances and old weights of every experience",
    build=_builder(StreamEWC),
    method=EWCSettings,
)
SI = Entry(
    name="si",
    summary="weights are held by their share in lowering the loss",
    source="Zenke et al., Continual Learning Through Synaptic Intelligence, ICML 2017",
    stores="importances, path integrals and old weights",
    build=_builder(StreamSI),
    method=SISettings,
)
MAS = Entry(
    name="mas",
    summary="weights are held by how much the outputs depend on them",
    source="Aljundi et al., Memory Aware Synapses: Learning what (not) to forget, ECCV 2018",
    stores="importances and old weights",
    build=_builder(StreamMAS),
    method=MASSettings,
)
LWF = Entry(
    name="lwf",
    summary="answers of the old plastic layers on new images are kept (distillation)",
    source="Li and Hoiem, Learning without Forgetting, ECCV 2016",
    stores="the old plastic layers",
    build=_builder(StreamLwF),
    method=LwFSettings,
)
