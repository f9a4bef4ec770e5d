"""GSS-greedy: memories with gradients in diverse directions.

Aljundi et al., "Gradient based sample selection for online continual learning",
NeurIPS 2019.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, normalize

from crumb_avalanche.memory.buffers import ImageBuffer, StreamBatch
from crumb_avalanche.memory.selection import SelectionRule
from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.methods.replay import ImageMemoryPlugin, draw_from, held_slots
from crumb_avalanche.models.layers import trainable
from crumb_avalanche.models.penultimate import evaluating
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.named_values import selected
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
    """Compute the gradient of each image's own cross-entropy, in evaluation mode.

    Args:
        model: gradients are of its trainable weights in the plastic layers.
        maps: ``(B, C, H, W)`` feature maps, which enter these layers.
        labels: ``(B,)`` int64.
        mask: function of logits that masks those of unseen classes.
        chunk: number of images whose gradients are computed at a time.

    Returns:
        ``(B, number of weights)`` float32, the gradients of all weights in a row.
    """
    layers = model.plastic_layers
    tensors = {**dict(layers.named_parameters()), **dict(layers.named_buffers())}
    # ``grad`` follows the argument of ``image_loss`` alone, not these tensors.
    tensors = {name: tensor.detach() for name, tensor in tensors.items()}
    trained_weights = selected(tensors, trainable(layers))  # by name

    def image_loss(
        weights: dict[str, Tensor], feature_map: Tensor, label: Tensor
    ) -> Tensor:
        """Compute the cross-entropy of one image, from its map ``(C, H, W)``."""
        inputs = (feature_map.unsqueeze(0),)
        logits = functional_call(layers, {**tensors, **weights}, inputs).float()
        return cross_entropy(mask(logits), label.unsqueeze(0))

    # The gradient of the weights for each image of a batch, by name of the weight.
    image_gradients = vmap(grad(image_loss), in_dims=(None, 0, 0), chunk_size=chunk)
    with evaluating(layers):
        gradients = image_gradients(trained_weights, maps, labels)
    return torch.cat([gradient.flatten(1) for gradient in gradients.values()], dim=1)


@dataclass(frozen=True)
class OfferedGradients:
    """Gradients of a batch and of the memories that it is compared with.

    Attributes:
        gradients: ``(B + n, D)``, of the batch, then of the memories.
        slots: of these memories.
    """

    gradients: Tensor
    slots: list[int]


class GreedyDiversity(SelectionRule):
    """Selects frames by their largest cosine with random memories (paper, algorithm 2).

    It is the cosine of gradients; the score of a frame is that cosine plus 1. While
    there is room, every frame is stored; afterwards only one with a score below 1 (a
    negative cosine). It replaces a memory drawn in proportion to the scores, with
    probability ``score of the memory / (score of the memory + score of the frame)``.
    Classes are not used: none has a claim to a slot. The frames of a batch share their
    random memories, as in the authors' code, and are also compared with the frames of
    the batch that were stored before them, so that not all similar frames of a clip are
    stored.

    Args:
        capacity: capacity of the buffer.

    Attributes:
        scores: ``(capacity,)`` float32, score of each memory when it was stored; 4
            bytes a memory.
    """

    evenly_spread = False
    every_class_holds_one = False

    def __init__(self, capacity: int):
        self.scores = torch.zeros(capacity, dtype=torch.float32)
        self._offered_gradients: OfferedGradients | None = None

    def offer(self, gradients: Tensor, slots: Sequence[int]) -> None:
        """Set the gradients for the next ``choose``.

        Args:
            gradients: ``(B + n, D)``, of its batch, then of ``n`` memories.
            slots: of these memories.
        """
        self._offered_gradients = OfferedGradients(
            gradients=gradients, slots=list(slots)
        )

    def choose(self, slots: Slots, labels: Sequence[int]) -> list[tuple[int, int]]:
        """Store or refuse frames one by one, by their largest cosine with a memory.

        The cosine is that of gradients; the lower, the more likely is a frame stored. A
        frame that is stored is compared with the later ones of the batch.

        Args:
            slots: of the buffer; changed in place.
            labels: class of each of the ``B`` frames of the batch.

        Returns:
            Position in the batch and slot of each frame that is stored.

        Raises:
            ValueError: the gradients of the batch were not offered.
        """
        offered = self._offered_gradients
        if offered is None:
            raise ValueError(
                "frames are chosen by their gradients: call offer(...) before each "
                "batch"
            )
        self._offered_gradients = None
        directions = normalize(offered.gradients)  # of B frames, then n memories
        cosines = directions[: len(labels)] @ directions.t()  # (B, B + n)
        # Column of the cosines by the slot of the memory that frames are compared with.
        column_of_slot = {}
        for number, slot_of_memory in enumerate(offered.slots):
            column_of_slot[slot_of_memory] = len(labels) + number
        chosen = []
        for position, label in enumerate(labels):
            cosine = _FIRST_COSINE  # where there is no memory to compare with
            if column_of_slot:
                columns = list(column_of_slot.values())
                cosine = float(cosines[position, columns].max())
            score = cosine + 1
            slot = self._slot_for_frame(slots, label, score)
            if slot is not None:
                column_of_slot[slot] = position
                self.scores[slot] = score
                chosen.append((position, slot))
        return chosen

    def _slot_for_frame(self, slots: Slots, label: int, score: float) -> int | None:
        """Take a slot for a frame and return it, or ``None`` if it is not stored.

        In a full buffer, a frame that resembles no memory may take the slot of one that
        is drawn in proportion to the scores.

        Args:
            slots: of the buffer; changed in place.
            label: class of the frame.
            score: largest cosine of its gradient with those of memories, plus 1: from 0
                to 2.
        """
        if slots.free:
            return slots.take(label)
        resembles_a_memory = score >= 1  # a cosine of at least 0
        if resembles_a_memory:
            return None
        slot = self._draw_in_proportion(slots)  # of a memory
        stored_score = self.scores.double().numpy()[slot]
        # With the probability stored_score / (stored_score + score).
        is_replaced = slots.random.random() * (stored_score + score) < stored_score
        if not is_replaced:
            return None
        for class_slots in slots.by_class.values():
            if slot in class_slots:
                class_slots.remove(slot)
        slots.free.append(slot)
        return slots.take(label)

    def _draw_in_proportion(self, slots: Slots) -> int:
        """Draw a slot in proportion to the scores; any, if all are 0."""
        scores = self.scores.double().numpy()
        total = scores.sum()
        shares = None
        if total > 0:
            shares = scores / total
        return int(slots.random.choice(len(scores), p=shares))

    def state_dict(self):
        """Return the scores of the memories."""
        return {"scores": self.scores.clone()}

    def load_state_dict(self, state):
        """Load what ``state_dict`` returned."""
        self.scores = state["scores"].clone()


@dataclass(frozen=True)
class ComparedMemories:
    """Memories that the frames of a batch are compared with.

    Attributes:
        slots: ``(n,)`` int64.
        maps: ``(n, C, H, W)``.
        labels: ``(n,)`` int64.
    """

    slots: Tensor
    maps: Tensor
    labels: Tensor


@register(
    "gss",
    summary="replay of images selected for diverse gradients",
    source=(
        "Aljundi et al., Gradient based sample selection for online continual "
        "learning, NeurIPS 2019"
    ),
    stores="raw images, and a score of each",
    item_bytes=lambda model, method: ImageBuffer.item_bytes(model) + 4,
)
class GSSPlugin(ImageMemoryPlugin):
    """Replays random memories in the step of each new batch, then offers the batch.

    ``GreedyDiversity`` selects. Gradients of memories change with the weights; they are
    computed for each comparison and not kept. The batch is compared with the memories
    that were replayed with it, so F runs once for each image. (The authors draw again,
    and use one gradient of several memories.)

    Args:
        recipe: what the strategy is built from.
        compared: number of random memories whose gradients are compared with those of a
            frame.
    """

    def __init__(self, recipe: Recipe, *, compared: Count = 10):
        self.diversity = GreedyDiversity(recipe.mem_size)
        super().__init__(recipe, self.diversity)
        self.compared = compared
        # Those that were replayed with the batch, until it is offered.
        self._memories: ComparedMemories | None = None

    @property
    def statistics_bytes(self) -> int:
        """Bytes of the scores of the memories."""
        return tensor_bytes([self.diversity.scores])

    def before_backward(self, strategy, **kwargs):
        """Add the loss of as many memories as new images to ``strategy.loss``.

        Of the memories drawn, the first ``compared`` are kept until ``offer``, which
        compares the new frames with them.
        """
        model = strategy.model
        storage = self.storage_policy
        stored_slots = held_slots(storage)  # of all memories
        if not stored_slots:
            return
        n_new = len(strategy.mb_y)
        with model.stopwatch.measure("replay"):
            # No image twice in a batch, as in the authors' code: all of a small buffer
            # is replayed.
            count = min(len(stored_slots), max(n_new, self.compared))
            slots = draw_from(storage.slots.random, stored_slots, count)
            maps, labels = storage.replay(slots, model)
            logits = self.logits(model, maps[:n_new])
            replay_loss = strategy._criterion(logits, labels[:n_new])
            strategy.loss = strategy.loss + replay_loss
        self._memories = ComparedMemories(
            slots=slots[: self.compared],
            maps=maps[: self.compared],
            labels=labels[: self.compared],
        )

    def offer(self, strategy: Any, batch: StreamBatch) -> None:
        """Offer a batch to the buffer, which chooses its frames by their gradients.

        The gradients are of its images, and of the memories that they are compared
        with.

        Args:
            strategy: gives the model.
            batch: labels ``(B,)`` and feature maps ``(B, C, H, W)`` of new images.
        """
        model = strategy.model
        maps = batch.feature_map
        labels = batch.labels
        slots: list[int] = []  # of the memories
        was_trained_on = self.batch is not None  # a training step sets it
        with model.stopwatch.measure("replay"):
            if not was_trained_on:
                # No memories were replayed with these images.
                self._memories = self._drawn_memories(model)
            memories = self._memories
            if memories is not None:
                slots = memories.slots.tolist()
                maps = torch.cat([maps, memories.maps])
                labels = torch.cat([labels, memories.labels])
            gradients = sample_gradients(model, maps, labels, self.mask)
        self.diversity.offer(gradients.cpu(), slots)
        super().offer(strategy, batch)
        self._memories = None

    def _drawn_memories(self, model: SplitModel) -> ComparedMemories | None:
        """Draw the memories that a batch is compared with; ``None`` without any."""
        storage = self.storage_policy
        stored_slots = held_slots(storage)  # of all memories
        if not stored_slots:
            return None
        count = min(len(stored_slots), self.compared)
        slots = draw_from(storage.slots.random, stored_slots, count)
        maps, labels = storage.replay(slots, model)
        return ComparedMemories(slots=slots, maps=maps, labels=labels)

    def after_training_iteration(self, strategy, **kwargs):
        """Offer the batch, and forget the memories that it was compared with."""
        super().after_training_iteration(strategy, **kwargs)
        self._memories = None
