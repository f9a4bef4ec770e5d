"""Avalanche's plugins beside ours: each has its effect, and memories stay right.

Ids and docstrings name the host's test.
"""

import pytest
import torch
from avalanche.evaluation import PluginMetric
from avalanche.evaluation.metric_results import MetricValue
from avalanche.training.plugins import (
    AGEMPlugin,
    EarlyStoppingPlugin,
    EvaluationPlugin,
    EWCPlugin,
    GEMPlugin,
    LRSchedulerPlugin,
    LwFPlugin,
    MASPlugin,
    ReplayPlugin,
    RWalkPlugin,
    SupervisedPlugin,
    SynapticIntelligencePlugin,
)
from avalanche.training.supervised import ER_ACE
from host_benchmarks import (
    COMMON,
    N_CLASSES,
    OURS,
    STORING,
    Trace,
    buffer_of,
    coloured_images,
    host_benchmark,
    host_model,
    our_strategy,
    quiet,
    sgd,
)
from torch import nn
from torch.optim.lr_scheduler import MultiStepLR, ReduceLROnPlateau

from crumb_avalanche import (
    ClassBalancedReservoir,
    CodeBuffer,
    CRUMBPlugin,
    ImageBuffer,
    SeenClassesPlugin,
)
from crumb_avalanche.memory.packing import bits_per_code, pack
from crumb_avalanche.methods.penalties import StreamSI

pytestmark = pytest.mark.filterwarnings("ignore")


def labels_of_rows(buffer, model):
    """The labels of the training images whose row each memory is."""
    images = coloured_images()
    rows = model.pixels(images.tensors[0])
    if isinstance(buffer, CodeBuffer):
        codes = model.encode(model.features(images.tensors[0]))
        flat = codes.permute(0, 2, 3, 1).flatten(1)
        rows = pack(flat, bits_per_code(model.codebook.codebook_size))
    label_of = {}
    for row, label in zip(rows, images.targets):
        label_of[row.numpy().tobytes()] = label
    labels = []
    for row in buffer.rows[buffer.labels >= 0]:
        labels.append(label_of[row.numpy().tobytes()])
    return labels


def assert_right_labels(buffer, model):
    labels = [label for label in buffer.labels.tolist() if label >= 0]
    assert labels_of_rows(buffer, model) == labels


BESIDE = {
    "test_ewc": lambda: EWCPlugin(ewc_lambda=0.4),
    "test_ewc_online": lambda: EWCPlugin(
        ewc_lambda=0.4, mode="online", decay_factor=0.1
    ),
    "test_lwf": lambda: LwFPlugin(alpha=1.0, temperature=2),
    "test_mas": lambda: MASPlugin(lambda_reg=1.0, alpha=0.5),
    "test_gem": lambda: GEMPlugin(patterns_per_experience=8, memory_strength=0.5),
    "test_rwalk": lambda: RWalkPlugin(ewc_lambda=0.1, ewc_alpha=0.9, delta_t=2),
    "our si": lambda: StreamSI(recipe=None),  # with the usual settings
    "test_replay": lambda: ReplayPlugin(mem_size=12),
}
PAIRS = [("CRUMBStrategy", CodeBuffer), ("Naive+CRUMBPlugin", ImageBuffer)]


@pytest.mark.parametrize("plugin", BESIDE)
@pytest.mark.parametrize("name, kind", PAIRS)
def test_a_plugin_beside_ours(name, plugin, kind):
    """It has an effect, and memories have the right labels."""
    heads = []
    for plugins in ([], [BESIDE[plugin]()]):
        model = host_model()
        model.codebook.requires_grad_(False)  # codes of an image stay the same
        rule = ClassBalancedReservoir() if plugin == "test_replay" else None
        buffer = kind(12, rule)
        strategy = our_strategy(name, model, buffer, plugins=plugins)
        for experience in host_benchmark("nc").train_stream:
            strategy.train(experience)
        assert_right_labels(buffer, model)
        assert sorted(buffer.classes) == list(range(N_CLASSES))
        heads.append(model.plastic_layers.head.weight.detach())
    without, beside = heads
    assert torch.isfinite(beside).all()
    assert not torch.equal(without, beside)


@pytest.mark.parametrize("name", STORING)
def test_unseen_classes_have_no_importance(name):
    """test_ewc: its importances are of losses of the model's own outputs."""
    ewc = EWCPlugin(ewc_lambda=0.4)
    strategy = our_strategy(name, plugins=[ewc])
    strategy.train(host_benchmark("nc").train_stream[0])  # classes 0 and 1
    importances = ewc.importances[0]["plastic_layers.head.weight"].data
    assert importances[:2].all()
    assert not importances[2:].any()


class ReplaySteps(SupervisedPlugin):
    """Counts the steps on memories of each experience."""

    def __init__(self):
        super().__init__()
        self.counts = []

    def before_training_exp(self, strategy, **kwargs):
        self.counts.append(0)

    def before_replay_step(self, strategy, **kwargs):
        self.counts[-1] += 1


@pytest.mark.parametrize("name", STORING)
def test_memories_are_replayed_beside_the_hosts(name):
    """test_replay: old images that it mixes in are no new ones."""
    # Given a buffer, and the host's plugin, which fills half of each batch
    rule, steps = ClassBalancedReservoir(), ReplaySteps()
    strategy = our_strategy(
        name,
        buffer=CodeBuffer(24, rule),
        plugins=[ReplayPlugin(mem_size=24), steps],
        train_mb_size=6,
        train_epochs=1,
    )
    # When three experiences come, of two classes of 12 images each
    for experience in host_benchmark("nc", per_class=12).train_stream:
        strategy.train(experience, shuffle=True)
    # Then each batch after the first experience is followed by a replay step, and each
    # image was offered to the buffer once
    assert steps.counts == [0, 4, 4]
    assert rule.seen == dict.fromkeys(range(N_CLASSES), 12)


@pytest.mark.parametrize("name", STORING)
def test_the_hosts_si_is_no_obstacle(name):
    """test_synaptic_intelligence, which has no effect on a CPU."""
    strategy = our_strategy(name, plugins=[SynapticIntelligencePlugin(0.1)])
    for experience in host_benchmark("nc").train_stream:
        strategy.train(experience)
    assert torch.isfinite(strategy.model.plastic_layers.head.weight).all()


@pytest.mark.parametrize("name", STORING)
def test_agem_is_refused(name):
    """test_agem: it cannot flatten gradients of a ``SplitModel``."""
    strategy = our_strategy(name, plugins=[AGEMPlugin(8, 8)])
    with pytest.raises((TypeError, ValueError), match="use the method gem"):
        strategy.train(host_benchmark("nc").train_stream)


@pytest.mark.parametrize("kind", [CodeBuffer, ImageBuffer])
@pytest.mark.parametrize("rule", [None, ClassBalancedReservoir])
def test_er_ace_beside_crumb(kind, rule):
    """test_erace: it passes a second batch of memories through the model."""
    torch.manual_seed(0)
    model = host_model()
    model.codebook.requires_grad_(False)
    seen = SeenClassesPlugin()
    buffer = kind(12, None if rule is None else rule())
    strategy = ER_ACE(
        model=model,
        optimizer=sgd(model),
        plugins=[seen, CRUMBPlugin(buffer, seen=seen)],
        mem_size=12,
        batch_size_mem=4,
        evaluator=quiet(),
        **COMMON,
    )
    for experience in host_benchmark("nc").train_stream:
        strategy.train(experience)
        assert_right_labels(buffer, model)
    assert sorted(buffer.classes) == list(range(N_CLASSES))


class Rates(SupervisedPlugin):
    """The learning rate at the end of each epoch of each experience."""

    def __init__(self):
        super().__init__()
        self.rates = []

    def before_training_exp(self, strategy, **kwargs):
        self.rates.append([])

    def after_training_epoch(self, strategy, **kwargs):
        self.rates[-1].append(strategy.optimizer.param_groups[0]["lr"])


class Calm(nn.Module):
    """A loss so flat that a rate of 4 does no harm."""

    def forward(self, logits, labels):
        return 1e-4 * nn.functional.cross_entropy(logits, labels)


# Milestones; reset of rate and scheduler; first epoch, first experience only; rates.
SCHEDULES = [
    ((2, 3), True, True, False, False, [[4, 2, 1], [4, 2, 1]]),
    ((2, 3), False, True, False, False, [[4, 2, 1], [1, 0.5, 0.25]]),
    ((2, 3), True, False, False, False, [[4, 2, 1], [4, 4, 4]]),
    ((2, 3), False, False, False, False, [[4, 2, 1], [1, 1, 1]]),
    ((2, 3), False, True, False, True, [[4, 2, 1], [1, 1, 1]]),
    ((1, 3), False, True, True, False, [[2, 2, 2], [1, 1, 1]]),
    ((1, 2), True, False, True, True, [[2, 2, 2], [4, 4, 4]]),
    ((3, 4), True, True, False, False, [[4, 4, 2], [4, 4, 2]]),
]


@pytest.mark.parametrize(
    "milestones, reset_lr, reset_scheduler, first_epoch, first_exp, expected",
    SCHEDULES,
)
@pytest.mark.parametrize(
    "name",
    ["CRUMBStrategy", pytest.param("Naive+CRUMBPlugin", marks=pytest.mark.slow)],
)
def test_a_multi_step_schedule(
    name, milestones, reset_lr, reset_scheduler, first_epoch, first_exp, expected
):
    """test_scheduler_plugin."""
    model = host_model()
    optimizer = sgd(model, lr=4.0, momentum=0.0)
    schedule = LRSchedulerPlugin(
        MultiStepLR(optimizer, milestones=milestones, gamma=0.5),
        reset_lr=reset_lr,
        reset_scheduler=reset_scheduler,
        first_epoch_only=first_epoch,
        first_exp_only=first_exp,
    )
    rates = Rates()
    strategy = our_strategy(
        name,
        model,
        plugins=[schedule, rates],
        optimizer=optimizer,
        criterion=Calm(),
        train_epochs=3,
    )
    for experience in host_benchmark("nc").train_stream[:2]:
        strategy.train(experience)
    assert rates.rates == expected


@pytest.mark.parametrize("metric", ["train_loss", "val_loss"])
@pytest.mark.parametrize("name", OURS)
def test_a_schedule_by_loss(name, metric):
    """test_scheduler_reduce_on_plateau_plugin: a constant loss lowers the rate."""

    class Constant(nn.Module):
        def forward(self, logits, labels):
            return 0 * logits.sum() + 1

    model = host_model()
    optimizer = sgd(model)
    plateau = ReduceLROnPlateau(optimizer, patience=0)
    schedule = LRSchedulerPlugin(plateau, metric=metric)
    rates = Rates()
    strategy = our_strategy(
        name,
        model,
        plugins=[schedule, rates],
        optimizer=optimizer,
        criterion=Constant(),
        train_epochs=3,
        eval_every=1 if metric == "val_loss" else -1,
    )
    benchmark = host_benchmark("nc")
    strategy.train(benchmark.train_stream[0], eval_streams=[benchmark.test_stream[0]])
    assert rates.rates[0] == sorted(rates.rates[0], reverse=True)
    assert rates.rates[0][-1] < 0.01


class Scripted(PluginMetric):
    """A validation accuracy that follows a script, one value an evaluation."""

    def __init__(self, values):
        super().__init__()
        self.values = iter(values)

    def reset(self):
        pass

    def result(self):
        return None

    def after_eval(self, strategy):
        name = "Top1_Acc_Stream/eval_phase/test_stream/Task000"
        step = strategy.clock.train_iterations
        return [MetricValue(self, name, next(self.values), step)]


CONSTANT = [0.5] * 99
RISING = [number / 99 for number in range(99)]
PEAK = [-abs(number - 2.0) for number in range(99)]


# The first accuracy is that before training; the patience is of two epochs.
@pytest.mark.parametrize(
    "accuracies, epochs, best", [(CONSTANT, 2, 0), (RISING, 6, 5), (PEAK, 4, 2)]
)
@pytest.mark.parametrize("name", OURS)
def test_early_stopping_by_epoch(name, accuracies, epochs, best):
    """test_early_stop_epochs: memories of every class are stored all the same."""
    evaluator = EvaluationPlugin(Scripted(accuracies), loggers=[])
    stopping, trace = EarlyStoppingPlugin(2, "test_stream"), Trace()
    strategy = our_strategy(
        name,
        plugins=[stopping, trace],
        evaluator=evaluator,
        train_epochs=6,
        eval_every=1,
    )
    benchmark = host_benchmark("nc")
    strategy.train(benchmark.train_stream[0], eval_streams=[benchmark.test_stream])
    assert trace.epochs == [epochs]
    assert stopping.best_step == best
    if name in STORING:
        assert sorted(buffer_of(strategy).classes) == [0, 1]
    strategy.train(benchmark.train_stream[1], eval_streams=[])
    assert trace.epochs[1] > 0  # it trains on after it was stopped


@pytest.mark.parametrize("name", OURS)
def test_early_stopping_by_iteration(name):
    """test_early_stop_epochs, ``peval_mode="iteration"``: stops within an epoch."""
    evaluator = EvaluationPlugin(Scripted(CONSTANT), loggers=[])
    stopping = EarlyStoppingPlugin(3, "test_stream", peval_mode="iteration")
    trace = Trace()
    strategy = our_strategy(
        name,
        plugins=[stopping, trace],
        evaluator=evaluator,
        train_epochs=3,
        train_mb_size=4,
        eval_every=1,
        peval_mode="iteration",
    )
    benchmark = host_benchmark("nc")
    strategy.train(benchmark.train_stream[0], eval_streams=[benchmark.test_stream])
    assert len(trace.labels[0]) in (4 * 3, 4 * 4)
    assert stopping.best_step == 0
    if name in STORING:
        assert set(buffer_of(strategy).classes) == {0, 1}


@pytest.mark.parametrize("name", STORING)
def test_metrics_receive_the_events_of_replay(name):
    """test_forward_callbacks: an evaluator hands on events that it does not know."""

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
    assert metric.calls[::2] == 8 * ["before"]
    assert all(loss > 0 for loss in metric.calls[1::2])
    with pytest.raises(AttributeError):
        evaluator.on_replay_loss(strategy)
