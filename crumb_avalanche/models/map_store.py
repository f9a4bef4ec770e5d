"""Feature maps F(x) that are kept, as F is frozen: those of a stream in a file, those of a replay buffer in memory."""

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
# Upper half of a map's entry; the lower half is its CRC-32. The entry of a missing map
# is 0.
WRITTEN = 0x4D415000 << 32
ENTRY_BYTES = 8


class FeatureCacheError(ValueError):
    """Feature maps cannot be stored or read."""


class MapDataset(Dataset):
    """Data set of ``(map, label)`` pairs of some rows of a store."""

    def __init__(self, store: "MapStore", rows: np.ndarray, labels: list[int]):
        self.store, self.rows, self.targets = store, rows, labels

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.store.read(self.rows[index]), self.targets[index]


class MapStore:
    """Store the maps of ``count`` images in one file: an entry with a checksum of each map, and the maps.

    The file takes ``4 * C * H * W + 8`` bytes per map (346,120 for 512x13x13), half of
    that at half precision; it is sparse until filled. Its name is a hash of everything
    that decides F(x); see ``map_key``. Maps are stored before the feature scale.
    Several processes may fill one store at the same time. Every reading verifies a
    checksum: ``dataset`` computes a damaged map again, with a warning; later readings
    raise.

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
        self.model, self.workers, self.progress = model, workers, progress
        self.path = Path(folder) / f"{map_key(model, count, key, half)}.maps"
        self.count = count
        self.shape = tuple(model.map_shape)
        self.dtype = np.dtype(np.float16 if half else np.float32)
        self.bytes_per_map = math.prod(self.shape) * self.dtype.itemsize
        self.seconds = 0.0
        self.filled = self.damaged = 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._writing():
            with open(self.path, "ab") as file:  # new files and lost ends are zeros
                file.truncate(count * (ENTRY_BYTES + self.bytes_per_map))
            self._file: Any = open(self.path, "r+b", buffering=0)  # noqa: SIM115 - close() does
        self._verified = np.zeros(
            count, np.uint64
        )  # entries of the maps that this process has verified, else 0

    def __enter__(self) -> "MapStore":
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def __getstate__(self):  # for loader processes that are not forked; they only read
        return {**self.__dict__, "model": None, "_file": None}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115 - close() does

    def close(self) -> None:
        """Close the file. No map can be read afterwards."""
        self._file.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Raise ``FeatureCacheError`` where the file cannot be written."""
        try:
            yield
        except OSError as error:
            raise FeatureCacheError(
                f"{self.path} cannot be written ({error.strerror or error}); make room there, or choose another "
                "--feature-cache; the maps written so far are kept"
            ) from error

    def _place(self, row: int) -> int:
        """Return where the map of a row begins in the file."""
        return self.count * ENTRY_BYTES + int(row) * self.bytes_per_map

    def _read_into(self, values: np.ndarray, place: int) -> int:
        """Fill an array from the file; return the number of bytes read, fewer at its end."""
        if hasattr(
            os, "preadv"
        ):  # leaves alone the position in the file, which forked loader processes share
            return os.preadv(self._file.fileno(), [values.data], place)
        self._file.seek(place)
        return self._file.readinto(values.data)

    def _write_at(self, values: np.ndarray, place: int) -> None:
        """Write a contiguous array; after an error, a part may be written."""
        rest = values.data.cast("B")
        with self._writing():
            self._file.seek(place)
            while rest:  # a nearly full disk takes a part first
                rest = rest[self._file.write(rest) :]

    def _entries(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the entries of some rows, default of all; 0 where a map is missing, as beyond the file's end."""
        first, end = (
            (0, self.count) if rows is None else (int(rows.min()), int(rows.max()) + 1)
        )
        span = np.zeros(end - first, np.uint64)
        self._read_into(span, first * ENTRY_BYTES)
        return span if rows is None else span[rows - first]

    def _set_entry(self, row: int, entry: int) -> None:
        self._write_at(np.array([entry], np.uint64), int(row) * ENTRY_BYTES)

    def present(self) -> np.ndarray:
        """Return whether each map is stored, ``(count,)`` bool."""
        return self._entries() != 0

    def dataset(
        self, images: Dataset, rows: np.ndarray, labels: list[int]
    ) -> MapDataset:
        """Return the maps of a data set of images, ``(C, H, W)``; computes those that are missing or damaged.

        Args:
            images: items ``(image, ...)``, images as for ``SplitModel.extract``.
            rows: ``(len(images),)`` int64 row numbers, below ``count``.
            labels: of each item.

        Raises:
            FeatureCacheError: the disk has too little room, or a map does not fit into
                float16.
            BadFeaturesError: a map is not finite or too large.
        """
        self._verify(rows)
        while len(missing := np.flatnonzero(~self.present()[rows])):
            needed, free = (
                len(missing) * self.bytes_per_map,
                shutil.disk_usage(self.path.parent).free,
            )
            if needed > free:  # said before anything is computed
                raise FeatureCacheError(
                    f"the feature cache in {self.path.parent} needs {readable_size(needed)} more for {len(missing)} "
                    f"images, but {readable_size(free)} are free; choose another folder, keep it at half precision, or go "
                    "without it"
                )
            start = time.perf_counter()
            self._fill(Subset(images, missing.tolist()), rows[missing])
            self.seconds += time.perf_counter() - start
            self._verify(rows)  # other processes may have computed some
        return MapDataset(self, rows, labels)

    def read(self, row: int) -> Tensor:
        """Read and verify the map of a row, ``(C, H, W)``; FeatureCacheError if it was damaged since ``dataset``."""
        values = np.empty(self.shape, self.dtype)
        read = self._read_into(values, self._place(row))
        if read < self.bytes_per_map or _entry(values) != (
            self._verified[row] or self._entries(np.array([row]))[0]
        ):
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
            self._read_into(values, self._place(row))
            if _entry(values) == entries[row]:
                self._verified[row] = entries[row]
            else:
                damaged += 1
                self._set_entry(row, 0)
        if damaged:
            self.damaged += damaged
            warnings.warn(
                f"{damaged} of {len(rows)} maps in {self.path} are damaged; they are computed again",
                stacklevel=3,
            )

    def _fill(self, images: Dataset, rows: np.ndarray) -> None:
        taken: deque[np.ndarray] = (
            deque()
        )  # rows of the batches that the loader has drawn
        # A loader draws a seed; with a generator of its own, filling leaves the global
        # RNG state unchanged.
        loader = DataLoader(
            images,
            batch_sampler=self._batches(rows, taken),
            num_workers=self.workers,
            generator=torch.Generator(),
        )
        device, largest = self.model.pixel_mean.device, np.finfo(self.dtype).max
        with progress_bar(len(rows), "feature cache", show=self.progress) as bar:
            for image, *_ in loader:
                batch = taken.popleft()
                extracted = self.model.extract(image.to(device)).cpu()
                check_maps(extracted, image)
                maps = extracted.numpy()
                if np.abs(maps).max() > largest:
                    raise FeatureCacheError(
                        f"a feature map has a value of {np.abs(maps).max():.0f}, but half precision ends at "
                        f"{largest:.0f}; keep the cache in single precision"
                    )
                for row, values in zip(batch, maps.astype(self.dtype), strict=True):
                    self._write(int(row), np.ascontiguousarray(values))
                self.filled += len(batch)
                bar.update(len(batch))
            bar.total = bar.n  # other processes computed the rest

    def _batches(
        self, rows: np.ndarray, taken: deque[np.ndarray]
    ) -> Iterator[list[int]]:
        """Yield the places of the rows whose maps are missing at the time of the batch, in a random order of batches.

        So processes that fill one store at the same time share the work; the same
        images make a batch in each.
        """
        for start in np.random.default_rng().permutation(
            np.arange(0, len(rows), FILL_BATCH)
        ):
            places = np.arange(start, min(start + FILL_BATCH, len(rows)))
            places = places[self._entries(rows[places]) == 0]
            if len(places):
                taken.append(rows[places])
                yield places.tolist()

    def _write(self, row: int, values: np.ndarray) -> None:
        # On some devices the same map has other bits in another batch: the first
        # process to write it is right.
        if self._entries(np.array([row]))[0]:
            return
        entry = _entry(values)
        self._write_at(values, self._place(row))
        self._set_entry(
            row, entry
        )  # after the map: a run that is cut off in between leaves a missing map
        self._verified[row] = entry


def _entry(values: np.ndarray) -> int:
    """Entry of a map in the file."""
    return WRITTEN | zlib.crc32(values)


def map_key(model: SplitModel, count: int, key: str, half: bool) -> str:
    """Return 24 hexadecimal digits of a SHA-256 over everything that decides the maps of ``count`` images."""
    network = model.feature_extractor
    # Layers and code of traced parts, besides weights, whose hash does not cover layers
    # without any.
    parts = [weights_hash(network), repr(network)]
    parts += [part.code for part in network.modules() if isinstance(part, GraphModule)]
    parts += [
        "eager" if model.runtime.name == "torch" else str(model.runtime),
        model.precision,
    ]
    normalisation = [
        one.flatten().tolist() for one in (model.pixel_mean, model.pixel_std)
    ]
    parts += [
        f"{model.pixel_mean.device.type} {(count, *model.map_shape)} {normalisation} {half}",
        key,
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def files_key(paths: Iterable[str | os.PathLike]) -> str:
    """Return a SHA-256 over names below their common folder, sizes and modification times of files, in their order."""
    files = [Path(path) for path in paths]
    common = os.path.commonpath(files) if files else ""
    digest = hashlib.sha256()
    for path in files:
        state = path.stat()
        digest.update(
            f"{os.path.relpath(path, common)}|{state.st_size}|{state.st_mtime_ns}\n".encode()
        )
    return digest.hexdigest()


USUAL_CAPACITY = 512


class FeatureMemo:
    """Least-recently-used cache of the feature maps of ``uint8`` images, looked up by the images' content.

    A ``MapStore`` holds maps of the stream's images only; this one serves the images of
    a replay buffer where runs are compared, and is not part of a method's memory. On a
    CPU an image passes F alone, so that its map does not depend on its batch. It keeps
    ``capacity`` maps of ``4 * C * H * W`` bytes (346,112 for 512x13x13).

    Attributes:
        found: images whose maps were cached.
        computed: images that passed F.
    """

    def __init__(self, capacity: int = USUAL_CAPACITY):
        self.capacity = capacity
        self.found = self.computed = 0
        self._maps: OrderedDict[bytes, Tensor] = OrderedDict()

    def __getstate__(self):
        return {**self.__dict__, "_maps": OrderedDict()}

    def clear(self) -> None:
        """Forget all maps."""
        self._maps.clear()

    def maps(self, images: Tensor, extract: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the maps of ``(B, 3, h, w)`` ``uint8`` images, ``(B, C, H, W)``; ``extract`` is F."""
        pixels = images.cpu().contiguous().numpy()
        keys = [hashlib.blake2b(one.data, digest_size=16).digest() for one in pixels]
        missing = {
            key: place
            for place, key in reversed([*enumerate(keys)])
            if key not in self._maps
        }
        self.computed += len(missing)
        self.found += len(keys) - len(missing)
        places = torch.tensor(sorted(missing.values()), dtype=torch.int64)
        for some in (
            places.split(1 if images.device.type == "cpu" else len(places))
            if missing
            else ()
        ):
            for place, one in zip(some.tolist(), extract(images[some])):
                self._maps[keys[place]] = (
                    one if len(some) == 1 else one.clone()
                )  # a view would keep all the others
        for key in keys:
            self._maps.move_to_end(key)
        found = torch.stack([self._maps[key] for key in keys])
        while len(self._maps) > self.capacity:
            self._maps.popitem(last=False)
        return found.contiguous(memory_format=torch.channels_last)
