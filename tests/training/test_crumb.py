"""CRUMB: losses, storage, calibration, feature caches, copies, wrong settings.

When it replays, and what.
"""

import math
import warnings
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.training.plugins import BiCPlugin, ReplayPlugin, SupervisedPlugin
from avalanche.training.storage_policy import ReservoirSamplingBuffer
from avalanche.training.supervised import Naive
from host_benchmarks import Trace
from torch import nn
from watched import DIRECT, EPOCHS, MEM_SIZE, SGD, make, same_weights, train

from crumb_avalanche.memory.buffers import (
    CodeBuffer,
    ImageBuffer,
    MapBuffer,
    StreamBatch,
)
from crumb_avalanche.memory.selection import (
    ClassBalancedReservoir,
    EveryJth,
    ReferenceRule,
)
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.layers import step_flops
from crumb_avalanche.models.map_store import MapStore
from crumb_avalanche.models.split_backbone import split_backbone
from crumb_avalanche.models.weights import weights_hash
from crumb_avalanche.training.balanced_replay import REPLAYED, BalancedReplay
from crumb_avalanche.training.crumb import CRUMBPlugin, CRUMBStrategy
from crumb_avalanche.training.feature_cache import FeatureCache
from crumb_avalanche.training.plugins import EpochSchedule, SeenClassesPlugin


def test_naive_with_plugins_equals_the_strategy(make_model, make_stream):
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


def cache_of(tmp_path, model):
    store = MapStore(tmp_path, model, 200, "toy", progress=False)
    return FeatureCache(store)


def test_a_second_pass_over_cached_maps(make_model, make_stream, tmp_path):
    plain, cached = make_model(), make_model()
    images = ImageBuffer(MEM_SIZE, ReferenceRule())
    images_of_cached = ImageBuffer(MEM_SIZE, ReferenceRule())
    train(plain, make_stream(), images, **DIRECT)
    cache = cache_of(tmp_path, cached)
    train(cached, make_stream(), images_of_cached, [cache], **DIRECT)
    same_weights(plain, cached, rtol=1e-5, atol=1e-6)
    assert torch.equal(images.rows, images_of_cached.rows)
    assert torch.equal(images.labels, images_of_cached.labels)


def test_cached_images_need_frame_order(model, make_stream, tmp_path):
    cache = cache_of(tmp_path, model)
    words = "images can be stored beside a feature cache only in frame order"
    with pytest.raises(ValueError, match=words):
        train(
            model, make_stream(), ImageBuffer(MEM_SIZE), [cache], shuffle=True, **DIRECT
        )


@pytest.mark.parametrize(
    "wrong, words",
    [
        (dict(replay_steps=1.5), "replay_steps is 1.5; give a whole number"),
        (dict(codebook_weight=0.0), "direct_weight and codebook_weight are both 0"),
        (dict(replay_weight=-0.1), "replay_weight is -0.1; give 0 or more"),
        (dict(direct_weight=math.nan), "direct_weight is nan; give a finite number"),
        (dict(replay_compute=2, fused=True), "fused replay has one batch"),
        (dict(replay_limit=0), "replay_limit is 0; give 1 or more"),
        (dict(replay_compute=2, replay_limit=8), "leave out replay_limit, or"),
    ],
)
def test_a_wrong_setting_is_an_error(wrong, words):
    with pytest.raises(ValueError, match=words):
        CRUMBPlugin(CodeBuffer(4), **wrong)


@pytest.mark.parametrize("buffer", [417, ReservoirSamplingBuffer(4)])
def test_another_buffer_is_an_error(buffer):
    kind = type(buffer).__name__
    words = rf"storage_policy is of type {kind}; .* CodeBuffer\(417\)"
    with pytest.raises(TypeError, match=words):
        CRUMBPlugin(buffer)


@pytest.mark.parametrize(
    "memory, words",
    [
        ({}, "neither"),
        ({"mem_size": 5, "storage_policy": CodeBuffer(5)}, "both.*5"),
    ],
)
def test_one_memory_is_given(model, memory, words):
    with pytest.raises(ValueError, match=f"mem_size or storage_policy.*{words}"):
        make(CRUMBStrategy, model, **memory)


@pytest.mark.parametrize(
    "weights, buffer, subject",
    [
        ({}, CodeBuffer, "the codebook-out loss"),
        ({}, ImageBuffer, "the codebook-out loss"),
        (DIRECT, CodeBuffer, "a CodeBuffer"),
    ],
)
def test_a_codebook_is_needed(make_model, make_stream, weights, buffer, subject):
    trace = Trace()
    words = rf"{subject} needs a codebook: build the model with codebook=Codebook\(\)"
    with pytest.raises(ValueError, match=words):
        model = make_model(codebook=False)
        train(model, make_stream(), buffer(4), [trace], **weights)
    assert trace.labels == []  # before the first step


def test_another_network_is_refused(make_stream):
    network = nn.Sequential(nn.Flatten(), nn.Linear(768, 4))
    strategy = make(Naive, network, CRUMBPlugin(CodeBuffer(4)))
    words = "CRUMB trains a SplitModel, not a Sequential: build one with split_backbone"
    with pytest.raises(TypeError, match=words):
        strategy.train(make_stream().train_stream[0])


@pytest.mark.parametrize("plugin", [ReplayPlugin, BiCPlugin])
def test_plugins_that_mix_in_images(model, make_stream, plugin):
    trace = Trace()
    words = (
        f"{plugin.__name__} mixes images .* and EveryJth has to know how many images "
        r"come: leave .* CodeBuffer\(4, ClassBalancedReservoir\(\)\)"
    )
    with pytest.raises(ValueError, match=words):
        train(model, make_stream(), CodeBuffer(4), [plugin(10), trace])
    assert trace.labels == []  # before the first step


def test_two_plugins_are_refused(model, make_stream):
    words = "the plugin list has 2 of CRUMBPlugin, which would replay twice"
    with pytest.raises(ValueError, match=words):
        train(model, make_stream(), CodeBuffer(4), [CRUMBPlugin(CodeBuffer(4))])


def small(codebook=True):
    """A network of known weights whose codebook is empty."""
    torch.manual_seed(0)
    return split_backbone(
        "small_cnn", None, n_classes=4, image_size=16, codebook=codebook
    )


def trained_on_all(model, stream, **memory):
    strategy = make(CRUMBStrategy, model, train_mb_size=21, **memory)
    for experience in stream.train_stream:
        strategy.train(experience)
    return strategy


def test_a_model_and_a_size_are_enough(make_stream):
    """The strategy makes its buffer and calibrates the model."""
    by_hand, stream = small(), make_stream()
    calibrate(by_hand, stream.train_stream[0].dataset)
    buffer = CodeBuffer(MEM_SIZE)
    trained_on_all(by_hand, stream, storage_policy=buffer)

    model = small()
    assert model.needs_calibration
    strategy = trained_on_all(model, make_stream(), mem_size=MEM_SIZE)
    assert not model.needs_calibration
    assert float(model.feature_scale) != 1
    assert weights_hash(model) == weights_hash(by_hand)
    assert torch.equal(strategy.storage_policy.rows, buffer.rows)
    assert len(buffer) == MEM_SIZE


def test_naive_calibrates_once(make_stream):
    first, second = make_stream().train_stream
    model = small()
    strategy = make(Naive, model, CRUMBPlugin(CodeBuffer(MEM_SIZE)))
    strategy.train(first)
    scale = float(model.feature_scale)
    assert scale != 1
    assert model.calibrated
    strategy.train(second)
    assert float(model.feature_scale) == scale


def test_codes_of_the_direct_loss(make_stream):
    """The codebook that makes them is filled, and makes the same maps as by hand."""
    by_hand, stream = small(), make_stream()
    calibrate(by_hand, stream.train_stream[0].dataset)
    expected = trained_on_all(by_hand, stream, mem_size=MEM_SIZE, **DIRECT)
    model = small()
    strategy = trained_on_all(model, make_stream(), mem_size=MEM_SIZE, **DIRECT)
    assert not model.needs_calibration
    assert weights_hash(model) == weights_hash(by_hand)
    rows = strategy.storage_policy.rows
    assert torch.equal(rows, expected.storage_policy.rows)


@pytest.mark.parametrize("rule", [EveryJth, ReferenceRule, ClassBalancedReservoir])
@pytest.mark.parametrize("weights", [{}, DIRECT])
def test_an_empty_first_experience(make_stream, weights, rule):
    """The model is calibrated on the next, which has images."""
    model, stream = small(), make_stream()
    no_images = stream.train_stream[0].dataset.subset([])
    datasets = [no_images, *(exp.dataset for exp in stream.train_stream)]
    benchmark = benchmark_from_datasets(train=datasets)
    buffer = CodeBuffer(MEM_SIZE, rule())
    strategy = trained_on_all(model, benchmark, storage_policy=buffer, **weights)
    assert not model.needs_calibration
    assert sorted(strategy.storage_policy.classes) == [0, 1, 2, 3]


class ReplaySteps(SupervisedPlugin):
    """Counts epochs, and steps on memories, of each experience."""

    def __init__(self):
        super().__init__()
        self.epochs = []
        self.steps = []

    def before_training_exp(self, strategy, **kwargs):
        self.epochs.append(0)
        self.steps.append(0)

    def after_training_epoch(self, strategy, **kwargs):
        self.epochs[-1] += 1

    def before_replay_step(self, strategy, **kwargs):
        self.steps[-1] += 1


@pytest.mark.parametrize("n_empty", [0, 1, 2])
def test_the_first_experience_has_images(make_model, make_stream, n_empty):
    # Given experiences without images before two of 20 images each
    datasets = [experience.dataset for experience in make_stream().train_stream]
    no_images = datasets[0].subset([])
    benchmark = benchmark_from_datasets(train=[*n_empty * [no_images], *datasets])
    counts = ReplaySteps()
    # When CRUMB learns them in batches of five
    train(
        make_model(),
        benchmark,
        CodeBuffer(MEM_SIZE),
        [counts],
        first_epochs=5,
        train_mb_size=5,
    )
    # Then the first with images is task 1: it has more epochs, and no replay
    assert counts.epochs[n_empty:] == [5, 1]
    assert counts.steps[n_empty:] == [0, 4]


def image_replay(kind, model):
    """Replay of images without a codebook-out loss."""
    buffer = ImageBuffer(MEM_SIZE)
    if kind is Naive:
        return make(Naive, model, CRUMBPlugin(buffer, **DIRECT))
    return make(CRUMBStrategy, model, storage_policy=buffer, **DIRECT)


@pytest.mark.parametrize("codebook", [None, True])
@pytest.mark.parametrize("kind", [Naive, CRUMBStrategy])
def test_a_model_of_image_replay_is_calibrated(make_stream, kind, codebook):
    model = small(codebook)
    strategy = image_replay(kind, model)
    strategy.train(make_stream().train_stream[0])
    assert model.calibrated
    assert float(model.feature_scale) != 1


@dataclass
class Replay:
    """A replay batch, the new batch before it, and the experience."""

    new: list[int]
    replayed: list[int]
    experience: int


class Replays(SupervisedPlugin):
    """Keeps the labels of new and replayed images of each step."""

    def __init__(self, buffer):
        super().__init__()
        self.steps: list[Replay] = []
        self.draw = buffer.replay
        buffer.replay = self.logged

    def before_training(self, strategy, **kwargs):
        self.strategy = strategy

    def logged(self, slots, model):
        maps, labels = self.draw(slots, model)
        step = Replay(
            new=self.strategy.mb_y.tolist(),
            replayed=labels.tolist(),
            experience=self.strategy.clock.train_exp_counter,
        )
        self.steps.append(step)
        return maps, labels


def test_classes_of_the_batch_are_left_out(model, make_stream):
    stream, buffer = make_stream(), CodeBuffer(8)
    replays = Replays(buffer)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*returns")  # no class does
        train(model, stream, buffer, [replays])
    assert replays.steps
    for step in replays.steps:
        counts = Counter(step.replayed)
        assert not set(step.new) & set(counts)
        assert len(set(counts.values())) == 1  # each class as often
        assert len(step.new) <= len(step.replayed) < len(step.new) + len(counts)
    # The other new class is replayed as soon as it has a memory.
    old = set(stream.train_stream[0].classes_in_this_experience)
    assert any(set(step.replayed) - old for step in replays.steps)


def test_returning_classes_are_replayed(model, make_stream):
    stream, buffer = make_stream(), CodeBuffer(8)
    first, second = stream.train_stream
    replays = Replays(buffer)
    stream.train_stream = [first, second, first]
    words = "class 0 returns in experience 2.*replayed"
    with pytest.warns(UserWarning, match=words) as warned:
        strategy = train(model, stream, buffer, [replays])
    messages = [str(warning.message) for warning in warned]
    assert len([text for text in messages if "returns" in text]) == 1
    # A new class is left out as long as it is new, a class that returned is not.
    assert [step.experience for step in replays.steps] == [1] * 4 + [2] * 4
    assert not any(set(step.new) & set(step.replayed) for step in replays.steps[:4])
    assert all(set(step.replayed) == {0, 1, 2, 3} for step in replays.steps[4:])
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
def test_replay_costs_what_it_was_given(make_model, kind):
    model, replay = make_model(n_classes=100), BalancedReplay(2)
    extraction, training = step_flops(model)
    batches = [21, 21, 5, 1, 21, 128]
    steps = sum(replay.n_batches(size, model, kind(100)) for size in batches)
    bare = sum(batches) * (extraction + training)
    replayed = steps * REPLAYED * (training + (kind is ImageBuffer) * extraction)
    cost_of_batch = REPLAYED * (training + extraction)
    assert 2 * bare - cost_of_batch <= replayed <= 2 * bare


def rows_of(maps):
    return [values.numpy().tobytes() for values in maps.detach().contiguous()]


def test_every_class_is_drawn_as_often(make_model):
    model = make_model(n_classes=5)
    memories = filled(model, {0: 1, 1: 9, 2: 3})
    batch = new_batch(model, [3, 3, 3, 4])
    replay, drawn = BalancedReplay(2), Counter()
    for _ in range(200):
        _, labels = replay.draw(batch, memories, model)
        assert labels.shape == (REPLAYED,)
        drawn.update(labels.tolist())
    assert drawn.keys() == {0, 1, 2, 3, 4}
    counts = drawn.values()
    assert max(counts) - min(counts) < 0.1 * 40 * REPLAYED


def test_drawn_maps_are_of_their_labels(make_model):
    model = make_model(n_classes=5)
    memories = filled(model, {0: 1, 1: 9, 2: 3})
    batch = new_batch(model, [3, 3, 3, 4])
    stored, labels = memories.replay(torch.arange(13), model)
    new = model.codebook.decode(batch.codes)
    known = set(zip(rows_of(stored), labels.tolist()))
    known |= set(zip(rows_of(new), batch.labels.tolist()))
    replay = BalancedReplay(2)
    for _ in range(20):
        maps, labels = replay.draw(batch, memories, model)
        assert maps.shape == (REPLAYED, *model.map_shape)
        assert set(zip(rows_of(maps), labels.tolist())) <= known


def test_drawn_maps_are_channels_last(make_model):
    """Also without images of the batch."""
    model = make_model(n_classes=5)
    fifty = {label: 1 for label in range(1, 50)}
    memories = filled(make_model(n_classes=50), fifty)
    batch, replay = new_batch(model, [0]), BalancedReplay(2)
    for _ in range(5):
        maps, _ = replay.draw(batch, memories, model)
        assert maps.is_contiguous(memory_format=torch.channels_last)


def test_without_memories_the_batch_is_drawn(make_model):
    model = make_model(n_classes=5)
    batch = new_batch(model, [2, 2])
    _, labels = BalancedReplay(2).draw(batch, CodeBuffer(3), model)
    assert labels.tolist() == [2] * REPLAYED


def test_the_loss_of_another_plugin_is_not_weighted(make_model, make_stream):
    # Given a plugin that adds to the loss, before CRUMB with half of its own loss
    class Adds(SupervisedPlugin):
        def before_backward(self, strategy, **kwargs):
            self.own_loss = strategy.loss.detach().clone()
            strategy.loss = strategy.loss + 7

    class Watch(SupervisedPlugin):
        def before_backward(self, strategy, **kwargs):
            self.loss = strategy.loss.detach()

    adds = Adds()
    watch = Watch()
    strategy = make(
        CRUMBStrategy,
        make_model(),
        adds,
        storage_policy=CodeBuffer(8),
        codebook_weight=0.5,
    )
    strategy.plugins.append(watch)
    # When it learns
    strategy.train(make_stream().train_stream[0])
    # Then only its own loss is halved
    torch.testing.assert_close(watch.loss, 0.5 * adds.own_loss + 7)


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
    images_for_each = strategy.memory.balanced.images_for_each(
        model, strategy.storage_policy
    )
    assert len(steps) == int(20 * images_for_each // REPLAYED)
