"""Stored maps are F's own, each is computed once, and what is damaged is computed again or an error."""

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


@pytest.mark.parametrize("half", [False, True])
def test_maps_are_what_the_model_extracts(tmp_path, model, pixels, images, half):
    model.fold_feature_scale(model.features(pixels))
    wanted = model.extract(pixels)  # before the feature scale
    wanted = wanted.half() if half else wanted
    store, state = store_of(tmp_path, model, half=half), torch.get_rng_state()
    maps = store.dataset(images, ROWS, [3, 1, 2, 0, 1, 3])
    assert torch.equal(torch.get_rng_state(), state)
    assert [label for _, label in maps] == [3, 1, 2, 0, 1, 3] == maps.targets
    assert stacked(maps).dtype == wanted.dtype and torch.equal(stacked(maps), wanted)
    scaled = model.features(stacked(maps))
    assert torch.equal(scaled, wanted.float() * model.feature_scale)
    assert scaled.is_contiguous(memory_format=torch.channels_last)
    assert store.filled == 6 and store.seconds > 0
    assert store.present().tolist() == [
        True,
        False,
        True,
        False,
        True,
        True,
        False,
        True,
        False,
        True,
    ]
    assert store.path.stat().st_size == HEAD + 10 * MAP // (1 + half)
    loader = DataLoader(maps, batch_size=4, num_workers=1)
    assert torch.equal(torch.cat([values for values, _ in loader]), wanted)
    store.close()
    with pytest.raises(ValueError, match="closed file"):
        maps[0]


def test_only_what_is_missing_is_computed(tmp_path, model, pixels, images, monkeypatch):
    with store_of(tmp_path, model) as store:
        store.dataset(TensorDataset(pixels[:2]), ROWS[:2], [0] * 2)
    content = bytearray(
        store.path.read_bytes()
    )  # as a run leaves it that was cut off while writing row 4
    content[32:40] = bytes(8)
    content[HEAD + 4 * MAP :][:10] = b"half a map"
    store.path.write_bytes(content)
    with store_of(tmp_path, model) as store:
        maps = store.dataset(images, ROWS, [0] * 6)
        assert (store.filled, store.damaged) == (5, 0) and torch.equal(
            stacked(maps), model.extract(pixels)
        )
    monkeypatch.setattr(model, "extract", lambda batch: pytest.fail("F ran again"))
    with store_of(tmp_path, model) as again:  # as in another run
        again.dataset(images, ROWS, [0] * 6)
        assert (again.filled, again.seconds) == (0, 0)


def test_maps_that_another_process_computed_meanwhile_are_skipped(
    tmp_path, model, pixels, images, monkeypatch
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
    ours = store_of(tmp_path, model)
    maps = ours.dataset(images, ROWS, [0] * 6)
    # Of three batches the second is computed by both.
    assert batches == [2, 2] and other.filled == ours.filled == 4
    assert torch.equal(stacked(maps), extract(pixels))


def test_what_decides_the_maps_decides_the_file(tmp_path, model, make_model):
    store_of(tmp_path, model)
    # Plastic layers, codebook and feature scale play no part in F(x).
    model.reset_head(9)
    model.feature_scale.fill_(2.0)
    model.codebook.blocks.data.zero_()
    store_of(tmp_path, model)
    assert len([*tmp_path.iterdir()]) == 1
    store_of(tmp_path, make_model(seed=1))
    store_of(tmp_path, model, key="other images")
    store_of(tmp_path, model, half=True)
    store_of(tmp_path, model.set_normalization((0.1, 0.2, 0.3), (0.3, 0.2, 0.1)))
    store_of(tmp_path, model.set_precision("bf16"))
    model.runtime = Runtime("compiled")
    store_of(tmp_path, model)
    assert len([*tmp_path.iterdir()]) == 7


def test_another_cut_is_another_file_where_layers_without_weights_follow(tmp_path):
    network, paths = SmallCNN(), []
    for cut in ("features.9", "features.10", "features.11", "features.9"):
        model = split_at(copy.deepcopy(network), cut, n_classes=2, image_size=32)
        paths.append(store_of(tmp_path, model).path)
    assert paths[0] == paths[3] and len(set(paths)) == 3


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


def test_what_cannot_be_stored_is_an_error_and_leaves_a_missing_map(
    tmp_path, model, images, monkeypatch
):
    store = store_of(tmp_path, model)
    words = r"needs 3\.1 kB more .* 1\.0 kB are free"
    with monkeypatch.context() as patch, pytest.raises(FeatureCacheError, match=words):
        patch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
        patch.setattr(model, "extract", lambda batch: pytest.fail("F ran"))
        store.dataset(images, ROWS, [0] * 6)
    monkeypatch.setattr(store, "_file", Full(store._file))
    with pytest.raises(
        FeatureCacheError,
        match=r"cannot be written \(No space left on device\); make room",
    ):
        store.dataset(images, ROWS, [0] * 6)
    assert store.present().sum() == 2
    store = store_of(tmp_path, model, half=True)
    monkeypatch.setattr(
        model, "extract", lambda batch: torch.full((len(batch), 8, 4, 4), 70_000.0)
    )
    with pytest.raises(
        FeatureCacheError,
        match="has a value of 70000, but half precision ends at 65504; keep",
    ):
        store.dataset(images, ROWS, [0] * 6)
    assert not store.present().any()


def flipped(content, *places):
    """Flip the last bit of some bytes."""
    return bytes(value ^ (place in places) for place, value in enumerate(content))


@pytest.mark.parametrize(
    ("damage", "filled_again", "damaged"),
    [
        (lambda content: b"", 6, 0),
        (lambda content: content[: HEAD + 5 * MAP], 3, 3),
        *(
            (
                lambda content, at=at: flipped(
                    content, HEAD + 4 * MAP + at, HEAD + 7 * MAP
                ),
                2,
                2,
            )
            for at in range(0, MAP, 33)
        ),
        *(
            (lambda content, at=at: flipped(content, 4 * 8 + at), 1, 1)
            for at in range(8)
        ),
        (
            lambda content: flipped(content, HEAD + 3 * MAP, 3 * 8 + 2),
            0,
            0,
        ),  # of a map that is not used
        # Entries of zeros say that maps are missing, not that they are damaged.
        (lambda content: bytes(HEAD) + content[HEAD:], 6, 0),
        (lambda content: content[:HEAD] + bytes(10 * MAP), 6, 6),
    ],
)
def test_damaged_maps_are_computed_again_with_a_warning(
    tmp_path, model, images, filled, damage, filled_again, damaged
):
    store, wanted = filled
    store.path.write_bytes(damage(store.path.read_bytes()))
    for expected in ((filled_again, damaged), (0, 0)):
        with (
            store_of(tmp_path, model) as again,
            warnings.catch_warnings(record=True) as said,
        ):
            warnings.simplefilter("always")
            warnings.simplefilter(
                "ignore", ResourceWarning
            )  # of files that garbage of other tests leaves open
            assert torch.equal(stacked(again.dataset(images, ROWS, [0] * 6)), wanted)
        assert (again.filled, again.damaged) == expected
        words = f"{expected[1]} of 6 maps in {again.path} are damaged; they are computed again"
        assert [words in str(one.message) for one in said] == [True] * bool(expected[1])


def test_a_map_that_is_damaged_in_use_is_an_error(tmp_path, model, images, filled):
    _, wanted = filled
    with store_of(tmp_path, model) as store:
        maps = store.dataset(images, ROWS, [0] * 6)
        content = bytearray(store.path.read_bytes())
        for place, size in (
            (HEAD + 9 * MAP, MAP),
            (9 * 8, 8),
        ):  # its entry too: this process knows the one before
            content[place : place + size] = bytes(size)
        store.path.write_bytes(content)
        assert torch.equal(maps[1][0], wanted[1])
        with pytest.raises(
            FeatureCacheError,
            match=r"damaged while in use.*map 9.*start the same command again",
        ):
            list(DataLoader(maps, batch_size=2, num_workers=1))
        with pytest.raises(FeatureCacheError, match="damaged while in use"):
            pickle.loads(pickle.dumps(maps))[2]
        store.path.write_bytes(b"")
        with pytest.raises(FeatureCacheError, match="was truncated while in use"):
            maps[1]


def test_a_memo_computes_each_image_once_and_alone(model, pixels):
    memo = model.feature_memo = FeatureMemo(capacity=2)
    alone = torch.cat([model.extract(pixels[[place]]) for place in (2, 0, 2)])
    assert torch.equal(memo.maps(pixels[[2, 0, 2]], model.extract), alone)
    assert (memo.computed, memo.found) == (2, 1)
    assert torch.equal(memo.maps(pixels[[0, 2]], model.extract), alone[[1, 0]])
    assert (memo.computed, memo.found) == (2, 3)
    memo.maps(pixels[[1]], model.extract)  # 0 was used less recently than 2
    memo.maps(pixels[[2, 0]], model.extract)
    assert (memo.computed, memo.found) == (4, 4)
    # It keeps unscaled maps, of stored images, in this process alone.
    memo = model.feature_memo = FeatureMemo(capacity=2)
    model.features(
        (pixels.float() / 255 - model.pixel_mean) / model.pixel_std
    )  # of the stream
    assert memo.computed == 0
    maps = model.features(pixels[:2])
    model.feature_scale.mul_(3)
    torch.testing.assert_close(model.features(pixels[:2]), 3 * maps)
    assert (memo.computed, memo.found) == (2, 2)
    again = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(again.features(pixels[:2]), 3 * maps)
    assert again.feature_memo.computed == 4
