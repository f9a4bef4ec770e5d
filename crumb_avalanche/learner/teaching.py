"""Learn clips: each is predicted before it is learned, in pieces of at most 64 frames."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone

import torch
from torch import Tensor

from crumb_avalanche.learner.answer import Lesson
from crumb_avalanche.learner.clip import BadImage, Clip, ClipFiles
from crumb_avalanche.learner.knowledge import Knowledge
from crumb_avalanche.models.extraction import LARGEST_FEATURE, BadFeaturesError
from crumb_avalanche.system.counted import counted

FRAMES_AT_A_TIME = 64  # of a clip that are learned at once

Values = Iterable[tuple[list[str], Tensor]]
Progress = Callable[[int], None]


def learn(
    knowledge: Knowledge,
    clips: Iterable[Clip],
    values_of: Callable[[Clip], Values],
    unread: list[BadImage],
    progress: Progress | None,
) -> Lesson:
    """Learn clips as one lesson.

    Args:
        knowledge: changed in place.
        clips: clips with a label.
        values_of: function that computes what is learned of a clip: paths of some frames with a tensor of as many rows.
        unread: files that could not be read; filled while ``clips`` are read.
        progress: called with the number of images after each batch.

    Raises:
        ValueError: a clip has no label, or there is no image.
    """
    lesson = learn_clips(knowledge, clips, values_of, unread, progress)
    check_not_empty(lesson)
    return lesson


def check_not_empty(lesson: Lesson) -> None:
    """Raise ValueError if there was no image to learn; list files that could not be read."""
    if not lesson.images:
        some = "".join(f"; {bad}".rstrip(".") for bad in lesson.unread[:3])
        read = f", {counted(len(lesson.unread), 'file')} could not be read{some}" if lesson.unread else ""
        raise ValueError(f"there was no image to learn{read}; give photos or videos")


def learn_clips(
    knowledge: Knowledge,
    clips: Iterable[Clip],
    values_of: Callable[[Clip], Values],
    unread: list[BadImage],
    progress: Progress | None,
) -> Lesson:
    """Learn clips as ``learn`` does, also if there is no image."""
    images: dict[str, int] = {}
    number_of_clips = answered = right = 0
    notes: list[str] = []
    for clip in clips:
        label = label_of(clip)
        for place, values in enumerate(pieces(values_of(clip), progress)):
            number, note = knowledge.number_of(label)
            notes += [note] * bool(note)
            if place == 0:  # later frames are like those that were learned
                number_of_clips += 1
                answer = knowledge.predict_before_learning(values, number)
                answered, right = answered + (answer is not None), right + bool(answer)
            knowledge.learn(values, number)
            images[label] = images.get(label, 0) + len(values)
    return Lesson(images, number_of_clips, answered, right, now(), tuple(unread), tuple(notes))


def label_of(clip: Clip | ClipFiles) -> str:
    """Return the class name of a clip that is learned.

    Raises:
        ValueError: it has none.
    """
    if clip.label is None:
        raise ValueError(
            f"{clip.path} has no class: give a label (--label NAME), or a folder with a folder for each class and no "
            "photo or video beside them"
        )
    return clip.label


def now() -> str:
    """Return date and time in UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def pieces(values: Values, progress: Progress | None) -> Iterator[Tensor]:
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


def finite_values(
    compute: Callable[[Tensor], Tensor], paths: list[str], pixels: Tensor, report: Callable[[BadImage], object] | None
) -> Iterator[tuple[list[str], Tensor]]:
    """Yield the paths and values of images, without those whose features are not finite or too large.

    Args:
        compute: function of ``(B, 3, h, w)`` pixels that returns ``(B, ...)`` values.
        paths, pixels: of the images.
        report: called with each image that is left out; ``None`` raises instead.

    Raises:
        BadFeaturesError: features are not finite or too large; names the first such image.
    """
    try:
        values = _checked(compute, pixels)
    except BadFeaturesError:
        good = [place for place, path in enumerate(paths) if _usable(compute, path, pixels[place, None], report)]
        if not good:
            return
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
