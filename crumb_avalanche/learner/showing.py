"""What is shown in a lesson: a source of images, and how its clips are read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks_toybox_ilab.tables.names import check_near
from crumb_avalanche.images.boxes import boxes_of, in_box
from crumb_avalanche.images.clips import (
    BadImage,
    Clip,
    OnBad,
    check_class_folders,
    check_label,
    clips_with_distinct_labels,
    label_of,
)
from crumb_avalanche.images.sources import clips_of
from crumb_avalanche.learner.nothing import NOTHING

Report = Callable[[BadImage], object]  # called with each file that is left out
# Class names, or ``NOTHING``, with clips of images, whose order is that of the lesson.
LabelledClips = Iterator[tuple[str, Clip]]


@dataclass(frozen=True)
class Showing:
    """A source whose clips are shown in one lesson; see ``Learner.teach``.

    Attributes:
        source: path, images or arrays.
        label: name of the class; ``None`` for a folder of class folders.
        box: where the object is in the images; ``None`` for the whole images.
        on_bad: ``raise`` an error at an image that cannot be used, or ``skip`` it.
        new_class: whether names are taken as they are given.
        is_nothing: whether the clips show none of the classes.

    Raises:
        ValueError: several boxes come with ``on_bad="skip"``.
    """

    source: Any
    label: str | None
    box: Any = None
    on_bad: OnBad = "raise"
    new_class: bool = False
    is_nothing: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for boxes that could come to other images than their own."""
        is_boxed = self.box is not None
        if is_boxed and self.on_bad == "skip" and len(boxes_of(self.box)) > 1:
            raise ValueError(
                "on_bad is 'skip' beside a box for each image: an image that is left "
                "out would give its box to the next one; leave on_bad out, or teach "
                "the images one by one"
            )

    @classmethod
    def of_nothing(cls, source: Any, on_bad: OnBad) -> "Showing":
        """Show a source as nothing; of folders all images are taken."""
        return cls(source, "nothing", on_bad=on_bad, is_nothing=True)

    def check_names(self, names: Sequence[str]) -> None:
        """Raise DoubtfulNameError for names that are probably not meant as new classes.

        Args:
            names: of the classes that were taught.
        """
        if self.new_class or self.is_nothing:
            return
        if self.label is None:
            check_class_folders(self.source, names)
        else:
            check_near([check_label(self.label)], names)

    def labelled_clips(
        self, names: Sequence[str | None], report: Report
    ) -> LabelledClips:
        """Return the class name, or ``NOTHING``, and the clip of each of its clips.

        Args:
            names: of the classes, which grow as clips are learned.
            report: called with each file that cannot be read.
        """
        clips: Iterator[Clip]
        clips = clips_of(self.source, self.label, on_bad=self.on_bad, report=report)
        if self.is_nothing:
            return ((NOTHING, clip) for clip in clips)
        if self.box is not None:
            clips = in_box(clips, self.box)
        if not self.new_class:
            clips = clips_with_distinct_labels(clips, names)
        return ((label_of(clip), clip) for clip in clips)
