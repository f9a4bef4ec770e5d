"""From settings to benchmark, model and strategy."""

import os
import random
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from tqdm import tqdm

from benchmarks_toybox_ilab.catalog import Benchmark, get_benchmark
from benchmarks_toybox_ilab.datasets.clip_folder import held_out_of
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.baselines.entry import Entry, LearningSettings
from crumb_avalanche.baselines.families import paper_method_settings
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import check_and_load
from crumb_avalanche.runs.command_settings import PretrainSettings
from crumb_avalanche.runs.settings import RunSettings, part_for
from crumb_avalanche.system.allocator import keep_freed_memory
from crumb_avalanche.training.feature_cache import files_key
from crumb_avalanche.training.pretraining import read_pretrained

CLIPS = "clip_folder"  # the benchmark whose images are the user's own


@dataclass
class Stream:
    """A benchmark and the table that it was made from.

    Attributes:
        images_key: names the images as they are now, and their transform, for the feature cache.
    """

    entry: Benchmark
    table: FrameTable
    benchmark: Any
    bad_frames: list[str]
    images_key: str


def check_device(name: str) -> None:
    """Refuse a device that is not there, before any work is done.

    Raises:
        ValueError: no device of torch's, or a GPU that this torch does not see.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device is {name!r}; give cpu, cuda, or one of several such as cuda:1") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device is {name}, but torch sees {torch.cuda.device_count()} GPUs here; give --device cpu")


def set_up_process(threads: int, seed: int) -> None:
    """Fix the CPU threads and every global random state, and keep freed memory for the next batch."""
    keep_freed_memory()
    torch.set_num_threads(threads or os.cpu_count() or 1)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def build_stream(settings: RunSettings, run: int, joint: bool) -> Stream:
    """The benchmark of one run.

    Raises:
        ValueError: unknown benchmark, missing root, or a tree out of the benchmark's grammar.
    """
    from benchmarks_toybox_ilab.streams.protocols import make_benchmark
    from benchmarks_toybox_ilab.streams.torch_dataset import pixel_transform

    entry = get_benchmark(settings.benchmark)
    table = entry.table(settings.dataset_root, run, settings.reference_stream, settings.fps)
    bad = []
    if settings.on_bad_frame == "skip":
        with tqdm(total=len(table), unit=" images", desc="checking frames", disable=not settings.progress) as bar:
            bad = table.bad_rows(progress=lambda done, total: bar.update(1))
        table = table.without([row for row, _ in bad])
        bad = [message for _, message in bad]
    transform = pixel_transform(settings.image_size)
    benchmark = make_benchmark(
        table,
        "offline" if joint else settings.protocol,
        run,
        entry.classes_per_experience if settings.classes_per_experience is None else settings.classes_per_experience,
        transform,
        transform,
        entry.class_groups(table, settings.reference_stream),
        settings.reference_stream,
    )
    if entry.needs_root:
        images = files_key(Path(table.root) / path for path in table.path)
        if table.reader is not None:  # who reads them otherwise sees other pixels
            images += f" {type(table.reader).__name__}"
    else:
        images = f"{table.frames_hash()} {table.reader!r}"
    return Stream(entry, benchmark.frame_table, benchmark, bad, f"{images} {transform!r}")


def frames_of(stream: Stream) -> tuple[dict[str, Any], str]:
    """How many images are learned and tested, and what is held out of the user's own clips: for a result, and in words.

    Warns where there is one class only.
    """
    table = stream.table
    found: dict[str, Any] = {"images": {split: len(table.rows(split)) for split in ("train", "test")}}
    text = f"{len(table.classes)} classes"
    if stream.entry.name == CLIPS:
        objects = set(zip(table.class_name, table.object_name, strict=True))
        clips = set(zip(table.class_name, table.object_name, table.session, strict=True))
        text += f", {len(objects)} objects, {len(clips)} clips"
    text += f": {found['images']['train']:,} images to learn, {found['images']['test']:,} to test"
    if stream.entry.name == CLIPS:
        found["held_out"] = held_out_of(table)
        text += "\nheld out for the test:" + _grouped(found["held_out"])
    if len(table.classes) == 1:
        warnings.warn(
            f"there is one class only, {table.classes[0]}, so every answer is right; give folders of more", stacklevel=2
        )
    return found, text


def _grouped(held_out: dict[str, str], most: int = 10) -> str:
    """A line for all classes of which as much is held out, without names; at most so many lines and classes in one."""
    alike: dict[str, list[str]] = {}
    for class_name, what in held_out.items():
        alike.setdefault(what.partition(":")[0], []).append(class_name)
    lines = [
        f"\n  {', '.join(names[:most])}{f' and {len(names) - most} more' * (len(names) > most)}: {what}"
        for what, names in alike.items()
    ]
    left = sum(map(len, list(alike.values())[most:]))
    return "".join(lines[:most]) + f"\n  and of {left} more classes (held_out in result.json)" * (left > 0)


def build_model(settings: RunSettings | PretrainSettings, n_classes: int, codebook: bool) -> SplitModel:
    """The split model, with weights but before anything is measured on images."""
    table = Codebook(settings.codebook_size, settings.codebook_dim) if codebook else None
    pretrained = getattr(settings, "pretrained", None)
    weights = None if pretrained or settings.weights == "none" else settings.weights
    arguments = dict(
        name=settings.backbone,
        codebook=table,
        relu_logits=settings.relu_logits,
        head_kernel=settings.head_kernel,
        image_size=settings.image_size,
        cut_layer=settings.cut_layer,
    )
    if not pretrained:
        return split_backbone(weights=weights, n_classes=n_classes, **arguments)
    state, made_with = read_pretrained(pretrained)
    wanted = ["backbone", "cut_layer", "head_kernel"] + (["codebook_size", "codebook_dim"] if codebook else [])
    for name in wanted:
        if made_with.get(name) != getattr(settings, name):
            raise ValueError(
                f"{pretrained} was made with {name}={made_with.get(name)}, this run asks for "
                f"{name}={getattr(settings, name)}; give the same, or pretrain anew"
            )
    model = split_backbone(weights=None, n_classes=made_with["classes"], **arguments)
    if not codebook:
        state = {name: tensor for name, tensor in state.items() if not name.startswith("codebook.")}
    check_and_load(model, state, pretrained)
    model.reset_head(n_classes)
    return model


def learning_settings(settings: RunSettings, entry: Benchmark) -> LearningSettings:
    """The part of the settings that strategies read."""
    values = part_for(LearningSettings, settings)
    values["batch_size"] = entry.batch_size if settings.batch_size is None else settings.batch_size
    if settings.learning_rate is None:  # a method that takes no gradient steps, in a family that tunes the rate
        del values["learning_rate"]
    values["clamp_gradients"] = settings.clamp_gradients or None
    return LearningSettings(**values)


def strategy_settings(settings: RunSettings) -> dict[str, Any]:
    """The settings that only the chosen strategy has: the file ``strategy_config``'s, else those of the family *paper*.

    Raises:
        ValueError: the file is missing or no YAML mapping.
    """
    usual = paper_method_settings(settings.strategy, settings.benchmark) if settings.family == "paper" else {}
    if settings.strategy_config is None:
        return usual
    path = Path(settings.strategy_config)
    if not path.is_file():
        raise ValueError(f"there is no strategy config {path}; write the method's settings there, such as  alpha: 1.0")
    try:
        values = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no YAML: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds {values!r}; it must hold settings, one  name: value  a line")
    return {**usual, **values}


def memory_size(settings: RunSettings, strategy: Entry, model: SplitModel, entry: Benchmark, n_classes: int) -> int:
    """Capacity in memories, from the budget; every strategy gets the same bytes.

    Raises:
        ValueError: fewer memories than classes, for a method that needs one of each; or statistics that exceed a budget
            that was given, or that of the family fair.
    """
    method = strategy.method_settings(strategy_settings(settings))
    images = entry.budget_images if settings.budget_images is None else settings.budget_images
    # An image of the budget is the paper's, also where its authors gave a method a network for small images.
    side = 224 if settings.family == "paper" else settings.image_size
    budget = int(images * 3 * side**2) if settings.budget_bytes is None else settings.budget_bytes
    if not strategy.budgeted:
        fixed = strategy.fixed_bytes(model, method, n_classes)
        asked = settings.family == "fair" or (settings.budget_images, settings.budget_bytes) != (None, None)
        if asked and fixed > budget:
            raise ValueError(
                f"{settings.strategy} keeps {fixed} bytes of statistics for {n_classes} classes, more than the budget "
                f"of {budget}; raise --budget-images or --budget-bytes"
            )
        return 0
    if settings.mem_size is not None:
        count = settings.mem_size
    else:
        # The paper charges CRUMB's codebook, but neither REMIND's nor the old networks that others keep.
        charged = settings.family != "paper" or strategy.codebook
        exact = settings.family == "fair"
        count = strategy.memories_in_budget(model, budget, n_classes, method, charged, exact)
    if strategy.each_class and count < n_classes:
        raise ValueError(
            f"mem_size={count} cannot hold a memory of each of the {n_classes} classes; raise --mem-size, "
            f"--budget-images or --budget-bytes until it is at least {n_classes}"
        )
    return count


def versions() -> dict[str, str]:
    """Versions of what decides the numbers."""
    from importlib.metadata import version

    names = ["crumb-avalanche", "torch", "torchvision", "avalanche-lib", "numpy", "faiss-cpu"]
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except ImportError:
            found[name] = "not installed"
    return found
