"""``crumb run``: learn a stream, write the run folder, print the accuracy after every experience."""

from crumb_avalanche.runs.run import main

__all__ = ["main"]
