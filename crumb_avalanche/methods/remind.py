"""REMIND: feature maps as product-quantizer codes, replayed with crops and mixup.

Hayes, Kafle, Shrestha, Acharya and Kanan, "REMIND Your Neural Network to Prevent Catastrophic Forgetting", ECCV 2020.
Defaults are those of its ImageNet script and of the CRUMB paper's port to SqueezeNet's 512x13x13 maps.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Subset

from crumb_avalanche.memory.buffers import StreamBatch
from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.methods.remind_memory import (
    LocationSample,
    PQCodeBuffer,
    balanced_choice,
    make_quantizer,
    random_resized_crops,
)
from crumb_avalanche.system.setting_ranges import NEVER, Count, Factor, InRange, NotNegative, Range
from crumb_avalanche.training.batch_plugin import StoringPlugin
from crumb_avalanche.training.data import labels_of
from crumb_avalanche.training.stream_strategy import StreamStrategy

Large = Annotated[int, Range(1, NEVER)]


@dataclass(frozen=True)
class RemindSettings(InRange):
    """Settings of REMIND.

    Attributes:
        sub_quantizers: groups of channels, each with a table; the largest divisor of C up to this number is used.
        centroids: rows of a table; at most 16 for groups of 1 channel (4 bits per value).
        fit_vectors: number of locations of the first experience's maps to fit k-means on (256 per centroid, the most
            that faiss uses); held from the last epoch of that experience until the fit, ``4 * C`` bytes each.
        samples_at_a_time: take one optimiser step per new image, with ``replays`` memories, as the authors do, instead
            of one per batch of the stream, with ``batch_replays`` memories for each new image.
        replays: memories per new image with ``samples_at_a_time``.
        batch_replays: memories per new image without it; with 2, a step costs about as much as CRUMB's two. The loss
            is the mean over all rows in both cases.
        crop_scale: smallest share of a map's area that a crop keeps; 1 turns cropping off.
        mixup_alpha: parameter of the Beta distribution of the mixing weight; 0 turns mixup off.
        weight_decay: weight decay of SGD.
    """

    sub_quantizers: Count = 32
    centroids: Annotated[int, Range(2, 256)] = 256
    fit_vectors: Large = 65_536
    samples_at_a_time: bool = False
    replays: Count = 50
    batch_replays: Count = 2
    crop_scale: Factor = 4 / 13
    mixup_alpha: NotNegative = 0.1
    weight_decay: NotNegative = 1e-5

    @property
    def replays_per_image(self) -> int:
        """Number of memories per new image."""
        return self.replays if self.samples_at_a_time else self.batch_replays

    def quantizer(self, model):
        """Build an unfitted ``ProductQuantizer`` for a model's maps."""
        return make_quantizer(model.map_shape[0], self.sub_quantizers, self.centroids)


class RemindPlugin(StoringPlugin):
    """REMIND's memory: fits the tables and stores the first codes after experience 1, then stores every new image."""

    def __init__(self, storage_policy: PQCodeBuffer, settings: RemindSettings, seed: int):
        super().__init__(storage_policy)
        self.settings = settings
        self.seed = seed
        self._sample: LocationSample | None = None

    @property
    def statistics_bytes(self) -> int:
        """Bytes of the centroids."""
        return self.storage_policy.quantizer.table_bytes

    def before_training_exp(self, strategy, **kwargs):
        super().before_training_exp(strategy, **kwargs)
        buffer = self.storage_policy
        if not buffer.quantizer.fitted:
            self._sample = LocationSample(len(strategy.adapted_dataset), self.settings.fit_vectors, buffer.slots.random)

    def before_forward(self, strategy, **kwargs):
        if not self.storage_policy.quantizer.fitted:
            super().before_forward(strategy, **kwargs)

    def after_forward(self, strategy, **kwargs):
        if not self.storage_policy.quantizer.fitted:  # else the strategy sets the batch, with its own codes
            super().after_forward(strategy, **kwargs)

    def offers(self, strategy):
        return self.storage_policy.quantizer.fitted or super().offers(strategy)

    def offer(self, strategy, batch):
        if self.storage_policy.quantizer.fitted:
            super().offer(strategy, batch)
        else:
            self._sample.take(batch.feature_map)

    def after_training_exp(self, strategy, **kwargs):
        buffer = self.storage_policy
        fitted = buffer.quantizer.fitted
        super().after_training_exp(strategy, **kwargs)
        if fitted:
            return
        buffer.quantizer.fit(self._sample.vectors, self.seed)
        self._sample = None
        # As in the authors' code, the buffer size holds for the first classes too; the paper's port keeps all images.
        labels = labels_of(strategy.experience.dataset)
        chosen = balanced_choice(labels, buffer.max_size, buffer.slots.random)
        loader = DataLoader(Subset(strategy.adapted_dataset, chosen), batch_size=strategy.train_mb_size)
        for images, targets, *_ in loader:
            maps = strategy.model.features(images.to(strategy.device))
            buffer.store(StreamBatch(targets, maps, None, None), strategy.model)
        strategy.optimizer.state.clear()  # a fresh optimiser for the stream

    def state_dict(self):
        sample = None if self._sample is None else self._sample.state_dict()
        return super().state_dict() | {"sample": sample}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self._sample = None
        if state["sample"] is not None:
            self._sample = LocationSample(0, self.settings.fit_vectors, self.storage_policy.slots.random)
            self._sample.load_state_dict(state["sample"])

    def answer_state(self, strategy):
        return self.storage_policy.quantizer.state_dict()

    def load_answer_state(self, state):
        self.storage_policy.quantizer.load_state_dict(state)


class RemindStrategy(StreamStrategy):
    """REMIND as a strategy: trains P on unquantized maps in experience 1, then on new and replayed ones in one step.

    New and replayed maps are decoded codes, cropped; the replayed ones are mixed in pairs. Evaluation uses decoded
    codes as well.
    """

    def __init__(self, *, storage_policy: PQCodeBuffer, settings: RemindSettings, seed: int = 0, **stream_arguments):
        self.settings = settings
        self._replayed: tuple[Tensor, Tensor] | None = None
        memory = RemindPlugin(storage_policy, settings, seed)
        super().__init__(memory=memory, **stream_arguments)

    def make_train_dataloader(self, **kwargs):
        """Make the loader of ``StreamStrategy``; with ``samples_at_a_time``, of single images after experience 1."""
        if self.settings.samples_at_a_time and self.clock.train_exp_counter > 0:
            self.train_mb_size = 1
        super().make_train_dataloader(**kwargs)

    def forward(self):
        model, quantizer = self.model, self.storage_policy.quantizer
        if not quantizer.fitted:
            return super().forward()
        maps = model.features(self.mb_x)
        with model.stopwatch.measure("search"):
            codes = quantizer.encode(maps)
        if not self.is_training:
            return model.classify(quantizer.decode(codes))
        with model.stopwatch.measure("replay"):
            new = self._crop(quantizer.decode(codes))
            old, targets = self._mixed_memories(len(new))
        logits = model.classify(torch.cat([new, old]))
        self.memory.batch = StreamBatch(self.mb_y, maps, codes, None)
        self._replayed = self.seen_classes.mask(logits[len(new) :]), targets
        return logits[: len(new)]

    def criterion(self):
        if self._replayed is None:
            return super().criterion()
        logits, targets = self._replayed
        self._replayed = None
        new = functional.one_hot(self.mb_y, logits.shape[1]).to(targets)
        return self._criterion(torch.cat([self.mb_output, logits]), torch.cat([new, targets]))

    def _crop(self, maps: Tensor) -> Tensor:
        if self.settings.crop_scale == 1:
            return maps
        return random_resized_crops(maps, self.settings.crop_scale, self.storage_policy.slots.random)

    def _mixed_memories(self, new: int) -> tuple[Tensor, Tensor]:
        """Draw maps ``(R, C, H, W)`` and soft labels ``(R, classes)``; ``R`` is less if there are too few memories."""
        buffer, alpha, each = self.storage_policy, self.settings.mixup_alpha, self.settings.replays_per_image
        parts = 2 if alpha else 1
        count = min(new * each, len(buffer) // parts)
        maps, labels = buffer.replay(buffer.draw(parts * count), self.model)
        maps, targets = self._crop(maps), functional.one_hot(labels, self.model.n_classes).to(maps.dtype)
        if not alpha:
            return maps, targets
        # One weight for the memories of a new image, as with samples_at_a_time.
        weights = buffer.slots.random.beta(alpha, alpha, size=new).repeat(each)[:count]
        weights = torch.from_numpy(weights).to(maps)
        share = weights.view(-1, 1, 1, 1)
        maps = share * maps[:count] + (1 - share) * maps[count:]
        share = weights.view(-1, 1)
        return maps, share * targets[:count] + (1 - share) * targets[count:]


@register(
    "remind",
    summary="product-quantizer codes, replayed with crops and mixup",
    source="Hayes et al., REMIND Your Neural Network to Prevent Catastrophic Forgetting, ECCV 2020",
    stores="codes of feature maps, and the tables of centroids",
    settings=RemindSettings,
    buffer=PQCodeBuffer,
    item_bytes=lambda model, method: method.quantizer(model).map_bytes(*model.map_shape[1:]),
    fixed_bytes=lambda model, method, n_classes: method.quantizer(model).table_bytes,
)
def build_remind(recipe: Recipe) -> StreamStrategy:
    """Build REMIND with an empty buffer and empty tables."""
    settings: RemindSettings = recipe.method
    quantizer = settings.quantizer(recipe.model).to(recipe.device)
    return RemindStrategy(
        storage_policy=PQCodeBuffer(recipe.mem_size, seed=recipe.seed, quantizer=quantizer),
        settings=settings,
        seed=recipe.seed,
        optimizer=recipe.optimizer(weight_decay=settings.weight_decay),
        **recipe.common(),
    )
