"""F(x) computed once per image and kept on disk. Exact in float32: F is frozen and the images are not augmented."""

import hashlib
import math
import os
import shutil
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from torch import nn
from torch.fx import GraphModule
from torch.utils.data import DataLoader, Dataset, Sampler, Subset

from crumb_avalanche.models.feature_memo import USUAL_CAPACITY, FeatureMemo
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import weights_hash
from crumb_avalanche.system.progress import progress_bar
from crumb_avalanche.training.stateful import StatefulPlugin

FILL_BATCH = 32
MEMO_BYTES = 2 * 2**30


class FeatureCacheError(ValueError):
    """Maps that cannot be kept; says why and what to do."""


class MapDataset(Dataset):
    """``(map, label)`` pairs out of a table of maps.

    Args:
        maps: ``(N, C, H, W)`` float32 or float16 array, usually a memory map.
        rows: which row each item is.
        labels: the label of each item.
    """

    def __init__(self, maps: np.ndarray, rows: np.ndarray, labels: list[int]):
        self.maps = maps
        self.rows = rows
        self.targets = labels

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.from_numpy(np.array(self.maps[self.rows[index]])), self.targets[index]


class StillMissing(Sampler):
    """Batches of the images whose maps are missing when their turn comes, in an order that no other process has.

    So processes that fill one cache at the same time share the work, where a common order would have them all compute
    the same maps. Which images make a batch does not depend on the order, and no global random state is touched.

    Args:
        done: ``(count,)`` uint8, shared with the other processes; 1 where a map is there.
        rows: ``(N,)`` row number of each item.
        size: items in a batch.

    Attributes:
        taken: the items of each batch that was given out, oldest first.
    """

    def __init__(self, done: np.ndarray, rows: np.ndarray, size: int):
        self.done = done
        self.rows = rows
        self.size = size
        self.taken: deque[np.ndarray] = deque()

    def __iter__(self):
        starts = np.arange(0, len(self.rows), self.size)
        for start in np.random.default_rng().permutation(starts):
            items = np.arange(start, min(start + self.size, len(self.rows)))
            items = items[self.done[self.rows[items]] == 0]
            if len(items):
                self.taken.append(items)
                yield items.tolist()


class FeatureCache(StatefulPlugin):
    """A plugin that puts cached feature maps in the place of images, for training and evaluation.

    One file holds ``count`` maps of ``4 * C * H * W`` bytes (346,112 for 512x13x13; the file is sparse until filled),
    named after everything that decides F(x): F's layers and weights, its precision, the kind of device, the shapes,
    and ``key``. The feature scale is applied on reading. At half precision it takes half of that, and maps are rounded
    to 11 significant bits.

    Args:
        folder: where the files lie.
        model: whose F is cached.
        count: number of images that there are altogether.
        key: names the images and their transform, such as ``f"{files_key(paths)} {transform!r}"``.
        workers: loader processes while filling.
        progress: show a bar with images/s while filling.
        half: keep the maps as float16.
        stored_images: how many a buffer holds; their maps are remembered in working memory, up to 2 GiB of them.

    Raises:
        FeatureCacheError: the disk has too little room for the maps still missing, or a map does not fit into float16.

    Data sets need an attribute ``frame_row``, each item's number below ``count``; benchmarks made by
    ``benchmarks_toybox_ilab`` have it.

    Attributes:
        seconds: time spent filling, in all processes of a run that went on from a checkpoint.
        filled: images computed, likewise.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        model: SplitModel,
        count: int,
        key: str,
        workers: int = 0,
        progress: bool = True,
        half: bool = False,
        stored_images: int = 0,
    ):
        super().__init__()
        compiled = "compiled" if model.is_compiled else "eager"
        shape = (count, *model.map_shape)
        what = f"{weights_hash(model.feature_extractor)} {_structure(model.feature_extractor)} {model.precision} "
        what += f"{compiled} {model.pixel_mean.device.type} {shape} {key}{' half' * half}"
        name = hashlib.sha256(what.encode()).hexdigest()[:24]
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # Stored images are not the stream's: they have no row here, so their maps are remembered beside it.
        room = MEMO_BYTES // (4 * math.prod(model.map_shape))
        model.feature_memo = FeatureMemo(max(USUAL_CAPACITY, min(stored_images, room)))
        self.model = model
        self.workers = workers
        self.progress = progress
        self.seconds = 0.0
        self.filled = 0
        self.folder = folder
        self.maps, whole = _memory_map(folder / f"{name}.maps", np.float16 if half else np.float32, shape)
        self.done, _ = _memory_map(folder / f"{name}.done", np.uint8, (count,))
        if not whole:  # new, taken away to make room, or cut off while it was copied
            self.done[:] = 0

    def dataset(self, images: Dataset, rows: np.ndarray, labels: list[int]) -> MapDataset:
        """The maps of a data set of images, computing those that are missing.

        Args:
            images: items ``(image, ...)``.
            rows: ``(len(images),)`` row numbers.
            labels: of each item.
        """
        missing = np.flatnonzero(self.done[rows] == 0)
        if len(missing):
            self._check_room(len(missing))
            start = time.perf_counter()
            self._fill(Subset(images, missing.tolist()), rows[missing])
            self.seconds += time.perf_counter() - start
        return MapDataset(self.maps, rows, labels)

    def _fill(self, images: Dataset, rows: np.ndarray) -> None:
        order = StillMissing(self.done, rows, FILL_BATCH)
        # A generator of its own: a loader draws a seed, and filling must not move the learner's random numbers.
        loader = DataLoader(images, batch_sampler=order, num_workers=self.workers, generator=torch.Generator())
        device = self.model.pixel_mean.device
        with progress_bar(len(rows), "feature cache", show=self.progress) as bar:
            for image, *_ in loader:
                batch = rows[order.taken.popleft()]
                self.maps[batch] = self._stored(self.model.extract(image.to(device)).cpu().numpy())
                self.maps.flush()
                # Only after the maps are written: a cut-off run leaves maps that count as missing, never wrong ones.
                self.done[batch] = 1
                self.filled += len(batch)
                bar.update(len(batch))
            bar.total = bar.n  # the others came from another process
        self.done.flush()

    def _stored(self, maps: np.ndarray) -> np.ndarray:
        largest = np.finfo(self.maps.dtype).max
        if np.abs(maps).max() > largest:
            raise FeatureCacheError(
                f"a feature map has a value of {np.abs(maps).max():.0f}, but half precision ends at {largest:.0f}; "
                "keep the cache in single precision"
            )
        return maps.astype(self.maps.dtype)

    def _check_room(self, missing: int) -> None:
        """A full disk under a memory map kills the process, so it is asked before."""
        needed = missing * self.maps[0].nbytes
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise FeatureCacheError(
                f"the feature cache in {self.folder} needs {needed / 1e9:.2f} GB more for {missing} images, but "
                f"{free / 1e9:.2f} GB are free; choose another folder, keep it at half precision, or go without it"
            )

    def after_train_dataset_adaptation(self, strategy, **kwargs):
        strategy.adapted_dataset = self._cached(strategy.adapted_dataset)

    def after_eval_dataset_adaptation(self, strategy, **kwargs):
        strategy.adapted_dataset = self._cached(strategy.adapted_dataset)

    def _cached(self, images: AvalancheDataset) -> AvalancheDataset:
        if not hasattr(images, "frame_row"):
            raise ValueError(
                "the feature cache needs to know which image is which: give the data sets a DataAttribute 'frame_row' "
                "with the number of each image (benchmarks_toybox_ilab does), or train without the cache"
            )
        labels = list(map(int, images.targets))
        maps = self.dataset(images, np.asarray(list(images.frame_row)), labels)
        attributes = [DataAttribute(labels, "targets")]
        if hasattr(images, "targets_task_labels"):
            tasks = list(map(int, images.targets_task_labels))
            attributes.append(DataAttribute(tasks, "targets_task_labels", use_in_getitem=True))
        return AvalancheDataset([maps], data_attributes=attributes)

    def state_dict(self):
        return {"filled": self.filled, "seconds": self.seconds}

    def load_state_dict(self, state):
        self.filled, self.seconds = state["filled"], state["seconds"]


def files_key(paths: Iterable[str | os.PathLike]) -> str:
    """SHA-256 over names, sizes and times of change of files, in their order: another one where an image changed.

    The folder that they lie in does not count, so that a moved data set keeps its cache.
    """
    paths = [Path(path) for path in paths]
    common = os.path.commonpath(paths) if paths else ""
    digest = hashlib.sha256()
    for path in paths:
        state = path.stat()
        digest.update(f"{os.path.relpath(path, common)}|{state.st_size}|{state.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _structure(network: nn.Module) -> str:
    """Layers, and what a traced part computes between them: those without weights are in no hash of weights."""
    code = [part.code for part in network.modules() if isinstance(part, GraphModule)]
    return "\n".join([repr(network), *code])


def _memory_map(path: Path, dtype, shape: tuple[int, ...]) -> tuple[np.memmap, bool]:
    """An array on disk, filled up with zeros, and whether all of it was there; two processes may open it at once."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    with open(path, "ab") as file:
        whole = file.tell() == size
        file.truncate(size)
    return np.memmap(path, dtype, "r+", shape=shape), whole
