"""Dark experience replay (DER++): raw images and the logits that the network had for them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from crumb_avalanche.memory.buffers import ImageBuffer
from crumb_avalanche.methods.registry import register
from crumb_avalanche.methods.replay import ImageMemoryPlugin, draw
from crumb_avalanche.models.penultimate import evaluating
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.setting_ranges import NotNegative
from crumb_avalanche.training.plugins import UNSEEN_LOGIT


class LogitImageBuffer(ImageBuffer):
    """Raw images and their logits when they were seen, ``3 * h * w + 4 * classes`` bytes each.

    A row has the pixels, then the float32 logits; those of classes not seen by then are
    -10,000.

    Attributes:
        offered: function from positions in the batch that is stored next to their ``(n,
            classes)`` logits.
    """

    offered: Callable[[Sequence[int]], Tensor]

    @staticmethod
    def item_bytes(model):
        return ImageBuffer.item_bytes(model) + 4 * model.n_classes

    def to_rows(self, batch, positions, model):
        pixels = super().to_rows(batch, positions, model).flatten(1)
        logits = self.offered(list(positions)).float().contiguous()
        return torch.cat([pixels, logits.view(torch.uint8)], 1)

    def to_maps(self, rows, model):
        size = model.image_size
        return super().to_maps(
            rows[:, : 3 * size**2].unflatten(1, (3, size, size)), model
        )

    def logits(self, slots: Tensor, model: SplitModel) -> Tensor:
        """Return ``(n, classes)`` float32 logits of some slots, on the model's device."""
        tail = self.rows[slots][:, 3 * model.image_size**2 :]
        # A copy, since a view of a part of a row may not be aligned.
        return (
            tail.clone(memory_format=torch.contiguous_format)
            .view(torch.float32)
            .to(model.pixel_mean.device)
        )


@register(
    "der",
    summary="raw images and their logits from a reservoir (DER++)",
    source="Buzzega et al., Dark Experience for General Continual Learning, NeurIPS 2020",
    stores="raw images, and a float32 logit of each for every class",
)
class DarkReplayPlugin(ImageMemoryPlugin):
    """Trains on ``CE(new) + alpha * MSE(logits of a draw, as stored) + beta * CE(another draw)``, in one step.

    Attributes:
        alpha: weight of the loss of the stored logits, with its authors' value.
        beta: weight of the loss of the stored labels, likewise; 0 is plain DER.
    """

    alpha: NotNegative = 0.1
    beta: NotNegative = 0.5

    buffer = LogitImageBuffer

    def before_backward(self, strategy, **kwargs):
        first = draw(self.storage_policy, len(strategy.mb_y))
        second = draw(self.storage_policy, len(strategy.mb_y))
        if len(first) == 0:
            return
        with strategy.model.stopwatch.measure("replay"):
            logits, labels = self.memory_logits(strategy, torch.cat([first, second]))
            stored = self.storage_policy.logits(first, strategy.model)
            known = stored != UNSEEN_LOGIT  # the mean is over the classes seen then
            dark = (logits[: len(first)] - stored).masked_fill(
                ~known, 0.0
            ).square().sum() / known.sum()
            again = strategy._criterion(logits[len(first) :], labels[len(first) :])
        strategy.loss = strategy.loss + self.alpha * dark + self.beta * again

    def offer(self, strategy, batch):
        # Those of the step, as the authors store, have dropout noise, which the network
        # would have to reproduce.
        @torch.no_grad()
        def logits(positions: Sequence[int]) -> Tensor:
            with evaluating(strategy.model):
                return self.logits(strategy.model, batch.feature_map[positions])

        self.storage_policy.offered = logits
        super().offer(strategy, batch)
        del self.storage_policy.offered  # it holds the batch
