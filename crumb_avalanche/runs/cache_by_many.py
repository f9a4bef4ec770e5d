"""Fill the feature cache of a run by the workers of a Ray cluster, which share its folder."""

import os
import time
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from benchmarks_toybox_ilab.streams.torch_dataset import FrameDataset, PixelTransform, pixel_transform
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.learner.by_many import Engine
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.map_store import FeatureCacheError, MapStore
from crumb_avalanche.models.runtimes import Runtime, open_runtime
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.progress import progress_bar
from crumb_avalanche.system.rng_state import preserve_rng_state

if TYPE_CHECKING:
    from crumb_avalanche.runs.session import Session

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


def fill_by_many(session: "Session", engine: Engine) -> None:
    """Compute the maps that a session's cache lacks, of all images of its stream.

    Workers read the images and write the cache under the paths of this process. What is lost with a worker is computed
    again. Maps are those that the run would compute itself, and are verified when it reads them.

    Args:
        session: with a cache; its strategy may be missing.
        engine: its workers.

    Raises:
        FeatureCacheError: a worker has another runtime or cannot write the cache.
        BadFeaturesError: a map is not finite or too large.
        BadFrameError: a worker cannot read an image.
    """
    cache, start = session.cache, time.perf_counter()
    missing = missing_rows(session)
    if cache is None or not len(missing):
        return
    sent = engine.share(_shared(session))
    shards = np.array_split(missing, -(-len(missing) // IMAGES))
    filled = [engine.call(fill_shard, sent, shard) for shard in shards]
    with progress_bar(len(missing), "feature cache", show=session.plan.progress) as bar:
        cache.filled += sum(engine.fetch(filled, bar.update))
    cache.seconds += time.perf_counter() - start


def missing_rows(session: "Session") -> np.ndarray:
    """Return the rows of the stream's images whose maps are not in the session's cache, int64."""
    if session.cache is None:
        return np.zeros(0, np.int64)
    benchmark = session.stream.benchmark
    rows = [list(one.dataset.frame_row) for stream in (benchmark.train_stream, benchmark.test_stream) for one in stream]
    used = np.unique(np.concatenate([np.asarray(some, np.int64) for some in rows]))
    return used[~session.cache.store.present()[used]]


def _shared(session: "Session") -> Shared:
    from crumb_avalanche.runs.session import network_of  # which imports this module

    plan, model, table = session.plan, session.model, copy(session.stream.table)
    assert session.cache is not None
    if table.root is not None:  # workers have other current folders
        table.root = Path(os.path.abspath(table.root))
    return Shared(
        network_of(plan),
        {name: value.cpu() for name, value in model.feature_extractor.state_dict().items()},
        model.precision,
        replace(model.runtime, run=None),
        table,
        pixel_transform(plan.image_size, model.interpolation),
        Path(os.path.abspath(session.cache.store.path)),
        session.stream.images_key,
        plan.cache_precision == "fp16",
    )


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
        found = open_runtime(model, shared.runtime.name)
        model.runtime = replace(found, images_at_a_time=shared.runtime.images_at_a_time)
        _models.clear()
        _models[shared.path] = model
    return _models[shared.path]
