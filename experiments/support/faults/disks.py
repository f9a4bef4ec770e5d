"""Disks that fill up, turn read-only or fail while something is written."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import torch
from support.faults.archives import zipped
from support.faults.cache import FeatureCacheFiles
from support.faults.case import Kind, command, is_ours
from support.faults.disk_faults import (
    DETACH,
    failing,
    failing_sync,
    filled,
    mount_small_disk,
    read_only,
    size_limit,
    system,
)
from support.faults.forked import DISK_ERRORS
from support.faults.material import NETWORK, QUIET, pixels, run_arguments, write_clips, write_weights
from support.faults.tensor_files import sums
from support.same_results import tensors_of

from benchmarks_toybox_ilab.datasets.clip_folder import ClipFolderFrames
from benchmarks_toybox_ilab.prepare.archives import unpack
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.system.tensor_file import flatten
from crumb_avalanche.training.checkpoint import CheckpointFolder
from crumb_avalanche.training.pretraining import read_pretrained, save_pretrained


class Disks(Kind):
    """What was written before stays, or the new content is complete; afterwards the same call writes it.

    Where this process may mount a small disk (as root of a Linux system), a third of the cases fill it, or make it
    read-only. All others get their errors from a hook before files are changed, from ``os.fsync``, or from a limit on
    the size of files.
    """

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.work = folder / "work"
        self.work.mkdir()
        self.mounted = mount_small_disk(self.work)
        self.clips, self.weights = write_clips(folder / "clips"), write_weights(folder / "weights.safetensors")
        self.table = ClipFolderFrames(self.clips)
        self.cache = FeatureCacheFiles(folder / "cache")
        self.learner = Learner("ncm", "small_cnn", self.weights, 32)
        self.learner.teach(pixels(1)[None], "cup")
        self.archive = folder / "archive.zip"
        members = [(f"train/cup/{number}.png", bytes([number]) * 3000, "file", "") for number in range(5)]
        self.archive.write_bytes(zipped(members, Random(0)))
        self.operations: dict[str, tuple[int, Callable, Callable]] = {
            "learner": (4, lambda: self.learner.save(self.work / "a.safetensors"), self.read_learner),
            "checkpoint": (4, self.write_checkpoint, self.read_checkpoint),
            "cache": (4, self.fill_cache, lambda: None),
            "pretrained": (2, self.write_pretrained, self.read_pretrained),
            "index": (2, lambda: self.table.to_csv(self.work / "a.csv"), self.read_index),
            "unpack": (4, lambda: unpack(self.archive, self.work / "out"), self.unpacked),
            "crumb teach": (2, self.teach, self.read_learner),
            "crumb run": (1, self.run, self.read_run),
            "crumb pretrain": (1, self.pretrain, self.read_pretrained),
        }
        self.after: dict[str, object] = {}
        for name, (_, write, read) in self.operations.items():
            write()
            self.after[name] = read()
            self.clear()

    def damage(self, random: Random) -> str:
        names = list(self.operations)
        self.name = random.choices(names, [self.operations[name][0] for name in names])[0]
        how = random.choices(("change", "fsync", "size", "full", "read-only"), (4, 1, 2, 3, 1))[0]
        number, count = random.choice(DISK_ERRORS), random.choice((0, random.randrange(5), random.randrange(40)))
        if how == "full" and self.mounted:
            room = random.choice((0, random.randrange(10_000), random.randrange(2_000_000)))
            self.fault = filled(self.work, room)
            return f"{self.name}: {room} bytes left"
        if how == "read-only" and self.mounted:
            self.fault = read_only(self.work)
            return f"{self.name}: read-only"
        if how in ("size", "full"):
            size = random.choice((0, random.randrange(3000), random.randrange(1_200_000)))
            self.fault = size_limit(size)
            return f"{self.name}: files of at most {size} bytes"
        if how == "fsync":
            self.fault = failing_sync(number)
            return f"{self.name}: {os.strerror(number)} when flushed"
        self.fault = failing(self.folder, number, count, once := random.random() < 0.3)
        return f"{self.name}: {os.strerror(number)} at change {count}{' only' * once}"

    def act(self) -> str:
        _, write, read = self.operations[self.name]
        error = None
        try:
            with self.fault:
                write()
        except (Exception, SystemExit) as found:
            if not isinstance(found, CommandFailedError) and not is_ours(found):
                raise
            error = found
        state = self.state(read)
        if state not in ([self.after[self.name]] if error is None else [None, self.after[self.name]]):
            return f"{error or 'no error'}, and another content was left"
        write()
        return "" if read() == self.after[self.name] else "not right after another call"

    def state(self, read: Callable):
        """What was written; ``None`` if there is nothing, or the reader says that it is not complete."""
        try:
            return read()
        except Exception as error:
            if not is_ours(error):
                raise
            return None

    def right(self, found: str) -> bool:
        return not found

    def restore(self) -> None:
        self.clear()

    def close(self) -> None:
        if self.mounted:
            system("umount2", str(self.work).encode(), DETACH)

    def clear(self) -> None:
        for path in self.work.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def call(self, *arguments: object) -> None:
        if command(*arguments).code:
            raise CommandFailedError

    def write_checkpoint(self) -> None:
        state = {"weights": torch.arange(300.0), "count": 3}
        CheckpointFolder(self.work / "resume", {"run": 1}).write({"position": 1}, state, {"row": [1.0]})

    def read_checkpoint(self):
        found = CheckpointFolder(self.work / "resume", {"run": 1}).newest()
        return found and (found.notes, sums(flatten(found.state)[1]), found.records[:1])

    def fill_cache(self) -> None:
        self.cache.folder = self.work / "cache"
        if not torch.equal(self.cache.act(), self.cache.expected):
            raise AssertionError("other maps")

    def write_pretrained(self) -> None:
        save_pretrained(self.work / "p.safetensors", self.cache.model, {"classes": 2})

    def read_pretrained(self):
        path = self.work / "p.safetensors"
        return (sums(read_pretrained(path)[0])) if path.exists() else None

    def read_learner(self):
        path = self.work / "a.safetensors"
        return sums(flatten(Learner.load(path).state_dict()["statistics"])[1]) if path.exists() else None

    def read_index(self):
        path = self.work / "a.csv"
        return tuple(FrameTable.from_csv(path, None)) if path.exists() else None

    def unpacked(self):
        """All files, if they are complete; a part of them is resumed."""
        files = {path.name: path.read_bytes() for path in self.work.glob("out/train/cup/[0-9].png")}
        whole = {f"{number}.png": bytes([number]) * 3000 for number in range(5)}
        return None if files != whole and files.items() <= whole.items() else files

    def teach(self) -> None:
        if not (self.work / "a.safetensors").exists():  # a second call would teach more
            new = ("--weights", self.weights, *NETWORK, *QUIET)
            self.call("teach", self.work / "a.safetensors", self.clips / "cup", "--label", "cup", *new)

    def run(self) -> None:
        if not (self.work / "run" / "result.json").exists():
            self.call(*run_arguments(self.clips, self.work / "run"), "--feature-cache", self.work / "maps")

    def read_run(self):
        run = self.work / "run"
        return sums(tensors_of(run)) if (run / "result.json").exists() else None

    def pretrain(self) -> None:
        if not (self.work / "p.safetensors").exists():
            more = ("--weights", "none", *NETWORK, *QUIET, "--epochs", 1, "--codebook-size", 8)
            self.call("pretrain", "--data", self.clips, "--output", self.work / "p.safetensors", *more)


class CommandFailedError(Exception):
    """A command ended with an error in words of ours."""
