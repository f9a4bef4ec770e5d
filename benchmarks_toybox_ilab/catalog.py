"""The streams that can be chosen by name, each with the settings it is run with; importing this is quick."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

from benchmarks_toybox_ilab.datasets import (
    cifar100,
    clip_folder,
    core50,
    eth80,
    icub,
    ilab,
    ilab_core50,
    imagenet,
    toybox,
)
from benchmarks_toybox_ilab.datasets.toy_shapes.benchmark import STREAM_CLASSES, ToyShapesFrames
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable


def _one_group(table: FrameTable, reference: bool) -> None:
    """All classes in one group, in the order of the table."""


@dataclass(frozen=True)
class Benchmark:
    """A data set and how it is streamed.

    Attributes:
        name: What it is called on the command line.
        frames: `frames(root, run, **options)` gives the table of a run.
        classes_per_experience: Classes of one experience.
        batch_size: New images in one training step.
        budget_images: Images that a replay buffer may hold, or what takes as many bytes.
        needs_root: Whether there are files to be found below a folder.
        layout: What that folder looks like.
        source: Where the data come from.
        options: Names of the keyword arguments that `frames` knows.
        class_groups: `class_groups(table, reference)` gives groups of classes as `protocols.plan_stream` takes them.
    """

    name: str
    frames: Callable[..., FrameTable]
    classes_per_experience: int
    batch_size: int
    budget_images: int
    needs_root: bool
    layout: str
    source: str
    options: tuple[str, ...] = ()
    class_groups: Callable[[FrameTable, bool], Sequence[Sequence[str]] | None] = _one_group

    def table(self, root: str | None, run: int, reference: bool = False, fps: float | None = None) -> FrameTable:
        """The table of a run.

        Raises:
            FrameTableError: If there is no root where one is needed, or an option that this data set has not.
        """
        if self.needs_root and root is None:
            own = "" if self.name == "clip_folder" else " (for clips of your own: --benchmark clip_folder)"
            raise FrameTableError(f"benchmark {self.name} needs --dataset-root; expected there: {self.layout}{own}")
        if fps is not None and "fps" not in self.options:
            raise FrameTableError(f"benchmark {self.name} reads no video files; fps={fps:g} is for clip_folder.")
        given = {"reference": reference, "fps": 1.0 if fps is None else fps}
        return self.frames(root, run, **{name: given[name] for name in self.options})


def _streamed_shapes(root: str | None = None, run: int = 0) -> FrameTable:
    """The ten toy shapes that are streamed; the other ten are for pretraining."""
    return ToyShapesFrames(root, run, classes=STREAM_CLASSES)


def _short_clips(root: str | None = None, run: int = 0) -> FrameTable:
    """The same in clips of a third of the frames, to see whether something works."""
    return ToyShapesFrames(root, run, classes=STREAM_CLASSES, frames_per_clip=5)


def _streamed_dots(root: str | None = None, run: int = 0) -> FrameTable:
    """The ten streamed shapes told by dots alone."""
    return ToyShapesFrames(root, run, classes=STREAM_CLASSES, dots=True)


def _of_the_paper(module: ModuleType, frames: Callable[..., FrameTable], *numbers: int) -> Benchmark:
    """A benchmark of the paper: its split is the same in every run, and it has a reference form."""
    name = module.__name__.rpartition(".")[2]
    more = {"class_groups": module.class_groups} if hasattr(module, "class_groups") else {}

    def table(root: str, run: int = 0, reference: bool = False) -> FrameTable:
        return frames(root, reference=reference)

    return Benchmark(name, table, *numbers, True, module.LAYOUT, module.SOURCE, ("reference",), **more)


# Classes of an experience, batch size and budget in images: paper, Sec. 4.1 and supplement S5.
BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        _of_the_paper(core50, core50.CORe50Frames, 2, 21, 15),
        _of_the_paper(toybox, toybox.ToyboxFrames, 2, 21, 15),
        _of_the_paper(ilab, ilab.ILabFrames, 2, 21, 15),
        _of_the_paper(icub, icub.ICubFrames, 2, 21, 30),
        _of_the_paper(ilab_core50, ilab_core50.ILabCORe50Frames, 2, 21, 30),
        _of_the_paper(cifar100, cifar100.CIFAR100Frames, 5, 128, 100),
        _of_the_paper(imagenet, imagenet.ImageNetFrames, 100, 128, 10_000),
        Benchmark("eth80", eth80.ETH80Frames, 2, 21, 15, True, eth80.LAYOUT, eth80.SOURCE),
        Benchmark(
            *("clip_folder", clip_folder.ClipFolderFrames, 2, 21, 15, True),
            *(clip_folder.LAYOUT, "your own images and videos", ("fps",)),
        ),
        Benchmark(
            *("toy_shapes", _streamed_shapes, 2, 21, 15, False),
            *("no files: drawn when read", "made by this package"),
        ),
        Benchmark(
            *("toy_shapes_short", _short_clips, 2, 21, 15, False),
            *("no files: drawn when read", "made by this package"),
        ),
        Benchmark(
            *("toy_dots", _streamed_dots, 2, 21, 15, False),
            *("no files: drawn when read", "made by this package"),
        ),
    )
}


def get_benchmark(name: str) -> Benchmark:
    """The benchmark of that name.

    Raises:
        ValueError: If there is none; lists those there are.
    """
    if name not in BENCHMARKS:
        raise ValueError(f"unknown benchmark {name!r}; known are {', '.join(BENCHMARKS)}.")
    return BENCHMARKS[name]
