"""What a run learned, read from its learner file."""

from pathlib import Path

from crumb_avalanche.learner.run_file import LEARNER
from crumb_avalanche.system.tensor_file import read_tensors

__all__ = ["LEARNER", "buffer_of", "tensors_of", "weights_of"]


def tensors_of(folder: Path) -> dict:
    """All tensors that a run learned, by name; none if it kept no learner."""
    return read_tensors(folder / LEARNER)[0] if (folder / LEARNER).exists() else {}


def _below(folder: Path, prefix: str) -> dict:
    tensors = tensors_of(folder)
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def weights_of(folder: Path) -> dict:
    """The weights that training changes, by their name in the model."""
    return _below(folder, "strategy.model.")


def buffer_of(folder: Path) -> dict:
    """The tensors of the replay buffer."""
    return _below(folder, "strategy.buffers.0.")
