"""Rainbow Memory: what is chosen, how it votes, what it learns with; each against values or loops by hand."""

import math
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from torch import nn
from watched import built, learned

from crumb_avalanche.methods import rainbow_memory
from crumb_avalanche.methods.rainbow_memory import (
    brighten,
    cut_out,
    cutmix,
    easy_to_hard,
    make_perturbations,
    memory_rate,
    shift,
    uncertainties,
)
from crumb_avalanche.models.calibration import calibrate


def train(model, stream, plugins=(), mem_size=9, rate=0.002, **method):
    settings = dict(learning_rate=rate, eval_batch_size=4)
    return learned(
        "rainbow_memory",
        model,
        stream,
        mem_size,
        settings=settings,
        plugins=plugins,
        method=method,
    )


def test_the_choice_spans_the_range_of_uncertainty():
    # Ten candidates, four wanted: every third in the order of uncertainty, from the
    # surest to the least sure.
    uncertainty = [0.9, 0.0, 0.5, 0.1, 0.8, 0.2, 0.7, 0.3, 0.6, 0.4]
    order = [1, 3, 5, 7, 9, 2, 8, 6, 4, 0]
    assert easy_to_hard(uncertainty, 4) == [order[0], order[3], order[6], order[9]]
    assert easy_to_hard(uncertainty, 1) == [1]
    assert easy_to_hard(uncertainty, 10) == order == easy_to_hard(uncertainty, 25)
    assert easy_to_hard([0.5, 0.5, 0.5, 0.0], 2) == [
        3,
        2,
    ]  # equals are in the order of the stream
    # Nearly as many wanted as there are: with a step of a whole number they would be
    # the surest.
    for count in range(2, 11):
        chosen = easy_to_hard(uncertainty, count)
        assert {1, 0} <= set(chosen) and len(set(chosen)) == count
        steps = np.diff([order.index(place) for place in chosen])
        assert steps.max() - steps.min() <= 1


class Rounds(nn.Module):
    """Says class 0 of dark pictures, 1 of medium and 2 of bright ones."""

    def forward(self, images):
        bright = images.float().mean((1, 2, 3))
        return -torch.stack([(bright - level).abs() for level in (0.0, 60.0, 120.0)], 1)


def test_uncertainty_is_one_minus_the_share_of_the_most_voted_class():
    images = torch.stack(
        [torch.full((3, 8, 8), level, dtype=torch.uint8) for level in (10, 40, 100)]
    )
    copies = [partial(brighten, factor=factor) for factor in (1.0, 0.5, 1.5, 2.0)]
    # 10, 5, 15, 20: all class 0; 40, 20, 60, 80: 1, 0, 1, 1; 100, 50, 150, 200: 2, 1,
    #     2, 2
    assert uncertainties(images, Rounds(), copies).tolist() == pytest.approx(
        [0.0, 0.25, 0.25]
    )
    assert uncertainties(images, Rounds(), [copies[0]]).tolist() == [0.0, 0.0, 0.0]


def test_perturbations_by_hand():
    image = torch.arange(1, 49, dtype=torch.uint8).view(1, 3, 4, 4)
    moved = shift(image, down=0.25, right=-0.5)[0, 0]
    assert moved.tolist() == [[0, 0, 0, 0], [3, 4, 0, 0], [7, 8, 0, 0], [11, 12, 0, 0]]
    assert torch.equal(shift(image, 0, 0), image) and not shift(image, 1, 0).any()
    assert brighten(torch.tensor([[[[3, 200]]]]).byte(), 1.5).flatten().tolist() == [
        4,
        255,
    ]
    holed = cut_out(image, 0.5, 1.0, 0.0)[0, 0]
    assert holed.tolist() == [
        [1, 2, 3, 4],
        [5, 6, 7, 8],
        [0, 0, 11, 12],
        [0, 0, 15, 16],
    ]
    assert int(image.min()) == 1  # the images themselves are left alone
    for flip, axes in zip(
        make_perturbations(12, np.random.default_rng(0))[::4], ([-1], [-2], [-2, -1])
    ):
        assert torch.equal(flip(image), image.flip(axes))


def test_memory_rates_by_hand():
    rates = [memory_rate(epoch, 0.1) for epoch in range(9)]
    quarter = 0.001 + 0.099 * (1 + math.cos(math.pi / 4)) / 2
    three_quarters = 0.001 + 0.099 * (1 - math.cos(math.pi / 4)) / 2
    assert rates == pytest.approx(
        [0.01, 0.1, 0.1, 0.0505, 0.1, quarter, 0.0505, three_quarters, 0.1]
    )


def test_cutmix_takes_a_box_of_another_and_tells_its_area():
    images = (
        torch.arange(1, 6, dtype=torch.uint8)
        .view(5, 1, 1, 1)
        .expand(5, 3, 20, 20)
        .contiguous()
    )
    random, shares = np.random.default_rng(0), []
    for _ in range(400):
        mixed, others, own = cutmix(images, random)
        shares.append(own)
        for image, other, now in zip(images, others.tolist(), mixed):
            foreign = now != image
            assert (now[foreign] == other + 1).all()
            if other + 1 != int(image[0, 0, 0]):
                assert float(foreign.float().mean()) == pytest.approx(1 - own, abs=1e-6)
                rows, columns = foreign[0].any(1).nonzero(), foreign[0].any(0).nonzero()
                assert foreign[0].sum() == len(rows) * len(columns)  # a box
    # The box is cut off at the borders: of a mean area of one half, more than half of
    # the image stays its own.
    assert 0.65 < np.mean(shares) < 0.75 and min(shares) < 0.2 and max(shares) > 0.95


class Looks(SupervisedPlugin):
    """Rates and sizes of the batches of the stream, whether there was momentum, and rates of the memory's."""

    def __init__(self):
        super().__init__()
        self.rates, self.replay_rates, self.batches, self.moving = [], [], [], []

    def before_forward(self, strategy, **kwargs):
        self.moving.append(
            any(
                "momentum_buffer" in state
                for state in strategy.optimizer.state.values()
            )
        )
        self.rates.append(
            (strategy.clock.train_exp_counter, strategy.optimizer.param_groups[0]["lr"])
        )
        self.batches.append(len(strategy.mb_y))

    def on_replay_update(self, strategy, **kwargs):
        self.replay_rates.append(strategy.optimizer.param_groups[0]["lr"])


def test_rates_of_stream_and_memory(make_model, make_stream):
    looks = Looks()
    train(
        make_model(codebook=False),
        make_stream(),
        plugins=[looks],
        rate=0.04,
        memory_epochs=3,
        mem_size=9,
    )
    assert {rate for number, rate in looks.rates if number == 0} == {0.04}
    assert [rate for number, rate in looks.rates if number == 1] == pytest.approx(
        [0.004] * 4
    )
    # Two experiences, three epochs over nine memories in batches of five.
    assert looks.replay_rates == pytest.approx(
        [0.004, 0.004, 0.04, 0.04, 0.04, 0.04] * 2
    )
    assert set(looks.batches) == {5}
    # Eight steps, then four: momentum does not outlive an experience.
    assert looks.moving == [False, *[True] * 7, False, *[True] * 3]


def chosen_by_hand(strategy, experience, memory):
    """What a slow loop would choose with the present weights, random fill left out; and all scores."""
    model, plugin = strategy.model.eval(), strategy.memory
    by_class = {}
    for image, label in [
        *memory,
        *(
            (image.to(torch.uint8), int(label))
            for image, label, *_ in experience.dataset
        ),
    ]:
        by_class.setdefault(label, []).append(image)
    count = strategy.storage_policy.max_size // len(by_class)
    wanted, scores = [], []
    for label, images in by_class.items():
        scored = []
        for image in images:
            votes = Counter()
            for perturb in plugin.perturbations:
                logits = model(perturb(image[None]))[0].tolist()
                votes[max(strategy.seen_classes.seen, key=logits.__getitem__)] += 1
            scored.append(1 - max(votes.values()) / len(plugin.perturbations))
        order = sorted(range(len(images)), key=lambda i: scored[i])
        last = min(count, len(order)) - 1
        wanted += [
            (label, images[order[round(j * (len(order) - 1) / max(1, last))]])
            for j in range(last + 1)
        ]
        scores += scored
    return wanted, scores


@pytest.mark.parametrize("mem_size", [8, 9])
def test_the_memory_is_what_a_slow_loop_chooses(make_model, make_stream, mem_size):
    stream = make_stream()
    model = calibrate(make_model(codebook=False), stream.train_stream[0].dataset)
    method = dict(memory_epochs=0, copies=6)
    strategy = built(
        "rainbow_memory", model, mem_size, {"learning_rate": 0.002}, method=method
    )
    held, spread = [], set()
    for number, experience in enumerate(stream.train_stream):
        strategy.train(experience)
        wanted, scored = chosen_by_hand(strategy, experience, held)
        buffer = strategy.storage_policy
        held = [
            (buffer.rows[s].clone(), label)
            for label, slots in buffer.slots.by_class.items()
            for s in slots
        ]
        assert len(held) == mem_size and len(wanted) == 2 * (number + 1) * (
            mem_size // (2 * (number + 1))
        )
        for label, image in wanted:
            assert any(
                label == other and torch.equal(image, row) for row, other in held
            )
        spread |= set(scored)
    assert len(spread) > 1  # the network is sure of some frames and not of others


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_the_loss_of_a_mixed_batch_is_mixed_by_the_share_of_the_area(
    make_model, make_stream, monkeypatch, chance
):
    mixes, steps, parts = [], [], []
    step = rainbow_memory.memory_step

    def logged_step(strategy, loss, **kwargs):
        steps.append((float(loss.detach()), parts[-2:], mixes.copy()))
        mixes.clear()
        step(strategy, loss, **kwargs)

    def logged_criterion(logits, labels):
        loss = nn.functional.cross_entropy(logits, labels)
        parts.append((float(loss.detach()), labels))
        return loss

    monkeypatch.setattr(
        rainbow_memory,
        "cutmix",
        lambda *arguments: mixes.append(cutmix(*arguments)) or mixes[-1],
    )
    monkeypatch.setattr(rainbow_memory, "memory_step", logged_step)
    method = dict(memory_epochs=12, cutmix=chance)  # one batch an epoch
    strategy = built("rainbow_memory", make_model(codebook=False), 4, method=method)
    strategy._criterion = logged_criterion
    strategy.train(make_stream().train_stream[0])
    assert len(steps) == 12
    mixed = sum(len(mix) for *_, mix in steps)
    assert mixed == 12 * chance if chance in (0.0, 1.0) else 0 < mixed < 12
    for loss, [*before, (last, last_labels)], mix in steps:
        if not mix:
            assert loss == pytest.approx(last)
            continue
        ((first, first_labels),), ((_, others, own),) = before, mix
        assert 0 < own < 1 and torch.equal(last_labels, first_labels[others])
        assert loss == pytest.approx(own * first + (1 - own) * last)
