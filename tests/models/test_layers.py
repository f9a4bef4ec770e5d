"""The head that averages before its convolution, dropout from single random bits, and counted operations."""

import pytest
import torch
from torch import nn

from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.layers import AveragingConv2d, CoinDropout, coin_mask, replace_dropout, step_flops
from crumb_avalanche.models.split_model import SplitModel


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


def test_values_are_doubled_or_dropped_and_so_are_their_gradients():
    ones = torch.ones(6, 16, 7, 5)
    layouts = ones, ones.contiguous(memory_format=torch.channels_last), ones.permute(3, 0, 2, 1), ones.double()
    for values in (*layouts, ones.flatten()[:1003]):  # no multiple of eight
        values = values.clone().requires_grad_()
        dropped = CoinDropout()(values)
        assert set(dropped.unique().tolist()) == {0.0, 2.0} and dropped.stride() == values.stride()
        assert 0.4 < (dropped > 0).double().mean() < 0.6 and dropped.dtype == values.dtype
        dropped.sum().backward()
        assert torch.equal(values.grad, dropped)


def test_every_value_has_an_even_chance_independent_of_its_neighbours():
    draws = coin_mask(torch.ones(20_000, 24)) / 2
    # Means of 20,000 fair coins: standard error 0.0035; five of them.
    assert (draws.mean(0) - 0.5).abs().max() < 0.018
    pairs = torch.cov(draws.T) - torch.eye(24) * 0.25
    assert pairs.abs().max() < 0.25 * 0.05


@pytest.mark.parametrize(
    ("training", "p", "values"),
    [
        (False, 0.5, torch.ones(8, 10)),
        (True, 0.2, torch.ones(8, 10)),
        (True, 0.5, torch.ones(8, 10)[:, ::2]),
        (True, 0.5, torch.ones(8, 1).expand(8, 10)),
    ],
)
def test_other_cases_use_the_dropout_of_torch(training, p, values):
    results = []
    for kind in (CoinDropout, nn.Dropout):
        torch.manual_seed(3)
        results.append(kind(p).train(training)(values))
    assert torch.equal(*results)


def test_every_dropout_of_a_network_is_replaced():
    inner = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    network = replace_dropout(nn.Sequential(nn.Dropout(0.3), inner, nn.Dropout2d()))
    kinds = [type(layer) for layer in (network[0], network[1][1], network[2])]
    assert kinds == [CoinDropout, CoinDropout, nn.Dropout2d] and (network[0].p, network[1][1].p) == (0.3, 0.5)


def test_operations_of_a_step_by_hand():
    extractor = nn.Conv2d(3, 8, 3, stride=2, padding=1)  # 16 pixels -> 8x8
    plastic = nn.Sequential(nn.Conv2d(8, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    model = SplitModel(extractor, plastic, "3", image_size=16).train()
    # Two operations for a product and its sum; two passes more for the gradients.
    products = 4 * 8 * 9 * 64 + 4 * 5
    state = torch.get_rng_state()
    assert step_flops(model) == (2 * 8 * 3 * 9 * 64, 3 * 2 * products)
    assert model.training and plastic[3].weight.grad is None
    assert torch.equal(torch.get_rng_state(), state)
