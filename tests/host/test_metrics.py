"""Our ledger as a metric of Avalanche's, and Avalanche's loggers beside our learners."""

import time

import pytest
from avalanche.evaluation import metrics
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from avalanche.training.supervised import Naive
from host_benchmarks import sgd
from host_streams import TRAINING, learner, our_stream
from small_models import make_model

from crumb_avalanche import (
    CodeBuffer,
    CRUMBPlugin,
    CRUMBStrategy,
    ImageBuffer,
    LedgerMetric,
    MapBuffer,
    SeenClassesPlugin,
)

BUFFERS = {"codes": CodeBuffer, "images": ImageBuffer, "maps": MapBuffer}


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("where", ["strategy", "plugin"])
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside others"])
def test_ledger(buffer, where, beside):
    """GeneralMetricTests for our metric: empty at first, counts of any buffer without being given it, reset."""
    policy, model, ledger = BUFFERS[buffer](8), make_model(), LedgerMetric()
    assert ledger.result() == {}
    others = [metrics.accuracy_metrics(stream=True), metrics.timing_metrics(epoch=True)] if beside else []
    common = {
        "model": model,
        "optimizer": sgd(model),
        "train_mb_size": 5,
        "evaluator": EvaluationPlugin(*others, ledger, loggers=[]),
    }
    if where == "strategy":
        strategy = CRUMBStrategy(storage_policy=policy, first_epochs=1, **common)
    else:
        seen = SeenClassesPlugin()
        strategy = Naive(plugins=[seen, CRUMBPlugin(policy, seen=seen)], **common)
    benchmark = our_stream()
    for experience in benchmark.train_stream:
        strategy.train(experience)
    entries = ledger.result()
    assert (entries["buffer_items"], entries["buffer_bytes"]) == (8, policy.buffer_bytes)
    assert entries["memory_bytes"] == entries["buffer_bytes"] + entries["label_bytes"] + entries["codebook_bytes"]
    latest = strategy.evaluator.get_last_metrics()
    assert {name: latest[f"Ledger/{name}"] for name in entries} == entries
    ledger.reset()
    assert ledger.images == ledger.train_seconds == 0


class SlowEvaluation(SupervisedPlugin):
    """Moves the clock by an hour for each batch that is evaluated."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.hours, clock = 0, time.perf_counter
        monkeypatch.setattr(time, "perf_counter", lambda: clock() + 3600 * self.hours)

    def before_eval_iteration(self, strategy, **kwargs):
        self.hours += 1


@pytest.mark.parametrize("every", [0, 1])
def test_ledger_and_evaluation(every, monkeypatch):
    """PeriodicEval beside our metric: evaluation within training is not training."""
    ledger, slow, benchmark = LedgerMetric(), SlowEvaluation(monkeypatch), our_stream()
    strategy = learner("CRUMBStrategy", [ledger], plugins=[slow], eval_every=every)
    for experience in benchmark.train_stream:
        strategy.train(experience, eval_streams=[benchmark.test_stream])
    entries = ledger.result()
    assert slow.hours >= 4 and 0 < entries["train_seconds"] < 3600
    assert entries["images_per_second"] * entries["train_seconds"] == pytest.approx(2 * TRAINING)
    parts = sum(entries[f"seconds_{part}"] for part in ("features", "search", "plastic", "replay", "other"))
    assert parts == pytest.approx(entries["train_seconds"])
