"""Fill the feature cache of a run by the workers of a Ray cluster, which share its folder."""

import copy
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks_toybox_ilab.streams.torch_dataset import FrameDataset, PixelTransform, pixel_transform
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.models.map_store import FeatureCacheError, MapStore
from crumb_avalanche.models.runtimes import Runtime, open_runtime
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.stream import Stream
from crumb_avalanche.system.progress import progress_bar
from crumb_avalanche.system.ray_cluster import Engine
from crumb_avalanche.training.feature_cache import FeatureCache

IMAGES = 1024  # of a shard: seconds of work for a worker, far longer than sending the table


@dataclass(frozen=True)
class Shared:
    """What is the same for all shards: a model of torch, what runs its F, the frames, and the file of the store."""

    model: SplitModel
    runtime: Runtime  # without its function
    table: FrameTable
    transform: PixelTransform
    path: Path
    key: str
    half: bool


def fill_by_many(
    plan: RunPlan, stream: Stream, model: SplitModel, cache: FeatureCache, missing: np.ndarray, engine: Engine
) -> None:
    """Compute the maps of the ``missing`` rows of a cache.

    Workers read the images and write the cache under the paths of this process. What is lost with a worker is computed
    again. Maps are those that the run would compute itself, and are verified when it reads them.

    Raises:
        FeatureCacheError: a worker has another runtime or cannot write the cache.
        BadFeaturesError: a map is not finite or too large.
        BadFrameError: a worker cannot read an image.
    """
    start = time.perf_counter()
    table = copy.copy(stream.table)
    if table.root is not None:  # workers have other current folders
        table.root = Path(os.path.abspath(table.root))
    transform, path = pixel_transform(plan.image_size, model.interpolation), Path(os.path.abspath(cache.store.path))
    runtime, half = replace(model.runtime, run=None), plan.cache_precision == "fp16"
    sent = engine.share(
        Shared(copy.deepcopy(model).cpu().eval(), runtime, table, transform, path, stream.images_key, half)
    )
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


_models: dict[Path, SplitModel] = {}  # of a worker: the latest one, by the file of its maps


def fill_shard(shared: Shared, rows: np.ndarray) -> int:
    """Compute, in a worker, the maps of some rows that the store lacks; return the number of rows."""
    if shared.path not in _models:
        found = open_runtime(shared.model, shared.runtime.name, shared.runtime.calibration)
        shared.model.runtime = replace(found, images_at_a_time=shared.runtime.images_at_a_time)
        _models.clear()
        _models[shared.path] = shared.model
    model = _models[shared.path]
    images = FrameDataset(shared.table, rows, shared.transform)
    with MapStore(shared.path.parent, model, len(shared.table), shared.key, progress=False, half=shared.half) as store:
        if store.path != shared.path:
            raise FeatureCacheError(
                f"a worker has runtime {model.runtime}, but the run began with {shared.runtime}: install the same "
                "versions on all nodes, or give --runtime torch"
            )
        store.dataset(images, rows, images.targets)
    return len(rows)
