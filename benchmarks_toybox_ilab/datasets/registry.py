"""Streams by name, and the decorator that makes an Avalanche generator of a table and registers it."""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from benchmarks_toybox_ilab.datasets.layout import Layout
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

_ENTRY = re.compile(r"^    (\*{0,2}\w+): ", re.MULTILINE)


@dataclass(frozen=True)
class Benchmark:
    """A data set and the settings of its stream.

    Attributes:
        files: Layout of its files.
        frames: `frames(root, **options)` returns the table of a run.
        classes_per_experience: Number of classes in one experience; None makes an experience of each session.
        batch_size: Number of new images in one training step.
        budget_images: Number of images that a replay buffer may hold, or as many bytes in another form.
        class_groups: `class_groups(table, reference)` returns the groups that `protocols.plan_stream` takes.
    """

    files: Layout
    frames: Callable[..., FrameTable]
    classes_per_experience: int | None
    batch_size: int
    budget_images: int
    class_groups: Callable[[FrameTable, bool], Sequence[Sequence[str]] | None] = lambda table, reference: None

    @property
    def name(self) -> str:
        """Name on the command line."""
        return self.files.name

    @property
    def needs_root(self) -> bool:
        """Whether the data set consists of files below a folder."""
        return bool(self.files.tree)

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the arguments of `frames`."""
        return tuple(inspect.signature(self.frames).parameters)

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
            fps, bad_videos, new_class: See `ClipFolderFrames`.

        Raises:
            FrameTableError: If a root is needed and not given, the data set does not take `fps`, or the folder is not
                that of the data set.
        """
        if self.needs_root and root is None:
            own = "" if self.name == "clip_folder" else " (for clips of your own: --benchmark clip_folder)"
            raise FrameTableError(f"benchmark {self.name} needs --dataset-root; expected there: {self.files.tree}{own}")
        if fps is not None and "fps" not in self.options:
            raise FrameTableError(f"benchmark {self.name} reads no video files; fps={fps:g} is for clip_folder.")
        given = {"run": run, "reference": reference, "fps": 1.0 if fps is None else fps, "bad_videos": bad_videos}
        given["new_class"] = new_class
        return self.frames(root, **{name: given[name] for name in self.options if name in given})


BENCHMARKS: dict[str, Benchmark] = {}
"""The benchmarks by name, as for `crumb run --benchmark`."""


def register(benchmark: Benchmark) -> None:
    """Make a benchmark known by its name; an earlier one of that name is replaced."""
    BENCHMARKS[benchmark.name] = benchmark


def _shared(
    dataset_root: str | Path,
    protocol: str,
    run: int = 0,
    train_transform: Callable | None = None,
    eval_transform: Callable | None = None,
    classes_per_experience: int = 2,
) -> None:
    """Parameters of every generator, and the documentation of all that generators may have.

    Args:
        dataset_root: Folder of the data set, as `root` of `{frames}`.
        protocol: "class_instance", "class_iid" or "offline"; see `protocols.make_benchmark`.
        run: Seed of the order of classes, clips and frames; where runs differ in their split, it also chooses that.
        train_transform: PIL image to tensor; None is `imagenet_transform({image_size})`, which gives float32 tensors of
            3 x {image_size} x {image_size} and does not keep the aspect ratio, as in the paper.
        eval_transform: The same for the test stream.
        classes_per_experience: Number of classes in one experience.
        reference: Choose frames, order and labels as the paper's code does; see `{frames}` and
            `orders.ReferenceDraws`.
        held_out: As in `{frames}`, but not 0.
        fps: Frames per second taken from a video.
        **table: Arguments of `{frames}`, such as `classes` or `size`.

    Returns:
        A `protocols.FrameBenchmark` with `train_stream` and `test_stream`.

    Raises:
        FrameTableError: If the table of frames cannot be made (see `{frames}`), or a class has no test frames.
        ValueError: If the protocol is unknown, or a number is out of range.
    """


def generator(
    benchmark: Benchmark, protocol: str = "class_instance", image_size: int = 224
) -> Callable[[Callable[..., FrameTable]], Callable[..., Any]]:
    """Register a benchmark, and turn a function that makes its table into a generator for Avalanche's users.

    The generator takes the parameters of `_shared`, then those of the function, which gets only its own; the entries of
    `_shared` document both. `image_size` is the side in pixels of the default transforms without `size`.
    """
    register(benchmark)

    def decorate(make_table: Callable[..., FrameTable]) -> Callable[..., Any]:
        own = inspect.signature(make_table).parameters
        parameters = {**inspect.signature(_shared).parameters, **own}
        defaults = {"protocol": protocol, "classes_per_experience": benchmark.classes_per_experience}
        for name, default in defaults.items():
            parameters[name] = parameters[name].replace(default=default)
        signature = inspect.Signature(list(parameters.values()))
        extra = next((name for name, parameter in own.items() if parameter.kind is parameter.VAR_KEYWORD), "")

        @wraps(make_table)
        def generate(*args: Any, **kwargs: Any) -> Any:
            # Importing them takes seconds: they need Avalanche.
            from benchmarks_toybox_ilab.streams.protocols import make_benchmark
            from benchmarks_toybox_ilab.streams.torch_dataset import imagenet_transform

            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{make_table.__name__}() {error}") from None
            bound.apply_defaults()
            given = bound.arguments
            given |= given.pop(extra, {})
            table = make_table(**{name: given[name] for name in given if name in own or name not in parameters})
            default = imagenet_transform(given.get("size", image_size))
            reference = given.get("reference", False)
            return make_benchmark(
                table,
                given["protocol"],
                given["run"],
                given["classes_per_experience"],
                default if given["train_transform"] is None else given["train_transform"],
                default if given["eval_transform"] is None else given["eval_transform"],
                benchmark.class_groups(table, reference),
                reference,
            )

        generate.__signature__ = signature
        if make_table.__doc__:  # python -OO drops docstrings
            frames = getattr(benchmark.frames, "func", benchmark.frames).__name__
            shared = inspect.getdoc(_shared).format(image_size=image_size, frames=frames)
            _, arguments, *others = shared.split("\n\n")
            entries = _ENTRY.split(arguments)[1:]
            text = dict(zip(entries[::2], entries[1::2], strict=True))
            shown = (f"**{name}" if name == extra else name for name in parameters)
            named = [f"    {name}: {text[name].rstrip()}" for name in shown]
            parts = [inspect.getdoc(make_table), "\n".join(["Args:", *named]), *others]
            generate.__doc__ = "\n\n".join(parts)
        return generate

    return decorate
