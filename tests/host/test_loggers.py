"""The facts of Avalanche's ``tests/test_loggers.py``: its loggers beside our learners, and what they write."""

import csv
import io
import re

import pytest
import torch
from avalanche.benchmarks.scenarios.online import split_online_stream
from avalanche.evaluation.metrics import (
    accuracy_metrics,
    confusion_matrix_metrics,
    forgetting_metrics,
    images_samples_metrics,
    loss_metrics,
)
from avalanche.logging import CSVLogger, InteractiveLogger, TensorboardLogger, TextLogger
from host_streams import LEARNERS, learner, named, our_stream
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from crumb_avalanche import LedgerMetric

KINDS = ("minibatch", "epoch", "experience", "stream")


def metrics_of():
    """Accuracy and loss in all kinds, forgetting, and our ledger."""
    every = dict.fromkeys(KINDS, True)
    return [accuracy_metrics(**every), loss_metrics(**every), forgetting_metrics(experience=True), LedgerMetric()]


def trained(kind, loggers, metrics=None, **arguments):
    """Train and evaluate on both experiences; return the results of each evaluation."""
    torch.manual_seed(0)
    benchmark, results = our_stream(), []
    strategy = learner(kind, metrics or metrics_of(), loggers, train_epochs=2, **arguments)
    for experience in benchmark.train_stream:
        strategy.train(experience)
        results.append(strategy.eval(benchmark.test_stream))
    return strategy, results


def table(path) -> list[dict]:
    """The rows of a CSV file."""
    with open(path) as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("kind", LEARNERS)
def test_text_logger(kind):
    """TestLoggers.test_text_logger: the text has the numbers that the evaluator returns."""
    text = io.StringIO()
    strategy, results = trained(kind, [TextLogger(text)])
    lines = set(re.findall(r"^\t(\S+) = (\S+)$", text.getvalue(), re.MULTILINE))
    values = strategy.evaluator.get_last_metrics()
    assert values.items() >= results[-1].items() and all(named(values, name) for name in ("Top1_Acc", "Loss", "Ledger"))
    for metric, value in values.items():
        assert (metric, f"{value:.4f}" if isinstance(value, float) else str(value)) in lines
    assert text.getvalue().count("-- >> Start of training phase << --") == 2
    assert text.getvalue().count("-- >> Start of eval phase << --") == 2


@pytest.mark.parametrize("kind", LEARNERS)
def test_interactive_logger(kind, capsys):
    """TestLoggers.test_interactive_logger: the same lines on the screen, beside a bar for each epoch."""
    trained(kind, [InteractiveLogger()])
    out, err = capsys.readouterr()
    assert len(re.findall(r"Top1_Acc_Stream/eval_phase/test_stream/Task000 = 0\.\d{4}", out)) == 2
    assert "Ledger/memory_bytes = " in out
    assert (out + err).count("100%") >= 8  # 2 experiences in 2 epochs each (our strategies: 3 in all), 4 evaluations


@pytest.mark.parametrize("kind", LEARNERS)
def test_csv_logger(kind, tmp_path):
    """TestLoggers.test_csv_logger: a row for each epoch, and for each experience of each evaluation."""
    _, results = trained(kind, [CSVLogger(log_folder=str(tmp_path))])
    training, evaluation = (table(tmp_path / f"{name}_results.csv") for name in ("training", "eval"))
    epochs = [(row["training_exp"], row["epoch"]) for row in training]
    assert len(set(epochs)) == len(epochs) and epochs[-1] == ("1", "1") and epochs[0] == ("0", "0")
    assert all(0 <= float(row["training_accuracy"]) <= 1 and float(row["training_loss"]) > 0 for row in training)
    assert [(row["training_exp"], row["eval_exp"]) for row in evaluation] == [*zip("0011", "0101")]
    for row in evaluation:
        values, place = results[int(row["training_exp"])], f"eval_phase/test_stream/Task000/Exp00{row['eval_exp']}"
        assert float(row["eval_accuracy"]) == pytest.approx(values[f"Top1_Acc_Exp/{place}"], abs=1e-4)
        assert float(row["eval_loss"]) == pytest.approx(values[f"Loss_Exp/{place}"], abs=1e-4)


@pytest.mark.parametrize("kind", LEARNERS)
def test_tensorboard_logger(kind, tmp_path):
    """TestLoggers.test_tensorboard_logger: scalars with their steps, and images."""
    metrics = [*metrics_of(), images_samples_metrics(n_rows=2, n_cols=2), confusion_matrix_metrics(4, stream=True)]
    logger = TensorboardLogger(tmp_path)
    strategy, _ = trained(kind, [logger], metrics)
    logger.writer.flush()
    events = EventAccumulator(str(tmp_path)).Reload()
    curves = strategy.evaluator.get_all_metrics()
    for name in (*named(curves, "Top1_Acc"), *named(curves, "Loss"), *named(curves, "Ledger")):
        steps, values = curves[name]
        written = events.Scalars(name)
        assert [event.step for event in written] == steps
        assert [event.value for event in written] == pytest.approx([float(value) for value in values], rel=1e-6)
    assert any(tag.startswith("images/train_phase") for tag in events.Tags()["images"])
    assert any(tag.startswith("ConfusionMatrix_Stream") for tag in events.Tags()["images"])


@pytest.mark.parametrize("kind", LEARNERS)
def test_several_loggers(kind, tmp_path, capsys):
    """TestLoggers, together: each logger gets every metric, and none changes what is trained."""
    text = io.StringIO()
    loggers = [
        TextLogger(text),
        InteractiveLogger(),
        CSVLogger(str(tmp_path / "csv")),
        TensorboardLogger(tmp_path / "tb"),
    ]
    _, results = trained(kind, loggers)
    _, alone = trained(kind, [])
    assert [named(one, "Top1", "Loss") for one in results] == [named(one, "Top1", "Loss") for one in alone]
    assert "Top1_Acc_Stream" in text.getvalue() and "Top1_Acc_Stream" in capsys.readouterr().out
    assert (tmp_path / "csv" / "eval_results.csv").stat().st_size > 60 and [*(tmp_path / "tb").iterdir()]


@pytest.mark.parametrize("kind", LEARNERS)
def test_loggers_of_an_online_stream(kind, tmp_path):
    """examples/online_naive: an epoch for each part of the stream, by number."""
    text, benchmark = io.StringIO(), our_stream()
    strategy = learner(kind, metrics_of(), [TextLogger(text), CSVLogger(str(tmp_path))])
    for experience in benchmark.train_stream:
        strategy.train(split_online_stream([experience], 8, shuffle=False))
        strategy.eval(benchmark.test_stream)
    rows = table(tmp_path / "training_results.csv")
    assert [row["training_exp"] for row in rows] == ["0", "1", "2"] * 2
    assert text.getvalue().count("Epoch 0 ended.") == 6
