"""Dark experience replay (DER++): raw images and the logits that the network had.

Buzzega et al., NeurIPS 2020.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from crumb_avalanche.memory.buffers import ImageBuffer, StreamBatch
from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.methods.replay import ImageMemoryPlugin, draw
from crumb_avalanche.models.penultimate import evaluating
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.setting_ranges import NotNegative
from crumb_avalanche.training.plugins import UNSEEN_LOGIT


class LogitImageBuffer(ImageBuffer):
    """Raw images and their logits when they were seen.

    ``3 * h * w + 4 * classes`` bytes each. A row has the pixels, then the float32
    logits; those of classes not seen by then are -10,000.

    Attributes:
        offered_logits: function from positions in the batch that is stored next to
            their ``(n, classes)`` logits; set while a batch is stored.
    """

    offered_logits: Callable[[Sequence[int]], Tensor]

    @staticmethod
    def item_bytes(model: SplitModel) -> int:
        """Return the bytes of an image with its float32 logits."""
        return ImageBuffer.item_bytes(model) + 4 * model.n_classes

    def to_rows(
        self, batch: StreamBatch, positions: Sequence[int], model: SplitModel
    ) -> Tensor:
        """Return the rows of images of a batch: pixels, then the bytes of logits."""
        pixels = super().to_rows(batch, positions, model).flatten(1)
        logits = self.offered_logits(list(positions)).float().contiguous()
        return torch.cat([pixels, logits.view(torch.uint8)], 1)

    def to_maps(self, rows: Tensor, model: SplitModel) -> Tensor:
        """Compute the maps of the pixels in rows of ``(n, 3 h w + 4 classes)``."""
        side = model.image_size
        pixels = rows[:, : 3 * side**2].unflatten(1, (3, side, side))
        return super().to_maps(pixels, model)

    def logits(self, slots: Tensor, model: SplitModel) -> Tensor:
        """Return ``(n, classes)`` float32 logits of slots, on the model's device."""
        assert self.rows is not None, "these slots hold memories"
        n_pixels = 3 * model.image_size**2
        logit_bytes = self.rows[slots][:, n_pixels:]
        # A copy, since a view of a part of a row may not be aligned.
        aligned = logit_bytes.clone(memory_format=torch.contiguous_format)
        return aligned.view(torch.float32).to(model.pixel_mean.device)


@register(
    "der",
    summary="raw images and their logits from a reservoir (DER++)",
    source=(
        "Buzzega et al., Dark Experience for General Continual Learning, NeurIPS 2020"
    ),
    stores="raw images, and a float32 logit of each for every class",
)
class DarkReplayPlugin(ImageMemoryPlugin):
    """Trains on new images and two draws of memories, in one step (DER++, eq. 6).

    The loss is ``CE(new) + alpha * MSE(logits of a draw, as stored) + beta * CE(another
    draw)``.

    Args:
        recipe: what the strategy is built from.
        alpha: weight of the loss of the stored logits, with its authors' value.
        beta: weight of the loss of the stored labels, likewise; 0 is plain DER.
    """

    buffer: ClassVar[type[ImageBuffer]] = LogitImageBuffer
    storage_policy: LogitImageBuffer

    def __init__(
        self, recipe: Recipe, *, alpha: NotNegative = 0.1, beta: NotNegative = 0.5
    ):
        super().__init__(recipe)
        self.alpha = alpha
        self.beta = beta

    def before_backward(self, strategy, **kwargs):
        """Add two losses of memories to ``strategy.loss`` (eq. 6).

        ``alpha`` times the squared difference of the logits from those stored with the
        memories, of one draw; ``beta`` times the loss of the labels, of another. Each
        draw has as many memories as there are new images.
        """
        # Of memories whose logits are compared ("dark" ones), or whose labels are.
        dark_slots = draw(self.storage_policy, len(strategy.mb_y))
        label_slots = draw(self.storage_policy, len(strategy.mb_y))
        count = len(dark_slots)  # of each draw
        if count == 0:  # the buffer is empty
            return
        with strategy.model.stopwatch.measure("replay"):
            # One pass for both draws.
            slots = torch.cat([dark_slots, label_slots])
            logits, labels = self.memory_logits(strategy, slots)
            stored_logits = self.storage_policy.logits(dark_slots, strategy.model)
            dark_loss = _squared_difference(logits[:count], stored_logits)
            label_loss = strategy._criterion(logits[count:], labels[count:])
        strategy.loss = strategy.loss + self.alpha * dark_loss + self.beta * label_loss

    def offer(self, strategy: Any, batch: StreamBatch) -> None:
        """Offer a batch to the buffer, with its logits."""
        self.storage_policy.offered_logits = lambda positions: (
            self._logits_without_noise(strategy, batch, positions)
        )
        super().offer(strategy, batch)
        del self.storage_policy.offered_logits  # it holds the batch

    @torch.no_grad()
    def _logits_without_noise(
        self, strategy, batch: StreamBatch, positions: Sequence[int]
    ) -> Tensor:
        """Compute the logits of images of a batch in evaluation mode.

        Those of the step, as the authors store, have dropout noise, which the network
        would have to reproduce.
        """
        with evaluating(strategy.model):
            return self.logits(strategy.model, batch.feature_map[positions])


def _squared_difference(logits: Tensor, stored_logits: Tensor) -> Tensor:
    """Return the mean squared difference over the classes seen when logits were stored.

    Args:
        logits: ``(n, classes)`` of memories now.
        stored_logits: ``(n, classes)`` of then.
    """
    was_seen = stored_logits != UNSEEN_LOGIT
    difference = (logits - stored_logits).masked_fill(~was_seen, 0.0)
    return difference.square().sum() / was_seen.sum()
