"""Fill the feature cache of a run by the workers of a Ray cluster, which share its folder."""

import os
import time
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks_toybox_ilab.streams.torch_dataset import FrameDataset, PixelTransform, pixel_transform
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.map_store import FeatureCacheError, MapStore
from crumb_avalanche.models.runtimes import Runtime, open_runtime
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.stream import Stream
from crumb_avalanche.system.progress import progress_bar
from crumb_avalanche.system.ray_cluster import Engine
from crumb_avalanche.system.rng_state import preserve_rng_state
from crumb_avalanche.training.feature_cache import FeatureCache

IMAGES = 1024  # of a shard: seconds of work for a worker, far longer than sending the table


@dataclass(frozen=True)
class Shared:
    """What is the same for all shards.

    Attributes:
        network: arguments of ``split_backbone``.
        weights: state of F.
        precision: of F.
        runtime: what runs F, without its function.
        table: all frames, with an absolute root.
        transform: from a frame to pixels.
        path: absolute path of the store's file.
        key: of the store.
        half: whether the store is in half precision.
    """

    network: dict[str, Any]
    weights: dict[str, Tensor]
    precision: str
    runtime: Runtime
    table: FrameTable
    transform: PixelTransform
    path: Path
    key: str
    half: bool


def fill_by_many(
    plan: RunPlan,
    network: dict[str, Any],
    stream: Stream,
    model: SplitModel,
    cache: FeatureCache,
    missing: np.ndarray,
    engine: Engine,
) -> None:
    """Compute the maps that a cache lacks.

    Workers read the images and write the cache under the paths of this process. What is lost with a worker is computed
    again. Maps are those that the run would compute itself, and are verified when it reads them.

    Args:
        plan: plan of the run.
        network: arguments of ``split_backbone``.
        stream: stream of the run.
        model: model of the run.
        cache: cache of the run.
        missing: see ``missing_rows``; at least one row.
        engine: its workers.

    Raises:
        FeatureCacheError: a worker has another runtime or cannot write the cache.
        BadFeaturesError: a map is not finite or too large.
        BadFrameError: a worker cannot read an image.
    """
    start = time.perf_counter()
    table = copy(stream.table)
    if table.root is not None:  # workers have other current folders
        table.root = Path(os.path.abspath(table.root))
    shared = Shared(
        network,
        {name: value.cpu() for name, value in model.feature_extractor.state_dict().items()},
        model.precision,
        replace(model.runtime, run=None),
        table,
        pixel_transform(plan.image_size, model.interpolation),
        Path(os.path.abspath(cache.store.path)),
        stream.images_key,
        plan.cache_precision == "fp16",
    )
    sent = engine.share(shared)
    shards = np.array_split(missing, -(-len(missing) // IMAGES))
    filled = [engine.call(fill_shard, sent, shard) for shard in shards]
    with progress_bar(len(missing), "feature cache", show=plan.progress) as bar:
        cache.store.filled += sum(engine.fetch(filled, bar.update))
    cache.store.seconds += time.perf_counter() - start


def missing_rows(stream: Stream, cache: FeatureCache) -> np.ndarray:
    """Return the rows of a stream's images whose maps are not in a cache, int64."""
    experiences = [*stream.benchmark.train_stream, *stream.benchmark.test_stream]
    used = np.unique(np.concatenate([np.asarray(list(one.dataset.frame_row), np.int64) for one in experiences]))
    return used[~cache.store.present()[used]]


# What workers do


def fill_shard(shared: Shared, rows: np.ndarray) -> int:
    """Compute the maps of some rows that the store lacks; return the number of rows."""
    model = _model(shared)
    images = FrameDataset(shared.table, rows, shared.transform)
    with MapStore(shared.path.parent, model, len(shared.table), shared.key, progress=False, half=shared.half) as store:
        if store.path != shared.path:
            raise FeatureCacheError(
                f"a worker has runtime {model.runtime}, but the run began with {shared.runtime}: install the same "
                "versions on all nodes, or give --runtime torch"
            )
        store.dataset(images, rows, images.targets)
    return len(rows)


_models: dict[Path, SplitModel] = {}  # of this process: the latest one, by the file of its maps


def _model(shared: Shared) -> SplitModel:
    if shared.path not in _models:
        with preserve_rng_state():
            model = split_backbone(weights=None, n_classes=1, codebook=None, **shared.network).eval()
        model.feature_extractor.load_state_dict(shared.weights)
        model.set_precision(shared.precision)
        found = open_runtime(model, shared.runtime.name, shared.runtime.calibration)
        model.runtime = replace(found, images_at_a_time=shared.runtime.images_at_a_time)
        _models.clear()
        _models[shared.path] = model
    return _models[shared.path]
