"""The facts of Avalanche's ``tests/evaluation`` and ``test_stream_completeness.py``, and our ledger as a metric."""

import time

import numpy as np
import pytest
import torch
from avalanche.benchmarks.scenarios.online import split_online_stream
from avalanche.evaluation import metrics
from avalanche.evaluation.functional import forgetting
from avalanche.evaluation.metrics import MAC, ImagesSamplePlugin
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from avalanche.training.supervised import Naive
from host_benchmarks import sgd
from host_streams import LEARNERS, TRAINING, learner, named, our_stream, stream_accuracy
from matplotlib.figure import Figure
from small_models import SIZE, make_model
from torch import nn

from benchmarks_toybox_ilab import pixel_transform
from crumb_avalanche import (
    CodeBuffer,
    CRUMBPlugin,
    CRUMBStrategy,
    ImageBuffer,
    LedgerMetric,
    MapBuffer,
    SeenClassesPlugin,
)

# tests/training/test_stream_completeness.py


def strict(kind, checks: bool, **arguments):
    """A learner whose evaluator checks that a whole stream is evaluated, every time."""
    evaluator = EvaluationPlugin(metrics.accuracy_metrics(stream=True), loggers=None, strict_checks=checks)
    return learner(kind, evaluator=evaluator, **arguments)


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("kind", LEARNERS)
def test_a_part_of_the_stream(kind, checks):
    """TestStreamCompleteness.test_raise_error: a part of the stream is an error, if the evaluator checks."""
    benchmark, strategy = our_stream(), strict(kind, checks)
    for experience in benchmark.train_stream:
        strategy.train(experience)
        strategy.eval(benchmark.test_stream)
    if checks:
        with pytest.raises(ValueError, match="entire evaluation stream"):
            strategy.eval(benchmark.test_stream[:1])
    else:
        strategy.eval(benchmark.test_stream[:1])
    assert 0 <= stream_accuracy(strategy.eval(benchmark.test_stream)) <= 1


@pytest.mark.parametrize("kind", LEARNERS)
def test_no_errors(kind):
    """TestStreamCompleteness.test_no_errors: evaluation within training sees the whole stream."""
    benchmark, strategy = our_stream(), strict(kind, True, eval_every=0)
    for experience in benchmark.train_stream:
        strategy.train(experience, eval_streams=[benchmark.test_stream])
        assert 0 <= stream_accuracy(strategy.eval(benchmark.test_stream)) <= 1


# tests/evaluation


def test_non_diag_forgetting():
    """FunctionalMetricTests.test_non_diag_forgetting: an online stream ends its tasks at steps of its own."""
    benchmark = our_stream()
    strategy = learner("CRUMBStrategy", [metrics.accuracy_metrics(experience=True)])
    matrix, ends = [], []
    for part in split_online_stream(benchmark.train_stream, 8, shuffle=False):
        strategy.train(part)
        values = named(strategy.eval(benchmark.test_stream), "Top1_Acc_Exp/eval_phase")
        matrix.append([values[name] for name in sorted(values)])
        if part.is_last_subexp:
            ends.append(len(matrix) - 1)
    lost = forgetting(matrix, boundary_indices=ends)
    assert ends == [2, 5] and np.abs(lost[:3]).max() == 0
    assert lost[3:, 0] == pytest.approx(matrix[2][0] - np.array(matrix)[3:, 0]) and np.abs(lost[:, 1]).max() == 0


@pytest.mark.parametrize(("disabled", "side"), [(True, 24), (False, SIZE)])
@pytest.mark.parametrize("group", [True, False])
def test_samples_augmentations(disabled, side, group):
    """ImageSamplesTests.test_samples_augmentations: the grid shows frames as they are, or as they are trained on."""
    grid = ImagesSamplePlugin(n_cols=5, n_rows=2, group=group, mode="train", disable_augmentations=disabled)
    benchmark = our_stream(size=24, train_transform=pixel_transform(SIZE))
    strategy = learner("CRUMBStrategy", [grid])
    strategy.train(benchmark.train_stream[0])
    ((name, value),) = named(strategy.evaluator.get_last_metrics(), "images").items()
    assert name == "images/train_phase/train_stream/Task000"
    assert value.image.shape == (3, 2 * (side + 2) + 2, 5 * (side + 2) + 2)


@pytest.mark.parametrize("order", [True, False])
@pytest.mark.parametrize("normalize", ["all", "true", None])
@pytest.mark.filterwarnings("ignore:.*invalid value encountered")
def test_confusion_image(order, normalize):
    """StreamConfusionMatrix as an image, with the labels of our stream."""
    matrix = metrics.StreamConfusionMatrix(4, normalize=normalize, absolute_class_order=order)
    benchmark, strategy = our_stream(), learner("CRUMBStrategy", [matrix])
    strategy.train(benchmark.train_stream[0])
    ((_, value),) = strategy.eval(benchmark.test_stream[:1]).items()
    image, counts = value.alternatives
    assert isinstance(image, Figure)
    total = {"all": 1, "true": 2, None: TRAINING}[normalize]
    assert counts.nan_to_num().sum() == pytest.approx(total)


# tests/test_metrics.py


def test_mac():
    """GeneralMetricTests.test_mac: a split network costs what the same layers cost in one."""
    model, image = make_model(), torch.zeros(1, 3, SIZE, SIZE)
    model(image)  # the first pass tries the feature extractor out
    costs = []
    for network in (model, nn.Sequential(model.feature_extractor, model.plastic_layers)):
        metric = MAC()
        assert metric.result() == 0
        metric.update(network, image)
        costs.append(metric.result())
    assert costs[0] == costs[1] > 0


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
