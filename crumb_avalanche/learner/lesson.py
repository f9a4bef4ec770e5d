"""Lessons: each clip is predicted before it is learned, in pieces of at most 64 frames."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.clips import BadImage, Clip, label_of
from crumb_avalanche.learner.network import FrozenNetwork
from crumb_avalanche.learner.sources import AT_A_TIME, batches
from crumb_avalanche.models.extraction import LARGEST_FEATURE, BadFeaturesError
from crumb_avalanche.system.counted import counted

FRAMES_AT_A_TIME = 64  # of a clip that are learned at once

Values = Iterable[tuple[list[str], Tensor]]
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Lesson:
    """What one call of ``teach`` did.

    Attributes:
        images: number of images learned by class name.
        clips: number of clips.
        answered, right: clips that were predicted before they were learned, and the right ones among them.
        when: date and time, ISO 8601 in UTC.
        unread: files that could not be read (``BadImage``); a saved lesson has none.
        notes: what the learner gave up to stay within its budget.
        runtime: name and version of what ran the network.
        id: random number; equal in copies of a learner alone.
    """

    images: dict[str, int]
    clips: int
    answered: int
    right: int
    when: str
    unread: tuple[Any, ...] = ()
    notes: tuple[str, ...] = ()
    runtime: str = "torch"
    id: int = field(default=0, compare=False)

    def renamed(self, old: str, new: str) -> "Lesson":
        """Return the lesson with another name of a class."""
        images = {new if name == old else name: count for name, count in self.images.items()}
        return replace(self, images=images)

    def without(self, name: str) -> "Lesson":
        """Return the lesson without a class."""
        images = {other: count for other, count in self.images.items() if other != name}
        return replace(self, images=images)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values, without ``unread``, as a learner file holds no paths."""
        return asdict(replace(self, unread=()))

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> "Lesson":
        """Load what ``state_dict`` returned, also after JSON."""
        return cls(**{**state, "unread": (), "notes": tuple(state["notes"])})


def learn(
    classifier: Classifier,
    clips: Iterable[Clip],
    compute: Callable[[Clip], Values],
    unread: list[BadImage],
    progress: Progress | None,
) -> Lesson:
    """Learn clips as one lesson, which may be empty; see ``check_not_empty``.

    Args:
        classifier: changed in place.
        clips: clips with a label.
        compute: function that computes what is learned of a clip: paths of some frames with a tensor of as many rows.
        unread: files that could not be read; filled while ``clips`` are read.
        progress: called with the number of images after each batch.

    Raises:
        ValueError: a clip has no label.
    """
    images: dict[str, int] = {}
    number_of_clips = answered = right = 0
    notes: list[str] = []
    for clip in clips:
        label = label_of(clip)
        for place, values in enumerate(_pieces(compute(clip), progress)):
            number, note = classifier.number_of(label)
            notes += [note] * bool(note)
            if place == 0:  # later frames are like those that were learned
                number_of_clips += 1
                answer = classifier.predict_before_learning(values, number)
                answered, right = answered + (answer is not None), right + bool(answer)
            classifier.learn(values, number)
            images[label] = images.get(label, 0) + len(values)
    return Lesson(images, number_of_clips, answered, right, now(), tuple(unread), tuple(notes))


def check_not_empty(lesson: Lesson) -> None:
    """Raise ValueError if there was no image to learn; list files that could not be read."""
    if not lesson.images:
        some = "".join(f"; {bad}".rstrip(".") for bad in lesson.unread[:3])
        read = f", {counted(len(lesson.unread), 'file')} could not be read{some}" if lesson.unread else ""
        raise ValueError(f"there was no image to learn{read}; give photos or videos")


def check_apart(ones: Sequence[Lesson], others: Sequence[Lesson]) -> None:
    """Raise ValueError if two histories share a lesson, without those of which one side forgot all images."""
    theirs = {lesson.id for lesson in others if lesson.images}
    common = [lesson for lesson in ones if lesson.id and lesson.images and lesson.id in theirs]
    if common:
        some = "; ".join(f"{lesson.when}: {', '.join(lesson.images)}" for lesson in common[:3])
        some += f"; and {len(common) - 3} more" if len(common) > 3 else ""
        what = "the same lesson" if len(common) == 1 else f"{len(common)} of the same lessons"
        raise ValueError(
            f"both learners hold {what} ({some}); their images would count twice: teach a new learner what one of the "
            "two was taught apart and merge that, or teach it to the other one"
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


def values_of(
    clip: Clip,
    network: FrozenNetwork,
    compute: Callable[[Tensor], Tensor],
    report: Callable[[BadImage], object] | None,
) -> Iterator[tuple[list[str], Tensor]]:
    """Compute what is learned or asked of a clip's frames, with their paths, for 8 frames at a time.

    Args:
        clip: its frames are read.
        network: says how they are resized.
        compute: function of ``(B, 3, h, w)`` uint8 pixels that returns ``(B, ...)`` values.
        report: called with each image that is left out; ``None`` raises instead.

    Raises:
        BadFeaturesError: features are not finite or too large; names the first such image.
    """
    for paths, pixels in batches(clip.frames, AT_A_TIME, network.image_size, network.interpolation):
        try:
            values = _checked(compute, pixels)
        except BadFeaturesError:
            good = [place for place, path in enumerate(paths) if _usable(compute, path, pixels[place, None], report)]
            if not good:
                continue
            # Together: an image may have other last digits alone.
            paths, values = [paths[place] for place in good], _checked(compute, pixels[good])
        yield paths, values


def _usable(
    compute: Callable[[Tensor], Tensor], path: str, image: Tensor, report: Callable[[BadImage], object] | None
) -> bool:
    try:
        _checked(compute, image)
    except BadFeaturesError as error:
        if report is None:
            raise BadFeaturesError(f"{path}: {error}", error.images) from error
        report(BadImage(path, str(error)))
        return False
    return True


def _checked(compute: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
    values = compute(pixels)
    if values.is_floating_point() and not bool((values.abs() <= LARGEST_FEATURE).all()):  # false for NaN
        raise BadFeaturesError(
            f"features must be finite and at most {LARGEST_FEATURE:g} in absolute value: leave the image out; if there "
            "are many, look at the weights",
            pixels,
        )
    return values
