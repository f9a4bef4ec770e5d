"""The stream of a plan: an Avalanche benchmark, its frames and what they are."""

import warnings
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks_toybox_ilab.catalog import Benchmark, get_benchmark
from benchmarks_toybox_ilab.datasets.clip_folder import held_out_of
from benchmarks_toybox_ilab.streams.protocols import make_benchmark
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from benchmarks_toybox_ilab.tables.progress import progress_bar
from benchmarks_toybox_ilab.tables.text import listed
from crumb_avalanche.images.looks import LookTransform
from crumb_avalanche.methods.look_shares import WHOLE_IMAGE, shares_of
from crumb_avalanche.methods.registry import get_strategy
from crumb_avalanche.models.backbone_names import preprocessing_of
from crumb_avalanche.models.map_store import files_key
from crumb_avalanche.runs.frames import FrameSource, open_frames
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import CLIPS
from crumb_avalanche.system.words import counted


@dataclass
class Stream:
    """An Avalanche benchmark and its frame table.

    Attributes:
        entry: catalog entry of the benchmark.
        table: the frames, without those left out.
        benchmark: the Avalanche benchmark.
        bad_frames: messages of the frames and videos left out.
        bad_videos: number of videos among them.
        emptied_classes: names of the classes of which no training frame is left.
        images_keys: of each look, key of the images and their transform in the feature
            cache; changes if a file changes.
    """

    entry: Benchmark
    table: FrameTable
    benchmark: Any
    bad_frames: list[str]
    bad_videos: int
    emptied_classes: list[str]
    images_keys: tuple[str, ...]


def open_stream(plan: RunPlan, joint: bool | None = None) -> Stream:
    """Open the stream of a run: its table of frames, and the Avalanche benchmark of it.

    Args:
        plan: settings of the run with their defaults.
        joint: whether all classes come in one experience; by default as the strategy
            needs.

    Raises:
        ValueError: the folder holds no such data set, or an image cannot be read and
            the plan does not skip it.
    """
    if joint is None:
        joint = get_strategy(plan.strategy).joint
    catalog_entry = get_benchmark(plan.benchmark)
    opened = open_frames(FrameSource.of(plan))
    catalog_entry.warn_of_gaps(plan.dataset_root)
    readable = _Readable(opened.table)
    if plan.on_bad_frame == "skip":
        readable = _without_bad_frames(opened.table, plan.progress)
        _warn_of_emptied_classes(readable)
    looks = _look_transform(plan)
    benchmark = _avalanche_benchmark(plan, catalog_entry, readable.table, looks, joint)
    key = _images_key(catalog_entry, readable.table)  # by which caches know the images
    return Stream(
        entry=catalog_entry,
        table=benchmark.frame_table,  # with the labels of the benchmark
        benchmark=benchmark,
        bad_frames=[*opened.bad_videos, *readable.bad_frames],
        bad_videos=len(opened.bad_videos),
        emptied_classes=readable.emptied_classes,
        images_keys=tuple(f"{key} {transform!r}" for transform in looks.transforms),
    )


@dataclass(frozen=True)
class _Readable:
    """Frames of which all can be read, as far as they were checked.

    Attributes:
        table: the frames.
        bad_frames: a message for each frame that was left out.
        emptied_classes: names of the classes of which no training frame is left.
    """

    table: FrameTable
    bad_frames: list[str] = field(default_factory=list)
    emptied_classes: list[str] = field(default_factory=list)


def _without_bad_frames(frames: FrameTable, show_progress: bool) -> _Readable:
    """Decode all frames, and leave out those that cannot be decoded."""
    bad_rows = frames.bad_rows(partial(progress_bar, show=show_progress))
    messages = [message for _, message in bad_rows]
    good_frames = frames.without([row for row, _ in bad_rows])
    emptied = [name for name in frames.classes if name not in good_frames.classes]
    return _Readable(good_frames, messages, emptied)


def _warn_of_emptied_classes(readable: _Readable) -> None:
    """Warn if a class has no training frame that can be read."""
    if not readable.emptied_classes:
        return
    warnings.warn(
        f"no training image of {listed(readable.emptied_classes, 10)} can be read, so "
        f"the run goes without: {readable.bad_frames[0]}; mend the images, or leave "
        "out --on-bad-frame skip to stop at the first one",
        stacklevel=3,
    )


def _look_transform(plan: RunPlan) -> LookTransform:
    """Return what makes pixels of an image, of each look of the plan's method.

    A method may look at several parts of an image: as a whole, and its middle.
    """
    interpolation = preprocessing_of(plan.backbone).interpolation
    return LookTransform(looks_of_plan(plan), plan.image_size, interpolation)


def _avalanche_benchmark(
    plan: RunPlan,
    catalog_entry: Benchmark,
    frames: FrameTable,
    looks: LookTransform,
    joint: bool,
) -> Any:
    """Make the Avalanche benchmark of frames.

    Args:
        plan: of the run: protocol, order and number of classes.
        catalog_entry: of the benchmark, which may group the classes.
        frames: that can be read.
        looks: makes pixels of the images.
        joint: whether all classes come in one experience.
    """
    transforms = looks.transforms  # one for each look
    transform = looks if len(transforms) > 1 else transforms[0]
    return make_benchmark(
        frames,
        "offline" if joint else plan.protocol,
        run=plan.run,
        classes_per_experience=plan.classes_per_experience,
        train_transform=transform,
        eval_transform=transform,
        class_groups=catalog_entry.class_groups(frames, plan.reference_stream),
        reference=plan.reference_stream,
    )


def looks_of_plan(plan: RunPlan) -> tuple[float, ...]:
    """Return the looks of a plan's method: sides of squares, in units of the image's.

    A method without the setting ``looks`` sees whole images.
    """
    return shares_of(str(plan.method.get("looks", WHOLE_IMAGE)))


def _images_key(catalog_entry: Benchmark, frames: FrameTable) -> str:
    """Return the key of images in the feature cache, without their transform."""
    if not catalog_entry.needs_root:
        return f"{frames.frames_hash()} {frames.reader!r}"
    assert frames.root is not None, "the benchmark needs a root"
    root = Path(frames.root)
    key = files_key(root / path for path in frames.path)
    if frames.reader is not None:  # readers decode the same file differently
        key += f" {type(frames.reader).__name__}"
    if frames.upright:
        key += " upright"
    return key


def describe_stream(stream: Stream) -> tuple[dict[str, Any], str]:
    """Describe a stream: numbers of images, and the held-out part of a clip folder.

    Warns if there is only one class.

    Returns:
        The description as values for ``result.json`` and as text.
    """
    frames = stream.table
    image_counts = {split: len(frames.rows(split)) for split in ("train", "test")}
    values: dict[str, Any] = {"images": image_counts}
    counts = [counted(len(frames.classes), "class")]
    held_out_text = ""
    if stream.entry.name == CLIPS:
        objects = set(zip(frames.class_name, frames.object_name, strict=True))
        clips = set(
            zip(frames.class_name, frames.object_name, frames.session, strict=True)
        )
        counts += [counted(len(objects), "object"), counted(len(clips), "clip")]
        held_out = held_out_of(frames)  # a description by class
        values["held_out"] = held_out
        held_out_text = _held_out_text(held_out)
    if len(frames.classes) == 1:
        warnings.warn(
            f"there is only one class, {frames.classes[0]}, so every answer is right; "
            "add folders of other classes",
            stacklevel=2,
        )
    to_learn = counted(image_counts["train"], "image")
    images = f"{to_learn} to learn, {image_counts['test']:,} to test"
    return values, f"{', '.join(counts)}: {images}{held_out_text}"


def _held_out_text(held_out: dict[str, str]) -> str:
    """Format what of a clip folder is held out for the test, classes alike in a line.

    ``held_out`` has a description by class, such as ``2 of 9 objects: blue, red``.
    """
    names_by_kind: dict[str, list[str]] = {}
    for class_name, description in held_out.items():
        kind, _, _ = description.partition(":")
        names_by_kind.setdefault(kind, []).append(class_name)
    text = "\nheld out for the test:"
    for kind, names in names_by_kind.items():
        text += f"\n  {listed(names, 10)}: {kind}"
    return text
