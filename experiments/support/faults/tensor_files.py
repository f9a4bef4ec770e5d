"""Damage of files of tensors: checkpoints, pretrained files, weights."""

from pathlib import Path
from random import Random

import numpy as np
import safetensors.torch
import torch
from support.faults.case import Kind
from support.faults.damage import Tree, damage_file, damage_some, forget_digests
from support.faults.material import write_weights

from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.weights import read_weights
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.run_folder import finished_result, provenance, with_digests, write_json, write_text
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.system.tensor_file import checksum, flatten
from crumb_avalanche.training.checkpoint import CheckpointFolder
from crumb_avalanche.training.pretraining import read_pretrained, save_pretrained


def sums(tensors: dict) -> dict[str, str]:
    """Checksum of each tensor."""
    return {name: checksum(name, tensor) for name, tensor in tensors.items()}


class Checkpoints(Kind):
    """The checkpoints of a run and their history."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.settings = {"strategy": "crumb", "run": 3}
        files = CheckpointFolder(folder / "resume", self.settings)
        random = torch.Generator().manual_seed(0)
        for number in range(3):
            state = {"weights": torch.randn(20, 30, generator=random), "count": number, "rows": [1, (2, None)]}
            files.write({"position": number}, state, {"matrix": [[float(number)]], "ledgers": [{"bytes": number}]})
        self.tree = Tree(folder)
        self.learn_base()
        files.path(2).unlink()
        self.earlier = self.act()  # as after a kill: the run goes on from there to the same bits
        self.tree.restore()

    def damage(self, random: Random) -> str:
        return damage_some(self.tree.kept, random)

    def right(self, found) -> bool:
        newest = CheckpointFolder(self.folder / "resume").path(2)
        return found == self.expected or (found == self.earlier and not newest.exists())

    def act(self):
        found = CheckpointFolder(self.folder / "resume", self.settings).newest()
        if found is None:
            return None
        tree, tensors = flatten(found.state)
        return found.number, found.notes, tree, sums(tensors), found.records

    def restore(self) -> None:
        self.tree.restore()


class Pretrained(Kind):
    """A file that crumb pretrain wrote."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = split_backbone("small_cnn", weights=None, n_classes=3, codebook=Codebook(16, 16), image_size=32)
        self.path = folder / "pretrained.safetensors"
        save_pretrained(self.path, model, {"backbone": "small_cnn", "classes": 3, "history": [{"loss": 1.5}]})
        self.tree = Tree(folder)
        self.learn_base()

    def damage(self, random: Random) -> str:
        return damage_file(self.path, random)

    def act(self):
        tensors, made_with = read_pretrained(self.path)
        return sums(tensors), made_with

    def restore(self) -> None:
        self.tree.restore()


class Weights(Kind):
    """Files of weights: with checksums of their own, or with their digest in the result of a run."""

    own = ("ours.safetensors", "zip.pth", "arrays.npz")
    foreign = ("foreign.safetensors", "legacy.pth")

    def __init__(self, folder: Path):
        super().__init__(folder)
        files, self.runs = folder / "files", folder / "runs"
        files.mkdir()
        state = read_weights(write_weights(files / self.own[0]))
        torch.save(state, files / self.own[1])
        np.savez(files / self.own[2], **{name: tensor.numpy() for name, tensor in state.items()})
        safetensors.torch.save_file(state, files / self.foreign[0])
        torch.save(state, files / self.foreign[1], _use_new_zipfile_serialization=False)
        self.plans = {name: self.run_with(files / name) for name in self.foreign}
        self.tree, self.paths = Tree(folder), sorted(files.iterdir())
        self.path, self.expected = self.paths[0], sums(state)

    def run_with(self, path: Path) -> RunPlan:
        """Write the result of a run with these weights."""
        plan = RunPlan.of(RunSettings(benchmark="toy_shapes_short", weights=str(path), backbone="small_cnn"))
        output = self.runs / path.name
        write_text(output / "config.yaml", str(plan))
        write_json(output / "result.json", with_digests(output, {"run": 0, "provenance": provenance(plan)}))
        return plan

    def damage(self, random: Random) -> str:
        self.path = random.choice(self.paths)
        what = damage_file(self.path, random)
        forget_digests()
        return what

    def act(self):
        found = sums(read_weights(self.path))
        if self.path.name in self.plans:
            finished_result(self.runs / self.path.name, self.plans[self.path.name])
        return found

    def restore(self) -> None:
        self.tree.restore()
