"""Learners by replay: memories, trained layers and confidence of the classes taught.

Each piece of a clip is one experience of the method's strategy, which is built anew for it and holds nothing
afterwards: what is learned depends on the pieces alone, not on lessons, processes or files. Avalanche is imported when
something is taught, not for answers.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.data import TensorDataset

from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.evidence import Evidence, evidence
from crumb_avalanche.learner.looks import WHOLE, Looks
from crumb_avalanche.learner.replay_network import HeldRows, ReplayNetwork, quantizer_of
from crumb_avalanche.memory.buffers import StreamBatch
from crumb_avalanche.memory.packing import bits_per_code, packed_bytes
from crumb_avalanche.memory.selection import ClassBalancedReservoir, EveryJth
from crumb_avalanche.methods.closed_form import BudgetError
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.counted import counted
from crumb_avalanche.system.rng_state import preserve_rng_state
from crumb_avalanche.system.tensor_bytes import tensor_bytes
from crumb_avalanche.system.tensor_file import StateError

if TYPE_CHECKING:
    from crumb_avalanche.training.stream_strategy import StreamStrategy

FIRST_IMAGES = 32  # shown before codebook or quantizer are fitted
FIRST_LOCATIONS = 512  # of maps that they are fitted on, at least


@dataclass(frozen=True)
class ReplayMethod:
    """What a learner needs to know of a method by replay."""

    memory: str  # what a memory is, in words
    temperature: float = 1.0  # of its scores
    images: bool = False  # memories are images; else maps are calibrated on and stored as codes
    herds: bool = False  # it chooses its memories itself and orders them by priority
    rehearsals: int = 0  # steps after each piece on memories with equal shares of all classes
    learning: dict[str, Any] = field(default_factory=dict, hash=False)  # LearningSettings that differ from LEARNING


LEARNING: dict[str, Any] = dict(first_epochs=5, clamp_gradients=10.0)
REPLAY: dict[str, ReplayMethod] = {
    # The usual replay weight, 5, holds back a new class that is shown in few images.
    "crumb": ReplayMethod("codes of feature maps", rehearsals=8, learning=dict(replay_weight=1.0, replay_steps=4)),
    "remind": ReplayMethod("product-quantizer codes of feature maps", rehearsals=8),
    "er": ReplayMethod("images", images=True, rehearsals=8),
    "icarl": ReplayMethod("images", temperature=0.05, images=True, herds=True),
}


class ReplayClassifier(Classifier):
    """Names, memories, trained layers and confidence of the classes taught.

    *Learning*: methods that store codes keep float16 maps at first and answer by the nearest class mean; as soon as 32
    images were shown, or the budget holds no more maps, they fit codebook or quantizer, train on all of these maps, and
    drop them.

    *Budget*: memories with their labels, codebook or quantizer, head, class means and the old network of iCaRL. What
    the fixed parts leave is shared equally by the classes; for a new class, all others give up memories first.

    *Confidence*: temperature of the scores as in closed form; unknown images by distances of the mean of F's map from
    running class means (``statistics``).
    """

    statistics: ClassMeans

    def __init__(self, method: str, frozen: SplitModel, budget_bytes: int):
        self.method, self.replay, self.frozen, self.budget_bytes = method, REPLAY[method], frozen, budget_bytes
        self.kept, self.looks = frozen.map_shape[0], WHOLE
        self._start()
        self._begin()
        self._start_confidence()

    def __deepcopy__(self, memo: dict) -> "Classifier":
        memo.update({id(part): part for part in (self.frozen, self.frozen.feature_extractor)})  # never changed
        return super().__deepcopy__(memo)

    def _begin(self) -> None:
        """Initialise what is learned and stored, without images."""
        self.statistics = ClassMeans(len(self.names), self.kept)
        self.network = ReplayNetwork(self.frozen, self.method == "crumb", self.replay.images)
        self.network.resize(max(1, len(self.names)))
        self.memories = HeldRows(1, EveryJth() if self.replay.images else ClassBalancedReservoir())
        self.pieces = 0

    @property
    def waits(self) -> bool:
        """Whether maps are kept until codebook or quantizer can be fitted."""
        return self.pieces == 0 and not self.replay.images

    # Budget

    def _class_bytes(self, number: int) -> int:
        rows = self.memories.rows
        memory = 0 if rows is None else rows[0].numel() * rows.element_size() + 2
        return self._bytes_beside() + self.memories.slots.count(number) * memory

    def _bytes_beside(self) -> int:
        """Return the bytes of a class beside its memories."""
        row = self.network.row_bytes
        return 4 * (self.length + 1) + row + (row // 2 + row if self.replay.herds else 0)

    def _capacity(self, classes: int, maps: bool) -> int:
        """Return the number of memories, or of maps before there are codes; raise BudgetError for too few."""
        height, width = self.frozen.map_shape[1:]
        if maps:
            fixed, item = 0, HeldRows.item_bytes(self.frozen) + 2
            least, what = -(-FIRST_LOCATIONS // (height * width)), "feature maps to begin with"
        else:
            from crumb_avalanche.methods.registry import get_strategy

            entry, model = get_strategy(self.method), self.network.model
            settings, table = entry.settings(), model.codebook
            fixed = entry.fixed_bytes(model, settings, 0) if table is None else tensor_bytes([table.blocks])
            item = entry.bytes_of_item(model, settings) + 2
            least, what = classes, "a memory of each class"
        fixed += classes * self._bytes_beside()
        if fixed + least * item > self.budget_bytes:
            raise BudgetError(
                f"{fixed + least * item:,} bytes are needed for {counted(classes, 'class')} with "
                f"{f'{least} {what}' if maps else what}, but the budget is {self.budget_bytes:,}: forget a class, or "
                "make a learner with a larger budget_bytes and teach it again"
            )
        return (self.budget_bytes - fixed) // item

    def _make_room(self, classes: int) -> str:
        capacity = self._capacity(classes, maps=False)
        if self.waits:
            capacity = min(FIRST_IMAGES, self._capacity(classes, maps=True))
        held = len(self.memories)
        if not self.waits:
            self.memories.trim(capacity // classes, latest=self.replay.herds)
        self.memories.set_capacity(capacity)
        given_up = held - len(self.memories)
        if not given_up:
            return ""
        return (
            f"the classes taught give up {given_up} of {counted(held, 'memory')}, so that each of {classes} may keep "
            f"{capacity // classes}"
        )

    def _grow(self, classes: int) -> None:
        super()._grow(classes)
        self.network.resize(classes)

    @property
    def stored(self) -> list[str]:
        """What is stored, in words."""
        memory = "feature maps in half precision" if self.waits else self.replay.memory
        beside = tensor_bytes(self.network.tensors()) + tensor_bytes(self.statistics.tensors())
        return [
            f"{len(self.memories)} memories ({memory}), room for {self.memories.max_size}",
            f"{beside:,} bytes of tables, head and class means",
            *(["the trained layers, which take the place of the network's"] if self.pieces else []),
        ]

    @property
    def remains_after_forget(self) -> str:
        """What ``forget`` leaves of the images of a class, in words; empty for nothing."""
        if not self.pieces:
            return ""
        table = {"crumb": " and codebook", "remind": " and quantizer"}.get(self.method, "")
        return f"trained layers{table}, which all classes share, were fitted on its images as well"

    def tensors(self) -> list[Tensor]:
        """Return the tensors that count for the budget."""
        rows = [] if self.memories.rows is None else [self.memories.rows]
        return [*self.statistics.tensors(), *self.network.tensors(), self.memories.labels, *rows]

    # Learning

    def learn(self, features: Tensor, number: int) -> None:
        """Learn the maps, or the pixels, of a piece of a clip of a class."""
        known = self.statistics.image_counts.nonzero().flatten().tolist()
        labels = torch.full((len(features),), number)
        self.statistics.update(self._pooled(features), labels)
        self.images[number] += len(features)
        if self.waits:
            kept, its_labels = self.memories.maps()
            features, labels = (
                torch.cat(pair) if len(kept) else pair[1] for pair in ((kept, features), (its_labels, labels))
            )
            enough = len(features) >= min(FIRST_IMAGES, self.memories.max_size + 1)
            if not enough or not self._calibrated(features):
                new = slice(len(kept), None)
                batch = StreamBatch(labels[new], features[new], None, None)  # type: ignore[arg-type]
                self.memories.store(batch, self.frozen)
                return
            order = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))
            features, labels, known = features[order], labels[order], []
            self.memories = HeldRows(self._capacity(len(self.taught), maps=False), EveryJth())
        elif not self.network.model.calibrated:
            self._calibrated(features)
        self._train(features, labels, known)
        self.pieces += 1

    def _calibrated(self, examples: Tensor) -> bool:
        """Set feature scale and codebook from examples; returns whether they were of use (they may be all alike)."""
        try:
            with preserve_rng_state():
                calibrate(self.network.model, TensorDataset(examples), "kmeans")
        except ValueError:
            return False
        return True

    def _train(self, examples: Tensor, labels: Tensor, known: list[int]) -> None:
        """Train on a piece and store memories of it; the number of earlier pieces seeds the random draws.

        Args:
            examples: ``(n, C, H, W)`` maps of F, or ``(n, 3, h, w)`` uint8 pixels.
            labels: ``(n,)`` int64.
            known: classes of earlier pieces.
        """
        from avalanche.benchmarks import benchmark_from_datasets
        from avalanche.benchmarks.utils import as_classification_dataset

        with preserve_rng_state():
            random.seed(self.pieces)
            np.random.seed(self.pieces)
            torch.manual_seed(self.pieces)
            strategy = self._strategy(known)
            data = TensorDataset(examples, labels)
            data.targets = labels.tolist()  # type: ignore[attr-defined]
            strategy.train(benchmark_from_datasets(train=[as_classification_dataset(data)]).train_stream[0])
            self._rehearse(strategy)
            self.network.model.eval().zero_grad()
            self._keep(strategy)

    def _strategy(self, known: list[int]) -> "StreamStrategy":
        """Build the strategy of the method as it was after the last piece."""
        from avalanche.logging import BaseLogger
        from avalanche.training.plugins import EvaluationPlugin

        from crumb_avalanche.methods.registry import LearningSettings, build_strategy

        learning = LearningSettings(**LEARNING | self.replay.learning)
        evaluator = EvaluationPlugin(loggers=[BaseLogger()])
        strategy: Any = build_strategy(
            self.method, self.network.model, learning, self.memories.max_size, evaluator=evaluator
        )
        strategy.seen_classes.seen = list(known)
        strategy.clock.train_exp_counter = self.pieces
        plugin, storage = strategy.memory, strategy.storage_policy
        if not self.replay.herds:
            storage.rule = EveryJth()
        storage.load_state_dict(storage.state_dict() | self.memories.state_dict())
        if self.network.quantizer is not None:
            storage.quantizer.load_state_dict({"centroids": self.network.quantizer.centroids})
        changed: dict[str, Any] = {"classes": [], "earlier": list(known)}
        if self.replay.herds:
            changed["old_network"] = self.network.old
        plugin.load_state_dict(plugin.state_dict() | changed)
        plugin.returning_expected = True
        return strategy

    def _rehearse(self, strategy: Any) -> None:
        """Take steps on memories with equal shares of all classes, the new one included, which would else prevail."""
        from crumb_avalanche.training.crumb import memory_step

        storage, model = strategy.storage_policy, strategy.model
        model.train()
        for _ in range(self.replay.rehearsals):
            slots = storage.sample(set(), at_least=strategy.train_mb_size)
            maps, labels = storage.replay(slots, model)
            memory_step(strategy, strategy._criterion(strategy.memory.logits(model, maps), labels))

    def _keep(self, strategy: Any) -> None:
        """Keep what a strategy learned and stored."""
        stored, plugin, network = strategy.storage_policy.state_dict(), strategy.memory, self.network
        self.memories.load_state_dict(stored | {"rule": stored["rule"] or self.memories.rule.state_dict()})
        if "centroids" in stored:
            network.quantizer = quantizer_of(stored["centroids"])
        network.old = {name: value.clone() for name, value in plugin.state_dict().get("old_network", {}).items()}
        answers = plugin.answer_state(strategy)
        if "means" in answers:
            network.means = answers["means"].new_zeros(network.model.n_classes, answers["means"].shape[1])
            network.means[answers["classes"]] = answers["means"]

    # Answers

    def predict_before_learning(self, features: Tensor, number: int) -> Evidence | None:
        """Answer for a clip before it is learned, and record how sure the answer is."""
        known = self.statistics.image_counts.nonzero().flatten().tolist()
        if number not in known or len(known) < 2:
            return None
        found = self.evidence(self.examine(features))
        self.confidence.observe(found, number)
        return self._confidence_before.calibrated(found)

    def compute(self, model: SplitModel, pixels: Tensor) -> Tensor:
        """Compute what is learned or asked of pixels: F's maps ``(n, C, H, W)``, or the pixels themselves."""
        return pixels if self.replay.images else model.extract(pixels)

    @torch.no_grad()
    def _pooled(self, features: Tensor) -> Tensor:
        model = self.network.model
        maps = model.features(features) / model.feature_scale if self.replay.images else features
        return maps.mean((2, 3))

    @torch.no_grad()
    def examine(self, features: Tensor) -> Tensor:
        """Compute means of F's maps and scores, ``(n, C + classes)``."""
        return torch.cat([self._pooled(features), self._scores(self.network.inputs(features))], 1)

    def _scores(self, inputs: Tensor) -> Tensor:
        if self.pieces:
            return self.network.scores(inputs)
        return normalize(inputs.mean((2, 3))) @ normalize(self.statistics.means).mT

    def evidence(self, features: Tensor) -> Evidence:
        """Compute scores and distances of images from what ``examine`` returned."""
        found = evidence(self.statistics, features[:, : self.length])
        if not self.pieces:
            return found
        return found._replace(scores=features[:, self.length + found.labels].double() / self.replay.temperature)

    def explain(self, model: SplitModel, pixels: Tensor) -> Tensor:
        """Attribute the margin of an answer to the locations of the map that enters the plastic layers, ``(H, W)``.

        A location's share is the derivative of the margin by its values in the map, times the difference of these
        values from the mean over locations, summed over channels.
        """
        inputs = self.network.inputs(self.compute(model, pixels)).requires_grad_()
        scores = self._scores(inputs)[0, self.taught]
        best = scores.topk(min(2, len(self.taught))).values
        (gradient,) = torch.autograd.grad(best[0] - best[1] if len(best) > 1 else best[0], inputs)
        values = inputs.detach()
        return ((values - values.mean((2, 3), keepdim=True)) * gradient).sum(1)[0]

    # Changes

    def move(self, old: str, new: str) -> None:
        """Raise ValueError: memories of one class would train the head as those of another."""
        raise ValueError(
            f"a learner by replay ({self.method}) was trained to tell {old} from {new}: forget {old}, and teach its "
            f"images as {new}"
        )

    def forget(self, name: str) -> None:
        """Remove a class with all that is stored of it alone; the last class with all that was learned."""
        number = self.find(name)
        super().forget(name)
        self.memories.forget(number)
        self.network.forget(number)
        if not self.taught:
            self._begin()

    def check_mergeable(self, other: Classifier) -> None:
        """Raise ValueError: weights that were trained apart have no sum."""
        raise ValueError(
            f"learners by replay ({self.method}) cannot be merged: their layers were trained apart, and no mean of "
            "them answers as one that was taught with both; teach one of them the images of the other, or use a "
            "method in closed form, such as recommended"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values and tensors, which may share memory with this instance."""
        replay = {"pieces": self.pieces, "network": self.network.state_dict(), "memories": self.memories.state_dict()}
        return super().state_dict() | {"replay": replay}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned; raise StateError if a part does not fit the network."""
        super().load_state_dict(state)
        replay = state["replay"]
        self.pieces = replay["pieces"]
        self.network.load_state_dict(replay["network"])
        self._check_rows(replay["memories"]["rows"])
        rule = ClassBalancedReservoir() if self.waits else EveryJth()
        if rule.state_dict().keys() != replay["memories"]["rule"].keys():
            raise StateError(f"the selection rule of the memories is not {type(rule).__name__}'s")
        self.memories = HeldRows(len(replay["memories"]["labels"]), rule)
        self.memories.load_state_dict(replay["memories"])

    def _check_rows(self, rows: Tensor | None) -> None:
        """Raise StateError unless the parts of a loaded network and its memories are those of the method."""
        network, (channels, height, width) = self.network, self.frozen.map_shape
        quantizer, codebook = network.quantizer, network.model.codebook
        size, head = self.frozen.image_size, len(network.head[0])
        parts = {"remind": quantizer, "icarl": network.means}
        wrong = [name for name, part in parts.items() if (part is not None) != (name == self.method and not self.waits)]
        if wrong or head != max(1, len(self.names)):
            raise StateError(
                f"the trained layers have {head} outputs for {len(self.names)} classes, or are none of {self.method}"
            )
        shape: tuple[int, ...] = (3, size, size)
        dtype = torch.uint8
        if self.waits:
            shape, dtype = (channels, height, width), torch.float16
        elif quantizer is not None:
            shape = (quantizer.map_bytes(height, width),)
        elif codebook is not None:
            bits = bits_per_code(codebook.codebook_size)
            shape = (packed_bytes(codebook.groups(channels) * height * width, bits),)
        if rows is not None and (rows.shape[1:] != shape or rows.dtype != dtype):
            raise StateError(f"memories are {rows.dtype} {tuple(rows.shape[1:])}, not {dtype} {shape}")


def new_classifier(
    method: str,
    model: SplitModel,
    budget_bytes: int,
    moments: dict[str, Any] | None = None,
    looks: Sequence[float] = (1.0,),
) -> Classifier:
    """Make a classifier without classes of any method that a learner may have; see ``Classifier.of_model``."""
    if method in REPLAY:
        return ReplayClassifier(method, model, budget_bytes)
    return Classifier.of_model(method, model, budget_bytes, moments, Looks(tuple(looks)))
