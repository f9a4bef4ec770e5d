"""``crumb pretrain``: pretrain plastic layers and codebook."""

from crumb_avalanche.runs.pretrain import main

__all__ = ["main"]
