"""Split models: F never changes, P does, and the codebook is used as the settings say."""

import copy
import os
import pickle
import re
import warnings
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

from crumb_avalanche.models.backbone_names import PIXEL_MEAN, PIXEL_STD
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.extraction import is_quick_in_bf16
from crumb_avalanche.models.layers import REFERENCE_SCALE
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import weights_hash


def normalised(pixels):
    """The ImageNet normalisation, from its definition."""
    mean, std = torch.tensor(PIXEL_MEAN).view(3, 1, 1), torch.tensor(PIXEL_STD).view(3, 1, 1)
    return (pixels.float() / 255 - mean) / std


def with_batch_norm():
    extractor = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU())
    parts = OrderedDict(
        conv=nn.Conv2d(8, 8, 3),
        norm=nn.BatchNorm2d(8),
        relu=nn.ReLU(),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        head=nn.Linear(8, 4),
    )
    return SplitModel(extractor, nn.Sequential(parts), "head", image_size=16)


def train_steps(model, images, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    labels = torch.arange(len(images)) % model.n_classes
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def test_training_never_changes_f(model, pixels):
    parts = model.feature_extractor, model.plastic_layers, model.codebook
    before, plastic, blocks = map(weights_hash, parts)
    train_steps(model, pixels)
    assert weights_hash(model.feature_extractor) == before
    assert weights_hash(model.plastic_layers) != plastic
    assert weights_hash(model.codebook) != blocks
    assert not any(parameter.requires_grad for parameter in model.feature_extractor.parameters())


def test_batch_norm_of_f_keeps_its_statistics(pixels):
    model = with_batch_norm()
    before = weights_hash(model.feature_extractor)
    alone = model.features(pixels[:1])
    train_steps(model, pixels)
    assert weights_hash(model.feature_extractor) == before
    assert int(model.plastic_layers.norm.num_batches_tracked) == 3  # P's does move
    model.train()
    assert model.training and model.plastic_layers.training
    assert not any(module.training for module in model.feature_extractor.modules())
    # In evaluation mode an image's map does not depend on the others of its batch.
    torch.testing.assert_close(model.features(pixels)[:1], alone)


def test_map_shape_is_measured(model, pixels):
    assert model.map_shape == (8, 4, 4) == tuple(model.extract(pixels).shape[1:])
    with pytest.raises(ValueError, match=re.escape("gives (1, 4) for one image; a feature map has four axes")):
        flat = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
        SplitModel(flat, nn.Sequential(nn.Linear(4, 2)), "0", image_size=16)
    with pytest.raises(ValueError, match="8 channels, which codebook_dim=3 does not divide"):
        SplitModel(model.feature_extractor, model.plastic_layers, "head", codebook=Codebook(4, 3), image_size=16)


def test_pixels_and_normalised_images_are_the_same_thing(model, pixels):
    torch.testing.assert_close(model.extract(normalised(pixels)), model.extract(pixels), rtol=1e-5, atol=1e-6)
    assert torch.equal(model.pixels(normalised(pixels)), pixels)
    assert model.pixels(pixels) is pixels


def test_forward_goes_through_the_codebook_as_the_two_settings_say(model, pixels):
    feature_map = model.features(pixels)
    direct, quantized = model.plastic_layers(feature_map), model.plastic_layers(model.codebook(feature_map))
    assert not torch.allclose(direct, quantized)
    # The paper: codebook-out in training, direct in inference.
    assert torch.equal(model.train()(pixels), quantized)
    assert torch.equal(model.eval()(pixels), direct)
    model.quantized_training, model.quantized_evaluation = False, True
    assert torch.equal(model.train()(pixels), direct)
    assert torch.equal(model.eval()(pixels), quantized)


@pytest.mark.parametrize(("name", "size"), [("small_cnn", 64), ("squeezenet1_0", 224), ("squeezenet1_1", 96)])
def test_a_map_has_the_same_bits_alone_and_in_any_batch(name, size):
    model = split_backbone(name, weights=None, n_classes=4, image_size=size, codebook=None)
    pixels = torch.randint(0, 256, (9, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    together = model.extract(pixels)  # eight and one
    assert together.is_contiguous(memory_format=torch.channels_last) and not together.is_inference()
    for part in (slice(0, 1), slice(7, 8), slice(8, 9), slice(2, 7)):
        assert torch.equal(together[part], model.extract(pixels[part]))


def test_a_compiled_front_is_what_extracts(model, pixels, monkeypatch):
    calls, plain = [], model.extract(pixels)

    def compiled(module, **options):
        assert module is model.feature_extractor
        return lambda images: calls.append(len(images)) or module(images)

    monkeypatch.setattr(torch, "compile", compiled)
    assert model.compile() is model and model.runtime.name == "compiled"
    assert torch.equal(model.extract(pixels), plain) and calls == [len(pixels)]
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert twin.runtime.name == "torch"


def test_a_front_without_parts_of_its_own_is_scaled_as_any(pixels):
    convolution = nn.Conv2d(3, 8, 3, stride=2)
    plastic = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    factors = []
    for front in (convolution, nn.Sequential(convolution)):
        model = SplitModel(front, copy.deepcopy(plastic), "2", image_size=16)
        factors.append(model.fold_feature_scale(model.features(pixels)))
    assert factors[0] == factors[1] != 1.0
    whole = SplitModel(nn.Identity(), nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), "0")
    assert whole.fold_feature_scale(whole.features(pixels)) == 1.0


@pytest.mark.parametrize("training", [True, False])
def test_the_plastic_layers_take_a_large_batch_in_parts(model, training):
    model.train(training)
    for layer in model.plastic_layers.modules():
        layer.p = 0.0  # no dropout
    sizes = []
    hook = model.plastic_layers.register_forward_hook(lambda layer, given, made: sizes.append(len(made)))
    maps = torch.rand(50, *model.map_shape, generator=torch.Generator().manual_seed(0))
    logits = model.classify(maps)
    hook.remove()
    assert sizes == [17, 17, 16]
    whole = model.plastic_layers(maps)
    torch.testing.assert_close(logits, whole, atol=1e-5, rtol=1e-5)
    weights = list(model.plastic_layers.parameters())
    gradients, expected = (torch.autograd.grad(values.square().mean(), weights) for values in (logits, whole))
    torch.testing.assert_close(gradients, expected, atol=1e-5, rtol=1e-4)


def test_batch_norm_of_p_sees_the_whole_batch_in_training():
    model = with_batch_norm()
    maps = torch.rand(50, *model.map_shape, generator=torch.Generator().manual_seed(0))
    expected = copy.deepcopy(model).train().plastic_layers(maps)
    assert torch.equal(model.train().classify(maps), expected)


def test_maps_of_a_cache_pass_for_images(model, pixels):
    model.feature_scale.fill_(3.0)
    maps = model.extract(pixels)
    assert torch.equal(model(maps), model(pixels))
    torch.testing.assert_close(model.features(maps), 3 * maps)


def test_a_map_hook_gets_map_and_codes_of_every_training_pass(model, pixels):
    records, others = [], []
    handle, other = model.register_map_hook(records.append), model.register_map_hook(others.append)
    model.eval()(pixels)
    assert not records
    model.train()(pixels)
    assert records[0] is others[0] and records[0].images is pixels
    assert torch.equal(records[0].feature_map, model.features(pixels)) and not records[0].feature_map.requires_grad
    assert torch.equal(records[0].codes, model.codebook.encode(records[0].feature_map))
    model.quantized_training = False
    model(pixels[:2])
    assert len(records[1].feature_map) == 2 and records[1].codes is None
    handle.remove()
    model(pixels)
    assert len(records) == 2 and len(others) == 3
    other.remove()
    assert not model._map_hooks


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_whole_and_have_no_hooks(model, pixels, clone):
    model.fold_feature_scale(model.features(pixels))
    model.register_map_hook(lambda record: None)
    twin = clone(model)
    assert not twin._map_hooks and len(model._map_hooks) == 1
    model._map_hooks.clear()
    model.train()
    twin.train()
    assert weights_hash(twin) == weights_hash(model)
    assert torch.equal(twin(pixels), model(pixels))
    train_steps(twin, pixels)
    assert weights_hash(twin) != weights_hash(model)
    assert weights_hash(twin.feature_extractor) == weights_hash(model.feature_extractor)


def test_reset_head(model, pixels):
    below = weights_hash(model.plastic_layers.conv)
    old = model.plastic_layers.head.weight
    model.reset_head(9)
    assert model.n_classes == 9 and model(pixels).shape == (6, 9)
    assert model.plastic_layers.head.weight.requires_grad
    model.reset_head(4)
    assert not torch.equal(model.plastic_layers.head.weight, old)
    assert weights_hash(model.plastic_layers.conv) == below
    assert list(model.plastic_layers)[-1] is model.plastic_layers.head  # in the place of the old one


def test_reset_head_of_a_convolution_with_a_number_for_a_name(pixels):
    convolution = nn.Sequential(nn.ReLU(), nn.Conv2d(8, 5, 3, padding=1))
    plastic = nn.Sequential(convolution, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = SplitModel(nn.Conv2d(3, 8, 3), plastic, "0.1", image_size=16)
    model.reset_head(7)
    assert model.n_classes == 7 and model(pixels).shape == (6, 7)
    assert (plastic[0][1].kernel_size, plastic[0][1].padding) == ((3, 3), (1, 1))


def spread(maps):
    return float(maps[maps > 0].std())


def head_input(model, images):
    captured = []
    with model.plastic_layers.head.register_forward_pre_hook(lambda module, inputs: captured.extend(inputs)):
        model.eval()(images)
    return captured[0].detach()


def test_folding_multiplies_everything_below_the_head(model, pixels):
    maps, below, logits = model.features(pixels), head_input(model, pixels), model.eval()(pixels)
    bias = model.plastic_layers.head.bias.detach().clone()
    factor = model.fold_feature_scale(maps)
    assert factor == pytest.approx(REFERENCE_SCALE / spread(maps)) and factor > 2
    assert spread(model.features(pixels)) == pytest.approx(14, rel=1e-4)
    torch.testing.assert_close(head_input(model, pixels), factor * below, rtol=1e-4, atol=1e-5)
    # The head itself is left alone: logits are multiplied, but for its bias.
    assert torch.equal(model.plastic_layers.head.bias, bias)
    torch.testing.assert_close(model(pixels) - bias, factor * (logits - bias), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.extract(pixels), maps)  # what a cache keeps does not change


def test_folding_twice_is_folding_once(model, pixels):
    first = model.fold_feature_scale(model.features(pixels))
    assert model.fold_feature_scale(model.features(pixels)) == pytest.approx(1, rel=1e-4)
    assert float(model.feature_scale) == pytest.approx(first, rel=1e-4)


def test_layers_with_batch_norm_are_not_scaled(pixels):
    model = with_batch_norm()
    with torch.no_grad():  # statistics and parameters as training leaves them
        model.plastic_layers.norm.running_mean.copy_(torch.linspace(-1, 1, 8))
        model.plastic_layers.norm.bias.copy_(torch.linspace(-0.3, 0.7, 8))
    before = weights_hash(model)
    assert model.train().fold_feature_scale(model.features(pixels)) == 1.0
    assert weights_hash(model) == before  # not a bit of it
    assert model.training


def test_folding_compares_passes_that_no_gpu_rounds(model, pixels):
    class OfAGPU(nn.Conv2d):
        """A convolution that rounds its factors as a GPU's do, until it is brought to the CPU."""

        rounds = True

        def forward(self, maps):
            return super().forward(maps.bfloat16().float() if self.rounds else maps)

        def _apply(self, function, recurse=True):
            self.rounds = False
            return super()._apply(function, recurse)

    maps, layer = model.features(pixels), OfAGPU(8, 8, 3, padding=1)
    layer.load_state_dict(model.plastic_layers.conv.state_dict())
    bias = layer.bias.detach().clone()
    model.plastic_layers.conv = layer
    factor = model.fold_feature_scale(maps)
    assert factor == pytest.approx(REFERENCE_SCALE / spread(maps))
    assert layer.rounds and torch.equal(layer.bias, bias * factor)  # the layers themselves stay where they are


def test_folding_constant_maps_is_an_error(model):
    with pytest.raises(ValueError, match="the feature maps are constant"):
        model.fold_feature_scale(torch.zeros(2, 8, 4, 4))


def test_feature_scale_travels_with_the_state_dict(model, make_model, pixels):
    model.fold_feature_scale(model.features(pixels))
    other = make_model(seed=1)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(pixels), model.eval()(pixels))


def test_precision(model, pixels):
    exact = model.eval()(pixels)
    assert model.set_precision("bf16") is model
    rough = model(pixels)
    assert rough.dtype == model.features(pixels).dtype == torch.float32
    assert not torch.equal(rough, exact)
    torch.testing.assert_close(rough, exact, rtol=0.1, atol=0.1)
    with pytest.raises(ValueError, match="precision is 'fp8'; use one of fp32, bf16"):
        model.set_precision("fp8")


@pytest.mark.parametrize("quick", [True, False])
def test_a_cpu_that_is_slow_in_bf16_gives_a_warning(model, monkeypatch, quick):
    monkeypatch.setattr("crumb_avalanche.models.extraction.is_quick_in_bf16", lambda device: quick)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.set_precision("fp32")
        assert not caught
        model.set_precision("bf16")
    said = [str(one.message) for one in caught]
    assert bool(said) is not quick
    assert all("no instructions for bf16" in one and "--precision fp32" in one for one in said)
    assert model.precision == "bf16"


def test_cpu_flags_decide_whether_bf16_is_fast():
    """Compare with the CPU flags of the system, if they are conclusive; oneDNN may be limited to AVX2."""
    assert is_quick_in_bf16(torch.device("cuda"))
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    with_bf16, without = "avx512_bf16" in flags, "avx2" in flags and not flags & {"avx512f", "avx_ne_convert"}
    if os.environ.get("ONEDNN_MAX_CPU_ISA") == "AVX2" and flags:
        with_bf16, without = False, True
    if not with_bf16 and not without:
        pytest.skip("this CPU's flags do not say")
    assert is_quick_in_bf16(torch.device("cpu")) is with_bf16


def test_the_stopwatch_sees_every_part(model, pixels):
    model.train()(pixels)
    seconds = dict(model.stopwatch.seconds)
    assert seconds.keys() == {"features", "search", "plastic"}
    assert all(value > 0 for value in seconds.values())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_float_images_of_another_precision_are_taken(model, pixels, dtype):
    images = normalised(pixels).to(dtype)
    assert torch.equal(model.extract(images), model.extract(images.float()))


def test_float_images_up_to_255_give_one_warning(model, pixels):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.features(pixels)
        model.set_normalization([0.0], [1 / 255]).features(pixels.float())
    other = copy.deepcopy(model).set_normalization([0.5], [0.5])
    other._range_checked = False
    with pytest.warns(UserWarning, match=r"values up to 25\d, where white is expected .*divide by 255") as warned:
        other.features(pixels.float())
        other.features(pixels.float())
    assert len(warned) == 1


@pytest.mark.parametrize(("mean", "std", "black"), [(PIXEL_MEAN, PIXEL_STD, "-2.1"), ([0.5], [0.5], "-1.0")])
def test_float_images_that_are_not_normalised_give_one_warning(model, pixels, mean, std, black):
    def first_features(images, model, *normalization):
        model = copy.deepcopy(model).set_normalization(*normalization)
        model._range_checked = False
        model.features(images)
        return model

    words = rf"from 0.0 to 1.0, where black is expected to be about {black} .* Normalize\(\["
    with pytest.warns(UserWarning, match=words):
        warned = first_features(pixels / 255, model, mean, std)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warned.features(pixels / 255)
        first_features(pixels / 255, model, [0.0], [1.0])
        first_features((pixels / 255 - 0.5) / 0.5, model, mean, std)
        first_features(torch.full_like(pixels, 0.5, dtype=torch.float32), model, mean, std)  # grey and normalised
