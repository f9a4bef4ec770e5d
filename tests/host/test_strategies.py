"""Facts of Avalanche's tests of strategies, for ours and for its own over a SplitModel.

Ids and docstrings name the host's test. ``docs/host_tests.md`` lists its tests that say
nothing of our parts.
"""

from functools import cache

import pytest
import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.benchmarks.scenarios.online import OnlineCLScenario
from avalanche.training.plugins import LwFPlugin, ReplayPlugin, SupervisedPlugin
from avalanche.training.supervised import StreamingLDA
from avalanche.training.supervised.joint_training import AlreadyTrainedError
from host_benchmarks import (
    HOST,
    KINDS,
    N_CLASSES,
    OURS,
    PER_CLASS,
    Callbacks,
    Trace,
    buffer_of,
    coloured_images,
    host_benchmark,
    host_model,
    host_strategy,
    our_strategy,
    quiet,
    registered,
)
from torch import nn

from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.models.split_model import SplitModel

pytestmark = pytest.mark.filterwarnings("ignore")
PER_EXPERIENCE = 2 * PER_CLASS  # images
STREAMED = [name for name, entry in STRATEGIES.items() if not entry.joint]
# The quick tests take each part once, the slow ones in every combination.
SLOW = pytest.mark.slow
FEW_KINDS = [
    kind if kind in ("nc", "from_datasets") else pytest.param(kind, marks=SLOW)
    for kind in KINDS
]
TOGETHER = ("test_joint",)  # the host's that train on a whole stream at once


class Outputs(SupervisedPlugin):
    """Counts the images evaluated and whether their outputs are finite."""

    def __init__(self):
        super().__init__()
        self.images = 0
        self.finite = True

    def after_eval_iteration(self, strategy, **kwargs):
        self.images += len(strategy.mb_output)
        self.finite &= bool(torch.isfinite(strategy.mb_output).all())


def run(strategy, benchmark, together=False):
    """Train on every experience and evaluate all test images after each.

    As the host's ``run_strategy`` does; outputs are finite, and F does not change.
    """
    outputs = Outputs()
    strategy.plugins.append(outputs)
    frozen = []
    if isinstance(strategy.model, SplitModel):
        frozen = [w.clone() for w in strategy.model.feature_extractor.parameters()]
    lessons = [benchmark.train_stream] if together else benchmark.train_stream
    for lesson in lessons:
        strategy.train(lesson, num_workers=0)
        strategy.eval(benchmark.test_stream)
    tested = sum(len(experience.dataset) for experience in benchmark.test_stream)
    assert outputs.images == len(lessons) * tested
    assert outputs.finite
    if frozen:
        weights = strategy.model.feature_extractor.parameters()
        assert all(map(torch.equal, frozen, weights))


@cache
def callbacks_of_naive():
    """The callbacks of the host's ``Naive`` on one experience, in order."""
    callbacks = Callbacks()
    return calls_of(host_strategy("test_naive", plugins=[callbacks]), callbacks)


def calls_of(strategy, callbacks):
    benchmark = host_benchmark("nc")
    strategy.train(benchmark.train_stream[0], num_workers=0)
    strategy.eval([benchmark.test_stream[0]], num_workers=0)
    return callbacks.calls


@pytest.mark.parametrize("kind", FEW_KINDS)
@pytest.mark.parametrize("name", OURS)
def test_ours_take_every_benchmark(name, kind):
    """test_naive, test_replay: with and without task labels, three epochs."""
    trace = Trace()
    strategy = our_strategy(name, plugins=[trace], train_epochs=3)
    run(strategy, host_benchmark(kind))
    assert strategy.clock.train_exp_counter == 3
    assert trace.epochs == [3, 3, 3]
    assert list(map(len, trace.labels)) == 3 * [3 * PER_EXPERIENCE]
    buffer = buffer_of(strategy)
    if buffer is not None:
        labels = buffer.labels.tolist()
        share = buffer.max_size // N_CLASSES
        assert sorted(labels) == sorted(share * list(range(N_CLASSES)))


@pytest.mark.parametrize("name", OURS)
def test_callbacks_come_in_the_same_order(name):
    """test_callback_reachability."""
    callbacks = Callbacks()
    calls = calls_of(our_strategy(name, plugins=[callbacks]), callbacks)
    assert calls == callbacks_of_naive()
    assert len(set(calls)) >= 22


@pytest.mark.parametrize(
    "kind", ["from_datasets", pytest.param("nc_tasks", marks=SLOW)]
)
@pytest.mark.parametrize("name", STREAMED)
def test_registry_takes_every_benchmark(name, kind):
    """test_lwf, test_gem, test_ewc, test_mas, test_icarl, test_bic, test_cope, ...

    Ours also where the host's strategy of that name needs task labels; and
    test_callback_reachability.
    """
    callbacks = Callbacks()
    strategy = registered(name, train_epochs=1, plugins=[callbacks])
    run(strategy, host_benchmark(kind))
    assert set(callbacks.calls) >= set(callbacks_of_naive())
    assert sorted(strategy.seen_classes.seen) == list(range(N_CLASSES))


@pytest.mark.parametrize("labels", ["nc_tasks", pytest.param("nc", marks=SLOW)])
@pytest.mark.parametrize("name", HOST)
def test_the_hosts_train_a_split_model(name, labels):
    """Ids are the host's tests; F stays as it was bit for bit, P is trained."""
    model = host_model()
    before = {
        key: value.clone() for key, value in model.plastic_layers.state_dict().items()
    }
    strategy = host_strategy(name, model)
    run(strategy, host_benchmark(labels), together=name in TOGETHER)
    after = model.plastic_layers.state_dict()
    moved = any(not torch.equal(after[key], value) for key, value in before.items())
    assert moved == (name != "test_slda")  # it has statistics of its own


@pytest.mark.parametrize("kind", KINDS)
def test_joint_training(kind):
    """test_joint: every image once an epoch; a second call is refused."""
    lengths = []

    class Watch(SupervisedPlugin):
        def after_train_dataset_adaptation(self, strategy, **kwargs):
            lengths.append(len(strategy.adapted_dataset))

    stream = host_benchmark(kind).train_stream
    strategy = host_strategy("test_joint", plugins=[Watch()])
    strategy.train(stream)
    assert lengths == [N_CLASSES * PER_CLASS]
    with pytest.raises(AlreadyTrainedError):
        strategy.train(stream)


def test_the_upper_bound_of_the_registry():
    """test_joint: ours is a stream of one experience."""
    trace = Trace()
    strategy = registered("offline", plugins=[trace])
    images = coloured_images()
    joint = nc_benchmark(
        images, coloured_images(2, 1), n_experiences=1, task_labels=False
    )
    strategy.train(joint.train_stream)
    assert sorted(trace.labels[0]) == sorted(2 * images.targets)


def test_cumulative_repeats_earlier_images():
    """test_cumulative."""
    trace = Trace()
    run(host_strategy("test_cumulative", plugins=[trace]), host_benchmark("nc"))
    epochs = 2
    lengths = list(map(len, trace.labels))
    assert lengths == [epochs * number * PER_EXPERIENCE for number in (1, 2, 3)]


def test_cwrstar_counts_the_images():
    """test_cwrstar."""
    model = host_model()
    run(host_strategy("test_cwrstar", model), host_benchmark("nc"))
    counts = {label: count for label, count in model.past_j.items() if count}
    assert counts == dict.fromkeys(range(N_CLASSES), PER_CLASS)


def test_streaming_lda_warns_of_losses():
    """test_warning_slda_lwf."""
    with pytest.warns(UserWarning):
        StreamingLDA(
            slda_model=host_model(),
            criterion=nn.CrossEntropyLoss(),
            input_size=8,
            num_classes=N_CLASSES,
            output_layer_name="plastic_layers.flatten",
            plugins=[LwFPlugin(), ReplayPlugin()],
            evaluator=quiet(),
        )


@pytest.mark.parametrize("boundaries", [True, pytest.param(False, marks=SLOW)])
@pytest.mark.parametrize("name", [*OURS, "er", "image_replay", "rda", "ewc"])
def test_online_scenario(name, boundaries):
    """test_naive of ``test_online_strategies.py``.

    One sub-experience a call, or the whole stream in one.
    """
    trace, benchmark = Trace(), host_benchmark("nc")
    online = OnlineCLScenario(
        benchmark.streams.values(),
        experience_size=10,
        access_task_boundaries=boundaries,
    )
    build = our_strategy if name in OURS else registered
    strategy = build(name, plugins=[trace], train_epochs=1)
    stream = online.train_online_stream
    lessons = stream if boundaries else [stream]
    for lesson in lessons:
        strategy.train(lesson, num_workers=0)
        strategy.eval(online.original_test_stream[:])
    assert strategy.clock.train_exp_counter == 6  # three experiences of 10 and 6 images
    assert len(trace.labels) == 6
    assert sum(map(len, trace.labels)) >= N_CLASSES * PER_CLASS
