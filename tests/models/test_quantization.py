"""Quantisation of F: the graph's maps stay the same in float32, and lose less in int8."""

import pytest
import torch
from torch import nn

from crumb_avalanche.models import quantization
from crumb_avalanche.models.engines import onnx_of
from crumb_avalanche.models.quantization import DAMPING, quantized, rounded

MEAN, STD = torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1), torch.tensor([0.2, 0.25, 0.3]).view(1, 3, 1, 1)


class Fire(nn.Module):
    """A network whose channels have uneven ranges, with each kind of layer that the steps pass or stop at."""

    def __init__(self, padding=1):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, 2, padding), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.small, self.large = nn.Conv2d(8, 6, 1), nn.Conv2d(8, 6, 3, padding=1)
        self.both = nn.Conv2d(12, 8, 3, padding=1)
        self.depthwise = nn.Sequential(nn.ReLU6(), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 8, 1))
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, images):
        maps = self.first(images)
        joined = torch.cat([self.small(maps).relu(), self.large(maps).relu()], 1)
        maps = maps + self.depthwise(self.both(joined))
        return self.last(nn.functional.avg_pool2d(self.both(joined).relu(), 2) + nn.functional.avg_pool2d(maps, 2))


@pytest.fixture(params=[1, 0], ids=["padded", "bare"])
def network(request):
    pytest.importorskip("onnxruntime")
    made = Fire(request.param).eval()
    with torch.no_grad():  # uneven ranges of channels, for which the layer after them makes up
        for layer, part in ((made.small, slice(0, 6)), (made.large, slice(6, 12))):
            scales = 10 ** torch.linspace(-1, 1, 6)
            layer.weight *= scales.view(-1, 1, 1, 1)
            layer.bias *= scales
            made.both.weight[:, part] /= scales.view(-1, 1, 1)
    return made


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (20, 3, 8, 8), dtype=torch.uint8, generator=generator)
    large = nn.functional.interpolate(pixels.float(), scale_factor=4, mode="bilinear").round()
    return (large / 255 - MEAN) / STD


def ran(graph, images):
    import onnxruntime

    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def difference(found, expected):
    return float((found - expected).norm() / expected.norm())


@torch.no_grad()
def test_the_steps_take_noise_away(network, images, monkeypatch):
    graph, expected = onnx_of(network, images[:2]), network(images)

    def noise():
        return difference(ran(quantized(graph, images, MEAN, STD), images), expected)

    after = noise()
    monkeypatch.setattr(quantization, "_equalize", lambda *given: None)
    assert noise() > 1.2 * after
    monkeypatch.setattr(quantization, "_prepare", lambda *given: ({}, []))
    assert noise() > 1.2 * after


def rounded_slowly(row, moments, scale, largest):
    """Round one output's weights by the formula of optimal brain surgery, with an inverse for each of them."""
    row, found = row.double().clone(), []
    moments = moments + DAMPING * moments.diagonal().mean() * torch.eye(len(moments))
    for place in range(len(row)):
        inverse = torch.linalg.inv(moments[place:, place:])
        found.append((row[place] / scale).round().clamp(-largest, largest) * scale)
        row[place:] -= (row[place] - found[-1]) / inverse[0, 0] * inverse[0]
    return torch.stack(found).float()


@pytest.mark.parametrize(("groups", "blocks", "largest"), [(1, 1, 127), (2, 1, 64), (1, 3, 64), (2, 3, 127)])
def test_rounding_makes_up_for_errors_as_the_slow_formula_does(groups, blocks, largest):
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(4, 6, 2, 2, generator=generator)
    count = weight[0].numel() // blocks
    inputs = 0.1 * torch.randn(groups * blocks, 500, count, generator=generator).double()
    inputs += torch.randn(groups * blocks, 500, 1, generator=generator).double()  # alike, as pixels beside each other
    moments = inputs.mT @ inputs
    found, scales = rounded(weight, moments, groups, largest)
    steps = found / scales.view(-1, 1, 1, 1)
    assert torch.allclose(steps, steps.round(), atol=1e-4) and steps.abs().max() <= largest + 1e-4
    for output, row in enumerate(weight.flatten(1)):
        for block in range(blocks):
            part, place = slice(block * count, (block + 1) * count), output // (4 // groups) * blocks + block
            slow = rounded_slowly(row[part], moments[place], (row.abs().max() / largest).double(), largest)
            assert torch.allclose(found[output].flatten()[part], slow, atol=1e-6)
