"""When CRUMB replays, and what; the number of replay batches by cost, and every class alike."""

import warnings
from collections import Counter

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from small_crumb import MEM_SIZE, train

from crumb_avalanche.memory.buffers import StreamBatch
from crumb_avalanche.models.layers import step_flops
from crumb_avalanche.training.crumb import REPLAYED, BalancedReplay, CRUMBPlugin, CRUMBStrategy
from crumb_avalanche.training.plugins import TrainingDivergedError
from crumb_avalanche.training.storage_policies import CodeBuffer, ImageBuffer, MapBuffer

pytestmark = pytest.mark.filterwarnings("ignore")


class Replays(SupervisedPlugin):
    """Counts replay events; keeps the labels of new and replayed images of each step."""

    def __init__(self, buffer):
        super().__init__()
        self.events, self.pairs, self.experiences = [], [], []
        replay = buffer.replay

        def logged(slots, model):
            maps, labels = replay(slots, model)
            self.pairs.append((set(self.strategy.mb_y.tolist()), labels.tolist(), len(self.strategy.mb_y)))
            self.experiences.append(self.strategy.clock.train_exp_counter)
            return maps, labels

        buffer.replay = logged

    def before_training(self, strategy, **kwargs):
        self.strategy = strategy

    def before_replay_step(self, strategy, **kwargs):
        self.events.append("step")

    def on_replay_loss(self, strategy, **kwargs):
        assert strategy.replay_loss.requires_grad
        self.events.append("loss")

    def on_replay_update(self, strategy, **kwargs):
        self.events.append("update")

    def after_replay_step(self, strategy, **kwargs):
        assert not strategy.replay_loss.requires_grad
        self.events.append("after")


@pytest.mark.parametrize("replay_steps", [0, 1, 3])
@pytest.mark.parametrize("fused", [False, True])
def test_replay_starts_with_the_second_experience(make_model, make_stream, replay_steps, fused):
    buffer = CodeBuffer(MEM_SIZE)
    replays = Replays(buffer)
    train(make_model(), make_stream(), buffer, [replays], replay_steps=replay_steps, fused=fused)
    # 20 images in batches of 6: four iterations in the second experience, each with so many replay batches.
    assert replays.experiences == [1] * 4 * replay_steps
    assert replays.events == ([] if fused else ["step", "loss", "update", "after"] * 4 * replay_steps)


def test_replay_leaves_out_the_classes_of_the_batch(make_model, make_stream):
    buffer = CodeBuffer(8)
    replays = Replays(buffer)
    train(make_model(), make_stream(), buffer, [replays])
    both = 0
    for new, replayed, size in replays.pairs:
        assert replayed and not new & set(replayed)
        counts = [replayed.count(label) for label in set(replayed)]
        assert len(set(counts)) == 1 and size <= len(replayed) < size + len(counts)
        both += bool(set(replayed) - set(make_stream().train_stream[0].classes_in_this_experience))
    assert both  # the other new class is replayed as soon as it has a memory


def test_classes_that_return_are_replayed_beside_their_new_images(make_model, make_stream):
    stream, buffer = make_stream(), CodeBuffer(8)
    first, second = stream.train_stream
    replays = Replays(buffer)
    stream.train_stream = [first, second, first]
    with pytest.warns(UserWarning, match="class 0 returns in experience 2.*replayed") as warned:
        strategy = train(make_model(), stream, buffer, [replays])
    assert sum("returns" in str(one.message) for one in warned) == 1
    # A new class is left out as long as it is new, a class that returned is not.
    assert replays.experiences == [1] * 4 + [2] * 4
    assert all(not new & set(replayed) for new, replayed, _ in replays.pairs[:4])
    assert all(set(replayed) == {0, 1, 2, 3} for _, replayed, _ in replays.pairs[4:])
    assert strategy.memory.returning == {0, 1}


def test_every_update_of_a_domain_incremental_stream_has_its_replay(make_model, make_stream):
    stream, buffer = make_stream(classes_per_experience=4), CodeBuffer(8)
    experience = stream.train_stream[0]
    stream.train_stream = [experience] * 3
    replays = Replays(buffer)
    with pytest.warns(UserWarning, match="returns"):
        train(make_model(), stream, buffer, [replays])
    assert replays.experiences == [1] * 7 + [2] * 7  # 40 images in batches of 6


def test_no_class_returns_in_the_paper_s_streams(make_model, make_stream):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        train(make_model(), make_stream(), CodeBuffer(8))
    assert not [one for one in warned if "returns" in str(one.message)]


def test_a_replay_loss_that_is_not_finite_stops_the_training(make_model, make_stream):
    class Fault(SupervisedPlugin):
        def on_replay_loss(self, strategy, **kwargs):
            strategy.replay_loss = strategy.replay_loss * float("nan")

    model = make_model()
    with pytest.raises(TrainingDivergedError, match="in experience 1, iteration 0"):
        train(model, make_stream(), CodeBuffer(MEM_SIZE), [Fault()])
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def filled(model, counts, kind=CodeBuffer, size=None):
    """A buffer with a number of memories of each class, made from random images."""
    labels = torch.tensor([label for label, count in counts.items() for _ in range(count)])
    images = torch.randint(0, 256, (len(labels), 3, 16, 16), generator=torch.Generator().manual_seed(1))
    images = images.to(torch.uint8)
    buffer = kind(size or len(labels))
    buffer.begin_experience(labels.tolist(), len(labels))
    buffer.store(StreamBatch(labels, model.features(images), None, lambda places: images[list(places)]), model)
    return buffer


def new_batch(model, labels):
    images = torch.randint(0, 256, (len(labels), 3, 16, 16), generator=torch.Generator().manual_seed(2))
    maps = model.features(images.to(torch.uint8))
    return StreamBatch(torch.tensor(labels), maps, model.encode(maps), None)


def test_every_class_is_drawn_as_often_whatever_its_number_of_images(make_model):
    model = make_model(n_classes=5)
    memories = filled(model, {0: 1, 1: 9, 2: 3})
    batch, replay, drawn = new_batch(model, [3, 3, 3, 4]), BalancedReplay(2), Counter()
    for _ in range(500):
        maps, labels = replay.draw(batch, memories, model)
        assert maps.shape == (REPLAYED, *model.map_shape) and labels.shape == (REPLAYED,)
        drawn.update(labels.tolist())
    assert sum(drawn.values()) == 500 * REPLAYED and drawn.keys() == {0, 1, 2, 3, 4}
    assert max(drawn.values()) - min(drawn.values()) < 0.1 * 100 * REPLAYED


def test_maps_are_channels_last_also_without_new_images(make_model):
    model = make_model(n_classes=50)
    memories = filled(model, {label: 1 for label in range(1, 50)})
    batch, replay, without = new_batch(model, [0]), BalancedReplay(2), 0
    for _ in range(20):
        maps, labels = replay.draw(batch, memories, model)
        without += 0 not in labels
        assert maps.is_contiguous(memory_format=torch.channels_last)
    assert without > 5


def test_maps_are_those_of_their_labels(make_model):
    model = make_model(n_classes=5)
    memories, batch = filled(model, {0: 2, 1: 3}), new_batch(model, [3, 4, 3])
    decoded = model.codebook.decode(batch.codes)
    stored = memories.replay(torch.arange(5), model)
    known = [*zip(decoded, batch.labels.tolist()), *zip(stored[0], stored[1].tolist())]
    for _ in range(10):
        for drawn, label in zip(*BalancedReplay(2).draw(batch, memories, model)):
            assert any(torch.equal(drawn, one) for one, of in known if of == label)


def test_a_batch_of_new_classes_alone_is_drawn_from_itself(make_model):
    model = make_model()
    maps, labels = BalancedReplay(1).draw(new_batch(model, [2, 2]), CodeBuffer(3), model)
    assert labels.tolist() == [2] * REPLAYED and maps.shape[0] == REPLAYED


@pytest.mark.parametrize("kind", [CodeBuffer, MapBuffer, ImageBuffer])
@pytest.mark.parametrize("classes", [8, 100, 1000])
def test_a_step_costs_three_times_the_one_without_replay_however_many_classes(make_model, kind, classes):
    model, replay = make_model(n_classes=classes), BalancedReplay(2)
    extraction, training = step_flops(model)
    batches = [21, 21, 5, 1, 21, 128]
    steps = sum(replay.steps(size, model, kind(classes)) for size in batches)
    bare = sum(batches) * (extraction + training)
    replayed = steps * REPLAYED * (training + (kind is ImageBuffer) * extraction)
    one = REPLAYED * (training + extraction)
    assert 2 * bare - one <= replayed <= 2 * bare


def test_what_fills_no_batch_stays_due(make_model):
    model, replay = make_model(), BalancedReplay(1)
    replay._each = 0.25 * REPLAYED
    assert [replay.steps(1, model, CodeBuffer(1)) for _ in range(5)] == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("compute", [0, -1, float("nan")])
def test_no_replay_is_no_compute(compute):
    with pytest.raises(ValueError, match=r"replay_compute.*above 0"):
        BalancedReplay(compute)


def test_fused_and_balanced_exclude_each_other():
    with pytest.raises(ValueError, match="fused"):
        CRUMBPlugin(CodeBuffer(3), replay_compute=2, fused=True)


def test_the_new_batch_weighs_its_share_of_the_classes(make_model, make_stream):
    stream, model = make_stream(), make_model()
    strategy = CRUMBStrategy(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        train_mb_size=5,
        mem_size=8,
        replay_compute=2.0,
        evaluator=EvaluationPlugin(loggers=[]),
    )
    strategy.train(stream.train_stream[0])
    losses, steps = [], []

    class Watch(SupervisedPlugin):
        def before_backward(self, strategy, **kwargs):
            plain = torch.nn.functional.cross_entropy(strategy.mb_output, strategy.mb_y)
            losses.append((float(strategy.loss.detach() / plain.detach()), len(set(strategy.mb_y.tolist()))))

        def after_replay_step(self, strategy, **kwargs):
            steps.append(strategy.clock.train_exp_iterations)

    strategy.plugins.append(Watch())
    strategy.train(stream.train_stream[1])
    assert losses[0] == (pytest.approx(1 / 3, rel=1e-4), 1)  # one new class beside two old ones
    each = strategy.memory.balanced.images_for_each(model, strategy.storage_policy)
    assert len(steps) == int(20 * each // REPLAYED)
