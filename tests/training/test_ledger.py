"""Bytes counted by hand, seconds that add up."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from avalanche.training.plugins import (
    AGEMPlugin,
    EvaluationPlugin,
    GEMPlugin,
    ReplayPlugin,
    SupervisedPlugin,
)
from avalanche.training.storage_policy import ExperienceBalancedBuffer
from avalanche.training.supervised import Naive
from torch import nn
from watched import make

from crumb_avalanche.memory.buffers import CodeBuffer, ImageBuffer, MapBuffer
from crumb_avalanche.training import ledger as ledger_module
from crumb_avalanche.training.batch_plugin import StoringPlugin
from crumb_avalanche.training.crumb import CRUMBPlugin, CRUMBStrategy
from crumb_avalanche.training.ledger import PARTS, LedgerMetric

TRAINED = 4 * (
    8 * 8 * 9 + 8 + 8 * 4 + 4
)  # a 3x3 convolution of 8 to 8 channels, a linear layer of 8 to 4
FROZEN = 4 * (3 * 8 * 9 + 8) + 4 * (
    1 + 3 + 3
)  # a 3x3 convolution of 3 to 8; feature scale, pixel mean and deviation
BY_HAND = {
    "buffer_items": 10,
    "buffer_bytes": 10 * 16,  # 2 x 4 x 4 codes of 4 bits
    "label_bytes": 10 * 2,
    "codebook_bytes": 8 * 4 * 4,
    "statistics_bytes": 0,
    "memory_bytes": 160 + 20 + 128,
    "derived_bytes": 0,
    "plastic_bytes": TRAINED,
    "frozen_bytes": FROZEN,
    "optimizer_bytes": TRAINED + 8 * 4 * 4,  # a momentum for every trained number
}


def with_ledger(model, *plugins, kind=Naive, ledger=None, **arguments):
    """A strategy with a ledger, by default Avalanche's Naive, which has no buffer of its own."""
    evaluator = EvaluationPlugin(
        LedgerMetric() if ledger is None else ledger, loggers=[]
    )
    return make(kind, model, *plugins, evaluator=evaluator, **arguments)


def test_bytes_by_hand_and_parts_that_add_up_to_the_time_of_training(
    model, make_stream
):
    policy, stream = CodeBuffer(10), make_stream()
    ledger, entries = LedgerMetric(policy), []
    model.stopwatch.seconds.clear()  # F ran when the codebook was initialised
    strategy = with_ledger(
        model, kind=CRUMBStrategy, ledger=ledger, storage_policy=policy, first_epochs=2
    )
    for experience in stream.train_stream:
        strategy.train(experience)
        entries.append(ledger.result())
    first, last = entries
    assert first["images_per_second"] * first["train_seconds"] == pytest.approx(
        2 * 20
    )  # new images, in two epochs
    assert last["images_per_second"] * last["train_seconds"] == pytest.approx(
        2 * 20 + 20
    )
    for after in entries:
        assert {name: after[name] for name in BY_HAND} == BY_HAND
        assert sum(
            after[f"seconds_{part}"] for part in (*PARTS, "other")
        ) == pytest.approx(after["train_seconds"])
        assert all(
            after[f"seconds_{part}"] > 0 for part in ("features", "search", "plastic")
        )
    assert (
        first["seconds_replay"] == 0 < last["seconds_replay"]
    )  # nothing is replayed yet
    # Every entry is a metric after every experience.
    metrics = strategy.evaluator.get_all_metrics()
    assert {name for name in metrics if name.startswith("Ledger/")} == {
        f"Ledger/{name}" for name in first
    }
    assert all(
        metrics[f"Ledger/{name}"][1] == [after[name] for after in entries]
        for name in first
    )
    # A frozen codebook counts once, as a codebook.
    model.codebook.requires_grad_(False)
    counted = LedgerMetric(policy).count(strategy)
    names = ("plastic_bytes", "frozen_bytes", "codebook_bytes")
    assert {name: counted[name] for name in names} == {
        name: BY_HAND[name] for name in names
    }


def memory_of(strategy):
    """Items, bytes and label bytes as the ledger reported them last."""
    (ledger,) = strategy.evaluator.metrics
    return tuple(
        ledger.result()[name]
        for name in ("buffer_items", "buffer_bytes", "label_bytes")
    )


class Floats(nn.Module):
    """Pixels as floats, for a network of linear layers."""

    def forward(self, images):
        return images.flatten(1).float()


@pytest.mark.parametrize(
    ("make_plugin", "images"),
    [
        (
            lambda: ReplayPlugin(
                mem_size=11, storage_policy=ExperienceBalancedBuffer(11)
            ),
            (11, 11),
        ),
        (lambda: AGEMPlugin(patterns_per_experience=7, sample_size=4), (7, 14)),
        (lambda: GEMPlugin(7, memory_strength=0.5), (7, 14)),
    ],
)
def test_memories_of_avalanche(make_stream, make_plugin, images):
    strategy = with_ledger(
        nn.Sequential(Floats(), nn.Linear(3 * 16 * 16, 4)), make_plugin()
    )
    assert LedgerMetric().count(strategy)["memory_bytes"] == 0
    for count, experience in zip(images, make_stream().train_stream):
        strategy.train(experience)
        assert memory_of(strategy) == (count, count * 3 * 16 * 16, count * 8)
    entries = strategy.evaluator.metrics[0].result()
    assert (entries["codebook_bytes"], entries["plastic_bytes"]) == (
        0,
        4 * (768 * 4 + 4),
    )
    assert entries["seconds_other"] == entries["train_seconds"] > 0


def test_all_buffers_are_summed_each_once(make_model, make_stream):
    shared, second = MapBuffer(10), ImageBuffer(6)
    same = SupervisedPlugin()
    same.storage_policy = shared
    strategy = with_ledger(
        make_model(), CRUMBPlugin(shared), same, StoringPlugin(second)
    )
    strategy.train(make_stream().train_stream[0])
    assert memory_of(strategy) == (16, 10 * 512 + 6 * 768, 32)
    assert LedgerMetric(second).count(strategy)["buffer_bytes"] == 6 * 768


class FakeTime(SupervisedPlugin):
    """A clock and a stopwatch that only this plugin moves, the stopwatch's F at half the pace.

    A training iteration takes 1 s, the end of an epoch 10 s and an iteration of
    evaluation 100 s.
    """

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def measure(self, name):
        return nullcontext()

    def spend(self, seconds):
        self.now += seconds
        self.seconds["features"] += seconds / 2

    def before_training_iteration(self, strategy, **kwargs):
        self.spend(1)

    def after_training_epoch(self, strategy, **kwargs):
        self.spend(10)

    def before_eval_iteration(self, strategy, **kwargs):
        self.spend(100)


@pytest.mark.parametrize(
    ("every", "mode"), [(0, "epoch"), (3, "iteration")]
)  # at the ends, between iterations
def test_evaluation_during_training_does_not_count_and_the_state_resumes(
    model, make_stream, monkeypatch, every, mode
):
    """An experience is trained on in 2 epochs of 4 + 10 s."""

    def build():
        fake = FakeTime()
        monkeypatch.setattr(
            ledger_module, "time", SimpleNamespace(perf_counter=lambda: fake.now)
        )
        model.stopwatch = fake
        strategy = with_ledger(
            model, fake, train_epochs=2, eval_every=every, peval_mode=mode
        )
        return strategy, fake, strategy.evaluator.metrics[0]

    def learn(number):
        strategy.train(stream.train_stream[number])
        strategy.eval(stream.test_stream)
        entries = ledger.result()
        assert entries["train_seconds"] == 28 * (number + 1)
        assert (
            entries["seconds_features"] == entries["seconds_other"] == 14 * (number + 1)
        )
        assert entries["images_per_second"] == 40 / 28

    stream, (strategy, fake, ledger) = make_stream(), build()
    learn(0)
    state, seconds = ledger.state_dict(), dict(fake.seconds)
    state = {
        name: dict(value) if isinstance(value, dict) else value
        for name, value in state.items()
    }
    learn(1)
    assert fake.now > 500  # evaluations took that long
    strategy, fake, ledger = build()
    ledger.load_state_dict(state)
    fake.seconds.update(seconds)
    learn(1)
