"""Rounding of weights: as the slow formula does it, on a grid, and with smaller errors than the nearest values."""

import pytest
import torch

from crumb_avalanche.models.quantization import DAMPING, LARGEST, rounded


def rounded_slowly(row, moments, largest):
    """Round one output's weights by the formula of optimal brain surgery, with an inverse for each of them."""
    row, found = row.double().clone(), []
    scale = (largest / LARGEST).double()
    moments = moments + DAMPING * moments.diagonal().mean() * torch.eye(len(moments))
    for place in range(len(row)):
        inverse = torch.linalg.inv(moments[place:, place:])
        found.append((row[place] / scale).round().clamp(-LARGEST, LARGEST) * scale)
        row[place:] -= (row[place] - found[-1]) / inverse[0, 0] * inverse[0]
    return torch.stack(found).float()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("blocks", [1, 3])
def test_rounding_makes_up_for_errors_as_the_slow_formula_does(groups, blocks):
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(4, 6, 2, 2, generator=generator)
    count = weight[0].numel() // blocks
    inputs = 0.1 * torch.randn(groups * blocks, 500, count, generator=generator).double()
    inputs += torch.randn(groups * blocks, 500, 1, generator=generator).double()  # alike, as pixels beside each other
    moments = inputs.mT @ inputs
    found, scales = rounded(weight, moments, groups)
    steps = found / scales.view(-1, 1, 1, 1)
    assert torch.allclose(steps, steps.round(), atol=1e-4) and steps.abs().max() <= LARGEST
    plain = (weight / scales.view(-1, 1, 1, 1)).round() * scales.view(-1, 1, 1, 1)
    errors = {"found": 0.0, "plain": 0.0}
    for output, row in enumerate(weight.flatten(1)):
        for block in range(blocks):
            part, place = slice(block * count, (block + 1) * count), output // (4 // groups) * blocks + block
            slow = rounded_slowly(row[part], moments[place], row.abs().max())
            assert torch.allclose(found[output].flatten()[part], slow, atol=1e-6)
            for name, one in (("found", found), ("plain", plain)):
                errors[name] += float((inputs[place] @ (one[output].flatten() - row)[part].double()).square().sum())
    assert errors["found"] < 0.2 * errors["plain"]


def test_inputs_that_are_always_zero_round_plainly():
    weight = torch.tensor([[[[0.5]], [[-0.2]]], [[[0.0]], [[0.0]]]])
    found, scales = rounded(weight, torch.zeros(1, 2, 2, dtype=torch.float64))
    assert torch.allclose(found, weight, atol=0.5 / LARGEST) and torch.isfinite(found).all()
    assert scales[0] == pytest.approx(0.5 / LARGEST) and scales[1] > 0
