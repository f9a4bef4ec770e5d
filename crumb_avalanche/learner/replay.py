"""A learner by replay: CRUMB's memories, trained layers and confidence of the classes taught.

Each piece of a clip is one experience of the method's strategy, which is built anew for it and holds nothing
afterwards: what is learned depends on the pieces alone, not on lessons, processes or files. Avalanche is imported when
something is taught, not for answers.
"""

import copy
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.data import TensorDataset

from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.evidence import Evidence, evidence, shares_of
from crumb_avalanche.learner.looks import WHOLE, Looks
from crumb_avalanche.memory.buffers import CodeBuffer, MapBuffer, StreamBatch
from crumb_avalanche.memory.selection import ClassBalancedReservoir, EveryJth
from crumb_avalanche.methods.closed_form import BudgetError
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.models.backbones import usual_codebook_dim
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.counted import counted
from crumb_avalanche.system.rng_state import preserve_rng_state
from crumb_avalanche.system.tensor_bytes import tensor_bytes
from crumb_avalanche.system.tensor_file import StateError

if TYPE_CHECKING:
    from crumb_avalanche.training.stream_strategy import StreamStrategy

REPLAY = ("crumb",)  # methods that train layers
FIRST_IMAGES = 32  # shown before the codebook is fitted
FIRST_LOCATIONS = 512  # of maps that it is fitted on, at least
REHEARSALS = 8  # steps after each piece on memories with equal shares of all classes
# Where the learning settings differ. The usual replay weight, 5, holds back a new class that is shown in few images.
LEARNING: dict[str, Any] = dict(first_epochs=5, clamp_gradients=10.0, replay_weight=1.0, replay_steps=4)
FROZEN = "feature_extractor."


class HeldRows(MapBuffer):
    """Memories between two pieces: codes, or before there are any, float16 maps without the feature scale."""

    @staticmethod
    def item_bytes(model):
        """Return the bytes of a map, without its label."""
        return MapBuffer.item_bytes(model) // 2

    def to_rows(self, batch, positions, model):
        """Turn some maps of a batch into rows."""
        return batch.feature_map[positions].clamp(-65504, 65504).half().contiguous()

    def maps(self) -> tuple[Tensor, Tensor]:
        """Return all maps ``(n, C, H, W)`` float32 and their labels ``(n,)``."""
        held = (self.labels >= 0).nonzero().flatten()
        rows = torch.empty(0) if self.rows is None else self.rows[held].float()
        return rows, self.labels[held].long()


class ReplayClassifier(Classifier):
    """Names, memories, trained layers and confidence of the classes taught.

    *Learning*: float16 maps are kept at first, and answers are by the nearest class mean. As soon as 32 images were
    shown, or the budget holds no more maps, the codebook is fitted, and the layers are trained on all of these maps,
    which are dropped.

    *Budget*: memories with their labels, codebook, head and class means. What the fixed parts leave is shared equally
    by the classes; for a new class, all others give up memories first.

    *Confidence*: temperature of the scores as in closed form; unknown images by distances of the mean of F's map from
    running class means (``statistics``).

    Attributes:
        model: the trained layers, with F of ``frozen``. Its head grows; a new output is zero, so that what it answers
            does not depend on when it grew.
        pieces: number of pieces that the layers were trained on.
    """

    statistics: ClassMeans

    def __init__(self, method: str, frozen: SplitModel, budget_bytes: int):
        self.method, self.frozen, self.budget_bytes = method, frozen, budget_bytes
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
        shared = {id(self.frozen.feature_extractor): self.frozen.feature_extractor}
        self.model: SplitModel = copy.deepcopy(self.frozen, shared)
        _freeze_norms(self.model.plastic_layers)
        self.model.codebook = Codebook(codebook_dim=usual_codebook_dim(self.model))
        self._resize(max(1, len(self.names)))
        self.memories = HeldRows(1, ClassBalancedReservoir())
        self.pieces = 0

    @property
    def waits(self) -> bool:
        """Whether maps are kept until the codebook can be fitted."""
        return self.pieces == 0

    @property
    def _head(self) -> list[Tensor]:
        """Weights of the head, with a row for each class."""
        return [weight.detach() for weight in self.model.plastic_layers.get_submodule(self.model.head).parameters()]

    @torch.no_grad()
    def _resize(self, classes: int) -> None:
        """Give the head another number of outputs; new ones are zero."""
        before = self._head
        with preserve_rng_state():
            self.model.reset_head(classes)
        for weight, values in zip(self._head, before):
            weight.zero_()
            weight[: len(values)] = values[:classes]
        self.model.eval()

    # Budget

    def _class_bytes(self, number: int) -> int:
        rows = self.memories.rows
        memory = 0 if rows is None else rows[0].numel() * rows.element_size() + 2
        return self._bytes_beside() + self.memories.slots.count(number) * memory

    def _bytes_beside(self) -> int:
        """Return the bytes of a class beside its memories."""
        return 4 * (self.length + 1) + sum(weight[0].numel() * weight.element_size() for weight in self._head)

    def _capacity(self, classes: int, maps: bool) -> int:
        """Return the number of memories, or of maps before there are codes; raise BudgetError for too few."""
        height, width = self.frozen.map_shape[1:]
        if maps:
            fixed, item = 0, HeldRows.item_bytes(self.frozen) + 2
            least, what = -(-FIRST_LOCATIONS // (height * width)), "feature maps to begin with"
        else:
            fixed, item = tensor_bytes(self._codebook), CodeBuffer.item_bytes(self.model) + 2
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
            self.memories.trim(capacity // classes)
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
        self._resize(classes)

    @property
    def _codebook(self) -> list[Tensor]:
        assert self.model.codebook is not None
        return [self.model.codebook.blocks.detach()]

    @property
    def stored(self) -> list[str]:
        """What is stored, in words."""
        memory = "feature maps in half precision" if self.waits else "codes of feature maps"
        beside = tensor_bytes([*self._head, *self._codebook, *self.statistics.tensors()])
        return [
            f"{len(self.memories)} memories ({memory}), room for {self.memories.max_size}",
            f"{beside:,} bytes of codebook, head and class means",
            *(["the trained layers, which take the place of the network's"] if self.pieces else []),
        ]

    @property
    def remains_after_forget(self) -> str:
        """What ``forget`` leaves of the images of a class, in words; empty for nothing."""
        fitted = "trained layers and codebook, which all classes share, were fitted on its images as well"
        return fitted if self.pieces else ""

    def tensors(self) -> list[Tensor]:
        """Return the tensors that count for the budget."""
        rows = [] if self.memories.rows is None else [self.memories.rows]
        return [*self.statistics.tensors(), *self._head, *self._codebook, self.memories.labels, *rows]

    # Learning

    def learn(self, features: Tensor, number: int) -> None:
        """Learn the maps of a piece of a clip of a class."""
        known = self.statistics.image_counts.nonzero().flatten().tolist()
        labels = torch.full((len(features),), number)
        self.statistics.update(features.mean((2, 3)), labels)
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
        self._train(features, labels, known)
        self.pieces += 1

    def _calibrated(self, examples: Tensor) -> bool:
        """Set feature scale and codebook from examples; returns whether they were of use (they may be all alike)."""
        try:
            with preserve_rng_state():
                calibrate(self.model, TensorDataset(examples), "kmeans")
        except ValueError:
            return False
        return True

    def _train(self, examples: Tensor, labels: Tensor, known: list[int]) -> None:
        """Train on a piece and store memories of it; the number of earlier pieces seeds the random draws.

        Args:
            examples: ``(n, C, H, W)`` maps of F.
            labels: ``(n,)`` int64.
            known: classes of earlier pieces.
        """
        from avalanche.benchmarks import benchmark_from_datasets
        from avalanche.benchmarks.utils import as_classification_dataset

        with preserve_rng_state():
            random.seed(self.pieces)
            np.random.seed(self.pieces)
            torch.manual_seed(self.pieces)
            strategy: Any = self._strategy(known)
            data = TensorDataset(examples, labels)
            data.targets = labels.tolist()  # type: ignore[attr-defined]
            strategy.train(benchmark_from_datasets(train=[as_classification_dataset(data)]).train_stream[0])
            self._rehearse(strategy)
            self.model.eval().zero_grad()
            stored = strategy.storage_policy.state_dict()
            self.memories.load_state_dict(stored | {"rule": stored["rule"] or self.memories.rule.state_dict()})

    def _strategy(self, known: list[int]) -> "StreamStrategy":
        """Build the strategy of the method as it was after the last piece."""
        from avalanche.logging import BaseLogger
        from avalanche.training.plugins import EvaluationPlugin

        from crumb_avalanche.methods.registry import LearningSettings, build_strategy

        learning, evaluator = LearningSettings(**LEARNING), EvaluationPlugin(loggers=[BaseLogger()])
        strategy: Any = build_strategy(self.method, self.model, learning, self.memories.max_size, evaluator=evaluator)
        strategy.seen_classes.seen = list(known)
        strategy.clock.train_exp_counter = self.pieces
        plugin, storage = strategy.memory, strategy.storage_policy
        storage.rule = EveryJth()
        storage.load_state_dict(storage.state_dict() | self.memories.state_dict())
        plugin.load_state_dict(plugin.state_dict() | {"classes": [], "earlier": list(known)})
        plugin.returning_expected = True
        return strategy

    def _rehearse(self, strategy: Any) -> None:
        """Take steps on memories with equal shares of all classes, the new one included, which would else prevail."""
        from crumb_avalanche.training.crumb import memory_step

        storage, model = strategy.storage_policy, strategy.model
        model.train()
        for _ in range(REHEARSALS):
            slots = storage.sample(set(), at_least=strategy.train_mb_size)
            maps, labels = storage.replay(slots, model)
            memory_step(strategy, strategy._criterion(strategy.memory.logits(model, maps), labels))

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
        """Compute what is learned or asked of pixels: F's maps ``(n, C, H, W)``."""
        return model.extract(pixels)

    @torch.no_grad()
    def examine(self, features: Tensor) -> Tensor:
        """Compute means of F's maps and scores, ``(n, C + classes)``."""
        return torch.cat([features.mean((2, 3)), self._scores(self._inputs(features))], 1)

    @torch.no_grad()
    def _inputs(self, maps: Tensor) -> Tensor:
        """Compute what enters the plastic layers, ``(B, C, H, W)``, from maps of ``SplitModel.extract``."""
        scaled, table = self.model.features(maps), self.model.codebook
        # Answers take the maps through the table that memories are decoded from: the layers are trained on such maps.
        return table.decode(table.encode(scaled)) if self.model.calibrated and table is not None else scaled

    def _scores(self, inputs: Tensor) -> Tensor:
        if self.pieces:
            return self.model.classify(inputs)
        return normalize(inputs.mean((2, 3))) @ normalize(self.statistics.means).mT

    def evidence(self, features: Tensor) -> Evidence:
        """Compute scores and distances of images from what ``examine`` returned."""
        found = evidence(self.statistics, features[:, : self.length])
        return found._replace(scores=features[:, self.length + found.labels].double()) if self.pieces else found

    def explain(self, model: SplitModel, pixels: Tensor) -> Tensor:
        """Attribute the margin of an answer to the locations of the map that enters the plastic layers, ``(H, W)``."""
        inputs = self._inputs(self.compute(model, pixels)).requires_grad_()
        return shares_of(self._scores(inputs)[0, self.taught], [inputs])[0][0, 0]

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
        for rows in self._head:
            rows[number] = 0
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
        trained = {name: value for name, value in self.model.state_dict().items() if not name.startswith(FROZEN)}
        replay = {"pieces": self.pieces, "model": trained, "memories": self.memories.state_dict()}
        return super().state_dict() | {"replay": replay}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned; raise StateError if a part does not fit the network."""
        super().load_state_dict(state)
        replay = state["replay"]
        self.pieces, trained, rows = replay["pieces"], replay["model"], replay["memories"]["rows"]
        self._resize(max(1, len(self.names)))
        own = {name: value.shape for name, value in self.state_dict()["replay"]["model"].items()}
        others = {name: value.shape for name, value in trained.items()}
        for name in {**own, **others}:
            if own.get(name) != others.get(name):
                raise StateError(f"{name} of the trained layers has the shape {others.get(name)}, not {own.get(name)}")
        self.model.load_state_dict(dict(trained), strict=False)
        shape, dtype = self.frozen.map_shape, torch.float16
        if not self.waits:
            shape, dtype = (CodeBuffer.item_bytes(self.model),), torch.uint8
        if rows is not None and (rows.shape[1:] != shape or rows.dtype != dtype):
            raise StateError(f"memories are {rows.dtype} {tuple(rows.shape[1:])}, not {dtype} {shape}")
        rule = ClassBalancedReservoir() if self.waits else EveryJth()
        if rule.state_dict().keys() != replay["memories"]["rule"].keys():
            raise StateError(f"the selection rule of the memories is not {type(rule).__name__}'s")
        self.memories = HeldRows(len(replay["memories"]["labels"]), rule)
        self.memories.load_state_dict(replay["memories"])


def _freeze_norms(layers: nn.Module) -> None:
    """Freeze statistics and weights of batch norms: a clip of one class says nothing of those of all images."""
    for name, layer in layers.named_children():
        if isinstance(layer, nn.BatchNorm2d) and type(layer) is not nn.BatchNorm2d:  # of timm, with its activation
            from timm.utils.model import freeze_batch_norm_2d

            setattr(layers, name, freeze_batch_norm_2d(layer))
        elif isinstance(layer, nn.BatchNorm2d):
            from torchvision.ops.misc import FrozenBatchNorm2d  # takes a second to import

            frozen = FrozenBatchNorm2d(layer.num_features, layer.eps)
            frozen.load_state_dict(layer.state_dict())
            setattr(layers, name, frozen)
        else:
            _freeze_norms(layer)


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
