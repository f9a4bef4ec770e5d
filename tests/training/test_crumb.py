"""The strategy and the plugin: losses, storage, calibration, feature caches, copies and wrong settings."""

import math

import pytest
import torch
from avalanche.training.storage_policy import ReservoirSamplingBuffer
from avalanche.training.supervised import Naive
from small_crumb import DIRECT, EPOCHS, MEM_SIZE, SGD, make, same_weights, train
from torch import nn

from crumb_avalanche.memory.buffers import CodeBuffer, ImageBuffer
from crumb_avalanche.memory.selection import ReferenceRule
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.map_store import MapStore
from crumb_avalanche.models.weights import weights_hash
from crumb_avalanche.training.crumb import CRUMBPlugin, CRUMBStrategy
from crumb_avalanche.training.feature_cache import FeatureCache
from crumb_avalanche.training.plugins import EpochSchedule, SeenClassesPlugin

pytestmark = [
    pytest.mark.filterwarnings("ignore:No loggers specified"),
    pytest.mark.filterwarnings("ignore:Plugin .* implements incompatible callbacks"),  # CRUMB's own events
]


def test_naive_with_the_plugins_equals_the_strategy(make_model, make_stream):
    ready, own = make_model(), make_model()
    first = train(ready, make_stream(), CodeBuffer(MEM_SIZE), direct_weight=0.5).storage_policy
    buffer, seen = CodeBuffer(MEM_SIZE), SeenClassesPlugin()
    plugins = [seen, EpochSchedule(EPOCHS), CRUMBPlugin(buffer, direct_weight=0.5, seen=seen)]
    strategy = make(Naive, own, *plugins, optimizer=torch.optim.SGD(own.parameters(), **SGD))
    for experience in make_stream().train_stream:
        strategy.train(experience, shuffle=False)
    assert weights_hash(own) == weights_hash(ready)
    assert torch.equal(buffer.rows, first.rows)


def test_a_second_pass_over_cached_maps_stores_the_images_and_needs_their_frame_order(
    make_model, make_stream, tmp_path
):
    results = []
    for cached in (False, True):
        model, buffer = make_model(), ImageBuffer(MEM_SIZE, ReferenceRule())
        plugins = [FeatureCache(MapStore(tmp_path, model, 200, "toy", progress=False))] if cached else []
        train(model, make_stream(), buffer, plugins, **DIRECT)
        results.append((model, buffer))
    (plain, buffer), (model, cached_buffer) = results
    same_weights(plain, model, rtol=1e-5, atol=1e-6)
    assert torch.equal(buffer.rows, cached_buffer.rows) and torch.equal(buffer.labels, cached_buffer.labels)
    with pytest.raises(ValueError, match="images can be stored beside a feature cache only in frame order"):
        train(model, make_stream(), ImageBuffer(MEM_SIZE), plugins, shuffle=True, **DIRECT)


@pytest.mark.parametrize(
    "wrong, words",
    [
        (dict(replay_steps=1.5), "replay_steps is 1.5; give a whole number"),
        (dict(codebook_weight=0.0), "direct_weight and codebook_weight are both 0"),
        (dict(replay_weight=-0.1), "replay_weight is -0.1; give 0 or more"),
        (dict(direct_weight=math.nan), "direct_weight is nan; give a finite number"),
        (dict(replay_compute=2, fused=True), "fused replay has one batch"),
    ],
)
def test_wrong_settings_are_errors(model, wrong, words):
    with pytest.raises(ValueError, match=words):
        CRUMBPlugin(CodeBuffer(4), **wrong)
    for buffer in (417, ReservoirSamplingBuffer(4)):
        words = rf"storage_policy is of type {type(buffer).__name__}; .* CodeBuffer\(417\)"
        with pytest.raises(TypeError, match=words):
            CRUMBPlugin(buffer)
    for given in ({}, {"mem_size": 5, "storage_policy": CodeBuffer(5)}):
        with pytest.raises(ValueError, match=r"mem_size or storage_policy.*" + ("both.*5" if given else "neither")):
            make(CRUMBStrategy, model, **given)


def test_what_cannot_be_trained_is_an_error(make_model, make_stream):
    with pytest.raises(ValueError, match=r"needs a codebook: build the model with codebook=Codebook\(\)"):
        train(make_model(codebook=False), make_stream(), CodeBuffer(4))
    strategy = make(Naive, nn.Sequential(nn.Flatten(), nn.Linear(768, 4)), CRUMBPlugin(CodeBuffer(4)))
    with pytest.raises(TypeError, match="CRUMB trains a SplitModel, not a Sequential: build one with split_backbone"):
        strategy.train(make_stream().train_stream[0])
    with pytest.raises(ValueError, match="the plugin list has 2 of CRUMBPlugin, which would replay twice"):
        train(make_model(), make_stream(), CodeBuffer(4), [CRUMBPlugin(CodeBuffer(4))])


def small(codebook=True):
    """A network of known weights whose codebook is empty."""
    torch.manual_seed(0)
    return split_backbone("small_cnn", None, n_classes=4, image_size=16, codebook=codebook)


def test_a_model_an_optimiser_and_a_size_are_enough(make_stream):
    results = []
    for by_hand in (False, True):
        model, stream = small(), make_stream()
        assert not model.is_calibrated and model.codebook.codebook_size == 256
        memory = dict(mem_size=MEM_SIZE)
        if by_hand:
            calibrate(model, stream.train_stream[0].dataset)
            memory = dict(storage_policy=CodeBuffer(MEM_SIZE))
        strategy = make(CRUMBStrategy, model, train_mb_size=21, **memory)
        for experience in stream.train_stream:
            strategy.train(experience)
        assert strategy.model.is_calibrated and float(model.feature_scale) != 1
        results.append((weights_hash(model), strategy.storage_policy.rows))
    (one, rows), (two, others) = results
    assert one == two and torch.equal(rows, others) and len(rows) == MEM_SIZE


def test_naive_calibrates_too_but_only_once_and_where_it_was_not_done(make_stream):
    stream, own = make_stream(), small()
    strategy = make(Naive, own, CRUMBPlugin(CodeBuffer(MEM_SIZE)))
    strategy.train(stream.train_stream[0])
    scale = float(own.feature_scale)
    assert scale != 1 and own.calibrated
    strategy.train(stream.train_stream[1])
    assert float(own.feature_scale) == scale
    direct = small(codebook=None)
    train(direct, make_stream(), ImageBuffer(MEM_SIZE), **DIRECT)
    assert float(direct.feature_scale) == 1
