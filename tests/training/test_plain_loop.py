"""CRUMB against a plain PyTorch loop of the paper's algorithm 1, and its criterion."""

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
    """Dropout whose masks come from a generator of its own, image by image.

    So two networks have the same.
    """

    def __init__(self, share):
        super().__init__()
        self.share = share
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, inputs):
        if not self.training:
            return inputs
        masks = list(map(self.mask, inputs))
        return inputs * torch.stack(masks) / (1 - self.share)

    def mask(self, features):
        return torch.rand(features.shape, generator=self.generator) >= self.share


def with_dropout(model):
    """The model with dropout before its head, where torchvision's SqueezeNet has it."""
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
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        self.gradients.append([gradient.clone() for gradient in gradients])
        return super().step(closure)


class LoggedBuffer(CodeBuffer):
    """Code buffer that logs its random choices.

    They are the only values that the plain loop takes from the library.

    Attributes:
        chosen: for each batch offered pairs of a position in it and the slot it
            gets, and whether the rule had finished.
        drawn: the slots of each replay.
    """

    def __init__(self, mem_size, rule, seed=0):
        super().__init__(mem_size, rule, seed)
        self.chosen = []
        self.drawn = []
        choose = rule.choose

        def logged(slots, labels):
            pairs = choose(slots, labels)
            self.chosen.append((pairs, rule.finished))
            return pairs

        rule.choose = logged

    def sample(self, without, at_least, at_most=None):
        self.drawn.append(super().sample(without, at_least, at_most))
        return self.drawn[-1]


MEAN = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
STD = torch.tensor([0.229, 0.224, 0.225])[:, None, None]


class PlainLoop:
    """CRUMB on a model's own layers, without any code of the library.

    Args:
        model: its layers and the blocks of its codebook are trained.
        buffer: whose logged choices are repeated.
        direct_weight, codebook_weight: alpha and beta of the paper.
        replay_weight, replay_steps, fused, clamp_gradients: see `CRUMBStrategy`.

    Attributes:
        memory: label and codes of each slot.
        losses: of each step.
    """

    def __init__(
        self,
        model,
        buffer,
        *,
        direct_weight,
        codebook_weight,
        replay_weight,
        replay_steps,
        fused,
        clamp_gradients,
    ):
        self.alpha = direct_weight
        self.beta = codebook_weight
        self.replay_weight = replay_weight
        self.replay_steps = replay_steps
        self.fused = fused
        self.limit = clamp_gradients
        self.extractor = model.feature_extractor
        self.plastic = model.plastic_layers
        self.blocks = model.codebook.blocks
        self.optimizer = LoggedSGD([*self.plastic.parameters(), self.blocks])
        self.second_pass = buffer.rule.second_pass
        self.chosen = iter(buffer.chosen)
        self.drawn = iter(buffer.drawn)
        self.memory = {}
        self.seen = []
        self.losses = []

    def learn(self, stream):
        self.learn_experience(stream.train_stream[0], EPOCHS, replay=False)
        for experience in stream.train_stream[1:]:
            self.learn_experience(experience, 1, replay=True)
        # Nothing was chosen or drawn that is not in this loop.
        assert list(self.chosen) == []
        assert list(self.drawn) == []

    def learn_experience(self, experience, epochs, replay):
        dataset = experience.dataset
        labels = list(dataset.targets)
        self.seen += sorted(set(labels))
        images = torch.stack([dataset[index][0] for index in range(len(dataset))])
        maps = self.extractor((images / 255 - MEAN) / STD)
        batches = list(zip(maps.split(BATCH), batched(labels)))
        for epoch in range(epochs):
            for batch_maps, batch_labels in batches:
                codes = self.encode(batch_maps)
                self.learn_batch(batch_maps, batch_labels, codes, replay)
                if epoch == epochs - 1 and not self.second_pass:
                    self.store(batch_labels, codes)
        if self.second_pass:
            self.store_all(batches)

    def learn_batch(self, maps, labels, codes, replay):
        loss = self.beta * self.loss_of(self.decode(codes), labels)
        if self.alpha:
            loss = loss + self.alpha * self.loss_of(maps, labels)
        if replay and self.fused:
            for _ in range(self.replay_steps):
                loss = loss + self.replay_loss(labels)
        self.step(loss)
        if replay and not self.fused:
            for _ in range(self.replay_steps):
                self.step(self.replay_loss(labels))

    def encode(self, maps):
        """Index of the block with the largest cosine, `(B, G, H, W)`."""
        pieces = maps.detach().unflatten(1, (-1, self.blocks.shape[1])).movedim(2, -1)
        directions = self.blocks / self.blocks.norm(dim=1, keepdim=True)
        return (pieces @ directions.t()).argmax(-1)

    def decode(self, codes):
        return self.blocks[codes].movedim(-1, 2).flatten(1, 2)

    def loss_of(self, maps, labels):
        """Cross-entropy among the seen classes."""
        targets = torch.tensor(list(map(self.seen.index, labels)))
        return cross_entropy(self.plastic(maps)[:, self.seen], targets)

    def replay_loss(self, labels):
        """The loss of the memories drawn next, which are of other classes."""
        memories = [self.memory[slot] for slot in next(self.drawn).tolist()]
        replayed = [label for label, _ in memories]
        assert not set(replayed) & set(labels)
        maps = self.decode(torch.stack([codes for _, codes in memories]))
        return self.replay_weight * self.loss_of(maps, replayed)

    def step(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.losses.append(loss.item())
        if self.limit is not None:
            for parameter in [*self.plastic.parameters(), self.blocks]:
                parameter.grad.clamp_(-self.limit, self.limit)
        self.optimizer.step()

    def store(self, labels, codes):
        """Store what was chosen of a batch; return whether the rule had finished."""
        pairs, finished = next(self.chosen)
        for position, slot in pairs:
            self.memory[slot] = (labels[position], codes[position])
        return finished

    def store_all(self, batches):
        """Go over the experience again, until the rule has finished."""
        for maps, labels in batches:
            with torch.no_grad():
                codes = self.encode(maps)
            if self.store(labels, codes):
                break


def batched(labels):
    return [labels[start : start + BATCH] for start in range(0, len(labels), BATCH)]


# Settings of CRUMB that are not the paper's.
CHANGES = {
    "paper": {},
    "clamped": {"replay_weight": 5.0, "clamp_gradients": 0.02},
    "direct": {"direct_weight": 0.5, "codebook_weight": 2.0, "replay_steps": 2},
    "fused": {"fused": True, "replay_weight": 0.7, "replay_steps": 2},
}


class BothLoops:
    """Two experiences through `CRUMBStrategy` and through the plain loop."""

    def __init__(self, make_model, make_stream, rule, changes):
        settings = PAPER | {"clamp_gradients": None} | changes
        self.model = with_dropout(make_model())
        self.buffer = LoggedBuffer(MEM_SIZE, rule())
        self.steps = Losses()
        weights = [*self.model.plastic_layers.parameters(), self.model.codebook.blocks]
        self.optimizer = LoggedSGD(weights)
        train(
            self.model,
            make_stream(),
            self.buffer,
            [self.steps],
            optimizer=self.optimizer,
            first_epochs=EPOCHS,
            **settings,
        )
        self.plain_model = with_dropout(make_model())
        self.plain = PlainLoop(self.plain_model, self.buffer, **settings)
        self.plain.learn(make_stream())


@pytest.fixture(
    scope="module", params=[EveryJth, ClassBalancedReservoir, ReferenceRule]
)
def rule(request):
    return request.param


@pytest.fixture(scope="module", params=CHANGES.values(), ids=CHANGES)
def both(make_model, make_stream, rule, request):
    return BothLoops(make_model, make_stream, rule, request.param)


def test_losses_equal_the_plain_loop(both):
    assert len(both.plain.losses) >= 30
    assert both.steps.values == pytest.approx(both.plain.losses, rel=1e-5, abs=1e-5)


def test_gradients_equal_the_plain_loop(both):
    expected = both.plain.optimizer.gradients
    torch.testing.assert_close(both.optimizer.gradients, expected, **CLOSE)


def test_weights_equal_the_plain_loop(both):
    same_weights(both.model, both.plain_model, rtol=1e-5, atol=1e-6)


def test_the_codebook_is_learned(both, make_model):
    blocks = both.model.codebook.blocks
    assert not torch.allclose(blocks, make_model().codebook.blocks, atol=1e-3)


def test_memories_equal_the_plain_loop(both):
    for label, slots in both.buffer.slots.by_class.items():
        for slot in slots:
            expected_label, codes = both.plain.memory[slot]
            maps, _ = both.buffer.replay(torch.tensor([slot]), both.model)
            assert expected_label == label == int(both.buffer.labels[slot])
            assert torch.equal(maps, both.model.codebook.decode(codes[None]))


# A criterion among the classes seen

CLASSES = 7
SEEN = [5, 1, 3]
WEIGHTS = torch.linspace(0.5, 2.0, CLASSES)
LABELS = [1, 5, 3, 3, 1]


class Focal(nn.Module):
    """Focal loss with a factor for each class."""

    def __init__(self, factors):
        super().__init__()
        self.alpha = factors.clone()

    def forward(self, logits, labels):
        log_shares = logits.log_softmax(1).gather(1, labels[:, None])[:, 0]
        factors = self.alpha[labels] * (1 - log_shares.exp()) ** 2
        return -(factors * log_shares).mean()


def one_hot_loss(logits, labels):
    targets = functional.one_hot(labels, logits.shape[1]).float()
    return functional.binary_cross_entropy_with_logits(logits, targets)


def mean_gap(logits, labels):
    """How far the largest logit is above that of the class, over all classes."""
    of_class = logits.gather(1, labels[:, None])[:, 0]
    return ((logits.amax(1) - of_class) / logits.shape[1]).sum()


def partial_loss(weights, index):
    return functools.partial(
        functional.cross_entropy,
        weight=weights,
        label_smoothing=0.2,
        ignore_index=index(5),
    )


# Each as it is made for some classes: from the weights of these, and the function that
# numbers a class among them.
CRITERIA = {
    "cross-entropy": lambda weights, index: nn.CrossEntropyLoss(),
    "weights": lambda weights, index: nn.CrossEntropyLoss(weights),
    "weights and smoothing": lambda weights, index: nn.CrossEntropyLoss(
        weights, label_smoothing=0.3
    ),
    "ignored class": lambda weights, index: nn.CrossEntropyLoss(
        ignore_index=index(3), label_smoothing=0.1
    ),
    "sum": lambda weights, index: nn.CrossEntropyLoss(
        reduction="sum", label_smoothing=0.1
    ),
    "log-likelihood": lambda weights, index: nn.NLLLoss(weights),
    "margins": lambda weights, index: nn.MultiMarginLoss(weight=weights),
    "one-hot": lambda weights, index: one_hot_loss,
    "partial": partial_loss,
    "focal": lambda weights, index: Focal(weights),
    "bound method": lambda weights, index: Focal(weights).forward,
    "function": lambda weights, index: mean_gap,
}
EVERY_CRITERION = pytest.mark.parametrize("name", CRITERIA)


def loss_among(name, classes, logits, labels):
    """The loss of a criterion that was made for some classes alone."""
    classes = sorted(classes)
    criterion = CRITERIA[name](WEIGHTS[classes], classes.index)
    targets = torch.tensor(list(map(classes.index, labels)))
    return criterion(logits[:, classes], targets)


def seen_classes(seen=SEEN):
    plugin = SeenClassesPlugin()
    plugin.seen = list(seen)
    return plugin


def loss_over_seen(criterion, logits, targets):
    """The loss that a strategy trains on after the classes SEEN."""
    plugin = seen_classes()
    return SeenClassesLoss(criterion, plugin.unseen_mask)(plugin.mask(logits), targets)


@pytest.fixture
def logits():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, CLASSES, generator=generator).mul(2).requires_grad_()


@EVERY_CRITERION
def test_a_loss_is_over_the_seen_classes(name, logits):
    criterion = CRITERIA[name](WEIGHTS, int)
    loss = loss_over_seen(criterion, logits, torch.tensor(LABELS))
    torch.testing.assert_close(loss, loss_among(name, SEEN, logits, LABELS))


@EVERY_CRITERION
def test_logits_may_be_unmasked(name, logits):
    """Those that a host's plugin gets of the model itself."""
    # Given outputs of classes not seen that are above all others
    unseen = sorted(set(range(CLASSES)) - set(SEEN))
    raw_logits = logits.detach().clone()
    raw_logits[:, unseen] += 9
    criterion = CRITERIA[name](WEIGHTS, int)
    # When the loss is computed, then it is that of the masked outputs
    loss = SeenClassesLoss(criterion, seen_classes().unseen_mask)
    expected = loss_over_seen(criterion, raw_logits, torch.tensor(LABELS))
    assert torch.equal(loss(raw_logits, torch.tensor(LABELS)), expected)


@pytest.mark.parametrize("n_weights", [CLASSES - 1, CLASSES + 1])
@pytest.mark.parametrize("name", ["weights", "log-likelihood", "margins"])
def test_weights_of_other_classes_are_refused(name, n_weights, logits):
    criterion = CRITERIA[name](torch.ones(n_weights), int)
    words = rf"is of shape \({n_weights},\), .*: give {CLASSES} numbers"
    with pytest.raises(ValueError, match=words):
        loss_over_seen(criterion, logits, torch.tensor(LABELS))


@pytest.mark.parametrize("ignored", [0, 2])
def test_an_ignored_class_that_is_unseen_ignores_no_other(ignored, logits):
    losses = []
    for options in ({"ignore_index": ignored}, {}):
        criterion = nn.CrossEntropyLoss(label_smoothing=0.1, **options)
        losses.append(loss_over_seen(criterion, logits, torch.tensor(LABELS)))
    torch.testing.assert_close(*losses)


@EVERY_CRITERION
def test_unseen_classes_have_no_gradient(name, logits):
    criterion = CRITERIA[name](WEIGHTS, int)
    loss_over_seen(criterion, logits, torch.tensor(LABELS)).backward()
    unseen = sorted(set(range(CLASSES)) - set(SEEN))
    assert logits.grad.isfinite().all()
    assert not logits.grad[:, unseen].any()


@EVERY_CRITERION
def test_before_training_all_classes_count(name, logits):
    criterion = CRITERIA[name](WEIGHTS, int)
    loss = SeenClassesLoss(criterion, seen_classes([]).unseen_mask)
    expected = loss_among(name, range(CLASSES), logits, LABELS)
    torch.testing.assert_close(loss(logits, torch.tensor(LABELS)), expected)


class Evaluated:
    """A criterion and masked answers, as in evaluation."""

    def __init__(self, name, logits):
        plugin = seen_classes()
        self.loss = SeenClassesLoss(CRITERIA[name](WEIGHTS, int), plugin.unseen_mask)
        self.loss.in_evaluation = True
        self.answers = plugin.mask_answers(logits.detach())


@EVERY_CRITERION
def test_evaluation_of_seen_classes(name, logits):
    evaluated = Evaluated(name, logits)
    loss = evaluated.loss(evaluated.answers, torch.tensor(LABELS))
    expected = loss_among(name, SEEN, logits.detach(), LABELS)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)


@EVERY_CRITERION
def test_an_unseen_class_costs_little(name, logits):
    evaluated = Evaluated(name, logits)
    answer = evaluated.answers[:1]
    loss = evaluated.loss(answer, torch.tensor([2]))
    expected = loss_among(name, [*SEEN, 2], answer, [2])
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    assert abs(loss) < 40


@pytest.mark.parametrize(
    ("criterion", "of_seen"),
    [
        (nn.CrossEntropyLoss(), nn.CrossEntropyLoss()),
        (nn.CrossEntropyLoss(WEIGHTS), nn.CrossEntropyLoss(WEIGHTS[SEEN])),
        (
            nn.CrossEntropyLoss(label_smoothing=0.1),
            nn.CrossEntropyLoss(label_smoothing=0.1),
        ),
    ],
    ids=["plain", "weights", "smoothing"],
)
def test_targets_of_all_classes_are_cut(criterion, of_seen, logits):
    generator = torch.Generator().manual_seed(1)
    targets = torch.rand(5, CLASSES, generator=generator)
    loss = loss_over_seen(criterion, logits, targets)
    torch.testing.assert_close(loss, of_seen(logits[:, SEEN], targets[:, SEEN]))


def with_a_table():
    """A criterion with a factor for each class in a variable of its own."""
    factors = WEIGHTS.clone()

    def loss(outputs, targets):
        losses = functional.cross_entropy(outputs, targets, reduction="none")
        return (losses * factors[targets]).mean()

    return loss


def of_seven_classes():
    """A criterion with the number of classes written in it."""

    def loss(outputs, targets):
        one_hot = functional.one_hot(targets, CLASSES).float()
        return functional.binary_cross_entropy_with_logits(outputs, one_hot)

    return loss


@pytest.mark.parametrize(
    ("criterion", "words"),
    [
        (
            with_a_table(),
            "the criterion uses factors, which has an entry for each of the 7 classes",
        ),
        (of_seven_classes(), "fails on the outputs of the 3 classes seen of 7"),
        (nn.CrossEntropyLoss(reduction="none"), r"a loss of shape \(5,\)"),
    ],
    ids=["table", "number", "shape"],
)
def test_a_criterion_that_cannot_be_cut(criterion, words, logits):
    with pytest.raises(ValueError, match=words):
        loss_over_seen(criterion, logits, torch.tensor(LABELS))


def test_a_criterion_that_takes_all_outputs(logits):
    criterion = with_a_table()
    criterion.all_outputs = True
    assert loss_over_seen(criterion, logits, torch.tensor(LABELS)).isfinite()


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
    criterion = Counting()
    plugin = seen_classes()
    loss = SeenClassesLoss(criterion, plugin.unseen_mask)
    sums = torch.zeros(())
    for _ in range(3):
        sums += loss(plugin.mask(logits), torch.tensor(LABELS)).detach()
    assert criterion.calls == 3
    assert criterion.weight.shape == (CLASSES,)
    torch.testing.assert_close(criterion.mean, sums)


def test_weights_of_a_criterion_are_trained(logits):
    criterion = Counting()
    loss_over_seen(criterion, logits, torch.tensor(LABELS)).backward()
    trained = criterion.weight.grad.nonzero().flatten().tolist()
    assert trained == sorted(SEEN)


class Failing(nn.Module):
    """A criterion that fails with fewer classes than it was made for."""

    def __init__(self):
        super().__init__()
        self.factors = WEIGHTS

    def forward(self, logits, labels):
        if len(self.factors) < CLASSES:
            raise RuntimeError("too few")
        return logits.sum()


def test_a_failing_criterion_stays_as_it_was(logits):
    criterion = Failing()
    with pytest.raises(ValueError, match="fails on the outputs"):
        loss_over_seen(criterion, logits, torch.tensor([1] * 5))
    assert criterion.factors is WEIGHTS


def test_a_criterion_is_read_only_while_it_is_called(logits):
    """Another thread, which has seen other classes, may call it meanwhile."""
    criterion = nn.CrossEntropyLoss(WEIGHTS, label_smoothing=0.1)

    class Looking(nn.Module):
        """Calls a copy of the criterion, which has its weights meanwhile."""

        def __init__(self):
            super().__init__()
            self.inner = criterion

        def forward(self, logits, labels):
            assert criterion.weight.shape == (CLASSES,)
            return self.inner(logits, labels)

    labels = torch.tensor(LABELS)
    loss = loss_over_seen(Looking(), logits, labels)
    torch.testing.assert_close(loss, loss_over_seen(criterion, logits, labels))
