"""The plugin replaces images by their maps, in training and evaluation."""

import re

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.training.plugins import SupervisedPlugin
from host_benchmarks import LabelledImages
from small_crumb import make

from crumb_avalanche.models.map_store import MapStore
from crumb_avalanche.training.feature_cache import FeatureCache
from crumb_avalanche.training.stream_strategy import StreamStrategy

pytestmark = pytest.mark.filterwarnings("ignore:No loggers specified")


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


def test_training_and_evaluation_read_maps_and_the_memo_ends_with_the_cache(tmp_path, make_model, make_stream):
    results = []
    for cached in (True, False):
        model, stream, watch = make_model(), make_stream(), Watch()
        plugins = [FeatureCache(MapStore(tmp_path, model, 200, "toy", progress=False))] if cached else []
        strategy = make(StreamStrategy, model, *plugins, watch, first_epochs=2)
        strategy.train(stream.train_stream[0])
        strategy.eval(stream.test_stream[:1])
        assert set(watch.shapes) == {(8, 4, 4) if cached else (3, 16, 16)}
        results.append(torch.cat(watch.outputs))
        for cache in plugins:
            assert cache.store.filled == 20 + 20  # training and test frames, once each
            assert model.feature_memo is cache.memo
            model.features(torch.zeros(2, 3, 16, 16, dtype=torch.uint8))
            assert (cache.memo.computed, cache.memo.found) == (1, 1)
            cache.close()
            assert model.feature_memo is None and not cache.memo._maps
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_data_sets_must_have_row_numbers(tmp_path, model, pixels):
    images = as_classification_dataset(LabelledImages(pixels, torch.arange(6) % 4))
    strategy = make(StreamStrategy, model, FeatureCache(MapStore(tmp_path, model, 10, "toy")))
    with pytest.raises(ValueError, match=re.escape("give the data sets a DataAttribute 'frame_row' with the number")):
        strategy.train(benchmark_from_datasets(train=[images]).train_stream[0])
