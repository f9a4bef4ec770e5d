"""The state of a pretraining after each epoch, kept and taken up again."""

import hashlib
import json
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from crumb_avalanche.distributed import Alone
from crumb_avalanche.split_model import SplitModel
from crumb_avalanche.weights import WeightsError, check_and_load, read_metadata, read_weights, save_safetensors

CHECKPOINT_FORMAT = "crumb-pretraining-checkpoint-1"


class CheckpointError(ValueError):
    """A pretraining that was cut off and cannot go on; says why and what to do."""


@dataclass
class Checkpoints:
    """The state of a pretraining after each epoch: tensors and JSON, so that reading runs no code.

    The latest two are kept. Each is written whole or not at all, and carries a checksum.

    Attributes:
        folder: for the files; removed by ``clear``.
        made_with: plain values that decide the result; going on with others is refused.
    """

    folder: Path
    made_with: dict = field(default_factory=dict)

    def path(self, epoch: int) -> Path:
        return self.folder / f"epoch{epoch:05d}.safetensors"

    def write(self, epoch: int, tensors: dict[str, Tensor], values: dict) -> None:
        """Keep the state after so many epochs.

        Raises:
            CheckpointError: the disk does not take it; those before are as they were.
        """
        about = json.dumps({"epoch": epoch, "made_with": self.made_with, **values})
        metadata = {"format": CHECKPOINT_FORMAT, "about": about, "sha256": _checksum(tensors, about)}
        try:
            save_safetensors(self.path(epoch), tensors, metadata)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"the checkpoint {self.path(epoch)} cannot be written ({error}); make room and give the same command "
                "again: it goes on from the one before"
            ) from error
        for path in self._files()[:-2]:
            path.unlink()

    def latest(self) -> tuple[dict[str, Tensor], dict] | None:
        """The newest state that is whole, as tensors and values; nothing where there is none yet.

        Raises:
            CheckpointError: made with other settings; or all are damaged.
        """
        files = self._files()
        reason = ""
        for path in reversed(files):
            try:
                metadata = read_metadata(path)
                tensors = read_weights(path)
            except WeightsError as error:
                reason = str(error)
                continue
            about = metadata.get("about", "")
            if metadata.get("format") != CHECKPOINT_FORMAT or metadata.get("sha256") != _checksum(tensors, about):
                reason = f"{path} is damaged: its checksum or format is wrong"
                continue
            values = json.loads(about)
            then, now = values["made_with"], json.loads(json.dumps(self.made_with))
            for name in {**then, **now}:
                if then.get(name) != now.get(name):
                    raise CheckpointError(
                        f"{path} is of a pretraining with {name}={then.get(name)!r}, not {now.get(name)!r}; go on with "
                        f"the same settings, or remove {self.folder} to start over"
                    )
            return tensors, values
        if files:
            raise CheckpointError(f"{reason}; no other checkpoint is whole: remove {self.folder} to start over")
        return None

    def clear(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("epoch*.safetensors"))


def _checksum(tensors: dict[str, Tensor], about: str) -> str:
    digest = hashlib.sha256(about.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}|".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@dataclass
class State:
    """All that changes while pretraining."""

    model: SplitModel
    optimizer: torch.optim.SGD
    random_rows: torch.Generator
    group: Alone

    def keep(self, checkpoints: Checkpoints, history: list[dict[str, float]]) -> None:
        """Write a checkpoint, with the random states of every process."""
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
        if self.group.leads:
            checkpoints.write(len(history), tensors, values)

    def take(self, checkpoints: Checkpoints) -> list[dict[str, float]]:
        """Bring back the leader's latest checkpoint in every process; returns the history up to it.

        Raises:
            CheckpointError: see ``Checkpoints.latest``; or another number of processes.
        """
        tensors, values = (checkpoints.latest() if self.group.leads else None) or ({}, None)
        values = self.group.told_by_leader(values)
        if values is None:
            return []
        if values["processes"] != self.group.size:
            raise CheckpointError(
                f"{checkpoints.folder} is of a pretraining in {values['processes']} processes, not {self.group.size}; "
                f"start as many (torchrun --nproc-per-node), or remove {checkpoints.folder} to start over"
            )
        tensors = self.group.tensors_of_leader(tensors)
        weights = {name.removeprefix("model."): tensors[name] for name in tensors if name.startswith("model.")}
        check_and_load(self.model, weights, str(checkpoints.folder))
        for number, parameter in enumerate(self._parameters()):
            if f"momentum.{number}" in tensors:
                # In the parameter's order of axes: other strides may round otherwise.
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
