"""What a run learned, read from its learner file."""

from pathlib import Path

from crumb_avalanche.learner.run_file import LEARNER
from crumb_avalanche.system.tensor_file import read_tensors

__all__ = ["LEARNER", "tensors_of", "weights_of"]


def tensors_of(folder: Path) -> dict:
    """All tensors that a run learned, by name; none if it kept no learner."""
    return read_tensors(folder / LEARNER)[0] if (folder / LEARNER).exists() else {}


def weights_of(folder: Path) -> dict:
    """The weights that training changes, by their name in the model."""
    prefix, tensors = "strategy.model.", tensors_of(folder)
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
