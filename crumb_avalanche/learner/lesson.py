"""Lessons: each clip is predicted before it is learned, at most 64 frames at a time."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks_toybox_ilab.tables.text import now, printable
from crumb_avalanche.images.clips import BadImage, Clip, path_of
from crumb_avalanche.learner.classifier import Classifier, Prediction
from crumb_avalanche.learner.nothing import NOTHING
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
# Called with the class name, the number of the piece within its clip, and its features.
OnPiece = Callable[[str, int, Tensor], None]


@dataclass(frozen=True)
class Doubt:
    """Images of a lesson that looked like another class than that they were given as.

    Attributes:
        label: the class given.
        frames: images that were predicted before they were learned.
        as_label: how many of them looked like the class given.
        other: the class that most of the others looked like.
        as_other: how many looked like that one.
        unknown: how many are of clips that looked like no class.
    """

    label: str
    frames: int
    as_label: int
    other: str
    as_other: int
    unknown: int = 0

    @property
    def text(self) -> str:
        """What speaks against the label, as a question."""
        like_nothing = ""
        if self.unknown:
            like_nothing = f", {self.unknown} like nothing that was taught"
        return (
            f"{self.as_label} of {counted(self.frames, 'image')} looked like "
            f"{self.label}, {self.as_other} like {self.other}{like_nothing}: is the "
            "label right?"
        )


@dataclass(frozen=True)
class Lesson:
    """What one call of ``teach`` or ``teach_nothing`` did.

    Attributes:
        images: number of images learned by class name.
        clips: number of clips.
        answered: clips that were predicted before they were learned.
        right: those of them that were recognised: their class was named, and explained
            them.
        unknown: those of them that no class explained, which are news, whatever the
            nearest class; the others were taken for another class.
        when: date and time, ISO 8601 in UTC.
        unread: files that could not be read (``BadImage``); a saved lesson has none.
        notes: what the learner gave up to stay within its budget.
        doubts: what speaks against a label; at most one for each class.
        runtime: name and version of what ran the network.
        nothing: number of images that show nothing.
        number: from 1; stays the same when other lessons are taken back.
        source: name of what was shown, without its folder.
        picture: JPEG of up to 4 of its images, if the learner keeps pictures; else
            empty.
        id: random number; equal in copies of a learner alone.
    """

    images: dict[str, int]
    clips: int
    answered: int
    right: int
    unknown: int
    when: str
    unread: tuple[Any, ...] = ()
    notes: tuple[str, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    runtime: str = "torch"
    number: int = 1
    source: str = ""
    picture: bytes = field(default=b"", compare=False, repr=False)
    nothing: int = 0
    id: int = field(default=0, compare=False)

    def renamed(self, old: str, new: str) -> "Lesson":
        """Return the lesson with another name of a class, maybe a second one's."""
        images: Counter[str] = Counter()
        for name, count in self.images.items():
            if name == old:
                name = new
            images[name] += count
        doubts = []
        for doubt in self.doubts:
            # The label was in doubt under its old name, or is the other class now.
            if doubt.label == old or (doubt.label == new and doubt.other == old):
                continue
            if doubt.other == old:
                doubt = replace(doubt, other=new)
            doubts.append(doubt)
        return replace(self, images=dict(images), doubts=tuple(doubts))

    def without(self, name: str) -> "Lesson":
        """Return the lesson without a class."""
        images = {label: n for label, n in self.images.items() if label != name}
        doubts = (
            doubt for doubt in self.doubts if name not in (doubt.label, doubt.other)
        )
        return replace(self, images=images, doubts=tuple(doubts))

    def learned_again(self, again: "Lesson") -> "Lesson":
        """Return the lesson with what was counted when it was learned again."""
        return replace(
            self,
            images=again.images,
            answered=again.answered,
            right=again.right,
            unknown=again.unknown,
            notes=again.notes,
            doubts=again.doubts,
        )

    @property
    def has_images(self) -> bool:
        """Whether any of its images is still learned; not if all were forgotten."""
        return bool(self.images or self.nothing)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values.

        Without ``unread``, as a learner file holds no paths, and without the picture,
        which ``picture_state`` returns.
        """
        values = asdict(replace(self, unread=()))
        del values["picture"]
        return values

    def picture_state(self) -> Tensor | None:
        """Return the bytes of the picture, ``(n,)`` uint8; ``None`` without one."""
        if not self.picture:
            return None
        return torch.frombuffer(bytearray(self.picture), dtype=torch.uint8)

    @classmethod
    def of_state(cls, state: dict[str, Any], picture: Tensor | None) -> "Lesson":
        """Load what ``state_dict`` returned, also after JSON, and ``picture_state``."""
        values = {
            **state,
            "unread": (),
            "notes": tuple(state["notes"]),
            "doubts": tuple(Doubt(**doubt) for doubt in state["doubts"]),
        }
        jpeg = b"" if picture is None else picture.numpy().tobytes()
        return cls(**values, picture=jpeg)


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
        doubts = (doubt_of(label, seen) for label, seen in self.guesses.items())
        return Lesson(
            images=dict(self.images),
            clips=self.clips,
            answered=self.answered,
            right=self.right,
            unknown=self.unknown,
            when=now(),
            unread=tuple(unread),
            notes=tuple(self.notes),
            doubts=tuple(doubt for doubt in doubts if doubt is not None),
            nothing=self.nothing,
        )


def learn(
    classifier: Classifier,
    clips: Iterable[tuple[str, Batches]],
    unread: list[BadImage],
    progress: Progress | None = None,
    on_piece: OnPiece = lambda label, index, features: None,
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
            tally.clips += index == 0
            if label == NOTHING:
                classifier.learn_nothing(features)
                tally.nothing += len(features)
            else:
                _learn_piece(classifier, tally, label, features, first=index == 0)
            on_piece(label, index, features)
    classifier.end_lesson()
    return tally.lesson(unread)


def _learn_piece(
    classifier: Classifier, tally: _Tally, label: str, features: Tensor, first: bool
) -> None:
    """Learn a piece of a clip of a class.

    The ``first`` piece is predicted before; later ones are like what was learned of the
    clip already.
    """
    number, note = classifier.number_of(label)
    if note:
        tally.notes.append(note)
    if first:
        predicted = classifier.predict_before_learning(features, number)
        if predicted is not None:
            tally.add_prediction(label, number, predicted, classifier.names)
    classifier.learn(features, number)
    tally.images[label] += len(features)


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


def check_apart(lessons: Sequence[Lesson], others: Sequence[Lesson]) -> None:
    """Raise ValueError if two histories share a lesson.

    Lessons of which one side forgot all images do not count.
    """
    ids = {lesson.id for lesson in others if lesson.has_images}
    ids.discard(0)  # which is not known
    common = [lesson for lesson in lessons if lesson.has_images and lesson.id in ids]
    if not common:
        return
    listed = [
        f"{lesson.when}: {', '.join(lesson.images) or 'nothing'}"
        for lesson in common[:MOST_LISTED]
    ]
    if len(common) > MOST_LISTED:
        listed.append(f"and {len(common) - MOST_LISTED} more")
    count = "the same lesson"
    if len(common) > 1:
        count = f"{len(common)} of the same lessons"
    raise ValueError(
        f"both learners hold {count} ({'; '.join(listed)}); their images would count "
        "twice: teach a new learner what one of the two was taught apart and merge "
        "that, or teach it to the other one"
    )


def name_of(source: Any) -> str:
    """Return the name of a source without its folder; empty for images in memory."""
    path = source.path if isinstance(source, Clip) else source
    if not isinstance(path, str | os.PathLike):
        return ""
    return printable(path_of(path).name)[:100]
