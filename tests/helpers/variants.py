"""Strategies with settings that make another learner of them, for tests that go over all strategies."""

from crumb_avalanche.methods.registry import STRATEGIES, Entry

READOUTS = ("closed_form", "closed_form_stock")
VARIANTS = {f"crumb {readout}": ("crumb", {"readout": readout}) for readout in READOUTS}


def entry_of(name: str) -> tuple[Entry, dict]:
    """Registry entry of a strategy or variant, and the settings of its method that are not the defaults."""
    strategy, method = VARIANTS.get(name, (name, {}))
    return STRATEGIES[strategy], method
