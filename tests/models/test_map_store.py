"""Stored maps are F's own, and each is computed once."""

import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from stored_maps import ROWS, overwrite, stacked, store_of
from torch.utils.data import DataLoader, TensorDataset
from torchvision import models

from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.map_store import FeatureCacheError, MapStore
from crumb_avalanche.models.split_at import split_at
from crumb_avalanche.models.weights import weights_hash


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
    assert store.path.stat().st_size == 10 * (8 + 4 * 8 * 4 * 4)


def test_only_what_is_missing_is_computed(tmp_path, model, pixels, images):
    store = store_of(tmp_path, model)
    store.dataset(TensorDataset(pixels[:2]), ROWS[:2], [0] * 2)
    store.close()
    overwrite(store, 4, bytes(8), entry=True)  # as a run leaves it that was cut off while writing row 4
    overwrite(store, 4, b"half a map")
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
    assert len(first) == 1
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
        assert len(names(tmp_path)) == before + 1


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
    assert len(names(tmp_path)) == 1
    store_of(tmp_path, made(other))
    assert len(names(tmp_path)) == 2


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
    assert half.path.stat().st_size == 10 * (8 + 2 * 8 * 4 * 4) and set(single) < set(names(tmp_path))


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


def test_a_map_is_verified_once_a_process(tmp_path, model, images, monkeypatch):
    store_of(tmp_path, model).dataset(images, ROWS, [0] * 6)
    store, rows = store_of(tmp_path, model), []
    read = store._read_into
    first = 10 * 8
    monkeypatch.setattr(store, "_read_into", lambda values, place: rows.append(place) or read(values, place))
    for _ in range(3):
        store.dataset(images, ROWS, [0] * 6)
    assert [place for place in rows if place >= first] == [first + row * 512 for row in ROWS.tolist()]


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
