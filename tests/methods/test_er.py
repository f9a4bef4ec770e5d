"""ER and DER++ against plain PyTorch loops, and stored logits against bytes."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from watched import learned as learned_by

from crumb_avalanche.memory.buffers import StreamBatch
from crumb_avalanche.methods import der, er
from crumb_avalanche.methods.der import LogitImageBuffer
from crumb_avalanche.methods.replay import Reservoir, RingBuffer, held_slots
from crumb_avalanche.training.plugins import UNSEEN_LOGIT

BATCH, EPOCHS, MEM_SIZE = 6, 2, 5
SETTINGS = dict(
    learning_rate=0.05, weight_decay=1e-3, batch_size=BATCH, first_epochs=EPOCHS
)


def train(name, model, stream, mem_size=MEM_SIZE, rate=0.05, plugins=(), **method):
    """The strategy after the small stream."""
    settings = {**SETTINGS, "learning_rate": rate}
    return learned_by(
        name, model, stream, mem_size, settings=settings, plugins=plugins, method=method
    )


@pytest.fixture
def choices(monkeypatch):
    """What chance decided, in order: the pairs of the rule and the slots of each draw."""
    log = SimpleNamespace(chosen=[], drawn=[], rules=set())
    real_draw = er.draw

    def logged(kind):
        choose = kind.choose

        def logged_choose(rule, slots, labels):
            log.rules.add(kind)
            log.chosen.append(choose(rule, slots, labels))
            return log.chosen[-1]

        monkeypatch.setattr(kind, "choose", logged_choose)

    def logged_draw(buffer, count):
        log.drawn.append(real_draw(buffer, count))
        return log.drawn[-1]

    logged(Reservoir), logged(RingBuffer)
    for method in (er, der):
        monkeypatch.setattr(method, "draw", logged_draw)
    return log


def plain_loop(model, stream, choices, dark=None):
    """ER, or DER++ with the weights ``dark``, on ``model``'s own layers; only the logged choices are taken over."""
    optimizer = torch.optim.SGD(
        model.plastic_layers.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3
    )
    chosen, drawn = iter(choices.chosen), iter(choices.drawn)
    memory, seen = {}, []  # slot -> (image, label, logits, classes seen by then)

    def logits_of(images):
        return model.plastic_layers(
            model.feature_extractor((images / 255 - model.pixel_mean) / model.pixel_std)
        )

    def loss_of(logits, labels):
        return cross_entropy(
            logits[:, seen], torch.tensor([seen.index(label) for label in labels])
        )

    for number, experience in enumerate(stream.train_stream):
        seen += sorted(set(experience.dataset.targets))
        images = torch.stack([item[0] for item in experience.dataset]).float()
        labels = list(experience.dataset.targets)
        epochs = EPOCHS if number == 0 else 1
        for epoch in range(epochs):
            for start in range(0, len(labels), BATCH):
                batch, batch_labels = (
                    images[start : start + BATCH],
                    labels[start : start + BATCH],
                )
                logits = logits_of(batch)
                loss = loss_of(logits, batch_labels)
                draws = [next(drawn).tolist() for _ in range(1 if dark is None else 2)]
                assert {len(slots) for slots in draws} == {
                    len(batch_labels) if memory else 0
                }
                if memory:
                    recalled = [
                        logits_of(torch.stack([memory[slot][0] for slot in slots]))
                        for slots in draws
                    ]
                    recalled_labels = [
                        [memory[slot][1] for slot in slots] for slots in draws
                    ]
                    if dark is None:  # the mean over the union of both halves
                        loss = (loss + loss_of(recalled[0], recalled_labels[0])) / 2
                    else:
                        squares = []
                        for now, slot in zip(recalled[0], draws[0]):
                            _, _, then, known = memory[slot]
                            squares += [
                                (now[label] - then[label]) ** 2 for label in known
                            ]
                        again = loss_of(recalled[1], recalled_labels[1])
                        loss = (
                            loss
                            + dark[0] * torch.stack(squares).mean()
                            + dark[1] * again
                        )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                logits = logits_of(batch)  # of the network after the step
                if epoch == epochs - 1:
                    for place, slot in next(chosen):
                        memory[slot] = (
                            batch[place],
                            batch_labels[place],
                            logits[place].detach(),
                            list(seen),
                        )
    assert not list(chosen) and not list(drawn)
    return memory


def same_weights(one, two):
    assert one.state_dict().keys() == two.state_dict().keys()
    for name, value in one.state_dict().items():
        torch.testing.assert_close(
            value, two.state_dict()[name], rtol=1e-5, atol=1e-6, msg=name
        )


# Fewer memories than a batch has frames, and more; for four classes.
@pytest.mark.parametrize(
    "mem_size, ring_below, rule",
    [(5, 5, RingBuffer), (5, 1, Reservoir), (12, 3, Reservoir)],
)
def test_experience_replay_equals_the_plain_loop(
    make_model, make_stream, choices, mem_size, ring_below, rule
):
    model, plain = make_model(codebook=False), make_model(codebook=False)
    strategy = train(
        "er", model, make_stream(), mem_size=mem_size, ring_below=ring_below
    )
    assert choices.rules == {rule}
    memory = plain_loop(plain, make_stream(), choices)
    same_weights(model, plain)
    buffer = strategy.storage_policy
    assert len(memory) == len(buffer) == mem_size
    for slot, (image, label, _, _) in memory.items():
        assert (
            torch.equal(buffer.rows[slot].float(), image)
            and int(buffer.labels[slot]) == label
        )


@pytest.mark.parametrize("alpha, beta", [(0.1, 0.5), (2.0, 0.0), (0.0, 1.5)])
def test_dark_replay_equals_the_plain_loop(
    make_model, make_stream, choices, alpha, beta
):
    model, plain = make_model(codebook=False), make_model(codebook=False)
    strategy = train("der", model, make_stream(), alpha=alpha, beta=beta)
    memory = plain_loop(plain, make_stream(), choices, (alpha, beta))
    same_weights(model, plain)
    buffer, early = strategy.storage_policy, 0
    for slot, (image, label, logits, known) in memory.items():
        assert torch.equal(
            buffer.rows[slot][: 3 * 16**2].view(3, 16, 16).float(), image
        )
        assert int(buffer.labels[slot]) == label
        stored = buffer.logits(torch.tensor([slot]), model)[0]
        torch.testing.assert_close(stored[known], logits[known], rtol=1e-5, atol=1e-5)
        # Only what was seen by then: the others are marked.
        assert [label for label in range(4) if stored[label] != UNSEEN_LOGIT] == sorted(
            known
        )
        early += len(known) < 4
    assert early  # some memories are older than the last classes


def test_stored_logits_have_no_dropout_noise(make_model, make_stream):
    model, stream = make_model(codebook=False), make_stream()
    model.plastic_layers.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Dropout(0.5))
    # At a rate of 0 the weights stay as they are.
    buffer = train("der", model, stream, rate=0.0).storage_policy
    slots = torch.tensor(held_slots(buffer))
    stored = buffer.logits(slots, model)
    expected = model.eval()(
        buffer.rows[slots][:, : 3 * 16**2].view(-1, 3, 16, 16)
    ).detach()
    known = stored != UNSEEN_LOGIT
    torch.testing.assert_close(stored[known], expected[known], rtol=1e-4, atol=1e-5)
    assert known.any(1).all()


def test_logits_come_back_bit_by_bit_beside_pixels_of_any_number():
    model = SimpleNamespace(
        image_size=5, n_classes=3, pixel_mean=torch.zeros(1)
    )  # 75 bytes: no multiple of 4
    buffer = LogitImageBuffer(4, Reservoir())
    images = torch.randint(0, 256, (4, 3, 5, 5), dtype=torch.uint8)
    logits = torch.randn(4, 3)
    logits[2, 1] = UNSEEN_LOGIT
    buffer.offered = lambda positions: logits[positions]
    buffer.store(
        StreamBatch(
            torch.tensor([0, 1, 2, 2]), torch.empty(0), None, lambda p: images[list(p)]
        ),
        model,
    )
    for slots in (torch.arange(3, 4), torch.arange(4)):
        assert torch.equal(buffer.logits(slots, model), logits[slots])
    assert torch.equal(buffer.rows[:, :75].view(4, 3, 5, 5), images)
    assert LogitImageBuffer.item_bytes(model) == 75 + 4 * 3 == buffer.buffer_bytes / 4
