"""Registry of all strategies by name."""

from typing import Any

from crumb_avalanche.methods.aanets import AANETS
from crumb_avalanche.methods.analytic_entry import ACIL, FOAL, RANPAC_GCV
from crumb_avalanche.methods.bic import BIC
from crumb_avalanche.methods.blended_entry import LR_RGDA, SRDA
from crumb_avalanche.methods.bounds import CHANCE, FINETUNE, OFFLINE
from crumb_avalanche.methods.closed_form_strategy import NCM, SLDA
from crumb_avalanche.methods.cope import COPE
from crumb_avalanche.methods.crumb import CRUMB, IMAGE_REPLAY, MAP_REPLAY
from crumb_avalanche.methods.entry import Entry, Recipe
from crumb_avalanche.methods.experience_replay import DER, ER
from crumb_avalanche.methods.fecam_entry import FECAM
from crumb_avalanche.methods.gem import GEM
from crumb_avalanche.methods.gss import GSS
from crumb_avalanche.methods.icarl import ICARL
from crumb_avalanche.methods.klda_entry import KLDA
from crumb_avalanche.methods.memory_recall import MEMORY_RECALL
from crumb_avalanche.methods.method_settings import LearningSettings
from crumb_avalanche.methods.rainbow_memory import RAINBOW_MEMORY
from crumb_avalanche.methods.ranpac_entry import RANPAC
from crumb_avalanche.methods.rda_entry import RDA
from crumb_avalanche.methods.regularizers import EWC, LWF, MAS, SI
from crumb_avalanche.methods.remind import REMIND
from crumb_avalanche.methods.stable_sgd import STABLE_SGD
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.training.stream_strategy import StreamStrategy

__all__ = ["STRATEGIES", "Entry", "LearningSettings", "build_strategy", "get_strategy", "recommended_strategy"]

STRATEGIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        *(CRUMB, FINETUNE, OFFLINE, CHANCE),
        *(EWC, SI, MAS, LWF, STABLE_SGD),
        *(GEM, ICARL, BIC, GSS, COPE, AANETS, REMIND, RAINBOW_MEMORY, MEMORY_RECALL),
        *(IMAGE_REPLAY, MAP_REPLAY, ER, DER, NCM, SLDA, RANPAC, RDA),
        *(FECAM, KLDA, ACIL, FOAL, RANPAC_GCV, SRDA, LR_RGDA),
    )
}


def get_strategy(name: str) -> Entry:
    """Return the entry of a strategy.

    Raises:
        ValueError: the name is unknown.
    """
    if name not in STRATEGIES:
        raise ValueError(f"strategy {name!r} is unknown; known are {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def build_strategy(
    name: str,
    model: SplitModel,
    settings: LearningSettings | None = None,
    mem_size: int = 0,
    seed: int = 0,
    device: str = "cpu",
    method: dict[str, Any] | None = None,
    **host,
) -> StreamStrategy:
    """Build a strategy.

    Args:
        name: a name in ``STRATEGIES``.
        model: a split model, with a codebook if the entry needs one.
        settings: settings that all strategies share; default ``LearningSettings()``.
        mem_size: capacity of the buffer, in memories.
        seed: seed of the method's random draws.
        device: device of the strategy, as in Avalanche.
        method: settings of the method that differ from their defaults.
        host: keyword arguments for Avalanche, such as ``plugins`` and ``evaluator``.

    Returns:
        A strategy for one stream.

    Raises:
        ValueError: the name or a setting is unknown, or ``mem_size`` is below 1 for a method that stores memories.
    """
    entry = get_strategy(name)
    model = model.to(device)
    if hasattr(model, "quantized_training"):  # other methods do not train on quantized maps
        model.quantized_training = entry.codebook
    chosen = entry.method_settings(method)
    settings = LearningSettings() if settings is None else settings
    return entry.build(Recipe(model, settings, chosen, mem_size, model.n_classes, seed, device, host))


def recommended_strategy(model: SplitModel, n_classes: int | None = None, *, mem_size: int, **host) -> StreamStrategy:
    """Build the most accurate strategy at the same bytes: regularised discriminant analysis.

    It is not in the paper; ``methods.rda`` names the sources of its parts.

    Args:
        model: a split model, which computes the features.
        n_classes: number of classes of the whole stream; default the model's. A model with another number of outputs
            gets a new head.
        mem_size: principal directions of all classes, at least one for each class. For a budget in bytes it is
            ``get_strategy("rda").memories_in_budget(model, budget_bytes, n_classes)``.
        host: keyword arguments for Avalanche, such as ``plugins`` and ``evaluator``.

    Returns:
        The strategy ``rda`` with its default settings.
    """
    if n_classes not in (None, model.n_classes):
        model.reset_head(n_classes)
    return build_strategy("rda", model, mem_size=mem_size, **host)
