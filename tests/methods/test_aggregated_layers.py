"""Two branches before one head, by hand and in real networks."""

import copy
import pickle

import pytest
import torch
from torch import nn

from crumb_avalanche.methods.aanets import AggregatedLayers, ScaledConv
from crumb_avalanche.methods.features import pooled_features
from crumb_avalanche.methods.registry import STRATEGIES, LearningSettings, Recipe
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.split_at import split_at
from crumb_avalanche.system.tensor_bytes import tensor_bytes

AANETS = STRATEGIES["aanets"]

pytestmark = pytest.mark.filterwarnings("ignore:Plugin .* implements incompatible callbacks")


def small_squeezenet():
    torch.manual_seed(0)
    return split_backbone("squeezenet1_0", None, n_classes=4, image_size=64, codebook=None)


def small_traced():
    from torchvision.models import resnet18

    torch.manual_seed(0)
    return split_at(resnet18(weights=None, num_classes=4), "layer4.0", n_classes=4, image_size=64)


def test_before_it_aggregates_it_is_the_layers(make_model):
    model = make_model(codebook=False)
    maps = torch.randn(3, *model.map_shape)
    before = model.classify(maps)
    layers = AggregatedLayers(model.plastic_layers, model.head)
    assert torch.equal(layers(maps), before)
    layers.aggregate()
    torch.testing.assert_close(layers(maps), before)  # the branches are equal, so any mixture is


def test_logits_are_the_head_of_the_average_of_both_branches(make_model):
    model = make_model(codebook=False)
    layers = AggregatedLayers(model.plastic_layers, model.head)
    old = {name: value.clone() for name, value in model.plastic_layers.conv.state_dict().items()}
    layers.aggregate()
    with torch.no_grad():
        layers.plastic.conv.weight.add_(0.3)  # the plastic branch goes on
        layers.plastic.conv.bias.sub_(0.2)
    maps, head = torch.randn(3, *model.map_shape), layers.blended.layer

    def branch(weight, bias):
        return nn.functional.conv2d(maps, weight, bias, padding=1).relu().mean((2, 3))

    stable, plastic = branch(old["weight"], old["bias"]), branch(layers.plastic.conv.weight, layers.plastic.conv.bias)
    assert layers.blended.share.item() == 0.5
    torch.testing.assert_close(layers(maps), head((stable + plastic) / 2))
    for share in (0.0, 0.25, 1.0):
        layers.blended.share.data.fill_(share)
        torch.testing.assert_close(layers(maps), head(share * stable + (1 - share) * plastic))
    # Factors of each pair of channels, and summands of each output channel.
    scale, shift = torch.rand(8, 8), torch.rand(8)
    layers.stable.conv.scale.data.copy_(scale[:, :, None, None])
    layers.stable.conv.shift.data.copy_(shift)
    scaled = old["weight"].clone()
    for out in range(8):
        for into in range(8):
            scaled[out, into] *= scale[out, into]
    torch.testing.assert_close(layers(maps), head(branch(scaled, old["bias"] + shift)))


def test_scales_start_as_the_identity():
    conv = nn.Conv2d(6, 4, (3, 1), stride=2, groups=2)
    maps = torch.randn(2, 6, 7, 7)
    scaled = ScaledConv(copy.deepcopy(conv))
    assert scaled.scale.shape == (4, 3, 1, 1) and (scaled.scale == 1).all() and not scaled.shift.any()
    assert torch.equal(scaled(maps), conv(maps))
    assert {name for name, p in scaled.named_parameters() if p.requires_grad} == {"scale", "shift"}
    assert ScaledConv(nn.Conv2d(2, 3, 1, bias=False)).shift is None


@pytest.mark.parametrize("make", [small_squeezenet, small_traced])
def test_real_networks_keep_working(make):
    model = make()
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    model.eval()
    before, features = model(images), pooled_features(model, images)
    parameters = sum(p.numel() for p in model.plastic_layers.parameters())
    strategy = AANETS.build(Recipe(model, LearningSettings(), AANETS.settings(), 4, 4, 0, "cpu", {"evaluator": None}))
    layers = model.plastic_layers
    assert isinstance(layers, AggregatedLayers) and model.n_classes == 4
    layers.aggregate()
    torch.testing.assert_close(model.eval()(images), before, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pooled_features(model, images), features, rtol=1e-4, atol=1e-5)
    learning = {name for name, p in layers.named_parameters() if p.requires_grad}
    assert sum(p.numel() for p in layers.plastic.parameters()) == parameters + 1
    own = [name for name in learning if name.startswith("stable.")]
    assert own and all(name.endswith((".scale", ".shift")) for name in own)
    # Statistics of the stable branch are at rest, those of the plastic one are not.
    before_state = {name: value.clone() for name, value in layers.state_dict().items()}
    model.train()(images)
    moved = {name for name, value in layers.state_dict().items() if not torch.equal(value, before_state[name])}
    assert all(name.startswith("plastic.") and "bn" in name for name in moved)
    assert bool(moved) == any(isinstance(module, nn.BatchNorm2d) for module in layers.modules())
    again = pickle.loads(pickle.dumps(strategy)).model
    assert torch.equal(again.eval()(images), model.eval()(images))
    again.reset_head(7)
    assert again.n_classes == 7 and again(images).shape == (2, 7)


def test_bytes_of_the_stable_branch(make_model):
    layers = AggregatedLayers(make_model(codebook=False).plastic_layers, "head")
    # 8 x 8 x 9 weights, 8 biases, a factor for each pair of channels, a summand for each output; no head.
    assert layers.stable_bytes == 4 * (576 + 8 + 64 + 8)
    norm = small_traced().plastic_layers
    layers = AggregatedLayers(norm, "fc" if hasattr(norm, "fc") else "head")
    own = tensor_bytes([*layers.stable.parameters(), *layers.stable.buffers()])
    assert layers.stable_bytes == own and any("running_mean" in name for name, _ in layers.stable.named_buffers())
