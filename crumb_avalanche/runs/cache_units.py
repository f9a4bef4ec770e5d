"""The feature cache of many runs, filled by workers before the runs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.run_folder import write_json
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.work import WorkUnit
from crumb_avalanche.system.named_values import attributes

SHARDS = 16  # of the images of a benchmark
FILLED = "filled.json"  # in the folder of a shard, when its maps are stored
# Settings that decide which feature maps a run needs.
MAP_SETTINGS = (
    "benchmark",
    "dataset_root",
    "reference_stream",
    "fps",
    "new_class",
    "on_bad_frame",
    "backbone",
    "weights",
    "pretrained",
    "cut_layer",
    "image_size",
    "precision",
    "cache_precision",
    "runtime",
    "device",
    "feature_cache",
)


def cache_units(
    cells: Sequence[RunSettings], folder: Path, shards: int = SHARDS
) -> list[WorkUnit]:
    """Return the work that fills the feature caches of runs, divided for an engine.

    A unit of work fills one shard of a cache and has a folder for what it leaves.
    Runs without a cache need none. Runs that differ in their number or method alone
    share a cache, which is filled with the maps that the first of them needs. The
    others compute what they need besides.

    Args:
        cells: settings of the runs.
        folder: that all workers see; each unit has a subfolder.
        shards: parts of the images of a benchmark.
    """
    first_cells: dict[str, RunSettings] = {}  # by the settings that decide the maps
    for cell in cells:
        if cell.feature_cache is not None:
            plan = RunPlan.of(cell)  # the settings with their defaults
            map_settings = repr(attributes(plan, MAP_SETTINGS))
            first_cells.setdefault(map_settings, cell)
    units = []
    for cache_number, cell in enumerate(first_cells.values()):
        for shard in range(shards):
            shard_name = f"shard{shard}of{shards}"
            shard_folder = folder / f"cache{cache_number}" / shard_name
            settings = replace(cell, output=str(shard_folder))
            units.append(
                WorkUnit(
                    folder=shard_folder,
                    work=partial(fill_shard, settings, shard, shards),
                    is_done=(shard_folder / FILLED).is_file,
                )
            )
    return units


def fill_shard(settings: RunSettings, shard: int, shards: int) -> None:
    """Store the missing feature maps of a shard of a run's images.

    The images are those that the run learns or tests. ``filled.json`` is written last.

    Args:
        settings: of the run; ``output`` is the folder of the shard.
        shard, shards: number of the shard, and how many there are; blocks of images
            that pass F together go to the shards in turn.
    """
    import numpy as np
    from torch.utils.data import Subset

    from crumb_avalanche.models.map_store import FILL_BATCH
    from crumb_avalanche.runs.session import PreparedRun
    from crumb_avalanche.runs.stream import open_stream
    from crumb_avalanche.system.process import set_up_process

    plan = RunPlan.of(settings)
    set_up_process(plan.threads, plan.run)
    stream = open_stream(plan)
    benchmark = stream.benchmark
    # Without a strategy: the network, which computes the maps, and the cache alone.
    cache = PreparedRun.of(plan, stream).open_cache()
    assert cache is not None, "the settings have a feature_cache"
    with cache:
        store = cache.store
        for experience in (*benchmark.train_stream, *benchmark.test_stream):
            images = experience.dataset
            rows = np.asarray(list(images.frame_row))  # of the frame table
            blocks = np.arange(len(rows)) // FILL_BATCH
            index = np.flatnonzero(blocks % shards == shard)
            if len(index):
                shard_images = Subset(images, index.tolist())
                unused_labels = [0] * len(index)
                # Computes and stores the maps that are missing.
                store.dataset(shard_images, rows[index], unused_labels)
        summary = {"maps": store.path.name, "computed": store.filled}
    write_json(Path(settings.output) / FILLED, summary)
