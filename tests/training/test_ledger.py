"""Bytes counted by hand, seconds that add up."""

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from torch import nn

from crumb_avalanche.training.crumb import CRUMBStrategy
from crumb_avalanche.training.ledger import PARTS, LedgerMetric
from crumb_avalanche.training.storage_policies import CodeBuffer

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


def test_the_bytes_are_those_of_the_tensors(trained):
    strategy, _, entries = trained
    model, policy = strategy.model, strategy.storage_policy
    assert entries[-1]["buffer_bytes"] == policy.rows.untyped_storage().nbytes()
    assert entries[-1]["label_bytes"] == policy.labels.untyped_storage().nbytes()
    everything = [*model.parameters(), *model.buffers()]
    whole = sum(tensor.untyped_storage().nbytes() for tensor in everything)
    assert sum(entries[-1][f"{part}_bytes"] for part in ("plastic", "frozen", "codebook")) == whole
    assert 2**27 < entries[-1]["peak_rss_bytes"] < 2**36  # torch alone takes more than 128 MiB


def test_parts_add_up_to_the_time_of_training(trained):
    _, _, (first, last) = trained
    for after in (first, last):
        parts = [after[f"seconds_{part}"] for part in (*PARTS, "other")]
        assert sum(parts) == pytest.approx(after["train_seconds"])
        assert all(seconds >= 0 for seconds in parts)
        assert all(after[f"seconds_{part}"] > 0 for part in ("features", "search", "plastic"))
    assert first["seconds_replay"] < 0.1 * last["seconds_replay"]  # nothing is replayed yet
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


def test_images_per_second_counts_new_images_and_epochs(trained):
    _, _, (first, last) = trained
    assert first["images_per_second"] * first["train_seconds"] == pytest.approx(2 * 20)
    assert last["images_per_second"] * last["train_seconds"] == pytest.approx(2 * 20 + 20)


def test_every_entry_is_a_metric_after_every_experience(trained):
    strategy, ledger, entries = trained
    metrics = strategy.evaluator.get_all_metrics()
    assert {name for name in metrics if name.startswith("Ledger/")} == {f"Ledger/{name}" for name in entries[0]}
    for name in entries[0]:
        steps, values = metrics[f"Ledger/{name}"]
        assert values == [after[name] for after in entries]
        assert len(steps) == 2 and steps[0] < steps[1]
    assert str(ledger) == "Ledger"


def test_a_learner_without_codebook_and_buffer(make_stream):
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4))

    class Floats(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, images):
            return self.network(images.float() / 255)

    ledger, model = LedgerMetric(), Floats()
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=6,
        evaluator=EvaluationPlugin(ledger, loggers=[]),
    )
    strategy.train(make_stream().train_stream[0])
    entries = ledger.result()
    assert not any(entries[name] for name in ("memory_bytes", "buffer_items", "codebook_bytes", "frozen_bytes"))
    assert entries["plastic_bytes"] == 4 * (768 * 4 + 4)
    assert entries["seconds_other"] == entries["train_seconds"] > 0
