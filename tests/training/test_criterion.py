"""Losses over the classes seen, whatever the criterion: against sums over the seen classes written out."""

import functools
import math
from types import SimpleNamespace

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from avalanche.training.supervised import Naive
from small_crumb import SGD, train
from torch import nn
from torch.nn import functional

from crumb_avalanche.training.criterion import SeenClassesLoss
from crumb_avalanche.training.crumb import CRUMBPlugin
from crumb_avalanche.training.plugins import SeenClassesPlugin, TaskIncrementalPlugin
from crumb_avalanche.training.storage_policies import CodeBuffer

CLASSES, SEEN = 7, [5, 1, 3]
WEIGHTS = torch.linspace(0.5, 2.0, CLASSES)
LABELS = [1, 5, 3, 3, 1]
pytestmark = pytest.mark.filterwarnings("ignore:No loggers specified")


class Focal(nn.Module):
    """Focal loss with a factor for each class."""

    def __init__(self):
        super().__init__()
        self.alpha = WEIGHTS.clone()

    def forward(self, logits, labels):
        own = logits.log_softmax(1).gather(1, labels[:, None])[:, 0]
        return -(self.alpha[labels] * (1 - own.exp()) ** 2 * own).mean()


def one_hot_loss(logits, labels):
    targets = functional.one_hot(labels, logits.shape[1]).float()
    return functional.binary_cross_entropy_with_logits(logits, targets)


def log_p(row):
    total = math.log(sum(math.exp(value) for value in row.values()))
    return {label: value - total for label, value in row.items()}


def cross_entropy_twin(rows, labels, weights=None, smoothing=0.0, ignored=None, total=False):
    """Sum over images and seen classes; ``rows`` are ``{class: logit}``."""
    weights = dict.fromkeys(range(CLASSES), 1.0) if weights is None else weights
    own = smooth = norm = count = 0.0
    for row, label in zip(rows, labels):
        if label == ignored:
            continue
        logs = log_p(row)
        own -= weights[label] * logs[label]
        smooth -= sum(weights[other] * logs[other] for other in row) / len(row)
        norm, count = norm + weights[label], count + 1
    loss = (1 - smoothing) * own + smoothing * smooth
    return loss if total else loss / norm


def nll_twin(rows, labels):
    own = sum(-WEIGHTS[label].item() * row[label] for row, label in zip(rows, labels))
    return own / sum(WEIGHTS[label].item() for label in labels)


def margin_twin(rows, labels):
    costs = [
        sum(WEIGHTS[label].item() * max(0, 1 - row[label] + row[other]) for other in row if other != label) / len(row)
        for row, label in zip(rows, labels)
    ]
    return sum(costs) / len(costs)


def one_hot_twin(rows, labels):
    costs = [
        math.log1p(math.exp(-value if other == label else value))
        for row, label in zip(rows, labels)
        for other, value in row.items()
    ]
    return sum(costs) / len(costs)


def focal_twin(rows, labels):
    logs = [log_p(row)[label] for row, label in zip(rows, labels)]
    costs = [-WEIGHTS[label].item() * (1 - math.exp(own)) ** 2 * own for own, label in zip(logs, labels)]
    return sum(costs) / len(costs)


def spread_twin(rows, labels):
    return sum((max(row.values()) - row[label]) / len(row) for row, label in zip(rows, labels))


table = WEIGHTS.tolist()
CRITERIA = {
    "cross-entropy": (nn.CrossEntropyLoss(), cross_entropy_twin),
    "weights": (nn.CrossEntropyLoss(weight=WEIGHTS), functools.partial(cross_entropy_twin, weights=table)),
    "smoothing": (nn.CrossEntropyLoss(label_smoothing=0.1), functools.partial(cross_entropy_twin, smoothing=0.1)),
    "weights and smoothing": (
        nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.3),
        functools.partial(cross_entropy_twin, weights=table, smoothing=0.3),
    ),
    "ignored class": (
        nn.CrossEntropyLoss(ignore_index=3, label_smoothing=0.1),
        functools.partial(cross_entropy_twin, ignored=3, smoothing=0.1),
    ),
    "sum": (
        nn.CrossEntropyLoss(reduction="sum", label_smoothing=0.1),
        functools.partial(cross_entropy_twin, smoothing=0.1, total=True),
    ),
    "log-likelihood": (nn.NLLLoss(weight=WEIGHTS), nll_twin),
    "margins": (nn.MultiMarginLoss(weight=WEIGHTS), margin_twin),
    "one-hot": (one_hot_loss, one_hot_twin),
    "partial": (
        functools.partial(functional.cross_entropy, weight=WEIGHTS, label_smoothing=0.2, ignore_index=5),
        functools.partial(cross_entropy_twin, weights=table, smoothing=0.2, ignored=5),
    ),
    "focal": (Focal(), focal_twin),
    "bound method": (Focal().forward, focal_twin),
    "function": (
        lambda z, y: ((z.amax(1) - z.gather(1, y[:, None])[:, 0]) / z.shape[1]).sum(),
        spread_twin,
    ),
}


def seen_classes(seen=SEEN):
    plugin = SeenClassesPlugin()
    plugin.seen = list(seen)
    return plugin


@pytest.fixture
def logits():
    return torch.randn(5, CLASSES, generator=torch.Generator().manual_seed(0)).mul(2).requires_grad_()


@pytest.mark.parametrize("name", CRITERIA)
@pytest.mark.parametrize("seen", [SEEN, range(CLASSES)], ids=["some seen", "all seen"])
def test_a_loss_is_over_the_seen_classes(name, seen, logits):
    criterion, twin = CRITERIA[name]
    plugin = seen_classes(seen)
    rows = [{label: float(row[label]) for label in seen} for row in logits.detach()]
    loss = SeenClassesLoss(criterion, plugin.unseen)(plugin.mask(logits), torch.tensor(LABELS))
    assert loss.item() == pytest.approx(twin(rows, LABELS), rel=1e-5)
    loss.backward()
    unseen = sorted(set(range(CLASSES)) - set(seen))
    assert not logits.grad[:, unseen].any() and logits.grad.isfinite().all()
    whole = criterion(logits.detach(), torch.tensor(LABELS))  # the criterion is as before, with all its weights
    assert float(whole) == pytest.approx(twin([dict(enumerate(row.tolist())) for row in logits], LABELS), rel=1e-5)


@pytest.mark.parametrize("name", CRITERIA)
def test_in_evaluation_an_image_of_an_unseen_class_costs_little(name, logits):
    criterion, twin = CRITERIA[name]
    plugin = seen_classes()
    loss = SeenClassesLoss(criterion, plugin.unseen)
    answers = plugin.mask_answers(logits.detach())
    rows = [{label: float(row[label]) for label in SEEN} for row in logits.detach()]
    assert float(loss(answers, torch.tensor(LABELS))) == pytest.approx(twin(rows, LABELS), rel=1e-4)
    foreign = float(loss(answers[:1], torch.tensor([2])))
    rows = [{label: float(answers[0, label]) for label in (*SEEN, 2)}]
    assert foreign == pytest.approx(twin(rows, [2]), rel=1e-4) and abs(foreign) < 40


@pytest.mark.parametrize(
    "criterion", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(WEIGHTS), nn.CrossEntropyLoss(label_smoothing=0.1)]
)
def test_targets_of_all_classes_are_cut(criterion, logits):
    plugin, targets = seen_classes(), torch.rand(5, CLASSES, generator=torch.Generator().manual_seed(1))
    loss = SeenClassesLoss(criterion, plugin.unseen)(plugin.mask(logits), targets)
    weights = None if criterion.weight is None else criterion.weight[SEEN]
    cut = nn.CrossEntropyLoss(weights, label_smoothing=criterion.label_smoothing)
    torch.testing.assert_close(loss, cut(logits[:, SEEN], targets[:, SEEN]))


def test_weights_of_a_criterion_are_trained_where_they_are_seen(logits):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(CLASSES))

        def forward(self, outputs, labels):
            return functional.cross_entropy(outputs * self.scale, labels)

    criterion, plugin = Scaled(), seen_classes()
    SeenClassesLoss(criterion, plugin.unseen)(plugin.mask(logits), torch.tensor(LABELS)).backward()
    assert criterion.scale.grad.ne(0).nonzero().flatten().tolist() == sorted(SEEN)


def test_a_criterion_that_cannot_be_cut_says_what_to_do(logits):
    plugin, labels, factors = seen_classes(), torch.tensor(LABELS), WEIGHTS.clone()

    def with_a_table(outputs, targets):
        return (functional.cross_entropy(outputs, targets, reduction="none") * factors[targets]).mean()

    def of_seven(outputs, targets):
        return functional.binary_cross_entropy_with_logits(outputs, functional.one_hot(targets, CLASSES).float())

    for criterion, words in (
        (with_a_table, "the criterion uses factors, which has an entry for each of the 7 classes"),
        (of_seven, "fails on the outputs of the 3 classes seen of 7"),
        (nn.CrossEntropyLoss(reduction="none"), r"a loss of shape \(5,\)"),
    ):
        with pytest.raises(ValueError, match=words):
            SeenClassesLoss(criterion, plugin.unseen)(plugin.mask(logits), labels)
    with_a_table.all_outputs = True
    SeenClassesLoss(with_a_table, plugin.unseen)(plugin.mask(logits), labels)


def test_a_loss_that_is_not_a_number_stays_so(logits):
    plugin = seen_classes()
    broken = plugin.mask(logits.detach()).masked_fill(torch.arange(CLASSES) == SEEN[0], torch.nan)
    assert SeenClassesLoss(nn.CrossEntropyLoss(label_smoothing=0.1), plugin.unseen)(
        broken, torch.tensor(LABELS)
    ).isnan()


class Losses(SupervisedPlugin):
    def __init__(self):
        super().__init__()
        self.trained, self.replayed, self.evaluated = [], [], []

    def before_backward(self, strategy, **kwargs):
        self.trained.append(float(strategy.loss))

    def on_replay_loss(self, strategy, **kwargs):
        self.replayed.append(float(strategy.replay_loss))

    def after_eval_iteration(self, strategy, **kwargs):
        self.evaluated.append(float(strategy.loss))


@pytest.mark.parametrize("host", ["CRUMBStrategy", "Naive"])
def test_a_strategy_trains_with_label_smoothing_over_the_seen_classes(host, model, make_stream):
    losses, stream, criterion = Losses(), make_stream(), nn.CrossEntropyLoss(label_smoothing=0.1)
    if host == "Naive":
        seen = SeenClassesPlugin()
        plugins = [seen, CRUMBPlugin(CodeBuffer(7), seen=seen), losses]
        optimizer, quiet = torch.optim.SGD(model.parameters(), **SGD), EvaluationPlugin(loggers=[])
        strategy = Naive(model=model, optimizer=optimizer, criterion=criterion, plugins=plugins, evaluator=quiet)
        for experience in stream.train_stream:
            strategy.train(experience)
    else:
        plugins = [losses, TaskIncrementalPlugin()]
        strategy = train(model, stream, CodeBuffer(7), plugins, criterion=criterion, replay_weight=1.0)
    strategy.eval(stream.test_stream)
    assert losses.trained and losses.replayed and losses.evaluated
    assert all(0 < loss < 20 for loss in (*losses.trained, *losses.replayed, *losses.evaluated))


def test_an_evaluation_before_training_is_over_all_outputs(logits):
    plugin, criterion = seen_classes([]), nn.CrossEntropyLoss(label_smoothing=0.1)
    strategy = SimpleNamespace(_criterion=criterion, mb_output=logits)
    plugin.before_eval(strategy)
    plugin.after_eval_forward(strategy)
    labels = torch.tensor(LABELS)
    assert torch.equal(strategy._criterion(strategy.mb_output, labels), criterion(logits, labels))
