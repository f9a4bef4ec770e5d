"""The head that averages before its convolution, and dropout from single random bits."""

import pytest
import torch
from torch import nn

from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.layers import AveragingConv2d, CoinDropout, coin_mask, replace_dropout


def gradients(head, maps, wanted):
    """Averaged logits, and the gradients of their product with ``wanted`` in maps, weights and biases."""
    maps = maps.clone().requires_grad_()
    logits = head(maps).mean((2, 3))
    return logits, *torch.autograd.grad((logits * wanted).sum(), [maps, head.weight, head.bias])


def test_it_is_the_average_of_the_convolution():
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(3, 8, 5, 4, generator=generator, dtype=torch.float64)
    wanted = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    head = AveragingConv2d(8, 6).double()
    plain = nn.Conv2d(8, 6, 1).double()
    plain.load_state_dict(head.state_dict())
    assert head(maps).shape == (3, 6, 1, 1)
    for ours, theirs in zip(gradients(head, maps, wanted), gradients(plain, maps, wanted), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_squeezenet_has_it_unless_a_relu_or_a_larger_kernel_stands_between():
    for settings in ({}, {"relu_logits": True}, {"head_kernel": 3}):
        model = split_backbone("squeezenet1_0", None, n_classes=4, image_size=64, **settings, codebook=None)
        assert isinstance(model.plastic_layers.head, AveragingConv2d) == (not settings)
        model.reset_head(7)
        assert isinstance(model.plastic_layers.head, AveragingConv2d) == (not settings)
        assert model.n_classes == 7


def test_squeezenets_logits_are_those_of_the_average_behind_the_convolution():
    torch.manual_seed(0)
    model = split_backbone("squeezenet1_0", None, n_classes=4, image_size=64, codebook=None).eval()
    maps = torch.relu(torch.randn(2, *model.map_shape))
    expected = model.classify(maps)
    plain = nn.Conv2d(512, 4, 1)
    plain.load_state_dict(model.plastic_layers.head.state_dict())
    model.plastic_layers.head = plain
    torch.testing.assert_close(model.classify(maps), expected, rtol=1e-4, atol=1e-6)


def layouts():
    values = torch.ones(6, 16, 7, 5)
    return {
        "plain": values,
        "channels last": values.contiguous(memory_format=torch.channels_last),
        "permuted": values.permute(3, 0, 2, 1),
        "flat, no multiple of eight": torch.ones(1003),
        "double": values.double(),
    }


@pytest.mark.parametrize("layout", layouts())
def test_values_are_doubled_or_dropped_and_so_are_their_gradients(layout):
    torch.manual_seed(0)
    values = layouts()[layout].requires_grad_()
    dropped = CoinDropout()(values)
    assert set(dropped.unique().tolist()) == {0.0, 2.0} and dropped.stride() == values.stride()
    assert 0.4 < (dropped > 0).double().mean() < 0.6 and dropped.dtype == values.dtype
    dropped.sum().backward()
    assert torch.equal(values.grad, dropped)


def test_every_value_has_an_even_chance_independent_of_its_neighbours():
    torch.manual_seed(0)
    draws = torch.stack([coin_mask(torch.ones(24)) for _ in range(20_000)]) / 2
    # Means of 20,000 fair coins: standard error 0.0035; five of them.
    assert (draws.mean(0) - 0.5).abs().max() < 0.018
    pairs = torch.cov(draws.T) - torch.eye(24) * 0.25
    assert pairs.abs().max() < 0.25 * 0.05


def test_the_same_seed_gives_the_same_mask_and_the_next_call_another():
    torch.manual_seed(1)
    first, second = coin_mask(torch.ones(64)), coin_mask(torch.ones(64))
    torch.manual_seed(1)
    assert torch.equal(coin_mask(torch.ones(64)), first) and not torch.equal(first, second)


@pytest.mark.parametrize("case", ["evaluation", "other p", "gaps in memory", "overlapping"])
def test_other_cases_use_the_dropout_of_torch(case):
    values = torch.ones(8, 10)
    layer, twin = CoinDropout(0.2 if case == "other p" else 0.5), nn.Dropout(0.2 if case == "other p" else 0.5)
    if case == "evaluation":
        layer, twin = layer.eval(), twin.eval()
    if case == "gaps in memory":
        values = values[:, ::2]
    if case == "overlapping":
        values = torch.ones(8, 1).expand(8, 10)
    results = []
    for one in (layer, twin):
        torch.manual_seed(3)
        results.append(one(values))
    assert torch.equal(*results)


def test_every_dropout_of_a_network_is_replaced():
    network = replace_dropout(
        nn.Sequential(nn.Dropout(0.3), nn.Sequential(nn.Linear(2, 2), nn.Dropout()), nn.Dropout2d())
    )
    assert [type(layer) for layer in (network[0], network[1][1], network[2])] == [
        CoinDropout,
        CoinDropout,
        nn.Dropout2d,
    ]
    assert (network[0].p, network[1][1].p) == (0.3, 0.5)
