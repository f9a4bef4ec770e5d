"""Bytes counted by hand, and seconds that add up."""

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
from small_models import make_model, make_stream
from torch import nn
from watched import make

from crumb_avalanche.memory.buffers import CodeBuffer, ImageBuffer, MapBuffer
from crumb_avalanche.training import ledger as ledger_module
from crumb_avalanche.training.batch_plugin import StoringPlugin
from crumb_avalanche.training.crumb import CRUMBPlugin, CRUMBStrategy
from crumb_avalanche.training.ledger import PARTS, LedgerMetric

# Float32 of a 3x3 convolution of 8 to 8 channels, and a linear layer of 8 to 4.
TRAINED = 4 * (8 * 8 * 9 + 8 + 8 * 4 + 4)
# A 3x3 convolution of 3 to 8; feature scale, pixel mean and standard deviation.
FROZEN = 4 * (3 * 8 * 9 + 8) + 4 * (1 + 3 + 3)
BYTES = {
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
IMAGE_BYTES = 3 * 16 * 16


def with_ledger(model, *plugins, kind=Naive, ledger=None, **arguments):
    """A strategy with a ledger, by default Avalanche's Naive, which has no buffer."""
    metric = ledger or LedgerMetric()
    evaluator = EvaluationPlugin(metric, loggers=[])
    return make(kind, model, *plugins, evaluator=evaluator, **arguments)


def entries_of(strategy):
    """What the ledger of a strategy measured last."""
    (ledger,) = strategy.evaluator.metrics
    return ledger.result()


# CRUMB: each experience has 20 images, and is trained on once but the first, twice


class Trained:
    """CRUMB after a stream of two experiences.

    Attributes:
        entries: of the ledger after each experience.
        metrics: all that the evaluator has.
    """

    def __init__(self):
        model = make_model()
        model.stopwatch.seconds.clear()  # F ran when the codebook was initialised
        self.policy = CodeBuffer(10)
        ledger = LedgerMetric(self.policy)
        self.strategy = with_ledger(
            model,
            kind=CRUMBStrategy,
            ledger=ledger,
            storage_policy=self.policy,
            first_epochs=2,
        )
        self.entries = []
        for experience in make_stream().train_stream:
            self.strategy.train(experience)
            self.entries.append(ledger.result())
        self.metrics = self.strategy.evaluator.get_all_metrics()


@pytest.fixture(scope="module")
def trained():
    return Trained()


AFTER_EACH = pytest.mark.parametrize("experience", [0, 1])


@AFTER_EACH
@pytest.mark.parametrize("name", BYTES)
def test_bytes_by_hand(trained, experience, name):
    assert trained.entries[experience][name] == BYTES[name]


@pytest.mark.parametrize(("experience", "images"), [(0, 2 * 20), (1, 2 * 20 + 20)])
def test_images_a_second_are_new_ones(trained, experience, images):
    entries = trained.entries[experience]
    trained_on = entries["images_per_second"] * entries["train_seconds"]
    assert trained_on == pytest.approx(images)


@AFTER_EACH
def test_parts_add_up_to_the_time(trained, experience):
    entries = trained.entries[experience]
    seconds = sum(entries[f"seconds_{part}"] for part in (*PARTS, "other"))
    assert seconds == pytest.approx(entries["train_seconds"])


@AFTER_EACH
@pytest.mark.parametrize("part", ["features", "search", "plastic"])
def test_each_part_takes_time(trained, experience, part):
    assert trained.entries[experience][f"seconds_{part}"] > 0


def test_nothing_is_replayed_at_first(trained):
    first, last = trained.entries
    assert first["seconds_replay"] == 0
    assert last["seconds_replay"] > 0


def test_every_entry_is_a_metric(trained):
    for name, value in trained.entries[0].items():
        _, values = trained.metrics[f"Ledger/{name}"]
        assert values == [value, trained.entries[1][name]]


def test_there_are_no_other_metrics(trained):
    names = [name for name in trained.metrics if name.startswith("Ledger/")]
    assert len(names) == len(trained.entries[0])


@pytest.mark.parametrize("name", ["plastic_bytes", "frozen_bytes", "codebook_bytes"])
def test_a_frozen_codebook_counts_once(name):
    trained = Trained()
    trained.strategy.model.codebook.requires_grad_(False)
    entries = LedgerMetric(trained.policy).count(trained.strategy)
    assert entries[name] == BYTES[name]


# Strategies and plugins of Avalanche


class Floats(nn.Module):
    """Pixels as floats, for a network of linear layers."""

    def forward(self, images):
        return images.flatten(1).float()


def linear_model():
    return nn.Sequential(Floats(), nn.Linear(IMAGE_BYTES, 4))


def replay():
    return ReplayPlugin(mem_size=11, storage_policy=ExperienceBalancedBuffer(11))


def agem():
    return AGEMPlugin(patterns_per_experience=7, sample_size=4)


def gem():
    return GEMPlugin(7, memory_strength=0.5)


@pytest.mark.parametrize(
    ("make_plugin", "experiences", "images"),
    [
        (replay, 1, 11),
        (replay, 2, 11),
        (agem, 1, 7),
        (agem, 2, 14),
        (gem, 1, 7),
        (gem, 2, 14),
    ],
)
def test_memories_of_avalanche(make_stream, make_plugin, experiences, images):
    strategy = with_ledger(linear_model(), make_plugin())
    for experience in make_stream().train_stream[:experiences]:
        strategy.train(experience)
    entries = entries_of(strategy)
    assert entries["buffer_items"] == images
    assert entries["buffer_bytes"] == images * IMAGE_BYTES
    assert entries["label_bytes"] == images * 8


@pytest.mark.parametrize("make_plugin", [replay, agem, gem])
def test_no_memories_before_training(make_plugin):
    strategy = with_ledger(linear_model(), make_plugin())
    assert LedgerMetric().count(strategy)["memory_bytes"] == 0


@pytest.fixture(scope="module")
def naive():
    """Avalanche's strategy after an experience."""
    strategy = with_ledger(linear_model())
    strategy.train(make_stream().train_stream[0])
    return entries_of(strategy)


def test_bytes_of_a_network_of_avalanche(naive):
    assert naive["codebook_bytes"] == 0
    assert naive["plastic_bytes"] == 4 * (IMAGE_BYTES * 4 + 4)


def test_seconds_without_a_stopwatch(naive):
    assert naive["train_seconds"] > 0
    assert naive["seconds_other"] == naive["train_seconds"]


# Several buffers


@pytest.fixture(scope="module")
def two_buffers():
    """A strategy with three plugins, two of which have the same buffer."""
    maps = MapBuffer(10)
    same = SupervisedPlugin()
    same.storage_policy = maps
    plugins = [CRUMBPlugin(maps), same, StoringPlugin(ImageBuffer(6))]
    strategy = with_ledger(make_model(), *plugins)
    strategy.train(make_stream().train_stream[0])
    return strategy


def test_all_buffers_count_each_once(two_buffers):
    entries = entries_of(two_buffers)
    assert entries["buffer_items"] == 10 + 6
    assert entries["buffer_bytes"] == 10 * 512 + 6 * IMAGE_BYTES
    assert entries["label_bytes"] == 32


def test_one_buffer_alone(two_buffers):
    images = two_buffers.plugins[2].storage_policy
    entries = LedgerMetric(images).count(two_buffers)
    assert entries["buffer_bytes"] == 6 * IMAGE_BYTES


# Seconds


class FakeTime(SupervisedPlugin):
    """A clock and a stopwatch that only this plugin moves.

    A training iteration takes 1 s, the end of an epoch 10 s and an iteration of
    evaluation 100 s; half of it is F.
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


class Timed:
    """A learner of two epochs an experience, each of 4 + 10 s, with evaluations.

    Args:
        eval_every, peval_mode: when it is evaluated during training.
    """

    def __init__(self, monkeypatch, eval_every, peval_mode):
        self.clock = FakeTime()
        clock = SimpleNamespace(perf_counter=lambda: self.clock.now)
        monkeypatch.setattr(ledger_module, "time", clock)
        model = make_model()
        model.stopwatch = self.clock
        self.stream = make_stream()
        self.strategy = with_ledger(
            model,
            self.clock,
            train_epochs=2,
            eval_every=eval_every,
            peval_mode=peval_mode,
        )
        (self.ledger,) = self.strategy.evaluator.metrics

    def learn(self, number):
        self.strategy.train(self.stream.train_stream[number])
        self.strategy.eval(self.stream.test_stream)


EVALUATIONS = pytest.mark.parametrize(
    ("eval_every", "peval_mode"),
    [(0, "epoch"), (3, "iteration")],  # at the ends, between iterations
)


@EVALUATIONS
def test_evaluation_does_not_count(monkeypatch, eval_every, peval_mode):
    timed = Timed(monkeypatch, eval_every, peval_mode)
    timed.learn(0)
    timed.learn(1)
    assert timed.clock.now > 500  # evaluations took that long
    entries = timed.ledger.result()
    assert entries["train_seconds"] == 2 * 28
    assert entries["seconds_features"] == entries["seconds_other"] == 28
    assert entries["images_per_second"] == 40 / 28


@EVALUATIONS
def test_seconds_are_resumed(monkeypatch, eval_every, peval_mode):
    timed = Timed(monkeypatch, eval_every, peval_mode)
    timed.learn(0)
    state = timed.ledger.state_dict()
    resumed = Timed(monkeypatch, eval_every, peval_mode)
    resumed.ledger.load_state_dict(state)
    resumed.clock.seconds.update(timed.clock.seconds)
    resumed.learn(1)
    entries = resumed.ledger.result()
    assert entries["train_seconds"] == 2 * 28
    assert entries["seconds_features"] == entries["seconds_other"] == 28
    assert entries["images_per_second"] == 40 / 28
