"""CRUMB against a plain PyTorch loop of the paper's algorithm 1: every loss, every gradient, weights and memories."""

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from small_crumb import BATCH, MEM_SIZE, PAPER, SGD, same_weights, train
from torch import nn
from torch.nn.functional import cross_entropy

from crumb_avalanche.memory.buffers import CodeBuffer
from crumb_avalanche.memory.selection import ClassBalancedReservoir, EveryJth, ReferenceRule

pytestmark = [
    pytest.mark.filterwarnings("ignore:No loggers specified"),
    pytest.mark.filterwarnings("ignore:Plugin .* implements incompatible callbacks"),  # CRUMB's own events
]


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
        kept = [torch.rand(one.shape, generator=self.generator) >= self.share for one in inputs]
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

    def on_replay_loss(self, strategy, **kwargs):
        self.values.append(strategy.replay_loss.item())


class LoggedSGD(torch.optim.SGD):
    """SGD that logs the gradients of its steps."""

    def __init__(self, weights):
        super().__init__(weights, **SGD)
        self.gradients = []

    def step(self, closure=None):
        weights = self.param_groups[0]["params"]
        self.gradients.append([weight.grad.clone() for weight in weights if weight.grad is not None])
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


def plain_loop(model, stream, buffer, alpha, beta, replay_weight, replay_steps, fused, clamp):
    """CRUMB on ``model``'s own layers, without any of the library's code but the logged choices of ``buffer``."""
    extractor, plastic, blocks = model.feature_extractor, model.plastic_layers, model.codebook.blocks
    optimizer, losses = LoggedSGD([*plastic.parameters(), blocks]), []
    chosen, drawn = iter(buffer.chosen), iter(buffer.drawn)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    memory = {}  # slot -> (label, codes)
    seen = []

    def encode(maps):
        pieces = maps.detach().unflatten(1, (-1, blocks.shape[1])).movedim(2, -1)  # (B, G, H, W, d)
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
        images = torch.stack([experience.dataset[i][0] for i in range(len(experience.dataset))])
        maps = extractor((images / 255 - mean[:, None, None]) / std[:, None, None])
        labels = list(experience.dataset.targets)
        places = [range(len(labels))[start : start + BATCH] for start in range(0, len(labels), BATCH)]
        epochs = EPOCHS if number == 0 else 1
        for epoch in range(epochs):
            for place in places:
                batch, batch_labels = maps[list(place)], labels[place.start : place.stop]
                codes = encode(batch)
                loss = beta * loss_of(rebuild(codes), batch_labels)
                if alpha:
                    loss = loss + alpha * loss_of(batch, batch_labels)
                if number and fused:
                    loss = loss + sum(replay_loss(batch_labels) for _ in range(replay_steps))
                step(loss)
                if number and not fused:
                    for _ in range(replay_steps):
                        step(replay_loss(batch_labels))
                if epoch == epochs - 1 and not buffer.rule.second_pass:
                    memory |= {slot: (batch_labels[i], codes[i]) for i, slot in next(chosen)[0]}
        if buffer.rule.second_pass:
            for place in places:
                with torch.no_grad():
                    codes = encode(maps[list(place)])
                pairs, finished = next(chosen)
                memory |= {slot: (labels[place.start + i], codes[i]) for i, slot in pairs}
                if finished:
                    break
    assert not list(chosen) and not list(drawn)  # nothing happened that is not in this loop
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
    train(model, make_stream(), buffer, [steps], optimizer=optimizer, first_epochs=EPOCHS, **arguments)
    memory, losses, gradients = plain_loop(
        plain,
        make_stream(),
        buffer,
        alpha=arguments["direct_weight"],
        beta=arguments["codebook_weight"],
        clamp=arguments["clamp_gradients"],
        **{name: arguments[name] for name in ("replay_weight", "replay_steps", "fused")},
    )
    assert len(losses) >= 30
    torch.testing.assert_close(torch.tensor(steps.values), torch.tensor(losses), **CLOSE)
    torch.testing.assert_close(optimizer.gradients, gradients, **CLOSE)
    same_weights(model, plain, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(model.codebook.blocks, make_model().codebook.blocks, atol=1e-3)  # something was learned
    # The buffer holds what the loop remembers.
    for label, members in buffer.slots.by_class.items():
        for slot in members:
            remembered_label, codes = memory[slot]
            maps, _ = buffer.replay(torch.tensor([slot]), model)
            assert remembered_label == label == int(buffer.labels[slot])
            assert torch.equal(maps, model.codebook.decode(codes[None]))
