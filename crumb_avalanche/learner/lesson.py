"""Lessons: each clip is predicted before it is learned, in pieces of at most 64 frames."""

import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks_toybox_ilab.tables.text import printable
from crumb_avalanche.images.clips import BadImage, Clip, Frames, path_of
from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.nothing import NOTHING
from crumb_avalanche.system.progress import counted

FRAMES_AT_A_TIME = 64  # of a clip that are learned at once
PICTURES, PICTURE_HEIGHT = 4, 64  # of a lesson, and in pixels
# Mean probability below which a label is doubted. Of 0.3, 0.2, 0.1, 0.05, 0.02 and 0.01
# the largest at which less than 4 % of right lessons are, on splits of ETH-80 other
# than those of the test.
DOUBTED = 0.05

Values = Iterable[tuple[list[str], Tensor]]
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Doubt:
    """Images of a lesson that looked like another class than the one that they were given as.

    Attributes:
        label: the class given.
        frames: images that were predicted before they were learned.
        as_label: how many of them looked like the class given.
        other: the class that most of the others looked like.
        as_other: how many looked like that one.
    """

    label: str
    frames: int
    as_label: int
    other: str
    as_other: int

    @property
    def text(self) -> str:
        """What speaks against the label, as a question."""
        return (
            f"{self.as_label} of {counted(self.frames, 'image')} looked like {self.label}, {self.as_other} like "
            f"{self.other}: is the label right?"
        )


@dataclass(frozen=True)
class Lesson:
    """What one call of ``teach`` or ``teach_nothing`` did.

    Attributes:
        images: number of images learned by class name.
        clips: number of clips.
        answered, right: clips that were predicted before they were learned, and the
            right ones among them.
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
        """Return the lesson with another name of a class, which may be that of a second one."""
        images: Counter[str] = Counter()
        for name, count in self.images.items():
            images[new if name == old else name] += count
        doubts = [
            one
            for one in self.doubts
            if one.label != old and (one.label, one.other) != (new, old)
        ]
        doubts = [
            replace(one, other=new) if one.other == old else one for one in doubts
        ]
        return replace(self, images=dict(images), doubts=tuple(doubts))

    def without(self, name: str) -> "Lesson":
        """Return the lesson without a class."""
        images = {other: count for other, count in self.images.items() if other != name}
        doubts = tuple(one for one in self.doubts if name not in (one.label, one.other))
        return replace(self, images=images, doubts=doubts)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values, without ``unread``, as a learner file holds no paths, and without the picture."""
        return {
            name: value
            for name, value in asdict(replace(self, unread=())).items()
            if name != "picture"
        }

    def picture_state(self) -> Tensor | None:
        """Return the bytes of the picture, ``(n,)`` uint8, or ``None`` if there is none."""
        return (
            torch.frombuffer(bytearray(self.picture), dtype=torch.uint8)
            if self.picture
            else None
        )

    @classmethod
    def of_state(cls, state: dict[str, Any], picture: Tensor | None) -> "Lesson":
        """Load what ``state_dict`` returned, also after JSON, and ``picture_state``."""
        doubts, jpeg = (
            tuple(Doubt(**doubt) for doubt in state["doubts"]),
            b"" if picture is None else picture.numpy(),
        )
        plain = {
            **state,
            "unread": (),
            "notes": tuple(state["notes"]),
            "doubts": doubts,
        }
        return cls(**plain, picture=bytes(jpeg))


def learn(
    classifier: Classifier,
    clips: Iterable[tuple[str, Values]],
    unread: list[BadImage],
    progress: Progress | None = None,
    keep: Callable[[str, int, Tensor], None] = lambda label, place, values: None,
) -> Lesson:
    """Learn clips as one lesson, which may be empty; see ``check_not_empty``.

    Args:
        classifier: changed in place.
        clips: of each clip the class name, and what is learned of it: paths of some
            frames with a tensor of as many rows.
        unread: files that could not be read; filled while ``clips`` are read.
        progress: called with the number of images after each batch.
        keep: called with the class name, the number within the clip, and the values of
            each piece that is learned.
    """
    images: dict[str, int] = {}
    number_of_clips = answered = right = nothing = 0
    notes: list[str] = []
    looked_like: dict[str, list[tuple[str, float]]] = {}
    classifier.begin_lesson()
    for label, values_of_clip in clips:
        for place, values in enumerate(_pieces(values_of_clip, progress)):
            number_of_clips += place == 0
            if label == NOTHING:
                classifier.learn_nothing(values)
                keep(label, place, values)
                nothing += len(values)
                continue
            number, note = classifier.number_of(label)
            notes += [note] * bool(note)
            if place == 0:  # later frames are like those that were learned
                found = classifier.predict_before_learning(values, number)
                if found is not None:
                    answered, right = answered + 1, right + (found.best == number)
                    seen = [
                        str(classifier.names[one])
                        for one in found.labels[found.scores.argmax(1)].tolist()
                    ]
                    shares = (
                        found.scores.softmax(1)[:, found.labels == number]
                        .flatten()
                        .tolist()
                    )
                    looked_like.setdefault(label, []).extend(zip(seen, shares))
            classifier.learn(values, number)
            keep(label, place, values)
            images[label] = images.get(label, 0) + len(values)
    doubts = tuple(
        filter(None, (doubt_of(label, seen) for label, seen in looked_like.items()))
    )
    return Lesson(
        images,
        number_of_clips,
        answered,
        right,
        now(),
        tuple(unread),
        tuple(notes),
        doubts,
        nothing=nothing,
    )


def doubt_of(label: str, images: list[tuple[str, float]]) -> Doubt | None:
    """Return what speaks against a label.

    The label is in doubt if its mean probability is below 5 % and most images look like
    other classes.

    Args:
        label: see above.
        images: of each the class that it looked like before it was learned, and the
            probability of the label.
    """
    looked_like, share = (
        Counter(name for name, _ in images),
        sum(share for _, share in images) / len(images),
    )
    other, as_other = max(
        looked_like.items(), key=lambda pair: (pair[0] != label, pair[1])
    )
    if share >= DOUBTED or as_other <= looked_like[label]:
        return None
    return Doubt(label, len(images), looked_like[label], other, as_other)


def check_not_empty(lesson: Lesson) -> None:
    """Raise ValueError if there was no image to learn; list files that could not be read."""
    if not lesson.images and not lesson.nothing:
        some = "".join(f"; {bad}".rstrip(".") for bad in lesson.unread[:3])
        read = (
            f", {counted(len(lesson.unread), 'file')} could not be read{some}"
            if lesson.unread
            else ""
        )
        raise ValueError(f"there was no image to learn{read}; give photos or videos")


def check_apart(ones: Sequence[Lesson], others: Sequence[Lesson]) -> None:
    """Raise ValueError if two histories share a lesson, without those of which one side forgot all images."""
    theirs = {lesson.id for lesson in others if lesson.images or lesson.nothing}
    common = [
        lesson
        for lesson in ones
        if lesson.id and (lesson.images or lesson.nothing) and lesson.id in theirs
    ]
    if common:
        some = "; ".join(
            f"{lesson.when}: {', '.join(lesson.images) or 'nothing'}"
            for lesson in common[:3]
        )
        some += f"; and {len(common) - 3} more" if len(common) > 3 else ""
        what = (
            "the same lesson"
            if len(common) == 1
            else f"{len(common)} of the same lessons"
        )
        raise ValueError(
            f"both learners hold {what} ({some}); their images would count twice: teach a new learner what one of the "
            "two was taught apart and merge that, or teach it to the other one"
        )


class Strip:
    """Some images of a lesson, side by side in a small JPEG without metadata."""

    def __init__(self) -> None:
        self._images: list[Image.Image] = []
        self._seen, self._step = 0, 1

    def noting(self, frames: Frames) -> Frames:
        """Yield frames, and note them as they are read."""
        for path, image in frames:
            if self._seen % self._step == 0:
                small = image.copy()
                small.thumbnail((2 * PICTURE_HEIGHT, PICTURE_HEIGHT))
                self._images.append(small)
                if (
                    len(self._images) == 2 * PICTURES
                ):  # every second one, which are as far apart as those to come
                    self._images, self._step = self._images[::2], 2 * self._step
            self._seen += 1
            yield path, image
            del image  # before the next one is decoded

    def jpeg(self) -> bytes:
        """Return the JPEG of up to 4 images, 64 pixels high; empty for none."""
        if not self._images:
            return b""
        places = np.unique(
            np.linspace(0, len(self._images) - 1, PICTURES).round().astype(int)
        )
        chosen = [self._images[place] for place in places]
        strip, file = (
            Image.new(
                "RGB", (sum(one.width for one in chosen), PICTURE_HEIGHT), "white"
            ),
            io.BytesIO(),
        )
        left = 0
        for one in chosen:
            strip.paste(one, (left, (PICTURE_HEIGHT - one.height) // 2))
            left += one.width
        strip.save(file, "JPEG", quality=80)
        return file.getvalue()


def name_of(source: Any) -> str:
    """Return the name of a source without its folder; empty for images in memory."""
    path = source.path if isinstance(source, Clip) else source
    return (
        printable(path_of(path).name)[:100]
        if isinstance(path, str | os.PathLike)
        else ""
    )


def now() -> str:
    """Return date and time in UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _pieces(values: Values, progress: Progress | None) -> Iterator[Tensor]:
    """Join batches of values until there are at least 64 frames."""
    held: list[Tensor] = []
    for paths, some in values:
        held.append(some)
        if progress is not None:
            progress(len(paths))
        if sum(map(len, held)) >= FRAMES_AT_A_TIME:
            yield torch.cat(held)
            held = []
    if held:
        yield torch.cat(held)
