"""CRUMB, and plain replay of images and of feature maps through the same two steps and the same selection rule."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from crumb_avalanche.memory.selection import RULES, SelectionRule
from crumb_avalanche.methods.readout import ReadoutStrategy
from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.system.setting_ranges import InRange, NotNegative
from crumb_avalanche.training.crumb import CRUMBStrategy
from crumb_avalanche.training.replay_settings import ReplaySettings
from crumb_avalanche.training.storage_policies import CodeBuffer, CompactBuffer, ImageBuffer, MapBuffer
from crumb_avalanche.training.stream_strategy import StreamStrategy


@dataclass(frozen=True)
class CrumbSettings(InRange):
    """Settings of CRUMB.

    Attributes:
        direct_weight: alpha of eq. 3, the weight of the loss on unquantized maps.
        codebook_weight: beta of eq. 3, the weight of the loss on quantized maps.
        freeze_codebook: keep the memory blocks as initialised.
        readout: what answers. ``head`` is the paper's. ``closed_form`` trains as CRUMB does and answers by a
            discriminant that is fitted to the decoded memories; ``closed_form_stock`` trains nothing and fits it to
            memories of the stock layers.
    """

    direct_weight: NotNegative = ReplaySettings.direct_weight
    codebook_weight: NotNegative = ReplaySettings.codebook_weight
    freeze_codebook: bool = False
    readout: Literal["head", "closed_form", "closed_form_stock"] = "head"

    @property
    def own_rate(self) -> bool:
        """Whether no learning rate is tuned: nothing is trained."""
        return self.readout == "closed_form_stock"


def make_rule(name: str) -> SelectionRule:
    """A new selection rule by name.

    Raises:
        ValueError: unknown name; the known are listed.
    """
    if name not in RULES:
        raise ValueError(f"selection rule {name!r} is unknown; known are {', '.join(RULES)}")
    return RULES[name]()


def replay_strategy(
    recipe: Recipe,
    buffer: type[CompactBuffer],
    direct_weight: float,
    codebook_weight: float,
    kind: Callable[..., CRUMBStrategy] = CRUMBStrategy,
) -> CRUMBStrategy:
    """Build replay from a buffer with the settings that all strategies share."""
    settings = recipe.settings
    return kind(
        optimizer=recipe.optimizer(),
        storage_policy=buffer(recipe.mem_size, make_rule(settings.selection_rule), recipe.seed),
        direct_weight=direct_weight,
        codebook_weight=codebook_weight,
        **settings.replay,
        **recipe.common(),
    )


def build_crumb(recipe: Recipe) -> StreamStrategy:
    """Build CRUMB with its readout; the codebook is trained unless it is frozen."""
    method = recipe.method
    recipe.model.codebook.requires_grad_(not method.freeze_codebook)
    kind: Callable[..., CRUMBStrategy] = CRUMBStrategy
    if method.readout != "head":
        kind = partial(ReadoutStrategy, train_layers=method.readout == "closed_form")
    return replay_strategy(recipe, CodeBuffer, method.direct_weight, method.codebook_weight, kind)


register(
    "crumb",
    summary="codes of memory blocks, decoded and replayed (this paper)",
    source="Talbot et al., Tuned Compositional Feature Replays for Efficient Stream Learning",
    stores="codes of feature maps, and the codebook",
    settings=CrumbSettings,
    buffer=CodeBuffer,
    # One byte a value, as the paper counts it; the ledger counts the four bytes of float32.
    fixed_bytes=lambda model, method, n_classes: model.codebook.blocks.numel(),
    round_up=True,
    codebook=True,
    tuning={"readout": "head"},  # the rate is that of the layers, which the head shows
    each_class=True,
)(build_crumb)
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
