"""``crumb pretrain``: CRUMB pretraining of plastic layers and codebook."""

from crumb_avalanche.runs.pretrain import main

__all__ = ["main"]
