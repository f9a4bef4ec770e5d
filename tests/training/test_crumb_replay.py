"""When CRUMB replays, and what."""

import warnings

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from small_crumb import MEM_SIZE, train

from crumb_avalanche.training.plugins import TrainingDivergedError
from crumb_avalanche.training.storage_policies import CodeBuffer

pytestmark = [
    pytest.mark.filterwarnings("ignore:No loggers specified"),
    pytest.mark.filterwarnings("ignore:Plugin .* implements incompatible callbacks"),  # CRUMB's own events
]


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
