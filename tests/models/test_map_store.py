"""Stored maps are F's own, each is computed once, and damaged ones are computed again."""

import errno
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchvision import models

from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.map_store import FeatureCacheError, MapStore
from crumb_avalanche.models.split_at import split_at
from crumb_avalanche.models.weights import weights_hash

ROWS = np.array([4, 0, 9, 2, 7, 5])  # of a table of ten images


@pytest.fixture
def images(pixels):
    return TensorDataset(pixels, torch.arange(6))


def store_of(folder, model, key="toy", **arguments):
    return MapStore(folder, model, 10, key, progress=False, **arguments)


def stacked(maps):
    return torch.stack([values for values, _ in maps])


def overwrite_row(path, row, start=bytes(8)):
    """Overwrite the start of a row of ten."""
    with open(path, "r+b") as file:
        file.seek(row * (path.stat().st_size // 10))
        file.write(start)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_maps_are_what_the_model_extracts(tmp_path, model, pixels, images):
    model.fold_feature_scale(model.features(pixels))
    store = store_of(tmp_path, model)
    maps = store.dataset(images, ROWS, [3, 1, 2, 0, 1, 3])
    assert [label for _, label in maps] == [3, 1, 2, 0, 1, 3] == maps.targets
    assert torch.equal(stacked(maps), model.extract(pixels))  # before the feature scale
    assert store.filled == 6 and store.seconds > 0
    assert store.present().tolist() == [True, False, True, False, True, True, False, True, False, True]
    assert store.path.stat().st_size == 10 * 4 * 8 * 4 * 4


def test_only_what_is_missing_is_computed(tmp_path, model, pixels, images):
    store = store_of(tmp_path, model)
    store.dataset(TensorDataset(pixels[:2]), ROWS[:2], [0] * 2)
    store.close()
    overwrite_row(store.path.with_suffix(".crc32"), 4)  # as a run leaves it that was cut off while writing row 4
    overwrite_row(store.path, 4, b"half a map")
    store = store_of(tmp_path, model)
    maps = store.dataset(images, ROWS, [0] * 6)
    assert store.filled == 5 and store.damaged == 0
    assert torch.equal(stacked(maps), model.extract(pixels))


def test_nothing_is_computed_twice(tmp_path, model, pixels, images, monkeypatch):
    wanted = model.extract(pixels)
    store_of(tmp_path, model).dataset(images, ROWS, [0] * 6)
    monkeypatch.setattr(model, "extract", lambda batch: pytest.fail("F ran again"))
    again = store_of(tmp_path, model)  # another object, as in another run
    maps = again.dataset(images, ROWS, [0] * 6)
    assert again.filled == 0 and again.seconds == 0
    assert torch.equal(stacked(maps), wanted)


class Watched(TensorDataset):
    """Reports each item that is read."""

    def __init__(self, pixels, report):
        super().__init__(pixels)
        self.report = report

    def __getitem__(self, index):
        self.report(index)
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_maps_that_another_process_computed_meanwhile_are_skipped(
    tmp_path, model, pixels, images, monkeypatch, workers
):
    monkeypatch.setattr("crumb_avalanche.models.map_store.FILL_BATCH", 2)
    other = store_of(tmp_path, model)  # of another process: they share the file alone
    extract, batches = model.extract, []

    def shared(batch):
        batches.append(len(batch))
        if len(batches) == 2:
            monkeypatch.setattr(model, "extract", extract)
            other.dataset(images, ROWS, [0] * 6)
        return extract(batch)

    monkeypatch.setattr(model, "extract", shared)
    ours = store_of(tmp_path, model, workers=workers)
    maps = ours.dataset(images, ROWS, [0] * 6)
    # Of three batches the second is computed by both; what loader processes had read already is computed once more.
    assert batches == [2, 2] and other.filled == 4
    assert ours.filled == (4 if workers == 0 else 6)
    assert torch.equal(stacked(maps), extract(pixels))


def test_processes_fill_in_different_orders_and_leave_the_rng_state(tmp_path, model, monkeypatch):
    monkeypatch.setattr("crumb_avalanche.models.map_store.FILL_BATCH", 1)
    pixels = torch.zeros(60, 3, 16, 16)
    orders = []
    torch.manual_seed(0)
    expected, state = np.random.get_state()[1].tolist(), torch.get_rng_state()
    for name in ("one", "another"):
        read = []
        store = MapStore(tmp_path / name, model, 60, "toy", progress=False)
        store.dataset(Watched(pixels, read.append), np.arange(60), [0] * 60)
        assert sorted(read) == list(range(60))
        orders.append(read)
    assert orders[0] != orders[1]
    assert np.random.get_state()[1].tolist() == expected and torch.equal(torch.get_rng_state(), state)


def test_what_decides_the_maps_decides_the_file(tmp_path, model, make_model):
    store_of(tmp_path, model)
    first = names(tmp_path)
    assert len(first) == 2 and {name.split(".")[1] for name in first} == {"maps", "crc32"}
    # Plastic layers, codebook and feature scale play no part in F(x).
    model.reset_head(9)
    model.feature_scale.fill_(2.0)
    model.codebook.blocks.data.zero_()
    store_of(tmp_path, model)
    assert names(tmp_path) == first
    for change in (
        lambda: store_of(tmp_path, make_model(seed=1)),
        lambda: store_of(tmp_path, model, key="other images"),
        lambda: store_of(tmp_path, model.set_precision("bf16")),
        lambda: store_of(tmp_path, model.compile()),  # nothing is compiled before it is called
    ):
        before = len(names(tmp_path))
        change()
        assert len(names(tmp_path)) == before + 2


@pytest.mark.parametrize("cut", [10, 11, "layer1.1.add", "layer1.1.relu_1"])  # layers without weights follow
def test_another_cut_is_another_file(tmp_path, cut):
    def made(cut):
        torch.manual_seed(0)
        if isinstance(cut, int):
            return split_backbone("small_cnn", weights=None, n_classes=2, image_size=32, cut_layer=cut, codebook=None)
        return split_at(models.resnet18(weights=None), cut, n_classes=2, image_size=32)

    other = {10: 11, 11: 12, "layer1.1.add": "layer1.1.relu_1", "layer1.1.relu_1": "layer1.1.add"}[cut]
    assert weights_hash(made(cut).feature_extractor) == weights_hash(made(other).feature_extractor)
    store_of(tmp_path, made(cut))
    store_of(tmp_path, made(cut))
    assert len(names(tmp_path)) == 2
    store_of(tmp_path, made(other))
    assert len(names(tmp_path)) == 4


@pytest.mark.parametrize("left", [None, 0, 5000])
def test_maps_that_were_removed_or_truncated_are_computed_again(tmp_path, model, pixels, images, left):
    store_of(tmp_path, model).dataset(images, ROWS, [0] * 6)
    (maps,) = tmp_path.glob("*.maps")
    if left is None:
        maps.unlink()
    else:
        maps.write_bytes(maps.read_bytes()[:left])
    again = store_of(tmp_path, model)
    found = again.dataset(images, ROWS, [0] * 6)
    assert again.filled == 6
    torch.testing.assert_close(stacked(found), model.extract(pixels))


def test_a_map_is_a_copy(tmp_path, model, images):
    maps = store_of(tmp_path, model).dataset(images, ROWS, [0] * 6)
    maps[0][0].fill_(99)
    assert maps[0][0].max() < 99


def test_half_precision_takes_half_the_bytes_in_another_file(tmp_path, model, pixels, images):
    store_of(tmp_path, model)
    single = names(tmp_path)
    half = store_of(tmp_path, model, half=True)
    maps = half.dataset(images, ROWS, [0] * 6)
    wanted = model.extract(pixels).half()
    kept = stacked(maps)
    assert kept.dtype == torch.float16 and torch.equal(kept, wanted)
    scaled = model.features(kept)
    assert scaled.dtype == torch.float32 and torch.equal(scaled, wanted.float() * model.feature_scale)
    assert scaled.is_contiguous(memory_format=torch.channels_last)
    assert half.path.stat().st_size == 10 * 2 * 8 * 4 * 4 and set(single) < set(names(tmp_path))


def test_a_map_too_large_for_half_precision_is_refused(tmp_path, model, images, monkeypatch):
    monkeypatch.setattr(model, "extract", lambda batch: torch.full((len(batch), 8, 4, 4), 70_000.0))
    store = store_of(tmp_path, model, half=True)
    with pytest.raises(FeatureCacheError, match="has a value of 70000, but half precision ends at 65504; keep"):
        store.dataset(images, ROWS, [0] * 6)
    assert not store.present().any()
    assert store_of(tmp_path, model).dataset(images, ROWS, [0] * 6)[0][0].max() == 70_000


def test_a_full_disk_is_reported_before_anything_is_computed(tmp_path, model, images, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    monkeypatch.setattr(model, "extract", lambda batch: pytest.fail("F ran"))
    # 6 maps of 8 x 4 x 4 numbers of 4 bytes
    with pytest.raises(FeatureCacheError, match=r"needs 3.07 kB more for 6 images, but 1 kB are free; choose"):
        store_of(tmp_path, model).dataset(images, ROWS, [0] * 6)
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=6 * 8 * 4 * 4 * 2))
    assert len(store_of(tmp_path, model, half=True).dataset(images, ROWS, [0] * 6)) == 6


def flip(path, place, bit=0):
    """Flip one bit of a file."""
    damaged = bytearray(path.read_bytes())
    damaged[place] ^= 1 << bit
    path.write_bytes(damaged)


@pytest.mark.parametrize("suffix", ["maps", "crc32"])
def test_damaged_maps_are_computed_again_with_a_warning(tmp_path, model, images, suffix):
    wanted = stacked(store_of(tmp_path, model).dataset(images, ROWS, [0] * 6))
    (path,) = tmp_path.glob(f"*.{suffix}")
    bytes_per_row = path.stat().st_size // 10
    flip(path, 4 * bytes_per_row)
    flip(path, 7 * bytes_per_row)
    store = store_of(tmp_path, model)
    with pytest.warns(UserWarning, match=r"2 of 6 maps in .*\.maps are damaged; they are computed again"):
        assert torch.equal(stacked(store.dataset(images, ROWS, [0] * 6)), wanted)
    assert store.damaged == store.filled == 2
    again = store_of(tmp_path, model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(stacked(again.dataset(images, ROWS, [0] * 6)), wanted)
    assert again.filled == 0


def test_no_flipped_bit_is_used_silently(tmp_path, model, images):
    wanted = stacked(store_of(tmp_path / "whole", model).dataset(images, ROWS, [0] * 6))
    draws = random.Random(0)
    found = 0
    for number in range(200):
        shutil.copytree(tmp_path / "whole", tmp_path / "flipped")
        (path,) = (tmp_path / "flipped").glob("*.maps" if number % 2 else "*.crc32")
        place = draws.randrange(path.stat().st_size)
        flip(path, place, draws.randrange(8))
        filled = place // (path.stat().st_size // 10) in ROWS
        found += filled
        with store_of(tmp_path / "flipped", model) as store, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert torch.equal(stacked(store.dataset(images, ROWS, [0] * 6)), wanted), place
        assert (len(caught), store.damaged) == (filled, filled), place
        shutil.rmtree(tmp_path / "flipped")
    assert 80 < found < 160


def test_a_map_is_verified_once_a_process(tmp_path, model, images, monkeypatch):
    store_of(tmp_path, model).dataset(images, ROWS, [0] * 6)
    store, rows = store_of(tmp_path, model), []
    read = store._maps.read_into
    monkeypatch.setattr(store._maps, "read_into", lambda values, row: rows.append(int(row)) or read(values, row))
    for _ in range(3):
        store.dataset(images, ROWS, [0] * 6)
    assert rows == ROWS.tolist()


def older(folder, done=ROWS):
    """Turn a store into one of version 0.1: a byte for each map that is there, and no checksums."""
    (path,) = folder.glob("*.crc32")
    path.unlink()
    there = np.zeros(10, np.uint8)
    there[done] = 1
    there.tofile(path.with_suffix(".done"))


def test_maps_of_version_0_1_are_used_with_one_warning(tmp_path, model, pixels, images):
    wanted = stacked(store_of(tmp_path, model).dataset(images, ROWS, [0] * 6))
    older(tmp_path, done=ROWS[:4])
    store = store_of(tmp_path, model)
    with pytest.warns(UserWarning, match=r"written by version 0\.1, without checksums.*not verified") as caught:
        for rows in (ROWS[:2], ROWS[:3], ROWS):
            maps = store.dataset(TensorDataset(pixels[: len(rows)]), rows, [0] * len(rows))
    assert len(caught) == 1 and store.filled == 2  # the last two were missing
    assert torch.equal(stacked(maps), wanted)
    flip(store.path, 9 * store.bytes_per_map)  # row 9 is an older one
    again = store_of(tmp_path, model)
    with pytest.warns(UserWarning, match="not verified"):
        maps = again.dataset(images, ROWS, [0] * 6)
    assert again.filled == 0 and not torch.equal(stacked(maps), wanted)


def test_maps_of_version_0_1_that_were_removed_are_computed_again(tmp_path, model, pixels, images):
    store = store_of(tmp_path, model)
    wanted = stacked(store.dataset(images, ROWS, [0] * 6))
    store.close()
    older(tmp_path)
    store.path.unlink()  # as the warning says
    with store_of(tmp_path, model) as some:
        some.dataset(TensorDataset(pixels[:2]), ROWS[:2], [0] * 2)
    again = store_of(tmp_path, model)  # the file has its size now, but four maps are missing
    assert torch.equal(stacked(again.dataset(images, ROWS, [0] * 6)), wanted)
    assert again.filled == 4


@pytest.mark.parametrize("workers", [0, 1])
def test_loader_processes_read_maps(tmp_path, model, images, workers):
    maps = store_of(tmp_path, model).dataset(images, ROWS, [0] * 6)
    loader = DataLoader(maps, batch_size=4, num_workers=workers)
    assert torch.equal(torch.cat([values for values, _ in loader]), stacked(maps))
    assert torch.equal(stacked(pickle.loads(pickle.dumps(maps))), stacked(maps))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
def test_a_closed_store_holds_no_file(tmp_path, model, images):
    with store_of(tmp_path, model) as store:
        maps = store.dataset(images, ROWS, [0] * 6)
    with pytest.raises(ValueError, match="closed file"):
        maps[0]
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_a_file_that_was_truncated_in_use_is_an_error(tmp_path, model, images):
    store = store_of(tmp_path, model)
    maps = store.dataset(images, ROWS, [0] * 6)
    store.path.write_bytes(b"")
    with pytest.raises(FeatureCacheError, match="was truncated while in use"):
        maps[0]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_map_that_is_damaged_in_use_is_an_error_and_computed_again_by_the_next_process(
    tmp_path, model, images, workers
):
    with store_of(tmp_path, model) as store:
        maps = store.dataset(images, ROWS, [0] * 6)
        wanted = stacked(maps)
        overwrite_row(store.path, 9, bytes(store.bytes_per_map))  # ROWS[2]
        overwrite_row(store.path.with_suffix(".crc32"), 9)  # checked against what this process verified
        assert torch.equal(maps[1][0], wanted[1])
        with pytest.raises(FeatureCacheError, match=r"damaged while in use.*map 9.*start the same command again"):
            list(DataLoader(maps, batch_size=2, num_workers=workers))
        with pytest.raises(FeatureCacheError, match="damaged while in use"):
            pickle.loads(pickle.dumps(maps))[2]
    assert torch.equal(stacked(store_of(tmp_path, model).dataset(images, ROWS, [0] * 6)), wanted)


@pytest.mark.parametrize("suffix", ["maps", "crc32"])
def test_zeroed_pages_change_nothing(tmp_path, model, images, suffix):
    with store_of(tmp_path, model) as store:
        wanted = stacked(store.dataset(images, ROWS, [0] * 6))
    path = store.path.with_suffix(f".{suffix}")
    path.write_bytes(bytes(path.stat().st_size))
    with store_of(tmp_path, model) as again, warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert torch.equal(stacked(again.dataset(images, ROWS, [0] * 6)), wanted)
    # Entries of zeros say that maps are missing, not that they are damaged.
    assert again.filled == 6 and again.damaged == (6 if suffix == "maps" else 0)


FILL_A_SMALL_DISK = """
mount -t tmpfs -o size=128k none "$1" || exit 77
[ "$2" = 0 ] || head -c 1M /dev/zero > "$1/other" 2> /dev/null
exec "$3" -c '
import shutil, sys
from types import SimpleNamespace
import numpy, torch
from small_models import make_model
from crumb_avalanche.models.map_store import FeatureCacheError, MapStore
shutil.disk_usage = lambda folder: SimpleNamespace(free=10**12)  # another process takes the room afterwards
try:
    with MapStore(sys.argv[1], make_model(), 4000, "toy", progress=False) as store:
        store.dataset(torch.utils.data.TensorDataset(torch.zeros(4000, 3, 16, 16)), numpy.arange(4000), [0] * 4000)
except FeatureCacheError as error:
    print(store.filled, error)
' "$1"
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("unshare"), reason="needs Linux and unshare")
@pytest.mark.parametrize("full", [0, 1])
def test_a_disk_that_fills_up_meanwhile_is_an_error(tmp_path, full):
    paths = os.pathsep.join([str(Path(__file__).parents[1] / "helpers"), os.environ.get("PYTHONPATH", "")])
    command = ["unshare", "-rm", "sh", "-c", FILL_A_SMALL_DISK, "sh", str(tmp_path), str(full), sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}, check=False)
    if done.returncode in (1, 77) and "unshare" in done.stderr + "mount" * (done.returncode == 77):
        pytest.skip("this system refuses private mounts")
    assert done.returncode == 0, done.stderr
    assert re.search(r"cannot be written \(No space left on device\); make room", done.stdout)


@pytest.mark.parametrize("room", [0, 300, 1500])  # bytes; a map takes 512
def test_a_write_that_fails_is_an_error_and_leaves_a_missing_map(tmp_path, model, images, monkeypatch, room):
    store = store_of(tmp_path, model)

    class Full:
        """A file on a disk with some room, which takes a part of the last write."""

        left = room

        def seek(self, place):
            return file.seek(place)

        def write(self, data):
            if not self.left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written = file.write(data[: self.left])
            self.left -= written
            return written

    file = store._maps._file
    monkeypatch.setattr(store._maps, "_file", Full())
    with pytest.raises(FeatureCacheError, match=r"cannot be written \(No space left on device\); make room"):
        store.dataset(images, ROWS, [0] * 6)
    assert store.present().sum() == room // store.bytes_per_map
