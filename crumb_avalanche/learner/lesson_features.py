"""The features of a lesson, from which it can be learned again."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.lesson import ClipPiece, learn
from crumb_avalanche.learner.lesson_record import Lesson
from crumb_avalanche.learner.nothing import NOTHING
from crumb_avalanche.learner.prediction import Observation
from crumb_avalanche.learner.records import Records
from crumb_avalanche.learner.taught_images import TaughtImages
from crumb_avalanche.system.tensor_file import tensor_bytes


@dataclass(frozen=True)
class ClipFeatures:
    """Features of a clip.

    Attributes:
        label: name of the class, or ``NOTHING``.
        pieces: ``(n, V * D)`` float32 each, as they were learned, in order.
        observation: what was recorded when the clip was predicted; ``None`` if it was
            not.
        repeated: ``(n,)`` bool of each piece, which images were learned before as the
            same class; empty if none were.
    """

    label: str
    pieces: tuple[Tensor, ...]
    observation: Observation | None = None
    repeated: tuple[Tensor, ...] = ()

    @property
    def masks(self) -> tuple[Tensor, ...]:
        """``repeated``, also where it is empty."""
        if self.repeated:
            return self.repeated
        return tuple(torch.zeros(len(piece), dtype=torch.bool) for piece in self.pieces)

    @property
    def is_repeated(self) -> bool:
        """Whether the clip is no evidence, as all images of its first piece are old."""
        return bool(self.masks[0].all())

    def repeated_images(self) -> Tensor:
        """Return the features of those images that were learned before it."""
        return torch.cat(self.pieces)[torch.cat(self.masks)]

    def new_images(self) -> Tensor:
        """Return the features of the other images."""
        return torch.cat(self.pieces)[~torch.cat(self.masks)]


@dataclass(frozen=True)
class Relearned:
    """A lesson that was learned again.

    Attributes:
        lesson: what was counted this time.
        features: with what was observed this time.
    """

    lesson: Lesson
    features: "LessonFeatures"


@dataclass(frozen=True)
class LessonFeatures:
    """The features of a lesson, clip by clip, from which it can be learned again.

    It holds no images. It never changes.

    Attributes:
        clips: see ``ClipFeatures``.
        observed: whether what was observed of the clips holds for the learner that had
            the lessons before this one; not after its classes became others.
    """

    clips: tuple[ClipFeatures, ...] = ()
    observed: bool = True

    def __deepcopy__(self, memo: dict) -> "LessonFeatures":
        return self

    @cached_property
    def bytes(self) -> int:
        """Bytes of all features."""
        return tensor_bytes(self.pieces())

    def pieces(self) -> list[Tensor]:
        """Return the features of all pieces of all clips, in order."""
        return [piece for clip in self.clips for piece in clip.pieces]

    def repeat(self, classifier: Classifier, taught: TaughtImages) -> "LessonFeatures":
        """Let a classifier learn the lesson as it was learned before.

        The classifier has to be in the state of then: its clips are not predicted,
        which takes most of the time, but recorded as they were. Those of an unobserved
        lesson are predicted.

        Args:
            classifier: learns it, in place.
            taught: images that were learned before, to which these are added.

        Returns:
            The lesson, with what is observed of it.
        """
        if not self.observed:
            self.add_repeated_to(taught)
            return self.learn(classifier, taught).features
        for clip in self.clips:
            for index, piece in enumerate(clip.pieces):
                _repeat_piece(classifier, clip, piece, is_first=index == 0)
                taught.add(clip.label, piece)
        classifier.end_lesson()
        return self

    def learn(self, classifier: Classifier, taught: TaughtImages) -> Relearned:
        """Let a classifier learn the lesson anew, in the same pieces.

        Its clips are predicted anew, and what is observed of them is recorded.

        Args:
            classifier: learns it, in place.
            taught: images that were learned before, to which these are added.
        """
        recorder = FeatureRecorder(self.bytes)
        lesson = learn(
            classifier,
            self.batches(),
            [],
            on_piece=recorder.record,
            taught=taught,
        )
        features = recorder.recorded()
        assert features is not None
        return Relearned(lesson, features)

    def add_repeated_to(
        self, taught: TaughtImages, gone: TaughtImages | None = None
    ) -> None:
        """Add those images that were learned before this lesson as the same class.

        The features of the lesson that was the first to have them may be kept no more.

        Args:
            taught: gets them.
            gone: images that are left out; default none.
        """
        # A clip may repeat another one of the lesson, which was new.
        new = TaughtImages(taught.n_views)
        self.add_new_to(new)
        for clip in self.clips:
            images = clip.repeated_images()
            images = images[~new.among(clip.label, images)]
            if gone is not None:
                images = images[~gone.among(clip.label, images)]
            taught.add(clip.label, images)

    def add_new_to(self, images: TaughtImages) -> None:
        """Add those images that were learned in this lesson for the first time."""
        for clip in self.clips:
            images.add(clip.label, clip.new_images())

    def add_to(self, images: TaughtImages) -> None:
        """Add all images of the lesson."""
        for clip in self.clips:
            for piece in clip.pieces:
                images.add(clip.label, piece)

    def batches(self) -> Iterator[tuple[str, Iterator[tuple[list[str], Tensor]]]]:
        """Yield what ``lesson.learn`` takes; the paths of frames are not known."""
        for clip in self.clips:
            yield clip.label, (([""] * len(piece), piece) for piece in clip.pieces)

    def renamed(self, old: str, new: str) -> "LessonFeatures":
        """Return the lesson with another name of a class, maybe a second one's."""
        clips = []
        for clip in self.clips:
            if clip.label == old:
                clip = replace(clip, label=new)
            clips.append(clip)
        return replace(self, clips=tuple(clips))

    def without(self, name: str) -> "LessonFeatures":
        """Return the lesson without a class, unobserved."""
        clips = tuple(clip for clip in self.clips if clip.label != name)
        return LessonFeatures(clips).unobserved()

    def without_image(self, number: int) -> "LessonFeatures":
        """Return the features of the lesson without one of its images.

        The lesson is unobserved: what was predicted of its clips no longer holds.

        Args:
            number: of the image in the lesson, from 0.
        """
        clips = []
        start = 0  # number of the first image of a piece
        for clip in self.clips:
            pieces = []
            masks = []
            for piece, mask in zip(clip.pieces, clip.masks, strict=True):
                end = start + len(piece)
                is_other_image = torch.arange(start, end) != number
                start = end
                if is_other_image.any():
                    pieces.append(piece[is_other_image])
                    masks.append(mask[is_other_image])
            if pieces:
                clip = replace(clip, pieces=tuple(pieces), repeated=tuple(masks))
                clips.append(clip)
        return LessonFeatures(tuple(clips)).unobserved()

    def unobserved(self) -> "LessonFeatures":
        """Return the lesson for a learner whose classes became others.

        It has no observations: their numbers are those of the classes before.
        """
        clips = tuple(replace(clip, observation=None) for clip in self.clips)
        return LessonFeatures(clips, observed=False)

    @property
    def observations(self) -> list[Observation]:
        """What was observed of the clips, in order, without those not predicted."""
        observed = [clip.observation for clip in self.clips]
        return [observation for observation in observed if observation is not None]

    def state_dict(self) -> dict[str, Any]:
        """Return plain values, and the features of all clips in one tensor.

        ``labels`` are class names of the clips; ``pieces`` numbers of frames of each
        piece of each clip, as they were learned. ``records`` are numbers of the images
        of each clip whose answer before learning was recorded, 0 for a clip that was
        not predicted; what was recorded is in ``observations``. ``observed`` says
        whether what was predicted of the clips still holds, and ``repeated`` which
        images were learned before as the same class.
        """
        pieces = self.pieces()
        if pieces:
            features = torch.cat(pieces)
            repeated = torch.cat([mask for clip in self.clips for mask in clip.masks])
        else:
            features = torch.zeros(0, 1, dtype=torch.float32)
            repeated = torch.zeros(0, dtype=torch.bool)
        return {
            "labels": [clip.label for clip in self.clips],
            "pieces": [list(map(len, clip.pieces)) for clip in self.clips],
            "features": features,
            "observed": self.observed,
            "repeated": repeated,
            "records": [_number_of_records(clip) for clip in self.clips],
        }

    @classmethod
    def of_state(
        cls, state: dict[str, Any], observations: Iterable[Observation] = ()
    ) -> "LessonFeatures":
        """Load what ``state_dict`` returned.

        Args:
            state: of each clip ``labels``, ``pieces`` (number of frames of each piece)
                and ``records`` (number of images whose answer before learning was
                recorded); ``features`` of all frames, and which of them are
                ``repeated``; and ``observed``.
            observations: what was recorded of each clip that was predicted before it
                was learned, in their order; an iterator may go on with those of other
                lessons.
        """
        frames_of_pieces = list(itertools.chain.from_iterable(state["pieces"]))
        pieces = iter(state["features"].split(frames_of_pieces))
        masks = iter(state["repeated"].split(frames_of_pieces))
        next_observations = iter(observations)
        # `pieces`, `masks` and `next_observations` hold those of all clips in one row;
        # each clip takes as many as it has.
        clips = []
        for label, frames_of_clip, number_of_records in zip(
            state["labels"], state["pieces"], state["records"], strict=True
        ):
            pieces_of_clip = tuple(next(pieces) for _ in frames_of_clip)
            masks_of_clip = tuple(next(masks) for _ in frames_of_clip)
            observation = None
            if number_of_records:
                observation = next(next_observations)
            clips.append(
                ClipFeatures(label, pieces_of_clip, observation, masks_of_clip)
            )
        return cls(tuple(clips), state["observed"])


def _repeat_piece(
    classifier: Classifier, clip: ClipFeatures, piece: Tensor, is_first: bool
) -> None:
    """Learn some frames of a clip again, as a lesson that is not changed learned them.

    With the first ones, what was recorded of the clip before it was learned is recorded
    again: it is not predicted anew.

    Args:
        classifier: in the state that it was in when the piece was learned.
        clip: that the piece is of, with its label and what was observed of it then.
        piece: ``(n, V * D)`` features of ``n`` frames, from ``V`` views of each.
        is_first: whether it is the first piece of the clip.
    """
    if clip.label == NOTHING:
        classifier.learn_nothing(piece)
        return
    number, _ = classifier.ensure_class(clip.label)
    if is_first and clip.observation is not None:
        classifier.observe(clip.observation)
    classifier.learn(piece, number, is_first and not clip.is_repeated)


def _number_of_records(clip: ClipFeatures) -> int:
    """Return how many records a clip has; 0 if it was not predicted."""
    if clip.observation is None:
        return 0
    return len(clip.observation.records.labels)


def observations_state(observations: list[Observation]) -> dict[str, Any]:
    """Return observations as tensors, a row for each record or for each clip.

    Args:
        observations: one for each clip that was predicted before it was learned: how
            its images were answered, and what it adds to the losses of each weighting
            of the parts of an image that are looked at.

    Returns:
        The columns of ``Records`` by name, and ``losses``, ``(clips, weightings)``.
    """
    records = Records.none()
    losses = torch.zeros(0, 1, dtype=torch.float64)
    if observations:
        # Records are a NamedTuple of columns: of each column, those of all clips.
        columns_of_clips = zip(*(observation.records for observation in observations))
        records = Records(*map(torch.cat, columns_of_clips))
        losses = torch.stack([observation.losses for observation in observations])
    return {**records._asdict(), "losses": losses}


def loaded_observations(
    state: dict[str, Any], counts: list[int]
) -> Iterator[Observation]:
    """Yield the observation of each clip, from what ``observations_state`` returned.

    Args:
        state: columns of the records of all clips by name, and ``losses``.
        counts: number of records of each clip that was predicted.
    """
    records = Records.of_state(state)
    columns_by_clip = [column.split(counts) for column in records]
    for losses, *columns_of_clip in zip(state["losses"], *columns_by_clip, strict=True):
        yield Observation(Records(*columns_of_clip), losses)


class FeatureRecorder:
    """Records the features of a lesson while it is learned, if they fit.

    Args:
        room: most bytes; of a lesson of more, nothing is recorded.
    """

    def __init__(self, room: int):
        self._room = room
        self._bytes = 0
        self._clips: list[ClipFeatures] = []

    def record(self, piece: ClipPiece) -> None:
        """Record a piece of a clip, which follows the pieces before it."""
        self._bytes += tensor_bytes([piece.features])
        if self._bytes > self._room:
            self._clips = []
            return
        if piece.index == 0:
            clip = ClipFeatures(
                piece.label, (piece.features,), piece.observation, (piece.repeated,)
            )
            self._clips.append(clip)
            return
        clip = self._clips[-1]
        self._clips[-1] = replace(
            clip,
            pieces=(*clip.pieces, piece.features),
            repeated=(*clip.repeated, piece.repeated),
        )

    def recorded(self) -> LessonFeatures | None:
        """Return the features; ``None`` if they took more than the room."""
        if self._bytes > self._room:
            return None
        return LessonFeatures(tuple(self._clips))
