"""A run resumes from a checkpoint of Avalanche's own functions, bit for bit."""

import pytest
import torch
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.evaluation.metrics import (
    accuracy_metrics,
    class_accuracy_metrics,
    loss_metrics,
)
from avalanche.training.determinism.rng_manager import RNGManager
from avalanche.training.plugins import EvaluationPlugin
from host_benchmarks import buffer_of, our_strategy
from small_models import make_model, make_stream

from crumb_avalanche import CodeBuffer, ImageBuffer, LedgerMetric, MapBuffer

pytestmark = pytest.mark.filterwarnings("ignore")
TIMES = (
    "Ledger/seconds",
    "Ledger/train_seconds",
    "Ledger/images_per_second",
    "Ledger/peak_rss",
)


def make(kind, buffer):
    """The benchmark of four experiences and a learner, as a script begins."""
    RNGManager.set_random_seeds(1234)
    levels = {"epoch": True, "experience": True, "stream": True}
    evaluator = EvaluationPlugin(
        accuracy_metrics(**levels),
        loss_metrics(**levels),
        class_accuracy_metrics(stream=True),
        LedgerMetric(),
        loggers=[],
    )
    strategy = our_strategy(
        kind, make_model(), buffer(6), train_mb_size=3, evaluator=evaluator
    )
    return make_stream(classes_per_experience=1), strategy


def train(benchmark, strategy, start=0, stop=4):
    """Train on some experiences; return the metrics after each, without times."""
    results = []
    for experience in list(benchmark.train_stream)[start:stop]:
        strategy.train(experience)
        metrics = strategy.eval(benchmark.test_stream)
        results.append(
            {
                name: value
                for name, value in metrics.items()
                if not name.startswith(TIMES)
            }
        )
    return results


QUICK = [
    ("CRUMBStrategy", CodeBuffer, 1),
    ("CRUMBStrategy", MapBuffer, 3),
    ("Naive+CRUMBPlugin", ImageBuffer, 2),
]
OTHERS = [
    pytest.param("CRUMBStrategy", ImageBuffer, 2, marks=pytest.mark.slow),
    pytest.param("Naive+CRUMBPlugin", CodeBuffer, 3, marks=pytest.mark.slow),
    pytest.param("StreamStrategy", CodeBuffer, 2, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "buffer", "stop"), [*QUICK, *OTHERS])
def test_a_run_resumes(tmp_path, kind, buffer, stop):
    path = tmp_path / "checkpoint.pkl"
    benchmark, uninterrupted = make(kind, buffer)
    expected = train(benchmark, uninterrupted)
    benchmark, first = make(kind, buffer)
    results = train(benchmark, first, stop=stop)
    save_checkpoint(first, path)
    torch.rand(11)
    benchmark, fresh = make(kind, buffer)
    resumed, start = maybe_load_checkpoint(fresh, path)
    assert start == stop
    results += train(benchmark, resumed, start)

    assert results == expected
    assert [len(metrics) > 10 for metrics in results] == 4 * [True]
    weights = resumed.model.state_dict()
    for name, value in uninterrupted.model.state_dict().items():
        assert torch.equal(value, weights[name])
    if kind != "StreamStrategy":
        memories, resumed_memories = buffer_of(uninterrupted), buffer_of(resumed)
        assert len(memories) == 6
        assert torch.equal(memories.rows, resumed_memories.rows)
        assert torch.equal(memories.labels, resumed_memories.labels)


def test_without_a_file_a_run_begins(tmp_path):
    _, strategy = make("CRUMBStrategy", CodeBuffer)
    loaded, start = maybe_load_checkpoint(strategy, tmp_path / "none.pkl")
    assert loaded is strategy
    assert start == 0
