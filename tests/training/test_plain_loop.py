"""CRUMB against a plain PyTorch loop of the paper's algorithm 1: every loss, every gradient, weights and memories."""

import functools

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy
from watched import BATCH, MEM_SIZE, PAPER, SGD, same_weights, train

from crumb_avalanche.memory.buffers import CodeBuffer
from crumb_avalanche.memory.selection import (
    ClassBalancedReservoir,
    EveryJth,
    ReferenceRule,
)
from crumb_avalanche.training.criterion import SeenClassesLoss
from crumb_avalanche.training.plugins import SeenClassesPlugin

EPOCHS = 7  # of the first experience: 32 to 40 optimiser steps in all
CLOSE = dict(rtol=1e-5, atol=1e-5)


class SameMasks(nn.Module):
    """Dropout whose masks come from a generator of its own, image by image, so that two networks have the same."""

    def __init__(self, share):
        super().__init__()
        self.share, self.generator = share, torch.Generator().manual_seed(5)

    def forward(self, inputs):
        if not self.training:
            return inputs
        kept = [
            torch.rand(one.shape, generator=self.generator) >= self.share
            for one in inputs
        ]
        return inputs * torch.stack(kept) / (1 - self.share)


def with_dropout(model):
    """The small model with dropout before its head, where torchvision's SqueezeNet has it."""
    model.plastic_layers.pool = nn.Sequential(model.plastic_layers.pool, SameMasks(0.3))
    return model


class Losses(SupervisedPlugin):
    """The loss of every step of the library, in order."""

    def __init__(self):
        super().__init__()
        self.values = []

    def after_backward(self, strategy, **kwargs):
        self.values.append(strategy.loss.item())


class LoggedSGD(torch.optim.SGD):
    """SGD that logs the gradients of its steps."""

    def __init__(self, weights):
        super().__init__(weights, **SGD)
        self.gradients = []

    def step(self, closure=None):
        weights = self.param_groups[0]["params"]
        self.gradients.append(
            [weight.grad.clone() for weight in weights if weight.grad is not None]
        )
        return super().step(closure)


class LoggedBuffer(CodeBuffer):
    """Code buffer that logs its random choices, the only values that the plain loop reuses."""

    def __init__(self, mem_size, rule, seed=0):
        super().__init__(mem_size, rule, seed)
        self.chosen, self.drawn = [], []
        choose = rule.choose

        def logged(slots, labels):
            pairs = choose(slots, labels)
            self.chosen.append((pairs, rule.finished))
            return pairs

        rule.choose = logged

    def sample(self, without, at_least):
        self.drawn.append(super().sample(without, at_least))
        return self.drawn[-1]


def plain_loop(
    model, stream, buffer, alpha, beta, replay_weight, replay_steps, fused, clamp
):
    """CRUMB on ``model``'s own layers, without any of the library's code but the logged choices of ``buffer``."""
    extractor, plastic, blocks = (
        model.feature_extractor,
        model.plastic_layers,
        model.codebook.blocks,
    )
    optimizer, losses = LoggedSGD([*plastic.parameters(), blocks]), []
    chosen, drawn = iter(buffer.chosen), iter(buffer.drawn)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    memory = {}  # slot -> (label, codes)
    seen = []

    def encode(maps):
        pieces = (
            maps.detach().unflatten(1, (-1, blocks.shape[1])).movedim(2, -1)
        )  # (B, G, H, W, d)
        return (pieces @ (blocks / blocks.norm(dim=1, keepdim=True)).t()).argmax(-1)

    def rebuild(codes):
        return blocks[codes].movedim(-1, 2).flatten(1, 2)

    def loss_of(maps, labels):
        among_seen = torch.tensor([seen.index(label) for label in labels])
        return cross_entropy(plastic(maps)[:, seen], among_seen)

    def replay_loss(labels):
        slots = next(drawn).tolist()
        replayed = [memory[slot][0] for slot in slots]
        assert not set(replayed) & set(labels)
        codes = torch.stack([memory[slot][1] for slot in slots])
        return replay_weight * loss_of(rebuild(codes), replayed)

    def step(loss):
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        if clamp is not None:
            for parameter in [*plastic.parameters(), blocks]:
                parameter.grad.clamp_(-clamp, clamp)
        optimizer.step()

    for number, experience in enumerate(stream.train_stream):
        seen += sorted(set(experience.dataset.targets))
        images = torch.stack(
            [experience.dataset[i][0] for i in range(len(experience.dataset))]
        )
        maps = extractor((images / 255 - mean[:, None, None]) / std[:, None, None])
        labels = list(experience.dataset.targets)
        places = [
            range(len(labels))[start : start + BATCH]
            for start in range(0, len(labels), BATCH)
        ]
        epochs = EPOCHS if number == 0 else 1
        for epoch in range(epochs):
            for place in places:
                batch, batch_labels = (
                    maps[list(place)],
                    labels[place.start : place.stop],
                )
                codes = encode(batch)
                loss = beta * loss_of(rebuild(codes), batch_labels)
                if alpha:
                    loss = loss + alpha * loss_of(batch, batch_labels)
                if number and fused:
                    loss = loss + sum(
                        replay_loss(batch_labels) for _ in range(replay_steps)
                    )
                step(loss)
                if number and not fused:
                    for _ in range(replay_steps):
                        step(replay_loss(batch_labels))
                if epoch == epochs - 1 and not buffer.rule.second_pass:
                    memory |= {
                        slot: (batch_labels[i], codes[i]) for i, slot in next(chosen)[0]
                    }
        if buffer.rule.second_pass:
            for place in places:
                with torch.no_grad():
                    codes = encode(maps[list(place)])
                pairs, finished = next(chosen)
                memory |= {
                    slot: (labels[place.start + i], codes[i]) for i, slot in pairs
                }
                if finished:
                    break
    assert not list(chosen) and not list(
        drawn
    )  # nothing happened that is not in this loop
    return memory, losses, optimizer.gradients


@pytest.mark.parametrize("rule", [EveryJth, ClassBalancedReservoir, ReferenceRule])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"replay_weight": 5.0, "clamp_gradients": 0.02},
        {"direct_weight": 0.5, "codebook_weight": 2.0, "replay_steps": 2},
        {"fused": True, "replay_weight": 0.7, "replay_steps": 2},
    ],
)
def test_two_experiences_equal_the_plain_loop(make_model, make_stream, rule, changes):
    arguments = PAPER | {"clamp_gradients": None} | changes
    model, plain = with_dropout(make_model()), with_dropout(make_model())
    buffer, steps = LoggedBuffer(MEM_SIZE, rule()), Losses()
    optimizer = LoggedSGD([*model.plastic_layers.parameters(), model.codebook.blocks])
    train(
        model,
        make_stream(),
        buffer,
        [steps],
        optimizer=optimizer,
        first_epochs=EPOCHS,
        **arguments,
    )
    memory, losses, gradients = plain_loop(
        plain,
        make_stream(),
        buffer,
        alpha=arguments["direct_weight"],
        beta=arguments["codebook_weight"],
        clamp=arguments["clamp_gradients"],
        **{
            name: arguments[name] for name in ("replay_weight", "replay_steps", "fused")
        },
    )
    assert len(losses) >= 30
    torch.testing.assert_close(
        torch.tensor(steps.values), torch.tensor(losses), **CLOSE
    )
    torch.testing.assert_close(optimizer.gradients, gradients, **CLOSE)
    same_weights(model, plain, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(
        model.codebook.blocks, make_model().codebook.blocks, atol=1e-3
    )  # something was learned
    # The buffer holds what the loop remembers.
    for label, members in buffer.slots.by_class.items():
        for slot in members:
            remembered_label, codes = memory[slot]
            maps, _ = buffer.replay(torch.tensor([slot]), model)
            assert remembered_label == label == int(buffer.labels[slot])
            assert torch.equal(maps, model.codebook.decode(codes[None]))


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


# Each as it is made for some classes: from the weights of these, and the function that
# numbers a class among them.
CRITERIA = {
    "cross-entropy": lambda weights, place: nn.CrossEntropyLoss(),
    "weights": lambda weights, place: nn.CrossEntropyLoss(weights),
    "weights and smoothing": lambda weights, place: nn.CrossEntropyLoss(
        weights, label_smoothing=0.3
    ),
    "ignored class": lambda weights, place: nn.CrossEntropyLoss(
        ignore_index=place(3), label_smoothing=0.1
    ),
    "sum": lambda weights, place: nn.CrossEntropyLoss(
        reduction="sum", label_smoothing=0.1
    ),
    "log-likelihood": lambda weights, place: nn.NLLLoss(weights),
    "margins": lambda weights, place: nn.MultiMarginLoss(weight=weights),
    "one-hot": lambda weights, place: one_hot_loss,
    "partial": lambda weights, place: functools.partial(
        functional.cross_entropy,
        weight=weights,
        label_smoothing=0.2,
        ignore_index=place(5),
    ),
    "focal": lambda weights, place: Focal(weights),
    "bound method": lambda weights, place: Focal(weights).forward,
    "function": lambda weights, place: (
        lambda z, y: ((z.amax(1) - z.gather(1, y[:, None])[:, 0]) / z.shape[1]).sum()
    ),
}


def loss_among(name, classes, logits, labels):
    """The loss of a criterion that was made for some classes alone."""
    classes = sorted(classes)
    criterion = CRITERIA[name](WEIGHTS[classes], classes.index)
    return criterion(
        logits[:, classes], torch.tensor([classes.index(label) for label in labels])
    )


def seen_classes(seen=SEEN):
    plugin = SeenClassesPlugin()
    plugin.seen = list(seen)
    return plugin


@pytest.fixture
def logits():
    return (
        torch.randn(5, CLASSES, generator=torch.Generator().manual_seed(0))
        .mul(2)
        .requires_grad_()
    )


@pytest.mark.parametrize("name", CRITERIA)
def test_a_loss_is_over_the_seen_classes(name, logits):
    criterion, plugin = CRITERIA[name](WEIGHTS, int), seen_classes()
    loss = SeenClassesLoss(criterion, plugin.unseen)(
        plugin.mask(logits), torch.tensor(LABELS)
    )
    torch.testing.assert_close(loss, loss_among(name, SEEN, logits, LABELS))
    loss.backward()
    unseen = sorted(set(range(CLASSES)) - set(SEEN))
    assert not logits.grad[:, unseen].any() and logits.grad.isfinite().all()
    before = SeenClassesLoss(criterion, seen_classes([]).unseen)(
        logits, torch.tensor(LABELS)
    )
    # Before training all outputs count, and the criterion is as before, with all its
    # weights.
    torch.testing.assert_close(before, loss_among(name, range(CLASSES), logits, LABELS))


@pytest.mark.parametrize("name", CRITERIA)
def test_in_evaluation_an_image_of_an_unseen_class_costs_little(name, logits):
    plugin = seen_classes()
    loss = SeenClassesLoss(CRITERIA[name](WEIGHTS, int), plugin.unseen)
    answers = plugin.mask_answers(logits.detach())
    known = loss_among(name, SEEN, logits.detach(), LABELS)
    torch.testing.assert_close(
        loss(answers, torch.tensor(LABELS)), known, rtol=1e-4, atol=1e-5
    )
    foreign = loss(answers[:1], torch.tensor([2]))
    torch.testing.assert_close(
        foreign, loss_among(name, [*SEEN, 2], answers[:1], [2]), rtol=1e-4, atol=1e-5
    )
    assert abs(foreign) < 40


@pytest.mark.parametrize(
    "criterion",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(WEIGHTS),
        nn.CrossEntropyLoss(label_smoothing=0.1),
    ],
)
def test_targets_of_all_classes_are_cut(criterion, logits):
    plugin, targets = (
        seen_classes(),
        torch.rand(5, CLASSES, generator=torch.Generator().manual_seed(1)),
    )
    loss = SeenClassesLoss(criterion, plugin.unseen)(plugin.mask(logits), targets)
    weights = None if criterion.weight is None else criterion.weight[SEEN]
    cut = nn.CrossEntropyLoss(weights, label_smoothing=criterion.label_smoothing)
    torch.testing.assert_close(loss, cut(logits[:, SEEN], targets[:, SEEN]))


def test_a_criterion_that_cannot_be_cut_says_what_to_do(logits):
    plugin, labels, factors = seen_classes(), torch.tensor(LABELS), WEIGHTS.clone()

    def with_a_table(outputs, targets):
        return (
            functional.cross_entropy(outputs, targets, reduction="none")
            * factors[targets]
        ).mean()

    def of_seven(outputs, targets):
        return functional.binary_cross_entropy_with_logits(
            outputs, functional.one_hot(targets, CLASSES).float()
        )

    for criterion, words in (
        (
            with_a_table,
            "the criterion uses factors, which has an entry for each of the 7 classes",
        ),
        (of_seven, "fails on the outputs of the 3 classes seen of 7"),
        (nn.CrossEntropyLoss(reduction="none"), r"a loss of shape \(5,\)"),
    ):
        with pytest.raises(ValueError, match=words):
            SeenClassesLoss(criterion, plugin.unseen)(plugin.mask(logits), labels)
    with_a_table.all_outputs = True
    SeenClassesLoss(with_a_table, plugin.unseen)(plugin.mask(logits), labels)


class Counting(nn.Module):
    """Weighted cross-entropy that keeps a count and a mean loss of its own."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(WEIGHTS.clone())
        self.register_buffer("mean", torch.zeros(()))
        self.calls = 0

    def forward(self, logits, labels):
        self.calls += 1
        losses = cross_entropy(logits, labels, reduction="none")
        loss = (self.weight[labels] * losses).mean()
        self.mean = self.mean + loss.detach()
        return loss


def test_a_criterion_keeps_its_own_state(logits):
    criterion, plugin = Counting(), seen_classes()
    loss = SeenClassesLoss(criterion, plugin.unseen)
    sums = torch.zeros(())
    for _ in range(3):
        sums += loss(plugin.mask(logits), torch.tensor(LABELS)).detach()
    assert criterion.calls == 3
    assert criterion.weight.shape == (CLASSES,)
    torch.testing.assert_close(criterion.mean, sums)


def test_weights_of_a_criterion_are_trained(logits):
    criterion, plugin = Counting(), seen_classes()
    loss = SeenClassesLoss(criterion, plugin.unseen)
    loss(plugin.mask(logits), torch.tensor(LABELS)).backward()
    trained = criterion.weight.grad.nonzero().flatten().tolist()
    assert trained == sorted(SEEN)


def test_a_failing_criterion_stays_as_it_was(logits):
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.factors = WEIGHTS

        def forward(self, logits, labels):
            if len(self.factors) < CLASSES:
                raise RuntimeError("too few")
            return logits.sum()

    criterion, plugin = Failing(), seen_classes()
    with pytest.raises(ValueError, match="fails on the outputs"):
        SeenClassesLoss(criterion, plugin.unseen)(
            plugin.mask(logits), torch.tensor([1] * 5)
        )
    assert criterion.factors is WEIGHTS


def test_a_criterion_is_read_only_while_it_is_called(logits):
    """Another thread, which has seen other classes, may call it meanwhile."""
    criterion, plugin = (
        nn.CrossEntropyLoss(WEIGHTS, label_smoothing=0.1),
        seen_classes(),
    )

    class Looking(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = criterion

        def forward(self, logits, labels):
            assert criterion.weight.shape == (CLASSES,)
            return self.inner(logits, labels)

    loss = SeenClassesLoss(Looking(), plugin.unseen)
    own = SeenClassesLoss(criterion, plugin.unseen)
    masked, labels = plugin.mask(logits), torch.tensor(LABELS)
    torch.testing.assert_close(loss(masked, labels), own(masked, labels))
