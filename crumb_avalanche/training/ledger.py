"""Ledger of bytes and time as an Avalanche metric.

What a learner keeps, and where its time is spent.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from avalanche.benchmarks.utils import AvalancheDataset
from avalanche.evaluation import PluginMetric
from avalanche.evaluation.metric_results import MetricValue
from avalanche.training.storage_policy import ExemplarsBuffer
from torch import nn

from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.named_values import selected
from crumb_avalanche.system.process import preserve_rng_state
from crumb_avalanche.system.tensor_file import tensor_bytes, tensors_of
from crumb_avalanche.training.stateful import storage_policies

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

PARTS = ("features", "search", "plastic", "replay")
LABEL_BYTES = 8  # of a label in Avalanche's data sets


def peak_rss_bytes() -> int:
    """Return the largest resident set of this process so far, in bytes."""
    if resource is None:  # on Windows
        import psutil  # which Avalanche needs

        memory = psutil.Process().memory_info()
        return getattr(memory, "peak_wset", memory.rss)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    is_in_bytes = sys.platform == "darwin"  # elsewhere in KiB
    return peak if is_in_bytes else peak * 1024


def statistics_bytes(strategy, attribute: str = "statistics_bytes") -> int:
    """Return the sum of an attribute, in bytes, of a strategy and its plugins.

    The default, ``statistics_bytes``, is what they keep besides a buffer.
    """
    total = 0
    for owner in (strategy, *strategy.plugins):
        total += getattr(owner, attribute, 0)
    return total


@dataclass(frozen=True)
class MemorySizes:
    """Number of memories, their bytes and those of their labels."""

    memories: int = 0
    memory_bytes: int = 0
    label_bytes: int = 0

    def __add__(self, sizes: "MemorySizes") -> "MemorySizes":
        return MemorySizes(
            memories=self.memories + sizes.memories,
            memory_bytes=self.memory_bytes + sizes.memory_bytes,
            label_bytes=self.label_bytes + sizes.label_bytes,
        )


def sizes_of_exemplars(exemplars: AvalancheDataset) -> MemorySizes:
    """Return number and bytes of the images and labels of a data set of exemplars.

    Every image counts as the first one, before the transforms that the
    ``AvalancheDataset`` applies: a tensor or array by its own type, a PIL image by a
    byte for each pixel and channel.

    Args:
        exemplars: of one of Avalanche's own buffers.
    """
    if not len(exemplars):
        return MemorySizes()
    with preserve_rng_state():  # other transforms may draw random numbers
        image, *_ = exemplars.remove_current_transform_group()[0]
    if isinstance(image, torch.Tensor):
        bytes_of_image = tensor_bytes([image])
    else:
        bytes_of_image = np.asarray(image).nbytes
    return MemorySizes(
        memories=len(exemplars),
        memory_bytes=len(exemplars) * bytes_of_image,
        label_bytes=len(exemplars) * LABEL_BYTES,
    )


def sizes_of_policy(policy: Any) -> MemorySizes:
    """Return the sizes of the memories in a storage policy, ours or Avalanche's."""
    if hasattr(policy, "buffer_bytes"):
        return MemorySizes(len(policy), policy.buffer_bytes, policy.label_bytes)
    if isinstance(policy, ExemplarsBuffer):
        return sizes_of_exemplars(policy.buffer)
    return MemorySizes()


def replay_memories(strategy) -> Iterator[MemorySizes]:
    """Yield the sizes of each replay buffer of a strategy and its plugins.

    Plugins of Avalanche keep memories in attributes of different names.

    Args:
        strategy: an Avalanche strategy.

    Yields:
        Number of memories, their bytes, and those of their labels.
    """
    for policy in storage_policies(strategy):
        yield sizes_of_policy(policy)
    for plugin in strategy.plugins:
        sizes = getattr(plugin, "memory_sizes", None)
        if isinstance(sizes, MemorySizes):  # the images of joint training
            yield sizes
        buffers = getattr(plugin, "buffers", None)
        if isinstance(buffers, list):  # of Avalanche's AGEMPlugin
            for exemplars in buffers:
                yield sizes_of_exemplars(exemplars)
        images_by_experience = getattr(plugin, "memory_x", None)
        if isinstance(images_by_experience, dict):  # of Avalanche's GEMPlugin
            labels = plugin.memory_y.values()
            yield MemorySizes(
                memories=sum(map(len, labels)),
                memory_bytes=tensor_bytes(images_by_experience.values()),
                label_bytes=tensor_bytes(labels),
            )


class LedgerMetric(PluginMetric[dict]):
    """Counts bytes and seconds.

    Emits each entry as ``Ledger/<entry>`` after every training experience.

    Entries, in bytes unless said: ``buffer_items``, ``buffer_bytes`` (codes, pixels or
    maps), ``label_bytes``, ``codebook_bytes``, ``statistics_bytes``, ``memory_bytes``
    (the sum of these: all that is kept besides the network), ``derived_bytes`` (what
    answers are computed from and what can be computed again from the memory, such as
    the solution of a closed form), ``plastic_bytes``, ``frozen_bytes``,
    ``optimizer_bytes``, ``codes_keep`` (the share of the energy of feature maps that
    codes keep, measured when the model was calibrated), ``peak_rss_bytes``,
    ``images_per_second`` (new images trained on in all epochs, divided by the time of
    training), ``train_seconds``,
    ``seconds_features`` (F), ``seconds_search``, ``seconds_plastic``,
    ``seconds_replay``, ``seconds_other``; the parts are disjoint. What only a step
    needs (gradients, activations, the guard's copy of the trainable weights) counts in
    the peak only. Evaluation during training (``eval_every``) counts neither in the
    time of training nor in its parts.

    The buffers of this package count as allocated, an exemplar of Avalanche's as
    ``sizes_of_exemplars`` says; the memories of ``AGEMPlugin`` and ``GEMPlugin`` count
    too. Not counted: what exemplars hold besides image and label, such as the logits of
    ``DER``; the images of Avalanche's ``ICaRL`` and ``GSS_greedy``, and those that its
    ``BiC`` validates on; the weights that its regularisers keep. Memories that are
    mixed into the batch, as by ``ReplayPlugin``, count in ``images_per_second``.

    Args:
        storage_policy: count this buffer only; default all buffers of the strategy and
            its plugins, each once.
    """

    def __init__(self, storage_policy: ExemplarsBuffer | None = None):
        super().__init__()
        self.storage_policy = storage_policy
        self.entries: dict[str, float] = {}
        self.reset()

    def reset(self) -> None:
        """Count images and seconds from 0."""
        self.train_seconds = 0.0
        self.images = 0
        # Seconds of each of PARTS in training so far, and what the stopwatch of the
        # model showed when training last began.
        self._part_seconds = dict.fromkeys(PARTS, 0.0)
        self._stopwatch_at_start = dict.fromkeys(PARTS, 0.0)
        # Time up to which train_seconds are counted; None outside of training.
        self._counted_until: float | None = None

    def result(self) -> dict[str, float]:
        """Return the entries of the latest training experience."""
        return dict(self.entries)

    def before_training_exp(self, strategy) -> None:
        """Start to count the seconds of an experience."""
        self._counted_until = time.perf_counter()
        self._stopwatch_at_start = self._stopwatch_seconds(strategy)

    def after_training_iteration(self, strategy) -> None:
        """Count the images and the time of a batch."""
        self.images += len(strategy.mb_y)
        self._count_seconds()

    def before_eval(self, strategy) -> None:
        """Stop to count where an evaluation interrupts the training."""
        is_training = self._counted_until is not None
        if is_training:
            self._count_seconds()
            self._count_parts(strategy)

    def after_eval(self, strategy) -> None:
        """Count again after an evaluation within the training."""
        is_training = self._counted_until is not None
        if is_training:
            self.before_training_exp(strategy)

    def after_training_exp(self, strategy) -> list[MetricValue]:
        """Count the experience, and emit the entries of the ledger."""
        self._count_seconds()
        self._count_parts(strategy)
        self._counted_until = None
        self.entries = self.count(strategy)
        step = strategy.clock.train_iterations
        metrics = []
        for name, value in self.entries.items():
            metrics.append(MetricValue(self, f"Ledger/{name}", value, step))
        return metrics

    def _count_seconds(self) -> None:
        """Add the seconds since the last call to those of the training."""
        assert self._counted_until is not None, "called in training only"
        now = time.perf_counter()
        self.train_seconds += now - self._counted_until
        self._counted_until = now

    def _count_parts(self, strategy) -> None:
        """Add what the model's stopwatch measured of each part since the start."""
        for name, seconds in self._stopwatch_seconds(strategy).items():
            self._part_seconds[name] += seconds - self._stopwatch_at_start[name]

    def count(self, strategy) -> dict[str, float]:
        """Return all entries of a ``strategy`` as of now."""
        return {
            **self._memory_entries(strategy),
            **_network_entries(strategy),
            **_code_entries(strategy.model),
            "peak_rss_bytes": peak_rss_bytes(),
            **self._time_entries(),
        }

    def _memory_entries(self, strategy) -> dict[str, float]:
        """Return the bytes that a strategy keeps besides the network, by name.

        ``memory_bytes`` is the sum of all that is kept. ``derived_bytes`` are computed
        from it and could be computed again, so they do not count.
        """
        if self.storage_policy is None:
            sizes = sum(replay_memories(strategy), start=MemorySizes())
        else:
            sizes = sizes_of_policy(self.storage_policy)
        codebook_bytes = tensor_bytes(_codebook_tensors(strategy.model))
        bytes_of_method = statistics_bytes(strategy)  # such as class means
        return {
            "buffer_items": sizes.memories,
            "buffer_bytes": sizes.memory_bytes,
            "label_bytes": sizes.label_bytes,
            "codebook_bytes": codebook_bytes,
            "statistics_bytes": bytes_of_method,
            "memory_bytes": (
                sizes.memory_bytes
                + sizes.label_bytes
                + codebook_bytes
                + bytes_of_method
            ),
            "derived_bytes": statistics_bytes(strategy, "derived_bytes"),
        }

    def _time_entries(self) -> dict[str, float]:
        """Return the entries in seconds, and the images per second."""
        seconds = {}
        for name, part_seconds in self._part_seconds.items():
            seconds[f"seconds_{name}"] = part_seconds
        return {
            "images_per_second": self.images / max(self.train_seconds, 1e-9),
            "train_seconds": self.train_seconds,
            **seconds,
            "seconds_other": self.train_seconds - sum(self._part_seconds.values()),
        }

    @staticmethod
    def _stopwatch_seconds(strategy) -> dict[str, float]:
        """Return the seconds of each of ``PARTS`` on the model's stopwatch.

        They are 0 for a model that is no ``SplitModel`` and has no stopwatch.
        """
        if not isinstance(strategy.model, SplitModel):
            return dict.fromkeys(PARTS, 0.0)
        return selected(strategy.model.stopwatch.seconds, PARTS)

    def __str__(self) -> str:
        return "Ledger"

    def state_dict(self) -> dict:
        """Return counts and seconds so far.

        ``before`` are the stopwatch's when training last began or resumed.
        """
        return {
            "entries": self.entries,
            "train_seconds": self.train_seconds,
            "images": self.images,
            "parts": self._part_seconds,
            "before": self._stopwatch_at_start,
        }

    def load_state_dict(self, state: dict) -> None:
        """Load a ``state`` that ``state_dict`` returned."""
        self.entries = dict(state["entries"])
        self.train_seconds = state["train_seconds"]
        self.images = state["images"]
        self._part_seconds = dict(state["parts"])
        self._stopwatch_at_start = dict(state["before"])
        is_training = self._counted_until is not None
        if is_training:  # what was read again before the state does not count
            self._counted_until = time.perf_counter()


def _codebook_tensors(model: nn.Module) -> list[torch.Tensor]:
    """Return the memory blocks of a model, and what else its codebook keeps.

    The list is empty where it has no codebook.
    """
    codebook = getattr(model, "codebook", None)
    if codebook is None:
        return []
    return [*codebook.parameters(), *codebook.buffers()]


def _code_entries(model: nn.Module) -> dict[str, float]:
    """Return the share of the energy of maps that codes keep, where it was measured."""
    error = getattr(model, "codes_error", None)
    return {} if error is None else {"codes_keep": 1 - error}


def _network_entries(strategy) -> dict[str, float]:
    """Return the bytes of the network without its codebook, and of the optimiser.

    Weights that are trained are plastic; buffers, such as the statistics of batch
    norms, and all others are frozen. Entries of the ledger by name.
    """
    model = strategy.model
    codebook_ids = {id(tensor) for tensor in _codebook_tensors(model)}
    plastic: list[torch.Tensor] = []
    frozen: list[torch.Tensor] = []
    for tensor in [*model.buffers(), *model.parameters()]:
        if id(tensor) in codebook_ids:
            continue
        if tensor.requires_grad:
            plastic.append(tensor)
        else:
            frozen.append(tensor)
    optimizer_tensors = tensors_of(list(strategy.optimizer.state.values()))
    return {
        "plastic_bytes": tensor_bytes(plastic),
        "frozen_bytes": tensor_bytes(frozen),
        "optimizer_bytes": tensor_bytes(optimizer_tensors),
    }
