"""The streams that can be chosen by name, each with the settings it is run with; importing this is quick."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks_toybox_ilab import cifar100, clip_folder, eth80
from benchmarks_toybox_ilab.frame_table import FrameTable, FrameTableError
from benchmarks_toybox_ilab.toy_shapes import STREAM_CLASSES, ToyShapesFrames

PROTOCOLS = ("class_instance", "class_iid", "offline")


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
            raise FrameTableError(f"benchmark {self.name} needs --dataset-root; expected there: {self.layout}")
        if fps is not None and "fps" not in self.options:
            raise FrameTableError(f"benchmark {self.name} has no video files, so fps={fps:g} means nothing; leave it out.")
        given = {"reference": reference, "fps": 1.0 if fps is None else fps}
        return self.frames(root, run, **{name: given[name] for name in self.options})


def _streamed_shapes(root: str | None = None, run: int = 0) -> FrameTable:
    """The ten toy shapes that are streamed; the other ten are for pretraining."""
    return ToyShapesFrames(root, run, classes=STREAM_CLASSES)


BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("eth80", eth80.ETH80Frames, 2, 21, 15, True, eth80.LAYOUT, eth80.SOURCE),
        Benchmark("clip_folder", clip_folder.ClipFolderFrames, 2, 21, 15, True, clip_folder.LAYOUT, "your own images"),
        Benchmark(
            "cifar100",
            lambda root, run: cifar100.CIFAR100Frames(root),
            5,
            128,
            100,
            True,
            cifar100.LAYOUT,
            cifar100.SOURCE,
        ),
        Benchmark(
            "toy_shapes", _streamed_shapes, 2, 21, 15, False, "no files: drawn when read", "made by this package"
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
