"""What a run learned, read from its learner file."""

from pathlib import Path

from crumb_avalanche.learner.run_file import LEARNER
from crumb_avalanche.system.tensor_file import read_tensors


def tensors_of(folder: Path) -> dict:
    """All tensors that a run learned, by name."""
    return read_tensors(folder / LEARNER)[0]


def weights_of(folder: Path) -> dict:
    """The weights that training changes, by their name in the model."""
    prefix = "strategy.model."
    return {name.removeprefix(prefix): one for name, one in tensors_of(folder).items() if name.startswith(prefix)}
