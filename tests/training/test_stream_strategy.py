"""The plugins that every stream learner shares, one by one and in a strategy."""

import inspect
import math

import pytest
import small_models
import torch
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from avalanche.training.supervised import Naive
from host_benchmarks import Trace
from small_crumb import make
from torch import nn
from watched import outputs_of, taught

from crumb_avalanche.system.tensor_file import StateError
from crumb_avalanche.training.crumb import CRUMBStrategy
from crumb_avalanche.training.plugins import (
    UNSEEN_PROBABILITY,
    SeenClassesPlugin,
    TaskIncrementalPlugin,
    check_outputs,
)
from crumb_avalanche.training.stream_strategy import StreamStrategy

pytestmark = pytest.mark.filterwarnings("ignore:No loggers specified")


def build(plugins=(), **arguments):
    """A ``StreamStrategy`` of the small model."""
    return make(StreamStrategy, small_models.make_model(), *plugins, **arguments)


def test_a_wrong_label_or_number_is_an_error():
    with pytest.raises(ValueError, match="the labels hold -1; classes count from 0"):
        check_outputs([0, -1, 3], 4)
    for name in ("train_mb_size", "first_epochs"):
        with pytest.raises(ValueError, match=f"{name} is 0; give 1 or more"):
            build(**{name: 0})
    for limit in (0, math.nan):
        with pytest.raises(ValueError, match=f"clamp_gradients is {limit}; give a number above 0, or None"):
            build(clamp_gradients=limit)
    for state, words in (({"model": {}}, "lacks optimizer, clock"), (None, "is of type NoneType")):
        with pytest.raises(StateError, match=f"this is no state of a strategy: it {words}"):
            build().load_state_dict(state)


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
    trace, setting = Trace(), SupervisedPlugin()
    if event is not None:
        setattr(setting, event, lambda strategy, **kwargs: setattr(strategy, "train_epochs", number))
    strategy = build([trace, setting], **arguments)
    for experience in make_stream(classes_per_experience=1).train_stream[:3]:
        strategy.train(experience)
    assert trace.epochs == counts and strategy.train_epochs == counts[-1]


@pytest.mark.filterwarnings("ignore:Avalanche is transitioning")
@pytest.mark.parametrize(("kind", "own"), [(StreamStrategy, {}), (CRUMBStrategy, {"mem_size": 3})])
def test_positional_arguments_are_those_of_the_host(kind, own, make_model):
    model = make_model()
    names = list(inspect.signature(Naive).parameters)[:10]
    shown, base = (inspect.signature(one).parameters for one in (kind, StreamStrategy))
    assert list(shown)[:10] == names and not hasattr(vars(kind)["__init__"], "__signature__")
    assert [shown[name] for name in names] == [base[name] for name in names]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion, plugin, evaluator = nn.CrossEntropyLoss(), SupervisedPlugin(), EvaluationPlugin(loggers=[])
    given = [model, optimizer, criterion, 6, 2, 7, "cpu", [plugin], evaluator, 1]
    for count in (3, 10):
        strategy = kind(*given[:count], **own)
        assert strategy.model is model and strategy.optimizer is optimizer and strategy._criterion is criterion
        assert strategy.eval_every == (1 if count == 10 else -1)
    assert (strategy.train_mb_size, strategy.train_epochs, strategy.eval_mb_size) == (6, 2, 7)
    assert plugin in strategy.plugins and strategy.evaluator is evaluator
    with pytest.raises(TypeError, match="multiple values for argument 'train_mb_size'"):
        kind(*given[:4], train_mb_size=6, **own)


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


def test_answers_are_classes_of_the_experience_under_test():
    settings = {"learning_rate": 0.1}
    (hinted, stream), (plain, _) = (
        taught("finetune", plugins=one, settings=settings) for one in ([TaskIncrementalPlugin()], [])
    )
    # Training is untouched.
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(hinted.model.parameters(), plain.model.parameters()))
    others_answered = 0
    for number, known in enumerate(stream.original_classes_in_exp):
        classes, others = sorted(known), sorted({0, 1, 2, 3} - known)
        ours, theirs = (outputs_of(one, stream.test_stream[number : number + 1])[0] for one in (hinted, plain))
        assert torch.equal(ours[:, classes], theirs[:, classes]) and ours[:, others].max() < -1e4
        others_answered += int((theirs[:, others].amax(1) > theirs[:, classes].amax(1)).sum())
    assert others_answered  # without the hint
