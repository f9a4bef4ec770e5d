"""The features of a lesson, from which it can be learned again."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.lesson import Lesson, learn
from crumb_avalanche.system.tensor_file import tensor_bytes


@dataclass(frozen=True)
class ClipFeatures:
    """Features of a clip.

    Attributes:
        label: name of the class, or ``NOTHING``.
        pieces: ``(n, V * D)`` float32 each, as they were learned, in order.
    """

    label: str
    pieces: tuple[Tensor, ...]


@dataclass(frozen=True)
class LessonFeatures:
    """The features of a lesson, clip by clip, from which it can be learned again.

    It holds no images. It never changes.
    """

    clips: tuple[ClipFeatures, ...] = ()

    def __deepcopy__(self, memo: dict) -> "LessonFeatures":
        return self

    @property
    def bytes(self) -> int:
        """Bytes of all features."""
        return tensor_bytes(self._pieces())

    def _pieces(self) -> list[Tensor]:
        return [piece for clip in self.clips for piece in clip.pieces]

    def learn(self, classifier: Classifier) -> Lesson:
        """Let a classifier learn the lesson again, in the same pieces."""
        return learn(classifier, self.batches(), [])

    def batches(self) -> Iterator[tuple[str, Iterator[tuple[list[str], Tensor]]]]:
        """Yield what ``lesson.learn`` takes; the paths of frames are not known."""
        for clip in self.clips:
            yield clip.label, (([""] * len(piece), piece) for piece in clip.pieces)

    def renamed(self, old: str, new: str) -> "LessonFeatures":
        """Return the lesson with another name of a class, maybe a second one's."""
        clips = []
        for clip in self.clips:
            if clip.label == old:
                clip = ClipFeatures(new, clip.pieces)
            clips.append(clip)
        return LessonFeatures(tuple(clips))

    def without(self, name: str) -> "LessonFeatures":
        """Return the lesson without a class."""
        return LessonFeatures(tuple(clip for clip in self.clips if clip.label != name))

    def state_dict(self) -> dict[str, Any]:
        """Return plain values, and the features of all clips in one tensor."""
        pieces = self._pieces()
        if pieces:
            features = torch.cat(pieces)
        else:
            features = torch.zeros(0, 1, dtype=torch.float32)
        return {
            "labels": [clip.label for clip in self.clips],
            "pieces": [list(map(len, clip.pieces)) for clip in self.clips],
            "features": features,
        }

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> "LessonFeatures":
        """Load what ``state_dict`` returned."""
        lengths = list(itertools.chain.from_iterable(state["pieces"]))
        pieces = iter(state["features"].split(lengths))
        clips = []
        for label, lengths in zip(state["labels"], state["pieces"], strict=True):
            clips.append(ClipFeatures(label, tuple(next(pieces) for _ in lengths)))
        return cls(tuple(clips))


class FeatureRecorder:
    """Records the features of a lesson while it is learned, if they fit.

    Args:
        room: most bytes; of a lesson of more, nothing is recorded.
    """

    def __init__(self, room: int):
        self._room = room
        self._bytes = 0
        self._labels: list[str] = []
        self._pieces: list[list[Tensor]] = []

    def record(self, label: str, index: int, features: Tensor) -> None:
        """Record a piece of a clip; ``index`` is 0 for the first piece of each clip."""
        self._bytes += tensor_bytes([features])
        if self._bytes > self._room:
            self._labels = []
            self._pieces = []
            return
        if index == 0:
            self._labels.append(label)
            self._pieces.append([])
        self._pieces[-1].append(features)

    def recorded(self) -> LessonFeatures | None:
        """Return the features; ``None`` if they took more than the room."""
        if self._bytes > self._room:
            return None
        clips = zip(self._labels, self._pieces, strict=True)
        return LessonFeatures(
            tuple(ClipFeatures(label, tuple(pieces)) for label, pieces in clips)
        )
