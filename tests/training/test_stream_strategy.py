"""The strategy of every stream learner and its plugins: the mask, the guard, maps."""

import inspect
import math
import re
import warnings
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import small_models
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from avalanche.training.supervised import Naive
from host_benchmarks import LabelledImages, Trace
from torch import nn
from watched import built, make, outputs_of, same_weights, taught, train

from crumb_avalanche.memory.buffers import CodeBuffer, ImageBuffer
from crumb_avalanche.memory.selection import ClassBalancedReservoir
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.models.layers import trainable
from crumb_avalanche.models.map_store import MapStore
from crumb_avalanche.models.split_backbone import split_backbone
from crumb_avalanche.models.weights import weights_hash
from crumb_avalanche.system.value_types import StateError
from crumb_avalanche.training.batch_plugin import BatchPlugin
from crumb_avalanche.training.crumb import CRUMBPlugin, CRUMBStrategy
from crumb_avalanche.training.feature_cache import FeatureCache
from crumb_avalanche.training.plugins import (
    UNSEEN_PROBABILITY,
    DivergenceGuard,
    SeenClassesPlugin,
    TaskIncrementalPlugin,
    TrainingDivergedError,
    check_outputs,
)
from crumb_avalanche.training.stream_strategy import StreamStrategy


def build(plugins=(), **arguments):
    """A ``StreamStrategy`` of the small model."""
    return make(StreamStrategy, small_models.make_model(), *plugins, **arguments)


def test_a_negative_label_is_an_error():
    with pytest.raises(ValueError, match="the labels hold -1; classes count from 0"):
        check_outputs([0, -1, 3], 4)


@pytest.mark.parametrize("name", ["train_mb_size", "first_epochs"])
def test_a_count_of_zero_is_an_error(name):
    with pytest.raises(ValueError, match=f"{name} is 0; give 1 or more"):
        build(**{name: 0})


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        ("train_epochs", -1, ValueError, "train_epochs is -1; give 0 or more"),
        ("train_epochs", 1.5, TypeError, r"train_epochs is 1.5; give a whole number"),
        ("eval_every", -5, ValueError, "eval_every is -5; give -1 or more"),
        ("eval_every", "1", TypeError, "eval_every is '1'; give a whole number"),
    ],
)
def test_counts_of_epochs_are_checked(name, value, error, words):
    with pytest.raises(error, match=words):
        build(**{name: value})


def test_no_evaluation_in_training_is_a_choice():
    build(eval_every=-1)
    build(eval_every=0)


@pytest.mark.parametrize("limit", [0, math.nan])
def test_a_limit_is_above_zero(limit):
    words = f"clamp_gradients is {limit}; give a number above 0, or None"
    with pytest.raises(ValueError, match=words):
        build(clamp_gradients=limit)


@pytest.mark.parametrize(
    "state, words",
    [({"model": {}}, "lacks optimizer, clock"), (None, "is of type NoneType")],
)
def test_another_state_is_refused(state, words):
    with pytest.raises(StateError, match=f"this is no state of a strategy: it {words}"):
        build().load_state_dict(state)


def with_buffer(buffer):
    """Arguments of a strategy on a model, of which only the buffer differs."""
    return lambda model: dict(storage_policy=buffer)


def with_two_groups(model):
    """Arguments of a strategy on a model: two groups of weights in the optimiser."""
    parts = [model.plastic_layers, model.codebook]
    groups = [{"params": part.parameters()} for part in parts]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    return dict(storage_policy=CodeBuffer(4), optimizer=optimizer)


@pytest.mark.parametrize(
    "arguments_for",
    [
        with_buffer(CodeBuffer(6)),
        with_buffer(ImageBuffer(4)),
        with_buffer(CodeBuffer(4, ClassBalancedReservoir())),
        with_two_groups,
    ],
    ids=["capacity", "buffer", "rule", "optimizer"],
)
def test_a_refused_state_changes_nothing(make_model, make_stream, arguments_for):
    # Given the state of a strategy that learned an experience
    learned = make(CRUMBStrategy, make_model(), storage_policy=CodeBuffer(4))
    learned.train(make_stream().train_stream[0])
    # When another strategy is to go on from it
    model = make_model()
    strategy = make(CRUMBStrategy, model, **arguments_for(model))
    weights_before = weights_hash(model)
    with pytest.raises(StateError, match="build the same strategy"):
        strategy.load_state_dict(learned.state_dict())
    # Then that one is as it was
    assert weights_hash(model) == weights_before
    assert strategy.clock.train_exp_counter == 0
    assert len(strategy.storage_policy) == 0


def test_an_evaluated_class_beyond_the_head(make_model, make_stream):
    # Given a network of two outputs that learned two classes
    first, second = make_stream().train_stream
    strategy = make(StreamStrategy, make_model(n_classes=2))
    strategy.train(first)
    # When it is tested on a third and a fourth
    words = "an image has class 3, but the head has 2 outputs .*n_classes=4 or more"
    with pytest.raises(ValueError, match=words):
        strategy.eval(second)


class Masked:
    """Logits of 50 images, of five classes of which 1 and 3 were seen.

    Attributes:
        logits: around `scale`.
        answers: with the other classes masked as in evaluation.
        among_seen: with the other classes masked as in training.
    """

    def __init__(self, scale):
        plugin = SeenClassesPlugin()
        plugin.seen = [3, 1]
        noise = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
        self.logits = noise * 2 + scale
        self.before = self.logits.clone()
        self.answers = plugin.mask_answers(self.logits)
        self.among_seen = plugin.mask(self.logits)


def losses_of(outputs, label):
    labels = torch.full((50,), label)
    return nn.functional.cross_entropy(outputs.double(), labels, reduction="none")


EVERY_SCALE = pytest.mark.parametrize("scale", [1.0, 1e3, 1e9, -1e9])
FINE_SCALE = pytest.mark.parametrize("scale", [1.0, 1e3])  # of float32 logits


@EVERY_SCALE
def test_the_logits_of_seen_classes_stay(scale):
    masked = Masked(scale)
    assert torch.equal(masked.logits, masked.before)
    assert torch.equal(masked.answers[:, [1, 3]], masked.logits[:, [1, 3]])


@EVERY_SCALE
def test_unseen_classes_are_not_answered(scale):
    assert set(Masked(scale).answers.argmax(1).tolist()) <= {1, 3}


@FINE_SCALE
def test_the_answer_is_that_among_seen_classes(scale):
    masked = Masked(scale)
    assert torch.equal(masked.answers.argmax(1), masked.among_seen.argmax(1))


@FINE_SCALE
def test_an_unseen_class_costs_a_constant(scale):
    losses = losses_of(Masked(scale).answers, 2)
    expected = torch.full_like(losses, -math.log(UNSEEN_PROBABILITY))
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-3)


@FINE_SCALE
def test_a_seen_class_costs_hardly_more(scale):
    masked = Masked(scale)
    loss = losses_of(masked.answers, 3).mean()
    assert 0 <= loss - losses_of(masked.among_seen, 3).mean() < 3.1e-6


@pytest.mark.parametrize(
    ("arguments", "event", "number", "counts"),
    [
        ({}, None, None, [1, 1, 1]),
        ({"first_epochs": 3, "train_epochs": 2}, None, None, [3, 2, 2]),
        ({"first_epochs": 3, "train_epochs": 2}, "before_training", 1, [3, 1, 1]),
        # A number that is set within the first experience holds from the next one on.
        ({"first_epochs": 2}, "before_training_epoch", 4, [2, 4, 4]),
    ],
)
def test_numbers_of_epochs(make_stream, arguments, event, number, counts):
    trace = Trace()
    setting = SupervisedPlugin()
    if event is not None:
        setattr(
            setting,
            event,
            lambda strategy, **kwargs: setattr(strategy, "train_epochs", number),
        )
    strategy = build([trace, setting], **arguments)
    for experience in make_stream(classes_per_experience=1).train_stream[:3]:
        strategy.train(experience)
    assert trace.epochs == counts and strategy.train_epochs == counts[-1]


@pytest.mark.parametrize("kind", [StreamStrategy, CRUMBStrategy])
def test_arguments_are_those_of_the_host(kind):
    """The first ten, in their order."""
    names = list(inspect.signature(Naive).parameters)[:10]
    parameters = inspect.signature(kind).parameters
    of_base = inspect.signature(StreamStrategy).parameters
    assert list(parameters)[:10] == names
    assert not hasattr(vars(kind)["__init__"], "__signature__")
    assert [parameters[name] for name in names] == [of_base[name] for name in names]


@pytest.mark.filterwarnings("ignore:Avalanche is transitioning")
@pytest.mark.parametrize("count", [3, 10])
@pytest.mark.parametrize(
    ("kind", "own"), [(StreamStrategy, {}), (CRUMBStrategy, {"mem_size": 3})]
)
def test_arguments_may_be_positional(kind, own, count, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    plugin = SupervisedPlugin()
    evaluator = EvaluationPlugin(loggers=[])
    arguments = [model, optimizer, criterion, 6, 2, 7, "cpu", [plugin], evaluator, 1]
    strategy = kind(*arguments[:count], **own)
    assert strategy.model is model
    assert strategy.optimizer is optimizer
    assert strategy._criterion is criterion
    if count == 10:
        assert strategy.train_mb_size == 6
        assert strategy.train_epochs == 2
        assert strategy.eval_mb_size == 7
        assert plugin in strategy.plugins
        assert strategy.evaluator is evaluator
    assert strategy.eval_every == (1 if count == 10 else -1)


@pytest.mark.filterwarnings("ignore:Avalanche is transitioning")
@pytest.mark.parametrize(
    ("kind", "own"), [(StreamStrategy, {}), (CRUMBStrategy, {"mem_size": 3})]
)
def test_an_argument_given_twice_is_an_error(kind, own, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    words = "multiple values for argument 'train_mb_size'"
    with pytest.raises(TypeError, match=words):
        kind(model, optimizer, nn.CrossEntropyLoss(), 6, train_mb_size=6, **own)


def test_groups_train_as_one(make_model, make_stream):
    whole = make_model()
    grouped = make_model()
    head = [*grouped.plastic_layers.head.parameters()]
    in_head = set(map(id, head))
    references = []
    for weight in grouped.parameters():
        if weight.requires_grad and id(weight) not in in_head:
            references.append(weight)
    groups = [{"params": head}, {"params": references}]
    one_group = torch.optim.SGD(whole.parameters(), lr=0.05)
    two_groups = torch.optim.SGD(groups, lr=0.05)
    make(StreamStrategy, whole, optimizer=one_group).train(make_stream().train_stream)
    strategy = make(StreamStrategy, grouped, optimizer=two_groups)
    strategy.train(make_stream().train_stream)
    assert all(map(torch.equal, whole.parameters(), grouped.parameters()))
    strategy.load_state_dict(strategy.state_dict())


def test_a_weight_in_no_group_is_an_error(model, make_stream):
    head = model.plastic_layers.head.parameters()
    optimizer = torch.optim.SGD([{"params": [weight]} for weight in head])
    strategy = make(StreamStrategy, model, optimizer=optimizer)
    words = r"the optimizer has 2 groups of weights, and none has .*: add it to one"
    with pytest.raises(ValueError, match=words):
        strategy.train(make_stream().train_stream[0])


@dataclass(frozen=True)
class Hinted:
    """A strategy with the hint of the task, and its twin without."""

    hinted: StreamStrategy
    plain: StreamStrategy
    stream: object

    def outputs(self, strategy, number):
        """What a strategy answers in the test of an experience."""
        return outputs_of(strategy, self.stream.test_stream[number : number + 1])[0]

    def classes(self, number):
        """The classes of an experience, and those of others."""
        classes = set(self.stream.original_classes_in_exp[number])
        return sorted(classes), sorted({0, 1, 2, 3} - classes)


@pytest.fixture(scope="module")
def hinted():
    settings = {"learning_rate": 0.1}
    hinted, stream = taught(
        "finetune", plugins=[TaskIncrementalPlugin()], settings=settings
    )
    plain, _ = taught("finetune", settings=settings)
    return Hinted(hinted, plain, stream)


def test_the_hint_does_not_change_training(hinted):
    for weight, expected in zip(
        hinted.hinted.model.parameters(), hinted.plain.model.parameters()
    ):
        assert torch.equal(weight, expected)


@pytest.mark.parametrize("number", [0, 1])
def test_answers_are_classes_of_the_experience(hinted, number):
    classes, foreign = hinted.classes(number)
    outputs = hinted.outputs(hinted.hinted, number)
    expected = hinted.outputs(hinted.plain, number)
    assert torch.equal(outputs[:, classes], expected[:, classes])
    assert outputs[:, foreign].max() < -1e4


def test_without_the_hint_other_classes_are_answered(hinted):
    classes, foreign = hinted.classes(0)
    outputs = hinted.outputs(hinted.plain, 0)
    assert (outputs[:, foreign].amax(1) > outputs[:, classes].amax(1)).any()


class NaNAt(SupervisedPlugin):
    """Makes the loss of one iteration NaN.

    Keeps the trainable weights that each iteration began with.
    """

    def __init__(self, iteration, value=float("nan")):
        super().__init__()
        self.iteration = iteration
        self.value = value
        self.weights = []

    def before_backward(self, strategy, **kwargs):
        self.weights.append(
            [weight.detach().clone() for weight in trainable(strategy.model).values()]
        )
        if strategy.clock.train_exp_iterations == self.iteration:
            strategy.loss = strategy.loss * self.value


@pytest.mark.parametrize(
    "iteration, value", [(0, float("nan")), (1, float("inf")), (3, float("nan"))]
)
def test_a_diverged_training_goes_back_to_the_last_good_weights(
    model, make_stream, iteration, value
):
    fault = NaNAt(iteration, value)
    strategy = make(StreamStrategy, model, fault)
    words = (
        f"the loss became {value} in experience 0, iteration {iteration}; "
        "the weights were put back.*--clamp-gradients 10"
    )
    with pytest.raises(TrainingDivergedError, match=words):
        strategy.train(make_stream().train_stream[0])
    assert len(fault.weights) == iteration + 1
    weights = list(trainable(model).values())
    good = fault.weights[max(iteration - 1, 0)]
    assert all(map(torch.equal, weights, good))
    if iteration:
        assert not all(map(torch.equal, weights, fault.weights[iteration]))


def test_momenta_of_infinite_gradients_are_cleared(make_model, make_stream):
    # Given a strategy whose gradients are infinite once, after a finite loss
    class InfiniteGradients(SupervisedPlugin):
        def before_update(self, strategy, **kwargs):
            if strategy.clock.train_exp_iterations == 1:
                for weight in trainable(strategy.model).values():
                    weight.grad.fill_(float("inf"))

    model = make_model(codebook=False)
    strategy = make(StreamStrategy, model, InfiniteGradients())
    experience = make_stream().train_stream[0]
    # When the training stopped at the next loss
    with pytest.raises(TrainingDivergedError, match="iteration 2"):
        strategy.train(experience)
    # Then no step that follows has these momenta
    for state in strategy.optimizer.state.values():
        assert state["momentum_buffer"].isfinite().all()


def test_a_first_loss_on_a_gpu_goes_back_to_the_weights_before_it(make_model):
    # Given a guard that reads losses at the end of an iteration, as on a GPU
    model = make_model()
    strategy = SimpleNamespace(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        clock=SimpleNamespace(train_exp_counter=0, train_exp_iterations=0),
    )
    guard = DivergenceGuard()
    weights = list(trainable(model).values())
    before = [weight.detach().clone() for weight in weights]
    guard.before_training_iteration(strategy)
    guard._latest_weights = before
    guard._unread_losses = [torch.tensor(float("nan"))]
    # When the first step was taken with a loss that is NaN
    for weight in weights:
        weight.data.fill_(float("nan"))
    with pytest.raises(TrainingDivergedError):
        guard.after_training_iteration(strategy)
    # Then the weights are those before it
    assert all(map(torch.equal, weights, before))


def test_a_replay_loss_stops_the_training_too(model, make_stream):
    class Fault(SupervisedPlugin):
        def on_replay_loss(self, strategy, **kwargs):
            strategy.replay_loss = strategy.replay_loss * float("nan")

    with pytest.raises(TrainingDivergedError, match="in experience 1, iteration 0"):
        train(model, make_stream(), CodeBuffer(7), [Fault()])
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_without_the_guard_training_goes_on(make_model, make_stream):
    model, fault = make_model(codebook=False), NaNAt(1)
    strategy = make(StreamStrategy, model, fault, divergence_guard=False)
    strategy.train(make_stream().train_stream[0])
    assert len(fault.weights) == 4
    assert any(weight.isnan().any() for weight in model.parameters())


def test_running_statistics_go_back_too(make_model):
    model = make_model()
    model.plastic_layers.add_module("norm", nn.BatchNorm1d(4))
    model.train()
    clock = SimpleNamespace(train_exp_counter=0, train_exp_iterations=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    strategy = SimpleNamespace(model=model, clock=clock, optimizer=optimizer)
    guard = DivergenceGuard()
    model.plastic_layers(torch.rand(6, *model.map_shape))
    guard.check_loss(strategy, torch.tensor(1.0))
    good = model.plastic_layers.norm.running_mean.clone()
    model.plastic_layers(torch.full((6, *model.map_shape), float("inf")))
    assert not model.plastic_layers.norm.running_mean.isfinite().all()
    with pytest.raises(TrainingDivergedError):
        guard.check_loss(strategy, torch.tensor(float("inf")))
    assert torch.equal(model.plastic_layers.norm.running_mean, good)


class Watch(SupervisedPlugin):
    """The shapes of all batches of training and evaluation."""

    def __init__(self):
        super().__init__()
        self.shapes = []
        self.outputs = []

    def before_forward(self, strategy, **kwargs):
        self.shapes.append(tuple(strategy.mb_x.shape[1:]))

    def after_eval_iteration(self, strategy, **kwargs):
        self.shapes.append(tuple(strategy.mb_x.shape[1:]))
        self.outputs.append(strategy.mb_output)


class Cached:
    """A strategy after an experience, with a cache of maps or without."""

    def __init__(self, folder=None):
        self.model = small_models.make_model()
        stream = small_models.make_stream()
        self.watch = Watch()
        plugins = [self.watch]
        if folder is not None:
            store = MapStore(folder, self.model, 200, "toy", progress=False)
            self.cache = FeatureCache(store)
            plugins.insert(0, self.cache)
        strategy = make(StreamStrategy, self.model, *plugins, first_epochs=2)
        strategy.train(stream.train_stream[0])
        strategy.eval(stream.test_stream[:1])


@pytest.fixture
def cached(tmp_path):
    return Cached(tmp_path)


def test_maps_replace_images(cached):
    assert set(cached.watch.shapes) == {(8, 4, 4)}
    assert set(Cached().watch.shapes) == {(3, 16, 16)}


def test_maps_are_answered_as_images(cached):
    outputs = torch.cat(cached.watch.outputs)
    expected = torch.cat(Cached().watch.outputs)
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)


def test_each_frame_is_cached_once(cached):
    assert cached.cache.store.filled == 20 + 20  # training and test frames


def test_equal_images_are_computed_once(cached):
    assert cached.model.feature_memo is cached.cache.memo
    extracted = small_models.images_extracted(cached.model)
    cached.model.features(torch.zeros(2, 3, 16, 16, dtype=torch.uint8))
    assert len(extracted) == 1


def test_the_memo_ends_with_the_cache(cached):
    cached.cache.close()
    assert cached.model.feature_memo is None
    assert not cached.cache.memo._maps


def test_data_sets_must_have_row_numbers(tmp_path, model, pixels):
    images = as_classification_dataset(LabelledImages(pixels, torch.arange(6) % 4))
    strategy = make(
        StreamStrategy, model, FeatureCache(MapStore(tmp_path, model, 10, "toy"))
    )
    with pytest.raises(
        ValueError,
        match=re.escape(
            "give the data sets a DataAttribute 'frame_row' with the number"
        ),
    ):
        strategy.train(benchmark_from_datasets(train=[images]).train_stream[0])


LEARNERS = [
    name for name, entry in STRATEGIES.items() if entry.gradient and not entry.joint
]


class ForeignPass(SupervisedPlugin):
    """Passes noise through the model in training mode, in batches of several sizes, at
    every event of an iteration.
    """

    def __init__(self):
        super().__init__()
        self.passes = 0
        self.noise = torch.randint(
            0, 256, (9, 3, 16, 16), generator=torch.Generator().manual_seed(9)
        ).byte()

    def look(self, strategy, **kwargs):
        assert strategy.model.training
        with torch.no_grad():
            for size in (9, len(strategy.mb_y), 1):
                strategy.model(self.noise[:size])
                self.passes += 1

    before_forward = after_forward = after_backward = before_update = after_update = (
        look
    )


def learn_with(name, make_model, make_stream, plugins=(), settings=None):
    torch.manual_seed(0)
    np.random.seed(0)
    model = make_model(codebook=STRATEGIES[name].codebook)
    learning = {"first_epochs": 1, **(settings or {})}
    strategy = built(name, model, 8, learning, plugins=list(plugins))
    for experience in make_stream().train_stream:
        strategy.train(experience)
    return strategy


@pytest.mark.parametrize(
    ("name", "settings"),
    [*((name, {}) for name in LEARNERS), ("crumb", {"fused": True})],
)
def test_a_foreign_pass_is_not_taken_for_its_own(
    make_model, make_stream, name, settings
):
    foreign = ForeignPass()
    strategy = learn_with(name, make_model, make_stream, [foreign], settings)
    expected = learn_with(name, make_model, make_stream, [], settings)
    assert foreign.passes > 0
    same_weights(strategy.model, expected.model, rtol=0, atol=0)
    memories = expected.storage_policy
    if memories is not None and memories.rows is not None:
        assert torch.equal(strategy.storage_policy.rows, memories.rows)
        assert torch.equal(strategy.storage_policy.labels, memories.labels)


class WatchedBatch(BatchPlugin):
    """Compares the batch of each iteration with what the strategy has."""

    batches = 0

    def before_backward(self, strategy, **kwargs):
        maps = strategy.model.features(strategy.mb_x)
        assert torch.equal(self.batch.feature_map, maps)
        assert self.batch.codes is None
        assert self.batch.labels is strategy.mb_y
        assert torch.equal(self.batch.pixels([1, 0]), strategy.mb_x[[1, 0]])
        self.batches += 1


class Copying(StreamStrategy):
    """Passes a copy of the batch through the model."""

    def forward(self):
        return self.model(self.mb_x.clone())


def test_a_batch_that_does_not_pass_the_model(model, make_stream):
    watch = WatchedBatch()
    make(Copying, model, watch).train(make_stream().train_stream[0])
    assert watch.batches == 4
    assert watch.batch is None


def not_handed_over():
    return [SeenClassesPlugin(), CRUMBPlugin(CodeBuffer(4))]


def another_one():
    seen = SeenClassesPlugin()
    return [SeenClassesPlugin(), CRUMBPlugin(CodeBuffer(4), seen=seen)]


def not_listed():
    return [CRUMBPlugin(CodeBuffer(4), seen=SeenClassesPlugin())]


@pytest.mark.parametrize(
    ("plugins", "words"),
    [
        (not_handed_over, r"was not handed .*different classes.*seen="),
        (another_one, "different classes"),
        (not_listed, r"not in the strategy's plugin list.*plugins=\[seen"),
    ],
)
def test_a_mask_is_handed_over(model, make_stream, plugins, words):
    with pytest.raises(ValueError, match=words):
        make(Naive, model, *plugins()).train(make_stream().train_stream[0])


def test_a_second_mask_is_refused(model, make_stream):
    strategy = make(CRUMBStrategy, model, SeenClassesPlugin(), mem_size=4)
    with pytest.raises(ValueError, match="SeenClassesPlugin"):
        strategy.train(make_stream().train_stream[0])


@pytest.mark.parametrize(
    "name, is_calibrated", [("finetune", True), ("er", True), ("slda", False)]
)
def test_methods_with_gradient_steps_calibrate(make_stream, name, is_calibrated):
    """As ``crumb run`` does before it builds the strategy of any method."""
    # Given a new model with a head that centres its inputs
    model = split_backbone("small_cnn", None, n_classes=4, image_size=16, codebook=None)
    model.centre_head()
    # When a method built from Python learns the first experience
    strategy = built(name, model)
    strategy.train(make_stream().train_stream[0])
    # Then scale and head fit its images, if the method trains the network
    assert model.calibrated == is_calibrated
    assert bool(model.plastic_layers.head.mean.any()) == is_calibrated


def test_codes_that_are_not_used_give_no_warning(make_stream):
    model = split_backbone("small_cnn", None, n_classes=4, image_size=16)
    strategy = built("er", model)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the codes keep")
        strategy.train(make_stream().train_stream[0])
    assert model.codes_error is None
