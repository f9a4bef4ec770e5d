"""Feature maps F(x) on disk, computed once per image and verified by checksums."""

import hashlib
import math
import os
import shutil
import time
import warnings
import zlib
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils.data import DataLoader, Dataset, Sampler, Subset

from crumb_avalanche.models.preprocessing import PIXEL_MEAN, PIXEL_STD
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import weights_hash
from crumb_avalanche.system.progress import progress_bar

FILL_BATCH = 32
# Upper half of a row's entry in the checksum file; the lower half is the CRC-32 of the map.
WRITTEN = 0x4D415000 << 32


class FeatureCacheError(ValueError):
    """Feature maps cannot be stored or read."""


class MapDataset(Dataset):
    """Data set of ``(map, label)`` pairs from a store.

    Args:
        store: holds the maps.
        rows: ``(N,)`` row number of each item.
        labels: label of each item.
    """

    def __init__(self, store: "MapStore", rows: np.ndarray, labels: list[int]):
        self.store = store
        self.rows = rows
        self.targets = labels

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.store.read(self.rows[index]), self.targets[index]


class MissingRows(Sampler):
    """Batch sampler of the images whose maps are missing at the time of the batch, in a random order.

    Processes that fill one store at the same time share the work because each has its own order. The order does not
    change which images make a batch, and drawing it leaves the global RNG state unchanged.

    Args:
        entries: ``(count,)`` uint64, shared with the other processes; 0 where a map is missing.
        rows: ``(N,)`` row number of each item.
        size: items in a batch.

    Attributes:
        taken: the items of each batch that was drawn, oldest first.
    """

    def __init__(self, entries: np.ndarray, rows: np.ndarray, size: int):
        self.entries = entries
        self.rows = rows
        self.size = size
        self.taken: deque[np.ndarray] = deque()

    def __iter__(self):
        starts = np.arange(0, len(self.rows), self.size)
        for start in np.random.default_rng().permutation(starts):
            items = np.arange(start, min(start + self.size, len(self.rows)))
            items = items[self.entries[self.rows[items]] == 0]
            if len(items):
                self.taken.append(items)
                yield items.tolist()


class MapStore:
    """Store the maps of ``count`` images in one file, and their checksums in a small file beside it.

    The file takes ``4 * C * H * W`` bytes per map (346,112 for 512x13x13), half of that at half precision; it is sparse
    until filled. Its name is a hash of everything that decides F(x): the layers and weights of F, its precision, the
    kind of device, the shapes, the normalisation of pixels if it is not ImageNet's, and ``key``. Maps are stored before
    the feature scale. Several processes may fill one store at the same time.

    A process verifies the checksum of each map before its first use. A damaged map is computed again, with a warning.
    Maps of version 0.1 have no checksums; they are used with one warning.

    Args:
        folder: folder of the files.
        model: model whose F computes the maps.
        count: total number of images.
        key: identifies the images and their transform, such as ``f"{files_key(paths)} {transform!r}"``.
        workers: loader processes while filling.
        progress: show a bar with images/s while filling.
        half: store float16, which rounds maps to 11 significant bits.

    Attributes:
        seconds: time spent filling.
        filled: images computed.
        damaged: maps whose checksum did not match.
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
    ):
        compiled = "compiled" if model.is_compiled else "eager"
        what = f"{weights_hash(model.feature_extractor)} {_structure(model.feature_extractor)} {model.precision} "
        what += f"{compiled} {model.pixel_mean.device.type} {(count, *model.map_shape)} {key}{' half' * half}"
        what += _normalisation(model)
        path = Path(folder) / hashlib.sha256(what.encode()).hexdigest()[:24]
        path.parent.mkdir(parents=True, exist_ok=True)
        self.model = model
        self.workers = workers
        self.progress = progress
        self.path = path.with_suffix(".maps")
        self.shape = tuple(model.map_shape)
        self.dtype = np.dtype(np.float16 if half else np.float32)
        self.bytes_per_map = math.prod(self.shape) * self.dtype.itemsize
        self.seconds = 0.0
        self.filled = 0
        self.damaged = 0
        older = path.with_suffix(".done")  # of version 0.1: one byte per map, no checksums
        size = count * self.bytes_per_map
        if not self.path.is_file() or self.path.stat().st_size != size:
            older.unlink(missing_ok=True)  # first, since a file of full size would make it count again
        complete = _extend(self.path, size)
        self._file = open(self.path, "r+b", buffering=0)  # noqa: SIM115 - close() does
        _extend(path.with_suffix(".crc32"), count * 8)
        self._entries = np.memmap(path.with_suffix(".crc32"), np.uint64, "r+", shape=(count,))
        if not complete:  # new, removed to make room, or cut off while it was copied
            self._entries[:] = 0
        self._verified = np.zeros(count, bool)
        self._older = np.zeros(count, bool)
        if complete and older.is_file() and older.stat().st_size == count:
            self._older = (np.fromfile(older, np.uint8) == 1) & (self._entries == 0)

    def __enter__(self) -> "MapStore":
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def __getstate__(self):  # for loader processes that are not forked; they only read
        return {**self.__dict__, "_file": None, "_entries": None, "model": None}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115

    def close(self) -> None:
        """Close the files. No map can be read afterwards."""
        self._file.close()
        self._entries = None  # unmaps the file

    def present(self) -> np.ndarray:
        """Return whether each map is stored, ``(count,)`` bool."""
        return (self._entries != 0) | self._older

    def dataset(self, images: Dataset, rows: np.ndarray, labels: list[int]) -> MapDataset:
        """Return the maps of a data set of images; computes those that are missing or damaged.

        Args:
            images: items ``(image, ...)``.
            rows: ``(len(images),)`` row numbers.
            labels: of each item.

        Raises:
            FeatureCacheError: the disk has too little room, or a map does not fit into float16.
        """
        self._verify(rows)
        while len(missing := np.flatnonzero(~self.present()[rows])):
            self._check_room(len(missing))
            start = time.perf_counter()
            self._fill(Subset(images, missing.tolist()), rows[missing])
            self.seconds += time.perf_counter() - start
            self._verify(rows)  # other processes may have computed some
        return MapDataset(self, rows, labels)

    def read(self, row: int) -> Tensor:
        """Read the map of a row, ``(C, H, W)``.

        Raises:
            FeatureCacheError: the file was truncated while it was in use.
        """
        values = np.empty(self.shape, self.dtype)
        if self._read_into(values, row) < self.bytes_per_map:
            raise FeatureCacheError(f"{self.path} was truncated while in use; start the same command again")
        return torch.from_numpy(values)

    def _read_into(self, values: np.ndarray, row: int) -> int:
        """Read a map into an array; returns the number of bytes read."""
        # Plain reads: the pages of a memory map would count as memory of the process.
        if hasattr(os, "preadv"):  # leaves alone the position in the file, which forked loader processes share
            return os.preadv(self._file.fileno(), [values], int(row) * self.bytes_per_map)
        self._file.seek(int(row) * self.bytes_per_map)
        return self._file.readinto(values)

    def _verify(self, rows: np.ndarray) -> None:
        """Compare maps not yet verified by this process with their checksums; damaged ones count as missing then."""
        values = np.empty(self.shape, self.dtype)
        damaged = 0
        for row in rows[~self._verified[rows] & (self._entries[rows] != 0)]:
            self._read_into(values, row)
            if self._entries[row] == _entry(values):
                self._verified[row] = True
            else:
                self._entries[row] = 0
                damaged += 1
        if damaged:
            self.damaged += damaged
            warnings.warn(
                f"{damaged} of {len(rows)} maps in {self.path} are damaged; they are computed again", stacklevel=3
            )
        older = rows[self._older[rows] & ~self._verified[rows]]
        if len(older) and not self._verified[self._older].any():
            warnings.warn(
                f"{self.path} was written by version 0.1, without checksums; its maps are not verified. Remove it to "
                "compute them again",
                stacklevel=3,
            )
        self._verified[older] = True

    def _fill(self, images: Dataset, rows: np.ndarray) -> None:
        order = MissingRows(self._entries, rows, FILL_BATCH)
        # A loader draws a seed; with a generator of its own, filling leaves the global RNG state unchanged.
        loader = DataLoader(images, batch_sampler=order, num_workers=self.workers, generator=torch.Generator())
        device = self.model.pixel_mean.device
        with progress_bar(len(rows), "feature cache", show=self.progress) as bar:
            for image, *_ in loader:
                batch = rows[order.taken.popleft()]
                maps = self._converted(self.model.extract(image.to(device)).cpu().numpy())
                for row, values in zip(batch, maps, strict=True):
                    self._write(int(row), np.ascontiguousarray(values))
                self.filled += len(batch)
                bar.update(len(batch))
            bar.total = bar.n  # other processes computed the rest

    def _write(self, row: int, values: np.ndarray) -> None:
        self._file.seek(row * self.bytes_per_map)
        try:
            values.tofile(self._file)
        except OSError as error:
            raise FeatureCacheError(f"{self.path} cannot be written ({error}); choose another folder") from error
        # After the map: a run that is cut off in between leaves a missing map.
        self._entries[row] = _entry(values)
        self._verified[row] = True

    def _converted(self, maps: np.ndarray) -> np.ndarray:
        largest = np.finfo(self.dtype).max
        if np.abs(maps).max() > largest:
            raise FeatureCacheError(
                f"a feature map has a value of {np.abs(maps).max():.0f}, but half precision ends at {largest:.0f}; "
                "keep the cache in single precision"
            )
        return maps.astype(self.dtype)

    def _check_room(self, missing: int) -> None:
        """Raise before anything is computed if the disk has too little room."""
        needed = missing * self.bytes_per_map
        free = shutil.disk_usage(self.path.parent).free
        if needed > free:
            raise FeatureCacheError(
                f"the feature cache in {self.path.parent} needs {needed / 1e9:.2f} GB more for {missing} images, but "
                f"{free / 1e9:.2f} GB are free; choose another folder, keep it at half precision, or go without it"
            )


def files_key(paths: Iterable[str | os.PathLike]) -> str:
    """Return a SHA-256 over names, sizes and modification times of files, in their order.

    The common folder does not count, so a moved data set keeps its cache.
    """
    paths = [Path(path) for path in paths]
    common = os.path.commonpath(paths) if paths else ""
    digest = hashlib.sha256()
    for path in paths:
        state = path.stat()
        digest.update(f"{os.path.relpath(path, common)}|{state.st_size}|{state.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _structure(network: nn.Module) -> str:
    """Return layers and code of traced parts; a hash of weights does not cover layers without weights."""
    code = [part.code for part in network.modules() if isinstance(part, GraphModule)]
    return "\n".join([repr(network), *code])


def _normalisation(model: SplitModel) -> str:
    """Return how F normalises pixels, if it is not the usual way."""
    mean, std = (tuple(one.flatten().tolist()) for one in (model.pixel_mean, model.pixel_std))
    usual = tuple(tuple(torch.tensor(one).tolist()) for one in (PIXEL_MEAN, PIXEL_STD))
    return "" if (mean, std) == usual else f" {mean} {std}"


def _extend(path: Path, size: int) -> bool:
    """Extend a file with zeros, or make it; returns whether it had the size before."""
    with open(path, "ab") as file:
        complete = file.tell() == size
        file.truncate(size)
    return complete


def _entry(values: np.ndarray) -> np.uint64:
    """Entry of a map in the checksum file."""
    return np.uint64(WRITTEN | zlib.crc32(values))
