"""The stream of a run: frame table and experiences."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks_toybox_ilab.catalog import Benchmark, get_benchmark
from benchmarks_toybox_ilab.datasets.clip_folder import held_out_of
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.methods.registry import get_strategy
from crumb_avalanche.models.backbone_names import preprocessing_of
from crumb_avalanche.models.map_store import files_key
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import CLIPS
from crumb_avalanche.system.counted import counted, listed
from crumb_avalanche.system.progress import progress_bar


@dataclass
class Stream:
    """An Avalanche benchmark and its frame table.

    Attributes:
        entry: catalog entry of the benchmark.
        table: the frames, without those left out.
        benchmark: the Avalanche benchmark.
        bad_frames: messages of the frames and videos left out.
        images_key: key of the images and their transform in the feature cache; changes if a file changes.
    """

    entry: Benchmark
    table: FrameTable
    benchmark: Any
    bad_frames: list[str]
    images_key: str


def open_stream(plan: RunPlan, joint: bool | None = None) -> Stream:
    """Open the stream of a run; ``joint`` puts all classes into one experience, by default as the strategy needs."""
    from benchmarks_toybox_ilab.streams.protocols import make_benchmark
    from benchmarks_toybox_ilab.streams.torch_dataset import pixel_transform

    joint = get_strategy(plan.strategy).joint if joint is None else joint
    entry = get_benchmark(plan.benchmark)
    skipped: list[str] = []
    skip = plan.on_bad_frame == "skip"
    bad_videos = skipped if skip else None
    table = entry.table(plan.dataset_root, plan.run, plan.reference_stream, plan.fps, bad_videos, plan.new_class)
    if skip:
        with progress_bar(len(table), "checking frames", show=plan.progress) as bar:
            bad = table.bad_rows(progress=lambda done, total: bar.update(1))
        table = table.without([row for row, _ in bad])
        skipped += [message for _, message in bad]
    transform = pixel_transform(plan.image_size, preprocessing_of(plan.backbone).interpolation)
    benchmark = make_benchmark(
        table,
        "offline" if joint else plan.protocol,
        plan.run,
        plan.classes_per_experience,
        transform,
        transform,
        entry.class_groups(table, plan.reference_stream),
        plan.reference_stream,
    )
    if entry.needs_root:
        images = files_key(Path(table.root) / path for path in table.path)
        if table.reader is not None:  # readers decode the same file differently
            images += f" {type(table.reader).__name__}"
    else:
        images = f"{table.frames_hash()} {table.reader!r}"
    return Stream(entry, benchmark.frame_table, benchmark, skipped, f"{images} {transform!r}")


def describe(stream: Stream) -> tuple[dict[str, Any], str]:
    """Describe a stream: numbers of training and test images, and the held-out part of a clip folder.

    Warns if there is only one class.

    Returns:
        The description as values for ``result.json`` and as text.
    """
    table = stream.table
    found: dict[str, Any] = {"images": {split: len(table.rows(split)) for split in ("train", "test")}}
    text = counted(len(table.classes), "class")
    if stream.entry.name == CLIPS:
        objects = set(zip(table.class_name, table.object_name, strict=True))
        clips = set(zip(table.class_name, table.object_name, table.session, strict=True))
        text += f", {counted(len(objects), 'object')}, {counted(len(clips), 'clip')}"
    text += f": {counted(found['images']['train'], 'image')} to learn, {found['images']['test']:,} to test"
    if stream.entry.name == CLIPS:
        found["held_out"] = held_out_of(table)
        alike: dict[str, list[str]] = {}
        for class_name, what in found["held_out"].items():
            alike.setdefault(what.partition(":")[0], []).append(class_name)
        text += "\nheld out for the test:"
        text += "".join(f"\n  {listed(names, 10)}: {what}" for what, names in alike.items())
    if len(table.classes) == 1:
        warnings.warn(
            f"there is only one class, {table.classes[0]}, so every answer is right; add folders of other classes",
            stacklevel=2,
        )
    return found, text
