"""The objects of a plan: stream, model, feature cache, learning rate, strategy."""

import copy
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from benchmarks_toybox_ilab.catalog import Benchmark, get_benchmark
from benchmarks_toybox_ilab.datasets.clip_folder import held_out_of
from benchmarks_toybox_ilab.streams.protocols import make_benchmark
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from benchmarks_toybox_ilab.tables.progress import progress_bar
from benchmarks_toybox_ilab.tables.text import listed
from crumb_avalanche.images.looks import LookTransform
from crumb_avalanche.methods.look_shares import WHOLE_IMAGE, shares_of
from crumb_avalanche.methods.registry import Entry, build_strategy, get_strategy
from crumb_avalanche.models.backbone_names import preprocessing_of
from crumb_avalanche.models.calibration import calibrate, measure_codes
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.look_store import LookStore, OneLook
from crumb_avalanche.models.map_store import MapStore, files_key
from crumb_avalanche.models.runtimes import use_runtime
from crumb_avalanche.models.split_backbone import split_backbone
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import check_and_load
from crumb_avalanche.runs.frames import FrameSource, open_frames
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.pretrain_settings import PretrainSettings
from crumb_avalanche.runs.settings import CLIPS, RuntimeName
from crumb_avalanche.runs.tables import format_table
from crumb_avalanche.system.process import check_device
from crumb_avalanche.system.setting_ranges import MOST_MEMORIES
from crumb_avalanche.system.words import counted
from crumb_avalanche.training.feature_cache import FeatureCache
from crumb_avalanche.training.lr_search import (
    MOST_EXPERIENCES,
    Trial,
    small_stream,
    tune,
)
from crumb_avalanche.training.pretraining import read_pretrained
from crumb_avalanche.training.stream_strategy import StreamStrategy


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


@dataclass(frozen=True)
class PreparedRun:
    """What the strategy of a plan learns and is built of.

    Call ``set_up_process`` before preparing it if results must be repeatable.

    Attributes:
        plan: with the runtime that auto stands for.
        entry: of the strategy in the registry.
        stream: what is learned.
        model: calibrated on the first experience, or pretrained.
        calibration_seconds: what that took.
    """

    plan: RunPlan
    entry: Entry
    stream: Stream
    model: SplitModel
    calibration_seconds: float = 0.0

    @classmethod
    def of(cls, plan: RunPlan, stream: Stream | None = None) -> "PreparedRun":
        """Open the stream of a plan, and build and calibrate its model.

        Args:
            plan: settings of the run with their defaults.
            stream: an open stream; by default that of the plan is opened.

        Raises:
            ValueError: a setting of the plan does not fit the stream or the weights.
        """
        strategy_entry = get_strategy(plan.strategy)
        check_device(plan.device)  # raises if this computer has none
        if stream is None:
            stream = open_stream(plan)
        n_classes = stream.benchmark.n_classes
        model = build_model(plan, n_classes, strategy_entry.codebook)
        model = model.to(plan.device)
        model.set_precision(plan.precision)
        start = time.perf_counter()
        first_dataset = stream.benchmark.train_stream[0].dataset
        has_several_looks = len(stream.images_keys) > 1
        if has_several_looks:
            first_dataset = OneLook(first_dataset, 0)  # the first look of each image
        if not plan.pretrained:
            # Sets the feature scale, and the codebook's first memory blocks.
            calibrate(model, first_dataset, plan.codebook_init, seed=plan.run)
        elif model.codebook is not None:  # which has its memory blocks already
            measure_codes(model, first_dataset)  # their error, for the ledger
        calibration_seconds = time.perf_counter() - start
        # What runs F from here on; "auto" has chosen it.
        runtime = cast(RuntimeName, use_runtime(model, plan.runtime).name)
        plan = replace(plan, runtime=runtime)
        return cls(plan, strategy_entry, stream, model, calibration_seconds)

    def with_capacity(self) -> "PreparedRun":
        """Return it with the number of memories that the budget of the plan buys.

        Raises:
            ValueError: the budget does not fit; see ``capacity_of``.
        """
        capacity = capacity_of(self.plan, self.entry, self.model)
        return replace(self, plan=replace(self.plan, capacity=capacity))

    def open_cache(self) -> FeatureCache | None:
        """Open the plan's cache of feature maps; ``None`` without a folder for it.

        It has a store for each look (the whole images, their middle), whose key says
        how the look was made of the images.
        """
        plan = self.plan
        if not plan.feature_cache:
            return None
        stores = [
            MapStore(
                plan.feature_cache,
                self.model,
                count=len(self.stream.table),
                key=key,
                workers=plan.workers,
                progress=plan.progress,
                half=plan.cache_precision == "fp16",
            )
            for key in self.stream.images_keys
        ]
        store = LookStore(stores) if len(stores) > 1 else stores[0]
        stored_images = plan.capacity or 0  # None where no strategy is built
        return FeatureCache(store, stored_images=stored_images)


@dataclass(frozen=True)
class Session:
    """The objects of a plan, with the strategy that learns.

    Attributes:
        plan: with its capacity, the tuned learning rate, and the runtime that auto
            stands for.
        entry: of the strategy in the registry.
        stream: what is learned.
        model: calibrated on the first experience, or pretrained.
        cache: of feature maps; ``None`` without a folder for it.
        strategy: untrained at first.
        trials: of the learning rate, the chosen one first.
        calibration_seconds, tuning_seconds: what building took.
    """

    plan: RunPlan
    entry: Entry
    stream: Stream
    model: SplitModel
    cache: FeatureCache | None
    strategy: StreamStrategy
    trials: list[Trial]
    calibration_seconds: float
    tuning_seconds: float

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the feature cache; it cannot be used afterwards."""
        if self.cache is not None:
            self.cache.close()

    @classmethod
    def of(
        cls,
        prepared: PreparedRun,
        *,
        cache: FeatureCache | None = None,
        plugins: Sequence[Any] = (),
        evaluator: Any = None,
        trials: list[Trial] | None = None,
    ) -> "Session":
        """Tune the learning rate of a run where it has to be, and build its strategy.

        Args:
            prepared: stream and model of the run; the strategy trains its model.
            cache: an open cache of feature maps; by default that of the plan.
            plugins, evaluator: of the strategy; plugins are added after the cache.
            trials: trials of an earlier tuning, the chosen one first; default tunes the
                learning rate if the plan has none.

        Raises:
            ValueError: the budget does not fit; see ``capacity_of``.
        """
        prepared = prepared.with_capacity()  # raises
        if cache is None:
            cache = prepared.open_cache()
        plan = prepared.plan
        model = prepared.model
        # Before the trials of rates, which copy the model.
        model.quantized_evaluation = plan.evaluate_quantized
        tuning_seconds = 0.0
        start = time.perf_counter()
        if trials is None:
            trials = rate_trials(prepared, cache)
        if trials:
            plan = replace(plan, learning_rate=trials[0].learning_rate)
            tuning_seconds = time.perf_counter() - start
        return cls(
            plan=plan,
            entry=prepared.entry,
            stream=prepared.stream,
            model=model,
            cache=cache,
            strategy=new_strategy(plan, model, cache, plugins, evaluator),
            trials=trials,
            calibration_seconds=prepared.calibration_seconds,
            tuning_seconds=tuning_seconds,
        )


def new_strategy(
    plan: RunPlan,
    model: SplitModel,
    cache: FeatureCache | None,
    plugins: Sequence[Any] = (),
    evaluator: Any = None,
) -> StreamStrategy:
    """Build the untrained strategy of a plan, with the cache before other plugins.

    Args:
        plan: with the capacity of the memory.
        model: the network, which the strategy trains.
        cache: of feature maps; ``None`` trains on images.
        plugins, evaluator: Avalanche's, of the strategy.
    """
    assert plan.capacity is not None, "with_capacity sets it"
    caches = [] if cache is None else [cache]
    return build_strategy(
        plan.strategy,
        model,
        plan.learning,
        mem_size=plan.capacity,
        seed=plan.run,
        device=plan.device,
        method=plan.method,
        plugins=[*caches, *plugins],
        evaluator=evaluator,
    )


def network_of(settings: RunPlan | PretrainSettings) -> dict[str, Any]:
    """Return the arguments of ``split_backbone`` that the settings decide.

    ``crumb pretrain`` trains as the paper does.
    """
    return dict(
        name=settings.backbone,
        cut_layer=settings.cut_layer,
        relu_logits=settings.relu_logits,
        head_kernel=settings.head_kernel,
        image_size=settings.image_size,
        fine_tuning=getattr(settings, "fine_tuning", False),
    )


# Settings that decide which codes a codebook makes.
CODEBOOK_SETTINGS = (
    "codebook_size",
    "codebook_dim",
    "codebook_search",
    "codebook_tables",
    "codebook_grouping",
    "codebook_filter",
)


def codebook_of(settings: RunPlan | PretrainSettings) -> Codebook:
    """Build the codebook of settings, whose memory blocks have no values yet."""
    assert settings.codebook_dim is not None, "defaults are filled in"
    return Codebook(
        settings.codebook_size,
        settings.codebook_dim,
        search=settings.codebook_search,
        tables=settings.codebook_tables,
        grouping=settings.codebook_grouping,
        filtered=settings.codebook_filter,
    )


def build_model(
    settings: RunPlan | PretrainSettings, n_classes: int, codebook: bool
) -> SplitModel:
    """Build the split model and load its weights, without calibration.

    Args:
        settings: of a run or a pretraining.
        n_classes: outputs of the head, which is new also on a pretrained network.
        codebook: whether the model has a codebook.

    Raises:
        ValueError: the weights do not fit the network, or the pretrained file was made
            with other settings.
    """
    arguments: dict[str, Any] = {**network_of(settings), "codebook": None}
    if codebook:
        arguments["codebook"] = codebook_of(settings)
    pretrained = getattr(settings, "pretrained", None)
    if not pretrained:
        weights = None if settings.weights == "none" else settings.weights
        return split_backbone(weights=weights, n_classes=n_classes, **arguments)
    # Tensors by name, and the settings of the pretraining.
    tensors, made_with = read_pretrained(pretrained)
    compared_settings = ["backbone", "cut_layer", "head_kernel"]
    if codebook:
        compared_settings += CODEBOOK_SETTINGS
    for name in compared_settings:
        pretrained_value = made_with.get(name, getattr(PretrainSettings, name))
        value = getattr(settings, name)
        if pretrained_value != value:
            raise ValueError(
                f"{pretrained} was made with {name}={pretrained_value}, but this run "
                f"has {name}={value}; give the same value, or pretrain again"
            )
    model = split_backbone(weights=None, n_classes=made_with["classes"], **arguments)
    if not codebook:
        for name in [*tensors]:
            if name.startswith("codebook."):
                del tensors[name]
    check_and_load(model, tensors, pretrained)  # raises if they do not fit
    model.reset_head(n_classes)
    return model


def capacity_of(plan: RunPlan, strategy_entry: Entry, model: SplitModel) -> int:
    """Compute the number of memories that the budget of a run buys.

    The budget is the same for every strategy. What is charged to it differs by family,
    so that what is kept in all may be more; ``tables.budget_text`` says so. A method
    that keeps statistics instead of memories has 0; they are checked against the budget
    in the family *fair* and where the settings give one.

    Args:
        plan: of the run.
        strategy_entry: its strategy in the registry.
        model: the network, for the sizes of its maps and weights.

    Raises:
        ValueError: the budget is too small, or buys more memories than a run can have.
    """
    if not strategy_entry.budgeted:  # it keeps statistics
        _check_statistics_fit(plan, strategy_entry, model)
        return 0
    n_classes = model.n_classes
    if plan.mem_size is not None:
        n_memories = plan.mem_size
    else:
        n_memories = strategy_entry.memories_in_budget(
            model,
            plan.budget,
            n_classes,
            strategy_entry.method_settings(plan.method),
            # The paper charges CRUMB's codebook, but neither REMIND's nor the old
            # networks of other methods.
            charged=plan.family != "paper" or strategy_entry.codebook,
            exact=plan.family == "fair",  # the paper rounds some bytes
        )
    if n_memories > MOST_MEMORIES:
        raise ValueError(
            f"a budget of {plan.budget:,} bytes buys {n_memories:,} memories; lower "
            f"it, or give --mem-size {MOST_MEMORIES} or less"
        )
    if strategy_entry.each_class and n_memories < n_classes:
        raise ValueError(
            f"mem_size={n_memories} cannot hold a memory of each of the {n_classes} "
            "classes; raise --mem-size, "
            f"--budget-images or --budget-bytes until it is at least {n_classes}"
        )
    return n_memories


def _check_statistics_fit(
    plan: RunPlan, strategy_entry: Entry, model: SplitModel
) -> None:
    """Raise ValueError if a method's statistics take more bytes than the budget.

    A budget counts in the family *fair*, and where the settings give one.

    Args:
        plan: settings of the run, with its budget in bytes.
        strategy_entry: the method in the registry, which computes its bytes.
        model: the network, for the length of its features.
    """
    n_classes = model.n_classes
    method_settings = strategy_entry.method_settings(plan.method)
    statistics_bytes = strategy_entry.fixed_bytes(model, method_settings, n_classes)
    budget_counts = plan.family == "fair" or plan.budget_given
    if budget_counts and statistics_bytes > plan.budget:
        raise ValueError(
            f"{plan.strategy} keeps {statistics_bytes} bytes of statistics for "
            f"{n_classes} classes, more than the budget of "
            f"{plan.budget}; raise --budget-images or --budget-bytes"
        )


def rate_trials(prepared: PreparedRun, cache: FeatureCache | None) -> list[Trial]:
    """Try learning rates on a small stream that is made of the first experience.

    Each is tried on a copy of the run's model.

    A joint bound, which trains on all classes at once, is tuned on the first experience
    of the stream that is not joined.

    Args:
        prepared: plan, stream and model of the run; the plan has its capacity.
        cache: of feature maps; ``None`` trains on images.

    Returns:
        The trials, the chosen one first; none if the plan has a rate, or the strategy
        has its own or takes no gradient steps.
    """
    plan = prepared.plan
    strategy_entry = prepared.entry
    if plan.learning_rate is not None or not strategy_entry.gradient:
        return []
    if strategy_entry.own_rate(strategy_entry.method_settings(plan.method)):
        return []

    def new_learner(rate: float, evaluator: Any) -> StreamStrategy:
        """Build an untrained strategy with a learning rate on a copy of the model."""
        # Settings of the method that save time replace the plan's in trials.
        method = {**plan.method, **strategy_entry.tuning}
        trial_plan = replace(plan, learning_rate=rate, method=method)
        model = copy.deepcopy(prepared.model)
        model.runtime = prepared.model.runtime  # F is the same
        return new_strategy(trial_plan, model, cache, evaluator=evaluator)

    # `arrivals` is the small stream: parts of the experience, one after another.
    if strategy_entry.joint:
        streamed = open_stream(plan, joint=False)
        arrivals = small_stream(streamed.benchmark.train_stream[0])
    else:
        first_experience = prepared.stream.benchmark.train_stream[0]
        rows = first_experience.dataset.frame_row
        object_names = prepared.stream.table.object_name
        objects = [object_names[row] for row in rows]
        most_experiences = MOST_EXPERIENCES
        if strategy_entry.each_experience:
            assert plan.capacity is not None, "with_capacity sets it"
            most_experiences = min(most_experiences, plan.capacity)
        arrivals = small_stream(
            first_experience, objects, prepared.model.n_classes, most_experiences
        )
    return tune(
        new_learner,
        arrivals,
        head_loss=strategy_entry.scores_answer,
        num_workers=plan.workers,
    )


def trials_text(trials: Sequence[Trial]) -> str:
    """Format the trials of a search for the learning rate, the chosen one first."""
    rows = []
    for trial in trials:
        rate = f"{trial.learning_rate:g}"
        rows.append([rate, f"{trial.accuracy:.1f}", f"{trial.loss:.4f}", ""])
    rows[0][-1] = "chosen"
    title = (
        "learning rates on held-out frames of the first experience, whose classes or "
        "objects arrive in turn\n"
    )
    return title + format_table(["rate", "accuracy", "loss", ""], rows)
