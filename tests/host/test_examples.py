"""Avalanche's examples: the same steps with its own parts, and with a strategy or a benchmark of ours in one place.

The data of Avalanche's side are tiny images in the place of MNIST.
"""

import pytest
from avalanche.benchmarks import class_incremental_benchmark
from avalanche.benchmarks.scenarios.online import split_continuous_linear_decay_stream, split_online_stream
from avalanche.benchmarks.utils import DataAttribute, TransformGroups, make_avalanche_dataset
from avalanche.benchmarks.utils.data_loader import TaskBalancedDataLoader
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.evaluation.metrics import (
    StreamConfusionMatrix,
    accuracy_metrics,
    bwt_metrics,
    class_accuracy_metrics,
    cpu_usage_metrics,
    disk_usage_metrics,
    forgetting_metrics,
    images_samples_metrics,
    labels_repartition_metrics,
    loss_metrics,
    mean_scores_metrics,
    ram_usage_metrics,
    timing_metrics,
)
from avalanche.logging import InteractiveLogger, TensorboardLogger, TextLogger
from avalanche.models import SimpleMLP
from avalanche.training.determinism.rng_manager import RNGManager
from avalanche.training.plugins import EarlyStoppingPlugin, EvaluationPlugin, ReplayPlugin
from avalanche.training.storage_policy import ReservoirSamplingBuffer
from avalanche.training.supervised import EWC, Cumulative, JointTraining, LwF, Naive
from host_benchmarks import N_CLASSES, coloured_images, host_benchmark, host_model, sgd
from host_streams import Outputs, coloured_stream, named, our_stream, stream_accuracy
from small_models import SIZE
from torch.nn import CrossEntropyLoss

from crumb_avalanche import ClassBalancedReservoir, CodeBuffer, CRUMBPlugin, CRUMBStrategy, patched_dill

pytestmark = pytest.mark.filterwarnings("ignore")
COMMON = {"train_mb_size": 4, "eval_mb_size": 16}


@pytest.fixture(autouse=True)
def seed():
    RNGManager.set_random_seeds(1234)


def network(strategy, n_classes: int = N_CLASSES):
    """The network of a strategy: an MLP for Avalanche's, as in its examples, and a split network for ours."""
    if issubclass(strategy, CRUMBStrategy):
        return host_model(n_classes=n_classes)
    return SimpleMLP(n_classes, 3 * SIZE * SIZE, 32, drop_rate=0)


def build(strategy, *arguments, n_classes: int = N_CLASSES, **settings):
    """A strategy with the three arguments that every example gives by position."""
    model = network(strategy, n_classes)
    if issubclass(strategy, CRUMBStrategy):
        # Streams of a few images: five times the weight of memories would hold new classes back.
        settings = {"mem_size": 12, "replay_weight": 1.0, **settings}
    rate = 0.02 if issubclass(strategy, CRUMBStrategy) else 0.002
    return strategy(model, sgd(model, rate), CrossEntropyLoss(), *arguments, **{**COMMON, **settings})


def train_and_evaluate(strategy, benchmark) -> list[dict]:
    """The loop of nearly every example."""
    results = []
    for experience in benchmark.train_stream:
        strategy.train(experience)
        results.append(strategy.eval(benchmark.test_stream))
    return results


def newest_accuracy(results: list[dict]) -> list[float]:
    """The accuracy on the test set of each experience right after it was trained on."""
    return [named(one, "Top1_Acc_Exp")[[*named(one, "Top1_Acc_Exp")][number]] for number, one in enumerate(results)]


@pytest.mark.parametrize("strategy", [Naive, CRUMBStrategy])
@pytest.mark.parametrize("benchmark", [host_benchmark, coloured_stream])
def test_naive(benchmark, strategy):
    """examples/naive.py, getting_started.py: train on each experience, evaluate on the whole test stream."""
    benchmark = benchmark()
    learner = build(strategy, n_classes=benchmark.n_classes, train_epochs=3)
    results = train_and_evaluate(learner, benchmark)
    assert len(results) == len(benchmark.train_stream)
    assert all(0 <= stream_accuracy(one) <= 1 for one in results)
    assert sum(newest_accuracy(results)) / len(results) > 2 / benchmark.n_classes


@pytest.mark.parametrize("strategy", [Naive, CRUMBStrategy])
@pytest.mark.parametrize("benchmark", [host_benchmark, coloured_stream])
def test_online_naive(benchmark, strategy):
    """examples/online_naive.py: one pass in small experiences, evaluated on the original streams."""
    benchmark, results = benchmark(), []
    learner = build(strategy, n_classes=benchmark.n_classes, train_epochs=1)
    for experience in benchmark.train_stream:
        learner.train(split_online_stream([experience], experience_size=4))
        learner.eval(benchmark.train_stream)
        results.append(learner.eval(benchmark.test_stream))
    images = sum(len(experience.dataset) for experience in benchmark.train_stream)
    assert learner.clock.train_iterations == images / 4 == learner.clock.train_exp_counter
    assert sum(newest_accuracy(results)) / len(results) > 1 / benchmark.n_classes


REPLAY = {
    "ReplayPlugin": lambda: ReplayPlugin(mem_size=12, batch_size=1, storage_policy=ReservoirSamplingBuffer(12)),
    "CRUMBPlugin": lambda: CRUMBPlugin(CodeBuffer(12)),
}


@pytest.mark.parametrize("replay", REPLAY)
@pytest.mark.parametrize("benchmark", [host_benchmark, coloured_stream])
def test_online_replay(benchmark, replay):
    """examples/online_replay.py: replay in an online stream; the memory has the classes of all experiences."""
    benchmark, plugin = benchmark(), REPLAY[replay]()
    model = host_model(n_classes=benchmark.n_classes)
    evaluator = EvaluationPlugin(
        accuracy_metrics(minibatch=True, epoch=True, experience=True, stream=True),
        loss_metrics(minibatch=True, epoch=True, experience=True, stream=True),
        forgetting_metrics(experience=True),
        loggers=[InteractiveLogger()],
    )
    learner = Naive(model, sgd(model), CrossEntropyLoss(), **COMMON, evaluator=evaluator, plugins=[plugin])
    for experience in benchmark.train_stream:
        learner.train(split_online_stream([experience], experience_size=4))
        results = learner.eval(benchmark.test_stream)
    assert len(plugin.storage_policy.buffer) == 12
    assert len({int(label) for label in plugin.storage_policy.buffer.targets}) == benchmark.n_classes
    assert named(results, "Top1_Acc_Exp/eval_phase/test_stream") and named(results, "Loss_Stream")


REGULARISED = {
    "ewc_mnist": (EWC, [0.4, "online"], {"decay_factor": 0.1}),
    "ewc_mnist --ewc_mode separate": (EWC, [0.4, "separate"], {}),
    "lwf_mnist": (LwF, [], {"alpha": [0, 0.5, 1.333], "temperature": 1}),
}


@pytest.mark.parametrize("name", REGULARISED)
@pytest.mark.parametrize("benchmark", [host_benchmark, coloured_stream])
def test_regularised(benchmark, name, tmp_path):
    """examples/ewc_mnist.py, lwf_mnist.py: forgetting and backward transfer of our stream."""
    benchmark, (strategy, arguments, settings) = benchmark(), REGULARISED[name]
    evaluator = EvaluationPlugin(
        accuracy_metrics(minibatch=True, epoch=True, experience=True, stream=True),
        loss_metrics(minibatch=True, epoch=True, experience=True, stream=True),
        forgetting_metrics(experience=True, stream=True),
        bwt_metrics(experience=True, stream=True),
        loggers=[InteractiveLogger(), TensorboardLogger(tmp_path)],
    )
    learner = build(
        strategy, *arguments, n_classes=benchmark.n_classes, train_epochs=4, evaluator=evaluator, **settings
    )
    results = train_and_evaluate(learner, benchmark)
    ((_, lost),), ((_, transfer),) = (named(results[-1], name).items() for name in ("StreamForgetting", "StreamBWT"))
    assert lost == -transfer and -1 <= lost <= 1
    assert sum(newest_accuracy(results)) / len(results) > 2 / benchmark.n_classes


@pytest.mark.parametrize("strategy", [Naive, CRUMBStrategy])
def test_eval_plugin(strategy, tmp_path, capsys):
    """examples/eval_plugin.py: metrics and loggers; the results of ``train``, ``eval`` and all curves."""
    benchmark = host_benchmark()
    text = open(tmp_path / "log.txt", "a")  # noqa: SIM115 (closed below)
    evaluator = EvaluationPlugin(
        accuracy_metrics(minibatch=True, epoch=True, epoch_running=True, experience=True, stream=True),
        loss_metrics(minibatch=True, epoch=True, epoch_running=True, experience=True, stream=True),
        forgetting_metrics(experience=True, stream=True),
        bwt_metrics(experience=True, stream=True),
        cpu_usage_metrics(epoch=True, experience=True, stream=True),
        timing_metrics(minibatch=True, epoch=True, epoch_running=True, experience=True, stream=True),
        ram_usage_metrics(every=0.01, epoch=True, experience=True, stream=True),
        disk_usage_metrics(paths_to_monitor=str(tmp_path), stream=True),
        class_accuracy_metrics(epoch=True, stream=True),
        loggers=[InteractiveLogger(), TextLogger(text), TensorboardLogger(tmp_path / "tb")],
        collect_all=True,
    )
    with text:
        learner = build(strategy, train_epochs=1, evaluator=evaluator)
        for experience in benchmark.train_stream:
            trained = learner.train(experience)
            tested = learner.eval(benchmark.test_stream)
    for results, phase in ((trained, "train_phase/train_stream"), (tested, "eval_phase/test_stream")):
        for name in ("Top1", "Loss", "CPUUsage", "Time"):
            assert any(phase in key for key in named(results, name))
    curves = learner.evaluator.get_all_metrics()
    assert {*trained} | {*tested} <= {*curves}
    steps, values = curves["Top1_Acc_Epoch/train_phase/train_stream/Task000"]
    assert steps == [4, 8, 12] and len(values) == 3
    assert "StreamForgetting" in capsys.readouterr().out and "StreamBWT" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize("strategy", [Naive, CRUMBStrategy])
def test_all_mnist_early_stopping(strategy):
    """examples/all_mnist_early_stopping.py: training ends when the test accuracy does not rise for some epochs."""
    benchmark, patience, outputs = host_benchmark(), 2, Outputs()
    learner = build(
        strategy,
        train_epochs=30,
        eval_every=1,
        plugins=[EarlyStoppingPlugin(patience, "test_stream"), outputs],
    )
    results, done = [], 0
    for experience, test in zip(benchmark.train_stream, benchmark.test_stream, strict=True):
        learner.train(experience, eval_streams=[[test]])
        results.append(learner.eval(benchmark.test_stream))
        epochs, done = (len(outputs.batches) - done) / 4, len(outputs.batches)
        assert patience < epochs < 30
    assert sum(newest_accuracy(results)) / len(results) > 0.8
    if strategy is CRUMBStrategy:
        assert len(learner.storage_policy) == 12 and len(learner.storage_policy.classes) == N_CLASSES


@pytest.mark.parametrize("replay", REPLAY)
@pytest.mark.parametrize("normalize", [None, "all"])
def test_confusion_matrix(replay, normalize):
    """examples/confusion_matrix.py: the matrix of the whole stream after each experience."""
    benchmark, model = host_benchmark(), host_model()
    evaluator = EvaluationPlugin(
        accuracy_metrics(epoch=True, experience=True, stream=True),
        loss_metrics(epoch=True, experience=True, stream=True),
        StreamConfusionMatrix(num_classes=N_CLASSES, save_image=False, normalize=normalize),
        loggers=[InteractiveLogger()],
    )
    plugins = [ReplayPlugin(12) if replay == "ReplayPlugin" else CRUMBPlugin(CodeBuffer(12))]
    learner = Naive(
        model, sgd(model), CrossEntropyLoss(), **COMMON, train_epochs=4, evaluator=evaluator, plugins=plugins
    )
    for results in train_and_evaluate(learner, benchmark):
        ((_, matrix),) = named(results, "ConfusionMatrix_Stream").items()
        assert matrix.sum() == pytest.approx(12 if normalize is None else 1)
        assert matrix.diag().sum() / matrix.sum() == pytest.approx(stream_accuracy(results))


@pytest.mark.parametrize("strategy", [Naive, CRUMBStrategy])
def test_checkpointing(strategy, tmp_path):
    """examples/checkpointing.py: started again, it goes on where it was left, with the same numbers."""

    def main(checkpoint, checkpoint_at=None):
        RNGManager.set_random_seeds(1234)
        benchmark, results = our_stream(classes_per_experience=1, frames_per_clip=3), []
        evaluator = EvaluationPlugin(
            accuracy_metrics(epoch=True, experience=True, stream=True),
            loss_metrics(epoch=True, experience=True, stream=True),
            class_accuracy_metrics(stream=True),
            loggers=[InteractiveLogger()],
        )
        plugins = [] if strategy is CRUMBStrategy else [ReplayPlugin(mem_size=8)]
        learner = build(strategy, n_classes=4, train_epochs=1, evaluator=evaluator, plugins=plugins)
        learner, first = maybe_load_checkpoint(learner, checkpoint)
        for experience in benchmark.train_stream[first:]:
            learner.train(experience)
            results.append(learner.eval(benchmark.test_stream))
            with patched_dill():
                save_checkpoint(learner, checkpoint)
            if experience.current_experience == checkpoint_at:
                break
        return results

    whole = main(tmp_path / "whole.pkl")
    parts = main(tmp_path / "parts.pkl", 1), main(tmp_path / "parts.pkl")
    assert [len(part) for part in parts] == [2, 2]
    assert parts[0] + parts[1] == whole


@pytest.mark.parametrize("strategy", [Cumulative, CRUMBStrategy])
def test_dataloader(strategy):
    """examples/dataloader.py: a strategy with a loader of one's own, and the loader alone."""
    made = []

    class Mine(strategy):
        def make_train_dataloader(self, shuffle=True, **kwargs):
            made.append(TaskBalancedDataLoader(self.adapted_dataset, batch_size=self.train_mb_size))
            self.dataloader = made[-1]

    benchmark = our_stream()
    learner = build(Mine, n_classes=4, train_epochs=1)
    for experience in benchmark.train_stream:
        learner.train(experience)
        results = learner.eval([experience])
    assert len(made) == 2 and 0 <= stream_accuracy(results) <= 1
    images, labels, tasks = next(iter(TaskBalancedDataLoader(experience.dataset)))
    assert images.shape == (20, 3, SIZE, SIZE) and set(labels.tolist()) == {2, 3} and set(tasks.tolist()) == {0}


@pytest.mark.parametrize("protocol", [None, "class_instance", "class_iid", "offline"])
def test_joint_training(protocol):
    """examples/joint_training.py: training on all experiences at once; the offline protocol is the same data."""
    benchmark = host_benchmark() if protocol is None else coloured_stream(protocol)
    evaluator = EvaluationPlugin(accuracy_metrics(epoch=True, stream=True), loggers=[InteractiveLogger()])
    learner = build(JointTraining, n_classes=benchmark.n_classes, train_epochs=8, evaluator=evaluator)
    trained = learner.train(benchmark.train_stream)
    ((_, accuracy),) = named(trained, "Top1_Acc_Epoch").items()
    assert accuracy > 2 / benchmark.n_classes
    assert stream_accuracy(learner.eval(benchmark.test_stream)) > 1 / benchmark.n_classes
    with pytest.raises(Exception, match="JointTraining"):
        learner.train(benchmark.train_stream)


@pytest.mark.parametrize("strategy", [Naive, CRUMBStrategy])
def test_mean_scores(strategy, tmp_path):
    """examples/mean_scores.py: scores of new and old classes, evaluated on the experiences so far."""
    benchmark = our_stream()
    evaluator = EvaluationPlugin(
        accuracy_metrics(stream=True, experience=True),
        mean_scores_metrics(on_train=True, on_eval=True),
        loggers=[TensorboardLogger(tmp_path), InteractiveLogger()],
    )
    plugins = [] if strategy is CRUMBStrategy else [ReplayPlugin(mem_size=8)]
    learner = build(strategy, n_classes=4, train_epochs=2, evaluator=evaluator, plugins=plugins)
    for number, experience in enumerate(benchmark.train_stream, 1):
        learner.train(experience)
        results = learner.eval(benchmark.test_stream[:number])
        scores = named(results, "MeanScores/eval_phase")
        assert ("MeanScores/eval_phase/test_stream/old_classes" in scores) is (number == 2)
    difference = (
        scores["MeanScores/eval_phase/test_stream/new_classes"]
        - scores["MeanScores/eval_phase/test_stream/old_classes"]
    )
    assert scores["MeanScores/eval_phase/test_stream/new_old_diff"] == difference


@pytest.mark.parametrize("strategy", [Naive, CRUMBStrategy])
def test_dataset_inspection(strategy, tmp_path):
    """examples/dataset_inspection.py: samples and label counts, in training and evaluation."""
    benchmark = our_stream()
    evaluator = EvaluationPlugin(
        accuracy_metrics(stream=True, experience=True),
        images_samples_metrics(on_train=True, on_eval=True, n_cols=3, n_rows=2),
        labels_repartition_metrics(on_train=True, on_eval=True),
        loggers=[TensorboardLogger(tmp_path), InteractiveLogger()],
    )
    learner = build(strategy, n_classes=4, train_epochs=1, evaluator=evaluator)
    for number, experience in enumerate(benchmark.train_stream, 1):
        learner.train(experience)
        results = learner.eval(benchmark.test_stream[:number])
        ((_, counts),) = named(results, "Repartition/eval_phase").items()
        assert {label: many[-1] for label, many in counts.alternatives[1].items()} == dict.fromkeys(
            range(2 * number), 10
        )
    assert len(named(results, "images/eval_phase")) == 2


@pytest.mark.parametrize("strategy", [Naive, CRUMBStrategy])
def test_custom_datasets(strategy):
    """examples/custom_datasets.py: PyTorch data sets become a class-incremental benchmark."""
    parts = {}
    for name, data in (("train", coloured_images()), ("test", coloured_images(2, 1))):
        groups = TransformGroups({"train": lambda image: image * 1.0, "eval": None})
        attribute = DataAttribute(data.targets, "targets")
        parts[name] = make_avalanche_dataset(data, data_attributes=[attribute], transform_groups=groups)
    benchmark = class_incremental_benchmark(parts, num_experiences=3, class_order=list(range(N_CLASSES)))
    learner, results = build(strategy, train_epochs=6, eval_every=1), []
    for experience, test in zip(benchmark.train_stream, benchmark.test_stream, strict=True):
        learner.train(experience, eval_streams=[[test]])
        results.append(learner.eval(benchmark.test_stream))
    assert sum(newest_accuracy(results)) / len(results) > 2 / N_CLASSES


@pytest.mark.parametrize("strategy", [Naive, CRUMBStrategy])
def test_online_continuous_linear_decay(strategy):
    """examples/online_continuous_linear_decay.py: experiences that fade into one another, evaluated at the end."""
    benchmark = our_stream()
    settings = {"storage_policy": CodeBuffer(12, ClassBalancedReservoir()), "mem_size": None}
    learner = build(strategy, n_classes=4, **(settings if strategy is CRUMBStrategy else {}))
    stream = split_continuous_linear_decay_stream(benchmark.train_stream, 10, 4, 4, shuffle=True)
    for experience in stream:
        learner.train(experience)
        assert sum(experience.n_samples_from_each_exp) == 10 == len(experience.dataset)
    results = learner.eval(benchmark.test_stream)
    assert learner.clock.train_exp_counter == 8 and 0 <= stream_accuracy(results) <= 1
