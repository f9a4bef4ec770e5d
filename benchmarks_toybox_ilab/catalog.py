"""Streams by name, with the settings they run with; imports neither torch nor Avalanche."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
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
    tiny_imagenet,
    toybox,
)
from benchmarks_toybox_ilab.datasets.toy_shapes.benchmark import STREAM_CLASSES, ToyShapesFrames
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable


@dataclass(frozen=True)
class Benchmark:
    """A data set and the settings of its stream.

    Attributes:
        name: Name on the command line.
        frames: `frames(root, run, **options)` returns the table of a run.
        classes_per_experience: Number of classes in one experience.
        batch_size: Number of new images in one training step.
        budget_images: Number of images that a replay buffer may hold, or as many bytes in another form.
        needs_root: Whether the data set consists of files below a folder.
        layout: Layout of that folder.
        source: Where to get the data.
        options: Names of the keyword arguments of `frames`.
        class_groups: `class_groups(table, reference)` returns the groups that `protocols.plan_stream` takes.
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
    class_groups: Callable[[FrameTable, bool], Sequence[Sequence[str]] | None] = lambda table, reference: None

    def table(
        self,
        root: str | None,
        run: int,
        reference: bool = False,
        fps: float | None = None,
        bad_videos: list[str] | None = None,
        new_class: bool = False,
    ) -> FrameTable:
        """Make the table of a run.

        Args:
            root: Folder of the data set.
            run: Number of the run.
            reference: Whether to choose frames as the paper's published code does.
            fps: Frames per second taken from a video of a clip folder.
            bad_videos, new_class: See `ClipFolderFrames`.

        Returns:
            The table of frames, with the split of the run.

        Raises:
            FrameTableError: If a root is needed and not given, the data set does not take `fps`, or the folder is not
                that of the data set.
        """
        if self.needs_root and root is None:
            own = "" if self.name == "clip_folder" else " (for clips of your own: --benchmark clip_folder)"
            raise FrameTableError(f"benchmark {self.name} needs --dataset-root; expected there: {self.layout}{own}")
        if fps is not None and "fps" not in self.options:
            raise FrameTableError(f"benchmark {self.name} reads no video files; fps={fps:g} is for clip_folder.")
        given = {"reference": reference, "fps": 1.0 if fps is None else fps, "bad_videos": bad_videos}
        given |= {"new_class": new_class}
        return self.frames(root, run, **{name: given[name] for name in self.options})


def _of_files(module: ModuleType, frames: Callable[..., FrameTable], *numbers: int) -> Benchmark:
    """The benchmark of a data set with a layout; one of the paper has the same split in every run and a `reference`."""
    layout = module.LAYOUT

    def table(root: str, run: int = 0, reference: bool = False) -> FrameTable:
        return frames(root, reference=reference)

    reference = "reference" in signature(frames).parameters
    groups = {"class_groups": module.class_groups} if hasattr(module, "class_groups") else {}
    return Benchmark(
        layout.name,
        table if reference else frames,
        *numbers,
        True,
        layout.tree,
        layout.source,
        ("reference",) if reference else (),
        **groups,
    )


def _of_shapes(name: str, **settings: object) -> Benchmark:
    """The ten streamed toy shapes; the other ten are for pretraining."""
    frames = partial(ToyShapesFrames, classes=STREAM_CLASSES, **settings)
    return Benchmark(name, frames, 2, 21, 15, False, "no files: drawn when read", "made by this package")


# Classes of an experience, batch size and budget in images: paper, "Stream learning benchmark datasets", and S5.
BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        _of_files(core50, core50.CORe50Frames, 2, 21, 15),
        _of_files(toybox, toybox.ToyboxFrames, 2, 21, 15),
        _of_files(ilab, ilab.ILabFrames, 2, 21, 15),
        _of_files(icub, icub.ICubFrames, 2, 21, 30),
        _of_files(ilab_core50, ilab_core50.ILabCORe50Frames, 2, 21, 30),
        _of_files(cifar100, cifar100.CIFAR100Frames, 5, 128, 100),
        _of_files(imagenet, imagenet.ImageNetFrames, 100, 128, 10_000),
        _of_files(eth80, eth80.ETH80Frames, 2, 21, 15),
        _of_files(tiny_imagenet, tiny_imagenet.TinyImageNetFrames, 10, 128, 200),
        Benchmark(
            "clip_folder",
            clip_folder.ClipFolderFrames,
            *(2, 21, 15, True),
            clip_folder.LAYOUT,
            "your own images and videos",
            ("fps", "bad_videos", "new_class"),
        ),
        _of_shapes("toy_shapes"),
        _of_shapes("toy_shapes_short", frames_per_clip=5),  # a third of the frames, for quick trials
        _of_shapes("toy_dots", dots=True),
    )
}
"""The benchmarks by name, as for `crumb run --benchmark`; see `Benchmark`."""


def get_benchmark(name: str) -> Benchmark:
    """Return the benchmark of that name.

    Args:
        name: Such as "core50".

    Raises:
        ValueError: If there is none; lists the known names.
    """
    if name not in BENCHMARKS:
        raise ValueError(f"unknown benchmark {name!r}; known are {', '.join(BENCHMARKS)}.")
    return BENCHMARKS[name]
