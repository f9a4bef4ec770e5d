"""GSS-greedy: memories with gradients in diverse directions (Aljundi et al., NeurIPS 2019)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, normalize

from crumb_avalanche.memory.buffers import ImageBuffer
from crumb_avalanche.memory.selection import SelectionRule
from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.methods.replay import ImageMemoryPlugin, draw_from, held_slots
from crumb_avalanche.models.penultimate import evaluating
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.setting_ranges import Count
from crumb_avalanche.system.tensor_file import tensor_bytes

# Cosine of the first memories, which have none to be compared with, in the authors'
# code.
_FIRST_COSINE = 0.1


def sample_gradients(
    model: SplitModel,
    maps: Tensor,
    labels: Tensor,
    mask: Callable[[Tensor], Tensor],
    chunk: int = 32,
) -> Tensor:
    """Compute the gradient of each image's own cross-entropy, ``(B, weights)`` float32, in evaluation mode.

    Args:
        model: gradients are of its trainable weights in the plastic layers.
        maps, labels: ``(B, C, H, W)``, and ``(B,)`` int64.
        mask: masks the logits of unseen classes.
        chunk: images at a time.
    """
    layers = model.plastic_layers
    everything = {**dict(layers.named_parameters()), **dict(layers.named_buffers())}
    everything = {name: value.detach() for name, value in everything.items()}
    learning = {
        name: everything[name]
        for name, weight in layers.named_parameters()
        if weight.requires_grad
    }

    def loss(weights: dict[str, Tensor], feature_map: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(
            layers, {**everything, **weights}, (feature_map.unsqueeze(0),)
        ).float()
        return cross_entropy(mask(logits), label.unsqueeze(0))

    with evaluating(layers):
        gradients = vmap(grad(loss), in_dims=(None, 0, 0), chunk_size=chunk)(
            learning, maps, labels
        )
    return torch.cat([of_weight.flatten(1) for of_weight in gradients.values()], dim=1)


class GreedyDiversity(SelectionRule):
    """Selects frames by the largest cosine of their gradient with those of random memories (paper, algorithm 2).

    The score of a frame is that cosine plus 1. While there is room, every frame is
    stored; afterwards only one with a score below 1 (a negative cosine). It replaces a
    memory drawn in proportion to the scores, with probability ``score of the memory /
    (score of the memory + score of the frame)``. Classes are not used. The frames of a
    batch share their random memories, as in the authors' code, and are also compared
    with the frames of the batch that were stored before them, so that not all similar
    frames of a clip are stored.

    Args:
        capacity: capacity of the buffer.

    Attributes:
        scores: ``(capacity,)`` float32, score of each memory when it was stored; 4
            bytes a memory.
    """

    evenly_spread = False
    every_class_holds_one = False

    def __init__(self, capacity: int):
        self.scores = torch.zeros(capacity)
        self._offered: tuple[Tensor, list[int]] | None = None

    def offer(self, gradients: Tensor, drawn: Sequence[int]) -> None:
        """Set ``(B + n, D)`` gradients for the next ``choose``: of its batch, then of the memories in ``n`` slots."""
        self._offered = gradients, list(drawn)

    def choose(self, slots, labels):
        if self._offered is None:
            raise ValueError(
                "frames are chosen by their gradients: call offer(...) before each batch"
            )
        gradients, drawn = self._offered
        self._offered = None
        directions = normalize(gradients)
        cosines = directions[: len(labels)] @ directions.t()
        column = {slot: len(labels) + number for number, slot in enumerate(drawn)}
        chosen = []
        for position, label in enumerate(labels):
            cosine = (
                float(cosines[position, list(column.values())].max())
                if column
                else _FIRST_COSINE
            )
            slot = self._enter(slots, label, cosine + 1)
            if slot is not None:
                column[slot], self.scores[slot] = position, cosine + 1
                chosen.append((position, slot))
        return chosen

    def _enter(self, slots: Slots, label: int, score: float) -> int | None:
        """Return the slot for a frame, or ``None`` if it is not stored."""
        if slots.free:
            return slots.take(label)
        if score >= 1:
            return None
        scores = self.scores.double().numpy()
        total = scores.sum()
        slot = int(
            slots.random.choice(len(scores), p=scores / total if total > 0 else None)
        )
        if slots.random.random() * (scores[slot] + score) >= scores[slot]:
            return None
        next(members for members in slots.by_class.values() if slot in members).remove(
            slot
        )
        slots.free.append(slot)
        return slots.take(label)

    def state_dict(self):
        return {"scores": self.scores.clone()}

    def load_state_dict(self, state):
        self.scores = state["scores"].clone()


@register(
    "gss",
    summary="replay of images selected for diverse gradients",
    source="Aljundi et al., Gradient based sample selection for online continual learning, NeurIPS 2019",
    stores="raw images, and a score of each",
    item_bytes=lambda model, method: ImageBuffer.item_bytes(model) + 4,
)
class GSSPlugin(ImageMemoryPlugin):
    """Replays random memories in the step of each new batch, then offers the batch to ``GreedyDiversity``.

    Gradients of memories change with the weights; they are computed for each comparison
    and not kept. The batch is compared with the memories that were replayed with it, so
    F runs once for each image. (The authors draw again, and use one gradient of several
    memories.)

    Attributes:
        compared: number of random memories whose gradients are compared with those of a
            frame.
    """

    compared: Count = 10

    def __init__(self, recipe: Recipe):
        super().__init__(recipe, GreedyDiversity(recipe.mem_size))
        self._drawn: tuple[Tensor, Tensor, Tensor] | None = (
            None  # slots, maps, labels; within a step
        )

    @property
    def statistics_bytes(self) -> int:
        """Bytes of the scores of the memories."""
        return tensor_bytes([self.storage_policy.rule.scores])

    def before_backward(self, strategy, **kwargs):
        model, storage, batch = strategy.model, self.storage_policy, len(strategy.mb_y)
        held = held_slots(storage)
        if held:
            with model.stopwatch.measure("replay"):
                # No image twice in a batch, as in the authors' code: all of a small
                # buffer is replayed.
                count = min(len(held), max(batch, self.compared))
                slots = draw_from(storage.slots.random, held, count)
                maps, labels = storage.replay(slots, model)
                replay_loss = strategy._criterion(
                    self.logits(model, maps[:batch]), labels[:batch]
                )
                strategy.loss = strategy.loss + replay_loss
            compared = slice(self.compared)
            self._drawn = slots[compared], maps[compared], labels[compared]

    def offer(self, strategy, batch):
        model, storage = strategy.model, self.storage_policy
        slots, maps, labels = [], batch.feature_map, batch.labels
        with model.stopwatch.measure("replay"):
            if self.batch is None and (
                held := held_slots(storage)
            ):  # no memories were replayed with these images
                drawn = draw_from(
                    storage.slots.random, held, min(len(held), self.compared)
                )
                self._drawn = drawn, *storage.replay(drawn, model)
            if self._drawn is not None:
                slots = self._drawn[0].tolist()
                maps, labels = (
                    torch.cat([maps, self._drawn[1]]),
                    torch.cat([labels, self._drawn[2]]),
                )
            gradients = sample_gradients(model, maps, labels, self.mask)
        storage.rule.offer(gradients.cpu(), slots)
        super().offer(strategy, batch)
        self._drawn = None

    def after_training_iteration(self, strategy, **kwargs):
        super().after_training_iteration(strategy, **kwargs)
        self._drawn = None
