"""Ledger of bytes and time as Avalanche metrics: what a learner keeps and where time is spent."""

import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
from avalanche.benchmarks.utils import AvalancheDataset
from avalanche.evaluation import PluginMetric
from avalanche.evaluation.metric_results import MetricValue
from avalanche.training.storage_policy import ExemplarsBuffer

from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.process import preserve_rng_state
from crumb_avalanche.system.tensor_file import tensor_bytes

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]
from crumb_avalanche.training.stateful import storage_policies

PARTS = ("features", "search", "plastic", "replay")
LABEL_BYTES = 8  # of a label in Avalanche's data sets


def peak_rss_bytes() -> int:
    """Return the largest resident set of this process so far, in bytes."""
    if resource is None:
        import psutil  # which Avalanche needs

        memory = psutil.Process().memory_info()
        return getattr(memory, "peak_wset", memory.rss)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def statistics_bytes(strategy, attribute: str = "statistics_bytes") -> int:
    """Return the sum of ``statistics_bytes`` of a strategy and its plugins: what they keep besides a buffer."""
    return sum(getattr(part, attribute, 0) for part in (strategy, *strategy.plugins))


def bytes_of_exemplars(exemplars: AvalancheDataset) -> tuple[int, int, int]:
    """Return the number of exemplars in a data set, the bytes of their images and those of their labels.

    Every image counts as the first one, before the transforms that the
    ``AvalancheDataset`` applies: a tensor or array by its own type, a PIL image by a
    byte for each pixel and channel.
    """
    if not len(exemplars):
        return 0, 0, 0
    with preserve_rng_state():
        image = exemplars.remove_current_transform_group()[0][0]
    one = (
        tensor_bytes([image])
        if isinstance(image, torch.Tensor)
        else np.asarray(image).nbytes
    )
    return len(exemplars), len(exemplars) * one, len(exemplars) * LABEL_BYTES


def bytes_of_policy(policy) -> tuple[int, int, int]:
    """Return the number of memories in a storage policy, their bytes and those of their labels."""
    if hasattr(policy, "buffer_bytes"):
        return len(policy), policy.buffer_bytes, policy.label_bytes
    return (
        bytes_of_exemplars(policy.buffer)
        if isinstance(policy, ExemplarsBuffer)
        else (0, 0, 0)
    )


def replay_memories(strategy) -> Iterator[tuple[int, int, int]]:
    """Yield the number, bytes and label bytes of the memories in each replay buffer of a strategy and its plugins."""
    yield from map(bytes_of_policy, storage_policies(strategy))
    for plugin in strategy.plugins:
        if isinstance(lists := getattr(plugin, "buffers", None), list):  # A-GEM
            yield from map(bytes_of_exemplars, lists)
        if isinstance(images := getattr(plugin, "memory_x", None), dict):  # GEM
            labels = plugin.memory_y.values()
            yield (
                sum(map(len, labels)),
                tensor_bytes(images.values()),
                tensor_bytes(labels),
            )


class LedgerMetric(PluginMetric[dict]):
    """Counts bytes and seconds; emits each entry as ``Ledger/<entry>`` after every training experience.

    Entries, in bytes unless said: ``buffer_items``, ``buffer_bytes`` (codes, pixels or
    maps), ``label_bytes``, ``codebook_bytes``, ``statistics_bytes``, ``memory_bytes``
    (the sum of these: all that is kept besides the network), ``derived_bytes`` (what
    answers are computed from and what can be computed again from the memory, such as
    the solution of a closed form), ``plastic_bytes``, ``frozen_bytes``,
    ``optimizer_bytes``, ``peak_rss_bytes``, ``images_per_second`` (new images trained
    on in all epochs, divided by the time of training), ``train_seconds``,
    ``seconds_features`` (F), ``seconds_search``, ``seconds_plastic``,
    ``seconds_replay``, ``seconds_other``; the parts are disjoint. What only a step
    needs (gradients, activations, the guard's copy of the trainable weights) counts in
    the peak only. Evaluation during training (``eval_every``) counts neither in the
    time of training nor in its parts.

    The buffers of this package count as allocated, an exemplar of Avalanche's as
    ``bytes_of_exemplars`` says; the memories of ``AGEMPlugin`` and ``GEMPlugin`` count
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
        self.train_seconds = 0.0
        self.images = 0
        self._parts = dict.fromkeys(PARTS, 0.0)
        self._before = dict.fromkeys(PARTS, 0.0)
        self._start: float | None = None  # None outside training

    def result(self) -> dict[str, float]:
        return dict(self.entries)

    def before_training_exp(self, strategy) -> None:
        self._start = time.perf_counter()
        self._before = self._seconds(strategy)

    def after_training_iteration(self, strategy) -> None:
        self.images += len(strategy.mb_y)
        self._count_seconds()

    def before_eval(self, strategy) -> None:
        if self._start is not None:
            self._count_seconds()
            self._count_parts(strategy)

    def after_eval(self, strategy) -> None:
        if self._start is not None:
            self.before_training_exp(strategy)

    def after_training_exp(self, strategy) -> list[MetricValue]:
        self._count_seconds()
        self._count_parts(strategy)
        self._start = None
        self.entries = self.count(strategy)
        step = strategy.clock.train_iterations
        return [
            MetricValue(self, f"Ledger/{name}", value, step)
            for name, value in self.entries.items()
        ]

    def _count_seconds(self) -> None:
        assert self._start is not None, "called in training only"
        now = time.perf_counter()
        self.train_seconds += now - self._start
        self._start = now

    def _count_parts(self, strategy) -> None:
        for part, seconds in self._seconds(strategy).items():
            self._parts[part] += seconds - self._before[part]

    def count(self, strategy) -> dict[str, float]:
        """Return all entries of a ``strategy`` as of now."""
        model = strategy.model
        one = self.storage_policy
        memories = (
            [*replay_memories(strategy)] if one is None else [bytes_of_policy(one)]
        )
        items, sizes, labels = (sum(column) for column in zip((0, 0, 0), *memories))
        codebook = getattr(model, "codebook", None)
        blocks = [] if codebook is None else list(codebook.parameters())
        others = [
            weight
            for weight in model.parameters()
            if all(weight is not block for block in blocks)
        ]
        frozen = tensor_bytes(
            weight for weight in others if not weight.requires_grad
        ) + tensor_bytes(model.buffers())
        states = [
            value
            for state in strategy.optimizer.state.values()
            for value in state.values()
        ]
        entries = {
            "buffer_items": items,
            "buffer_bytes": sizes,
            "label_bytes": labels,
            "codebook_bytes": tensor_bytes(blocks),
            "statistics_bytes": statistics_bytes(strategy),
        }
        entries["memory_bytes"] = sum(entries.values()) - entries["buffer_items"]
        entries |= {
            "derived_bytes": statistics_bytes(strategy, "derived_bytes"),
            "plastic_bytes": tensor_bytes(
                weight for weight in others if weight.requires_grad
            ),
            "frozen_bytes": frozen,
            "optimizer_bytes": tensor_bytes(
                value for value in states if isinstance(value, torch.Tensor)
            ),
            "peak_rss_bytes": peak_rss_bytes(),
            "images_per_second": self.images / max(self.train_seconds, 1e-9),
            "train_seconds": self.train_seconds,
        }
        entries |= {f"seconds_{part}": seconds for part, seconds in self._parts.items()}
        entries["seconds_other"] = self.train_seconds - sum(self._parts.values())
        return entries

    @staticmethod
    def _seconds(strategy) -> dict[str, float]:
        if not isinstance(strategy.model, SplitModel):
            return dict.fromkeys(PARTS, 0.0)
        return {part: strategy.model.stopwatch.seconds[part] for part in PARTS}

    def __str__(self) -> str:
        return "Ledger"

    def state_dict(self) -> dict:
        """Return counts and seconds so far; ``before`` are the stopwatch's when training last began or resumed."""
        return {
            "entries": self.entries,
            "train_seconds": self.train_seconds,
            "images": self.images,
            "parts": self._parts,
            "before": self._before,
        }

    def load_state_dict(self, state: dict) -> None:
        """Load a ``state`` that ``state_dict`` returned."""
        self.entries, self._parts, self._before = (
            dict(state["entries"]),
            dict(state["parts"]),
            dict(state["before"]),
        )
        self.train_seconds, self.images = state["train_seconds"], state["images"]
