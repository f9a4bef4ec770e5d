"""CRUMB against a plain PyTorch loop of the paper's algorithm 1."""

import pytest
import torch
from small_crumb import BATCH, EPOCHS, MEM_SIZE, PAPER, SGD, same_weights, train
from torch.nn.functional import cross_entropy

from crumb_avalanche.memory.selection import ClassBalancedReservoir, EveryJth, ReferenceRule
from crumb_avalanche.training.storage_policies import CodeBuffer

pytestmark = [
    pytest.mark.filterwarnings("ignore:No loggers specified"),
    pytest.mark.filterwarnings("ignore:Plugin .* implements incompatible callbacks"),  # CRUMB's own events
]


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
    optimizer = torch.optim.SGD([*plastic.parameters(), blocks], **SGD)
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
    return memory


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
    model, plain, untrained = make_model(), make_model(), make_model()
    buffer = LoggedBuffer(MEM_SIZE, rule())
    train(model, make_stream(), buffer, **arguments)
    memory = plain_loop(
        plain,
        make_stream(),
        buffer,
        alpha=arguments["direct_weight"],
        beta=arguments["codebook_weight"],
        clamp=arguments["clamp_gradients"],
        **{name: arguments[name] for name in ("replay_weight", "replay_steps", "fused")},
    )
    same_weights(model, plain, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(model.codebook.blocks, untrained.codebook.blocks, atol=1e-3)  # something was learned
    # The buffer holds what the loop remembers.
    for label, members in buffer.slots.by_class.items():
        for slot in members:
            remembered_label, codes = memory[slot]
            maps, _ = buffer.replay(torch.tensor([slot]), model)
            assert remembered_label == label == int(buffer.labels[slot])
            assert torch.equal(maps, model.codebook.decode(codes[None]))
