"""Learning without forgetting: distillation of the old answers on new images.

Li and Hoiem, ECCV 2016.
"""

from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.methods.replay import OldNetwork, distillation_loss
from crumb_avalanche.system.setting_ranges import NotNegative, Positive
from crumb_avalanche.training.batch_plugin import BatchPlugin


@register(
    "lwf",
    summary="distillation of the old plastic layers' answers on new images",
    source="Li and Hoiem, Learning without Forgetting, ECCV 2016",
    stores="the old plastic layers",
)
class StreamLwF(BatchPlugin):
    """Distils the plastic layers of the end of the latest experience (LwF, eq. 2).

    The distillation is over the classes they were trained on. Avalanche's plugin needs
    task labels, copies F as well and runs it a second time on every batch, and its old
    model applies dropout.

    Args:
        recipe: what the strategy is built from.
        alpha: weight of the distillation loss (lambda_o of LwF's authors: 1).
        temperature: temperature of both softmaxes (LwF's authors: 2).

    Attributes:
        old_network: the weights of these plastic layers, as float32; empty in the first
            experience.
        old_classes: the classes they were trained on.
    """

    state_names = ("old_classes", "old_network")
    class_numbers = ("old_classes",)

    def __init__(
        self,
        recipe: Recipe,
        *,
        alpha: NotNegative = 1.0,
        temperature: Positive = 2.0,
    ):
        super().__init__()
        self.alpha = alpha
        self.temperature = temperature
        self.old_network = OldNetwork(half=False)
        self.old_classes: list[int] = []

    def before_backward(self, strategy, **kwargs):
        """Add the distillation of the old answers, after the first experience."""
        if not self.old_network.state:
            return
        old_logits = self.old_network.logits(strategy.model, self.current.feature_map)
        loss = distillation_loss(
            strategy.mb_output, old_logits, self.old_classes, self.temperature
        )
        strategy.loss = strategy.loss + self.alpha * loss

    def after_training_exp(self, strategy, **kwargs):
        """Keep a copy of the plastic layers as the old network."""
        self.old_network.copy_from(strategy.model)
        self.old_classes = list(strategy.seen_classes.seen)
