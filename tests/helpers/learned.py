"""What a run learned, read from its learner file."""

from pathlib import Path

from support.runs import tensors_of

from crumb_avalanche.learner.run_file import LEARNER

__all__ = ["LEARNER", "buffer_of", "tensors_of", "weights_of"]


def _below(folder: Path, prefix: str) -> dict:
    tensors = tensors_of(folder)
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def weights_of(folder: Path) -> dict:
    """The weights that training changes, by their name in the model."""
    return _below(folder, "strategy.model.")


def buffer_of(folder: Path) -> dict:
    """The tensors of the replay buffer."""
    return _below(folder, "strategy.buffers.0.")
