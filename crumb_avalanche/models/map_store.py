"""Feature maps F(x) that are kept, as F is frozen.

Those of a stream are kept in a file, those of a replay buffer in memory.
"""

import hashlib
import math
import os
import shutil
import time
import warnings
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils.data import DataLoader, Dataset, Subset

from benchmarks_toybox_ilab.tables.disk import readable_size
from benchmarks_toybox_ilab.tables.progress import progress_bar
from crumb_avalanche.models.extraction import check_maps
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import weights_hash

FILL_BATCH = 32
# Upper half of the entry of a stored map; the lower half is the map's CRC-32. The entry
# of a missing map is 0.
WRITTEN = 0x4D415000 << 32
ENTRY_BYTES = 8


class FeatureCacheError(ValueError):
    """Feature maps cannot be stored or read."""


class MapDataset(Dataset):
    """Data set of ``(map, label)`` pairs of some rows of a store."""

    def __init__(self, store: "MapStore", rows: np.ndarray, labels: list[int]):
        self.store = store
        self.rows = rows  # of the store, (len(labels),)
        self.targets = labels

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.store.read(self.rows[index]), self.targets[index]


class MapStore:
    """Store the maps of ``count`` images in one file.

    First stands an entry for each map, with its checksum, then the maps. The file takes
    ``4 * C * H * W + 8`` bytes per map (346,120 for 512x13x13), half of that at half
    precision; it is sparse until filled. Its name is a hash of everything that decides
    F(x); see ``map_key``. Maps are stored before the feature scale. Several processes
    may fill one store at the same time. Every reading verifies a checksum: ``dataset``
    computes a damaged map again, with a warning; later readings raise.

    Reads and writes are plain system calls: pages of a memory map would count as memory
    of the process, and a full disk or a file truncated by another process would end it
    with SIGBUS instead of an ``OSError``.

    Args:
        folder: folder of the file.
        model: model whose F computes the maps.
        count: total number of images.
        key: identifies the images and their transform, such as ``f"{files_key(paths)}
            {transform!r}"``.
        workers: loader processes while filling.
        progress: show a bar with images/s while filling.
        half: store float16, which rounds maps to 11 significant bits.

    Attributes:
        seconds: time spent filling.
        filled: images computed.
        damaged: maps whose checksum did not match.

    Raises:
        FeatureCacheError: the file cannot be written.
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
        self.shape = tuple(model.map_shape)  # (C, H, W)
        self.dtype: np.dtype[np.floating] = np.dtype(np.float32)
        if half:
            self.dtype = np.dtype(np.float16)
        self.bytes_per_map = math.prod(self.shape) * self.dtype.itemsize
        self.seconds = 0.0
        self.filled = 0
        self.damaged = 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._writing():
            with open(self.path, "ab") as file:  # new files and lost ends are zeros
                file.truncate(count * (ENTRY_BYTES + self.bytes_per_map))
            # close() closes it.
            self._file: Any = open(self.path, "r+b", buffering=0)  # noqa: SIM115
        # Entries of the maps that this process has verified, 0 for others.
        self._verified_entries = np.zeros(count, np.uint64)

    def __enter__(self) -> "MapStore":
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # For loader processes that are not forked; they only read.
        return {**self.__dict__, "model": None, "_file": None}

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        self.__dict__.update(attributes)
        self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115 - close() does

    def close(self) -> None:
        """Close the file of the maps. No map can be read afterwards."""
        self._file.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Raise ``FeatureCacheError`` if the block cannot write to the file."""
        try:
            yield
        except OSError as error:
            raise FeatureCacheError(
                f"{self.path} cannot be written ({error.strerror or error}); make room "
                "there, or choose another --feature-cache; the maps written so far are "
                "kept"
            ) from error

    def _offset(self, row: int) -> int:
        """Return the byte of the file at which the map of a row begins."""
        return self.count * ENTRY_BYTES + int(row) * self.bytes_per_map

    def _read_into(self, values: np.ndarray, offset: int) -> int:
        """Fill an array from the file of the maps; return the number of bytes read.

        They are fewer at the end of the file.
        """
        if hasattr(os, "preadv"):
            # It leaves alone the position in the file, which forked loader processes
            # share.
            return os.preadv(self._file.fileno(), [values.data], offset)
        self._file.seek(offset)
        return self._file.readinto(values.data)

    def _write_at(self, values: np.ndarray, offset: int) -> None:
        """Write a contiguous array to the file of the maps.

        After an error, a part may be written.
        """
        remaining_bytes = values.data.cast("B")
        with self._writing():
            self._file.seek(offset)
            while remaining_bytes:  # a nearly full disk takes a part first
                n_written = self._file.write(remaining_bytes)
                remaining_bytes = remaining_bytes[n_written:]

    def _all_entries(self) -> np.ndarray:
        """Return the entries of all maps, ``(count,)`` uint64; 0 if one is missing."""
        entries = np.zeros(self.count, np.uint64)
        self._read_into(entries, 0)  # a file that was cut off leaves zeros
        return entries

    def _entries(self, rows: np.ndarray) -> np.ndarray:
        """Return the entries of ``(n,)`` rows, uint64; 0 where a map is missing."""
        first_row = int(rows.min())
        entries = np.zeros(int(rows.max()) + 1 - first_row, np.uint64)
        self._read_into(entries, first_row * ENTRY_BYTES)
        return entries[rows - first_row]

    def _set_entry(self, row: int, entry: int) -> None:
        """Write the entry of the map of a row; 0 makes it a missing one."""
        self._write_at(np.array([entry], np.uint64), int(row) * ENTRY_BYTES)

    def present(self) -> np.ndarray:
        """Return whether each map is stored, ``(count,)`` bool."""
        return self._all_entries() != 0

    def dataset(
        self, images: Dataset, rows: np.ndarray, labels: list[int]
    ) -> MapDataset:
        """Return the maps of a data set of images, ``(C, H, W)`` each.

        Those that are missing in the file or damaged are computed and written first.

        Args:
            images: items ``(image, ...)``, ``(3, h, w)`` uint8 or normalised floats.
            rows: ``(len(images),)`` int64, number of the map of each image in the
                store, below ``count``.
            labels: class of each item.

        Raises:
            FeatureCacheError: the disk has too little room, or a map does not fit into
                float16.
            BadFeaturesError: a map is not finite or too large.
        """
        self._discard_damaged(rows)
        while len(missing := self._missing_positions(rows)):
            self._check_disk_space(len(missing))  # before anything is computed
            start = time.perf_counter()
            self._fill(Subset(images, missing.tolist()), rows[missing])
            self.seconds += time.perf_counter() - start
            self._discard_damaged(rows)  # other processes may have computed some
        return MapDataset(self, rows, labels)

    def _missing_positions(self, rows: np.ndarray) -> np.ndarray:
        """Return which of ``(n,)`` rows have no map: positions in ``rows``, int64."""
        return np.flatnonzero(~self.present()[rows])

    def _check_disk_space(self, count: int) -> None:
        """Raise FeatureCacheError if the disk has too little room for more maps."""
        needed_bytes = count * self.bytes_per_map
        free_bytes = shutil.disk_usage(self.path.parent).free
        if needed_bytes > free_bytes:
            raise FeatureCacheError(
                f"the feature cache in {self.path.parent} needs "
                f"{readable_size(needed_bytes)} more for {count} images, but "
                f"{readable_size(free_bytes)} are free; choose another folder, keep it "
                "at half precision, or go without it"
            )

    def read(self, row: int) -> Tensor:
        """Read the map of a row from the file, and verify its checksum.

        Args:
            row: number of the map in the store.

        Returns:
            ``(C, H, W)`` float32 or float16.

        Raises:
            FeatureCacheError: it was damaged since ``dataset``.
        """
        values = np.empty(self.shape, self.dtype)
        n_read = self._read_into(values, self._offset(row))  # number of bytes
        if n_read < self.bytes_per_map:  # the file ends before
            raise self._change_error("truncated", row)
        # An entry has the checksum of a map. It is 0 if this process has not verified
        # the map; then the file says.
        expected_entry = self._verified_entries[row]
        if not expected_entry:
            expected_entry = self._entries(np.array([row]))[0]
        if _entry_of_map(values) != expected_entry:
            raise self._change_error("damaged", row)
        return torch.from_numpy(values)

    def _change_error(self, change: str, row: int) -> FeatureCacheError:
        """Return the error for a map that another process truncated or damaged."""
        return FeatureCacheError(
            f"{self.path} was {change} while in use (map {row}); start the same "
            "command again, which computes missing and damaged maps again"
        )

    def _discard_damaged(self, rows: np.ndarray) -> None:
        """Verify the checksums of stored maps; damaged ones count as missing then.

        Maps that this process has verified before are not read again. Warns of damaged
        ones.

        Args:
            rows: ``(n,)`` int64, numbers of the maps in the store.
        """
        values = np.empty(self.shape, self.dtype)  # of one map, read again and again
        entries = self._all_entries()  # checksums; 0 of a map that is missing
        is_stored = entries[rows] != 0
        is_unverified = self._verified_entries[rows] == 0
        n_damaged = 0
        for row in rows[is_stored & is_unverified]:
            self._read_into(values, self._offset(row))
            if _entry_of_map(values) == entries[row]:
                self._verified_entries[row] = entries[row]
            else:
                n_damaged += 1
                self._set_entry(row, 0)  # missing
        if n_damaged:
            self.damaged += n_damaged
            warnings.warn(
                f"{n_damaged} of {len(rows)} maps in {self.path} are damaged; they are "
                "computed again",
                stacklevel=3,
            )

    def _fill(self, images: Dataset, rows: np.ndarray) -> None:
        """Compute the maps of images and write them to the store, in a random order.

        Maps that other processes write meanwhile are left out.

        Args:
            images: items ``(image, ...)``, ``(3, h, w)`` uint8 or normalised floats.
            rows: ``(len(images),)`` int64, numbers of their maps in the store.
        """
        drawn_rows: deque[np.ndarray] = deque()  # of batches that the loader drew
        # A loader draws a seed; with a generator of its own, filling leaves the global
        # RNG state unchanged.
        loader = DataLoader(
            images,
            batch_sampler=self._missing_batches(rows, drawn_rows),
            num_workers=self.workers,
            generator=torch.Generator(),
        )
        with progress_bar(len(rows), "feature cache", show=self.progress) as bar:
            for batch, *_ in loader:
                batch_rows = drawn_rows.popleft()  # batches come in the order drawn
                maps = self._maps_to_store(batch)
                for row, values in zip(batch_rows, maps, strict=True):
                    self._write_map(int(row), np.ascontiguousarray(values))
                self.filled += len(batch_rows)
                bar.update(len(batch_rows))
            bar.total = bar.n  # other processes computed the rest

    def _maps_to_store(self, images: Tensor) -> np.ndarray:
        """Compute the maps of a batch of images, in the type in which they are stored.

        Args:
            images: ``(B, 3, h, w)``.

        Returns:
            ``(B, C, H, W)`` float16, if the store has half precision, or float32.

        Raises:
            FeatureCacheError: a value does not fit into float16.
            BadFeaturesError: a map is not finite or too large.
        """
        extracted = self.model.extract(images.to(self.model.pixel_mean.device)).cpu()
        check_maps(extracted, images)
        maps = extracted.numpy()
        highest = np.abs(maps).max()
        limit = float(np.finfo(self.dtype).max)
        if highest > limit:
            raise FeatureCacheError(
                f"a feature map has a value of {highest:.0f}, but half precision ends "
                f"at {limit:.0f}; keep the cache in single precision"
            )
        return maps.astype(self.dtype)

    def _missing_batches(
        self, rows: np.ndarray, drawn_rows: deque[np.ndarray]
    ) -> Iterator[list[int]]:
        """Yield batches of images whose maps are missing when the batch is drawn.

        Batches come in a random order, so processes that fill one store at the same
        time share the work; the same images make a batch in each.

        Args:
            rows: ``(n,)`` int64, numbers of the maps of all images in the store.
            drawn_rows: a queue to which the numbers of the maps of each batch are
                appended.

        Yields:
            Positions of the images of a batch in ``rows``.
        """
        starts = np.arange(0, len(rows), FILL_BATCH)
        for start in np.random.default_rng().permutation(starts):
            positions = np.arange(start, min(start + FILL_BATCH, len(rows)))
            # An entry is the checksum of a map, 0 where the map is missing.
            missing = positions[self._entries(rows[positions]) == 0]
            if len(missing):
                drawn_rows.append(rows[missing])
                yield missing.tolist()

    def _write_map(self, row: int, values: np.ndarray) -> None:
        """Write the map of a row, unless another process wrote it."""
        # On some devices the same map has other bits in another batch: the first
        # process to write it is right.
        if self._entries(np.array([row]))[0]:
            return
        entry = _entry_of_map(values)
        self._write_at(values, self._offset(row))
        # After the map: a run that is cut off in between leaves a missing map.
        self._set_entry(row, entry)
        self._verified_entries[row] = entry


def _entry_of_map(values: np.ndarray) -> int:
    """Return the entry of a stored map: that it is written, and its checksum."""
    return WRITTEN | zlib.crc32(values.data)


def map_key(model: SplitModel, count: int, key: str, half: bool) -> str:
    """Return the name of a file of stored maps: a hash of all that decides them.

    It is 24 hexadecimal digits of a SHA-256, over weights and layers of F, its runtime
    and precision, device, normalisation and number format. Other runtimes than eager
    torch count with their version. Left out are the version of torch and the CPU, whose
    maps differ in the last digits: a cache that is taken along goes on with the maps it
    has.

    Args:
        model: computes the maps.
        count: number of maps.
        key: text that stands for the images.
        half: whether maps are stored as float16.
    """
    network = model.feature_extractor
    # Layers and code of traced parts, besides weights, whose hash does not cover layers
    # without any.
    traced_code = [
        module.code for module in network.modules() if isinstance(module, GraphModule)
    ]
    # Of other runtimes the version counts, too.
    runtime = "eager" if model.runtime.name == "torch" else str(model.runtime)
    shape = (count, *model.map_shape)
    mean = model.pixel_mean.flatten().tolist()
    std = model.pixel_std.flatten().tolist()
    device = model.pixel_mean.device.type
    lines = [
        weights_hash(network),
        repr(network),
        *traced_code,
        runtime,
        model.precision,
        f"{device} {shape} {[mean, std]} {half}",
        key,
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:24]


def files_key(paths: Iterable[str | os.PathLike]) -> str:
    """Return a SHA-256 that changes when one of some files does, without reading them.

    It covers names below their common folder, sizes and modification times, in the
    order of the files.

    Args:
        paths: of the files, which have to exist.
    """
    files = [Path(path) for path in paths]
    common_folder = os.path.commonpath(files) if files else ""
    digest = hashlib.sha256()
    for path in files:
        file_status = path.stat()
        name = os.path.relpath(path, common_folder)
        line = f"{name}|{file_status.st_size}|{file_status.st_mtime_ns}\n"
        digest.update(line.encode())
    return digest.hexdigest()


USUAL_CAPACITY = 512  # maps that a FeatureMemo keeps


class FeatureMemo:
    """Least-recently-used cache of the feature maps of ``uint8`` images.

    They are looked up by the content of the image. A ``MapStore`` holds maps of the
    stream's images only; this one serves the images of a replay buffer where runs are
    compared, and is not part of a method's memory. On a CPU an image passes F alone, so
    that its map does not depend on its batch. It keeps ``capacity`` maps of ``4 * C * H
    * W`` bytes (346,112 for 512x13x13).
    """

    def __init__(self, capacity: int = USUAL_CAPACITY):
        self.capacity = capacity
        self._maps: OrderedDict[bytes, Tensor] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": OrderedDict()}

    def clear(self) -> None:
        """Forget all maps."""
        self._maps.clear()

    def maps(self, images: Tensor, extract: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the maps of images, computing those that are not cached.

        Images are identified by their content. The least recently used maps beyond the
        capacity are dropped.

        Args:
            images: ``(B, 3, h, w)`` ``uint8``.
            extract: function of images that computes maps, the feature extractor F.

        Returns:
            ``(B, C, H, W)``, channels-last in memory.
        """
        pixels = images.cpu().contiguous().numpy()
        keys = [_content_key(image) for image in pixels]
        missing: dict[bytes, int] = {}  # key -> first image of the batch that has it
        for position, key in enumerate(keys):
            if key not in self._maps:
                missing.setdefault(key, position)
        if missing:
            positions = list(missing.values())
            self._compute(keys, positions, images, extract)
        for key in keys:
            self._maps.move_to_end(key)  # the least recently used maps come first
        maps = torch.stack([self._maps[key] for key in keys])
        while len(self._maps) > self.capacity:
            self._maps.popitem(last=False)
        return maps.contiguous(memory_format=torch.channels_last)

    def _compute(
        self,
        keys: list[bytes],
        positions: list[int],
        images: Tensor,
        extract: Callable[[Tensor], Tensor],
    ) -> None:
        """Compute the maps of images of a batch, and put them into the cache.

        Args:
            keys: of the content of all images of the batch, by which maps are cached.
            positions: of the images in the batch whose maps are missing.
            images: ``(B, 3, h, w)`` ``uint8``, the whole batch.
            extract: function of images that computes maps, the feature extractor F.
        """
        index = torch.tensor(positions, dtype=torch.int64)
        # One at a time on a CPU: its map needs no copy.
        batch_size = 1 if images.device.type == "cpu" else len(index)
        for batch in index.split(batch_size):
            for position, feature_map in zip(batch.tolist(), extract(images[batch])):
                if len(batch) > 1:  # a view of a batch would keep all its maps
                    feature_map = feature_map.clone()
                self._maps[keys[position]] = feature_map


def _content_key(image: np.ndarray) -> bytes:
    """Return 16 bytes that stand for the pixels of an image in a ``FeatureMemo``."""
    return hashlib.blake2b(image.data, digest_size=16).digest()
