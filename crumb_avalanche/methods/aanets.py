"""Adaptive aggregation networks: a stable and a plastic branch, blended by a share.

Liu et al., CVPR 2021. The share is trained on exemplars. One level is blended: all
plastic layers before the head. Training is a single pass instead of many epochs.
"""

import copy
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from avalanche.training.utils import trigger_plugins
from torch import Tensor, nn
from torch.func import functional_call

from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.methods.replay import (
    HerdingPlugin,
    OldNetwork,
    distillation_loss,
    draw,
    draw_from,
)
from crumb_avalanche.models.layers import trainable, undamped
from crumb_avalanche.models.penultimate import evaluating
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.setting_ranges import Count, NotNegative, Positive
from crumb_avalanche.system.tensor_file import tensor_bytes


def replace_submodule(network: nn.Module, name: str, module: nn.Module) -> None:
    """Replace the submodule with a qualified name, such as ``0.expand3x3``."""
    parent, _, attribute = name.rpartition(".")
    setattr(network.get_submodule(parent), attribute, module)


class ScaledConv(nn.Module):
    """A frozen convolution with trainable factors and shifts (paper, eq. 4).

    Args:
        conv: the convolution.

    Attributes:
        scale: ``(O, I, 1, 1)``, factors of the weights.
        shift: ``(O,)``, summands of the biases; ``None`` if there are none.
    """

    def __init__(self, conv: nn.Conv2d):
        super().__init__()
        self.conv = conv.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones_like(conv.weight[:, :, :1, :1]))
        self.shift: nn.Parameter | None = None
        if conv.bias is not None:
            self.shift = nn.Parameter(torch.zeros_like(conv.bias))

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve ``(B, C, H, W)`` maps with the scaled and shifted weights."""
        weights = {"weight": self.conv.weight * self.scale}
        if self.shift is not None:
            weights["bias"] = self.conv.bias + self.shift
        return functional_call(self.conv, weights, (maps,))


class InputCatcher(nn.Module):
    """Replaces the head: returns its input, and keeps it until ``release``."""

    caught: Tensor | None = None

    def forward(self, values: Tensor) -> Tensor:
        """Keep the input of the head, and return it."""
        self.caught = values
        return values

    def release(self) -> Tensor:
        """Return the latest input, and forget it."""
        caught = self.caught
        assert caught is not None, "the layers ran before"
        self.caught = None
        return caught


class BlendedHead(nn.Module):
    """The head after ``a * stable + (1 - a) * plastic`` (paper, eq. 2).

    Args:
        layer: the head.

    Attributes:
        share: ``a``, initially one half; the caller keeps it within [0, 1].
        stable: output of the stable branch in this pass; ``None`` for the plastic
            branch alone.
    """

    stable: Tensor | None = None

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer
        half = torch.full((), 0.5, dtype=torch.float32, device=layer.weight.device)
        self.share = nn.Parameter(half)

    def forward(self, plastic: Tensor) -> Tensor:
        """Compute the logits of the blended features.

        Args:
            plastic: ``(B, ...)``, output of the plastic branch before the head.
        """
        if self.stable is not None:
            plastic = self.share * self.stable + (1 - self.share) * plastic
        return self.layer(plastic)


class AggregatedLayers(nn.Module):
    """Plastic layers with two branches before one head.

    The stable branch is used after ``aggregate``. It is a copy, whose head only returns
    its input, frozen except for the factors of its convolutions (``ScaledConv``); its
    batch norms stay in evaluation mode.

    Args:
        layers: they become the plastic branch and the head.
        head: qualified name of the head in ``layers``.

    Attributes:
        head: its qualified name in this module.
    """

    def __init__(self, layers: nn.Module, head: str):
        super().__init__()
        self._head_in_branch = head
        self.head = f"plastic.{head}.layer"
        self.stable = copy.deepcopy(layers).requires_grad_(False)
        replace_submodule(self.stable, head, InputCatcher())
        for name, module in list(self.stable.named_modules()):
            if isinstance(module, nn.Conv2d):
                replace_submodule(self.stable, name, ScaledConv(module))
        self.plastic = layers
        replace_submodule(layers, head, BlendedHead(layers.get_submodule(head)))
        self.register_buffer("aggregating", torch.zeros((), dtype=torch.bool))

    @property
    def blended(self) -> BlendedHead:
        """The head, with the share of the stable branch."""
        return self.plastic.get_submodule(self._head_in_branch)

    @property
    def stable_bytes(self) -> int:
        """Bytes of the stable branch.

        They are frozen weights, factors and summands, and statistics of batch norms.
        """
        return tensor_bytes([*self.stable.parameters(), *self.stable.buffers()])

    def forward(self, maps: Tensor) -> Tensor:
        """Compute logits ``(B, classes)`` of ``(B, C, H, W)`` float feature maps.

        After ``aggregate``, the frozen stable branch runs first. What would enter its
        head is handed to the head of the plastic branch, which blends both inputs.
        """
        blended_head = self.blended
        if self.aggregating:
            self.stable(maps)
            # In the place of the stable branch's head, it has kept the head's input.
            input_catcher = self.stable.get_submodule(self._head_in_branch)
            blended_head.stable = input_catcher.release()
        try:
            return self.plastic(maps)
        finally:
            blended_head.stable = None  # it is of these maps alone

    def train(self, mode: bool = True) -> "AggregatedLayers":
        """Set the mode as ``nn.Module.train`` does.

        Batch norms of the stable branch stay in evaluation mode.
        """
        super().train(mode)
        for module in self.stable.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    @torch.no_grad()
    def aggregate(self) -> None:
        """Blend both branches from now on, after the first experience.

        The frozen stable branch gets the weights and buffers that the trained plastic
        branch has now. They share one head, which is not copied.
        """
        for name, module in self.plastic.named_modules():
            is_of_head = f"{name}.".startswith(f"{self._head_in_branch}.")
            if is_of_head:
                continue
            stable_module = self.stable.get_submodule(name)
            if isinstance(stable_module, ScaledConv):
                stable_module = stable_module.conv  # its scale and shift stay
            _copy_own_tensors(module._parameters, stable_module._parameters)
            _copy_own_tensors(module._buffers, stable_module._buffers)
        self.aggregating.fill_(True)

    def changing_names(self) -> set[str]:
        """Return the names in the state dict that training changes.

        They are all but those of the stable branch's own weights.
        """
        buffers = {f"plastic.{name}" for name, _ in self.plastic.named_buffers()}
        return trainable(self).keys() | buffers


def _copy_own_tensors(source: dict, target: dict) -> None:
    """Copy the tensors of a module, without those of its submodules, by name."""
    for name, tensor in source.items():
        if tensor is not None:
            target[name].copy_(tensor)


class OldBranches(OldNetwork):
    """The old network without the weights of the stable branch, which never change."""

    def copy_from(self, model: SplitModel) -> None:
        """Copy the weights that training changes."""
        super().copy_from(model)
        for name in self.state.keys() - model.plastic_layers.changing_names():
            del self.state[name]


def fixed_bytes(model: SplitModel, method: Any, n_classes: int) -> int:
    """Return the bytes of the old network and of the stable branch."""
    layers = AggregatedLayers(copy.deepcopy(model.plastic_layers), model.head)
    old_network = OldBranches.bytes_of(SimpleNamespace(plastic_layers=layers))
    return old_network + layers.stable_bytes


@register(
    "aanets",
    summary=(
        "a stable and a plastic branch, blended by a learned share; herded exemplars, "
        "distillation"
    ),
    source=(
        "Liu et al., Adaptive Aggregation Networks for Class-Incremental Learning, "
        "CVPR 2021"
    ),
    stores=(
        "raw images, and a copy of the old plastic layers; its network has a second "
        "branch besides"
    ),
    fixed_bytes=fixed_bytes,
)
class AANetsPlugin(HerdingPlugin):
    """Inner steps on new and stored images, outer steps of the share (algorithm 1).

    An outer step is on a class-balanced batch: of the batch's own frames for its
    classes, which have no exemplars yet, and of herded exemplars for the others. It
    runs in evaluation mode, so that only the share changes. Settings of the authors
    that fail in a single pass are others.

    Args:
        recipe: what the strategy is built from.
        outer_every: inner steps between two updates of the share of the stable branch;
            there is at least one update in an experience.
        a_learning_rate: learning rate of these updates (the authors' 1e-8, for many
            epochs, hardly changes it here).
        distillation: weight of the distillation loss.
        temperature: temperature of the distillation.
    """

    state_names = ("random", "old_classes", "_steps", "_branch_bytes", "old_network")
    class_numbers = ("old_classes",)

    def __init__(
        self,
        recipe: Recipe,
        *,
        outer_every: Count = 50,
        a_learning_rate: NotNegative = 1e-2,
        distillation: NotNegative = 0.25,
        temperature: Positive = 2.0,
    ):
        super().__init__(recipe)
        self.outer_every = outer_every
        self.a_learning_rate = a_learning_rate
        self.distillation = distillation
        self.temperature = temperature
        # Before the optimiser is made, which trains the factors and the share, too.
        layers = AggregatedLayers(recipe.model.plastic_layers, recipe.model.head)
        recipe.model.plastic_layers = layers
        recipe.model.head = layers.head
        self.random = np.random.default_rng(recipe.seed)
        self.old_network = OldBranches()
        self.old_classes: list[int] = []  # classes of earlier experiences
        self._steps = 0  # inner steps in this experience
        self._branch_bytes = 0

    @property
    def statistics_bytes(self) -> int:
        """Bytes of the old network, and of the stable branch.

        No other method has such a branch.
        """
        return super().statistics_bytes + self._branch_bytes

    def before_training_exp(self, strategy, **kwargs):
        """Count the inner steps of the experience from 0."""
        super().before_training_exp(strategy, **kwargs)
        self._steps = 0
        self._branch_bytes = strategy.model.plastic_layers.stable_bytes

    def before_backward(self, strategy, **kwargs):
        """Add the loss of memories and the distillation from the old network.

        ``strategy.loss`` becomes ``(new images + as many memories) / 2 + weight *
        distillation``, from the second experience on.
        """
        is_first_experience = not self.old_classes
        if is_first_experience:
            return
        model = strategy.model
        with model.stopwatch.measure("replay"):
            slots = draw(self.storage_policy, len(strategy.mb_y))
            memory_maps, memory_labels = self.storage_policy.replay(slots, model)
            memory_logits = self.logits(model, memory_maps)
            memory_loss = strategy._criterion(memory_logits, memory_labels)
            strategy.loss = (strategy.loss + memory_loss) / 2
            # Distillation is on the new images, then the memories.
            logits = torch.cat([strategy.mb_output, memory_logits])
            maps = torch.cat([self.current.feature_map, memory_maps])
            old_logits = self.old_network.logits(model, maps)
            distilled_loss = distillation_loss(
                logits, old_logits, self.old_classes, self.temperature
            )
            # Gradients of softened answers are smaller by the squared temperature.
            weight = self.distillation * self.temperature**2
            strategy.loss = strategy.loss + weight * distilled_loss

    def after_backward(self, strategy, **kwargs):
        """Drop the gradient of the share, which inner steps do not change."""
        strategy.model.plastic_layers.blended.share.grad = None

    def after_training_iteration(self, strategy, **kwargs):
        """Take an outer step after every ``outer_every`` inner ones."""
        if self.old_classes:
            self._steps += 1
            if self._steps % self.outer_every == 0:
                batch = self.current
                self._outer_step(strategy, batch.feature_map, batch.labels, **kwargs)
        super().after_training_iteration(strategy, **kwargs)

    def after_training_exp(self, strategy, **kwargs):
        """Choose exemplars by herding, and keep a copy of the network as the old one.

        After the first experience, the stable branch begins as a copy of the plastic
        one. A later experience that was too short for an outer step, which updates the
        share that blends both branches, gets one on memories alone. An experience
        without images changes nothing.
        """
        if not len(strategy.adapted_dataset):
            return
        model = strategy.model
        is_first_experience = not self.old_classes
        with model.stopwatch.measure("replay"):
            if is_first_experience:
                model.plastic_layers.aggregate()
            self.herd(strategy)  # into the buffer of images
            had_outer_step = self._steps >= self.outer_every
            if not is_first_experience and not had_outer_step:
                no_maps = torch.empty(0, *model.map_shape, dtype=torch.float32)
                no_labels = torch.empty(0, dtype=torch.int64)
                self._outer_step(strategy, no_maps, no_labels, **kwargs)
        self.old_classes = list(strategy.seen_classes.seen)
        self.old_network.copy_from(model)

    def _outer_step(self, strategy, maps: Tensor, labels: Tensor, **kwargs) -> None:
        """Take a gradient step of the share ``a`` alone, by which branches are blended.

        The step is plain gradient descent on equally many images of each class, whose
        gradient no ``CentredLinear`` head damps, and leaves ``a`` in [0, 1].

        Args:
            strategy: gives model, criterion and size of the batch; its ``replay_loss``
                is set.
            maps: ``(B, C, H, W)`` feature maps of a batch, maybe none; images of the
                classes that are not in it are drawn from the exemplars.
            labels: ``(B,)`` int64, of the maps.
            kwargs: those of the Avalanche hook that calls this, for other plugins.
        """
        model = strategy.model
        measure = model.stopwatch.measure
        with measure("replay"), evaluating(model), undamped(model):
            balanced_maps, balanced_labels = self._balanced_batch(
                strategy, maps, labels
            )
            logits = self.logits(model, balanced_maps)
            strategy.replay_loss = strategy._criterion(logits, balanced_labels)
            trigger_plugins(strategy, "on_replay_loss", **kwargs)
            share = model.plastic_layers.blended.share
            (gradient,) = torch.autograd.grad(strategy.replay_loss, [share])
        strategy.replay_loss = strategy.replay_loss.detach()
        with torch.no_grad():
            share.sub_(self.a_learning_rate * gradient).clamp_(0, 1)

    def _balanced_batch(
        self, strategy, maps: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draw equally many maps of each class, from a batch and from the exemplars.

        Classes of the batch are drawn from it, all others from the buffer of exemplars.

        Args:
            strategy: its ``train_mb_size`` is the least size of the balanced batch.
            maps: ``(B, C, H, W)`` feature maps of the batch, maybe none.
            labels: ``(B,)`` int64, of the maps.

        Returns:
            Maps ``(n, C, H, W)`` and labels ``(n,)``.
        """
        buffer = self.storage_policy
        batch_classes = set(labels.tolist())
        all_classes = batch_classes | set(buffer.classes)
        n_stored_classes = len(all_classes - batch_classes)
        per_class = math.ceil(strategy.train_mb_size / len(all_classes))
        drawn_positions = []  # in the batch, (per_class,) of each of its classes
        for label in sorted(batch_classes):
            positions = (labels == label).nonzero().flatten().tolist()
            drawn_positions.append(draw_from(self.random, positions, per_class))
        slots = buffer.sample(
            without=batch_classes, at_least=per_class * n_stored_classes
        )
        balanced_maps = []
        balanced_labels = []
        if len(slots):
            memory_maps, memory_labels = buffer.replay(slots, strategy.model)
            balanced_maps.append(memory_maps)
            balanced_labels.append(memory_labels)
        if drawn_positions:
            index = torch.cat(drawn_positions).to(labels.device)
            balanced_maps.append(maps[index])
            balanced_labels.append(labels[index])
        return torch.cat(balanced_maps), torch.cat(balanced_labels)
