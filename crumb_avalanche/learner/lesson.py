"""Lessons: each clip is predicted before it is learned, at most 64 frames at a time."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks_toybox_ilab.tables.text import now, printable
from crumb_avalanche.images.clips import BadImage, Clip, path_of
from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.lesson_record import Doubt, Lesson
from crumb_avalanche.learner.nothing import NOTHING
from crumb_avalanche.learner.prediction import Observation, Prediction
from crumb_avalanche.system.words import counted

FRAMES_AT_A_TIME = 64  # of a clip that are learned at once
# Mean probability below which a label is doubted. Of 0.3, 0.2, 0.1, 0.05, 0.02 and 0.01
# the largest at which less than 4 % of right lessons are, on splits of ETH-80 other
# than those of the test.
DOUBTED = 0.05
MOST_LISTED = 3  # files or lessons that an error names

# Of each batch of frames of a clip, their paths and ``(n, V * D)`` features.
Batches = Iterable[tuple[list[str], Tensor]]
Progress = Callable[[int], None]
# Called with the class name, the number of the piece within its clip, its features, and
# what was observed of the clip.
OnPiece = Callable[[str, int, Tensor, Observation | None], None]


class Guess(NamedTuple):
    """What an image looked like before it was learned.

    Attributes:
        name: the most likely class; ``None`` if no class explained its clip.
        label_share: probability of the class that the image was given as.
    """

    name: str | None
    label_share: float


@dataclass
class _Tally:
    """What is counted while a lesson is learned; see ``Lesson``."""

    images: Counter[str] = field(default_factory=Counter)
    clips: int = 0
    answered: int = 0
    right: int = 0
    unknown: int = 0
    nothing: int = 0
    notes: list[str] = field(default_factory=list)
    guesses: dict[str, list[Guess]] = field(default_factory=dict)  # by label

    def add_prediction(
        self,
        label: str,
        number: int,
        predicted: Prediction,
        names: Sequence[str | None],
    ) -> None:
        """Count a clip that was predicted.

        Args:
            label, number: name and number of the class that the clip was given as.
            predicted: what its images looked like, with a column for this class.
            names: name of each class, by number.
        """
        self.answered += 1
        self.right += predicted.names(number)
        self.unknown += not predicted.known
        evidence = predicted.evidence
        of_label = evidence.labels == number
        shares = evidence.scores.softmax(1)[:, of_label].flatten().tolist()
        nearest = evidence.labels[evidence.scores.argmax(1)].tolist()
        guesses = self.guesses.setdefault(label, [])
        for nearest_number, share in zip(nearest, shares, strict=True):
            name = None
            if predicted.known:
                name = str(names[nearest_number])
            guesses.append(Guess(name, share))

    def lesson(self, unread: Iterable[BadImage]) -> Lesson:
        """Return what was counted as a lesson of now."""
        doubts = []
        for label, guesses in self.guesses.items():
            doubt = doubt_of(label, guesses)
            if doubt is not None:
                doubts.append(doubt)
        return Lesson(
            images=dict(self.images),
            clips=self.clips,
            answered=self.answered,
            right=self.right,
            unknown=self.unknown,
            when=now(),
            unread=tuple(unread),
            notes=tuple(self.notes),
            doubts=tuple(doubts),
            nothing=self.nothing,
        )


def learn(
    classifier: Classifier,
    clips: Iterable[tuple[str, Batches]],
    unread: list[BadImage],
    progress: Progress | None = None,
    on_piece: OnPiece = lambda label, index, features, observation: None,
) -> Lesson:
    """Learn clips as one lesson, which may be empty; see ``check_not_empty``.

    Args:
        classifier: changed in place.
        clips: of each clip the class name, or ``NOTHING``, and its batches of features.
        unread: files that could not be read; filled while ``clips`` are read.
        progress: called with the number of images after each batch.
        on_piece: called with each piece after it is learned.
    """
    tally = _Tally()
    classifier.begin_lesson()
    for label, batches in clips:
        for index, features in enumerate(_pieces(batches, progress)):
            is_first = index == 0
            if is_first:
                tally.clips += 1
            observation = None
            if label == NOTHING:
                classifier.learn_nothing(features)
                tally.nothing += len(features)
            else:
                observation = _learn_piece(classifier, tally, label, features, is_first)
            on_piece(label, index, features, observation)
    classifier.end_lesson()
    return tally.lesson(unread)


def _learn_piece(
    classifier: Classifier, tally: _Tally, label: str, features: Tensor, is_first: bool
) -> Observation | None:
    """Predict the first piece of a clip, and learn the piece.

    Later pieces would be predicted from what was learned of the same clip.

    Args:
        classifier: learns the piece.
        tally: counts the prediction and the images.
        label: name of the class.
        features: of the piece.
        is_first: whether it is the first piece of its clip.

    Returns:
        What confidence is fitted to later; ``None`` without a prediction.
    """
    observation = None
    number, note = classifier.number_of(label)
    if note:
        tally.notes.append(note)
    if is_first:
        predicted = classifier.predict_before_learning(features, number)
        if predicted is not None:
            if predicted.asks(number):
                tally.add_prediction(label, number, predicted, classifier.names)
            observation = predicted.observation
    classifier.learn(features, number, is_first)
    tally.images[label] += len(features)
    return observation


def _pieces(batches: Batches, progress: Progress | None) -> Iterator[Tensor]:
    """Join batches of a clip's features until there are at least 64 frames."""
    joined: list[Tensor] = []
    for paths, features in batches:
        joined.append(features)
        if progress is not None:
            progress(len(paths))
        if sum(map(len, joined)) >= FRAMES_AT_A_TIME:
            yield torch.cat(joined)
            joined = []
    if joined:
        yield torch.cat(joined)


def doubt_of(label: str, guesses: Sequence[Guess]) -> Doubt | None:
    """Return what speaks against a label.

    The label is in doubt if its mean probability is below 5 % and most images look like
    another class. Clips that no class explains are news: their images speak neither for
    the label nor against it.

    Args:
        label: see above.
        guesses: what each image looked like, at least one.
    """
    of_known = [guess for guess in guesses if guess.name is not None]
    counts = Counter(str(guess.name) for guess in of_known)
    as_label = counts.pop(label, 0)
    if not counts:
        return None
    mean_share = sum(guess.label_share for guess in of_known) / len(of_known)
    nearest, as_nearest = counts.most_common(1)[0]
    if mean_share >= DOUBTED or as_nearest <= as_label:
        return None
    return Doubt(
        label=label,
        frames=len(guesses),
        as_label=as_label,
        other=nearest,
        as_other=as_nearest,
        unknown=len(guesses) - len(of_known),
    )


def check_not_empty(lesson: Lesson) -> None:
    """Raise ValueError if there was no image to learn; list files not read."""
    if lesson.has_images:
        return
    reason = ""
    if lesson.unread:
        reason = f", {counted(len(lesson.unread), 'file')} could not be read"
    for bad in lesson.unread[:MOST_LISTED]:
        reason += f"; {bad}".rstrip(".")
    raise ValueError(f"there was no image to learn{reason}; give photos or videos")


def check_apart(lessons: Sequence[Lesson], other_lessons: Sequence[Lesson]) -> None:
    """Raise ValueError if two learners that are merged share a lesson.

    Lessons of which one side forgot all images do not count.

    Args:
        lessons: of one learner.
        other_lessons: of the other learner.
    """
    ids = {lesson.id for lesson in other_lessons if lesson.has_images}
    ids.discard(0)  # stands for an id that is not known
    common = [lesson for lesson in lessons if lesson.has_images and lesson.id in ids]
    if not common:
        return
    listed = [
        f"{lesson.when}: {', '.join(lesson.images) or 'nothing'}"
        for lesson in common[:MOST_LISTED]
    ]
    if len(common) > MOST_LISTED:
        listed.append(f"and {len(common) - MOST_LISTED} more")
    shared = "the same lesson"
    if len(common) > 1:
        shared = f"the same {len(common)} lessons"
    raise ValueError(
        f"both learners hold {shared} ({'; '.join(listed)}); their images would count "
        "twice: teach a new learner only the lessons that they do not share and merge "
        "that one, or teach these lessons to one of the two"
    )


def name_of(source: Any) -> str:
    """Return the name of a source without its folder; empty for images in memory."""
    path = source.path if isinstance(source, Clip) else source
    if not isinstance(path, str | os.PathLike):
        return ""
    return printable(path_of(path).name)[:100]
