"""GEM: the projection against another solver and its own definition, the memory against its shares."""

from itertools import chain

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from watched import SIX, built

from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.methods.gem import ExperienceShares, project


def random_problem(seed, past, length, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    draw = (
        torch.randn(past + 1, length, dtype=torch.float64, generator=generator) * scale
    )
    return draw[0], draw[1:]


@given(
    seed=st.integers(0, 10**6),
    past=st.integers(1, 12),
    length=st.integers(1, 40),
    repeated=st.integers(0, 3),
    scale=st.sampled_from([1e-12, 1e-4, 1.0, 1e6]),
    margin=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_no_product_with_a_past_gradient_is_negative(
    seed, past, length, repeated, scale, margin
):
    """Whatever their number, scale and length, with copies and opposites among them."""
    gradient, references = random_problem(seed, past, length)
    copies = references[:repeated] * torch.tensor([1.0, -1.0, 3.0])[
        : min(repeated, past)
    ].unsqueeze(1)
    references = torch.cat([references, copies]) * scale
    found = project(gradient, references, margin)
    tolerance = 1e-6 * (gradient.norm() + margin * references.norm(dim=1).sum())
    assert (
        (references / references.norm(dim=1, keepdim=True)) @ found >= -tolerance
    ).all()


@given(seed=st.integers(0, 10**6), past=st.integers(1, 6), length=st.integers(6, 30))
def test_the_projection_is_the_nearest_such_gradient(seed, past, length):
    gradient, references = random_problem(seed, past, length)
    found = project(gradient, references)
    distance = (found - gradient).norm()
    # Projections onto every subset of the constraints, among which the nearest
    # admissible one must be.
    nearest = float("inf")
    for subset in range(2**past):
        chosen = references[[place for place in range(past) if subset >> place & 1]]
        other = gradient
        if len(chosen):
            other = gradient - chosen.T @ torch.linalg.solve(
                chosen @ chosen.T, chosen @ gradient
            )
        if (references @ other >= -1e-9).all():
            nearest = min(nearest, float((other - gradient).norm()))
    assert float(distance) == pytest.approx(nearest, rel=1e-6, abs=1e-9)


def test_the_projection_by_hand():
    harmless, references = (
        torch.tensor([1.0, 2.0]),
        torch.tensor([[1.0, 0.0], [-2.0, 1.0]]),
    )
    assert project(harmless, references, 0.5) is harmless
    assert project(harmless, torch.tensor([[float("nan"), 0.0]])) is harmless
    gradient = torch.tensor([-1.0, 1.0])
    assert project(gradient, torch.tensor([[2.0, 0.0]])).tolist() == pytest.approx(
        [0.0, 1.0], abs=1e-8
    )
    # A margin of 0.75: at least so much of the past gradient itself is added.
    assert project(gradient, torch.tensor([[2.0, 0.0]]), 0.75).tolist() == [0.5, 1.0]
    # An experience without any gradient has no say.
    assert project(gradient, torch.tensor([[2.0, 0.0], [0.0, 0.0]]), 0.75).tolist() == [
        0.5,
        1.0,
    ]


def test_shares_shrink_and_are_always_filled():
    rule, slots, seen = ExperienceShares(), Slots(10, seed=1), {}
    for number, share in enumerate([10, 5, 3, 2]):
        freed = rule.begin_experience(slots, {0: 20, 1: 20}, 7)
        assert len(freed) == sum(count - share for count in seen.values())
        for _ in range(5):
            for position, slot in rule.choose(slots, [0] * 8):
                assert 0 <= position < 8 and slot in slots.by_class[number]
        seen = {group: len(held) for group, held in slots.by_class.items()}
        assert seen == dict.fromkeys(range(number + 1), share)
        assert sorted([*slots.free, *chain(*slots.by_class.values())]) == list(
            range(10)
        )
        assert len(rule.past(slots)) == number
    with pytest.raises(
        ValueError,
        match="mem_size=1 cannot hold a memory of each of 2 experiences; raise mem_size",
    ):
        ExperienceShares(experience=0).begin_experience(Slots(1), {}, 1)


class Watch(SupervisedPlugin):
    """After each step's correction: the products of the gradient with those of past experiences, by plain code."""

    def __init__(self):
        super().__init__()
        self.products = []

    def before_update(self, strategy, **kwargs):
        model, policy = strategy.model, strategy.storage_policy
        gradients = [
            weight.grad.clone() for weight in model.plastic_layers.parameters()
        ]
        seen = strategy.seen_classes.seen
        row = []
        for held in policy.rule.past(policy.slots):
            logits = model.plastic_layers(model.features(policy.rows[held]))[:, seen]
            labels = torch.tensor(
                [seen.index(label) for label in policy.labels[held].tolist()]
            )
            past = torch.autograd.grad(
                cross_entropy(logits, labels), list(model.plastic_layers.parameters())
            )
            length = sum(one.square().sum() for one in past).sqrt()
            row.append(
                sum((a * b).sum() for a, b in zip(gradients, past)).item()
                / length.item()
            )
        self.products.append(row)


def test_no_step_raises_the_loss_of_a_past_experience(make_model, make_stream):
    watch, model = Watch(), make_model(n_classes=6, codebook=False)
    strategy = built("gem", model, 12, method={"margin": 0.0})
    strategy.plugins.append(watch)  # after the correction
    for experience in make_stream(classes=SIX).train_stream:
        strategy.train(experience)
    assert [len(row) for row in watch.products] == [0] * 8 + [1] * 4 + [2] * 4
    assert min(product for row in watch.products for product in row) > -1e-5
