"""CRUMB, and plain replay of images and of maps by the same steps and rule."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from crumb_avalanche.memory.buffers import (
    CodeBuffer,
    ImageBuffer,
    MapBuffer,
    MemoryBuffer,
)
from crumb_avalanche.memory.selection import make_rule
from crumb_avalanche.methods.crumb_readout import ReadoutStrategy
from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.system.setting_ranges import InRange, NotNegative
from crumb_avalanche.training.crumb import CRUMBStrategy
from crumb_avalanche.training.replay_settings import ReplaySettings
from crumb_avalanche.training.stream_strategy import StreamStrategy


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
            layers, as they came with the network.
    """

    direct_weight: NotNegative = ReplaySettings.direct_weight
    codebook_weight: NotNegative = ReplaySettings.codebook_weight
    freeze_codebook: bool = False
    readout: Literal["head", "closed_form", "closed_form_stock"] = "head"


def replay_strategy(
    recipe: Recipe,
    buffer: type[MemoryBuffer],
    direct_weight: float,
    codebook_weight: float,
    strategy: Callable[..., CRUMBStrategy] = CRUMBStrategy,
) -> CRUMBStrategy:
    """Build replay from a buffer with the settings that all strategies share.

    Args:
        recipe: model, settings, size of the buffer and seed.
        buffer: class of the buffer, which says what a memory is.
        direct_weight, codebook_weight: ``alpha`` of the loss of maps as they are, and
            ``beta`` of that of maps from the codebook (eq. 3).
        strategy: class of the strategy, or a function that builds one.

    Raises:
        ValueError: there is no selection rule of that name.
    """
    settings = recipe.settings
    selection_rule = make_rule(settings.selection_rule)
    return strategy(
        optimizer=recipe.optimizer(),
        storage_policy=buffer(recipe.mem_size, selection_rule, recipe.seed),
        direct_weight=direct_weight,
        codebook_weight=codebook_weight,
        **settings.replay,  # when and how many memories are replayed
        **recipe.common(),  # arguments of every strategy, and those for Avalanche
    )


@register(
    "crumb",
    summary="codes of memory blocks, decoded and replayed (this paper)",
    source=(
        "Talbot et al., Tuned Compositional Feature Replays for Efficient Stream "
        "Learning"
    ),
    stores="codes of feature maps, and the codebook",
    settings=CrumbSettings,
    buffer=CodeBuffer,
    # One byte a value, as the paper counts it; the ledger counts the four bytes of
    # float32. What the paper's codebook does not have, its filter and order of channels
    # (buffers of torch, not the replay buffer), counts in full.
    fixed_bytes=lambda model, method, n_classes: (
        model.codebook.blocks.numel() + model.codebook.buffer_bytes
    ),
    round_up=True,  # a last memory counts if three quarters of it fit the budget
    codebook=True,
    # No learning rate is tuned for this readout, which trains nothing.
    own_rate=lambda method: method.readout == "closed_form_stock",
    # The rate is tuned with the readout of the head, because only there the accuracy
    # shows whether the layers learned.
    tuning={"readout": "head"},
    each_class=True,  # the buffer needs a memory of each class
)
def build_crumb(recipe: Recipe) -> StreamStrategy:
    """Build CRUMB, which answers by its head or by a discriminant of its memories.

    The codebook is trained unless ``freeze_codebook`` is set. With the readout
    ``closed_form_stock`` nothing is trained.

    Args:
        recipe: a model with a codebook, settings, size of the buffer and seed.
    """
    method = recipe.method
    codebook = recipe.model.codebook
    assert codebook is not None, "build_strategy checks that the model has one"
    codebook.requires_grad_(not method.freeze_codebook)
    strategy: Callable[..., CRUMBStrategy] = CRUMBStrategy
    if method.readout != "head":
        # Of what is not trained nothing changes, whatever requires_grad_ sets above.
        is_trained = method.readout == "closed_form"
        strategy = partial(ReadoutStrategy, train_layers=is_trained)
    return replay_strategy(
        recipe,
        buffer=CodeBuffer,
        direct_weight=method.direct_weight,
        codebook_weight=method.codebook_weight,
        strategy=strategy,
    )


@register(
    "image_replay",
    summary="raw uint8 images, replayed through the whole network",
    source="Talbot et al., table 3",
    stores="raw images",
    buffer=ImageBuffer,
    each_class=True,
)
def build_image_replay(recipe: Recipe) -> StreamStrategy:
    """Build replay of raw images, without codes."""
    return replay_strategy(recipe, ImageBuffer, direct_weight=1.0, codebook_weight=0.0)


@register(
    "map_replay",
    summary="raw float32 feature maps, replayed",
    source=(
        "latent replay: Pellegrini et al., Latent Replay for Real-Time Continual "
        "Learning, IROS 2020"
    ),
    stores="raw feature maps",
    buffer=MapBuffer,
    each_class=True,
)
def build_map_replay(recipe: Recipe) -> StreamStrategy:
    """Build replay of raw feature maps, without codes."""
    return replay_strategy(recipe, MapBuffer, direct_weight=1.0, codebook_weight=0.0)
