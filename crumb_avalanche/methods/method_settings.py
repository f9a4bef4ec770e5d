"""Settings of every method by name. Imports neither torch nor Avalanche, to check settings before torch is loaded."""

from dataclasses import dataclass, fields, replace
from typing import Any

from crumb_avalanche.methods.closed_form_settings import (
    AcilSettings,
    FecamSettings,
    FoalSettings,
    KldaSettings,
    LrRgdaSettings,
    ProjectionSettings,
    RanpacSettings,
    RdaSettings,
    SldaSettings,
    SrdaSettings,
)
from crumb_avalanche.methods.memory_settings import (
    AANetsSettings,
    BiCSettings,
    CoPESettings,
    DarkReplaySettings,
    ExperienceReplaySettings,
    GEMSettings,
    GSSSettings,
    ICaRLSettings,
    MemoryRecallSettings,
    RainbowSettings,
    RemindSettings,
)
from crumb_avalanche.methods.penalty_settings import (
    EWCSettings,
    LwFSettings,
    MASSettings,
    SISettings,
    StableSGDSettings,
)
from crumb_avalanche.system.setting_ranges import InRange
from crumb_avalanche.training.replay_settings import ReplaySettings


@dataclass(frozen=True)
class LearningSettings(InRange):
    """Settings that all strategies share.

    Attributes:
        learning_rate, momentum, weight_decay: arguments of SGD over all trainable weights, codebook included.
        batch_size, eval_batch_size, first_epochs, epochs, clamp_gradients: see ``StreamStrategy``.
        replay_weight, replay_steps, replay_compute, fused, selection_rule: see ``ReplaySettings``.
    """

    learning_rate: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 1e-4
    batch_size: int = 21
    eval_batch_size: int = 128
    first_epochs: int = 10
    epochs: int = 1
    clamp_gradients: float | None = None
    replay_weight: float | None = ReplaySettings.replay_weight
    replay_steps: int = ReplaySettings.replay_steps
    replay_compute: float | None = ReplaySettings.replay_compute
    fused: bool = ReplaySettings.fused
    selection_rule: str = ReplaySettings.selection_rule


@dataclass(frozen=True)
class NoSettings(InRange):
    """Settings of a method that has none."""


@dataclass(frozen=True)
class OfflineSettings(InRange):
    """Settings of training on all classes at once.

    Attributes:
        peak_rate: largest learning rate of one cycle over all epochs, in which the rate rises and falls to almost 0, as
            in torch's ``OneCycleLR``; learning rate and momentum of the run are then not used. With 0 the learning rate
            of the run is kept throughout.
    """

    peak_rate: float = 1e-2

    def __post_init__(self):
        super().__post_init__()
        if self.peak_rate < 0:
            raise ValueError(f"peak_rate is {self.peak_rate}; give 0 or more (0: a constant learning rate)")

    @property
    def own_rate(self) -> bool:
        """Whether the method sets its own learning rate, so that none is tuned."""
        return self.peak_rate > 0


READOUTS = ("head", "closed_form", "closed_form_stock")


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

    direct_weight: float = ReplaySettings.direct_weight
    codebook_weight: float = ReplaySettings.codebook_weight
    freeze_codebook: bool = False
    readout: str = "head"

    @property
    def own_rate(self) -> bool:
        """Whether no learning rate is tuned: nothing is trained."""
        return self.readout == "closed_form_stock"

    def __post_init__(self):
        super().__post_init__()
        if self.readout not in READOUTS:
            raise ValueError(f"readout is {self.readout!r}; use one of {', '.join(READOUTS)}")
        for name in ("direct_weight", "codebook_weight"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; give 0 or more")


METHOD_SETTINGS: dict[str, type] = {
    "crumb": CrumbSettings,
    "finetune": NoSettings,
    "offline": OfflineSettings,
    "chance": NoSettings,
    "ewc": EWCSettings,
    "si": SISettings,
    "mas": MASSettings,
    "lwf": LwFSettings,
    "stable_sgd": StableSGDSettings,
    "gem": GEMSettings,
    "icarl": ICaRLSettings,
    "bic": BiCSettings,
    "gss": GSSSettings,
    "cope": CoPESettings,
    "aanets": AANetsSettings,
    "remind": RemindSettings,
    "rainbow_memory": RainbowSettings,
    "memory_recall": MemoryRecallSettings,
    "image_replay": NoSettings,
    "map_replay": NoSettings,
    "er": ExperienceReplaySettings,
    "der": DarkReplaySettings,
    "ncm": NoSettings,
    "slda": SldaSettings,
    "ranpac": RanpacSettings,
    "rda": RdaSettings,
    "fecam": FecamSettings,
    "klda": KldaSettings,
    "acil": AcilSettings,
    "foal": FoalSettings,
    "ranpac_gcv": ProjectionSettings,
    "srda": SrdaSettings,
    "lr_rgda": LrRgdaSettings,
}

# Values that methods had before these settings existed.
BEFORE: dict[str, dict[str, Any]] = {
    "offline": dict(peak_rate=0.0),
    "er": dict(ring_below=0),
    "der": dict(evaluation_logits=False),
    "rda": dict(
        **dict(deviations=True, equal_lengths=False, cells=1, own=0.3, own_images=0.0, diagonal=False, span=True),
        **dict(eight_bits=False, head_share=0.0, known_classes=True),
    ),
}


def method_settings(strategy: str, changes: dict[str, Any] | None = None) -> Any:
    """Return the settings of a method with some values changed.

    Args:
        strategy: a name in ``METHOD_SETTINGS``.
        changes: values by name; the others keep their defaults.

    Raises:
        ValueError: the strategy or a setting is unknown, or a value has the wrong type.
    """
    if strategy not in METHOD_SETTINGS:
        raise ValueError(f"strategy {strategy!r} is unknown; known are {', '.join(METHOD_SETTINGS)}")
    default = METHOD_SETTINGS[strategy]()
    known = [item.name for item in fields(default)]
    for name, value in (changes or {}).items():
        if name not in known:
            has = f"has {', '.join(known)}" if known else "has none of its own"
            raise ValueError(f"strategy {strategy} has no setting {name!r}; it {has}")
        usual = getattr(default, name)
        number = isinstance(usual, float) and isinstance(value, int) and not isinstance(value, bool)
        if usual is not None and not number and type(value) is not type(usual):
            raise ValueError(
                f"{name} of strategy {strategy} is {value!r}, but must be of type {type(usual).__name__}, such as its "
                f"default {usual!r}"
            )
        # Store 1 as 1.0: both are the same setting, and must compare as equal in files.
        changes = {**changes, name: float(value)} if number else changes
    return replace(default, **(changes or {}))
