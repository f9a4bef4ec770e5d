"""CRUMB with its readouts, and plain replay of images and of feature maps through the same steps and selection rule."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from crumb_avalanche.memory.buffers import (
    CodeBuffer,
    ImageBuffer,
    MapBuffer,
    MemoryBuffer,
)
from crumb_avalanche.memory.selection import RULES
from crumb_avalanche.methods.closed_form import NO_DENSITY
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.system.setting_ranges import InRange, NotNegative
from crumb_avalanche.training.crumb import CRUMBStrategy
from crumb_avalanche.training.replay_settings import ReplaySettings
from crumb_avalanche.training.stream_strategy import StreamStrategy

NOTHING_TRAINED = dict(
    direct_weight=0.0,
    codebook_weight=1.0,
    replay_steps=0,
    replay_compute=None,
    first_epochs=1,
    train_epochs=1,
)


@dataclass(frozen=True)
class CrumbSettings(InRange):
    """Settings of CRUMB.

    Attributes:
        direct_weight: alpha of eq. 3, the weight of the loss on unquantized maps.
        codebook_weight: beta of eq. 3, the weight of the loss on quantized maps.
        freeze_codebook: keep the memory blocks as initialised.
        readout: what answers. ``head`` is the paper's. ``closed_form`` trains as CRUMB
            does and answers by a discriminant that is fitted to the decoded memories;
            ``closed_form_stock`` trains nothing and fits it to memories of the stock
            layers.
    """

    direct_weight: NotNegative = ReplaySettings.direct_weight
    codebook_weight: NotNegative = ReplaySettings.codebook_weight
    freeze_codebook: bool = False
    readout: Literal["head", "closed_form", "closed_form_stock"] = "head"


def fit_linear(features: Tensor, labels: Tensor, n_classes: int) -> dict[str, Tensor]:
    """Fit a linear discriminant with one covariance, which is shrunk more the fewer features there are.

    Args:
        features, labels: ``(N, D)`` float on the CPU, at least one, and ``(N,)`` int64.
        n_classes: number of classes.

    Returns:
        ``weights``, ``(D, C)`` float32, ``offsets``, ``(C,)`` float32, and ``labels``,
        ``(C,)`` int64, of the ``C`` classes with features; scores are ``features @
        weights + offsets``.
    """
    statistics = RegularizedDiscriminant(
        n_classes, features.shape[1], whole=True, own=0.0, diagonal=False, span=True
    )
    statistics.update(features, labels)
    solution = statistics.solved()
    weights = solution.projection @ solution.means.mT
    offsets = -solution.means.square().sum(1) / 2 - solution.centre @ weights
    present = statistics.image_counts.nonzero().flatten()
    return {"weights": weights.float(), "offsets": offsets.float(), "labels": present}


class ReadoutStrategy(CRUMBStrategy):
    """CRUMB that answers by a linear discriminant of its memories instead of its head.

    The discriminant is fitted to features of the decoded memories: means and deviations
    over locations, of the map and of the head's input. Images to evaluate are encoded
    and decoded too. It is fitted from scratch to all memories when an evaluation
    begins, and nothing but the codes is kept for it.
    """

    def __init__(self, *, train_layers: bool = True, **crumb_arguments):
        super().__init__(
            **(crumb_arguments if train_layers else crumb_arguments | NOTHING_TRAINED)
        )
        self.train_layers = train_layers
        self.features = FeatureMoments(
            maps=True, deviations=True, power=0.7, equal_lengths=True
        )
        self._readout: dict[str, Tensor] = {}  # of this evaluation, or loaded

    @property
    def derived_bytes(self) -> int:
        """Bytes of the discriminant, fitted or not: a column of float32 and an int64 label for each class."""
        return len(self.storage_policy.classes) * (
            4 * (self.features.length(self.model) + 1) + 8
        )

    @torch.no_grad()
    def _fitted(self) -> dict[str, Tensor]:
        """Return the discriminant of the present memories; where there are none, what was loaded."""
        storage, parts = self.storage_policy, []
        slots = [
            slot for members in storage.slots.by_class.values() for slot in members
        ]
        if not slots:
            return self._readout
        for some in torch.tensor(slots, dtype=torch.int64).split(self.eval_mb_size):
            maps, labels = storage.replay(some, self.model)
            parts.append((self.features.of_maps(self.model, maps).cpu(), labels.cpu()))
        features, labels = (torch.cat(group) for group in zip(*parts))
        return fit_linear(features, labels, self.model.n_classes)

    def forward(self):
        if not self.is_training:
            return self._answers(self.mb_x)
        if self.train_layers:
            return super().forward()
        return torch.zeros(len(self.mb_y), self.model.n_classes, device=self.device)

    @torch.no_grad()
    def _answers(self, images: Tensor) -> Tensor:
        """Compute scores ``(B, classes)``, 0 for the best class and the lowest for classes without memories."""
        readout = self._readout
        outputs = torch.full(
            (len(images), self.model.n_classes), NO_DENSITY if readout else 0.0
        )
        if readout:
            codes = self.model.encode(self.model.features(images))
            features = (
                self.features.of_maps(self.model, self.model.codebook.decode(codes))
                .cpu()
                .double()
            )
            scores = (
                features @ readout["weights"].double() + readout["offsets"].double()
            )
            outputs[:, readout["labels"]] = (
                scores - scores.amax(1, keepdim=True)
            ).float()
        return outputs.to(self.device)

    def criterion(self):
        return (
            self.mb_output.new_zeros(())
            if self.is_training and not self.train_layers
            else super().criterion()
        )

    def backward(self):
        if self.train_layers:
            super().backward()

    def optimizer_step(self):
        if self.train_layers:
            super().optimizer_step()

    def _before_eval(self, **kwargs):
        self._readout = self._fitted()
        super()._before_eval(**kwargs)

    def answer_state(self) -> dict[str, Any]:
        return super().answer_state() | {"method": self._fitted()}

    def load_answer_state(self, state: dict[str, Any]) -> None:
        super().load_answer_state(state)
        self._readout = {
            name: tensor.clone() for name, tensor in state["method"].items()
        }


def replay_strategy(
    recipe: Recipe,
    buffer: type[MemoryBuffer],
    direct_weight: float,
    codebook_weight: float,
    kind: Callable[..., CRUMBStrategy] = CRUMBStrategy,
) -> CRUMBStrategy:
    """Build replay from a buffer with the settings that all strategies share."""
    settings = recipe.settings
    if (rule := settings.selection_rule) not in RULES:
        raise ValueError(
            f"selection rule {rule!r} is unknown; known are {', '.join(RULES)}"
        )
    return kind(
        optimizer=recipe.optimizer(),
        storage_policy=buffer(recipe.mem_size, RULES[rule](), recipe.seed),
        direct_weight=direct_weight,
        codebook_weight=codebook_weight,
        **settings.replay,
        **recipe.common(),
    )


@register(
    "crumb",
    summary="codes of memory blocks, decoded and replayed (this paper)",
    source="Talbot et al., Tuned Compositional Feature Replays for Efficient Stream Learning",
    stores="codes of feature maps, and the codebook",
    settings=CrumbSettings,
    buffer=CodeBuffer,
    # One byte a value, as the paper counts it; the ledger counts the four bytes of
    # float32.
    fixed_bytes=lambda model, method, n_classes: model.codebook.blocks.numel(),
    round_up=True,
    codebook=True,
    own_rate=lambda method: method.readout == "closed_form_stock",
    tuning={"readout": "head"},  # the rate is that of the layers, which the head shows
    each_class=True,
)
def build_crumb(recipe: Recipe) -> StreamStrategy:
    """Build CRUMB with its readout; the codebook is trained unless it is frozen."""
    method = recipe.method
    recipe.model.codebook.requires_grad_(not method.freeze_codebook)
    kind: Callable[..., CRUMBStrategy] = CRUMBStrategy
    if method.readout != "head":
        kind = partial(ReadoutStrategy, train_layers=method.readout == "closed_form")
    return replay_strategy(
        recipe, CodeBuffer, method.direct_weight, method.codebook_weight, kind
    )


register(
    "image_replay",
    summary="raw uint8 images, replayed through the whole network",
    source="Talbot et al., table 3",
    stores="raw images",
    buffer=ImageBuffer,
    each_class=True,
)(lambda recipe: replay_strategy(recipe, ImageBuffer, 1.0, 0.0))
register(
    "map_replay",
    summary="raw float32 feature maps, replayed",
    source="latent replay: Pellegrini et al., Latent Replay for Real-Time Continual Learning, IROS 2020",
    stores="raw feature maps",
    buffer=MapBuffer,
    each_class=True,
)(lambda recipe: replay_strategy(recipe, MapBuffer, 1.0, 0.0))
