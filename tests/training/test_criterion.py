"""Losses over the classes seen, whatever the criterion: against sums over the seen classes written out."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

from crumb_avalanche.training.criterion import SeenClassesLoss
from crumb_avalanche.training.plugins import SeenClassesPlugin

CLASSES, SEEN = 7, [5, 1, 3]
WEIGHTS = torch.linspace(0.5, 2.0, CLASSES)
LABELS = [1, 5, 3, 3, 1]


class Focal(nn.Module):
    """Focal loss with a factor for each class."""

    def __init__(self, factors):
        super().__init__()
        self.alpha = factors.clone()

    def forward(self, logits, labels):
        own = logits.log_softmax(1).gather(1, labels[:, None])[:, 0]
        return -(self.alpha[labels] * (1 - own.exp()) ** 2 * own).mean()


def one_hot_loss(logits, labels):
    targets = functional.one_hot(labels, logits.shape[1]).float()
    return functional.binary_cross_entropy_with_logits(logits, targets)


# Each as it is made for some classes: from the weights of these, and the function that numbers a class among them.
CRITERIA = {
    "cross-entropy": lambda weights, place: nn.CrossEntropyLoss(),
    "weights": lambda weights, place: nn.CrossEntropyLoss(weights),
    "weights and smoothing": lambda weights, place: nn.CrossEntropyLoss(weights, label_smoothing=0.3),
    "ignored class": lambda weights, place: nn.CrossEntropyLoss(ignore_index=place(3), label_smoothing=0.1),
    "sum": lambda weights, place: nn.CrossEntropyLoss(reduction="sum", label_smoothing=0.1),
    "log-likelihood": lambda weights, place: nn.NLLLoss(weights),
    "margins": lambda weights, place: nn.MultiMarginLoss(weight=weights),
    "one-hot": lambda weights, place: one_hot_loss,
    "partial": lambda weights, place: functools.partial(
        functional.cross_entropy, weight=weights, label_smoothing=0.2, ignore_index=place(5)
    ),
    "focal": lambda weights, place: Focal(weights),
    "bound method": lambda weights, place: Focal(weights).forward,
    "function": lambda weights, place: lambda z, y: ((z.amax(1) - z.gather(1, y[:, None])[:, 0]) / z.shape[1]).sum(),
}


def loss_among(name, classes, logits, labels):
    """The loss of a criterion that was made for some classes alone."""
    classes = sorted(classes)
    criterion = CRITERIA[name](WEIGHTS[classes], classes.index)
    return criterion(logits[:, classes], torch.tensor([classes.index(label) for label in labels]))


def seen_classes(seen=SEEN):
    plugin = SeenClassesPlugin()
    plugin.seen = list(seen)
    return plugin


@pytest.fixture
def logits():
    return torch.randn(5, CLASSES, generator=torch.Generator().manual_seed(0)).mul(2).requires_grad_()


@pytest.mark.parametrize("name", CRITERIA)
def test_a_loss_is_over_the_seen_classes(name, logits):
    criterion, plugin = CRITERIA[name](WEIGHTS, int), seen_classes()
    loss = SeenClassesLoss(criterion, plugin.unseen)(plugin.mask(logits), torch.tensor(LABELS))
    torch.testing.assert_close(loss, loss_among(name, SEEN, logits, LABELS))
    loss.backward()
    unseen = sorted(set(range(CLASSES)) - set(SEEN))
    assert not logits.grad[:, unseen].any() and logits.grad.isfinite().all()
    before = SeenClassesLoss(criterion, seen_classes([]).unseen)(logits, torch.tensor(LABELS))
    # Before training all outputs count, and the criterion is as before, with all its weights.
    torch.testing.assert_close(before, loss_among(name, range(CLASSES), logits, LABELS))


@pytest.mark.parametrize("name", CRITERIA)
def test_in_evaluation_an_image_of_an_unseen_class_costs_little(name, logits):
    plugin = seen_classes()
    loss = SeenClassesLoss(CRITERIA[name](WEIGHTS, int), plugin.unseen)
    answers = plugin.mask_answers(logits.detach())
    known = loss_among(name, SEEN, logits.detach(), LABELS)
    torch.testing.assert_close(loss(answers, torch.tensor(LABELS)), known, rtol=1e-4, atol=1e-5)
    foreign = loss(answers[:1], torch.tensor([2]))
    torch.testing.assert_close(foreign, loss_among(name, [*SEEN, 2], answers[:1], [2]), rtol=1e-4, atol=1e-5)
    assert abs(foreign) < 40


@pytest.mark.parametrize(
    "criterion", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(WEIGHTS), nn.CrossEntropyLoss(label_smoothing=0.1)]
)
def test_targets_of_all_classes_are_cut(criterion, logits):
    plugin, targets = seen_classes(), torch.rand(5, CLASSES, generator=torch.Generator().manual_seed(1))
    loss = SeenClassesLoss(criterion, plugin.unseen)(plugin.mask(logits), targets)
    weights = None if criterion.weight is None else criterion.weight[SEEN]
    cut = nn.CrossEntropyLoss(weights, label_smoothing=criterion.label_smoothing)
    torch.testing.assert_close(loss, cut(logits[:, SEEN], targets[:, SEEN]))


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
