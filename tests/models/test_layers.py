"""The head that averages before its convolution, dropout from single random bits, and the norm by running moments."""

import pytest
import torch
from torch import nn

from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.layers import AveragingConv2d, CoinDropout, RunningNorm, coin_mask, replace_dropout


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


def test_running_norm_by_hand():
    norm = RunningNorm(2)
    first = torch.tensor([[1.0, 10.0], [3.0, 10.0]])
    assert torch.equal(norm.eval()(first), first), "without moments, nothing changes"
    # Means 2 and 10; squared distances from the old means 0: (1 + 9) / 2 and 100, so their mean is 52.5.
    torch.testing.assert_close(norm.train()(first), (first - torch.tensor([2.0, 10.0])) / 52.5**0.5)
    # Half of the weight each: means 4 and 10, variances (5 + ((6 - 2)^2)) / 2 and (100 + 0) / 2.
    second = torch.tensor([[6.0, 10.0]])
    expected = (second - torch.tensor([4.0, 10.0])) / ((10.5 + 50.0) / 2) ** 0.5
    torch.testing.assert_close(norm(second), expected)
    torch.testing.assert_close(norm.eval()(second), expected)  # the moments stay


def test_running_norm_takes_maps_by_their_means_and_is_a_constant_for_the_gradient():
    maps = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    of_maps, of_means = RunningNorm(3), RunningNorm(3)
    normal = of_maps(maps)
    torch.testing.assert_close(normal.mean((2, 3)), of_means(maps.detach().mean((2, 3))))
    (gradient,) = torch.autograd.grad(normal.sum(), maps)
    deviation = of_maps.variance.mean().sqrt()
    torch.testing.assert_close(gradient, torch.full_like(maps, 1.0) / deviation)


def test_running_norm_forgets_moments_older_than_its_horizon():
    norm = RunningNorm(1).train()
    for _ in range(RunningNorm.HORIZON):
        norm(torch.zeros(2, 1))
    norm(torch.full((2, 1), 200.0))
    torch.testing.assert_close(norm.mean, torch.tensor([200.0 / RunningNorm.HORIZON]))


@pytest.mark.parametrize("name", ["squeezenet1_0", "mobilenet_v2", "resnet18", "small_cnn"])
def test_a_normalised_head_keeps_the_logits_of_a_new_model(name):
    torch.manual_seed(0)
    plain = split_backbone(name, None, n_classes=4, image_size=64, codebook=None).eval()
    torch.manual_seed(0)
    normal = split_backbone(name, None, n_classes=4, image_size=64, codebook=None, normalize_head=True).eval()
    images = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(normal(images), plain(images))
    normal.reset_head(7)
    assert normal.n_classes == 7 and normal(images).shape == (2, 7)
    normal.train()(images)
    (norm,) = (layer for layer in normal.modules() if isinstance(layer, RunningNorm))
    assert norm.passes == 1
    with pytest.raises(ValueError, match="once"):
        normal.normalize_head()
