"""GSS-greedy: memories whose gradients point in as many directions as possible (Aljundi et al., NeurIPS 2019)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, normalize

from crumb_avalanche.baselines.entry import Entry, Recipe
from crumb_avalanche.baselines.exemplars import draw_from, evaluating
from crumb_avalanche.baselines.experience_replay import ImageMemoryPlugin, held_slots, memory_strategy
from crumb_avalanche.ledger import tensor_bytes
from crumb_avalanche.split_model import SplitModel
from crumb_avalanche.storage_policy import CompactBuffer, ImageBuffer
from crumb_avalanche.storage_rules import Slots, StorageRule
from crumb_avalanche.streaming import StreamStrategy

# What the authors' code gives the first memories, which have nothing to be similar to, as a cosine.
_FIRST_COSINE = 0.1


@dataclass(frozen=True)
class GSSSettings:
    """Own settings of GSS-greedy.

    Attributes:
        compared: random memories whose gradients a frame's gradient is compared with.
        head_only: take the gradient of the head alone, not of all plastic layers, which costs far more.
        chunk: gradients that are computed at once.
    """

    compared: int = 10
    head_only: bool = True
    chunk: int = 32

    def __post_init__(self):
        for name in ("compared", "chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be 1 or more")


def sample_gradients(
    model: SplitModel,
    maps: Tensor,
    labels: Tensor,
    mask: Callable[[Tensor], Tensor] | None,
    head_only: bool = True,
    chunk: int = 32,
) -> Tensor:
    """``(B, weights)`` float32: the gradient of each image's own cross-entropy, in evaluation mode.

    Args:
        model: whose learnable weights they are of.
        maps: ``(B, C, H, W)``.
        labels: ``(B,)`` int64.
        mask: silences the logits of unseen classes.
        head_only: of the head's weights alone.
        chunk: images at once.
    """
    layers = model.plastic_layers
    everything = {**dict(layers.named_parameters()), **dict(layers.named_buffers())}
    everything = {name: value.detach() for name, value in everything.items()}
    learning = {
        name: everything[name]
        for name, parameter in layers.named_parameters()
        if parameter.requires_grad and (not head_only or name.startswith(f"{model.head}."))
    }

    def loss(weights: dict[str, Tensor], feature_map: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(layers, {**everything, **weights}, (feature_map.unsqueeze(0),)).float()
        return cross_entropy(logits if mask is None else mask(logits), label.unsqueeze(0))

    with evaluating(layers):
        gradients = vmap(grad(loss), in_dims=(None, 0, 0), chunk_size=chunk)(learning, maps, labels)
    return torch.cat([of_weight.flatten(1) for of_weight in gradients.values()], dim=1)


class GreedyDiversity(StorageRule):
    """Which frames enter, by the largest cosine of their gradient with those of random memories (paper, algorithm 2).

    A frame's score is that cosine plus 1. While there is room it enters; afterwards only with a score below 1 (a
    negative cosine), in the place of a memory drawn in proportion to the scores, with chance ``its score / (its score +
    the frame's)``. Classes play no part.

    Args:
        capacity: of the buffer.
        compared: how many memories are compared with.

    Attributes:
        scores: ``(capacity,)`` float32, the score that each memory had when it entered; 4 bytes a memory.
    """

    def __init__(self, capacity: int, compared: int = 10):
        self.compared = compared
        self.scores = torch.zeros(capacity)
        self._offered: tuple[Tensor, Callable[[list[int]], Tensor]] | None = None

    def begin_experience(self, slots, coming, batch_size):
        return []  # no class has a claim to a slot

    def offer(self, gradients: Tensor, gradients_of: Callable[[list[int]], Tensor]) -> None:
        """What the next ``choose`` needs to know.

        Args:
            gradients: ``(B, D)`` of the batch that will be offered.
            gradients_of: function from slots to the present gradients ``(n, D)`` of their memories.
        """
        self._offered = gradients, gradients_of

    def choose(self, slots, labels):
        if self._offered is None:
            raise ValueError("frames are chosen by their gradients: call offer(...) before each batch")
        gradients, gradients_of = self._offered
        self._offered = None
        known: dict[int, Tensor] = {}  # unit gradients of memories, each computed at most once a batch

        def learn(wanted: list[int]) -> None:
            missing = [slot for slot in wanted if slot not in known]
            if missing:
                known.update(zip(missing, normalize(gradients_of(missing)), strict=True))

        held = sorted(slot for members in slots.by_class.values() for slot in members)
        if len(held) <= self.compared * len(labels):
            learn(held)  # nearly all will be drawn: all in one pass
        chosen = []
        for position, (label, gradient) in enumerate(zip(labels, normalize(gradients))):
            drawn = slots.random.permutation(held)[: self.compared].tolist()
            learn(drawn)
            cosine = float((torch.stack([known[slot] for slot in drawn]) @ gradient).max()) if drawn else _FIRST_COSINE
            slot = self._enter(slots, label, cosine + 1)
            if slot is not None:
                known[slot], self.scores[slot] = gradient, cosine + 1
                chosen.append((position, slot))
                held = held if slot in held else [*held, slot]
        return chosen

    def _enter(self, slots: Slots, label: int, score: float) -> int | None:
        """The slot that a frame gets, or ``None``."""
        if slots.free:
            return slots.take(label)
        if score >= 1:
            return None
        scores = self.scores.double().numpy()
        total = scores.sum()
        slot = int(slots.random.choice(len(scores), p=scores / total if total > 0 else None))
        if slots.random.random() * (scores[slot] + score) >= scores[slot]:
            return None
        next(members for members in slots.by_class.values() if slot in members).remove(slot)
        slots.free.append(slot)
        return slots.take(label)

    def state_dict(self):
        return {"scores": self.scores.tolist()}

    def load_state_dict(self, state):
        self.scores = torch.tensor(state["scores"])


class GSSPlugin(ImageMemoryPlugin):
    """Replays random memories in the step of each new batch, then offers the batch to ``GreedyDiversity``.

    The memories' gradients change with the weights; they are computed when they are compared, and not kept.

    Args:
        storage_policy: an image buffer with the rule ``GreedyDiversity``.
        settings: see ``GSSSettings``.
        replay_weight: factor of the replay loss.
    """

    def __init__(self, storage_policy: CompactBuffer, settings: GSSSettings, replay_weight: float = 1.0):
        super().__init__(storage_policy)
        self.settings = settings
        self.weight = replay_weight

    @property
    def statistics_bytes(self) -> int:
        """The memories' scores."""
        return tensor_bytes([self.storage_policy.rule.scores])

    def before_backward(self, strategy, **kwargs):
        storage = self.storage_policy
        held = held_slots(storage)
        if held:
            with strategy.model.stopwatch.measure("replay"):
                # No image twice in a batch, as in the authors' code: a small buffer is replayed whole.
                slots = draw_from(storage.slots.random, held, min(len(held), len(strategy.mb_y)))
                logits, labels = self.memory_logits(strategy, slots)
                strategy.loss = strategy.loss + self.weight * strategy._criterion(logits, labels)

    def after_training_iteration(self, strategy, **kwargs):
        if strategy.clock.train_exp_epochs == strategy.train_epochs - 1:
            model, storage = strategy.model, self.storage_policy

            def gradients_of(slots: Sequence[int]) -> Tensor:
                parts = torch.tensor(slots).split(self.settings.chunk)
                return torch.cat([self._gradients(model, *storage.replay(part, model)) for part in parts])

            storage.rule.offer(self._gradients(model, model.last_map, strategy.mb_y), gradients_of)
        super().after_training_iteration(strategy, **kwargs)

    def _gradients(self, model: SplitModel, maps: Tensor, labels: Tensor) -> Tensor:
        with model.stopwatch.measure("replay"):
            return sample_gradients(model, maps, labels, self._mask, self.settings.head_only, self.settings.chunk).cpu()


def build_gss(recipe: Recipe) -> StreamStrategy:
    """GSS-greedy on the plastic layers."""
    rule = GreedyDiversity(recipe.mem_size, recipe.method.compared)
    buffer = ImageBuffer(recipe.mem_size, rule, recipe.seed)
    return memory_strategy(recipe, GSSPlugin(buffer, recipe.method, recipe.settings.replay_weight))


GSS = Entry(
    name="gss",
    summary="replay of images chosen for the diversity of their gradients",
    source="Aljundi et al., Gradient based sample selection for online continual learning, NeurIPS 2019",
    stores="raw images, and a score of each",
    build=build_gss,
    method=GSSSettings,
    buffer=ImageBuffer,
    item_bytes=lambda model, method: ImageBuffer.item_bytes(model) + 4,
)
