"""Processes that are killed or interrupted at random moments, and what the same command then makes of it."""

import http.client
import json
import os
import shutil
import signal
import socket
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from unittest import mock

from support.faults.case import Kind, command
from support.faults.forked import Ended, crumb, ended, fork, watch_changes
from support.faults.material import NETWORK, QUIET, finished_run, run_arguments, write_clips, write_photo, write_weights
from support.faults.requests import TOKEN, photo
from support.faults.tensor_files import sums
from support.same_results import differences

from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.system.tensor_file import flatten, read_tensors

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def write_archive(path: Path, folder: Path) -> Path:
    """Write a small archive of the layout of Tiny-ImageNet."""
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(8):
            split = "train" if number < 6 else "test"
            photo = write_photo(folder / f"{number}.jpg", number, 16)
            archive.write(photo, f"{split}/n0000000{number % 2}/{number}.jpg")
    shutil.rmtree(folder)
    return path


def learned(path: Path) -> tuple:
    """What a learner file holds."""
    learner = Learner.load(path)
    return {one.name: one.images for one in learner.classes}, sums(flatten(learner.state_dict()["statistics"])[1])


class Kills(Kind):
    """A command is killed, or interrupted; the same command again ends as if nothing had happened."""

    limit = 120.0

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.work, self.said = folder / "work", folder / "said.txt"
        self.clips, self.weights = write_clips(folder / "clips"), write_weights(folder / "weights.safetensors")
        self.archive = write_archive(folder / "tiny.zip", folder / "photos")
        self.base = folder / "base.safetensors"
        teach = ("--weights", self.weights, *NETWORK, *QUIET)
        assert command("teach", self.base, self.clips / "cup", "--label", "cup", *teach).code == 0
        self.undisturbed: dict[str, object] = {}
        self.seconds: dict[str, float] = {}
        for name in self.commands():
            self.start_over(name)
            if name == "serve":
                self.seconds[name] = 0.6
                continue
            start = time.perf_counter()
            done = self.wait(self.commands()[name])
            assert done.code == 0, (name, done)
            self.seconds[name] = time.perf_counter() - start
            self.undisturbed[name] = self.outcome(name)
            if name.startswith("run"):
                (self.work / "run").rename(folder / f"reference-{name}")
        self.reference = folder
        finished_run(folder)  # as the kind "run" compares folders

    def commands(self) -> dict[str, Callable[[], int | None]]:
        run = run_arguments(self.clips, self.work / "run", "crumb")
        closed = run_arguments(self.clips, self.work / "run", "ncm")
        pretrain = ("pretrain", "--data", self.clips, "--weights", "none", *NETWORK, *QUIET, "--epochs", 2)
        teach = ("teach", self.work / "mine.safetensors", self.clips / "dog", "--label", "dog", *QUIET)
        prepare = ("prepare", "tiny_imagenet", "--dataset-root", self.work / "tiny", "--source", self.archive)
        return {
            "run": crumb(*run, "--checkpoint-every", 1),
            "run with cache": crumb(*closed, "--feature-cache", self.work / "cache"),
            "teach": crumb(*teach),
            "pretrain": crumb(*pretrain, "--codebook-size", 8, "--output", self.work / "pretrained.safetensors"),
            "prepare": crumb(*prepare, "--workers", 1, "--progress", "false"),
            "serve": self.serve,
        }

    def serve(self) -> int | None:
        """Serve with a known token."""
        with mock.patch("secrets.token_urlsafe", lambda size: TOKEN):
            return crumb("serve", self.work / "mine.safetensors", "--port", self.port, "--threads", 1)()

    def start_over(self, name: str) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        if name in ("teach", "serve"):
            shutil.copy(self.base, self.work / "mine.safetensors")

    def wait(self, work: Callable[[], int | None]) -> Ended:
        return ended(fork(work, self.said), self.limit / 2)

    def damage(self, random: Random) -> str:
        self.name = random.choice(list(self.commands()))
        self.start_over(self.name)
        self.signal = random.choice(SIGNALS)
        if random.random() < 0.5:
            self.after, self.change = random.uniform(0, 1.2 * self.seconds[self.name]), None
            return f"{self.name}: {self.signal.name} after {self.after:.3f} s"
        self.after, self.change = None, random.choice((random.randrange(12), random.randrange(120)))
        return f"{self.name}: {self.signal.name} before change {self.change} of files"

    def act(self):
        work = self.commands()[self.name]
        child = fork(work if self.change is None else self.killing_itself(work), self.said)
        self.acknowledged: list[str] = []
        if self.name == "serve":
            self.teach_until(time.monotonic() + (self.after or 1.0))
        elif self.after is not None:
            time.sleep(self.after)
        if self.after is not None or self.name == "serve":
            os.kill(child.pid, self.signal)  # a zombie if it has ended
        first = ended(child, self.limit / 2)
        if first.code not in (0, 1, -self.signal, 128 + self.signal):
            return f"exit {first.code}: {first.said}"
        if self.name == "serve":
            return self.lost()
        if self.name == "teach" and self.outcome("teach") == self.undisturbed["teach"]:
            return []
        again = self.wait(work)
        if again.code and not any(text in again.said for text in ("already holds", "exists already", "has the layout")):
            return f"the same command again: exit {again.code}: {again.said}"
        if self.name.startswith("run"):
            return differences(self.reference / f"reference-{self.name}", self.work / "run")
        return [] if self.outcome(self.name) == self.undisturbed[self.name] else "another result"

    def killing_itself(self, work: Callable[[], int | None]) -> Callable[[], int | None]:
        """Work that gets its signal before one of its changes of files."""

        def killed() -> int | None:
            count = 0

            def watch(event: str, path: str) -> None:
                nonlocal count
                if path.startswith(str(self.work)):
                    count += 1
                    if count == self.change + 1:
                        os.kill(os.getpid(), self.signal)

            watch_changes(watch)
            return work()

        return killed

    def outcome(self, name: str):
        """What a command left behind, to be compared."""
        if name in ("teach", "serve"):
            return learned(self.work / "mine.safetensors")
        if name == "pretrain":
            tensors, metadata = read_tensors(self.work / "pretrained.safetensors")
            made_with = json.loads(metadata["made_with"])
            return sums(tensors), {key: value for key, value in made_with.items() if key != "output"}
        if name == "prepare":
            root = self.work / "tiny"
            left = (".lock", "lock")
            return {
                str(path.relative_to(root)): path.read_bytes()
                for path in root.rglob("*")
                if path.is_file() and path.name not in left
            }
        return None

    def lost(self) -> object:
        """Lessons that the server acknowledged and its file lacks."""
        there = {one.name for one in Learner.load(self.work / "mine.safetensors").classes}
        return sorted(set(self.acknowledged) - there)

    def teach_until(self, end: float) -> None:
        """Teach class after class through the server until a time, or its end."""
        number = 0
        while time.monotonic() < end:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=end - time.monotonic() + 0.01)
                headers = {"x-crumb-token": TOKEN}
                connection.request("POST", f"/teach?label=new{number}", photo(number), headers)
                if connection.getresponse().status == 200:
                    self.acknowledged.append(f"new{number}")
                number += 1
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)
            finally:
                connection.close()

    def right(self, found) -> bool:
        return found == []

    def restore(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
