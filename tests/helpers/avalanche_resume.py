"""Avalanche's own strategies on a small stream; as a script, resume each from its checkpoint in a fresh process.

Usage: ``python avalanche_resume.py FOLDER``, which reads ``NAME.pkl`` and writes ``NAME.pt``.
"""

import os
import sys
from pathlib import Path

import torch
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import EWC, LwF, Naive, Replay
from small_models import make_stream
from torch import nn

from crumb_avalanche import patched_dill

if "CRUMB_TEST_ROUNDING" in os.environ:
    import other_rounding  # noqa: F401 - a fresh process rounds as that of the tests

STRATEGIES = {
    "naive": (Naive, {}),
    "lwf": (LwF, {"alpha": 1.0, "temperature": 2.0}),
    "ewc": (EWC, {"ewc_lambda": 10.0}),
    "replay": (Replay, {"mem_size": 6}),
}


class Pixels(nn.Module):
    """Flatten uint8 images and divide them by 255."""

    def forward(self, images):
        return images.flatten(1).float() / 255


def make_strategy(name: str):
    """Build a strategy with dropout and momentum, which shuffles batches."""
    kind, settings = STRATEGIES[name]
    model = nn.Sequential(Pixels(), nn.Linear(3 * 16 * 16, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    own = dict(criterion=nn.CrossEntropyLoss(), evaluator=EvaluationPlugin(loggers=[]), **settings)
    return kind(model=model, optimizer=optimizer, train_mb_size=5, train_epochs=2, **own)


def save(strategy, path) -> None:
    """Save a checkpoint with the patch."""
    with patched_dill():
        save_checkpoint(strategy, path)


def finish(strategy, done: int = 1) -> dict:
    """Train on the remaining experiences, and return what training changes."""
    for experience in make_stream().train_stream[done:]:
        strategy.train(experience)
    penalties = [plugin for plugin in strategy.plugins if hasattr(plugin, "importances")]
    return {
        "weights": strategy.model.state_dict(),
        "optimizer": strategy.optimizer.state_dict()["state"],
        "importances": [{name: one.data for name, one in plugin.importances[1].items()} for plugin in penalties],
        "rng": torch.get_rng_state(),
    }


def resume(name: str, path) -> dict:
    """Build a strategy anew, load a checkpoint and train on the remaining experiences."""
    strategy, done = maybe_load_checkpoint(make_strategy(name), path)
    assert done == 1
    return finish(strategy, done)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(99)  # the checkpoint restores another RNG state
    for path in Path(sys.argv[1]).glob("*.pkl"):
        torch.save(resume(path.stem, path), path.with_suffix(".pt"))
