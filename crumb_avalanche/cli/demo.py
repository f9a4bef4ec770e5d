"""``crumb demo``: rendered shapes, a few minutes, nothing to download."""

from crumb_avalanche.runs.demo import main

__all__ = ["main"]
