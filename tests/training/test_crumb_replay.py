"""When CRUMB replays, and what; the number of replay batches by cost, and every class alike."""

import warnings
from collections import Counter

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from small_crumb import make, train

from crumb_avalanche.memory.buffers import CodeBuffer, ImageBuffer, MapBuffer, StreamBatch
from crumb_avalanche.models.layers import step_flops
from crumb_avalanche.training.crumb import REPLAYED, BalancedReplay, CRUMBStrategy

pytestmark = pytest.mark.filterwarnings("ignore")


class Replays(SupervisedPlugin):
    """Keeps the labels of new and replayed images of each step."""

    def __init__(self, buffer):
        super().__init__()
        self.pairs, self.experiences = [], []
        replay = buffer.replay

        def logged(slots, model):
            maps, labels = replay(slots, model)
            self.pairs.append((set(self.strategy.mb_y.tolist()), labels.tolist(), len(self.strategy.mb_y)))
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


def filled(model, counts):
    """A buffer with a number of memories of each class, made from random images."""
    labels = torch.tensor([label for label, count in counts.items() for _ in range(count)])
    images = torch.randint(0, 256, (len(labels), 3, 16, 16), generator=torch.Generator().manual_seed(1))
    images = images.to(torch.uint8)
    buffer = CodeBuffer(len(labels))
    buffer.begin_experience(labels.tolist(), len(labels))
    buffer.store(StreamBatch(labels, model.features(images), None, lambda places: images[list(places)]), model)
    return buffer


def new_batch(model, labels):
    images = torch.randint(0, 256, (len(labels), 3, 16, 16), generator=torch.Generator().manual_seed(2))
    maps = model.features(images.to(torch.uint8))
    return StreamBatch(torch.tensor(labels), maps, model.encode(maps), None)


@pytest.mark.parametrize("kind", [CodeBuffer, MapBuffer, ImageBuffer])
def test_a_step_costs_three_times_the_one_without_replay_however_many_classes(make_model, kind):
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
    stored, new = memories.replay(torch.arange(13), model), model.codebook.decode(batch.codes)
    known = [*zip(new, batch.labels.tolist()), *zip(stored[0], stored[1].tolist())]
    replay, drawn = BalancedReplay(2), Counter()
    for _ in range(200):
        maps, labels = replay.draw(batch, memories, model)
        assert maps.shape == (REPLAYED, *model.map_shape) and labels.shape == (REPLAYED,)
        drawn.update(labels.tolist())
    assert all(any(torch.equal(one, other) for other, of in known if of == label) for one, label in zip(maps, labels))
    assert drawn.keys() == {0, 1, 2, 3, 4} and max(drawn.values()) - min(drawn.values()) < 0.1 * 40 * REPLAYED
    # Without images of the batch, too, maps are channels-last; without memories, all are of the batch.
    memories = filled(make_model(n_classes=50), {label: 1 for label in range(1, 50)})
    orders = [replay.draw(new_batch(model, [0]), memories, model)[0] for _ in range(5)]
    assert all(maps.is_contiguous(memory_format=torch.channels_last) for maps in orders)
    assert replay.draw(new_batch(model, [2, 2]), CodeBuffer(3), model)[1].tolist() == [2] * REPLAYED


def test_the_new_batch_weighs_its_share_of_the_classes(make_model, make_stream):
    stream, model = make_stream(), make_model()
    strategy = make(CRUMBStrategy, model, train_mb_size=5, mem_size=8, replay_compute=2.0)
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
