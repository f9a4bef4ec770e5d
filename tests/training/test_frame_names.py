"""An image whose feature maps cannot be used is refused by name, before anything is accumulated."""

import re

import numpy as np
import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from small_models import CLASSES, SIZE

from benchmarks_toybox_ilab import ToyShapesFrames, imagenet_transform, make_benchmark
from crumb_avalanche.methods.registry import build_strategy
from crumb_avalanche.models.extraction import BadFeaturesError
from crumb_avalanche.training.feature_cache import FeatureCache

pytestmark = pytest.mark.filterwarnings("ignore:No loggers specified")
ROW = 3  # of the table; in the first experience
VALUES = [float("nan"), float("inf"), 3e38]


class Damaged:
    """The usual transform, with one value put into one image.

    Args:
        image: the image, or ``None`` for no damage.
        value: the value.
    """

    def __init__(self, image, value):
        self.image, self.value, self.transform = image, value, imagenet_transform(SIZE)

    def __call__(self, image):
        pixels = self.transform(image)
        if self.image is not None and np.array_equal(image, self.image):
            pixels[0, 3, 3] = self.value
        return pixels


def stream_of(value, damaged=True):
    table = ToyShapesFrames(
        classes=CLASSES, objects_per_class=2, sessions=2, frames_per_clip=5, size=SIZE, held_out_sessions=(1,)
    )
    transform = Damaged(table.read(ROW) if damaged else None, value)
    return make_benchmark(table, "class_instance", 0, 2, transform, transform), table.path[ROW]


def strategy_of(name, model, **host):
    return build_strategy(name, model, mem_size=8, evaluator=EvaluationPlugin(loggers=[]), **host)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", ["slda", "ncm", "ranpac", "rda", "crumb", "er", "finetune"])
def test_the_frame_is_named_and_nothing_is_accumulated(model, name, value):
    stream, path = stream_of(value)
    strategy = strategy_of(name, model)
    with pytest.raises(BadFeaturesError, match=rf"^frame {re.escape(path)} \(row {ROW} .*finite and at most 1e\+12"):
        for experience in stream.train_stream:
            strategy.train(experience, eval_streams=[])
    if hasattr(strategy, "statistics"):
        assert not strategy.statistics.image_counts.any()
    elif strategy.storage_policy is not None:
        assert len(strategy.storage_policy) == 0
    assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())


@pytest.mark.parametrize("name", ["slda", "crumb"])
def test_the_frame_is_named_in_evaluation(model, name):
    strategy = strategy_of(name, model)
    good, _ = stream_of(0, damaged=False)
    strategy.train(good.train_stream[0], eval_streams=[])
    bad, path = stream_of(float("nan"))
    with pytest.raises(BadFeaturesError, match=rf"^frame {re.escape(path)} "):
        strategy.eval(bad.train_stream[0])


def test_the_frame_is_named_while_a_cache_is_filled_and_no_map_of_it_is_kept(tmp_path, model):
    stream, path = stream_of(float("nan"))
    with FeatureCache(tmp_path, model, len(stream.frame_table), "toy", progress=False) as cache:
        strategy = strategy_of("slda", model, plugins=[cache])
        with pytest.raises(BadFeaturesError, match=rf"^frame {re.escape(path)} "):
            strategy.train(stream.train_stream[0], eval_streams=[])
        assert not cache.store.present()[ROW]


def test_images_that_are_not_in_the_experience_are_refused_without_a_name(model):
    images = torch.zeros(3, 3, SIZE, SIZE)
    images[1, 0, 0, 0] = float("nan")
    with pytest.raises(BadFeaturesError, match=r"^1 of 3 images have feature maps.*number 1 of its batch") as caught:
        model.features(images)
    assert len(caught.value.images) == 1
