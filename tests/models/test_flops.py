"""Operations of a training step, counted by hand."""

import pytest
import torch
from torch import nn

from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.layers import step_flops
from crumb_avalanche.models.split_model import SplitModel


def test_by_hand():
    extractor = nn.Conv2d(3, 8, 3, stride=2, padding=1)  # 16 pixels -> 8x8
    plastic = nn.Sequential()
    plastic.add_module("conv", nn.Conv2d(8, 4, 3, padding=1))
    plastic.add_module("pool", nn.AdaptiveAvgPool2d(1))
    plastic.add_module("flatten", nn.Flatten())
    plastic.add_module("head", nn.Linear(4, 5))
    model = SplitModel(extractor, plastic, "head", image_size=16).train()
    # Two operations for a product and its sum; two passes more for the gradients.
    products = 4 * 8 * 9 * 64 + 4 * 5
    assert step_flops(model) == (2 * 8 * 3 * 9 * 64, 3 * 2 * products)
    assert model.training and model.plastic_layers.head.weight.grad is None


@pytest.mark.parametrize("name", ["squeezenet1_0", "mobilenet_v2", "resnet18"])
def test_counting_leaves_weights_and_rng_alone(name):
    model = split_backbone(name, None, n_classes=10, image_size=64).train()
    before, state = {key: value.clone() for key, value in model.state_dict().items()}, torch.get_rng_state()
    extraction, training = step_flops(model)
    assert extraction > 0 and training > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
