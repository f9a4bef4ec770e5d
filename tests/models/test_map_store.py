"""Stored maps are F's own, and what is damaged is computed again or an error."""

import copy
import errno
import os
import pickle
import shutil
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_models import images_extracted
from torch.utils.data import DataLoader, TensorDataset

from crumb_avalanche.models.map_store import FeatureCacheError, FeatureMemo, MapStore
from crumb_avalanche.models.networks import SmallCNN
from crumb_avalanche.models.runtimes import Runtime
from crumb_avalanche.models.split_at import split_at

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


halves = pytest.mark.parametrize("half", [False, True])
LABELS = [3, 1, 2, 0, 1, 3]


@pytest.fixture
def scaled(model, pixels):
    """The model with a feature scale, which stored maps do not have."""
    model.fold_feature_scale(model.features(pixels))
    return model


@halves
def test_maps_are_what_the_model_extracts(tmp_path, scaled, pixels, images, half):
    expected = scaled.extract(pixels)
    expected = expected.half() if half else expected
    with store_of(tmp_path, scaled, half=half) as store:
        maps = stacked(store.dataset(images, ROWS, LABELS))
    assert maps.dtype == expected.dtype
    assert torch.equal(maps, expected)


@halves
def test_stored_maps_pass_for_images(tmp_path, scaled, images, half):
    with store_of(tmp_path, scaled, half=half) as store:
        maps = stacked(store.dataset(images, ROWS, LABELS))
    features = scaled.features(maps)
    assert torch.equal(features, maps.float() * scaled.feature_scale)
    assert features.is_contiguous(memory_format=torch.channels_last)


def test_maps_have_labels(tmp_path, model, images):
    with store_of(tmp_path, model) as store:
        maps = store.dataset(images, ROWS, LABELS)
        assert [label for _, label in maps] == LABELS
    assert maps.targets == LABELS


def test_filling_leaves_the_rng_alone(tmp_path, model, images):
    state = torch.get_rng_state()
    with store_of(tmp_path, model) as store:
        store.dataset(images, ROWS, LABELS)
    assert torch.equal(torch.get_rng_state(), state)


@halves
def test_the_size_of_a_store(tmp_path, model, images, half):
    with store_of(tmp_path, model, half=half) as store:
        store.dataset(images, ROWS, LABELS)
    assert store.path.stat().st_size == HEAD + 10 * MAP // (1 + half)


def test_what_a_store_says_of_itself(tmp_path, model, images):
    with store_of(tmp_path, model) as store:
        store.dataset(images, ROWS, LABELS)
        assert store.filled == 6
        assert store.seconds > 0
        assert np.flatnonzero(store.present()).tolist() == sorted(ROWS)


def test_a_loader_process_reads_maps(tmp_path, model, pixels, images):
    with store_of(tmp_path, model) as store:
        maps = store.dataset(images, ROWS, LABELS)
        loader = DataLoader(maps, batch_size=4, num_workers=1)
        loaded = torch.cat([batch for batch, _ in loader])
    assert torch.equal(loaded, model.extract(pixels))


def test_a_closed_store(filled, tmp_path, model, images):
    with store_of(tmp_path, model) as store:
        maps = store.dataset(images, ROWS, LABELS)
    with pytest.raises(ValueError, match="closed file"):
        maps[0]


def test_only_what_is_missing_is_computed(tmp_path, model, pixels, images):
    """A run was cut off while it wrote row 4."""
    with store_of(tmp_path, model) as store:
        store.dataset(TensorDataset(pixels[:2]), ROWS[:2], [0] * 2)
    content = bytearray(store.path.read_bytes())
    content[4 * 8 : 5 * 8] = bytes(8)
    start = HEAD + 4 * MAP
    content[start : start + 10] = b"half a map"
    store.path.write_bytes(content)
    with store_of(tmp_path, model) as store:
        maps = store.dataset(images, ROWS, [0] * 6)
        assert (store.filled, store.damaged) == (5, 0)
        assert torch.equal(stacked(maps), model.extract(pixels))


def test_another_run_computes_nothing(filled, tmp_path, model, images, monkeypatch):
    monkeypatch.setattr(model, "extract", lambda batch: pytest.fail("F ran again"))
    with store_of(tmp_path, model) as again:
        again.dataset(images, ROWS, [0] * 6)
        assert (again.filled, again.seconds) == (0, 0)


def test_maps_that_another_process_computed_meanwhile_are_skipped(
    tmp_path, model, pixels, images, monkeypatch
):
    monkeypatch.setattr("crumb_avalanche.models.map_store.FILL_BATCH", 2)
    second_store = store_of(
        tmp_path, model
    )  # of another process: they share the file alone
    extract, batches = model.extract, []

    def shared(batch):
        batches.append(len(batch))
        if len(batches) == 2:
            monkeypatch.setattr(model, "extract", extract)
            second_store.dataset(images, ROWS, [0] * 6)
        return extract(batch)

    monkeypatch.setattr(model, "extract", shared)
    ours = store_of(tmp_path, model)
    maps = ours.dataset(images, ROWS, [0] * 6)
    # Of three batches the second is computed by both.
    assert batches == [2, 2] and second_store.filled == ours.filled == 4
    assert torch.equal(stacked(maps), extract(pixels))


def change_other_parts(model):
    """Change what plays no part in F(x): plastic layers, codebook, feature scale."""
    model.reset_head(9)
    model.feature_scale.fill_(2.0)
    model.codebook.blocks.data.zero_()


def test_what_does_not_decide_the_maps(tmp_path, model):
    before = store_of(tmp_path, model).path
    change_other_parts(model)
    assert store_of(tmp_path, model).path == before


def other_runtime(model):
    model.runtime = Runtime("compiled")


OTHERS = {
    "normalisation": lambda model: model.set_normalization([0.1, 0.2, 0.3], [0.3]),
    "precision": lambda model: model.set_precision("bf16"),
    "runtime": other_runtime,
    "weights": lambda model: model.feature_extractor[0].weight.data.add_(1),
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_what_decides_the_maps(tmp_path, model, change):
    before = store_of(tmp_path, model).path
    change(model)
    assert store_of(tmp_path, model).path != before


@pytest.mark.parametrize("arguments", [{"key": "other images"}, {"half": True}])
def test_what_decides_a_store(tmp_path, model, arguments):
    before = store_of(tmp_path, model).path
    assert store_of(tmp_path, model, **arguments).path != before


@pytest.mark.parametrize(
    ("cut", "is_same"),
    [("features.9", True), ("features.10", False), ("features.11", False)],
)
def test_a_cut_decides_the_maps(tmp_path, cut, is_same):
    """Also where layers without weights follow."""
    network = SmallCNN()

    def path_of(node):
        model = split_at(copy.deepcopy(network), node, n_classes=2, image_size=32)
        return store_of(tmp_path, model).path

    assert (path_of(cut) == path_of("features.9")) == is_same


class Full:
    """A file on a disk with room for two maps and a half."""

    def __init__(self, file):
        self.file, self.left = file, 5 * MAP // 2
        self.fileno, self.seek = file.fileno, file.seek

    def write(self, data):
        if not self.left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self.file.write(data[: self.left])
        self.left -= written
        return written


def test_too_little_room_is_told_first(tmp_path, model, images, monkeypatch):
    store = store_of(tmp_path, model)
    free = SimpleNamespace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
    monkeypatch.setattr(model, "extract", lambda batch: pytest.fail("F ran"))
    words = r"needs 3\.1 kB more .* 1\.0 kB are free"
    with pytest.raises(FeatureCacheError, match=words):
        store.dataset(images, ROWS, [0] * 6)


def test_a_full_disk_leaves_missing_maps(tmp_path, model, images, monkeypatch):
    store = store_of(tmp_path, model)
    monkeypatch.setattr(store, "_file", Full(store._file))
    words = r"cannot be written \(No space left on device\); make room"
    with pytest.raises(FeatureCacheError, match=words):
        store.dataset(images, ROWS, [0] * 6)
    assert store.present().sum() == 2


def test_values_above_half_precision(tmp_path, model, images, monkeypatch):
    store = store_of(tmp_path, model, half=True)

    def extract(batch):
        return torch.full((len(batch), 8, 4, 4), 70_000.0)

    monkeypatch.setattr(model, "extract", extract)
    words = "has a value of 70000, but half precision ends at 65504; keep"
    with pytest.raises(FeatureCacheError, match=words):
        store.dataset(images, ROWS, [0] * 6)
    assert not store.present().any()


def flipped(content, *places):
    """Flip the last bit of the bytes at some places."""
    damaged = bytearray(content)
    for index in places:
        damaged[index] ^= 1
    return bytes(damaged)


def flipped_in_two_maps(offset):
    """Flip a byte of map 4 and the first one of map 7."""
    return lambda content: flipped(content, HEAD + 4 * MAP + offset, HEAD + 7 * MAP)


def flipped_in_an_entry(offset):
    return lambda content: flipped(content, 4 * 8 + offset)


def refilled(folder, model, images, expected):
    """Open a store again and read its maps; return it and what it warned of."""
    with (
        store_of(folder, model) as again,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        # Of files that garbage of other tests leaves open.
        warnings.simplefilter("ignore", ResourceWarning)
        assert torch.equal(stacked(again.dataset(images, ROWS, [0] * 6)), expected)
    return again, [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("damage", "n_filled", "n_damaged"),
    [
        (lambda content: b"", 6, 0),
        (lambda content: content[: HEAD + 5 * MAP], 3, 3),
        *((flipped_in_two_maps(offset), 2, 2) for offset in range(0, MAP, 33)),
        *((flipped_in_an_entry(offset), 1, 1) for offset in range(8)),
        # Of a map that is not used.
        (lambda content: flipped(content, HEAD + 3 * MAP, 3 * 8 + 2), 0, 0),
        # Entries of zeros say that maps are missing, not that they are damaged.
        (lambda content: bytes(HEAD) + content[HEAD:], 6, 0),
        (lambda content: content[:HEAD] + bytes(10 * MAP), 6, 6),
    ],
)
def test_damaged_maps_are_computed_again(
    tmp_path, model, images, filled, damage, n_filled, n_damaged
):
    store, expected = filled
    store.path.write_bytes(damage(store.path.read_bytes()))
    again, messages = refilled(tmp_path, model, images, expected)
    assert (again.filled, again.damaged) == (n_filled, n_damaged)
    words = f"{n_damaged} of 6 maps in {again.path} are damaged; they are computed"
    assert [words in message for message in messages] == [True] * bool(n_damaged)
    again, messages = refilled(tmp_path, model, images, expected)
    assert (again.filled, again.damaged, messages) == (0, 0, [])


@pytest.fixture
def damaged_in_use(tmp_path, model, images, filled):
    """Maps of an open store in which map 9 and its entry became zeros."""
    with store_of(tmp_path, model) as store:
        maps = store.dataset(images, ROWS, [0] * 6)
        content = bytearray(store.path.read_bytes())
        content[HEAD + 9 * MAP : HEAD + 10 * MAP] = bytes(MAP)
        content[9 * 8 : 10 * 8] = bytes(8)
        store.path.write_bytes(content)
        yield maps


def test_a_loader_meets_a_damaged_map(damaged_in_use):
    """The process knows the entry of before."""
    words = r"damaged while in use.*map 9.*start the same command again"
    with pytest.raises(FeatureCacheError, match=words):
        list(DataLoader(damaged_in_use, batch_size=2, num_workers=1))


def test_a_copy_meets_a_damaged_map(damaged_in_use):
    with pytest.raises(FeatureCacheError, match="damaged while in use"):
        pickle.loads(pickle.dumps(damaged_in_use))[2]


def test_other_maps_can_be_read(damaged_in_use, filled):
    _, expected = filled
    assert torch.equal(damaged_in_use[1][0], expected[1])


def test_a_store_truncated_in_use(damaged_in_use):
    damaged_in_use.store.path.write_bytes(b"")
    with pytest.raises(FeatureCacheError, match="was truncated while in use"):
        damaged_in_use[1]


def test_a_memo_computes_an_image_once(model, pixels):
    memo = FeatureMemo(capacity=2)
    extracted = images_extracted(model)
    memo.maps(pixels[[2, 0, 2]], model.extract)
    assert len(extracted) == 2
    memo.maps(pixels[[0, 2]], model.extract)
    assert len(extracted) == 2


def test_a_memo_computes_an_image_alone(model, pixels):
    indices = [2, 0, 2]
    alone = torch.cat([model.extract(pixels[[index]]) for index in indices])
    memo = FeatureMemo(capacity=2)
    assert torch.equal(memo.maps(pixels[indices], model.extract), alone)
    assert torch.equal(memo.maps(pixels[[0, 2]], model.extract), alone[[1, 0]])


def test_a_memo_drops_what_was_not_used_lately(model, pixels):
    memo = FeatureMemo(capacity=2)
    memo.maps(pixels[[2, 0]], model.extract)
    memo.maps(pixels[[2]], model.extract)
    memo.maps(pixels[[1]], model.extract)  # in place of 0
    extracted = images_extracted(model)
    memo.maps(pixels[[2, 0]], model.extract)
    assert torch.equal(torch.stack(extracted), pixels[[0]])


@pytest.fixture
def with_memo(model):
    model.feature_memo = FeatureMemo(capacity=2)
    return model


def test_a_memo_takes_stored_images(with_memo, pixels):
    with_memo.features(pixels[:2])
    extracted = images_extracted(with_memo)
    with_memo.features(pixels[:2])
    assert not extracted


def test_a_memo_takes_no_images_of_the_stream(with_memo, pixels):
    """These are normalised floats."""
    images = with_memo.normalized(pixels[:2])
    with_memo.features(images)
    extracted = images_extracted(with_memo)
    with_memo.features(images)
    assert len(extracted) == 2


def test_a_memo_holds_unscaled_maps(with_memo, pixels):
    maps = with_memo.features(pixels[:2])
    with_memo.feature_scale.mul_(3)
    extracted = images_extracted(with_memo)
    torch.testing.assert_close(with_memo.features(pixels[:2]), 3 * maps)
    assert not extracted


def test_a_copied_memo_is_empty(with_memo, pixels):
    maps = with_memo.features(pixels[:2])
    again = pickle.loads(pickle.dumps(with_memo))
    extracted = images_extracted(again)
    torch.testing.assert_close(again.features(pixels[:2]), maps)
    assert len(extracted) == 2
