"""ER and DER++ against plain PyTorch loops, and stored logits against bytes."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from small_models import stacked_images
from torch import nn
from torch.nn.functional import cross_entropy
from watched import learned as learned_by
from watched import same_weights

from crumb_avalanche.memory.buffers import StreamBatch
from crumb_avalanche.methods import der, er
from crumb_avalanche.methods.der import LogitImageBuffer
from crumb_avalanche.methods.replay import Reservoir, RingBuffer, held_slots
from crumb_avalanche.training.plugins import UNSEEN_LOGIT

BATCH = 6
EPOCHS = 2  # on the first experience
MEM_SIZE = 5
PIXELS = 3 * 16**2
SETTINGS = dict(
    learning_rate=0.05, weight_decay=1e-3, batch_size=BATCH, first_epochs=EPOCHS
)


def train(name, model, stream, mem_size=MEM_SIZE, rate=0.05, plugins=(), **method):
    """The strategy after the small stream."""
    settings = {**SETTINGS, "learning_rate": rate}
    return learned_by(
        name, model, stream, mem_size, settings=settings, plugins=plugins, method=method
    )


@dataclass
class Choices:
    """What chance decided, in order: pairs of the rule, and slots of each draw."""

    chosen: list = field(default_factory=list)
    drawn: list = field(default_factory=list)
    rules: set = field(default_factory=set)

    def log_rule(self, rule_type, monkeypatch):
        choose = rule_type.choose

        def logged(rule, slots, labels):
            self.rules.add(rule_type)
            self.chosen.append(choose(rule, slots, labels))
            return self.chosen[-1]

        monkeypatch.setattr(rule_type, "choose", logged)

    def log_draws(self, module, monkeypatch):
        draw = module.draw

        def logged(buffer, count):
            self.drawn.append(draw(buffer, count))
            return self.drawn[-1]

        monkeypatch.setattr(module, "draw", logged)


@pytest.fixture
def choices(monkeypatch):
    log = Choices()
    log.log_rule(Reservoir, monkeypatch)
    log.log_rule(RingBuffer, monkeypatch)
    log.log_draws(er, monkeypatch)
    log.log_draws(der, monkeypatch)
    return log


@dataclass
class Memory:
    """An image, and what was known when it was stored."""

    image: torch.Tensor
    label: int
    logits: torch.Tensor
    seen: list  # classes


class PlainLoop:
    """A loop on a model's own layers; only the logged choices are taken over."""

    def __init__(self, model, choices):
        self.model = model
        self.optimizer = torch.optim.SGD(
            model.plastic_layers.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3
        )
        self.chosen = iter(choices.chosen)
        self.drawn = iter(choices.drawn)
        self.memory = {}  # by slot
        self.seen = []

    def logits_of(self, images):
        model = self.model
        pixels = (images / 255 - model.pixel_mean) / model.pixel_std
        return model.plastic_layers(model.feature_extractor(pixels))

    def loss_of(self, logits, labels):
        columns = torch.tensor(list(map(self.seen.index, labels)))
        return cross_entropy(logits[:, self.seen], columns)

    def draw(self, count):
        """The memories of the next draw."""
        slots = next(self.drawn).tolist()
        assert len(slots) == (count if self.memory else 0)
        return [self.memory[slot] for slot in slots]

    def recalled(self, memories):
        return self.logits_of(torch.stack([memory.image for memory in memories]))

    def loss_of_memories(self, memories):
        labels = [memory.label for memory in memories]
        return self.loss_of(self.recalled(memories), labels)

    def loss(self, images, labels):
        """The mean over the union of new images and as many memories (ER)."""
        loss = self.loss_of(self.logits_of(images), labels)
        memories = self.draw(len(labels))
        if not memories:
            return loss
        return (loss + self.loss_of_memories(memories)) / 2

    def step(self, images, labels):
        loss = self.loss(images, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def store(self, images, labels):
        """Store the next choice, with logits of the network after the step."""
        logits = self.logits_of(images).detach()
        for position, slot in next(self.chosen):
            self.memory[slot] = Memory(
                image=images[position],
                label=labels[position],
                logits=logits[position],
                seen=list(self.seen),
            )

    def run(self, stream):
        for number, experience in enumerate(stream.train_stream):
            self.seen += sorted(set(experience.dataset.targets))
            epochs = EPOCHS if number == 0 else 1
            for epoch in range(epochs):
                self.run_epoch(experience, stores=epoch == epochs - 1)
        assert not list(self.chosen)
        assert not list(self.drawn)

    def run_epoch(self, experience, stores):
        images = stacked_images(experience.dataset).float()
        labels = list(experience.dataset.targets)
        for start in range(0, len(labels), BATCH):
            batch = slice(start, start + BATCH)
            self.step(images[batch], labels[batch])
            if stores:
                self.store(images[batch], labels[batch])


class DarkLoop(PlainLoop):
    """DER++ with weights of its two losses."""

    def __init__(self, model, choices, alpha, beta):
        super().__init__(model, choices)
        self.alpha = alpha
        self.beta = beta

    def loss(self, images, labels):
        loss = self.loss_of(self.logits_of(images), labels)
        dark = self.draw(len(labels))
        again = self.draw(len(labels))
        if not dark:
            return loss
        dark_loss = self.dark_loss(dark)
        return loss + self.alpha * dark_loss + self.beta * self.loss_of_memories(again)

    def dark_loss(self, memories):
        """Mean square over the classes that were seen when logits were stored."""
        squares = []
        for logits, memory in zip(self.recalled(memories), memories):
            for label in memory.seen:
                squares.append((logits[label] - memory.logits[label]) ** 2)
        return torch.stack(squares).mean()


# Fewer memories than a batch has frames, and more; for four classes.
ER_CASES = [(5, 5, RingBuffer), (5, 1, Reservoir), (12, 3, Reservoir)]


@pytest.mark.parametrize(("mem_size", "ring_below", "rule"), ER_CASES)
def test_er_stores_by_its_rule(
    make_model, make_stream, choices, mem_size, ring_below, rule
):
    model = make_model(codebook=False)
    train("er", model, make_stream(), mem_size, ring_below=ring_below)
    assert choices.rules == {rule}


@pytest.mark.parametrize(("mem_size", "ring_below", "rule"), ER_CASES)
def test_er_has_the_weights_of_a_loop(
    make_model, make_stream, choices, mem_size, ring_below, rule
):
    model = make_model(codebook=False)
    train("er", model, make_stream(), mem_size, ring_below=ring_below)
    loop = PlainLoop(make_model(codebook=False), choices)
    loop.run(make_stream())
    same_weights(model, loop.model, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("mem_size", "ring_below", "rule"), ER_CASES)
def test_er_has_the_memory_of_a_loop(
    make_model, make_stream, choices, mem_size, ring_below, rule
):
    model = make_model(codebook=False)
    strategy = train("er", model, make_stream(), mem_size, ring_below=ring_below)
    loop = PlainLoop(make_model(codebook=False), choices)
    loop.run(make_stream())
    buffer = strategy.storage_policy
    assert len(loop.memory) == len(buffer) == mem_size
    for slot, memory in loop.memory.items():
        assert torch.equal(buffer.rows[slot].float(), memory.image)
        assert int(buffer.labels[slot]) == memory.label


DER_CASES = [(0.1, 0.5), (2.0, 0.0), (0.0, 1.5)]


@pytest.mark.parametrize(("alpha", "beta"), DER_CASES)
def test_der_has_the_weights_of_a_loop(make_model, make_stream, choices, alpha, beta):
    model = make_model(codebook=False)
    train("der", model, make_stream(), alpha=alpha, beta=beta)
    loop = DarkLoop(make_model(codebook=False), choices, alpha, beta)
    loop.run(make_stream())
    same_weights(model, loop.model, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("alpha", "beta"), DER_CASES)
def test_der_has_the_memory_of_a_loop(make_model, make_stream, choices, alpha, beta):
    model = make_model(codebook=False)
    strategy = train("der", model, make_stream(), alpha=alpha, beta=beta)
    loop = DarkLoop(make_model(codebook=False), choices, alpha, beta)
    loop.run(make_stream())
    buffer = strategy.storage_policy
    for slot, memory in loop.memory.items():
        pixels = buffer.rows[slot][:PIXELS].view(3, 16, 16)
        assert torch.equal(pixels.float(), memory.image)
        assert int(buffer.labels[slot]) == memory.label


@pytest.mark.parametrize(("alpha", "beta"), DER_CASES)
def test_der_has_the_logits_of_a_loop(make_model, make_stream, choices, alpha, beta):
    """Those of classes that were seen by then; the others are marked."""
    model = make_model(codebook=False)
    strategy = train("der", model, make_stream(), alpha=alpha, beta=beta)
    loop = DarkLoop(make_model(codebook=False), choices, alpha, beta)
    loop.run(make_stream())
    for slot, memory in loop.memory.items():
        stored = strategy.storage_policy.logits(torch.tensor([slot]), model)[0]
        seen = (stored != UNSEEN_LOGIT).nonzero().flatten().tolist()
        assert seen == sorted(memory.seen)
        torch.testing.assert_close(
            stored[seen], memory.logits[seen], rtol=1e-5, atol=1e-5
        )
    # Some memories are older than the last classes.
    assert min(len(memory.seen) for memory in loop.memory.values()) < 4


def test_stored_logits_have_no_dropout_noise(make_model, make_stream):
    model = make_model(codebook=False)
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Dropout(0.5))
    model.plastic_layers.pool = pool
    # At a rate of 0 the weights stay as they are.
    buffer = train("der", model, make_stream(), rate=0.0).storage_policy
    slots = torch.tensor(held_slots(buffer))
    stored = buffer.logits(slots, model)
    pixels = buffer.rows[slots][:, :PIXELS].view(-1, 3, 16, 16)
    expected = model.eval()(pixels).detach()
    known = stored != UNSEEN_LOGIT
    torch.testing.assert_close(stored[known], expected[known], rtol=1e-4, atol=1e-5)
    assert known.any(1).all()


class Stored:
    """Four images of 75 bytes, which is no multiple of 4, and their logits."""

    def __init__(self):
        self.model = SimpleNamespace(
            image_size=5, n_classes=3, pixel_mean=torch.zeros(1)
        )
        self.images = torch.randint(0, 256, (4, 3, 5, 5), dtype=torch.uint8)
        self.logits = torch.randn(4, 3)
        self.logits[2, 1] = UNSEEN_LOGIT
        self.buffer = LogitImageBuffer(4, Reservoir())
        self.buffer.offered_logits = lambda positions: self.logits[positions]
        batch = StreamBatch(
            labels=torch.tensor([0, 1, 2, 2]),
            feature_map=torch.empty(0),
            codes=None,
            pixels=lambda positions: self.images[list(positions)],
        )
        self.buffer.store(batch, self.model)


@pytest.mark.parametrize("first", [0, 3])
def test_logits_come_back_bit_by_bit(first):
    stored = Stored()
    slots = torch.arange(first, 4)
    logits = stored.buffer.logits(slots, stored.model)
    assert torch.equal(logits, stored.logits[slots])


def test_pixels_come_back_beside_logits():
    stored = Stored()
    pixels = stored.buffer.rows[:, :75].view(4, 3, 5, 5)
    assert torch.equal(pixels, stored.images)


def test_bytes_of_an_image_with_logits():
    stored = Stored()
    assert LogitImageBuffer.item_bytes(stored.model) == 75 + 4 * 3
    assert stored.buffer.buffer_bytes == 4 * (75 + 4 * 3)
