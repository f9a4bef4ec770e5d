"""Directions of classes: as many as a class needs, at any scale, within a limit over all classes."""

import pytest
import torch
from closed_form_cases import discriminant
from hypothesis import given, settings
from hypothesis import strategies as st

from crumb_avalanche.methods.closed_form import BudgetError
from crumb_avalanche.methods.directions import BLOCK, ClassDirections
from crumb_avalanche.methods.rda import RegularizedDiscriminant

D = 8


def clouds(counts, seed=0):
    """Images of classes, ``counts`` of each, in one block a class, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    features = torch.randn(len(labels), D, generator=generator)
    return features * torch.rand(len(counts), 1, generator=generator)[labels], labels


def taught(counts, directions=D, seed=0, **arguments):
    statistics = discriminant(len(counts), D, directions, **arguments)
    statistics.update(*clouds(counts, seed))
    return statistics


def energies(directions):
    """Energies of the directions of each class, weakest first."""
    return [
        directions.of_class(label).square().sum(1).tolist()
        for label in range(len(directions.rows))
    ]


def with_energies(*classes, eight_bits=False):
    """Directions along the axes with given energies, weakest first."""
    directions = ClassDirections(len(classes), D, per_class=D, eight_bits=eight_bits)
    for label, values in enumerate(classes):
        lengths = torch.tensor(values, dtype=torch.float64).sqrt()
        directions.extend(
            label, torch.diag(lengths) @ torch.eye(len(values), D).double()
        )
    return directions


def test_directions_by_hand():
    statistics = discriminant(2, 2, directions=2)
    expected = torch.tensor([[2**0.5, 0], [0, 6**0.5]], dtype=torch.float64)
    for image, rows in (
        ([0.0, 0], expected[:0]),
        ([2.0, 0], expected[:1]),
        ([1.0, 3], expected),
    ):
        statistics.update(
            torch.tensor([image]), torch.tensor([0])
        )  # the last scatter is ((2, 0), (0, 6))
        torch.testing.assert_close(
            statistics.directions.of_class(0).abs(), rows, rtol=5e-4, atol=1e-9
        )
    assert not statistics.directions.outside.any()
    statistics.limit(1)
    torch.testing.assert_close(
        statistics.directions.of_class(0).abs(), expected[1:], rtol=5e-4, atol=1e-9
    )
    assert statistics.directions.outside.tolist() == pytest.approx([2, 0], rel=1e-3)


@pytest.mark.parametrize(
    ("total", "kept", "outside"),
    [
        (6, [[1, 4, 9], [4, 16], [9]], [0, 0, 0]),
        (5, [[4, 9], [4, 16], [9]], [1, 0, 0]),
        (
            4,
            [[9], [4, 16], [9]],
            [5, 0, 0],
        ),  # of equally many and equally weak ones, the first class
        (3, [[9], [16], [9]], [5, 4, 0]),
        (2, [[], [16], [9]], [14, 4, 0]),
        (0, [[], [], []], [14, 20, 9]),
    ],
)
@pytest.mark.parametrize("eight_bits", [False, True])
def test_which_class_loses_directions_by_hand(total, kept, outside, eight_bits):
    directions = with_energies([1, 4, 9], [4, 16], [9], eight_bits=eight_bits)
    directions.total = total
    directions.trim()
    rounding = 1e-2 if eight_bits else 0
    for found, expected in zip(energies(directions), kept, strict=True):
        assert found == pytest.approx(expected, rel=rounding)
    assert directions.outside.tolist() == pytest.approx(outside, rel=rounding)
    assert (
        len(directions)
        == total
        == int(directions.counts.sum())
        == sum(map(len, directions.rows))
    )
    used = [rows.untyped_storage().nbytes() for rows in directions.rows]
    assert used == [(1 if eight_bits else 2) * D * len(values) for values in kept], (
        "the memory of the others is free"
    )
    one_each = [2 * len(values) for values in kept]
    assert [scales.untyped_storage().nbytes() for scales in directions.scales] == (
        one_each if eight_bits else [4] * 3
    )


@settings(max_examples=15)
@given(
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    per_class=st.integers(0, 6),
    total=st.none() | st.integers(0, 20),
    size=st.integers(1, 9),
    seed=st.integers(0, 99),
    eight_bits=st.booleans(),
)
def test_never_more_directions_than_images_need_and_no_energy_is_lost(
    counts, per_class, total, size, seed, eight_bits
):
    features, labels = clouds(counts, seed)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    statistics = discriminant(
        len(counts), D, per_class, total_directions=total, eight_bits=eight_bits
    )
    for part in order.split(size):
        statistics.update(features[part], labels[part])
        held, seen = statistics.directions.counts, statistics.image_counts
        assert (held <= (seen - 1).clamp(0, min(per_class, D))).all() and (
            total is None or held.sum() <= total
        )
    for label, count in enumerate(counts):
        group = features[labels == label].double()
        trace = float((group - group.mean(0)).square().sum())
        kept = statistics.directions.of_class(label).square().sum()
        precise = pytest.approx(trace, rel=3e-2 if eight_bits else 5e-3, abs=1e-9)
        assert float(kept + statistics.directions.outside[label]) == precise
        if total is None:
            assert len(statistics.directions.of_class(label)) == min(
                count - 1, per_class, D
            )
    assert statistics.scores(features).isfinite().all()


def test_a_limit_holds_in_every_later_step():
    statistics = taught([9, 5, 2], directions=4, total_directions=7)
    assert (
        statistics.directions.counts.tolist() == [3, 3, 1]
        and statistics.settings["total_directions"] == 7
    )
    statistics.scores(clouds([2])[0])
    statistics.limit(4)
    assert (
        len(statistics.directions) == 4 and statistics.settings["total_directions"] == 4
    )
    assert statistics._solution is None, "a limit changes the answers"
    statistics.merge(taught([6, 6, 6], directions=4, seed=1))
    assert (
        len(statistics.directions) == 4 and statistics.settings["total_directions"] == 4
    )
    again = RegularizedDiscriminant.from_state(statistics.state_dict())
    for one in (statistics, again):
        one.update(*clouds([7, 8, 9], seed=2))
        assert len(one.directions) == 4
    assert all(
        torch.equal(mine, theirs)
        for mine, theirs in zip(statistics.tensors(), again.tensors())
    )
    statistics.limit(None)
    statistics.update(*clouds([7, 8, 9], seed=3))
    assert statistics.directions.counts.tolist() == [4, 4, 4]
    with pytest.raises(ValueError, match="total_directions is -1; give at least 0"):
        statistics.limit(-1)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_directions_at_any_scale_are_as_precise_and_int8_values_have_a_scale_for_each_block(
    scale,
):
    rows = scale * torch.randn(
        12, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    directions = ClassDirections(1, D, per_class=D)
    directions.extend(0, rows)
    kept, expected = directions.of_class(0), rows.T @ rows
    assert (
        directions.rows[0].dtype == torch.float16
        and 2**14 <= directions.rows[0].abs().max() <= 2**15
    )
    torch.testing.assert_close(
        kept.T @ kept, expected, rtol=0, atol=1e-3 * float(expected.abs().max())
    )
    # Weak directions beside strong ones are no less precise: a millionth is above the
    # smallest normal number.
    weak = scale * torch.tensor(
        [[1e-5] + [0] * (D - 2) + [0], [0] * (D - 1) + [1]], dtype=torch.float64
    )
    directions = ClassDirections(1, D, per_class=D)
    directions.extend(0, weak)
    torch.testing.assert_close(directions.of_class(0).abs(), weak, rtol=1e-3, atol=0)

    # An int8 value is less than a step away, and a step is a 127th of the largest value
    # of its block.
    length, generator = 2 * BLOCK + 5, torch.Generator().manual_seed(0)
    rows = scale * torch.randn(2, length, generator=generator, dtype=torch.float64)
    rows[:, BLOCK : 2 * BLOCK] *= 1e-4
    rows[1, : 2 * BLOCK] = 0
    rows[0, 2 * BLOCK :] = 0  # orthogonal: they are the directions
    directions = ClassDirections(1, length, per_class=4, eight_bits=True)
    directions.extend(0, rows)
    found = directions.of_class(0).flip(0)
    assert directions.rows[0].dtype == torch.int8 and directions.scales[0].shape == (
        2,
        3,
    )
    for mine, exact in zip(found, rows):
        mine = mine * torch.sign(mine @ exact)
        for place in range(0, length, BLOCK):
            block = exact[place : place + BLOCK]
            assert (
                mine[place : place + BLOCK] - block
            ).abs().max() <= 0.01 * block.abs().max() + 1e-9 * scale
    held = sum(part[0].nbytes for part in directions.tensors()[:2])
    assert ClassDirections.bytes_of_one(length, True) == length + 2 * 3 == held


def test_the_least_budget_holds_a_direction_of_each_class():
    statistics = taught([9, 9], directions=4)
    least = statistics.least_bytes(3)
    with pytest.raises(BudgetError, match=rf"{least:,} bytes are needed for 3 classes"):
        statistics.make_room(3, least - 1, D)
    statistics.make_room(3, least, D)
    statistics.grow(3)
    statistics.update(*clouds([7, 8, 9], seed=2))
    assert (
        statistics.directions.counts.tolist() == [1, 1, 1]
        and statistics.held_bytes <= least
    )
