"""The fact of Avalanche's ``tests/checkpointing``: a resumed run has the metrics of one without interruption, exactly.

The steps are those of its ``task_incremental_with_checkpointing.py``, with our stream and learners.
"""

import pytest
import torch
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.evaluation.metrics import accuracy_metrics, class_accuracy_metrics, loss_metrics
from avalanche.training.determinism.rng_manager import RNGManager
from avalanche.training.plugins import EvaluationPlugin
from host_strategies import buffer_of, our_strategy
from small_models import make_model, make_stream

from crumb_avalanche import CodeBuffer, ImageBuffer, LedgerMetric, MapBuffer


def make(kind, buffer):
    """The benchmark of four experiences and a learner, as at the start of the script."""
    RNGManager.set_random_seeds(1234)
    parts = {"epoch": True, "experience": True, "stream": True}
    metrics = [accuracy_metrics(**parts), loss_metrics(**parts), class_accuracy_metrics(stream=True), LedgerMetric()]
    arguments = dict(train_mb_size=3, evaluator=EvaluationPlugin(*metrics, loggers=[]))
    return make_stream(classes_per_experience=1), our_strategy(kind, make_model(), buffer(6), **arguments)


def train(benchmark, strategy, start=0, stop=4):
    """Train on some experiences; return the metrics after each, without times."""
    results = []
    for experience in list(benchmark.train_stream)[start:stop]:
        strategy.train(experience)
        values = strategy.eval(benchmark.test_stream)
        times = ("Ledger/seconds", "Ledger/train_seconds", "Ledger/images_per_second", "Ledger/peak_rss")
        results.append({name: value for name, value in values.items() if not name.startswith(times)})
    return results


@pytest.mark.parametrize(
    ("kind", "buffer", "stop"),
    [("CRUMBStrategy", CodeBuffer, 1), ("CRUMBStrategy", MapBuffer, 3), ("Naive+CRUMBPlugin", ImageBuffer, 2)],
)
def test_a_run_resumes_from_a_checkpoint_of_avalanches(tmp_path, kind, buffer, stop):
    benchmark, whole = make(kind, buffer)
    expected = train(benchmark, whole)
    benchmark, first = make(kind, buffer)
    results = train(benchmark, first, stop=stop)
    save_checkpoint(first, tmp_path / "checkpoint.pkl")
    torch.rand(11)
    benchmark, second = make(kind, buffer)
    second, start = maybe_load_checkpoint(second, tmp_path / "checkpoint.pkl")
    assert start == stop
    results += train(benchmark, second, start)
    assert results == expected and len(results) == 4 and all(len(one) > 10 for one in results)
    for one, other in zip(whole.model.state_dict().values(), second.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    one, other = buffer_of(whole), buffer_of(second)
    assert len(one) == 6 and torch.equal(one.rows, other.rows) and torch.equal(one.labels, other.labels)
