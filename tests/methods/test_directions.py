"""Directions of classes: as many as needed, at any scale, within a limit over all."""

import copy

import pytest
import torch
from closed_form_cases import discriminant
from hypothesis import given, settings
from hypothesis import strategies as st

from crumb_avalanche.methods.budgeted_statistics import BudgetError
from crumb_avalanche.methods.directions import BLOCK, ClassDirections
from crumb_avalanche.methods.rda import RegularizedDiscriminant

D = 8
each_width = pytest.mark.parametrize("eight_bits", [False, True])
each_scale = pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])


def clouds(counts, seed=0):
    """Images of classes, ``counts`` of each, one class after the other, and labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    features = torch.randn(len(labels), D, generator=generator)
    sizes = torch.rand(len(counts), 1, generator=generator)
    return features * sizes[labels], labels


def taught(counts, directions=D, seed=0, **arguments):
    statistics = discriminant(len(counts), D, directions, **arguments)
    statistics.update(*clouds(counts, seed))
    return statistics


def energies(directions, label):
    """Energies of the directions of a class, weakest first."""
    return directions.of_class(label).square().sum(1).tolist()


def with_energies(*classes, eight_bits=False):
    """Directions along the axes with some energies, weakest first."""
    directions = ClassDirections(len(classes), D, per_class=D, eight_bits=eight_bits)
    for label, values in enumerate(classes):
        lengths = torch.tensor(values, dtype=torch.float64).sqrt()
        axes = torch.eye(len(values), D, dtype=torch.float64)
        directions.extend(label, torch.diag(lengths) @ axes)
    return directions


IMAGES = torch.tensor([[0.0, 0], [2.0, 0], [1.0, 3]])
# The last scatter is ((2, 0), (0, 6)).
AXES = torch.tensor([[2**0.5, 0], [0, 6**0.5]], dtype=torch.float64)


def after(images):
    """A discriminant of two features after the first images of class 0."""
    statistics = discriminant(2, 2, directions=2)
    for image in IMAGES[:images]:
        statistics.update(image.unsqueeze(0), torch.tensor([0]))
    return statistics


@pytest.mark.parametrize("images", [1, 2, 3])
def test_directions_by_hand(images):
    directions = after(images).directions
    torch.testing.assert_close(
        directions.of_class(0).abs(), AXES[: images - 1], rtol=5e-4, atol=1e-9
    )
    assert not directions.outside.any()


def test_a_limit_by_hand():
    statistics = after(3)
    statistics.limit(1)
    rows = statistics.directions.of_class(0).abs()
    torch.testing.assert_close(rows, AXES[1:], rtol=5e-4, atol=1e-9)
    assert statistics.directions.outside.tolist() == pytest.approx([2, 0], rel=1e-3)


TRIMMED = [
    (6, [[1, 4, 9], [4, 16], [9]], [0, 0, 0]),
    (5, [[4, 9], [4, 16], [9]], [1, 0, 0]),
    # Of equally many and equally weak ones, the first class.
    (4, [[9], [4, 16], [9]], [5, 0, 0]),
    (3, [[9], [16], [9]], [5, 4, 0]),
    (2, [[], [16], [9]], [14, 4, 0]),
    (0, [[], [], []], [14, 20, 9]),
]
each_total = pytest.mark.parametrize(("total", "left", "outside"), TRIMMED)


def trimmed(total, eight_bits):
    directions = with_energies([1, 4, 9], [4, 16], [9], eight_bits=eight_bits)
    directions.total = total
    directions.trim()
    return directions


@each_width
@each_total
def test_which_class_loses_directions(total, left, outside, eight_bits):
    directions = trimmed(total, eight_bits)
    rounding = 1e-2 if eight_bits else 0
    for label in range(3):
        assert energies(directions, label) == pytest.approx(left[label], rel=rounding)
    assert directions.outside.tolist() == pytest.approx(outside, rel=rounding)


@each_width
@each_total
def test_directions_are_counted(total, left, outside, eight_bits):
    directions = trimmed(total, eight_bits)
    assert len(directions) == total
    assert directions.counts.tolist() == list(map(len, left))
    assert list(map(len, directions.rows)) == list(map(len, left))


@each_width
@each_total
def test_memory_of_lost_directions_is_free(total, left, outside, eight_bits):
    directions = trimmed(total, eight_bits)
    used = [rows.untyped_storage().nbytes() for rows in directions.rows]
    width = 1 if eight_bits else 2
    assert used == [width * D * len(values) for values in left]


def bytes_of_scales(directions):
    return [scales.untyped_storage().nbytes() for scales in directions.scales]


@each_total
def test_float16_has_a_scale_for_each_class(total, left, outside):
    assert bytes_of_scales(trimmed(total, eight_bits=False)) == [4] * 3


@each_total
def test_int8_has_a_scale_for_each_direction(total, left, outside):
    used = bytes_of_scales(trimmed(total, eight_bits=True))
    assert used == [2 * len(values) for values in left]


@settings(max_examples=15)
@given(
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    per_class=st.integers(0, 6),
    total=st.none() | st.integers(0, 20),
    size=st.integers(1, 9),
    seed=st.integers(0, 99),
    eight_bits=st.booleans(),
)
def test_no_more_directions_than_needed(
    counts, per_class, total, size, seed, eight_bits
):
    features, labels = clouds(counts, seed)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    statistics = discriminant(
        len(counts), D, per_class, total_directions=total, eight_bits=eight_bits
    )
    for batch in order.split(size):
        statistics.update(features[batch], labels[batch])
        held = statistics.directions.counts
        needed = (statistics.image_counts - 1).clamp(0, min(per_class, D))
        assert (held <= needed).all()
        assert total is None or held.sum() <= total
    assert statistics.scores(features).isfinite().all()


@settings(max_examples=15)
@given(
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    per_class=st.integers(0, 6),
    total=st.none() | st.integers(0, 20),
    size=st.integers(1, 9),
    seed=st.integers(0, 99),
    eight_bits=st.booleans(),
)
def test_no_energy_is_lost(counts, per_class, total, size, seed, eight_bits):
    features, labels = clouds(counts, seed)
    statistics = discriminant(
        len(counts), D, per_class, total_directions=total, eight_bits=eight_bits
    )
    for start in range(0, len(labels), size):
        batch = slice(start, start + size)
        statistics.update(features[batch], labels[batch])
    rounding = 3e-2 if eight_bits else 5e-3
    for label, count in enumerate(counts):
        group = features[labels == label].double()
        trace = float((group - group.mean(0)).square().sum())
        rows = statistics.directions.of_class(label)
        stored = float(rows.square().sum() + statistics.directions.outside[label])
        assert stored == pytest.approx(trace, rel=rounding, abs=1e-9)
        if total is None:
            assert len(rows) == min(count - 1, per_class, D)


@pytest.mark.parametrize("label", [0, 1])
def test_a_merge_loses_no_energy(label):
    statistics = taught([9, 5], directions=2)
    statistics.merge(taught([6, 7], directions=2, seed=1))
    features, labels = clouds([9, 5])
    more_features, more_labels = clouds([6, 7], seed=1)
    group = torch.cat([features[labels == label], more_features[more_labels == label]])
    trace = float((group - group.mean(0)).double().square().sum())
    directions = statistics.directions
    energy = float(directions.of_class(label).square().sum())
    stored = energy + float(directions.outside[label])
    assert stored == pytest.approx(trace, rel=5e-3)


def test_a_limit_is_a_setting():
    statistics = taught([9, 5, 2], directions=4, total_directions=7)
    assert statistics.directions.counts.tolist() == [3, 3, 1]
    assert statistics.settings["total_directions"] == 7


def limited():
    """A discriminant whose limit was lowered to four directions."""
    statistics = taught([9, 5, 2], directions=4, total_directions=7)
    statistics.scores(clouds([2])[0])
    statistics.limit(4)
    return statistics


def test_a_lower_limit_holds_at_once():
    statistics = limited()
    assert len(statistics.directions) == 4
    assert statistics.settings["total_directions"] == 4


def test_a_limit_changes_the_answers():
    features, _ = clouds([5, 5, 5], seed=3)
    before = taught([9, 5, 2], directions=4, total_directions=7).scores(features)
    assert not torch.equal(limited().scores(features), before)


def test_a_limit_holds_after_a_merge():
    statistics = limited()
    statistics.merge(taught([6, 6, 6], directions=4, seed=1))
    assert len(statistics.directions) == 4


def test_a_limit_holds_in_updates():
    statistics = limited()
    statistics.update(*clouds([7, 8, 9], seed=2))
    assert len(statistics.directions) == 4


def test_a_limit_is_loaded():
    statistics = limited()
    again = RegularizedDiscriminant.from_state(statistics.state_dict())
    statistics.update(*clouds([7, 8, 9], seed=2))
    again.update(*clouds([7, 8, 9], seed=2))
    pairs = zip(statistics.tensors(), again.tensors(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_a_limit_is_taken_away():
    statistics = limited()
    statistics.limit(None)
    statistics.update(*clouds([7, 8, 9], seed=3))
    assert statistics.directions.counts.tolist() == [4, 4, 4]


def test_a_negative_limit_is_refused():
    with pytest.raises(ValueError, match="total_directions is -1; give at least 0"):
        limited().limit(-1)


@pytest.mark.parametrize("count", [0, -1, D + 1])
def test_features_to_keep_are_checked(count):
    words = f"the number of features to keep is {count}; give 1 to 8"
    with pytest.raises(ValueError, match=words):
        taught([5, 5]).keep_features(count)


def last_rows(statistics, count=3):
    """Rows of each class after all but the last features are dropped in a copy."""
    cut = copy.deepcopy(statistics)
    cut.keep_features(count)
    return cut.directions.rows


def test_copies_that_learn_apart_are_cut_as_they_are():
    statistics = taught([5, 5])
    other = copy.deepcopy(statistics)
    other.update(*clouds([0, 4], seed=1))
    last_rows(statistics)
    alone = taught([5, 5])
    alone.update(*clouds([0, 4], seed=1))
    pairs = zip(last_rows(other), last_rows(alone), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_a_cut_is_computed_once_beside_a_copy_with_other_rows():
    """The forms of two looks are copies of one empty form."""
    whole_image = discriminant(1, D, D)
    middle = copy.deepcopy(whole_image)
    whole_image.update(*clouds([5], seed=0))
    middle.update(*clouds([5], seed=1))
    first_rows = last_rows(whole_image)
    last_rows(middle)
    assert last_rows(whole_image)[0] is first_rows[0]


def extended(rows, **arguments):
    """Directions of one class with a scatter of rows."""
    directions = ClassDirections(1, rows.shape[1], **arguments)
    directions.extend(0, rows)
    return directions


@each_scale
def test_directions_are_precise_at_any_scale(scale):
    generator = torch.Generator().manual_seed(0)
    rows = scale * torch.randn(12, D, generator=generator, dtype=torch.float64)
    directions = extended(rows, per_class=D)
    stored = directions.of_class(0)
    scatter = rows.T @ rows
    atol = 1e-3 * float(scatter.abs().max())
    torch.testing.assert_close(stored.T @ stored, scatter, rtol=0, atol=atol)


@each_scale
def test_float16_is_used_to_its_end(scale):
    generator = torch.Generator().manual_seed(0)
    rows = scale * torch.randn(12, D, generator=generator, dtype=torch.float64)
    (stored,) = extended(rows, per_class=D).rows
    assert stored.dtype == torch.float16
    assert 2**14 <= stored.abs().max() <= 2**15


@each_scale
def test_weak_directions_are_as_precise(scale):
    """Beside strong ones: a millionth is above the smallest normal number."""
    rows = torch.zeros(2, D, dtype=torch.float64)
    rows[0, 0] = 1e-5 * scale
    rows[1, -1] = scale
    stored = extended(rows, per_class=D).of_class(0).abs()
    torch.testing.assert_close(stored, rows, rtol=1e-3, atol=0)


LENGTH = 2 * BLOCK + 5  # the last block is short


def orthogonal_rows(scale):
    """Two directions, one with a block of small values."""
    generator = torch.Generator().manual_seed(0)
    rows = scale * torch.randn(2, LENGTH, generator=generator, dtype=torch.float64)
    rows[:, BLOCK : 2 * BLOCK] *= 1e-4
    rows[1, : 2 * BLOCK] = 0
    rows[0, 2 * BLOCK :] = 0
    return rows


@each_scale
def test_int8_has_a_scale_for_each_block(scale):
    directions = extended(orthogonal_rows(scale), per_class=4, eight_bits=True)
    assert directions.rows[0].dtype == torch.int8
    assert directions.scales[0].shape == (2, 3)


@pytest.mark.parametrize("start", range(0, LENGTH, BLOCK))
@pytest.mark.parametrize("number", [0, 1])
@each_scale
def test_int8_is_less_than_a_step_away(scale, number, start):
    """A step is a 127th of the largest value of its block."""
    exact = orthogonal_rows(scale)[number]
    directions = extended(orthogonal_rows(scale), per_class=4, eight_bits=True)
    stored = directions.of_class(0).flip(0)[number]
    stored = stored * torch.sign(stored @ exact)
    block = slice(start, start + BLOCK)
    step = 0.01 * exact[block].abs().max() + 1e-9 * scale
    assert (stored[block] - exact[block]).abs().max() <= step


def test_bytes_of_a_direction():
    directions = extended(orthogonal_rows(1.0), per_class=4, eight_bits=True)
    rows, scales = directions.rows[0], directions.scales[0]
    size = LENGTH + 2 * 3
    assert ClassDirections.bytes_of_one(LENGTH, True) == size
    assert rows[0].nbytes + scales[0].nbytes == size


def test_less_than_the_least_budget_is_refused():
    statistics = taught([9, 9], directions=4)
    least = statistics.least_bytes(3)
    words = rf"{least:,} bytes are needed for 3 classes"
    with pytest.raises(BudgetError, match=words):
        statistics.make_room(3, least - 1, D)


def test_the_least_budget_holds_a_direction_each():
    statistics = taught([9, 9], directions=4)
    least = statistics.least_bytes(3)
    statistics.make_room(3, least, D)
    statistics.grow(3)
    statistics.update(*clouds([7, 8, 9], seed=2))
    assert statistics.directions.counts.tolist() == [1, 1, 1]
    assert statistics.held_bytes <= least
