"""CRUMB: losses, storage, calibration, feature caches, copies, wrong settings; when it replays, and what."""

import math
import warnings
from collections import Counter

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.storage_policy import ReservoirSamplingBuffer
from avalanche.training.supervised import Naive
from torch import nn
from watched import DIRECT, EPOCHS, MEM_SIZE, SGD, make, same_weights, train

from crumb_avalanche.memory.buffers import (
    CodeBuffer,
    ImageBuffer,
    MapBuffer,
    StreamBatch,
)
from crumb_avalanche.memory.selection import ReferenceRule
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.layers import step_flops
from crumb_avalanche.models.map_store import MapStore
from crumb_avalanche.models.weights import weights_hash
from crumb_avalanche.training.balanced_replay import REPLAYED, BalancedReplay
from crumb_avalanche.training.crumb import CRUMBPlugin, CRUMBStrategy
from crumb_avalanche.training.feature_cache import FeatureCache
from crumb_avalanche.training.plugins import EpochSchedule, SeenClassesPlugin


def test_naive_with_the_plugins_equals_the_strategy(make_model, make_stream):
    ready, own = make_model(), make_model()
    first = train(
        ready, make_stream(), CodeBuffer(MEM_SIZE), direct_weight=0.5
    ).storage_policy
    buffer, seen = CodeBuffer(MEM_SIZE), SeenClassesPlugin()
    plugins = [
        seen,
        EpochSchedule(EPOCHS),
        CRUMBPlugin(buffer, direct_weight=0.5, seen=seen),
    ]
    strategy = make(
        Naive, own, *plugins, optimizer=torch.optim.SGD(own.parameters(), **SGD)
    )
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
        plugins = (
            [FeatureCache(MapStore(tmp_path, model, 200, "toy", progress=False))]
            if cached
            else []
        )
        train(model, make_stream(), buffer, plugins, **DIRECT)
        results.append((model, buffer))
    (plain, buffer), (model, cached_buffer) = results
    same_weights(plain, model, rtol=1e-5, atol=1e-6)
    assert torch.equal(buffer.rows, cached_buffer.rows) and torch.equal(
        buffer.labels, cached_buffer.labels
    )
    with pytest.raises(
        ValueError,
        match="images can be stored beside a feature cache only in frame order",
    ):
        train(
            model, make_stream(), ImageBuffer(MEM_SIZE), plugins, shuffle=True, **DIRECT
        )


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
        words = (
            rf"storage_policy is of type {type(buffer).__name__}; .* CodeBuffer\(417\)"
        )
        with pytest.raises(TypeError, match=words):
            CRUMBPlugin(buffer)
    for given in ({}, {"mem_size": 5, "storage_policy": CodeBuffer(5)}):
        with pytest.raises(
            ValueError,
            match=r"mem_size or storage_policy.*" + ("both.*5" if given else "neither"),
        ):
            make(CRUMBStrategy, model, **given)


def test_what_cannot_be_trained_is_an_error(make_model, make_stream):
    with pytest.raises(
        ValueError,
        match=r"needs a codebook: build the model with codebook=Codebook\(\)",
    ):
        train(make_model(codebook=False), make_stream(), CodeBuffer(4))
    strategy = make(
        Naive,
        nn.Sequential(nn.Flatten(), nn.Linear(768, 4)),
        CRUMBPlugin(CodeBuffer(4)),
    )
    with pytest.raises(
        TypeError,
        match="CRUMB trains a SplitModel, not a Sequential: build one with split_backbone",
    ):
        strategy.train(make_stream().train_stream[0])
    with pytest.raises(
        ValueError,
        match="the plugin list has 2 of CRUMBPlugin, which would replay twice",
    ):
        train(make_model(), make_stream(), CodeBuffer(4), [CRUMBPlugin(CodeBuffer(4))])


def small(codebook=True):
    """A network of known weights whose codebook is empty."""
    torch.manual_seed(0)
    return split_backbone(
        "small_cnn", None, n_classes=4, image_size=16, codebook=codebook
    )


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


class Replays(SupervisedPlugin):
    """Keeps the labels of new and replayed images of each step."""

    def __init__(self, buffer):
        super().__init__()
        self.pairs, self.experiences = [], []
        replay = buffer.replay

        def logged(slots, model):
            maps, labels = replay(slots, model)
            self.pairs.append(
                (
                    set(self.strategy.mb_y.tolist()),
                    labels.tolist(),
                    len(self.strategy.mb_y),
                )
            )
            self.experiences.append(self.strategy.clock.train_exp_counter)
            return maps, labels

        buffer.replay = logged

    def before_training(self, strategy, **kwargs):
        self.strategy = strategy


def test_replay_leaves_out_the_classes_of_the_batch(make_model, make_stream):
    buffer = CodeBuffer(8)
    replays = Replays(buffer)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*returns")  # no class does
        train(make_model(), make_stream(), buffer, [replays])
    both = 0
    for new, replayed, size in replays.pairs:
        assert replayed and not new & set(replayed)
        counts = [replayed.count(label) for label in set(replayed)]
        assert len(set(counts)) == 1 and size <= len(replayed) < size + len(counts)
        both += bool(
            set(replayed)
            - set(make_stream().train_stream[0].classes_in_this_experience)
        )
    assert both  # the other new class is replayed as soon as it has a memory


def test_classes_that_return_are_replayed_beside_their_new_images(
    make_model, make_stream
):
    stream, buffer = make_stream(), CodeBuffer(8)
    first, second = stream.train_stream
    replays = Replays(buffer)
    stream.train_stream = [first, second, first]
    with pytest.warns(
        UserWarning, match="class 0 returns in experience 2.*replayed"
    ) as warned:
        strategy = train(make_model(), stream, buffer, [replays])
    assert sum("returns" in str(one.message) for one in warned) == 1
    # A new class is left out as long as it is new, a class that returned is not.
    assert replays.experiences == [1] * 4 + [2] * 4
    assert all(not new & set(replayed) for new, replayed, _ in replays.pairs[:4])
    assert all(set(replayed) == {0, 1, 2, 3} for _, replayed, _ in replays.pairs[4:])
    assert strategy.memory.returning == {0, 1}


def filled(model, counts):
    """A buffer with a number of memories of each class, made from random images."""
    labels = torch.tensor(
        [label for label, count in counts.items() for _ in range(count)]
    )
    images = torch.randint(
        0, 256, (len(labels), 3, 16, 16), generator=torch.Generator().manual_seed(1)
    )
    images = images.to(torch.uint8)
    buffer = CodeBuffer(len(labels))
    buffer.begin_experience(labels.tolist(), len(labels))
    buffer.store(
        StreamBatch(
            labels, model.features(images), None, lambda places: images[list(places)]
        ),
        model,
    )
    return buffer


def new_batch(model, labels):
    images = torch.randint(
        0, 256, (len(labels), 3, 16, 16), generator=torch.Generator().manual_seed(2)
    )
    maps = model.features(images.to(torch.uint8))
    return StreamBatch(torch.tensor(labels), maps, model.encode(maps), None)


@pytest.mark.parametrize("kind", [CodeBuffer, MapBuffer, ImageBuffer])
def test_a_step_costs_three_times_the_one_without_replay_however_many_classes(
    make_model, kind
):
    model, replay = make_model(n_classes=100), BalancedReplay(2)
    extraction, training = step_flops(model)
    batches = [21, 21, 5, 1, 21, 128]
    steps = sum(replay.steps(size, model, kind(100)) for size in batches)
    bare = sum(batches) * (extraction + training)
    replayed = steps * REPLAYED * (training + (kind is ImageBuffer) * extraction)
    one = REPLAYED * (training + extraction)
    assert 2 * bare - one <= replayed <= 2 * bare


def test_every_class_is_drawn_as_often_and_maps_are_those_of_their_labels(make_model):
    model = make_model(n_classes=5)
    memories, batch = filled(model, {0: 1, 1: 9, 2: 3}), new_batch(model, [3, 3, 3, 4])
    stored, new = (
        memories.replay(torch.arange(13), model),
        model.codebook.decode(batch.codes),
    )
    known = [*zip(new, batch.labels.tolist()), *zip(stored[0], stored[1].tolist())]
    replay, drawn = BalancedReplay(2), Counter()
    for _ in range(200):
        maps, labels = replay.draw(batch, memories, model)
        assert maps.shape == (REPLAYED, *model.map_shape) and labels.shape == (
            REPLAYED,
        )
        drawn.update(labels.tolist())
    assert all(
        any(torch.equal(one, other) for other, of in known if of == label)
        for one, label in zip(maps, labels)
    )
    assert (
        drawn.keys() == {0, 1, 2, 3, 4}
        and max(drawn.values()) - min(drawn.values()) < 0.1 * 40 * REPLAYED
    )
    # Without images of the batch, too, maps are channels-last; without memories, all
    # are of the batch.
    memories = filled(make_model(n_classes=50), {label: 1 for label in range(1, 50)})
    orders = [replay.draw(new_batch(model, [0]), memories, model)[0] for _ in range(5)]
    assert all(maps.is_contiguous(memory_format=torch.channels_last) for maps in orders)
    assert (
        replay.draw(new_batch(model, [2, 2]), CodeBuffer(3), model)[1].tolist()
        == [2] * REPLAYED
    )


def test_the_new_batch_weighs_its_share_of_the_classes(make_model, make_stream):
    stream, model = make_stream(), make_model()
    strategy = make(
        CRUMBStrategy, model, train_mb_size=5, mem_size=8, replay_compute=2.0
    )
    strategy.train(stream.train_stream[0])
    losses, steps = [], []

    class Watch(SupervisedPlugin):
        def before_backward(self, strategy, **kwargs):
            plain = torch.nn.functional.cross_entropy(strategy.mb_output, strategy.mb_y)
            losses.append(
                (
                    float(strategy.loss.detach() / plain.detach()),
                    len(set(strategy.mb_y.tolist())),
                )
            )

        def after_replay_step(self, strategy, **kwargs):
            steps.append(strategy.clock.train_exp_iterations)

    strategy.plugins.append(Watch())
    strategy.train(stream.train_stream[1])
    assert losses[0] == (
        pytest.approx(1 / 3, rel=1e-4),
        1,
    )  # one new class beside two old ones
    each = strategy.memory.balanced.images_for_each(model, strategy.storage_policy)
    assert len(steps) == int(20 * each // REPLAYED)
