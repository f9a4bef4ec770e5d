"""Feature maps F(x) on disk, computed once per image and verified by checksums."""

import math
import os
import shutil
import time
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from crumb_avalanche.models.finite import LARGEST_FEATURE, check_maps
from crumb_avalanche.models.map_key import map_key
from crumb_avalanche.models.missing_rows import MissingRows
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.progress import progress_bar
from crumb_avalanche.system.row_file import RowFile, resize
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
    again, with a warning. Every later reading verifies it, too, and raises where the file was changed in between. Maps
    of version 0.1 have no checksums; they are used with one warning.

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
        path = Path(folder) / map_key(model, count, key, half)
        self.model = model
        self.workers = workers
        self.progress = progress
        self.path = path.with_suffix(".maps")
        self.count = count
        self.shape = tuple(model.map_shape)
        self.dtype = np.dtype(np.float16 if half else np.float32)
        self.bytes_per_map = math.prod(self.shape) * self.dtype.itemsize
        self.seconds = 0.0
        self.filled = 0
        self.damaged = 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._writing():
            complete = self._open()
        self._verified = np.zeros(count, np.uint64)  # entries of the maps that this process has verified, else 0
        self._older = np.zeros(count, bool)
        older = path.with_suffix(".done")  # of version 0.1: one byte per map, no checksums
        if complete and older.is_file() and older.stat().st_size == count:
            self._older = (np.fromfile(older, np.uint8) == 1) & (self._entries() == 0)

    def _open(self) -> bool:
        """Open both files, at their full size; returns whether the file of maps had it before."""
        size = self.count * self.bytes_per_map
        if not self.path.is_file() or self.path.stat().st_size != size:
            # First, since a file of full size would make it count again.
            self.path.with_suffix(".done").unlink(missing_ok=True)
        complete = resize(self.path, size)
        checksums = self.path.with_suffix(".crc32")
        if not complete:  # new, removed to make room, or cut off while it was copied
            resize(checksums, 0)
        resize(checksums, self.count * ENTRY_BYTES)
        self._maps = RowFile(self.path, self.bytes_per_map, writable=True)
        self._checksums = RowFile(checksums, ENTRY_BYTES, writable=True)
        return complete

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
        return (self._entries() != 0) | self._older

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
        older = self._older & (entries == 0)
        first_use = not self._verified[self._older].any()
        damaged, unverifiable = 0, 0
        for row in rows[(self._verified[rows] == 0) & ((entries[rows] != 0) | older[rows])]:
            self._maps.read_into(values, row)
            found = _entry(values)
            usable = not older[row] or np.abs(values).max() <= LARGEST_FEATURE  # false for NaN
            if older[row] and usable:
                unverifiable += 1
            elif found != entries[row]:
                damaged += 1
                self._older[row] = False
                with self._writing():
                    self._checksums.write(np.zeros(1, np.uint64), row)
                continue
            self._verified[row] = found
        if damaged:
            self.damaged += damaged
            warnings.warn(
                f"{damaged} of {len(rows)} maps in {self.path} are damaged; they are computed again", stacklevel=3
            )
        if unverifiable and first_use:
            warnings.warn(
                f"{self.path} was written by version 0.1, without checksums; its maps are not verified. Remove it to "
                "compute them again",
                stacklevel=3,
            )

    def _fill(self, images: Dataset, rows: np.ndarray) -> None:
        order = MissingRows(self._entries, rows, FILL_BATCH)
        # A loader draws a seed; with a generator of its own, filling leaves the global RNG state unchanged.
        loader = DataLoader(images, batch_sampler=order, num_workers=self.workers, generator=torch.Generator())
        device = self.model.pixel_mean.device
        with progress_bar(len(rows), "feature cache", show=self.progress) as bar:
            for image, *_ in loader:
                batch = rows[order.taken.popleft()]
                extracted = self.model.extract(image.to(device)).cpu()
                check_maps(extracted, image)
                maps = self._converted(extracted.numpy())
                for row, values in zip(batch, maps, strict=True):
                    self._write(int(row), np.ascontiguousarray(values))
                self.filled += len(batch)
                bar.update(len(batch))
            bar.total = bar.n  # other processes computed the rest

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
