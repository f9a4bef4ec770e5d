"""Split models: F never changes, P does, the codebook is used as the settings say; the layers that P may have."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

from benchmarks_toybox_ilab.tables.normalization import IMAGENET_MEAN, IMAGENET_STD
from crumb_avalanche.models import extraction
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.layers import (
    AveragingConv2d,
    CoinDropout,
    coin_mask,
    replace_dropout,
    step_flops,
)
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import weights_hash


def with_batch_norm():
    extractor = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU()
    )
    plastic = nn.Sequential(
        nn.Conv2d(8, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return SplitModel(extractor, plastic.append(nn.Linear(8, 4)), "5", image_size=16)


def train_steps(model, images, steps=3):
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1
    )
    labels = torch.arange(len(images)) % model.n_classes
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def test_training_never_changes_f(make_model, pixels):
    for model in (make_model(), with_batch_norm()):
        before, plastic = (
            weights_hash(model.feature_extractor),
            weights_hash(model.plastic_layers),
        )
        alone = model.features(pixels[:1])
        train_steps(model, pixels)
        assert (
            weights_hash(model.feature_extractor) == before
            and weights_hash(model.plastic_layers) != plastic
        )
        assert not any(
            parameter.requires_grad
            for parameter in model.feature_extractor.parameters()
        )
        assert model.training and model.plastic_layers.training
        assert not any(module.training for module in model.feature_extractor.modules())
        # In evaluation mode an image's map does not depend on the others of its batch.
        torch.testing.assert_close(model.features(pixels)[:1], alone)
    assert int(model.plastic_layers[1].num_batches_tracked) == 3  # P's does move


def test_shapes_that_do_not_fit_are_errors(model, pixels):
    assert model.map_shape == (8, 4, 4) == tuple(model.extract(pixels).shape[1:])
    assert torch.equal(
        model.pixels((pixels / 255 - model.pixel_mean) / model.pixel_std), pixels
    )
    flat = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
    with pytest.raises(
        ValueError, match=r"gives \(1, 4\) for one image; a feature map has four axes"
    ):
        SplitModel(flat, nn.Sequential(nn.Linear(4, 2)), "0", image_size=16)
    with pytest.raises(
        ValueError, match="8 channels, which codebook_dim=3 does not divide"
    ):
        SplitModel(
            model.feature_extractor,
            model.plastic_layers,
            "head",
            codebook=Codebook(4, 3),
            image_size=16,
        )


def test_forward_goes_through_the_codebook_as_the_two_settings_say(model, pixels):
    feature_map = model.features(pixels)
    direct, quantized = (
        model.plastic_layers(feature_map),
        model.plastic_layers(model.codebook(feature_map)),
    )
    assert not torch.allclose(direct, quantized)
    # The paper: codebook-out in training, direct in inference.
    assert torch.equal(model.train()(pixels), quantized)
    assert torch.equal(model.eval()(pixels), direct)
    model.quantized_training, model.quantized_evaluation = False, True
    assert torch.equal(model.train()(pixels), direct)
    assert torch.equal(model.eval()(pixels), quantized)
    assert model.stopwatch.seconds.keys() == {"features", "search", "plastic"}


@pytest.mark.parametrize(("name", "size"), [("small_cnn", 64), ("squeezenet1_0", 96)])
def test_a_map_has_the_same_bits_alone_and_in_any_batch(name, size):
    model = split_backbone(
        name, weights=None, n_classes=4, image_size=size, codebook=None
    )
    pixels = torch.randint(
        0,
        256,
        (9, 3, size, size),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(0),
    )
    together = model.extract(pixels)  # eight and one
    assert (
        together.is_contiguous(memory_format=torch.channels_last)
        and not together.is_inference()
    )
    for part in (slice(0, 1), slice(8, 9), slice(2, 7)):
        assert torch.equal(together[part], model.extract(pixels[part]))
    for dtype in (torch.float64, torch.float16):
        other = model.normalized(pixels[:2]).to(dtype)
        assert torch.equal(model.extract(other), model.extract(other.float()))


def test_the_plastic_layers_take_a_large_batch_in_parts(model):
    sizes = []
    hook = model.plastic_layers.register_forward_hook(
        lambda layer, given, made: sizes.append(len(made))
    )
    maps = torch.rand(50, *model.map_shape)
    logits = model.classify(maps)
    hook.remove()
    assert sizes == [17, 17, 16]
    whole = model.plastic_layers(maps)
    torch.testing.assert_close(logits, whole, atol=1e-5, rtol=1e-5)
    weights = list(model.plastic_layers.parameters())
    gradients, expected = (
        torch.autograd.grad(values.square().mean(), weights)
        for values in (logits, whole)
    )
    torch.testing.assert_close(gradients, expected, atol=1e-5, rtol=1e-4)
    mixing = with_batch_norm().train()  # sees the whole batch in training
    maps = torch.rand(50, *mixing.map_shape)
    expected = copy.deepcopy(mixing).plastic_layers(maps)
    assert torch.equal(mixing.classify(maps), expected)


def test_a_map_hook_gets_map_and_codes_of_every_training_pass(model, pixels):
    records, others = [], []
    handle, other = (
        model.register_map_hook(records.append),
        model.register_map_hook(others.append),
    )
    model.eval()(pixels)
    assert not records
    model.train()(pixels)
    assert records[0] is others[0] and records[0].images is pixels
    assert (
        torch.equal(records[0].feature_map, model.features(pixels))
        and not records[0].feature_map.requires_grad
    )
    assert torch.equal(records[0].codes, model.codebook.encode(records[0].feature_map))
    model.quantized_training = False
    model(pixels[:2])
    assert len(records[1].feature_map) == 2 and records[1].codes is None
    handle.remove()
    model(pixels)
    assert len(records) == 2 and len(others) == 3
    other.remove()
    assert not model._map_hooks


@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]
)
def test_copies_are_whole_and_have_no_hooks(model, pixels, clone):
    model.fold_feature_scale(model.features(pixels))
    hook = model.register_map_hook(lambda record: None)
    twin = clone(model)
    assert not twin._map_hooks and len(model._map_hooks) == 1
    hook.remove()
    assert weights_hash(twin) == weights_hash(model) and torch.equal(
        twin.train()(pixels), model.train()(pixels)
    )
    train_steps(twin, pixels)
    assert weights_hash(twin.plastic_layers) != weights_hash(model.plastic_layers)


def test_reset_head(model, pixels):
    below, old = (
        weights_hash(model.plastic_layers.conv),
        model.plastic_layers.head.weight,
    )
    for count in (9, 4):
        model.reset_head(count)
        assert model.n_classes == count and model(pixels).shape == (6, count)
    assert (
        not torch.equal(model.plastic_layers.head.weight, old)
        and model.plastic_layers.head.weight.requires_grad
    )
    assert weights_hash(model.plastic_layers.conv) == below
    convolution = nn.Sequential(
        nn.ReLU(), nn.Conv2d(8, 5, 3, padding=1)
    )  # a number for a name
    plastic = nn.Sequential(convolution, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = SplitModel(nn.Conv2d(3, 8, 3), plastic, "0.1", image_size=16)
    model.reset_head(7)
    assert model.n_classes == 7 and model(pixels).shape == (6, 7)
    assert (plastic[0][1].kernel_size, plastic[0][1].padding) == ((3, 3), (1, 1))


def test_folding_multiplies_everything_below_the_head_where_p_scales(
    model, make_model, pixels
):
    maps, logits = model.features(pixels), model.eval()(pixels)
    bias = model.plastic_layers.head.bias.detach().clone()
    factor = model.fold_feature_scale(maps)
    assert (
        factor == pytest.approx(14 / float(maps[maps > 0].std())) and factor > 2
    )  # 14 as the reference's maps
    # The head itself is left alone: logits are multiplied, but for its bias.
    assert torch.equal(model.plastic_layers.head.bias, bias)
    torch.testing.assert_close(
        model(pixels) - bias, factor * (logits - bias), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(
        model.extract(pixels), maps
    )  # what a cache keeps does not change
    torch.testing.assert_close(
        model.features(maps), factor * maps
    )  # its maps pass for images
    other = make_model(seed=1)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(pixels), model(pixels)) and torch.equal(
        model(maps), model(pixels)
    )
    with pytest.raises(ValueError, match="the feature maps are constant"):
        model.fold_feature_scale(torch.zeros(2, 8, 4, 4))
    normalising = with_batch_norm()
    with torch.no_grad():
        normalising.plastic_layers[1].running_mean.fill_(0.5)
    before = weights_hash(normalising)
    assert normalising.train().fold_feature_scale(normalising.features(pixels)) == 1.0
    assert weights_hash(normalising) == before and normalising.training
    whole = SplitModel(
        nn.Identity(),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        "0",
    )
    assert whole.fold_feature_scale(whole.features(pixels)) == 1.0, (
        "the maps are images"
    )


def test_precision(model, pixels, monkeypatch):
    exact = model.eval()(pixels)
    for there, bf16 in ((True, True), (True, False), (False, True)):
        monkeypatch.setattr(
            torch.backends.mkldnn, "is_available", lambda value=there: value
        )
        monkeypatch.setattr(
            torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda value=bf16: value
        )
        assert extraction.is_quick_in_bf16(torch.device("cpu")) == (there and bf16)
    assert extraction.is_quick_in_bf16(torch.device("cuda"))
    rough = model.set_precision("bf16")(pixels)
    assert rough.dtype == model.features(
        pixels
    ).dtype == torch.float32 and not torch.equal(rough, exact)
    torch.testing.assert_close(rough, exact, rtol=0.1, atol=0.1)
    with pytest.raises(ValueError, match="precision is 'fp8'; use one of fp32, bf16"):
        model.set_precision("fp8")
    with pytest.warns(
        UserWarning, match="no instructions for bf16 .* --precision fp32"
    ):
        model.set_precision("bf16")


def test_time_goes_to_the_outer_part_and_an_error_ends_it(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(extraction.time, "perf_counter", lambda: now[0])
    watch = extraction.Stopwatch()
    with pytest.raises(KeyError), watch.measure("replay"):
        with watch.measure("plastic"):
            now[0] += 2
        raise KeyError
    now[0] += 8
    with watch.measure("plastic"):
        now[0] += 4
    assert dict(watch.seconds) == {"replay": 2.0, "plastic": 4.0}


@pytest.mark.parametrize(
    ("images", "mean", "std", "words"),
    [
        (
            lambda pixels: pixels.float(),
            [0.5],
            [0.5],
            r"values up to 25\d, where white is expected .*divide by 255",
        ),
        (
            lambda pixels: pixels / 255,
            IMAGENET_MEAN,
            IMAGENET_STD,
            r"from 0.0 to 1.0, where black .* -2.1 .* Normalize\(\[",
        ),
        (lambda pixels: pixels, IMAGENET_MEAN, IMAGENET_STD, None),
        (lambda pixels: pixels.float(), [0.0], [1 / 255], None),
        (lambda pixels: pixels / 255, [0.0], [1.0], None),
        (lambda pixels: (pixels / 255 - 0.5) / 0.5, IMAGENET_MEAN, IMAGENET_STD, None),
        (
            lambda pixels: torch.full((6, 3, 16, 16), 0.5),
            IMAGENET_MEAN,
            IMAGENET_STD,
            None,
        ),  # grey and normalised
    ],
)
def test_float_images_that_are_not_normalised_give_one_warning(
    model, pixels, images, mean, std, words
):
    model.set_normalization(mean, std)._range_checked = False
    if words is not None:
        with pytest.warns(UserWarning, match=words) as warned:
            model.features(images(pixels))
        assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.features(images(pixels))


def gradients(head, maps, wanted):
    """Averaged logits, and the gradients of their product with ``wanted`` in maps, weights and biases."""
    maps = maps.clone().requires_grad_()
    logits = head(maps).mean((2, 3))
    return logits, *torch.autograd.grad(
        (logits * wanted).sum(), [maps, head.weight, head.bias]
    )


def test_it_is_the_average_of_the_convolution():
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(3, 8, 5, 4, generator=generator, dtype=torch.float64)
    wanted = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    head = AveragingConv2d(8, 6).double()
    plain = nn.Conv2d(8, 6, 1).double()
    plain.load_state_dict(head.state_dict())
    assert head(maps).shape == (3, 6, 1, 1)
    for ours, theirs in zip(
        gradients(head, maps, wanted), gradients(plain, maps, wanted), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_squeezenet_has_it_unless_a_relu_or_a_larger_kernel_stands_between():
    for settings in ({}, {"relu_logits": True}, {"head_kernel": 3}):
        model = split_backbone(
            "squeezenet1_0", None, n_classes=4, image_size=64, **settings, codebook=None
        )
        assert isinstance(model.plastic_layers.head, AveragingConv2d) == (not settings)
        model.reset_head(7)
        assert isinstance(model.plastic_layers.head, AveragingConv2d) == (not settings)
        assert model.n_classes == 7


def test_values_are_doubled_or_dropped_and_so_are_their_gradients():
    ones = torch.ones(6, 16, 7, 5)
    layouts = (
        ones,
        ones.contiguous(memory_format=torch.channels_last),
        ones.permute(3, 0, 2, 1),
        ones.double(),
    )
    for values in (*layouts, ones.flatten()[:1003]):  # no multiple of eight
        values = values.clone().requires_grad_()
        with torch.random.fork_rng():
            expected = values * coin_mask(values)
        dropped = CoinDropout()(values)
        assert torch.equal(dropped, expected)
        assert (
            set(dropped.unique().tolist()) == {0.0, 2.0}
            and dropped.stride() == values.stride()
        )
        assert (
            0.4 < (dropped > 0).double().mean() < 0.6 and dropped.dtype == values.dtype
        )
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
    assert kinds == [CoinDropout, CoinDropout, nn.Dropout2d] and (
        network[0].p,
        network[1][1].p,
    ) == (0.3, 0.5)


def test_operations_of_a_step_by_hand():
    extractor = nn.Conv2d(3, 8, 3, stride=2, padding=1)  # 16 pixels -> 8x8
    plastic = nn.Sequential(
        nn.Conv2d(8, 4, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 5),
    )
    model = SplitModel(extractor, plastic, "3", image_size=16).train()
    # Two operations for a product and its sum; two passes more for the gradients.
    products = 4 * 8 * 9 * 64 + 4 * 5
    state = torch.get_rng_state()
    assert step_flops(model) == (2 * 8 * 3 * 9 * 64, 3 * 2 * products)
    assert model.training and plastic[3].weight.grad is None
    assert torch.equal(torch.get_rng_state(), state)
