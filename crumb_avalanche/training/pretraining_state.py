"""Checkpoints of a pretraining: its state after each epoch, written and restored."""

import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import check_and_load
from crumb_avalanche.system.process_group import SingleProcess
from crumb_avalanche.training.checkpoint import CheckpointError, CheckpointFolder


@dataclass
class State:
    """Everything that pretraining changes."""

    model: SplitModel
    optimizer: torch.optim.SGD
    random_rows: torch.Generator
    group: SingleProcess

    def keep(self, checkpoints: CheckpointFolder, history: list[dict[str, float]]) -> None:
        """Write a checkpoint with the RNG state of every process."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for number, parameter in enumerate(self._parameters()):
            momentum = self.optimizer.state[parameter].get("momentum_buffer")
            if momentum is not None:
                tensors[f"momentum.{number}"] = momentum
        on_gpu = self.model.pixel_mean.is_cuda
        for rank, numbers in enumerate(self.group.gather(torch.get_rng_state())):
            tensors[f"random.cpu.{rank}"] = numbers
        for rank, numbers in enumerate(self.group.gather(torch.cuda.get_rng_state()) if on_gpu else []):
            tensors[f"random.cuda.{rank}"] = numbers
        tensors["random.rows"] = self.random_rows.get_state()
        _, numbers, *place = np.random.get_state()
        tensors["random.numpy"] = torch.from_numpy(numbers.astype(np.int64))
        values = {"history": history, "processes": self.group.size, "numpy": place, "python": random.getstate()}
        if self.group.is_leader:
            checkpoints.write(values, tensors)

    def take(self, checkpoints: CheckpointFolder) -> list[dict[str, float]]:
        """Restore the leader's newest checkpoint in every process; returns the history up to it.

        Raises:
            CheckpointError: see ``CheckpointFolder.newest``; or the number of processes differs.
        """
        found = checkpoints.newest() if self.group.is_leader else None
        tensors, values = (found.state, found.notes) if found else ({}, None)
        values = self.group.broadcast_value(values)
        if values is None:
            return []
        if values["processes"] != self.group.size:
            raise CheckpointError(
                f"{checkpoints.folder} is of a pretraining in {values['processes']} processes, not {self.group.size}; "
                f"start as many (torchrun --nproc-per-node), or remove {checkpoints.folder} to start over"
            )
        tensors = self.group.broadcast_tensors(tensors)
        weights = {name.removeprefix("model."): tensors[name] for name in tensors if name.startswith("model.")}
        check_and_load(self.model, weights, str(checkpoints.folder))
        for number, parameter in enumerate(self._parameters()):
            if f"momentum.{number}" in tensors:
                # With the parameter's strides: others may round differently.
                momentum = torch.empty_like(parameter).copy_(tensors[f"momentum.{number}"])
                self.optimizer.state[parameter]["momentum_buffer"] = momentum.detach()
        torch.set_rng_state(tensors[f"random.cpu.{self.group.rank}"])
        if f"random.cuda.{self.group.rank}" in tensors:
            torch.cuda.set_rng_state(tensors[f"random.cuda.{self.group.rank}"])
        self.random_rows.set_state(tensors["random.rows"])
        np.random.set_state(("MT19937", tensors["random.numpy"].numpy().astype(np.uint32), *values["numpy"]))
        version, numbers, gauss = values["python"]
        random.setstate((version, tuple(numbers), gauss))
        return values["history"]

    def _parameters(self) -> list[nn.Parameter]:
        return self.optimizer.param_groups[0]["params"]
