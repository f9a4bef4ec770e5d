"""The plugins that every stream learner shares, one by one and in a strategy."""

import inspect
import math
import re
from types import SimpleNamespace

import pytest
import small_models
import torch
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from avalanche.training.supervised import Naive
from small_crumb import make
from torch import nn

from crumb_avalanche.system.tensor_file import StateError
from crumb_avalanche.training.crumb import CRUMBStrategy
from crumb_avalanche.training.plugins import (
    UNSEEN_PROBABILITY,
    ClampGradients,
    SeenClassesPlugin,
    check_outputs,
)
from crumb_avalanche.training.stream_strategy import StreamStrategy

pytestmark = pytest.mark.filterwarnings("ignore:No loggers specified")


def build(plugins=(), **arguments):
    """A ``StreamStrategy`` of the small model."""
    return make(StreamStrategy, small_models.make_model(), *plugins, **arguments)


class Recorder(SupervisedPlugin):
    """Keeps the labels of the training batches."""

    def __init__(self):
        super().__init__()
        self.labels = []

    def after_training_iteration(self, strategy, **kwargs):
        self.labels += strategy.mb_y.tolist()


def test_a_wrong_label_or_number_is_an_error():
    plugin = SeenClassesPlugin()
    plugin.seen = [1, 4]
    words = "class 4 was seen, but the head has 4 outputs (0 to 3); build the model with n_classes=5 or more"
    with pytest.raises(ValueError, match=re.escape(words)):
        plugin.mask(torch.zeros(1, 4))
    with pytest.raises(ValueError, match="the labels hold -1; classes count from 0"):
        check_outputs([0, -1, 3], 4)
    for name in ("train_mb_size", "first_epochs"):
        with pytest.raises(ValueError, match=f"{name} is 0; give 1 or more"):
            build(**{name: 0})
    for state, words in (({"model": {}}, "lacks optimizer, clock"), (None, "is of type NoneType")):
        with pytest.raises(StateError, match=f"this is no state of a strategy: it {words}"):
            build().load_state_dict(state)


@pytest.mark.parametrize("shuffle", [False, True])
def test_frames_come_in_the_order_of_the_stream_unless_shuffled(make_stream, shuffle):
    recorder, experience = Recorder(), make_stream().train_stream[0]
    strategy = build([recorder])
    strategy.train(experience, **({"shuffle": True} if shuffle else {}))
    targets = list(experience.dataset.targets)
    assert strategy.frames_in_order != shuffle and (recorder.labels != targets) == shuffle
    assert sorted(recorder.labels) == sorted(targets)


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e9, -1e9])
def test_in_evaluation_an_unseen_class_costs_a_finite_constant(scale):
    plugin = SeenClassesPlugin()
    plugin.seen = [3, 1]
    logits = torch.randn(50, 5, generator=torch.Generator().manual_seed(0)) * 2 + scale
    before, answers = logits.clone(), plugin.mask_answers(logits)
    assert torch.equal(logits, before) and torch.equal(answers[:, [1, 3]], logits[:, [1, 3]])
    among_seen = plugin.mask(logits)
    if abs(scale) < 1e4:
        assert torch.equal(answers.argmax(1), among_seen.argmax(1))
        labels = torch.full((50,), 2)
        costs = nn.functional.cross_entropy(answers.double(), labels, reduction="none")
        torch.testing.assert_close(costs, torch.full_like(costs, -math.log(UNSEEN_PROBABILITY)), rtol=0, atol=1e-3)
        labels[:] = 3
        costs, before = (nn.functional.cross_entropy(one.double(), labels) for one in (answers, among_seen))
        assert 0 <= costs - before < 3.1e-6
    assert set(answers.argmax(1).tolist()) <= {1, 3}


class EpochEvents(SupervisedPlugin):
    """Sets ``train_epochs`` at an event of the first experience, or fails there; counts epochs of each experience."""

    def __init__(self, event=None, change=None):
        super().__init__()
        self.counts = []
        if event is not None:
            setattr(self, event, lambda strategy, **kwargs: change(strategy) if len(self.counts) == 0 else None)

    def after_training_exp(self, strategy, **kwargs):
        self.counts.append(strategy.clock.train_exp_epochs)


def set_to(number):
    return lambda strategy: setattr(strategy, "train_epochs", number)


@pytest.mark.parametrize(
    ("arguments", "event", "change", "counts"),
    [
        ({}, None, None, [1, 1, 1]),
        ({"first_epochs": 3, "train_epochs": 2}, None, None, [3, 2, 2]),
        ({"first_epochs": 3, "train_epochs": 2}, "before_training", set_to(1), [3, 1, 1]),
        # A number that is set within the first experience holds from the next one on.
        ({"first_epochs": 2}, "before_training_epoch", set_to(4), [2, 4, 4]),
    ],
)
def test_numbers_of_epochs(make_stream, arguments, event, change, counts):
    events = EpochEvents(event, change)
    strategy = build(plugins=[events], **arguments)
    for experience in make_stream(classes_per_experience=1).train_stream[:3]:
        strategy.train(experience)
    assert events.counts == counts and strategy.train_epochs == counts[-1]


@pytest.mark.filterwarnings("ignore:Avalanche is transitioning")
@pytest.mark.parametrize(("kind", "own"), [(StreamStrategy, {}), (CRUMBStrategy, {"mem_size": 3})])
def test_positional_arguments_are_those_of_the_host(kind, own, make_model):
    model = make_model()
    names = list(inspect.signature(Naive).parameters)[:10]
    shown, base = (inspect.signature(one).parameters for one in (kind, StreamStrategy))
    assert list(shown)[:10] == names and not hasattr(vars(kind)["__init__"], "__signature__")
    assert [shown[name] for name in names] == [base[name] for name in names]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion, recorder, evaluator = nn.CrossEntropyLoss(label_smoothing=0.1), Recorder(), EvaluationPlugin(loggers=[])
    given = [model, optimizer, criterion, 6, 2, 7, "cpu", [recorder], evaluator, 1]
    for count in (3, 10):
        strategy = kind(*given[:count], **own)
        assert strategy.model is model and strategy.optimizer is optimizer and strategy._criterion is criterion
        assert strategy.eval_every == (1 if count == 10 else -1)
    assert (strategy.train_mb_size, strategy.train_epochs, strategy.eval_mb_size) == (6, 2, 7)
    assert recorder in strategy.plugins and strategy.evaluator is evaluator
    with pytest.raises(TypeError, match="multiple values for argument 'train_mb_size'"):
        kind(*given[:4], train_mb_size=6, **own)


def test_every_gradient_element_is_clamped():
    weight, unused = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([{"params": [weight]}, {"params": [unused]}], lr=1.0)
    weight.grad = torch.tensor([-30.0, -10, 0.5, 11])
    ClampGradients(10).before_update(SimpleNamespace(optimizer=optimizer))
    assert weight.grad.tolist() == [-10, -10, 0.5, 10] and unused.grad is None
    for limit in (0, math.nan):
        with pytest.raises(ValueError, match=f"clamp_gradients is {limit}; give a number above 0, or None"):
            build(clamp_gradients=limit)


def test_weights_may_be_in_groups_with_rates_of_their_own(make_model, make_stream):
    stream, models = make_stream(), [make_model(), make_model()]
    head = models[1].plastic_layers.head
    parts = [[*head.parameters()], [weight for name, weight in models[1].named_parameters() if "head" not in name]]
    trainable = [{"params": [weight for weight in part if weight.requires_grad]} for part in parts]
    for model, weights in zip(models, (models[0].parameters(), trainable)):
        strategy = make(StreamStrategy, model, optimizer=torch.optim.SGD(weights, lr=0.05))
        strategy.train(stream.train_stream)
    for one, other in zip(models[0].parameters(), models[1].parameters()):
        assert torch.equal(one, other)
    strategy.load_state_dict(strategy.state_dict())
    groups = [{"params": [weight]} for weight in models[0].plastic_layers.head.parameters()]
    some = make(StreamStrategy, models[0], optimizer=torch.optim.SGD(groups))
    with pytest.raises(ValueError, match=r"the optimizer has 2 groups of weights, and none has .*: add it to one"):
        some.train(stream.train_stream[0])
