"""Cached maps are F's own, each computed once, and never another network's."""

import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from torch.utils.data import TensorDataset
from torchvision import models

from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.split_at import split_at
from crumb_avalanche.models.weights import weights_hash
from crumb_avalanche.training.feature_cache import FeatureCache, FeatureCacheError
from crumb_avalanche.training.stream_strategy import StreamStrategy

pytestmark = pytest.mark.filterwarnings("ignore:No loggers specified")
ROWS = np.array([4, 0, 9, 2, 7, 5])  # of a table of ten images


@pytest.fixture
def images(pixels):
    return TensorDataset(pixels, torch.arange(6))


def cache_of(folder, model, key="toy", **arguments):
    return FeatureCache(folder, model, 10, key, progress=False, **arguments)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_maps_are_what_the_model_extracts(tmp_path, model, pixels, images):
    model.fold_feature_scale(model.features(pixels))
    cache = cache_of(tmp_path, model)
    maps = cache.dataset(images, ROWS, [3, 1, 2, 0, 1, 3])
    assert [label for _, label in maps] == [3, 1, 2, 0, 1, 3] == maps.targets
    assert torch.equal(torch.stack([one for one, _ in maps]), model.extract(pixels))  # before the feature scale
    assert cache.filled == 6 and cache.seconds > 0
    assert cache.done.tolist() == [1, 0, 1, 0, 1, 1, 0, 1, 0, 1]
    assert cache.maps.nbytes == 10 * 4 * 8 * 4 * 4


def test_nothing_is_computed_twice(tmp_path, model, pixels, images, monkeypatch):
    wanted = model.extract(pixels)
    cache_of(tmp_path, model).dataset(images, ROWS, [0] * 6)
    monkeypatch.setattr(model, "extract", lambda batch: pytest.fail("F ran again"))
    again = cache_of(tmp_path, model)  # another object, as in another run
    maps = again.dataset(images, ROWS, [0] * 6)
    assert again.filled == 0 and again.seconds == 0
    assert torch.equal(torch.stack([one for one, _ in maps]), wanted)


def test_only_what_is_missing_is_computed(tmp_path, model, pixels, images):
    cache = cache_of(tmp_path, model)
    cache.dataset(TensorDataset(pixels[:2]), ROWS[:2], [0] * 2)
    cache.done[4] = 0  # as a run leaves it that was cut off while writing row 4
    cache.maps[4] = -1
    maps = cache.dataset(images, ROWS, [0] * 6)
    assert cache.filled == 2 + 5
    torch.testing.assert_close(torch.stack([one for one, _ in maps]), model.extract(pixels))


class Watched(TensorDataset):
    """Tells of each item that is read."""

    def __init__(self, pixels, tell):
        super().__init__(pixels)
        self.tell = tell

    def __getitem__(self, index):
        self.tell(index)
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_another_process_computed_meanwhile_is_left_out(tmp_path, model, pixels, images, monkeypatch, workers):
    monkeypatch.setattr("crumb_avalanche.training.feature_cache.FILL_BATCH", 2)
    other = cache_of(tmp_path, model)  # of another process: they share the file alone
    extract, batches = model.extract, []

    def shared(batch):
        batches.append(len(batch))
        if len(batches) == 2:
            monkeypatch.setattr(model, "extract", extract)
            other.dataset(images, ROWS, [0] * 6)
        return extract(batch)

    monkeypatch.setattr(model, "extract", shared)
    ours = cache_of(tmp_path, model, workers=workers)
    maps = ours.dataset(images, ROWS, [0] * 6)
    # Of three batches the second is computed by both; what loader processes had read already is computed once more.
    assert batches == [2, 2] and other.filled == 4
    assert ours.filled == (4 if workers == 0 else 6)
    assert torch.equal(torch.stack([one for one, _ in maps]), extract(pixels))


def test_each_process_has_an_order_of_its_own_and_no_random_state_moves(tmp_path, model, monkeypatch):
    monkeypatch.setattr("crumb_avalanche.training.feature_cache.FILL_BATCH", 1)
    pixels = torch.zeros(60, 3, 16, 16)
    orders = []
    torch.manual_seed(0)
    expected, state = np.random.get_state()[1].tolist(), torch.get_rng_state()
    for name in ("one", "another"):
        read = []
        cache = FeatureCache(tmp_path / name, model, 60, "toy", progress=False)
        cache.dataset(Watched(pixels, read.append), np.arange(60), [0] * 60)
        assert sorted(read) == list(range(60))
        orders.append(read)
    assert orders[0] != orders[1]
    assert np.random.get_state()[1].tolist() == expected and torch.equal(torch.get_rng_state(), state)


def test_what_decides_the_maps_decides_the_file(tmp_path, model, make_model):
    cache_of(tmp_path, model)
    first = names(tmp_path)
    assert len(first) == 2 and {name.split(".")[1] for name in first} == {"maps", "done"}
    # Plastic layers, codebook and feature scale play no part in F(x).
    model.reset_head(9)
    model.feature_scale.fill_(2.0)
    model.codebook.blocks.data.zero_()
    cache_of(tmp_path, model)
    assert names(tmp_path) == first
    for change in (
        lambda: cache_of(tmp_path, make_model(seed=1)),
        lambda: cache_of(tmp_path, model, key="other images"),
        lambda: cache_of(tmp_path, model.set_precision("bf16")),
        lambda: cache_of(tmp_path, model.compile()),  # nothing is compiled before it is called
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
    cache_of(tmp_path, made(cut))
    cache_of(tmp_path, made(cut))
    assert len(names(tmp_path)) == 2
    cache_of(tmp_path, made(other))
    assert len(names(tmp_path)) == 4


@pytest.mark.parametrize("left", [None, 0, 5000])
def test_maps_that_were_taken_away_or_cut_off_are_computed_again(tmp_path, model, pixels, images, left):
    cache_of(tmp_path, model).dataset(images, ROWS, [0] * 6)
    (maps,) = tmp_path.glob("*.maps")
    if left is None:
        maps.unlink()
    else:
        maps.write_bytes(maps.read_bytes()[:left])
    again = cache_of(tmp_path, model)
    found = again.dataset(images, ROWS, [0] * 6)
    assert again.filled == 6
    torch.testing.assert_close(torch.stack([one for one, _ in found]), model.extract(pixels))


def test_as_many_stored_images_are_remembered_as_the_buffer_holds(tmp_path, model, monkeypatch):
    assert model.map_shape == (8, 4, 4)
    for stored, expected in ((0, 512), (100, 512), (800, 800), (10**6, 1024)):
        monkeypatch.setattr("crumb_avalanche.training.feature_cache.MEMO_BYTES", 1024 * 4 * 8 * 4 * 4)
        cache_of(tmp_path, model, stored_images=stored)
        assert model.feature_memo.capacity == expected


def test_a_map_is_a_copy(tmp_path, model, images):
    maps = cache_of(tmp_path, model).dataset(images, ROWS, [0] * 6)
    maps[0][0].fill_(99)
    assert maps[0][0].max() < 99


def test_half_precision_takes_half_the_room_in_a_file_of_its_own(tmp_path, model, pixels, images):
    cache_of(tmp_path, model)
    single = names(tmp_path)
    half = cache_of(tmp_path, model, half=True)
    maps = half.dataset(images, ROWS, [0] * 6)
    wanted = model.extract(pixels).half()
    kept = torch.stack([one for one, _ in maps])
    assert kept.dtype == torch.float16 and torch.equal(kept, wanted)
    scaled = model.features(kept)
    assert scaled.dtype == torch.float32 and torch.equal(scaled, wanted.float() * model.feature_scale)
    assert scaled.is_contiguous(memory_format=torch.channels_last)
    assert half.maps.nbytes == 10 * 2 * 8 * 4 * 4 and set(single) < set(names(tmp_path))


def test_a_map_too_large_for_half_precision_is_refused(tmp_path, model, images, monkeypatch):
    monkeypatch.setattr(model, "extract", lambda batch: torch.full((len(batch), 8, 4, 4), 70_000.0))
    cache = cache_of(tmp_path, model, half=True)
    with pytest.raises(FeatureCacheError, match="has a value of 70000, but half precision ends at 65504; keep"):
        cache.dataset(images, ROWS, [0] * 6)
    assert not cache.done.any()
    assert cache_of(tmp_path, model).dataset(images, ROWS, [0] * 6)[0][0].max() == 70_000


def test_a_full_disk_is_told_before_anything_is_computed(tmp_path, model, images, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    monkeypatch.setattr(model, "extract", lambda batch: pytest.fail("F ran"))
    # 6 maps of 8 x 4 x 4 numbers of 4 bytes
    with pytest.raises(FeatureCacheError, match=r"needs 0.00 GB more for 6 images, but 0.00 GB are free; choose"):
        cache_of(tmp_path, model).dataset(images, ROWS, [0] * 6)
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=6 * 8 * 4 * 4 * 2))
    assert len(cache_of(tmp_path, model, half=True).dataset(images, ROWS, [0] * 6)) == 6


class Watch(SupervisedPlugin):
    """The shapes of all batches of training and evaluation."""

    def __init__(self):
        super().__init__()
        self.shapes, self.outputs = [], []

    def before_forward(self, strategy, **kwargs):
        self.shapes.append(tuple(strategy.mb_x.shape[1:]))

    def after_eval_iteration(self, strategy, **kwargs):
        self.shapes.append(tuple(strategy.mb_x.shape[1:]))
        self.outputs.append(strategy.mb_output)


def test_training_and_evaluation_read_maps(tmp_path, make_model, make_stream):
    results = []
    for cached in (True, False):
        model, stream, watch = make_model(), make_stream(), Watch()
        plugins = [FeatureCache(tmp_path, model, len(stream.frame_table), "toy", progress=False)] if cached else []
        strategy = StreamStrategy(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
            train_mb_size=6,
            first_epochs=2,
            plugins=[*plugins, watch],
            evaluator=EvaluationPlugin(loggers=[]),
        )
        strategy.train(stream.train_stream[0])
        strategy.eval(stream.test_stream[:1])
        assert set(watch.shapes) == {(8, 4, 4) if cached else (3, 16, 16)}
        results.append(torch.cat(watch.outputs))
        if cached:
            assert plugins[0].filled == 20 + 20  # training and test frames, once each
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_data_sets_must_tell_their_rows(tmp_path, model, images):
    class Strategy:
        adapted_dataset = AvalancheDataset([images], data_attributes=[DataAttribute([0] * 6, "targets")])

    with pytest.raises(ValueError, match=re.escape("give the data sets a DataAttribute 'frame_row' with the number")):
        cache_of(tmp_path, model).after_train_dataset_adaptation(Strategy())
