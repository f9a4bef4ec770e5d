"""Feature maps F(x) on disk, computed once per image, verified by checksums, and named by all that decides them."""

import hashlib
import math
import os
import shutil
import time
import warnings
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils.data import DataLoader, Dataset, Subset

from crumb_avalanche.models.backbone_names import PIXEL_MEAN, PIXEL_STD
from crumb_avalanche.models.extraction import check_maps
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import weights_hash
from crumb_avalanche.system.progress import progress_bar
from crumb_avalanche.system.sizes import bytes_text

FILL_BATCH = 32
# Upper half of a row's entry in the checksum file; the lower half is the CRC-32 of the map.
WRITTEN = 0x4D415000 << 32
ENTRY_BYTES = 8


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


class MapStore:
    """Store the maps of ``count`` images in one file, and their checksums in a small file beside it.

    The file takes ``4 * C * H * W`` bytes per map (346,112 for 512x13x13), half of that at half precision; it is sparse
    until filled. Its name is a hash of everything that decides F(x): the layers and weights of F, its runtime and
    precision, the kind of device, the shapes, the normalisation of pixels if it is not ImageNet's, and ``key``. Maps
    are stored before the feature scale. Several processes may fill one store at the same time.

    ``dataset`` verifies the checksum of each map that this process has not verified yet; a damaged map is computed
    again, with a warning. Every later reading verifies it, too, and raises where the file was changed in between.

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

    Raises:
        FeatureCacheError: the files cannot be written.
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
        self.model = model
        self.workers = workers
        self.progress = progress
        self.path = Path(folder) / f"{map_key(model, count, key, half)}.maps"
        self.count = count
        self.shape = tuple(model.map_shape)
        self.dtype = np.dtype(np.float16 if half else np.float32)
        self.bytes_per_map = math.prod(self.shape) * self.dtype.itemsize
        self.seconds = 0.0
        self.filled = 0
        self.damaged = 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        checksums = self.path.with_suffix(".crc32")
        with self._writing():
            if not _resize(self.path, count * self.bytes_per_map):  # new, removed to make room, or cut off in a copy
                _resize(checksums, 0)
            _resize(checksums, count * ENTRY_BYTES)
            self._maps = RowFile(self.path, self.bytes_per_map)
            self._checksums = RowFile(checksums, ENTRY_BYTES)
        self._verified = np.zeros(count, np.uint64)  # entries of the maps that this process has verified, else 0

    def __enter__(self) -> "MapStore":
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def __getstate__(self):  # for loader processes that are not forked; they only read
        return {**self.__dict__, "model": None}

    def close(self) -> None:
        """Close the files. No map can be read afterwards."""
        self._maps.close()
        self._checksums.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Raise ``FeatureCacheError`` where the files cannot be written."""
        try:
            yield
        except OSError as error:
            raise FeatureCacheError(
                f"{self.path} cannot be written ({error.strerror or error}); make room there, or choose another "
                "--feature-cache; the maps written so far are kept"
            ) from error

    def _entries(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the entries of some rows, default of all; 0 where a map is missing, as beyond the file's end."""
        first, end = (0, self.count) if rows is None else (int(rows.min()), int(rows.max()) + 1)
        span = np.zeros(end - first, np.uint64)
        self._checksums.read_into(span, first)
        return span if rows is None else span[rows - first]

    def present(self) -> np.ndarray:
        """Return whether each map is stored, ``(count,)`` bool."""
        return self._entries() != 0

    def dataset(self, images: Dataset, rows: np.ndarray, labels: list[int]) -> MapDataset:
        """Return the maps of a data set of images; computes those that are missing or damaged.

        Args:
            images: items ``(image, ...)``.
            rows: ``(len(images),)`` row numbers.
            labels: of each item.

        Raises:
            FeatureCacheError: the disk has too little room, or a map does not fit into float16.
            BadFeaturesError: a map is not finite or too large.
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
        """Read the map of a row, ``(C, H, W)``, and verify its checksum.

        Raises:
            FeatureCacheError: the file was truncated or the map damaged since ``dataset`` verified it.
        """
        values = np.empty(self.shape, self.dtype)
        read = self._maps.read_into(values, row)
        if read < self.bytes_per_map or _entry(values) != (self._verified[row] or self._entries(np.array([row]))[0]):
            what = "truncated" if read < self.bytes_per_map else "damaged"
            raise FeatureCacheError(
                f"{self.path} was {what} while in use (map {row}); start the same command again, which computes "
                "missing and damaged maps again"
            )
        return torch.from_numpy(values)

    def _verify(self, rows: np.ndarray) -> None:
        """Compare maps not yet verified by this process with their checksums; damaged ones count as missing then."""
        values = np.empty(self.shape, self.dtype)
        entries = self._entries()
        damaged = 0
        for row in rows[(self._verified[rows] == 0) & (entries[rows] != 0)]:
            self._maps.read_into(values, row)
            if _entry(values) == entries[row]:
                self._verified[row] = entries[row]
            else:
                damaged += 1
                with self._writing():
                    self._checksums.write(np.zeros(1, np.uint64), row)
        if damaged:
            self.damaged += damaged
            warnings.warn(
                f"{damaged} of {len(rows)} maps in {self.path} are damaged; they are computed again", stacklevel=3
            )

    def _fill(self, images: Dataset, rows: np.ndarray) -> None:
        taken: deque[np.ndarray] = deque()  # rows of the batches that the loader has drawn
        # A loader draws a seed; with a generator of its own, filling leaves the global RNG state unchanged.
        loader = DataLoader(
            images, batch_sampler=self._batches(rows, taken), num_workers=self.workers, generator=torch.Generator()
        )
        device = self.model.pixel_mean.device
        with progress_bar(len(rows), "feature cache", show=self.progress) as bar:
            for image, *_ in loader:
                batch = taken.popleft()
                extracted = self.model.extract(image.to(device)).cpu()
                check_maps(extracted, image)
                maps = self._converted(extracted.numpy())
                for row, values in zip(batch, maps, strict=True):
                    self._write(int(row), np.ascontiguousarray(values))
                self.filled += len(batch)
                bar.update(len(batch))
            bar.total = bar.n  # other processes computed the rest

    def _batches(self, rows: np.ndarray, taken: deque[np.ndarray]) -> Iterator[list[int]]:
        """Yield the places of the rows whose maps are missing at the time of the batch, in a random order of batches.

        Processes that fill one store at the same time share the work because each has its own order, which does not
        change which images make a batch. Drawing it leaves the global RNG state unchanged.
        """
        for start in np.random.default_rng().permutation(np.arange(0, len(rows), FILL_BATCH)):
            places = np.arange(start, min(start + FILL_BATCH, len(rows)))
            places = places[self._entries(rows[places]) == 0]
            if len(places):
                taken.append(rows[places])
                yield places.tolist()

    def _write(self, row: int, values: np.ndarray) -> None:
        # On some devices the same map has other bits in another batch: the first process to write it is right.
        if self._entries(np.array([row]))[0]:
            return
        entry = _entry(values)
        with self._writing():
            self._maps.write(values, row)
            # After the map: a run that is cut off in between leaves a missing map.
            self._checksums.write(np.array([entry], np.uint64), row)
        self._verified[row] = entry

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
                f"the feature cache in {self.path.parent} needs {bytes_text(needed)} more for {missing} images, but "
                f"{bytes_text(free)} are free; choose another folder, keep it at half precision, or go without it"
            )


def _entry(values: np.ndarray) -> np.uint64:
    """Entry of a map in the checksum file."""
    return np.uint64(WRITTEN | zlib.crc32(values))


class RowFile:
    """Rows of ``row_bytes`` bytes each in a file that several processes may share, read and written in place.

    Reads and writes are plain system calls: pages of a memory map would count as memory of the process, and a full disk
    or a file truncated by another process would end it with SIGBUS instead of an ``OSError``.

    Args:
        path: an existing file.
        row_bytes: size of a row.
    """

    def __init__(self, path: Path, row_bytes: int):
        self.path, self.row_bytes = path, row_bytes
        self._file: Any = open(path, "r+b", buffering=0)  # noqa: SIM115 - close() does

    def __getstate__(self) -> dict[str, Any]:  # for loader processes that are not forked; they only read
        return {**self.__dict__, "_file": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115 - close() does

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read_into(self, values: np.ndarray, row: int) -> int:
        """Read as many rows as an array holds, from ``row`` on; returns the number of bytes read.

        Raises:
            OSError: the file cannot be read.
        """
        place = int(row) * self.row_bytes
        if hasattr(os, "preadv"):  # leaves alone the position in the file, which forked loader processes share
            return os.preadv(self._file.fileno(), [values.data], place)
        self._file.seek(place)
        return self._file.readinto(values.data)

    def write(self, values: np.ndarray, row: int) -> None:
        """Write a contiguous array of rows, from ``row`` on.

        Raises:
            OSError: for instance, the disk is full; a part may be written.
        """
        rest = values.data.cast("B")
        self._file.seek(int(row) * self.row_bytes)
        while rest:  # a nearly full disk takes a part first
            rest = rest[self._file.write(rest) :]


def _resize(path: Path, size: int) -> bool:
    """Set the size of a file, with zeros at its end, or create it; returns whether it had the size before."""
    with open(path, "ab") as file:
        complete = file.tell() == size
        file.truncate(size)
    return complete


def map_key(model: SplitModel, count: int, key: str, half: bool) -> str:
    """Return 24 hexadecimal digits of a SHA-256 over everything that decides the maps of ``count`` images.

    Args:
        model: model whose F computes the maps.
        count: number of images.
        key: identifies the images and their transform.
        half: whether the maps are float16.
    """
    runtime = "eager" if model.runtime.name == "torch" else str(model.runtime)
    what = f"{weights_hash(model.feature_extractor)} {_structure(model.feature_extractor)} {model.precision} "
    what += f"{runtime} {model.pixel_mean.device.type} {(count, *model.map_shape)} {key}{' half' * half}"
    what += _normalisation(model)
    return hashlib.sha256(what.encode()).hexdigest()[:24]


def files_key(paths: Iterable[str | os.PathLike]) -> str:
    """Return a SHA-256 over names, sizes and modification times of files, in their order.

    The common folder does not count, so a moved data set keeps its cache.
    """
    files = [Path(path) for path in paths]
    common = os.path.commonpath(files) if files else ""
    digest = hashlib.sha256()
    for path in files:
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
