"""The facts of Avalanche's ``tests/test_metrics.py`` and ``tests/evaluation``, for what our learners and streams give.

Every metric is compared with a value computed here from the recorded outputs and labels.
"""

import io
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from avalanche.evaluation import metrics
from avalanche.evaluation.collector import MetricCollector
from avalanche.evaluation.functional import forgetting
from avalanche.logging import TextLogger
from host_streams import LEARNERS, TRAINING, Outputs, learner, named, our_stream
from small_models import SIZE
from torch import nn
from torch.nn.functional import cross_entropy

from crumb_avalanche import LedgerMetric

OLD, NEW = 0, 1  # the two experiences
DISK_BYTES = 3000


@dataclass
class Run:
    """A learner after both experiences, with what it recorded and what the metrics say."""

    strategy: object
    outputs: Outputs
    results: list[dict]
    text: str

    def outputs_of(self, call: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs and labels of one experience in one call of ``eval``."""
        return tuple(torch.cat(parts) for parts in zip(*self.outputs.evaluations[call][number]))

    def accuracy(self, call: int, number: int, k: int = 1) -> float:
        """The share of images whose label is among the largest k outputs."""
        outputs, labels = self.outputs_of(call, number)
        return (outputs.topk(k).indices == labels[:, None]).any(1).float().mean().item()

    def true_outputs(self, calls, number: int) -> torch.Tensor:
        """The outputs of the true class of one experience's images, in some calls."""
        both = [self.outputs_of(call, number) for call in calls]
        return torch.cat([outputs.gather(1, labels[:, None]) for outputs, labels in both])

    @property
    def masked(self) -> bool:
        """Whether classes that were not seen yet are left out of the outputs."""
        return not isinstance(self.strategy.model, nn.Sequential)

    def last(self, name: str) -> float:
        """The newest value of the only metric whose name starts so."""
        (value,) = named(self.strategy.evaluator.get_last_metrics(), name).values()
        return value

    def all(self, name: str) -> list:
        """All values of the only metric whose name starts so."""
        (values,) = (
            values for key, (_, values) in self.strategy.evaluator.get_all_metrics().items() if key.startswith(name)
        )
        return values


def all_metrics(folder):
    """Every family of Avalanche's metrics, in all its kinds, and our ledger."""
    common = {"minibatch": True, "epoch": True, "experience": True, "stream": True}
    return [
        metrics.accuracy_metrics(**common, epoch_running=True, trained_experience=True),
        metrics.loss_metrics(**common, epoch_running=True),
        metrics.forgetting_metrics(experience=True, stream=True),
        metrics.bwt_metrics(experience=True, stream=True),
        metrics.forward_transfer_metrics(experience=True, stream=True),
        metrics.class_accuracy_metrics(**common, epoch_running=True),
        metrics.topk_acc_metrics(top_k=2, **common, trained_experience=True),
        metrics.amca_metrics(),
        metrics.accuracy_matrix_metrics(),
        metrics.CumulativeAccuracyPluginMetric(),
        metrics.confusion_matrix_metrics(num_classes=4, save_image=False, stream=True),
        metrics.mean_scores_metrics(image_creator=None),
        metrics.labels_repartition_metrics(on_eval=True, image_creator=None),
        metrics.images_samples_metrics(n_rows=2, n_cols=3, on_eval=True),
        metrics.MAC_metrics(minibatch=True, epoch=True, experience=True),
        metrics.timing_metrics(**common, epoch_running=True),
        metrics.cpu_usage_metrics(**common, epoch_running=True),
        metrics.ram_usage_metrics(every=0.01, **common),
        metrics.disk_usage_metrics(paths_to_monitor=[str(folder / "file")], epoch=True, stream=True),
        metrics.WeightCheckpoint(),
        LedgerMetric(),
    ]


@pytest.fixture(scope="module", params=LEARNERS)
def run(request, tmp_path_factory) -> Run:
    """Train on both experiences with all metrics at once; evaluated before, and after each."""
    folder = tmp_path_factory.mktemp("disk")
    (folder / "file").write_bytes(bytes(DISK_BYTES))
    torch.manual_seed(0)
    outputs, text, benchmark = Outputs(), io.StringIO(), our_stream()
    # Evaluation within training comes first: Avalanche's forward transfer needs one before any training.
    strategy = learner(request.param, all_metrics(folder), [TextLogger(text)], [outputs], eval_every=0, train_epochs=2)
    results = []
    for experience in benchmark.train_stream:
        strategy.train(experience, eval_streams=[benchmark.test_stream])
        results.append(strategy.eval(benchmark.test_stream))
    return Run(strategy, outputs, results, text.getvalue())


# The calls of ``eval``: for each experience at the start and the end of its training, and after it.
START, AFTER_OLD, AFTER_NEW = 0, 2, 5


def test_calls(run):
    """PeriodicEval: evaluation changes nothing, so what comes after training and before the next agrees."""
    assert [sorted(call) for call in run.outputs.evaluations] == [[OLD, NEW]] * 6
    for first, second in ((1, AFTER_OLD), (AFTER_OLD, 3), (4, AFTER_NEW)):
        assert torch.equal(run.outputs_of(first, OLD)[0], run.outputs_of(second, OLD)[0])


def test_accuracy(run):
    """GeneralMetricTests.test_accuracy, in all its kinds."""
    for call, results in zip((AFTER_OLD, AFTER_NEW), run.results):
        for number in (OLD, NEW):
            name = f"Top1_Acc_Exp/eval_phase/test_stream/Task000/Exp{number:03}"
            assert results[name] == pytest.approx(run.accuracy(call, number))
        whole = sum(run.accuracy(call, number) for number in (OLD, NEW)) / 2  # as many images in each
        assert results["Top1_Acc_Stream/eval_phase/test_stream/Task000"] == pytest.approx(whole)
    assert run.last("Accuracy_On_Trained_Experiences") == pytest.approx(whole)
    batches = [(outputs.argmax(1) == labels).float() for outputs, labels in run.outputs.batches]
    assert run.all("Top1_Acc_MB/train_phase") == pytest.approx([float(batch.mean()) for batch in batches])
    epochs = len(run.all("Top1_Acc_Epoch/train_phase"))
    per_epoch = torch.cat(batches).view(epochs, TRAINING).mean(1)
    assert run.all("Top1_Acc_Epoch/train_phase") == pytest.approx(per_epoch.tolist())
    assert run.all("Top1_RunningAcc_Epoch/train_phase")[-1] == pytest.approx(float(per_epoch[-1]))


def test_loss(run):
    """GeneralMetricTests.test_loss: the loss of evaluation is finite, for classes not seen yet, too."""
    for call, results in zip((AFTER_OLD, AFTER_NEW), run.results):
        by_hand = [float(cross_entropy(*run.outputs_of(call, number))) for number in (OLD, NEW)]
        for number in (OLD, NEW):
            name = f"Loss_Exp/eval_phase/test_stream/Task000/Exp{number:03}"
            assert results[name] == pytest.approx(by_hand[number], rel=1e-5)
        assert results["Loss_Stream/eval_phase/test_stream/Task000"] == pytest.approx(np.mean(by_hand), rel=1e-5)
    if run.masked:
        assert run.results[0]["Loss_Exp/eval_phase/test_stream/Task000/Exp001"] == pytest.approx(13.8, abs=0.1)
        assert max(by_hand) < 13
    batches = torch.tensor(run.all("Loss_MB/train_phase"))
    epochs = run.all("Loss_Epoch/train_phase")
    assert epochs == pytest.approx(batches.view(len(epochs), -1).mean(1).tolist(), rel=1e-5)


def test_topk(run):
    """TopkAccuracy, as test_accuracy: the label is among the two largest outputs."""
    for number in (OLD, NEW):
        name = f"Topk_2_Acc_Exp/eval_phase/test_stream/Task000/Exp{number:03}"
        assert run.last(name) == pytest.approx(run.accuracy(AFTER_NEW, number, k=2))
    assert run.last("Topk_2_Acc_Stream") == pytest.approx(
        np.mean([run.accuracy(AFTER_NEW, one, 2) for one in (OLD, NEW)])
    )


def test_class_accuracy(run):
    """GeneralMetricTests.test_class_accuracy, test_class_accuracy_extended."""
    for number in (OLD, NEW):
        outputs, labels = run.outputs_of(AFTER_NEW, number)
        for label in labels.unique().tolist():
            right = (outputs.argmax(1) == labels)[labels == label].float().mean()
            assert run.last(f"Top1_ClassAcc_Stream/eval_phase/test_stream/Task000/{label}") == pytest.approx(
                float(right)
            )
            assert run.last(
                f"Top1_ClassAcc_Exp/eval_phase/test_stream/Task000/Exp{number:03}/{label}"
            ) == pytest.approx(float(right))


def test_amca(run):
    """GeneralMetricTests.test_amca_first_update: the mean over classes, then over the calls of ``eval``."""
    means = [np.mean([run.accuracy(call, number) for number in (OLD, NEW)]) for call in (AFTER_OLD, AFTER_NEW)]
    assert run.all("Top1_AMCA_Stream") == pytest.approx([means[0], np.mean(means)])


def test_accuracy_matrix_and_forgetting(run):
    """FunctionalMetricTests.test_diag_forgetting, MetricCollectorTests: from our accuracy matrix."""
    matrix = [[run.accuracy(call, number) for number in (OLD, NEW)] for call in (AFTER_OLD, AFTER_NEW)]
    assert run.last("EvalStream/Acc_Matrix").tolist() == pytest.approx(np.array(matrix))
    lost = matrix[0][OLD] - matrix[1][OLD]
    assert forgetting(matrix)[-1].tolist() == pytest.approx([lost, 0])
    collector = MetricCollector()
    for row in matrix:
        collector.update({"accuracy": row}, stream=our_stream().test_stream)
    reduced = collector.get("accuracy", time_reduce="last", exp_reduce="sample_mean", stream=our_stream().test_stream)
    assert reduced == pytest.approx(run.last("Top1_Acc_Stream/eval_phase"))


def test_forgetting_and_bwt(run):
    """GeneralMetricTests.test_forgetting."""
    lost = run.accuracy(AFTER_OLD, OLD) - run.accuracy(AFTER_NEW, OLD)
    assert run.last("ExperienceForgetting/eval_phase/test_stream/Task000/Exp000") == pytest.approx(lost)
    assert run.last("StreamForgetting") == pytest.approx(lost)
    assert run.last("ExperienceBWT/eval_phase/test_stream/Task000/Exp000") == pytest.approx(-lost)
    assert run.last("StreamBWT") == pytest.approx(-lost)


def test_forward_transfer(run):
    """GeneralMetricTests.test_forward_transfer: what one experience changes of the next."""
    gained = run.accuracy(AFTER_OLD, NEW) - run.accuracy(START, NEW)
    assert run.last("ExperienceForwardTransfer/eval_phase/test_stream/Task000/Exp001") == pytest.approx(gained)
    assert run.last("StreamForwardTransfer") == pytest.approx(gained)


def test_cumulative_accuracy(run):
    """CumulativeAccuracy: among the classes up to an experience only."""
    for number, known in ((OLD, {0, 1}), (NEW, {0, 1, 2, 3})):
        outputs, labels = map(torch.cat, zip(*(run.outputs_of(AFTER_NEW, one) for one in (OLD, NEW)[: number + 1])))
        columns = sorted(known)
        right = (torch.tensor(columns)[outputs[:, columns].argmax(1)] == labels).float().mean()
        assert run.last(f"CumulativeAccuracy/eval_phase/test_stream/Exp{number:03}") == pytest.approx(float(right))


def test_confusion_matrix(run):
    """GeneralMetricTests.test_cm: rows are labels, columns predictions."""
    counts = torch.zeros(4, 4)
    for number in (OLD, NEW):
        outputs, labels = run.outputs_of(AFTER_NEW, number)
        counts.index_put_((labels, outputs.argmax(1)), torch.ones(len(labels)), accumulate=True)
    assert torch.equal(run.last("ConfusionMatrix_Stream").float(), counts) and counts.sum() == 2 * TRAINING


def test_mean_scores(run):
    """mean_scores_metrics: the mean output of the true class, for old and new classes."""
    name = "MeanScores/eval_phase/test_stream"
    # Those of evaluation start anew with each call of ``train``, before its own evaluations.
    calls = (3, 4, AFTER_NEW)
    old, new = (float(run.true_outputs(calls, number).mean()) for number in (OLD, NEW))
    assert run.last(f"{name}/old_classes") == pytest.approx(old, rel=1e-4)
    assert run.last(f"{name}/new_classes") == pytest.approx(new, rel=1e-4)
    assert run.last(f"{name}/new_old_diff") == pytest.approx(new - old, rel=1e-3)
    outputs, labels = map(torch.cat, zip(*run.outputs.batches[-TRAINING // 5 :]))
    mean = float(outputs.gather(1, labels[:, None]).mean())
    assert run.last("MeanScores/train_phase/train_stream/new_classes") == pytest.approx(mean, rel=1e-4)


def test_labels_repartition(run):
    """labels_repartition_metrics: new images only, memories are not counted."""
    training = run.last("Repartition/train_phase/train_stream/Task_000")
    assert {label: counts[-1] for label, counts in training.items()} == {0: 0, 1: 0, 2: 10, 3: 10}
    tested = run.last("Repartition/eval_phase/test_stream/Task_000")
    assert {label: counts[-1] for label, counts in tested.items()} == dict.fromkeys(range(4), 10)


def test_images(run):
    """ImageSamplesTests.test_image_samples: a grid of two rows of three images, with two pixels between them."""
    for name in ("images/train_phase", "images/eval_phase/test_stream/Task000/Exp000"):
        assert run.last(name).image.shape == (3, 2 * (SIZE + 2) + 2, 3 * (SIZE + 2) + 2)


def test_mac(run):
    """GeneralMetricTests.test_mac: a SplitModel costs what its layers cost in one network."""
    by_layer = {"Naive": 3 * SIZE * SIZE * 4}.get(
        type(run.strategy.model).__name__, 8 * 8 * 8 * 9 + 8 * 4 * 4 * 9 + 8 * 4
    )
    if isinstance(run.strategy.model, nn.Sequential):
        by_layer = 3 * SIZE * SIZE * 4
    for name in ("MAC_MB", "MAC_Epoch", "MAC_Exp/eval_phase/test_stream/Task000/Exp001"):
        assert run.last(name) == by_layer


def test_timing(run):
    """GeneralMetricTests.test_timing: a stream takes longer than each of its experiences."""
    experiences = [run.last(f"Time_Exp/eval_phase/test_stream/Task000/Exp{number:03}") for number in (OLD, NEW)]
    assert min(experiences) > 0 and sum(experiences) < run.last("Time_Stream/eval_phase") < 60
    assert 0 < run.last("Time_MB/train_phase") < run.last("Time_Epoch/train_phase") < 60


@pytest.mark.parametrize("name", ["CPUUsage_Epoch", "CPUUsage_Stream", "MaxRAMUsage_Epoch", "MaxRAMUsage_Stream"])
def test_usage(run, name):
    """GeneralMetricTests.test_cpu, test_ram: a share of the CPU, and megabytes."""
    values = run.all(name)
    assert len(values) >= 2 and all(0 <= value < 1e5 for value in values) and max(values) > 0


@pytest.mark.parametrize("name", ["Epoch", "Stream"])
def test_disk(run, name):
    """GeneralMetricTests.test_disk, test_disk_usage: kilobytes of a file."""
    assert run.last(f"DiskUsage_{name}") == DISK_BYTES / 1024


def test_weight_checkpoint(run):
    """WeightCheckpoint: the model as it is after the experience."""
    saved = torch.load(io.BytesIO(run.last("WeightCheckpoint/train_phase/train_stream/Exp001")), weights_only=False)
    state = run.strategy.model.state_dict()
    assert saved.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in saved.state_dict().items())


def test_logged(run):
    """TestLoggers.test_text_logger: every metric that is a number is in the log, and our ledger's entries are."""
    values = run.strategy.evaluator.get_last_metrics()
    numbers = {name: value for name, value in values.items() if isinstance(value, (int, float))}
    assert len(numbers) > 60 and len(named(numbers, "Ledger/")) > 15
    for name in numbers:
        assert f"{name} = " in run.text
