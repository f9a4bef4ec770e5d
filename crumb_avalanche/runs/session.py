"""The objects of a plan: stream, model, feature cache, learning rate, strategy."""

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from crumb_avalanche.methods.registry import Entry, build_strategy, get_strategy
from crumb_avalanche.models.calibration import calibrate, measure_codes
from crumb_avalanche.models.look_store import LookStore, OneLook
from crumb_avalanche.models.map_store import MapStore
from crumb_avalanche.models.runtimes import use_runtime
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.runs.model import build_model, capacity_of
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import RuntimeName
from crumb_avalanche.runs.stream import Stream, open_stream
from crumb_avalanche.runs.tables import format_table
from crumb_avalanche.system.process import check_device
from crumb_avalanche.training.feature_cache import FeatureCache
from crumb_avalanche.training.lr_search import (
    MOST_EXPERIENCES,
    Trial,
    small_stream,
    tune,
)
from crumb_avalanche.training.stream_strategy import StreamStrategy


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
