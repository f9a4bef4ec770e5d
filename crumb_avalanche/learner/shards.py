"""A lesson of many clips in shards: workers compute features, one learner learns them.

A worker computes the features of its clips in the batches in which the learner itself
would, and the learner learns all clips in their order. So it is bit by bit the learner
that was taught in one pass, whatever the number of shards and workers.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.images.clips import (
    BadImage,
    Clip,
    OnBad,
    clips_with_distinct_labels,
    label_of,
)
from crumb_avalanche.images.sources import clips_of
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.lesson_features import ClipFeatures, LessonFeatures
from crumb_avalanche.learner.nothing import NOTHING
from crumb_avalanche.models.map_store import files_key
from crumb_avalanche.system.tensor_file import (
    StateError,
    TensorFileError,
    read_state,
    write_state,
)

FEATURES = "features.safetensors"  # in the folder of a shard
LEARNER = "learner.safetensors"  # that workers compute features with
FORMAT = {"format": "crumb-shard"}


@dataclass(frozen=True)
class LessonSource:
    """The clips of a lesson and their class, which workers list alike.

    Attributes:
        source: path, or list of lists of paths; absolute.
        label: name of the class, ``NOTHING``, or ``None`` for class folders.
        on_bad: see ``Learner.teach``.
    """

    source: Any
    label: str | None
    on_bad: OnBad = "skip"

    @classmethod
    def of(
        cls, source: Any, label: str | None, on_bad: OnBad = "skip"
    ) -> "LessonSource":
        """Make the source of a path or lists of paths, from any working folder."""
        return cls(_absolute(source), label, on_bad)

    def clips(self, unread: list[BadImage]) -> list[Clip]:
        """List the clips, whose images are not read yet.

        Args:
            unread: filled with folders that cannot be read, and while clips are read
                with images.
        """
        label = "nothing" if self.label == NOTHING else self.label
        clips = clips_of(self.source, label, on_bad=self.on_bad, report=unread.append)
        return list(clips)

    def name_of(self, clip: Clip) -> str:
        """Return the class name of a clip, or ``NOTHING``."""
        return NOTHING if self.label == NOTHING else label_of(clip)


def _absolute(source: Any) -> Any:
    """Return a path, or the paths in lists of lists, as absolute ones."""
    if isinstance(source, str | os.PathLike):
        return os.path.abspath(source)
    return [_absolute(path) for path in source]


@dataclass(frozen=True)
class Shard:
    """Consecutive clips of a lesson, for one worker, which gets it pickled.

    Attributes:
        source: of the lesson.
        start, stop: the clips are those with numbers from ``start`` to before ``stop``.
        learner: file of the learner that computes the features.
        runtime: name and version of what runs its network.
        threads: CPU threads of the worker.
        folder: of its own, where the features are left.
    """

    source: LessonSource
    start: int
    stop: int
    learner: Path
    runtime: str
    threads: int
    folder: Path

    @property
    def path(self) -> Path:
        """The file of the features."""
        return self.folder / FEATURES

    def is_done(self) -> bool:
        """Whether the features are there; they are written at once."""
        return self.path.is_file()

    def compute(self) -> None:
        """Compute the features of the shard's clips, and write them to its file.

        A worker does so in a process of its own, perhaps on another computer.

        Raises:
            BadFrameError: an image cannot be read, and ``on_bad`` is ``raise``.
            RuntimeRefusedError: the runtime is not installed here.
            ValueError: it has another version here, or the source has other clips than
                when the command was given.
        """
        torch.set_num_threads(self.threads)
        learner = Learner.load(self.learner)
        name_of_runtime, _, _ = self.runtime.partition(" ")  # without its version
        runtime = str(learner.use_runtime(name_of_runtime))
        if runtime != self.runtime:
            raise ValueError(
                f"the network runs in {self.runtime} where the command was given, but "
                f"in {runtime} here: give all nodes the same environment"
            )
        unread: list[BadImage] = []
        clips = self.source.clips(unread)[self.start : self.stop]  # those of this shard
        # Every worker lists the whole source and meets the same unread folders, which
        # the command reports once; from here on the list is of images of this shard.
        unread.clear()
        report = unread.append if self.source.on_bad == "skip" else None
        computed = []
        for clip in clips:
            pieces = tuple(features for _, features in learner.batches(clip, report))
            computed.append(ClipFeatures(self.source.name_of(clip), pieces))
        state = {
            "lesson": LessonFeatures(tuple(computed)).state_dict(),
            "paths": [clip.path for clip in clips],
            "unread": [[bad.path, bad.reason] for bad in unread],
        }
        write_state(self.path, state, FORMAT)

    def read(self, clips: Sequence[Clip], unread: list[BadImage]) -> LessonFeatures:
        """Read the features that a worker computed.

        Args:
            clips: those of the shard, which must be those that the worker met.
            unread: files that the worker could not read are added.

        Raises:
            TensorFileError: the file is damaged, or of other clips.
        """
        try:
            state, _ = read_state(self.path)
            if state["paths"] != [clip.path for clip in clips]:
                raise StateError("its clips are not those of the source")
            lesson = LessonFeatures.of_state(state["lesson"])
            unread += [BadImage(path, reason) for path, reason in state["unread"]]
        except (StateError, LookupError, TypeError, RuntimeError, ValueError) as error:
            raise TensorFileError(
                f"{self.path} cannot be used ({error}): remove {self.folder} and give "
                "the same command again"
            ) from error
        return lesson


@dataclass(frozen=True)
class ShardedLesson:
    """A lesson that workers compute the features of.

    Attributes:
        source: of the lesson.
        folder: of the features of this lesson alone, which its key names.
        clips: all of its clips.
        shards: that together have all clips, in order.
        unread: folders that cannot be read.
    """

    source: LessonSource
    folder: Path
    clips: list[Clip]
    shards: list[Shard]
    unread: list[BadImage]

    @classmethod
    def plan(
        cls,
        learner: Learner,
        source: LessonSource,
        count: int,
        folder: Path,
        new_class: bool = False,
        threads: int = 1,
    ) -> "ShardedLesson":
        """Divide the clips of a lesson among workers, and write the learner for them.

        Args:
            learner: that will learn it, in the runtime that all workers are to use.
            source: of the lesson.
            count: number of shards, at least 1; at most one for each clip.
            folder: that all workers see; what other features are left in has another
                subfolder there.
            new_class: take names as they are given, also if one is nearly that of
                another class.
            threads: CPU threads of each worker.

        Returns:
            The clips, and shards of them that workers compute.

        Raises:
            DoubtfulNameError: a name is nearly that of another class, and ``new_class``
                is false.
            ValueError: there is nothing to learn.
        """
        learner.check_teachable()  # raises if it can only be asked
        unread: list[BadImage] = []
        clips = source.clips(unread)
        if not new_class and source.label != NOTHING:
            # The generator compares each name with `names`, those of classes and of the
            # clips before, and raises DoubtfulNameError.
            names = [info.name for info in learner.classes]
            for clip in clips_with_distinct_labels(clips, names):
                names.append(source.name_of(clip))
        runtime = str(learner.runtime)
        lesson_folder = folder / _lesson_key(learner, clips, source, runtime)
        lesson_folder.mkdir(parents=True, exist_ok=True)
        file = lesson_folder / LEARNER
        if not file.exists():
            learner.save(file)
        count = min(count, len(clips))
        # Number of the first clip of each shard, and the end of the last one.
        bounds = [number * len(clips) // count for number in range(count + 1)]
        shards = []
        for number, (start, stop) in enumerate(pairwise(bounds)):
            shard = Shard(
                source=source,
                start=start,
                stop=stop,
                learner=file,
                runtime=runtime,
                threads=threads,
                folder=lesson_folder / f"shard{number}of{count}",
            )
            shards.append(shard)
        return cls(source, lesson_folder, clips, shards, unread)

    def batches(
        self, unread: list[BadImage]
    ) -> Iterator[tuple[str, Iterator[tuple[list[str], Tensor]]]]:
        """Yield what ``learner.lesson.learn`` takes, shard by shard, in order.

        Args:
            unread: files that no worker could read are added.
        """
        unread += self.unread
        for shard in self.shards:
            own_clips = self.clips[shard.start : shard.stop]
            yield from shard.read(own_clips, unread).batches()

    def teach(self, learner: Learner, progress: Any = None) -> Any:
        """Let a learner learn the features of all shards as one lesson.

        Returns:
            The lesson, as ``Learner.teach`` does.
        """
        return learner.teach_features(self.batches, self.source.source, progress)

    def remove_features(self) -> None:
        """Remove the features, and the folder around them if it is empty then.

        Features of other lessons stay.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # those of another lesson are there
            self.folder.parent.rmdir()


def _lesson_key(
    learner: Learner, clips: Sequence[Clip], source: LessonSource, runtime: str
) -> str:
    """Return a folder name that changes with all that decides a lesson's features.

    Features that were computed for another source, network or runtime are not taken.

    Args:
        learner: its network and features count.
        clips: of the source; paths, sizes and times of their files count.
        source: its label and what is done with bad images count.
        runtime: name and version of what runs the network.
    """
    files = [file for clip in clips for file in clip.files]
    parts = [
        learner.network.header(),
        learner.features,
        learner.looks_used,
        runtime,
        [source.label, source.on_bad],
        [clip.path for clip in clips],
        files_key(files),
    ]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
