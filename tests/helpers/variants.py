"""Strategies with settings that make another learner of them, for tests that go over all strategies."""

from crumb_avalanche.methods.entry import Entry
from crumb_avalanche.methods.method_settings import READOUTS
from crumb_avalanche.methods.registry import STRATEGIES

VARIANTS = {f"crumb {readout}": ("crumb", {"readout": readout}) for readout in READOUTS if readout != "head"}


def entry_of(name: str) -> tuple[Entry, dict]:
    """Registry entry of a strategy or variant, and the settings of its method that are not the defaults."""
    strategy, method = VARIANTS.get(name, (name, {}))
    return STRATEGIES[strategy], method
