"""Bytes counted by hand, seconds that add up."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from avalanche.benchmarks.utils import DataAttribute, make_avalanche_dataset
from avalanche.benchmarks.utils.transform_groups import DefaultTransformGroups
from avalanche.training.plugins import AGEMPlugin, EvaluationPlugin, GEMPlugin, ReplayPlugin, SupervisedPlugin
from avalanche.training.storage_policy import ClassBalancedBuffer, ExperienceBalancedBuffer, ReservoirSamplingBuffer
from avalanche.training.supervised import Naive
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

from crumb_avalanche.training import ledger as ledger_module
from crumb_avalanche.training.batch_plugin import StoringPlugin
from crumb_avalanche.training.crumb import CRUMBPlugin, CRUMBStrategy
from crumb_avalanche.training.ledger import PARTS, LedgerMetric
from crumb_avalanche.training.storage_policies import CodeBuffer, ImageBuffer, MapBuffer

pytestmark = pytest.mark.filterwarnings("ignore:No loggers specified")
TRAINED = 4 * (8 * 8 * 9 + 8 + 8 * 4 + 4)  # a 3x3 convolution of 8 to 8 channels, a linear layer of 8 to 4
FROZEN = 4 * (3 * 8 * 9 + 8) + 4 * (1 + 3 + 3)  # a 3x3 convolution of 3 to 8; feature scale, pixel mean and deviation
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


@pytest.fixture
def trained(make_model, make_stream):
    """A strategy after both experiences, its ledger, and the ledger's entries after each."""
    model, policy = make_model(), CodeBuffer(10)
    ledger, entries = LedgerMetric(policy), []
    model.stopwatch.seconds.clear()  # F ran when the codebook was initialised
    strategy = CRUMBStrategy(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        storage_policy=policy,
        train_mb_size=6,
        first_epochs=2,
        evaluator=EvaluationPlugin(ledger, loggers=[]),
    )
    for experience in make_stream().train_stream:
        strategy.train(experience)
        entries.append(ledger.result())
    return strategy, ledger, entries


def test_bytes_by_hand(trained):
    _, _, entries = trained
    for after in entries:
        assert {name: after[name] for name in BY_HAND} == BY_HAND


def test_a_frozen_codebook_is_counted_once_and_as_a_codebook(make_model):
    model = make_model()
    model.codebook.requires_grad_(False)
    entries = LedgerMetric(CodeBuffer(10)).count(Naive(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    names = ("plastic_bytes", "frozen_bytes", "codebook_bytes")
    assert {name: entries[name] for name in names} == {name: BY_HAND[name] for name in names}


def test_the_peak_without_the_module_of_unix(monkeypatch):
    monkeypatch.setattr(ledger_module, "resource", None)
    assert 2**27 < ledger_module.peak_rss_bytes() < 2**36


def test_parts_add_up_to_the_time_of_training(trained):
    _, _, (first, last) = trained
    assert first["images_per_second"] * first["train_seconds"] == pytest.approx(2 * 20)  # new images, in two epochs
    assert last["images_per_second"] * last["train_seconds"] == pytest.approx(2 * 20 + 20)
    for after in (first, last):
        parts = [after[f"seconds_{part}"] for part in (*PARTS, "other")]
        assert sum(parts) == pytest.approx(after["train_seconds"])
        assert all(seconds >= 0 for seconds in parts)
        assert all(after[f"seconds_{part}"] > 0 for part in ("features", "search", "plastic"))
    assert first["seconds_replay"] == 0 < last["seconds_replay"]  # nothing is replayed yet
    assert all(last[name] >= first[name] for name in first if name.startswith(("seconds_", "train_")))


def test_time_outside_training_does_not_count(trained, make_stream):
    strategy, ledger, entries = trained
    watch, stream = strategy.model.stopwatch, make_stream()
    # Nothing but training has run so far, so the ledger has what the stopwatch has.
    assert {part: entries[-1][f"seconds_{part}"] for part in PARTS} == pytest.approx(dict(watch.seconds))
    strategy.eval(stream.test_stream)
    evaluation = watch.seconds["features"] - entries[-1]["seconds_features"]
    strategy.train(stream.train_stream[0])
    assert evaluation > 0
    assert ledger.result()["seconds_features"] == pytest.approx(watch.seconds["features"] - evaluation)
    assert ledger.result()["images_per_second"] * ledger.result()["train_seconds"] == pytest.approx(60 + 20)


def test_every_entry_is_a_metric_after_every_experience(trained):
    strategy, ledger, entries = trained
    metrics = strategy.evaluator.get_all_metrics()
    assert {name for name in metrics if name.startswith("Ledger/")} == {f"Ledger/{name}" for name in entries[0]}
    for name in entries[0]:
        steps, values = metrics[f"Ledger/{name}"]
        assert values == [after[name] for after in entries]
        assert len(steps) == 2 and steps[0] < steps[1]
    assert str(ledger) == "Ledger"


class Linear(nn.Module):
    """A linear layer on pixels."""

    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4))

    def forward(self, images):
        return self.network(images.float() / 255)


def make_naive(model, *plugins, **arguments):
    """Avalanche's Naive with a ledger, which has no buffer of its own."""
    return Naive(
        model=model,
        optimizer=torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=0.01),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=6,
        plugins=plugins,
        evaluator=EvaluationPlugin(LedgerMetric(), loggers=[]),
        **arguments,
    )


def memory_of(strategy):
    """Items, bytes and label bytes as the ledger reported them last."""
    (ledger,) = strategy.evaluator.metrics
    return tuple(ledger.result()[name] for name in ("buffer_items", "buffer_bytes", "label_bytes"))


def test_a_learner_without_codebook_and_buffer(make_stream):
    strategy = make_naive(Linear())
    strategy.train(make_stream().train_stream[0])
    entries = strategy.evaluator.metrics[0].result()
    assert not any(entries[name] for name in ("memory_bytes", "buffer_items", "codebook_bytes", "frozen_bytes"))
    assert entries["plastic_bytes"] == 4 * (768 * 4 + 4)
    assert entries["seconds_other"] == entries["train_seconds"] > 0


def test_the_buffer_of_a_plugin_is_found(make_model, make_stream):
    strategy = make_naive(make_model(), CRUMBPlugin(CodeBuffer(10)))
    for experience in make_stream().train_stream:
        strategy.train(experience)
        assert memory_of(strategy) == (10, 160, 20)
    assert strategy.evaluator.metrics[0].result()["memory_bytes"] == BY_HAND["memory_bytes"]


def test_all_buffers_are_summed_each_once(make_model, make_stream):
    shared, second = MapBuffer(10), ImageBuffer(6)
    same = SupervisedPlugin()
    same.storage_policy = shared
    strategy = make_naive(make_model(), CRUMBPlugin(shared), same, StoringPlugin(second))
    strategy.train(make_stream().train_stream[0])
    assert memory_of(strategy) == (16, 10 * 512 + 6 * 768, 32)
    assert LedgerMetric(second).count(strategy)["buffer_bytes"] == 6 * 768


@pytest.mark.parametrize("policy", [ExperienceBalancedBuffer, ClassBalancedBuffer, ReservoirSamplingBuffer])
def test_exemplars_of_avalanches_buffers_count_once(make_stream, policy):
    strategy = make_naive(Linear(), ReplayPlugin(mem_size=11, storage_policy=policy(11)))
    assert LedgerMetric().count(strategy)["memory_bytes"] == 0
    for experience in make_stream().train_stream:
        strategy.train(experience)
        assert memory_of(strategy) == (11, 11 * 3 * 16 * 16, 11 * 8)


class Pictures(Dataset):
    """Three images of 5 x 4 pixels, as a given type."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 3

    def __getitem__(self, number):
        return self.make(np.zeros((5, 4, 3), np.uint8)), number


@pytest.mark.parametrize(
    "make, transform, size",
    [
        (Image.fromarray, lambda image: torch.rand(7), 5 * 4 * 3),
        (lambda array: Image.fromarray(array).convert("L"), None, 5 * 4),
        (lambda array: array, None, 5 * 4 * 3),
        (torch.from_numpy, lambda image: image.float(), 5 * 4 * 3),
        (lambda array: torch.zeros(3, 5, 4), None, 4 * 5 * 4 * 3),
    ],
    ids=["picture", "grey picture", "array", "uint8 tensor", "float tensor"],
)
def test_an_exemplar_counts_as_it_lies_in_its_data_set(make, transform, size):
    data = make_avalanche_dataset(
        Pictures(make),
        data_attributes=[DataAttribute([0, 1, 2], "targets")],
        transform_groups=DefaultTransformGroups((transform, None)),
    )
    policy, before = ReservoirSamplingBuffer(2), torch.get_rng_state()
    strategy = SimpleNamespace(storage_policy=policy, plugins=[])
    policy.update_from_dataset(data)
    torch.set_rng_state(before)
    assert list(ledger_module.replay_memories(strategy)) == [(2, 2 * size, 16)]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "plugin", [AGEMPlugin(patterns_per_experience=7, sample_size=4), GEMPlugin(7, memory_strength=0.5)]
)
def test_memories_outside_a_storage_policy(make_stream, plugin):
    strategy = make_naive(Linear(), plugin)
    for number, experience in enumerate(make_stream().train_stream, start=1):
        strategy.train(experience)
        assert memory_of(strategy) == (7 * number, 7 * number * 768, 7 * number * 8)


class FakeTime(SupervisedPlugin):
    """A clock and a stopwatch that only this plugin moves, the stopwatch's F at half the pace.

    A training iteration takes 1 s, the end of an epoch 10 s and an iteration of evaluation 100 s.
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


@pytest.fixture
def fake_strategy(make_model, monkeypatch):
    """A function that builds a strategy, which trains an experience in 2 epochs of 4 + 10 s, and its fake time."""

    def build(**arguments):
        fake, model = FakeTime(), make_model(codebook=False)
        monkeypatch.setattr(ledger_module, "time", SimpleNamespace(perf_counter=lambda: fake.now))
        model.stopwatch = fake
        return make_naive(model, fake, train_epochs=2, **arguments), fake

    return build


EVALUATIONS = [
    {"eval_every": -1},
    {"eval_every": 0},
    {"eval_every": 1},
    {"eval_every": 2},
    {"eval_every": 1, "peval_mode": "iteration"},
    {"eval_every": 3, "peval_mode": "iteration"},
]


@pytest.mark.parametrize("evaluations", EVALUATIONS, ids=str)
def test_evaluation_during_training_does_not_count(fake_strategy, make_stream, evaluations):
    strategy, fake = fake_strategy(**evaluations)
    (ledger,), stream = strategy.evaluator.metrics, make_stream()
    for number, experience in enumerate(stream.train_stream, start=1):
        strategy.train(experience)
        strategy.eval(stream.test_stream)
        entries = ledger.result()
        assert entries["train_seconds"] == 28 * number
        assert entries["seconds_features"] == entries["seconds_other"] == 14 * number
        assert entries["images_per_second"] == 40 / 28
    assert fake.now > 1000  # evaluations took that long


def test_a_plugin_may_evaluate_after_others_have_worked(fake_strategy, make_stream):
    strategy, fake = fake_strategy()
    stream, evaluates = make_stream(), SupervisedPlugin()
    evaluates.after_training_epoch = lambda strategy, **kwargs: strategy.eval(stream.test_stream)
    strategy.plugins.insert(strategy.plugins.index(fake) + 1, evaluates)
    strategy.train(stream.train_stream[0])
    entries = strategy.evaluator.metrics[0].result()
    assert (entries["train_seconds"], entries["seconds_features"]) == (28, 14)
    assert fake.now > 100


def test_the_state_resumes_bit_for_bit(fake_strategy, make_stream):
    def strategy_and_ledger():
        strategy, fake = fake_strategy(eval_every=1)
        return strategy, fake, strategy.evaluator.metrics[0]

    strategy, fake, ledger = strategy_and_ledger()
    first, second = make_stream().train_stream
    strategy.train(first)
    state, seconds = ledger.state_dict(), dict(fake.seconds)
    state = {name: dict(value) if isinstance(value, dict) else value for name, value in state.items()}
    strategy.train(second)

    again, fake, resumed = strategy_and_ledger()
    resumed.load_state_dict(state)
    fake.seconds.update(seconds)
    again.train(second)
    times = ("train_seconds", "images_per_second", *(f"seconds_{part}" for part in (*PARTS, "other")))
    assert [resumed.result()[name] for name in times] == [ledger.result()[name] for name in times]
    assert resumed.state_dict()["before"] == ledger.state_dict()["before"]
