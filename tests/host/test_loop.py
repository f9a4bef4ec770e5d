"""What holds of the loop of Avalanche's strategies holds of ours.

Docstrings name the host's test.
"""

import pytest
from avalanche.evaluation.metrics.accuracy import StreamAccuracy
from avalanche.training.plugins import (
    EarlyStoppingPlugin,
    EvaluationPlugin,
    SupervisedPlugin,
)
from avalanche.training.templates.base import _group_experiences_by_stream
from host_benchmarks import (
    KINDS,
    N_CLASSES,
    OURS,
    PER_CLASS,
    STORING,
    Trace,
    buffer_of,
    host_benchmark,
    host_model,
    host_strategy,
    our_strategy,
    quiet,
    registered,
    sgd,
)

from crumb_avalanche import CodeBuffer, CRUMBStrategy, ImageBuffer, StreamStrategy
from crumb_avalanche.training.plugins import ClampGradients

pytestmark = pytest.mark.filterwarnings("ignore")


# Evaluations in one experience of 2 epochs of 4 iterations.
@pytest.mark.parametrize(
    "every, mode, evaluations",
    [
        (-1, "epoch", 0),
        (0, "epoch", 2),
        (1, "epoch", 3),
        (2, "epoch", 3),
        (3, "iteration", 5),
    ],
)
@pytest.mark.parametrize("name", OURS)
def test_periodic_evaluation(name, every, mode, evaluations):
    """test_periodic_eval: before, every so often, and at the end."""
    evaluator = EvaluationPlugin(StreamAccuracy(), loggers=[])
    strategy = our_strategy(
        name,
        train_mb_size=4,
        evaluator=evaluator,
        eval_every=every,
        peval_mode=mode,
    )
    strategy.train(host_benchmark("nc").train_stream[0])
    curves = evaluator.get_all_metrics()
    assert len(curves) == (evaluations > 0)
    for name_of_curve, (_, values) in curves.items():
        assert name_of_curve.startswith("Top1_Acc_Stream/eval_phase/train_stream")
        assert len(values) == evaluations


@pytest.mark.parametrize("name", OURS)
def test_no_callback_is_unknown_to_the_host(name, recwarn):
    """test_plugins_compatibility_checks."""
    evaluator = EvaluationPlugin(StreamAccuracy(), loggers=[], strict_checks=None)
    stopping = EarlyStoppingPlugin(patience=10, val_stream_name="train")
    strategy = our_strategy(
        name, evaluator=evaluator, plugins=[stopping, ClampGradients(10.0)]
    )
    strategy.train(host_benchmark("nc").train_stream[0])
    messages = [str(warning.message) for warning in recwarn]
    assert not [text for text in messages if "incompatible callbacks" in text]


@pytest.mark.parametrize("name", [*OURS, "er", "icarl", "lwf"])
def test_a_forward_hook_is_called(name):
    """test_forward_hooks."""
    strategy = our_strategy(name) if name in OURS else registered(name)
    phases = set()  # of the calls: whether they are of training
    strategy.model.register_forward_hook(lambda *_: phases.add(strategy.is_training))
    strategy.train(host_benchmark("nc").train_stream[0])
    assert True in phases
    strategy.eval(host_benchmark("nc").test_stream[0])
    assert False in phases


class StopAt(SupervisedPlugin):
    """Stops training in an iteration of an epoch."""

    def __init__(self, iteration: int, epoch: int = 0):
        super().__init__()
        self.iteration = iteration
        self.epoch = epoch

    def after_training_iteration(self, strategy, **kwargs):
        clock = strategy.clock
        if clock.train_exp_epochs != self.epoch:
            return
        if clock.train_epoch_iterations == self.iteration:
            strategy.stop_training()


@pytest.mark.parametrize("epochs, epoch", [(1, 0), (3, 0), (3, 1)])
@pytest.mark.parametrize(
    "name",
    [
        *OURS,
        "er",
        pytest.param("icarl", marks=pytest.mark.slow),
        pytest.param("gem", marks=pytest.mark.slow),
    ],
)
def test_stop_training_stops_at_once(name, epochs, epoch):
    """test_early_stop: memories are stored all the same."""
    trace = Trace()
    build = our_strategy if name in OURS else registered
    strategy = build(name, plugins=[trace, StopAt(1, epoch)], train_epochs=epochs)
    strategy.train_mb_size = 4
    for number, experience in enumerate(host_benchmark("nc").train_stream):
        strategy.train(experience)
        new = [label for label in trace.labels[number] if label // 2 == number]
        assert len(new) == 4 * (2 + 4 * epoch)
        buffer = buffer_of(strategy)
        if buffer is not None:
            assert set(buffer.labels.tolist()) >= {2 * number, 2 * number + 1}


@pytest.mark.parametrize("name", STORING)
def test_a_stopped_experience_is_stored(name):
    """test_early_stop, in the only epoch: as many images as there are of each class."""
    buffer = ImageBuffer(N_CLASSES * PER_CLASS)
    strategy = our_strategy(
        name, buffer=buffer, plugins=[StopAt(1)], train_epochs=1, train_mb_size=4
    )
    strategy.train(host_benchmark("nc").train_stream[0])
    labels = [label for label in buffer.labels.tolist() if label >= 0]
    assert sorted(labels) == PER_CLASS * [0] + PER_CLASS * [1]


def test_stop_training_of_cumulative():
    """test_early_stop, on the host's strategy of that test."""
    strategy = host_strategy(
        "test_cumulative", plugins=[StopAt(2)], train_mb_size=4, train_epochs=1
    )
    for experience in host_benchmark("nc").train_stream:
        strategy.train(experience)
        assert strategy.clock.train_epoch_iterations == 3


@pytest.mark.parametrize("kind", [*KINDS, "ours"])
def test_experiences_are_grouped_by_stream(kind, make_stream):
    """test_eval_streams_normalization."""
    benchmark = make_stream() if kind == "ours" else host_benchmark(kind)
    train, test = benchmark.train_stream, benchmark.test_stream
    lengths = [len(test), len(train)]
    assert list(map(len, _group_experiences_by_stream(test))) == lengths[:1]
    assert list(map(len, _group_experiences_by_stream([test]))) == lengths[:1]
    mixed = _group_experiences_by_stream([*test, *train])
    assert list(map(len, mixed)) == lengths
    listed = _group_experiences_by_stream([test, train])
    assert list(map(len, listed)) == lengths


@pytest.mark.parametrize("kind", [StreamStrategy, CRUMBStrategy])
def test_a_misspelled_argument_is_refused(kind):
    """The host's check of constructor arguments."""
    model = host_model()
    memory = {"storage_policy": CodeBuffer(12)} if kind is CRUMBStrategy else {}
    with pytest.raises(TypeError, match="train_mb_sise"):
        kind(
            model=model,
            optimizer=sgd(model),
            evaluator=quiet(),
            train_mb_sise=8,
            **memory,
        )


@pytest.mark.parametrize("name", OURS)
def test_epochs_change_between_experiences(name):
    """``strategy.train_epochs``, which the host reads at every experience."""
    trace = Trace()
    strategy = our_strategy(name, plugins=[trace], train_epochs=1)
    for epochs, experience in zip((1, 3, 2), host_benchmark("nc").train_stream):
        strategy.train_epochs = epochs
        strategy.train(experience)
    assert trace.epochs == [1, 3, 2]


@pytest.mark.parametrize("name", STORING)
def test_no_epoch_stores_all_the_same(name):
    """test_balancing: ``train_epochs=0`` fills the host's memory."""
    strategy = our_strategy(name, train_epochs=0)
    for experience in host_benchmark("nc").train_stream:
        strategy.train(experience)
    labels = buffer_of(strategy).labels.tolist()
    assert sorted(labels) == sorted(2 * list(range(N_CLASSES)))


@pytest.mark.parametrize("shuffle", [True, False, None])
@pytest.mark.parametrize("name", OURS)
def test_an_order_asked_for_holds(name, shuffle):
    """``shuffle`` of ``train``; ours keep the order of the stream without it."""
    trace = Trace()
    experience = host_benchmark("nc").train_stream[0]
    order = {} if shuffle is None else {"shuffle": shuffle}
    strategy = our_strategy(name, plugins=[trace], train_epochs=1)
    strategy.train(experience, **order)
    in_order = trace.labels[0] == list(map(int, experience.dataset.targets))
    shuffles = shuffle is True or (shuffle is None and name.startswith("Naive"))
    assert in_order != shuffles


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("name", OURS)
def test_drop_last_reaches_the_loader(name, drop_last):
    """``make_train_dataloader``."""
    trace = Trace()
    strategy = our_strategy(name, plugins=[trace], train_epochs=1, train_mb_size=6)
    strategy.train(host_benchmark("nc").train_stream[0], drop_last=drop_last)
    assert len(trace.labels[0]) == (12 if drop_last else 2 * PER_CLASS)


@pytest.mark.slow  # processes are started
@pytest.mark.parametrize("name", OURS)
def test_worker_processes_change_nothing(name):
    """test_dataloader_with_multiple_workers."""
    heads = []
    for workers in (0, 2):
        strategy = our_strategy(name)
        for experience in host_benchmark("nc").train_stream:
            strategy.train(experience, num_workers=workers, shuffle=False)
        heads.append(strategy.model.plastic_layers.head.weight.tolist())
    assert heads[0] == heads[1]
