"""The head that averages before it convolves."""

import torch
from torch import nn

from crumb_avalanche.models.averaging_head import AveragingConv2d
from crumb_avalanche.models.backbones import split_backbone


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
        model = split_backbone("squeezenet1_0", None, n_classes=4, image_size=64, **settings)
        assert isinstance(model.plastic_layers.head, AveragingConv2d) == (not settings)
        model.reset_head(7)
        assert isinstance(model.plastic_layers.head, AveragingConv2d) == (not settings)
        assert model.n_classes == 7


def test_squeezenets_logits_are_those_of_the_average_behind_the_convolution():
    torch.manual_seed(0)
    model = split_backbone("squeezenet1_0", None, n_classes=4, image_size=64).eval()
    maps = torch.relu(torch.randn(2, *model.map_shape))
    expected = model.classify(maps)
    plain = nn.Conv2d(512, 4, 1)
    plain.load_state_dict(model.plastic_layers.head.state_dict())
    model.plastic_layers.head = plain
    torch.testing.assert_close(model.classify(maps), expected, rtol=1e-4, atol=1e-6)
