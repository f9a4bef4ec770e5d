"""Two processes that use the same files at the same time."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import torch
from support.faults.cache import FeatureCacheFiles
from support.faults.case import Kind, command
from support.faults.forked import Ended, crumb, ended, fork
from support.faults.kills import learned, write_archive
from support.faults.material import NETWORK, QUIET, finished_run, run_arguments, write_clips, write_photo, write_weights
from support.same_results import differences

from benchmarks_toybox_ilab.tables.frame_table import FrameTable

IN_USE = ("being changed by another process", "in use by another process", "already holds a finished run")


class TwoProcesses(Kind):
    """Each of two processes does its work, or says that the other one holds the files; no file mixes both."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.work = folder / "work"
        self.clips, self.weights = write_clips(folder / "clips"), write_weights(folder / "weights.safetensors")
        self.archive = write_archive(folder / "tiny.zip", folder / "photos")
        self.photo = write_photo(folder / "photo.png", 3)
        self.base, self.reference = folder / "base.safetensors", finished_run(folder)
        new = ("--weights", self.weights, *NETWORK, *QUIET)
        assert command("teach", self.base, self.clips / "cup", "--label", "cup", *new).code == 0
        self.cache = FeatureCacheFiles(folder / "cache")
        rows = [row for row in FrameTable.from_csv(self.write_table(folder), None)]
        self.tables = [FrameTable(rows), FrameTable(rows[:-1])]
        self.pairs = {
            "two lessons": (3, self.two_lessons),
            "lesson and question": (2, self.lesson_and_question),
            "cache": (8, self.one_cache),
            "index": (8, self.one_index),
            "prepare": (1, self.one_root),
            "one run": (1, self.one_run),
        }
        self.before, self.answers = learned(self.base), self.answers_of_base()

    def write_table(self, folder: Path) -> Path:
        from benchmarks_toybox_ilab.datasets.clip_folder import ClipFolderFrames

        ClipFolderFrames(self.clips).to_csv(folder / "index.csv")
        return folder / "index.csv"

    def answers_of_base(self) -> set[str]:
        """What the learner answers before and after the second lesson."""
        self.work.mkdir()
        path, found = self.work / "mine.safetensors", set()
        shutil.copy(self.base, path)
        for _ in range(2):
            found.add(command("predict", path, self.photo, "--threads", 1).out)
            command("teach", path, self.clips / "dog", "--label", "dog", *QUIET)
        self.restore()
        return found

    def damage(self, random: Random) -> str:
        self.work.mkdir()
        names = list(self.pairs)
        self.name = random.choices(names, [self.pairs[name][0] for name in names])[0]
        longest = 0.03 if self.name in ("cache", "index") else 0.3
        self.wait = random.choice((0.0, random.uniform(0, longest)))
        return f"{self.name}, {self.wait:.3f} s apart"

    def act(self) -> list[str]:
        return self.pairs[self.name][1]()

    def both(self, one: Callable, other: Callable) -> tuple[Ended, Ended]:
        """Do both in processes of their own."""
        children = [fork(one, self.folder / "one.txt")]
        time.sleep(self.wait)
        children.append(fork(other, self.folder / "other.txt"))
        found = [ended(child, self.limit / 2) for child in children]
        for each in found:
            if each.code not in (0, 1) or (each.code and not any(text in each.said for text in IN_USE)):
                raise AssertionError(f"exit {each.code}: {each.said}")
        if all(each.code for each in found):
            raise AssertionError(f"none did its work: {found}")
        return found[0], found[1]

    def two_lessons(self) -> list[str]:
        path = self.work / "mine.safetensors"
        shutil.copy(self.base, path)
        names = ("dog", "key")
        lessons = [crumb("teach", path, self.clips / name, "--label", name, *QUIET) for name in names]
        found = self.both(*lessons)
        wanted = {"cup", *(name for name, each in zip(names, found) if not each.code)}
        return sorted(wanted ^ learned(path)[0].keys())

    def lesson_and_question(self) -> list[str]:
        path = self.work / "mine.safetensors"
        shutil.copy(self.base, path)
        child = fork(crumb("teach", path, self.clips / "dog", "--label", "dog", *QUIET), self.folder / "one.txt")
        time.sleep(self.wait)
        found = command("predict", path, self.photo, "--threads", 1)
        lesson = ended(child, self.limit / 2)
        return [] if lesson.code == found.code == 0 and found.out in self.answers else [found.out, lesson.said]

    def one_cache(self) -> list[str]:
        self.cache.folder = self.work / "cache"

        def fill() -> int:
            return 0 if torch.equal(self.cache.act(), self.cache.expected) else 98

        self.both(fill, fill)
        return [] if torch.equal(self.cache.act(), self.cache.expected) else ["another map"]

    def one_index(self) -> list[str]:
        path = self.work / "index.csv"
        self.both(*[lambda table=table: table.to_csv(path) for table in self.tables])
        return [] if tuple(FrameTable.from_csv(path, None)) in map(tuple, self.tables) else ["a mixed table"]

    def one_root(self) -> list[str]:
        root = self.work / "tiny"
        work = crumb("prepare", "tiny_imagenet", "--dataset-root", root, "--source", self.archive, "--workers", 1)
        self.both(work, work)
        return [] if len(FrameTable.from_csv(root / "tiny_imagenet.csv", root)) == 8 else ["another table"]

    def one_run(self) -> list[str]:
        work = crumb(*run_arguments(self.clips, self.work / "run"))
        self.both(work, work)
        return differences(self.reference, self.work / "run")

    def right(self, found: list[str]) -> bool:
        return not found

    def restore(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
