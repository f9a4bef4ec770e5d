"""Train a learner by replay: a few images at a time, as one experience of the method's strategy.

The strategy is built anew for each piece and holds nothing afterwards, so what is learned depends on the pieces alone,
not on lessons, processes or files. Avalanche is imported when something is taught.
"""

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from crumb_avalanche.learner.kinds import REPLAY_LEARNING, ReplayKind
from crumb_avalanche.learner.replay_network import ReplayNetwork, quantizer_of
from crumb_avalanche.memory.buffers import MapMemory, MemoryBuffer
from crumb_avalanche.memory.selection import EveryJth
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.system.rng_state import preserve_rng_state
from crumb_avalanche.system.tensor_bytes import tensor_bytes

if TYPE_CHECKING:
    from crumb_avalanche.training.stream_strategy import StreamStrategy


class HeldRows(MapMemory):
    """Memories between two pieces: rows of any kind; rows of its own are float16 maps without the feature scale."""

    @staticmethod
    def item_bytes(model):
        """Return the bytes of a map, without its label."""
        return MapMemory.item_bytes(model) // 2

    def to_rows(self, batch, positions, model):
        """Turn some maps of a batch into rows."""
        return batch.feature_map[positions].clamp(-65504, 65504).half().contiguous()

    def maps(self) -> tuple[Tensor, Tensor]:
        """Return all maps ``(n, C, H, W)`` float32 and their labels ``(n,)``."""
        held = (self.labels >= 0).nonzero().flatten()
        rows = torch.empty(0) if self.rows is None else self.rows[held].float()
        return rows, self.labels[held].long()


def memory_bytes(method: str, kind: ReplayKind, network: ReplayNetwork) -> tuple[int, int]:
    """Return the bytes of a method that do not depend on classes, and those of one memory with its label."""
    from crumb_avalanche.methods.registry import get_strategy

    entry, model = get_strategy(method), network.model
    settings = entry.method_settings(kind.method)
    codebook = model.codebook
    fixed = entry.fixed_bytes(model, settings, 0) if codebook is None else tensor_bytes([codebook.blocks])
    return fixed, entry.bytes_of_item(model, settings) + 2


def calibrated(network: ReplayNetwork, examples: Tensor) -> bool:
    """Set feature scale and codebook from examples; returns whether they were of use (they may be all alike)."""
    try:
        with preserve_rng_state():
            calibrate(network.model, TensorDataset(examples), "kmeans")
    except ValueError:
        return False
    return True


def train(
    method: str,
    kind: ReplayKind,
    network: ReplayNetwork,
    memories: MemoryBuffer,
    examples: Tensor,
    labels: Tensor,
    known: list[int],
    piece: int,
) -> None:
    """Train on a piece and store memories of it.

    Args:
        method: a name in ``REPLAY``.
        kind: its entry.
        network: trained in place.
        memories: what was stored before; changed in place.
        examples: ``(n, C, H, W)`` maps of F, or ``(n, 3, h, w)`` uint8 pixels.
        labels: ``(n,)`` int64.
        known: classes of earlier pieces.
        piece: number of earlier pieces; seeds the random draws.
    """
    from avalanche.benchmarks import benchmark_from_datasets
    from avalanche.benchmarks.utils import as_classification_dataset

    with preserve_rng_state():
        random.seed(piece)
        np.random.seed(piece)
        torch.manual_seed(piece)
        strategy = _strategy(method, kind, network, memories, known, piece)
        data = TensorDataset(examples, labels)
        data.targets = labels.tolist()  # type: ignore[attr-defined]
        strategy.train(benchmark_from_datasets(train=[as_classification_dataset(data)]).train_stream[0])
        _rehearse(strategy, kind.rehearsals)
        network.model.eval().zero_grad()
        _keep(strategy, network, memories)


def _strategy(
    method: str, kind: ReplayKind, network: ReplayNetwork, memories: MemoryBuffer, known: list[int], piece: int
) -> "StreamStrategy":
    """Build the strategy of a method as it was after the last piece."""
    from avalanche.logging import BaseLogger
    from avalanche.training.plugins import EvaluationPlugin

    from crumb_avalanche.methods.registry import LearningSettings, build_strategy

    strategy = build_strategy(
        method,
        network.model,
        LearningSettings(**REPLAY_LEARNING | kind.learning),
        memories.max_size,
        method=kind.method,
        evaluator=EvaluationPlugin(loggers=[BaseLogger()]),
    )
    strategy.seen_classes.seen = list(known)
    strategy.clock.train_exp_counter = piece
    plugin, storage = _memory(strategy)
    if not kind.herds:
        storage.rule = EveryJth()
    storage.load_state_dict(storage.state_dict() | memories.state_dict())
    if network.quantizer is not None:
        storage.quantizer.load_state_dict({"centroids": network.quantizer.centroids})
    changed: dict[str, Any] = {"classes": [], "earlier": list(known)} | (
        {"old_network": network.old} if kind.herds else {}
    )
    plugin.load_state_dict(plugin.state_dict() | changed)
    plugin.returning_expected = True
    return strategy


def _memory(strategy: "StreamStrategy") -> tuple[Any, Any]:
    """Return the plugin that stores memories, and its buffer."""
    return strategy.memory, strategy.storage_policy


def _rehearse(strategy: "StreamStrategy", steps: int) -> None:
    """Take steps on memories with equal shares of all classes, the new one included, which would else prevail."""
    from crumb_avalanche.training.crumb import memory_step

    (plugin, storage), model = _memory(strategy), strategy.model
    model.train()
    for _ in range(steps):
        slots = storage.sample(set(), at_least=strategy.train_mb_size)
        maps, labels = storage.replay(slots, model)
        memory_step(strategy, strategy._criterion(plugin.logits(model, maps), labels))


def _keep(strategy: "StreamStrategy", network: ReplayNetwork, memories: MemoryBuffer) -> None:
    """Keep what a strategy learned and stored."""
    plugin, storage = _memory(strategy)
    stored = storage.state_dict()
    memories.load_state_dict(stored | {"rule": stored["rule"] or memories.rule.state_dict()})
    if "centroids" in stored:
        network.quantizer = quantizer_of(stored["centroids"])
    network.old = {name: value.clone() for name, value in plugin.state_dict().get("old_network", {}).items()}
    answers = plugin.answer_state(strategy)
    if "means" in answers:
        network.means = answers["means"].new_zeros(network.model.n_classes, answers["means"].shape[1])
        network.means[answers["classes"]] = answers["means"]
