"""Rainbow Memory against values and loops by hand.

What is chosen, how it votes, and what it learns with.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import small_models
import torch
from avalanche.training.plugins import SupervisedPlugin
from torch import nn
from watched import built, learned

from crumb_avalanche.methods import rainbow_memory
from crumb_avalanche.methods.rainbow_memory import (
    augment,
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


# Ten candidates, and their order from the surest to the least sure.
UNCERTAINTY = [0.9, 0.0, 0.5, 0.1, 0.8, 0.2, 0.7, 0.3, 0.6, 0.4]
ORDER = [1, 3, 5, 7, 9, 2, 8, 6, 4, 0]


@pytest.mark.parametrize(
    ("count", "chosen"),
    [
        (1, [1]),
        (4, [ORDER[0], ORDER[3], ORDER[6], ORDER[9]]),
        (10, ORDER),
        (25, ORDER),
    ],
)
def test_the_choice_by_hand(count, chosen):
    assert easy_to_hard(UNCERTAINTY, count) == chosen


def test_equals_are_in_the_order_of_the_stream():
    assert easy_to_hard([0.5, 0.5, 0.5, 0.0], 2) == [3, 2]


@pytest.mark.parametrize("count", range(2, 11))
def test_the_choice_spans_the_range(count):
    """With a step of a whole number, nearly all would be the surest."""
    chosen = easy_to_hard(UNCERTAINTY, count)
    assert {1, 0} <= set(chosen)
    assert len(set(chosen)) == count
    steps = np.diff(list(map(ORDER.index, chosen)))
    assert steps.max() - steps.min() <= 1


class Rounds(nn.Module):
    """Says class 0 of dark pictures, 1 of medium and 2 of bright ones."""

    def forward(self, images):
        bright = images.float().mean((1, 2, 3))
        levels = torch.tensor([0.0, 60.0, 120.0])
        return -(bright.unsqueeze(1) - levels).abs()


GREYS = torch.tensor([10, 40, 100], dtype=torch.uint8)
# Levels and answers: 10, 5, 15, 20 are all of class 0; 40, 20, 60, 80 of 1, 0, 1, 1;
# 100, 50, 150, 200 of 2, 1, 2, 2.
COPIES = [partial(brighten, factor=factor) for factor in (1.0, 0.5, 1.5, 2.0)]


@pytest.mark.parametrize(
    ("copies", "expected"), [(COPIES, [0.0, 0.25, 0.25]), (COPIES[:1], [0.0] * 3)]
)
def test_uncertainty_is_the_share_of_other_votes(copies, expected):
    images = GREYS.view(3, 1, 1, 1).expand(3, 3, 8, 8)
    shares = uncertainties(images, Rounds(), copies)
    assert shares.tolist() == pytest.approx(expected)


def test_images_are_shifted_by_up_to_an_eighth_and_flipped():
    """Of 16 pixels, 2; the point at 8 is at 7 in a flipped image."""
    point = torch.zeros(300, 3, 16, 16, dtype=torch.uint8)
    point[:, :, 8, 8] = 1
    shifted = augment(point, np.random.default_rng(0))
    _, _, rows, columns = shifted.nonzero().unbind(1)
    assert set(rows.tolist()) == set(range(6, 11))
    assert set(columns.tolist()) == set(range(5, 11))


@pytest.fixture
def image():
    """Numbers from 1, ``(1, 3, 4, 4)``."""
    return torch.arange(1, 49, dtype=torch.uint8).view(1, 3, 4, 4)


def test_shifts_by_hand(image):
    shifted = shift(image, down=0.25, right=-0.5)[0, 0]
    rows = [[0, 0, 0, 0], [3, 4, 0, 0], [7, 8, 0, 0], [11, 12, 0, 0]]
    assert shifted.tolist() == rows


@pytest.mark.parametrize(("down", "full"), [(0, True), (1, False)])
def test_shifts_of_nothing_and_of_all(image, down, full):
    assert torch.equal(shift(image, down, 0), image * full)


def test_brightness_ends_at_white():
    pixels = torch.tensor([[[[3, 200]]]]).byte()
    assert brighten(pixels, 1.5).flatten().tolist() == [4, 255]


def test_holes_by_hand(image):
    holed = cut_out(image, 0.5, 1.0, 0.0)[0, 0]
    rows = [[1, 2, 3, 4], [5, 6, 7, 8], [0, 0, 11, 12], [0, 0, 15, 16]]
    assert holed.tolist() == rows
    assert int(image.min()) == 1  # the image itself is left alone


@pytest.mark.parametrize(("number", "axes"), [(0, [-1]), (4, [-2]), (8, [-2, -1])])
def test_flips_come_in_turn(image, number, axes):
    flip = make_perturbations(12, np.random.default_rng(0))[number]
    assert torch.equal(flip(image), image.flip(axes))


def test_memory_rates_by_hand():
    rates = [memory_rate(epoch, 0.1) for epoch in range(9)]
    quarter = 0.001 + 0.099 * (1 + math.cos(math.pi / 4)) / 2
    three_quarters = 0.001 + 0.099 * (1 - math.cos(math.pi / 4)) / 2
    cosines = [0.1, 0.1, 0.0505, 0.1, quarter, 0.0505, three_quarters, 0.1]
    assert rates == pytest.approx([0.01, *cosines])


# Five images of one level each.
LEVELS = torch.arange(1, 6, dtype=torch.uint8).view(5, 1, 1, 1)


def mixes(count=400):
    random = np.random.default_rng(0)
    images = LEVELS.expand(5, 3, 20, 20).contiguous()
    return images, [cutmix(images, random) for _ in range(count)]


def foreign_boxes():
    """Masks of what is of another image, ``(20, 20)``, and its share of the area."""
    images, mixed = mixes()
    for mix in mixed:
        foreign = mix.images != images
        for index, partner in enumerate(mix.sources.tolist()):
            if partner != index:
                yield foreign[index, 0], 1 - mix.own_share


def test_cutmix_takes_the_others():
    images, mixed = mixes()
    for mix in mixed:
        sources = images[mix.sources]
        foreign = mix.images != images
        assert torch.equal(mix.images[foreign], sources[foreign])


def test_cutmix_tells_the_area():
    for foreign, share in foreign_boxes():
        assert float(foreign.float().mean()) == pytest.approx(share, abs=1e-6)


def test_cutmix_replaces_a_box():
    for foreign, _ in foreign_boxes():
        rows = foreign.any(1).sum()
        columns = foreign.any(0).sum()
        assert foreign.sum() == rows * columns


def test_cutmix_has_boxes_of_all_sizes():
    """The box is cut off at the borders.

    Of a mean area of one half, more than half of the image stays its own.
    """
    shares = [mix.own_share for mix in mixes()[1]]
    assert 0.65 < np.mean(shares) < 0.75
    assert min(shares) < 0.2
    assert max(shares) > 0.95


@dataclass
class Iteration:
    """What a batch of the stream was trained with."""

    experience: int
    rate: float
    batch: int
    moving: bool  # whether there was momentum


class Looks(SupervisedPlugin):
    """Follows the batches of the stream, and the rates of the memory's."""

    def __init__(self):
        super().__init__()
        self.iterations = []
        self.replay_rates = []

    def before_forward(self, strategy, **kwargs):
        states = strategy.optimizer.state.values()
        iteration = Iteration(
            experience=strategy.clock.train_exp_counter,
            rate=strategy.optimizer.param_groups[0]["lr"],
            batch=len(strategy.mb_y),
            moving=any("momentum_buffer" in state for state in states),
        )
        self.iterations.append(iteration)

    def on_replay_update(self, strategy, **kwargs):
        self.replay_rates.append(strategy.optimizer.param_groups[0]["lr"])


@pytest.fixture(scope="module")
def looks():
    """Two experiences, of eight and four batches, at a rate of 0.04."""
    plugin = Looks()
    model = small_models.make_model(codebook=False)
    stream = small_models.make_stream()
    train(model, stream, plugins=[plugin], rate=0.04, memory_epochs=3)
    return plugin


def test_rates_of_the_stream(looks):
    rates = [iteration.rate for iteration in looks.iterations]
    assert rates == pytest.approx([0.04] * 8 + [0.004] * 4)


def test_rates_of_the_memory(looks):
    # Two experiences, three epochs over nine memories in batches of five.
    rates = [0.004, 0.004, 0.04, 0.04, 0.04, 0.04] * 2
    assert looks.replay_rates == pytest.approx(rates)


def test_batches_of_the_stream(looks):
    assert {iteration.batch for iteration in looks.iterations} == {5}


def test_momentum_does_not_outlive_an_experience(looks):
    moving = [iteration.moving for iteration in looks.iterations]
    assert moving == [False, *[True] * 7, False, *[True] * 3]


def uncertainty_of(strategy, image):
    """The share of votes for other classes, copy by copy."""
    seen = strategy.seen_classes.seen
    perturbations = strategy.memory.perturbations
    votes = Counter()
    for perturb in perturbations:
        logits = strategy.model(perturb(image[None]))[0].tolist()
        votes[max(seen, key=logits.__getitem__)] += 1
    return 1 - max(votes.values()) / len(perturbations)


def spread(images, scores, count):
    """So many images, evenly from the lowest score to the highest."""
    order = sorted(range(len(images)), key=lambda index: scores[index])
    last = min(count, len(order)) - 1
    ranks = []
    for number in range(last + 1):
        ranks.append(round(number * (len(order) - 1) / max(1, last)))
    return [images[order[rank]] for rank in ranks]


@dataclass
class SlowChoice:
    """What a loop would choose with the present weights, random fill left out."""

    images: list = field(default_factory=list)  # pairs of label and image
    scores: set = field(default_factory=set)


def chosen_by_hand(strategy, experience, memory):
    strategy.model.eval()
    by_class = {}
    for image, label in memory:
        by_class.setdefault(label, []).append(image)
    for image, label, *_ in experience.dataset:
        by_class.setdefault(int(label), []).append(image.to(torch.uint8))
    count = strategy.storage_policy.max_size // len(by_class)
    choice = SlowChoice()
    for label, images in by_class.items():
        scores = [uncertainty_of(strategy, image) for image in images]
        choice.scores |= set(scores)
        choice.images += [(label, image) for image in spread(images, scores, count)]
    return choice


def memories_of(buffer):
    """Images and labels that a buffer holds."""
    return [
        (buffer.rows[slot].clone(), label)
        for label, slots in buffer.slots.by_class.items()
        for slot in slots
    ]


@pytest.mark.parametrize("mem_size", [8, 9])
def test_the_memory_is_what_a_slow_loop_chooses(make_model, make_stream, mem_size):
    stream = make_stream()
    model = calibrate(make_model(codebook=False), stream.train_stream[0].dataset)
    method = dict(memory_epochs=0, copies=6)
    settings = {"learning_rate": 0.002}
    strategy = built("rainbow_memory", model, mem_size, settings, method=method)
    memory = []
    scores = set()
    for number, experience in enumerate(stream.train_stream):
        strategy.train(experience)
        choice = chosen_by_hand(strategy, experience, memory)
        memory = memories_of(strategy.storage_policy)
        scores |= choice.scores
        classes = 2 * (number + 1)
        assert len(memory) == mem_size
        assert len(choice.images) == classes * (mem_size // classes)
        for label, image in choice.images:
            alike = []
            for row, image_label in memory:
                if image_label == label:
                    alike.append(torch.equal(image, row))
            assert any(alike)
    assert len(scores) > 1  # the network is sure of some frames and not of others


@dataclass
class MemoryStep:
    """A step on memories: its loss, the criterion's values, and how it was mixed."""

    loss: float
    criteria: list
    mixes: list


def memory_steps(make_model, make_stream, monkeypatch, chance):
    """Twelve steps on memories, one an epoch."""
    mixed, steps, criteria = [], [], []
    step = rainbow_memory.memory_step

    def logged_step(strategy, loss, **kwargs):
        steps.append(MemoryStep(float(loss.detach()), criteria[-2:], mixed.copy()))
        mixed.clear()
        step(strategy, loss, **kwargs)

    def logged_criterion(logits, labels):
        loss = nn.functional.cross_entropy(logits, labels)
        criteria.append((float(loss.detach()), labels))
        return loss

    def logged_mix(*arguments):
        mixed.append(cutmix(*arguments))
        return mixed[-1]

    monkeypatch.setattr(rainbow_memory, "cutmix", logged_mix)
    monkeypatch.setattr(rainbow_memory, "memory_step", logged_step)
    method = dict(memory_epochs=12, cutmix=chance)
    strategy = built("rainbow_memory", make_model(codebook=False), 4, method=method)
    strategy._criterion = logged_criterion
    strategy.train(make_stream().train_stream[0])
    return steps


@pytest.mark.parametrize(
    ("chance", "least", "most"), [(0.0, 0, 0), (0.5, 1, 11), (1.0, 12, 12)]
)
def test_so_many_batches_are_mixed(
    make_model, make_stream, monkeypatch, chance, least, most
):
    steps = memory_steps(make_model, make_stream, monkeypatch, chance)
    assert len(steps) == 12
    assert least <= sum(len(step.mixes) for step in steps) <= most


def test_an_unmixed_batch_has_its_own_loss(make_model, make_stream, monkeypatch):
    for step in memory_steps(make_model, make_stream, monkeypatch, 0.0):
        loss, _ = step.criteria[-1]
        assert step.loss == pytest.approx(loss)


def test_a_mixed_loss_is_mixed_by_the_area(make_model, make_stream, monkeypatch):
    for step in memory_steps(make_model, make_stream, monkeypatch, 1.0):
        (mix,) = step.mixes
        (own_loss, labels), (other_loss, other_labels) = step.criteria
        assert 0 < mix.own_share < 1
        assert torch.equal(other_labels, labels[mix.sources])
        expected = mix.own_share * own_loss + (1 - mix.own_share) * other_loss
        assert step.loss == pytest.approx(expected)
