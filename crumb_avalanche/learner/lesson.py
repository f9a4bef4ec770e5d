"""Lessons: clips are predicted before they are learned, at most 64 frames at a time."""

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
from crumb_avalanche.learner.taught_images import TaughtImages
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


@dataclass(frozen=True)
class ClipPiece:
    """Frames of a clip that were learned at once.

    Attributes:
        label: class name of the clip, or ``NOTHING``.
        index: number of the piece in its clip, from 0.
        features: ``(n, V * D)`` float32.
        observation: what was recorded of the clip when it was predicted, with its first
            piece; ``None`` with others, and for a clip that was not predicted.
        repeated: ``(n,)`` bool, which frames were learned before as the same class.
    """

    label: str
    index: int
    features: Tensor
    observation: Observation | None
    repeated: Tensor


class Guess(NamedTuple):
    """What an image looked like before it was learned.

    Attributes:
        name: the most likely class; ``None`` if no class explained its clip.
        label_probability: probability of the class that the image was given as.
    """

    name: str | None
    label_probability: float


@dataclass
class _Tally:
    """What is counted while a lesson is learned; see ``Lesson``."""

    images: Counter[str] = field(default_factory=Counter)
    clips: int = 0
    repeated: int = 0
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
        prediction: Prediction,
        names: Sequence[str | None],
    ) -> None:
        """Count a clip that was predicted; note what each of its images looked like.

        Args:
            label, number: name and number of the class that the clip was given as.
            prediction: what its images looked like, with a column for this class.
            names: name of each class, by number.
        """
        self.answered += 1
        self.right += prediction.is_answer(number)
        self.unknown += not prediction.known
        evidence = prediction.evidence
        is_column_of_label = evidence.class_of_column == number
        # Of the label, for each image.
        probabilities = evidence.scores.softmax(1)[:, is_column_of_label].flatten()
        best = evidence.class_of_column[
            evidence.scores.argmax(1)
        ]  # class of each image
        guesses = self.guesses.setdefault(label, [])
        for best_number, probability in zip(
            best.tolist(), probabilities.tolist(), strict=True
        ):
            name = None
            if prediction.known:
                name = str(names[best_number])
            guesses.append(Guess(name, probability))

    def lesson(self, unread: Iterable[BadImage]) -> Lesson:
        """Return what was counted as a lesson that ends now.

        Args:
            unread: files that could not be read.
        """
        doubts = []
        for label, guesses in self.guesses.items():
            doubt = doubt_of(label, guesses)
            if doubt is not None:
                doubts.append(doubt)
        return Lesson(
            images=dict(self.images),
            clips=self.clips,
            repeated=self.repeated,
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
    on_piece: Callable[[ClipPiece], object] = lambda piece: None,
    taught: TaughtImages | None = None,
) -> Lesson:
    """Learn clips as one lesson, which may be empty.

    A long clip is learned in pieces of its frames, of which the first one is also
    predicted before. If all images of that one were learned before as the same class,
    the clip is no evidence: it is learned, but neither predicted nor counted as a clip
    of its class.

    Args:
        classifier: learns them, in place.
        clips: of each clip the class name, or ``NOTHING``, and its batches of features.
        unread: files that could not be read; filled while ``clips`` are read.
        progress: called with the number of images after each batch.
        on_piece: called with each piece after it is learned.
        taught: images that were learned before, to which these are added; default none.

    Returns:
        The lesson: numbers of images and clips, answers before learning, and doubts.
    """
    tally = _Tally()  # counts images and predictions
    if taught is None:
        taught = TaughtImages(classifier.looks.n_views)
    classifier.begin_lesson()
    for label, batches in clips:
        pieces = _features_of_pieces(batches, progress)
        for index, features in enumerate(pieces):
            is_first = index == 0
            if is_first:
                tally.clips += 1
            observation = None  # what was recorded of the clip before it was learned
            repeated = torch.zeros(len(features), dtype=torch.bool)
            if label == NOTHING:
                classifier.learn_nothing(features)
                tally.nothing += len(features)
            else:
                repeated = taught.among(label, features)
                is_repeated_clip = is_first and bool(repeated.all())
                tally.repeated += is_repeated_clip
                is_evidence = is_first and not is_repeated_clip
                observation = _learn_piece(
                    classifier, tally, label, features, is_evidence
                )
                taught.learned(label, features)
            on_piece(ClipPiece(label, index, features, observation, repeated))
    classifier.end_lesson()
    return tally.lesson(unread)


def _learn_piece(
    classifier: Classifier,
    tally: _Tally,
    label: str,
    features: Tensor,
    is_evidence: bool,
) -> Observation | None:
    """Predict a clip by the first piece of its frames, and learn the piece.

    Later pieces are learned alone: they would be predicted from their own clip. So are
    those of a clip that was learned before.

    Args:
        classifier: learns the piece.
        tally: counts the prediction and the images.
        label: name of the class.
        features: of the piece, a row for each frame.
        is_evidence: whether it is the first piece of a clip that was not learned
            before.

    Returns:
        What was recorded of the clip; ``None`` without a prediction.
    """
    observation = None
    # The number of the class, and in words what is given up if it is a new one.
    number, note = classifier.ensure_class(label)
    if note:
        tally.notes.append(note)
    if is_evidence:
        prediction = classifier.predict_before_learning(features, number)
        if prediction is not None:
            if prediction.has_column_of(number):  # not of a new class
                tally.add_prediction(
                    label, number, prediction, classifier.classes.names
                )
            observation = prediction.observation
    classifier.learn(features, number, is_evidence)
    tally.images[label] += len(features)
    return observation


def _features_of_pieces(
    batches: Batches, progress: Progress | None
) -> Iterator[Tensor]:
    """Yield the features of a clip in pieces of at least 64 frames, but for the last.

    Args:
        batches: of the clip, in order.
        progress: called with the number of frames of each batch.
    """
    waiting: list[Tensor] = []  # batches of the next piece
    for paths, features in batches:
        waiting.append(features)
        if progress is not None:
            progress(len(paths))
        if sum(map(len, waiting)) >= FRAMES_AT_A_TIME:
            yield torch.cat(waiting)
            waiting = []
    if waiting:
        yield torch.cat(waiting)


def doubt_of(label: str, guesses: Sequence[Guess]) -> Doubt | None:
    """Return what speaks against a label.

    The label is in doubt if its mean probability is below 5 % and most images look like
    another class. Clips that no class explains are news: their images speak neither for
    the label nor against it.

    Args:
        label: name of the class that images were given as.
        guesses: what each image looked like, at least one: the name of a class, or
            ``None`` where no class explains its clip, and the probability of the label.

    Returns:
        The doubt; ``None`` if nothing speaks against the label.
    """
    of_known = [guess for guess in guesses if guess.name is not None]
    counts = Counter(str(guess.name) for guess in of_known)  # images by class
    as_label = counts.pop(label, 0)
    if not counts:  # no image looks like another class
        return None
    probabilities = [guess.label_probability for guess in of_known]
    mean_probability = sum(probabilities) / len(probabilities)
    nearest, as_nearest = counts.most_common(1)[0]  # the class, and its images
    if mean_probability >= DOUBTED or as_nearest <= as_label:
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
