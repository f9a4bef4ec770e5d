"""CRUMB: losses, storage, calibration, feature caches, copies, wrong settings.

When it replays, and what.
"""

import math
import warnings
from collections import Counter
from dataclasses import dataclass

import pytest
import small_models
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
    # Given a model that CRUMBStrategy trained
    expected_model = make_model()
    expected_buffer = CodeBuffer(MEM_SIZE)
    train(expected_model, make_stream(), expected_buffer, direct_weight=0.5)
    # When Naive trains another one with CRUMB's plugins
    model = make_model()
    buffer = CodeBuffer(MEM_SIZE)
    seen = SeenClassesPlugin()
    plugins = [
        seen,
        EpochSchedule(EPOCHS),
        CRUMBPlugin(buffer, direct_weight=0.5, seen=seen),
    ]
    optimizer = torch.optim.SGD(model.parameters(), **SGD)
    strategy = make(Naive, model, *plugins, optimizer=optimizer)
    for experience in make_stream().train_stream:
        strategy.train(experience, shuffle=False)
    # Then weights and memories are the same
    assert weights_hash(model) == weights_hash(expected_model)
    assert torch.equal(buffer.rows, expected_buffer.rows)


def cache_of(tmp_path, model):
    store = MapStore(tmp_path, model, 200, "toy", progress=False)
    return FeatureCache(store)


def test_a_second_pass_over_cached_maps(make_model, make_stream, tmp_path):
    # Given a model that was trained without a cache
    expected_model = make_model()
    expected_buffer = ImageBuffer(MEM_SIZE, ReferenceRule())
    train(expected_model, make_stream(), expected_buffer, **DIRECT)
    # When another one is trained with a cache
    model = make_model()
    buffer = ImageBuffer(MEM_SIZE, ReferenceRule())
    train(model, make_stream(), buffer, [cache_of(tmp_path, model)], **DIRECT)
    # Then weights and memories are the same
    same_weights(expected_model, model, rtol=1e-5, atol=1e-6)
    assert torch.equal(buffer.rows, expected_buffer.rows)
    assert torch.equal(buffer.labels, expected_buffer.labels)


def test_cached_images_need_frame_order(model, make_stream, tmp_path):
    cache = cache_of(tmp_path, model)
    buffer = ImageBuffer(MEM_SIZE)
    words = "images can be stored beside a feature cache only in frame order"
    with pytest.raises(ValueError, match=words):
        train(model, make_stream(), buffer, [cache], shuffle=True, **DIRECT)


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
    # Given a model that was calibrated by hand, and trained with a buffer
    by_hand = small()
    stream = make_stream()
    calibrate(by_hand, stream.train_stream[0].dataset)
    buffer = CodeBuffer(MEM_SIZE)
    trained_on_all(by_hand, stream, storage_policy=buffer)
    # When another one is trained with a number of memories
    model = small()
    assert model.needs_calibration
    strategy = trained_on_all(model, make_stream(), mem_size=MEM_SIZE)
    # Then it is calibrated, and both are the same
    assert not model.needs_calibration
    assert float(model.feature_scale) != 1
    assert weights_hash(model) == weights_hash(by_hand)
    assert torch.equal(strategy.storage_policy.rows, buffer.rows)
    assert len(buffer) == MEM_SIZE


def test_naive_calibrates_once(make_stream):
    # Given a model that is not calibrated
    first, second = make_stream().train_stream
    model = small()
    strategy = make(Naive, model, CRUMBPlugin(CodeBuffer(MEM_SIZE)))
    # When it learns an experience
    strategy.train(first)
    # Then it is calibrated
    scale = float(model.feature_scale)
    assert scale != 1
    assert model.calibrated
    # And its scale is the same after another one
    strategy.train(second)
    assert float(model.feature_scale) == scale


def test_codes_of_the_direct_loss(make_stream):
    """The codebook that makes them is filled, and makes the same maps as by hand."""
    # Given a model that was calibrated by hand, and trained
    by_hand = small()
    stream = make_stream()
    calibrate(by_hand, stream.train_stream[0].dataset)
    expected = trained_on_all(by_hand, stream, mem_size=MEM_SIZE, **DIRECT)
    # When another one is trained that was not
    model = small()
    strategy = trained_on_all(model, make_stream(), mem_size=MEM_SIZE, **DIRECT)
    # Then it is calibrated, and both are the same
    assert not model.needs_calibration
    assert weights_hash(model) == weights_hash(by_hand)
    rows = strategy.storage_policy.rows
    assert torch.equal(rows, expected.storage_policy.rows)


@pytest.mark.parametrize("rule", [EveryJth, ReferenceRule, ClassBalancedReservoir])
@pytest.mark.parametrize("weights", [{}, DIRECT])
def test_an_empty_first_experience(make_stream, weights, rule):
    """The model is calibrated on the next, which has images."""
    # Given a stream whose first experience has no images
    datasets = [experience.dataset for experience in make_stream().train_stream]
    no_images = datasets[0].subset([])
    benchmark = benchmark_from_datasets(train=[no_images, *datasets])
    # When a model that is not calibrated learns it
    model = small()
    buffer = CodeBuffer(MEM_SIZE, rule())
    strategy = trained_on_all(model, benchmark, storage_policy=buffer, **weights)
    # Then it is calibrated, and has memories of all classes
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


class Interrupted(Exception):
    """What a user's Ctrl-C is in these tests."""


class InterruptedOnce(SupervisedPlugin):
    """Ends the training once, after the epoch that is stored."""

    is_due = True

    def after_training_epoch(self, strategy, **kwargs):
        if self.is_due:
            self.is_due = False
            raise Interrupted


def interrupted(stream):
    """A strategy whose first experience was interrupted; counts its replay steps."""
    counts = ReplaySteps()
    strategy = make(
        CRUMBStrategy,
        small_models.make_model(),
        counts,
        InterruptedOnce(),
        storage_policy=CodeBuffer(MEM_SIZE),
        train_mb_size=5,
    )
    with pytest.raises(Interrupted):
        strategy.train(stream.train_stream[0])
    return strategy, counts


def test_an_experience_after_an_interrupted_one(make_stream):
    # Given a strategy whose first experience was interrupted
    stream = make_stream()
    strategy, counts = interrupted(stream)
    # When it learns another one, of 20 images in batches of five
    strategy.train(stream.train_stream[1])
    # Then the memories of the first one are replayed
    assert counts.steps == [0, 4]


def test_an_interrupted_experience_begins_again(make_stream):
    # Given a strategy whose first experience was interrupted
    stream = make_stream()
    strategy, counts = interrupted(stream)
    # When it learns that experience again
    strategy.train(stream.train_stream[0])
    # Then it is the first one, of which no class returned
    assert counts.steps == [0, 0]
    assert not strategy.memory.returning


def replaying(kind, model, buffer, **weights):
    """A strategy with replay from a buffer, by CRUMB's plugin in another or its own."""
    if kind is Naive:
        return make(Naive, model, CRUMBPlugin(buffer, **weights))
    return make(CRUMBStrategy, model, storage_policy=buffer, **weights)


@pytest.mark.parametrize("codebook", [None, True])
@pytest.mark.parametrize("kind", [Naive, CRUMBStrategy])
def test_a_model_of_image_replay_is_calibrated(make_stream, kind, codebook):
    model = small(codebook)
    strategy = replaying(kind, model, ImageBuffer(MEM_SIZE), **DIRECT)
    strategy.train(make_stream().train_stream[0])
    assert model.calibrated
    assert float(model.feature_scale) != 1


@pytest.mark.parametrize("kind", [Naive, CRUMBStrategy])
def test_unused_codes_are_not_measured(make_stream, kind):
    """So no warning says how little they keep."""
    model = small()
    strategy = replaying(kind, model, ImageBuffer(MEM_SIZE), **DIRECT)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the codes keep")
        strategy.train(make_stream().train_stream[0])
    assert model.codes_error is None


@pytest.mark.parametrize("weights", [{}, DIRECT], ids=["codebook-out", "direct"])
@pytest.mark.parametrize("kind", [Naive, CRUMBStrategy])
def test_codes_that_are_stored_are_measured(make_stream, kind, weights):
    model = small()
    strategy = replaying(kind, model, CodeBuffer(MEM_SIZE), **weights)
    strategy.train(make_stream().train_stream[0])
    assert model.codes_error > 0


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
    # Given a stream of which no class returns
    stream = make_stream()
    buffer = CodeBuffer(8)
    replays = Replays(buffer)
    # When a model learns it
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*returns")
        train(model, stream, buffer, [replays])
    # Then each step replays all known classes but those of the new batch
    assert replays.steps
    for step in replays.steps:
        counts = Counter(step.replayed)
        assert not set(step.new) & set(counts)
        assert len(set(counts.values())) == 1  # each class as often
        assert len(step.new) <= len(step.replayed) < len(step.new) + len(counts)
    # And the other new class is replayed as soon as it has a memory
    old = set(stream.train_stream[0].classes_in_this_experience)
    assert any(set(step.replayed) - old for step in replays.steps)


def test_returning_classes_are_replayed(model, make_stream):
    # Given a stream whose first experience comes again
    stream = make_stream()
    first, second = stream.train_stream
    stream.train_stream = [first, second, first]
    # When a model learns it
    buffer = CodeBuffer(8)
    replays = Replays(buffer)
    words = "class 0 returns in experience 2.*replayed"
    with pytest.warns(UserWarning, match=words) as warned:
        strategy = train(model, stream, buffer, [replays])
    # Then it warns once
    messages = [str(warning.message) for warning in warned]
    assert len([text for text in messages if "returns" in text]) == 1
    # And a new class is left out as long as it is new, a class that returned is not
    assert [step.experience for step in replays.steps] == [1] * 4 + [2] * 4
    assert not any(set(step.new) & set(step.replayed) for step in replays.steps[:4])
    assert all(set(step.replayed) == {0, 1, 2, 3} for step in replays.steps[4:])
    assert strategy.memory.returning == {0, 1}


def random_images(count, seed):
    """``(count, 3, 16, 16)`` uint8."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, 16, 16), generator=generator)
    return images.to(torch.uint8)


def filled(model, counts):
    """A buffer with a number of memories of each class, made from random images."""
    labels = []
    for label, count in counts.items():
        labels += count * [label]
    images = random_images(len(labels), seed=1)
    batch = StreamBatch(
        torch.tensor(labels),
        model.features(images),
        None,
        lambda rows: images[list(rows)],
    )
    buffer = CodeBuffer(len(labels))
    buffer.begin_experience(labels, len(labels))
    buffer.store(batch, model)
    return buffer


def new_batch(model, labels):
    maps = model.features(random_images(len(labels), seed=2))
    return StreamBatch(torch.tensor(labels), maps, model.encode(maps), None)


@pytest.mark.parametrize("kind", [CodeBuffer, MapBuffer, ImageBuffer])
def test_replay_costs_what_it_was_given(make_model, kind):
    # Given replay that may cost twice what the new images do
    model = make_model(n_classes=100)
    replay = BalancedReplay(2)
    extraction, training = step_flops(model)
    # When batches of several sizes come
    batches = [21, 21, 5, 1, 21, 128]
    steps = sum(replay.n_batches(size, model, kind(100)) for size in batches)
    # Then it costs that much, but for a batch at most
    new_cost = sum(batches) * (extraction + training)
    cost_of_image = training
    if kind is ImageBuffer:
        cost_of_image += extraction
    replay_cost = steps * REPLAYED * cost_of_image
    cost_of_batch = REPLAYED * (training + extraction)
    assert 2 * new_cost - cost_of_batch <= replay_cost <= 2 * new_cost


def rows_of(maps):
    return [values.numpy().tobytes() for values in maps.detach().contiguous()]


def test_every_class_is_drawn_as_often(make_model):
    model = make_model(n_classes=5)
    memories = filled(model, {0: 1, 1: 9, 2: 3})
    batch = new_batch(model, [3, 3, 3, 4])
    replay = BalancedReplay(2)
    drawn = Counter()
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
    labelled_maps = set(zip(rows_of(stored), labels.tolist()))
    labelled_maps |= set(zip(rows_of(new), batch.labels.tolist()))
    replay = BalancedReplay(2)
    for _ in range(20):
        maps, labels = replay.draw(batch, memories, model)
        assert maps.shape == (REPLAYED, *model.map_shape)
        assert set(zip(rows_of(maps), labels.tolist())) <= labelled_maps


def test_drawn_maps_are_channels_last(make_model):
    """Also without images of the batch."""
    model = make_model(n_classes=5)
    counts = {label: 1 for label in range(1, 50)}
    memories = filled(make_model(n_classes=50), counts)
    batch = new_batch(model, [0])
    replay = BalancedReplay(2)
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


@pytest.mark.parametrize("fused", [False, True])
def test_the_latest_replay_loss(model, make_stream, fused):
    strategy = train(model, make_stream(), CodeBuffer(8), fused=fused)
    assert strategy.replay_loss.shape == ()
    assert strategy.replay_loss > 0
    assert not strategy.replay_loss.requires_grad


class FirstLoss(SupervisedPlugin):
    """The first loss relative to that of the new batch, and the batch's labels.

    Counts replay steps, too.
    """

    def __init__(self):
        super().__init__()
        self.share = None
        self.labels = None
        self.replay_steps = 0

    def before_backward(self, strategy, **kwargs):
        if self.share is None:
            labels = strategy.mb_y
            plain = nn.functional.cross_entropy(strategy.mb_output, labels)
            self.share = float(strategy.loss.detach() / plain.detach())
            self.labels = set(labels.tolist())

    def after_replay_step(self, strategy, **kwargs):
        self.replay_steps += 1


def test_the_new_batch_weighs_its_share_of_the_classes(model, make_stream):
    # Given a strategy that learned two classes
    first, second = make_stream().train_stream
    settings = dict(train_mb_size=5, mem_size=8, replay_compute=2.0)
    strategy = make(CRUMBStrategy, model, **settings)
    strategy.train(first)
    # When it learns 20 images of others
    watch = FirstLoss()
    strategy.plugins.append(watch)
    strategy.train(second)
    # Then the first batch has one new class beside two old ones
    assert len(watch.labels) == 1
    assert watch.share == pytest.approx(1 / 3, rel=1e-4)
    # And as many images are replayed as for each new one
    balanced = strategy.memory.balanced
    images_for_each = balanced.images_for_each(model, strategy.storage_policy)
    assert watch.replay_steps == int(20 * images_for_each // REPLAYED)
