"""Checkpoint files: written whole or not at all, the last good ones kept, damaged ones passed over, no pickle.

A file is a ``.safetensors`` file whose metadata hold the settings of the run, the state tree and a digest of it all.
"""

import hashlib
import json
import os
import shutil
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from crumb_avalanche.models.weights import WeightsError, read_metadata, save_safetensors

FORMAT = "crumb-checkpoint-1"
TEXTS = ("settings", "notes", "tree")
KEPT = 2


class CheckpointError(ValueError):
    """A checkpoint that cannot be written, or belongs to another run."""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint.

    Attributes:
        number: how many were written before it in this run.
        notes: plain values of whoever wrote it.
        tree, tensors: as ``state_tree.packed`` gives them.
    """

    number: int
    notes: dict
    tree: str
    tensors: dict[str, Tensor]


def digest(texts: dict[str, str], tensors: dict[str, Tensor]) -> str:
    """SHA-256 over texts, and names, types, shapes and values of the tensors."""
    found = hashlib.sha256(json.dumps({name: texts[name] for name in TEXTS}).encode())
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        found.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().data if value.numel() else b"")
    return found.hexdigest()


class CheckpointFolder:
    """The checkpoints of one run.

    Args:
        folder: made when the first is written.
        settings: plain values that decide the result; a checkpoint of others is refused.
    """

    def __init__(self, folder: str | os.PathLike, settings: dict | None = None):
        self.folder = Path(folder)
        self.settings = settings or {}
        self._damaged: set[int] = set()

    def clear(self, but: str | None = None) -> None:
        """Remove the folder, or all that is in it but the file of a name; the newest checkpoint last."""
        self._damaged.clear()
        with suppress(OSError):  # no folder, or something in it that cannot be removed
            for path in sorted(self.folder.iterdir(), key=lambda path: (not path.is_dir(), path.name)):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                elif path.name != but:
                    path.unlink(missing_ok=True)
            self.folder.rmdir()

    def numbers(self) -> list[int]:
        """Of the files that are there, the newest first."""
        return sorted((int(path.stem) for path in self.folder.glob("[0-9]*.safetensors")), reverse=True)

    def write(self, notes: dict, tree: str, tensors: dict[str, Tensor]) -> Path:
        """Write the next one, then give up all but the newest two, and first those that ``newest`` found damaged.

        Args:
            notes: plain values to be read before the tree is.
            tree, tensors: as ``state_tree.packed`` gives them.

        Raises:
            CheckpointError: the disk is full or the like; the earlier ones are as they were.
        """
        numbers = self.numbers()
        path = self.path(numbers[0] + 1 if numbers else 0)
        texts = {"settings": json.dumps(self.settings, sort_keys=True), "notes": json.dumps(notes), "tree": tree}
        try:
            save_safetensors(path, tensors, {"format": FORMAT, **texts, "sha256": digest(texts, tensors)})
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"the checkpoint {path} cannot be written ({error}); the one before it is untouched. Free some room "
                "and give the same command again: it goes on from there"
            ) from error
        good = [number for number in numbers if number not in self._damaged]
        for number in {*numbers} - {*good[: KEPT - 1]}:
            self.path(number).unlink(missing_ok=True)
        return path

    def newest(self) -> Checkpoint | None:
        """The newest that is whole, or ``None`` where there is no file; a damaged one is passed over with a warning.

        Raises:
            CheckpointError: it was made with other settings, of which the first is named; or all are damaged.
        """
        for number in self.numbers():
            path = self.path(number)
            try:
                metadata = read_metadata(path)
                tensors = load_file(path)
                whole = metadata.get("format") == FORMAT and metadata.get("sha256") == digest(metadata, tensors)
            except (WeightsError, SafetensorError, OSError, KeyError, ValueError):
                whole = False
            if not whole:
                self._damaged.add(number)
                warnings.warn(f"the checkpoint {path} is damaged; looking at the one before it", stacklevel=2)
                continue
            self._check(path, json.loads(metadata["settings"]))
            return Checkpoint(number, json.loads(metadata["notes"]), metadata["tree"], tensors)
        if self.numbers():
            raise CheckpointError(f"no checkpoint in {self.folder} is whole; remove that folder to start over")
        return None

    def path(self, number: int) -> Path:
        """The file of a number."""
        return self.folder / f"{number:08d}.safetensors"

    def _check(self, path: Path, settings: dict) -> None:
        mine = json.loads(json.dumps(self.settings))
        for name in sorted({*settings, *mine}):
            if settings.get(name) != mine.get(name):
                raise CheckpointError(
                    f"{path.parent} holds checkpoints made with {name}={settings.get(name)!r}, not "
                    f"{mine.get(name)!r}; go on with the same settings, use another --output, or remove that folder to "
                    "start over"
                )
