"""Ledger of bytes and time as Avalanche metrics: what a learner keeps and where time is spent."""

import resource
import sys
import time

import torch
from avalanche.evaluation import PluginMetric
from avalanche.evaluation.metric_results import MetricValue

from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.tensor_bytes import tensor_bytes
from crumb_avalanche.training.storage_policies import CompactBuffer

PARTS = ("features", "search", "plastic", "replay")


def peak_rss_bytes() -> int:
    """Return the largest resident set of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def statistics_bytes(strategy) -> int:
    """Return the sum of ``statistics_bytes`` of a strategy and its plugins: what they keep besides a buffer."""
    return sum(getattr(part, "statistics_bytes", 0) for part in (strategy, *strategy.plugins))


class LedgerMetric(PluginMetric[dict]):
    """Counts bytes and seconds; emits each entry as ``Ledger/<entry>`` after every training experience.

    Entries, in bytes unless said: ``buffer_items``, ``buffer_bytes`` (codes, pixels or maps), ``label_bytes``,
    ``codebook_bytes``, ``statistics_bytes``, ``memory_bytes`` (the sum of these: all that is kept besides the
    network), ``plastic_bytes``, ``frozen_bytes``, ``optimizer_bytes``, ``peak_rss_bytes``, ``images_per_second``
    (new images trained on in all epochs, divided by the time of training), ``train_seconds``, ``seconds_features`` (F),
    ``seconds_search``, ``seconds_plastic``, ``seconds_replay``, ``seconds_other``; the parts are disjoint.
    What only a step needs (gradients, activations, the guard's copy of the trainable weights) counts in the peak only.

    Args:
        storage_policy: the buffer; default that of the strategy, if it has one.
    """

    def __init__(self, storage_policy: CompactBuffer | None = None):
        super().__init__()
        self.storage_policy = storage_policy
        self.entries: dict[str, float] = {}
        self.reset()

    def reset(self) -> None:
        self.train_seconds = 0.0
        self.images = 0
        self._parts = dict.fromkeys(PARTS, 0.0)
        self._before = dict.fromkeys(PARTS, 0.0)

    def result(self) -> dict[str, float]:
        return dict(self.entries)

    def before_training_exp(self, strategy) -> None:
        self._start = time.perf_counter()
        self._before = dict(self._seconds(strategy))

    def after_training_iteration(self, strategy) -> None:
        self.images += len(strategy.mb_y)
        self._count_seconds()

    def _count_seconds(self) -> None:
        now = time.perf_counter()
        self.train_seconds += now - self._start
        self._start = now

    def after_training_exp(self, strategy) -> list[MetricValue]:
        self._count_seconds()
        for part, seconds in self._seconds(strategy).items():
            self._parts[part] += seconds - self._before[part]
        self.entries = self.count(strategy)
        step = strategy.clock.train_iterations
        return [MetricValue(self, f"Ledger/{name}", value, step) for name, value in self.entries.items()]

    def count(self, strategy) -> dict[str, float]:
        """Return all entries as of now."""
        model = strategy.model
        policy = getattr(strategy, "storage_policy", None) if self.storage_policy is None else self.storage_policy
        codebook = getattr(model, "codebook", None)
        blocks = [] if codebook is None else list(codebook.parameters())
        others = [weight for weight in model.parameters() if all(weight is not block for block in blocks)]
        frozen = tensor_bytes(weight for weight in others if not weight.requires_grad) + tensor_bytes(model.buffers())
        entries = {
            "buffer_items": 0 if policy is None else len(policy),
            "buffer_bytes": 0 if policy is None else policy.buffer_bytes,
            "label_bytes": 0 if policy is None else policy.label_bytes,
            "codebook_bytes": tensor_bytes(blocks),
            "statistics_bytes": statistics_bytes(strategy),
        }
        entries["memory_bytes"] = sum(entries.values()) - entries["buffer_items"]
        entries |= {
            "plastic_bytes": tensor_bytes(weight for weight in others if weight.requires_grad),
            "frozen_bytes": frozen,
            "optimizer_bytes": tensor_bytes(
                value
                for state in strategy.optimizer.state.values()
                for value in state.values()
                if isinstance(value, torch.Tensor)
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
        """Return counts and seconds so far; ``before`` are the stopwatch's at the start of the experience."""
        return {
            "entries": self.entries,
            "train_seconds": self.train_seconds,
            "images": self.images,
            "parts": self._parts,
            "before": self._before,
        }

    def load_state_dict(self, state: dict) -> None:
        """Load what ``state_dict`` returned."""
        self.entries, self._parts, self._before = dict(state["entries"]), dict(state["parts"]), dict(state["before"])
        self.train_seconds, self.images = state["train_seconds"], state["images"]
