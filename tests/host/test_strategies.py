"""Facts of Avalanche's tests of strategies, plugins and checkpoints for ours, and for its own over a ``SplitModel``.

Ids name the host's test. ``docs/host_tests.md`` lists its tests that say nothing of our
parts.
"""

import re
from functools import cache

import pytest
import torch
from avalanche.benchmarks.scenarios.online import OnlineCLScenario
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.evaluation.metrics import (
    accuracy_metrics,
    class_accuracy_metrics,
    loss_metrics,
)
from avalanche.training.determinism.rng_manager import RNGManager
from avalanche.training.plugins import (
    AGEMPlugin,
    EvaluationPlugin,
    EWCPlugin,
    LwFPlugin,
    MASPlugin,
    ReplayPlugin,
    RWalkPlugin,
    SupervisedPlugin,
)
from avalanche.training.supervised import Naive
from host_benchmarks import (
    COMMON,
    HOST,
    KINDS,
    N_CLASSES,
    OURS,
    PER_CLASS,
    STORING,
    Trace,
    buffer_of,
    coloured_images,
    host_benchmark,
    host_model,
    host_strategy,
    our_strategy,
    quiet,
    registered,
    sgd,
)
from small_models import make_model, make_stream

from crumb_avalanche import (
    ClassBalancedReservoir,
    CodeBuffer,
    ImageBuffer,
    LedgerMetric,
    MapBuffer,
)
from crumb_avalanche.memory.packing import bits_per_code, pack
from crumb_avalanche.methods.penalties import StreamSI
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.models.split_model import SplitModel

pytestmark = pytest.mark.filterwarnings("ignore")
PER_EXPERIENCE = 2 * PER_CLASS  # images


class Outputs(SupervisedPlugin):
    """Counts the images evaluated and whether their outputs are finite."""

    def __init__(self):
        super().__init__()
        self.images, self.finite = 0, True

    def after_eval_iteration(self, strategy, **kwargs):
        self.images += len(strategy.mb_output)
        self.finite &= bool(torch.isfinite(strategy.mb_output).all())


class Callbacks(SupervisedPlugin):
    """Records every callback of the host's in the order of the calls."""

    def __init__(self):
        super().__init__()
        self.calls: list[str] = []


for _event in [
    name for name in dir(SupervisedPlugin) if re.match("before_|after_", name)
]:
    setattr(
        Callbacks,
        _event,
        lambda self, strategy, _name=_event, **kwargs: self.calls.append(_name),
    )


@cache
def callbacks_of_naive():
    """The callbacks that the host's ``Naive`` calls, in order, in training and evaluation on one experience."""
    callbacks, model = Callbacks(), host_model()
    naive = Naive(
        model=model,
        optimizer=sgd(model),
        plugins=[callbacks],
        evaluator=quiet(),
        **COMMON,
    )
    return calls_of(naive, callbacks)


def calls_of(strategy, callbacks):
    benchmark = host_benchmark("nc")
    strategy.train(benchmark.train_stream[0], num_workers=0)
    strategy.eval([benchmark.test_stream[0]], num_workers=0)
    return callbacks.calls


def run(strategy, benchmark):
    """Train on every experience and evaluate all test images after each, as the host's ``run_strategy`` does."""
    outputs, model = Outputs(), strategy.model
    before = (
        [one.clone() for one in model.feature_extractor.parameters()]
        if isinstance(model, SplitModel)
        else []
    )
    strategy.plugins.append(outputs)
    for experience in benchmark.train_stream:
        strategy.train(experience, num_workers=0)
        strategy.eval(benchmark.test_stream)
    rounds = len(benchmark.train_stream)
    assert outputs.images == rounds * sum(
        len(experience.dataset) for experience in benchmark.test_stream
    )
    assert outputs.finite and strategy.clock.train_exp_counter == rounds
    if before:
        assert all(
            torch.equal(*pair)
            for pair in zip(before, strategy.model.feature_extractor.parameters())
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OURS)
def test_ours_train_and_evaluate_every_kind_of_benchmark(name, kind):
    """test_naive, test_replay: with and without task labels, three epochs as the argument says."""
    trace = Trace()
    strategy = our_strategy(name, plugins=[trace], train_epochs=3)
    run(strategy, host_benchmark(kind))
    assert trace.epochs == [3, 3, 3]
    assert [len(labels) for labels in trace.labels] == 3 * [3 * PER_EXPERIENCE]
    if (buffer := buffer_of(strategy)) is not None:
        counts = [buffer.labels.tolist().count(label) for label in range(N_CLASSES)]
        assert counts == N_CLASSES * [buffer.max_size // N_CLASSES]


@pytest.mark.parametrize("name", OURS)
def test_every_callback_is_called_in_the_same_order(name):
    """test_callback_reachability."""
    callbacks = Callbacks()
    assert (
        calls_of(our_strategy(name, plugins=[callbacks]), callbacks)
        == callbacks_of_naive()
    )
    assert len(set(callbacks.calls)) >= 22


@pytest.mark.parametrize("kind", ["nc_tasks", "from_datasets"])
@pytest.mark.parametrize(
    "name", [name for name, entry in STRATEGIES.items() if not entry.joint]
)
def test_registry_trains_and_evaluates(name, kind):
    """test_naive, test_replay, test_lwf, test_gem, test_ewc, test_mas, test_icarl, test_bic, test_cope and others.

    Ours also where the host's strategy of that name needs task labels; and
    test_callback_reachability.
    """
    callbacks = Callbacks()
    strategy = registered(name, train_epochs=1, plugins=[callbacks])
    run(strategy, host_benchmark(kind))
    assert set(callbacks.calls) >= set(callbacks_of_naive())
    assert sorted(strategy.seen_classes.seen) == list(range(N_CLASSES))


@pytest.mark.parametrize("name", HOST)
def test_the_hosts_own_strategies_train_a_split_model(name):
    """Ids are the host's tests; F stays as it was bit for bit, P is trained."""
    model = host_model()
    plastic = {
        key: value.clone() for key, value in model.plastic_layers.state_dict().items()
    }
    strategy = host_strategy(name, model)
    run(strategy, host_benchmark("nc_tasks"))
    moved = [
        key
        for key, value in model.plastic_layers.state_dict().items()
        if not torch.equal(value, plastic[key])
    ]
    assert bool(moved) == (name != "test_slda")  # it has statistics of its own


@pytest.mark.parametrize("boundaries", [True, False])
@pytest.mark.parametrize("name", [*OURS, "er", "image_replay", "rda", "ewc"])
def test_online_scenario(name, boundaries):
    """test_naive of ``test_online_strategies.py``: one sub-experience a call, or the whole stream in one."""
    trace, benchmark = Trace(), host_benchmark("nc")
    online = OnlineCLScenario(
        benchmark.streams.values(),
        experience_size=10,
        access_task_boundaries=boundaries,
    )
    strategy = (our_strategy if name in OURS else registered)(
        name, plugins=[trace], train_epochs=1
    )
    for part in (
        online.train_online_stream if boundaries else [online.train_online_stream]
    ):
        strategy.train(part, num_workers=0)
        strategy.eval(online.original_test_stream[:])
    assert strategy.clock.train_exp_counter == 6  # three experiences of 10 and 6 images
    assert (
        len(trace.labels) == 6 and sum(map(len, trace.labels)) >= N_CLASSES * PER_CLASS
    )


@pytest.mark.parametrize("name", STORING)
def test_metrics_receive_the_events_of_replay(name):
    """test_forward_callbacks: an evaluator hands on events that it does not know, and none that is not one."""

    class Events:
        def __init__(self):
            self.calls = []

        def before_replay_step(self, strategy):
            self.calls.append("before")

        def after_replay_step(self, strategy):
            self.calls.append(float(strategy.replay_loss))

    metric = Events()
    evaluator = EvaluationPlugin(metric, loggers=[])
    strategy = our_strategy(name, evaluator=evaluator)
    for experience in host_benchmark("nc").train_stream:
        strategy.train(experience)
    # Two experiences of two epochs of two batches have memories to replay.
    assert metric.calls[::2] == 8 * ["before"] and all(
        loss > 0 for loss in metric.calls[1::2]
    )
    with pytest.raises(AttributeError):
        evaluator.on_replay_loss(strategy)


def label_of_rows(buffer, model):
    """The labels of the training images whose row each memory is."""
    images = coloured_images()
    rows = model.pixels(images.tensors[0])
    if isinstance(buffer, CodeBuffer):
        codes = (
            model.encode(model.features(images.tensors[0]))
            .permute(0, 2, 3, 1)
            .flatten(1)
        )
        rows = pack(codes, bits_per_code(model.codebook.codebook_size))
    known = {row.numpy().tobytes(): label for row, label in zip(rows, images.targets)}
    return [
        known[row.numpy().tobytes()]
        for row, label in zip(buffer.rows, buffer.labels)
        if label >= 0
    ]


BESIDE = {
    "test_ewc": lambda: EWCPlugin(ewc_lambda=0.4),
    "test_lwf": lambda: LwFPlugin(alpha=1.0, temperature=2),
    "test_mas": lambda: MASPlugin(lambda_reg=1.0, alpha=0.5),
    "test_rwalk": lambda: RWalkPlugin(ewc_lambda=0.1, ewc_alpha=0.9, delta_t=2),
    "our si": lambda: StreamSI(recipe=None),  # with the usual settings
    "test_replay": lambda: ReplayPlugin(mem_size=12),
}


@pytest.mark.parametrize("plugin", BESIDE)
@pytest.mark.parametrize(
    "name, kind", [("CRUMBStrategy", CodeBuffer), ("Naive+CRUMBPlugin", ImageBuffer)]
)
def test_the_hosts_plugins_beside_ours(name, plugin, kind):
    """Ids are tests of ``test_strategies.py``: the plugin has an effect, and memories have the right labels."""
    ends = []
    for plugins in ([], [BESIDE[plugin]()]):
        model = host_model()
        model.codebook.requires_grad_(False)  # codes of an image stay the same
        buffer = kind(12, ClassBalancedReservoir() if plugin == "test_replay" else None)
        strategy = our_strategy(name, model, buffer, plugins=plugins)
        for experience in host_benchmark("nc").train_stream:
            strategy.train(experience)
        assert label_of_rows(buffer, model) == [
            label for label in buffer.labels.tolist() if label >= 0
        ]
        assert sorted(buffer.classes) == list(range(N_CLASSES))
        ends.append(model.plastic_layers.head.weight.detach())
    assert torch.isfinite(ends[1]).all() and not torch.equal(*ends)


@pytest.mark.parametrize("name", STORING)
def test_agem_is_refused(name):
    """test_agem: the host's plugin cannot flatten gradients of a ``SplitModel``."""
    with pytest.raises((TypeError, ValueError), match="use the method gem"):
        our_strategy(name, plugins=[AGEMPlugin(8, 8)]).train(
            host_benchmark("nc").train_stream
        )


def make(kind, buffer):
    """The benchmark of four experiences and a learner, as at the start of the script."""
    RNGManager.set_random_seeds(1234)
    parts = {"epoch": True, "experience": True, "stream": True}
    metrics = [
        accuracy_metrics(**parts),
        loss_metrics(**parts),
        class_accuracy_metrics(stream=True),
        LedgerMetric(),
    ]
    arguments = dict(train_mb_size=3, evaluator=EvaluationPlugin(*metrics, loggers=[]))
    return make_stream(classes_per_experience=1), our_strategy(
        kind, make_model(), buffer(6), **arguments
    )


def train(benchmark, strategy, start=0, stop=4):
    """Train on some experiences; return the metrics after each, without times."""
    results = []
    for experience in list(benchmark.train_stream)[start:stop]:
        strategy.train(experience)
        values = strategy.eval(benchmark.test_stream)
        times = (
            "Ledger/seconds",
            "Ledger/train_seconds",
            "Ledger/images_per_second",
            "Ledger/peak_rss",
        )
        results.append(
            {
                name: value
                for name, value in values.items()
                if not name.startswith(times)
            }
        )
    return results


@pytest.mark.parametrize(
    ("kind", "buffer", "stop"),
    [
        ("CRUMBStrategy", CodeBuffer, 1),
        ("CRUMBStrategy", MapBuffer, 3),
        ("Naive+CRUMBPlugin", ImageBuffer, 2),
    ],
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
    assert (
        results == expected
        and len(results) == 4
        and all(len(one) > 10 for one in results)
    )
    for one, other in zip(
        whole.model.state_dict().values(),
        second.model.state_dict().values(),
        strict=True,
    ):
        assert torch.equal(one, other)
    one, other = buffer_of(whole), buffer_of(second)
    assert (
        len(one) == 6
        and torch.equal(one.rows, other.rows)
        and torch.equal(one.labels, other.labels)
    )
