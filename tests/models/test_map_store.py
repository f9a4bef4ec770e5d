"""Stored maps are F's own, each is computed once, and what is damaged is computed again or an error."""

import errno
import os
import pickle
import random
import shutil
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchvision import models

from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.map_store import FeatureCacheError, FeatureMemo, MapStore
from crumb_avalanche.models.split_at import split_at
from crumb_avalanche.models.weights import weights_hash

ROWS = np.array([4, 0, 9, 2, 7, 5])  # of a table of ten images
HEAD, MAP = 80, 512  # bytes of all entries, and of a map


def store_of(folder, model, key="toy", **arguments):
    return MapStore(folder, model, 10, key, progress=False, **arguments)


def stacked(maps):
    return torch.stack([values for values, _ in maps])


@pytest.fixture
def images(pixels):
    """The six images of ``pixels``, numbered."""
    return TensorDataset(pixels, torch.arange(6))


@pytest.fixture
def filled(tmp_path, model, images):
    """A closed store of all six maps, and these maps."""
    with store_of(tmp_path, model) as store:
        return store, stacked(store.dataset(images, ROWS, [0] * 6))


@pytest.mark.parametrize("half", [False, True])
def test_maps_are_what_the_model_extracts(tmp_path, model, pixels, images, half):
    model.fold_feature_scale(model.features(pixels))
    wanted = model.extract(pixels)  # before the feature scale
    wanted = wanted.half() if half else wanted
    store = store_of(tmp_path, model, half=half)
    maps = store.dataset(images, ROWS, [3, 1, 2, 0, 1, 3])
    assert [label for _, label in maps] == [3, 1, 2, 0, 1, 3] == maps.targets
    assert stacked(maps).dtype == wanted.dtype and torch.equal(stacked(maps), wanted)
    scaled = model.features(stacked(maps))
    assert torch.equal(scaled, wanted.float() * model.feature_scale)
    assert scaled.is_contiguous(memory_format=torch.channels_last)
    assert store.filled == 6 and store.seconds > 0
    assert store.present().tolist() == [True, False, True, False, True, True, False, True, False, True]
    assert store.path.stat().st_size == HEAD + 10 * MAP // (1 + half)
    loader = DataLoader(maps, batch_size=4, num_workers=1)
    assert torch.equal(torch.cat([values for values, _ in loader]), wanted)
    store.close()
    with pytest.raises(ValueError, match="closed file"):
        maps[0]


def test_only_what_is_missing_is_computed(tmp_path, model, pixels, images, monkeypatch):
    with store_of(tmp_path, model) as store:
        store.dataset(TensorDataset(pixels[:2]), ROWS[:2], [0] * 2)
    content = bytearray(store.path.read_bytes())  # as a run leaves it that was cut off while writing row 4
    content[32:40] = bytes(8)
    content[HEAD + 4 * MAP :][:10] = b"half a map"
    store.path.write_bytes(content)
    with store_of(tmp_path, model) as store:
        maps = store.dataset(images, ROWS, [0] * 6)
        assert (store.filled, store.damaged) == (5, 0) and torch.equal(stacked(maps), model.extract(pixels))
    monkeypatch.setattr(model, "extract", lambda batch: pytest.fail("F ran again"))
    with store_of(tmp_path, model) as again:  # as in another run
        again.dataset(images, ROWS, [0] * 6)
        assert (again.filled, again.seconds) == (0, 0)


def test_maps_that_another_process_computed_meanwhile_are_skipped(tmp_path, model, pixels, images, monkeypatch):
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
    ours = store_of(tmp_path, model)
    maps = ours.dataset(images, ROWS, [0] * 6)
    # Of three batches the second is computed by both.
    assert batches == [2, 2] and other.filled == ours.filled == 4
    assert torch.equal(stacked(maps), extract(pixels))


class Watched(TensorDataset):
    """Reports each item that is read."""

    def __init__(self, report):
        super().__init__(torch.zeros(60, 3, 16, 16))
        self.report = report

    def __getitem__(self, index):
        self.report(index)
        return super().__getitem__(index)


def test_processes_fill_in_different_orders_and_leave_the_rng_state(tmp_path, model, monkeypatch):
    monkeypatch.setattr("crumb_avalanche.models.map_store.FILL_BATCH", 1)
    orders = []
    expected, state = np.random.get_state()[1].tolist(), torch.get_rng_state()
    for name in ("one", "another"):
        orders.append([])
        with MapStore(tmp_path / name, model, 60, "toy", progress=False) as store:
            store.dataset(Watched(orders[-1].append), np.arange(60), [0] * 60)
        assert sorted(orders[-1]) == list(range(60))
    assert orders[0] != orders[1]
    assert np.random.get_state()[1].tolist() == expected and torch.equal(torch.get_rng_state(), state)


def test_what_decides_the_maps_decides_the_file(tmp_path, model, make_model):
    def files():
        return {path.name for path in tmp_path.iterdir()}

    store_of(tmp_path, model)
    # Plastic layers, codebook and feature scale play no part in F(x).
    model.reset_head(9)
    model.feature_scale.fill_(2.0)
    model.codebook.blocks.data.zero_()
    store_of(tmp_path, model)
    assert len(files()) == 1
    for number, change in enumerate(
        (
            lambda: store_of(tmp_path, make_model(seed=1)),
            lambda: store_of(tmp_path, model, key="other images"),
            lambda: store_of(tmp_path, model, half=True),
            lambda: store_of(tmp_path, model.set_normalization((0.1, 0.2, 0.3), (0.3, 0.2, 0.1))),
            lambda: store_of(tmp_path, model.set_precision("bf16")),
            lambda: store_of(tmp_path, model.compile()),  # nothing is compiled before it is called
        ),
        2,
    ):
        change()
        assert len(files()) == number


@pytest.mark.parametrize("cuts", [(10, 11), ("layer1.1.add", "layer1.1.relu_1")])  # layers without weights follow
def test_another_cut_is_another_file(tmp_path, cuts):
    def made(cut):
        torch.manual_seed(0)
        if isinstance(cut, int):
            return split_backbone("small_cnn", weights=None, n_classes=2, image_size=32, cut_layer=cut, codebook=None)
        return split_at(models.resnet18(weights=None), cut, n_classes=2, image_size=32)

    one, other, again = made(cuts[0]), made(cuts[1]), made(cuts[0])
    assert weights_hash(one.feature_extractor) == weights_hash(other.feature_extractor)
    paths = [store_of(tmp_path, network).path for network in (one, other, again)]
    assert paths[0] == paths[2] != paths[1]


def test_a_map_too_large_for_half_precision_is_refused(tmp_path, model, images, monkeypatch):
    monkeypatch.setattr(model, "extract", lambda batch: torch.full((len(batch), 8, 4, 4), 70_000.0))
    store = store_of(tmp_path, model, half=True)
    with pytest.raises(FeatureCacheError, match="has a value of 70000, but half precision ends at 65504; keep"):
        store.dataset(images, ROWS, [0] * 6)
    assert not store.present().any()


def test_a_full_disk_is_reported_before_anything_is_computed(tmp_path, model, images, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    monkeypatch.setattr(model, "extract", lambda batch: pytest.fail("F ran"))
    with pytest.raises(FeatureCacheError, match=r"needs 3.07 kB more for 6 images, but 1 kB are free; choose"):
        store_of(tmp_path, model).dataset(images, ROWS, [0] * 6)


@pytest.mark.parametrize("room", [300, 1500])  # bytes
def test_a_write_that_fails_is_an_error_and_leaves_a_missing_map(tmp_path, model, images, monkeypatch, room):
    store = store_of(tmp_path, model)

    class Full:
        """A file on a disk with some room, which takes a part of the last write."""

        left = room

        def write(self, data):
            if not self.left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written = file.write(data[: self.left])
            self.left -= written
            return written

    file, full = store._file, Full()
    full.fileno, full.seek = file.fileno, file.seek
    monkeypatch.setattr(store, "_file", full)
    with pytest.raises(FeatureCacheError, match=r"cannot be written \(No space left on device\); make room"):
        store.dataset(images, ROWS, [0] * 6)
    assert store.present().sum() == room // MAP


def flipped(content, *places):
    """Flip the last bit of some bytes."""
    damaged = bytearray(content)
    for place in places:
        damaged[place] ^= 1
    return bytes(damaged)


@pytest.mark.parametrize(
    ("damage", "filled_again", "damaged"),
    [
        (lambda content: None, 6, 0),
        (lambda content: b"", 6, 0),
        (lambda content: content[: HEAD + 5 * MAP], 3, 3),
        (lambda content: flipped(content, HEAD + 4 * MAP, HEAD + 7 * MAP), 2, 2),
        (lambda content: flipped(content, 4 * 8, 7 * 8), 2, 2),
        # Entries of zeros say that maps are missing, not that they are damaged.
        (lambda content: bytes(HEAD) + content[HEAD:], 6, 0),
        (lambda content: content[:HEAD] + bytes(10 * MAP), 6, 6),
    ],
)
def test_damaged_maps_are_computed_again_with_a_warning(tmp_path, model, images, filled, damage, filled_again, damaged):
    store, wanted = filled
    content = damage(store.path.read_bytes())
    store.path.unlink()
    if content is not None:
        store.path.write_bytes(content)
    for expected in ((filled_again, damaged), (0, 0)):
        with store_of(tmp_path, model) as again, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", ResourceWarning)  # of files that garbage of other tests leaves open
            assert torch.equal(stacked(again.dataset(images, ROWS, [0] * 6)), wanted)
        assert (again.filled, again.damaged) == expected
        words = f"{expected[1]} of 6 maps in {again.path} are damaged; they are computed again"
        assert [words in str(one.message) for one in said] == [True] * bool(expected[1])


def test_no_flipped_bit_is_used_silently(tmp_path, model, images, filled):
    store, wanted = filled
    whole, draws = store.path.read_bytes(), random.Random(0)
    for number in range(60):
        place = draws.randrange(HEAD) if number % 2 else draws.randrange(HEAD, len(whole))
        store.path.write_bytes(flipped(whole, place))
        used = (place // 8 if number % 2 else (place - HEAD) // MAP) in ROWS
        with store_of(tmp_path, model) as again, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert torch.equal(stacked(again.dataset(images, ROWS, [0] * 6)), wanted), place
        assert again.damaged == used, place


def test_a_map_that_is_damaged_in_use_is_an_error(tmp_path, model, images, filled):
    _, wanted = filled
    with store_of(tmp_path, model) as store:
        maps = store.dataset(images, ROWS, [0] * 6)
        content = bytearray(store.path.read_bytes())
        for place, size in ((HEAD + 9 * MAP, MAP), (9 * 8, 8)):  # its entry too: this process knows the one before
            content[place : place + size] = bytes(size)
        store.path.write_bytes(content)
        assert torch.equal(maps[1][0], wanted[1])
        with pytest.raises(FeatureCacheError, match=r"damaged while in use.*map 9.*start the same command again"):
            list(DataLoader(maps, batch_size=2, num_workers=1))
        with pytest.raises(FeatureCacheError, match="damaged while in use"):
            pickle.loads(pickle.dumps(maps))[2]
        store.path.write_bytes(b"")
        with pytest.raises(FeatureCacheError, match="was truncated while in use"):
            maps[1]


@pytest.fixture
def memo(model):
    model.feature_memo = FeatureMemo(capacity=2)
    return model.feature_memo


def test_a_memo_computes_each_image_once_and_alone(model, pixels, memo):
    alone = torch.cat([model.extract(pixels[[place]]) for place in (2, 0, 2)])
    assert torch.equal(memo.maps(pixels[[2, 0, 2]], model.extract), alone)
    assert (memo.computed, memo.found) == (2, 1)
    assert torch.equal(memo.maps(pixels[[0, 2]], model.extract), alone[[1, 0]])
    assert (memo.computed, memo.found) == (2, 3)
    memo.maps(pixels[[1]], model.extract)  # 0 was used less recently than 2
    memo.maps(pixels[[2]], model.extract)
    assert (memo.computed, memo.found) == (3, 4)
    memo.maps(pixels[[0]], model.extract)
    assert memo.computed == 4


def test_a_memo_keeps_unscaled_maps_of_stored_images_in_this_process_alone(model, pixels, memo):
    model.features((pixels.float() / 255 - model.pixel_mean) / model.pixel_std)  # of the stream
    assert memo.computed == 0
    maps = model.features(pixels[:2])
    model.feature_scale.mul_(3)
    torch.testing.assert_close(model.features(pixels[:2]), 3 * maps)
    assert (memo.computed, memo.found) == (2, 2)
    again = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(again.features(pixels[:2]), 3 * maps)
    assert again.feature_memo.computed == 4
