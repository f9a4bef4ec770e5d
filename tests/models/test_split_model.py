"""Split models: F never changes, P does, the codebook is used as the settings say."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

from benchmarks_toybox_ilab.tables.normalization import IMAGENET_MEAN, IMAGENET_STD
from crumb_avalanche.models import extraction
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.layers import (
    AveragingConv2d,
    CentredLinear,
    CoinDropout,
    coin_mask,
    head_like,
    replace_dropout,
    step_flops,
)
from crumb_avalanche.models.split_backbone import split_backbone
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


@pytest.fixture(params=["plain", "batch norm"])
def trained(request, make_model, pixels):
    """A model after three steps, as it was before, and F's map of an image then."""
    model = make_model() if request.param == "plain" else with_batch_norm()
    before = copy.deepcopy(model)
    map_alone = model.features(pixels[:1])
    train_steps(model, pixels)
    return model, before, map_alone


def test_training_never_changes_f(trained):
    model, before, _ = trained
    extractor = model.feature_extractor
    assert weights_hash(extractor) == weights_hash(before.feature_extractor)
    assert not any(weight.requires_grad for weight in extractor.parameters())
    assert not any(module.training for module in extractor.modules())


def test_training_changes_p(trained):
    model, before, _ = trained
    assert model.training
    assert model.plastic_layers.training
    assert weights_hash(model.plastic_layers) != weights_hash(before.plastic_layers)


def test_a_map_does_not_depend_on_its_batch(trained, pixels):
    model, _, map_alone = trained
    torch.testing.assert_close(model.features(pixels)[:1], map_alone)


def test_batch_norm_of_p_moves(pixels):
    model = with_batch_norm()
    train_steps(model, pixels, steps=3)
    assert int(model.plastic_layers[1].num_batches_tracked) == 3


def test_the_shape_of_a_map(model, pixels):
    assert model.map_shape == (8, 4, 4)
    assert model.extract(pixels).shape == (6, 8, 4, 4)


def test_pixels_come_back_from_normalised_images(model, pixels):
    normalised = (pixels / 255 - model.pixel_mean) / model.pixel_std
    assert torch.equal(model.pixels(normalised), pixels)


@pytest.mark.parametrize(("level", "pixel"), [(-0.5, 0), (127.5, 128), (255.5, 255)])
def test_half_a_level_is_rounding(model, level, pixel):
    model.set_normalization([0], [1 / 255])
    assert model.pixels(torch.full((1, 3, 2, 2), level)).unique().tolist() == [pixel]


@pytest.mark.parametrize("level", [-0.6, 255.6, float("nan")])
def test_levels_out_of_range(model, level):
    model.set_normalization([0], [1 / 255])
    with pytest.raises(ValueError, match=r"pixels would be from .* not 0 to 255"):
        model.pixels(torch.full((1, 3, 2, 2), level))


def test_f_without_maps():
    flat = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
    words = r"gives \(1, 4\) for one image; a feature map has four axes"
    with pytest.raises(ValueError, match=words):
        SplitModel(flat, nn.Sequential(nn.Linear(4, 2)), "0", image_size=16)


def test_a_codebook_that_does_not_fit(model):
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


@pytest.mark.parametrize(("training", "takes"), [(True, True), (False, False)])
def test_forward_takes_the_codebook_in_training(model, pixels, training, takes):
    """The paper: codebook-out in training, direct in inference."""
    feature_map = model.features(pixels)
    expected = model.codebook(feature_map) if takes else feature_map
    logits = model.train(training)(pixels)
    assert torch.equal(logits, model.plastic_layers(expected))


@pytest.mark.parametrize(("training", "takes"), [(True, False), (False, True)])
def test_settings_change_what_forward_takes(model, pixels, training, takes):
    model.quantized_training = False
    model.quantized_evaluation = True
    feature_map = model.features(pixels)
    expected = model.codebook(feature_map) if takes else feature_map
    logits = model.train(training)(pixels)
    assert torch.equal(logits, model.plastic_layers(expected))


def test_direct_and_quantized_differ(model, pixels):
    feature_map = model.features(pixels)
    assert not torch.allclose(feature_map, model.codebook(feature_map))


def test_the_parts_that_are_timed(model, pixels):
    model.train()(pixels)
    assert model.stopwatch.seconds.keys() == {"features", "search", "plastic"}


@pytest.fixture(params=[("small_cnn", 64), ("squeezenet1_0", 96)], ids=str)
def extraction_of(request):
    """A model, and nine images."""
    name, size = request.param
    model = split_backbone(
        name, weights=None, n_classes=4, image_size=size, codebook=None
    )
    shape = (9, 3, size, size)
    random = torch.Generator().manual_seed(0)
    return model, torch.randint(0, 256, shape, dtype=torch.uint8, generator=random)


@pytest.mark.parametrize("batch", [slice(0, 1), slice(8, 9), slice(2, 7)], ids=str)
def test_a_map_has_the_same_bits_in_any_batch(extraction_of, batch):
    model, pixels = extraction_of
    maps = model.extract(pixels)  # eight and one
    assert torch.equal(maps[batch], model.extract(pixels[batch]))


def test_maps_are_usual_tensors(extraction_of):
    model, pixels = extraction_of
    maps = model.extract(pixels)
    assert maps.is_contiguous(memory_format=torch.channels_last)
    assert not maps.is_inference()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_images_of_other_floats(extraction_of, dtype):
    model, pixels = extraction_of
    images = model.normalized(pixels[:2]).to(dtype)
    assert torch.equal(model.extract(images), model.extract(images.float()))


def test_p_takes_a_large_batch_in_parts(model):
    sizes = []
    hook = model.plastic_layers.register_forward_hook(
        lambda layer, inputs, logits: sizes.append(len(logits))
    )
    model.classify(torch.rand(50, *model.map_shape))
    hook.remove()
    assert sizes == [17, 17, 16]


def test_parts_give_the_logits_of_all(model):
    maps = torch.rand(50, *model.map_shape)
    expected = model.plastic_layers(maps)
    torch.testing.assert_close(model.classify(maps), expected, atol=1e-5, rtol=1e-5)


def test_parts_give_the_gradients_of_all(model):
    maps = torch.rand(50, *model.map_shape)
    weights = list(model.plastic_layers.parameters())
    loss = model.classify(maps).square().mean()
    expected_loss = model.plastic_layers(maps).square().mean()
    gradients = torch.autograd.grad(loss, weights)
    expected = torch.autograd.grad(expected_loss, weights)
    torch.testing.assert_close(gradients, expected, atol=1e-5, rtol=1e-4)


def test_batch_norm_sees_all_in_training():
    model = with_batch_norm().train()
    maps = torch.rand(50, *model.map_shape)
    expected = copy.deepcopy(model).plastic_layers(maps)
    assert torch.equal(model.classify(maps), expected)


@pytest.fixture
def records(model):
    """What a map hook of the model is called with."""
    calls = []
    model.register_map_hook(calls.append)
    return calls


def test_a_map_hook_gets_map_and_codes(model, pixels, records):
    model.train()(pixels)
    (record,) = records
    assert record.images is pixels
    assert torch.equal(record.feature_map, model.features(pixels))
    assert not record.feature_map.requires_grad
    assert torch.equal(record.codes, model.codebook.encode(record.feature_map))


def test_a_map_hook_of_a_direct_pass(model, pixels, records):
    model.quantized_training = False
    model.train()(pixels[:2])
    (record,) = records
    assert len(record.feature_map) == 2
    assert record.codes is None


def test_a_map_hook_in_evaluation(model, pixels, records):
    model.eval()(pixels)
    assert records == []


def test_map_hooks_share_a_record_until_removed(model, pixels, records):
    references = []
    handle = model.register_map_hook(references.append)
    model.train()(pixels)
    assert records[0] is references[0]
    handle.remove()
    model(pixels)
    assert len(records) == 2
    assert len(references) == 1


@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]
)
def test_copies_have_no_hooks(model, pixels, clone):
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


@pytest.mark.parametrize("n_classes", [9, 4])
def test_reset_head(model, pixels, n_classes):
    before = copy.deepcopy(model.plastic_layers)
    model.reset_head(n_classes)
    assert model.n_classes == n_classes
    assert model(pixels).shape == (6, n_classes)
    assert model.plastic_layers.head.weight.requires_grad
    assert not torch.equal(model.plastic_layers.head.weight, before.head.weight)
    assert weights_hash(model.plastic_layers.conv) == weights_hash(before.conv)


def test_reset_a_convolution_named_by_a_number(pixels):
    convolution = nn.Sequential(nn.ReLU(), nn.Conv2d(8, 5, 3, padding=1))
    plastic = nn.Sequential(convolution, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = SplitModel(nn.Conv2d(3, 8, 3), plastic, "0.1", image_size=16)
    model.reset_head(7)
    assert model.n_classes == 7
    assert model(pixels).shape == (6, 7)
    assert plastic[0][1].kernel_size == (3, 3)
    assert plastic[0][1].padding == (1, 1)


SETTINGS_OF_A_CONVOLUTION = dict(
    kernel_size=(3, 1),
    stride=2,
    padding=2,
    dilation=(2, 1),
    groups=2,
    bias=False,
    padding_mode="circular",
)


@pytest.mark.parametrize(
    ("old", "expected"),
    [
        (
            nn.Conv2d(8, 4, **SETTINGS_OF_A_CONVOLUTION),
            nn.Conv2d(8, 6, **SETTINGS_OF_A_CONVOLUTION),
        ),
        (nn.Linear(8, 4, bias=False), nn.Linear(8, 6, bias=False)),
        (CentredLinear(8, 4, bias=False), CentredLinear(8, 6, bias=False)),
        (AveragingConv2d(8, 4), AveragingConv2d(8, 6)),
    ],
    ids=["convolution", "linear", "centred", "averaging"],
)
def test_a_new_head_has_the_settings_of_the_old_one(old, expected):
    head = head_like(old, 6)
    assert type(head) is type(expected)
    assert repr(head) == repr(expected)  # which lists the settings


def test_folding_scales_to_the_reference(model, pixels):
    maps = model.features(pixels)
    factor = model.fold_feature_scale(maps)
    assert factor == pytest.approx(14 / float(maps[maps > 0].std()))
    assert factor > 2


def test_folding_multiplies_logits_but_for_the_bias(model, pixels):
    logits = model.eval()(pixels)
    bias = model.plastic_layers.head.bias.detach().clone()
    factor = model.fold_feature_scale(model.features(pixels))
    assert torch.equal(model.plastic_layers.head.bias, bias)
    expected = factor * (logits - bias)
    torch.testing.assert_close(model(pixels) - bias, expected, rtol=1e-4, atol=1e-4)


def test_folding_leaves_what_a_cache_keeps(model, pixels):
    """Its maps pass for images."""
    maps = model.features(pixels)
    factor = model.fold_feature_scale(maps)
    torch.testing.assert_close(model.extract(pixels), maps)
    torch.testing.assert_close(model.features(maps), factor * maps)
    assert torch.equal(model(maps), model(pixels))


def test_the_folded_scale_is_part_of_the_state(model, make_model, pixels):
    model.eval().fold_feature_scale(model.features(pixels))
    second = make_model(seed=1)
    second.load_state_dict(model.state_dict())
    assert torch.equal(second.eval()(pixels), model(pixels))


def test_constant_maps_cannot_be_folded(model):
    with pytest.raises(ValueError, match="the feature maps are constant"):
        model.fold_feature_scale(torch.zeros(2, 8, 4, 4))


def test_layers_that_set_their_own_scale(pixels):
    model = with_batch_norm()
    with torch.no_grad():
        model.plastic_layers[1].running_mean.fill_(0.5)
    before = weights_hash(model)
    assert model.train().fold_feature_scale(model.features(pixels)) == 1.0
    assert weights_hash(model) == before
    assert model.training


def test_images_are_not_scaled(pixels):
    """F is empty, so the maps are images."""
    plastic = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = SplitModel(nn.Identity(), plastic, "0")
    assert model.fold_feature_scale(model.features(pixels)) == 1.0


@pytest.mark.parametrize(
    ("has_mkldnn", "has_bf16", "is_quick"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_cpus_that_are_quick_in_bf16(monkeypatch, has_mkldnn, has_bf16, is_quick):
    mkldnn = torch.ops.mkldnn
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: has_mkldnn)
    monkeypatch.setattr(mkldnn, "_is_mkldnn_bf16_supported", lambda: has_bf16)
    assert extraction.is_quick_in_bf16(torch.device("cpu")) == is_quick


def test_gpus_are_quick_in_bf16():
    assert extraction.is_quick_in_bf16(torch.device("cuda"))


def test_bf16_rounds(model, pixels):
    exact = model.eval()(pixels)
    rounded = model.set_precision("bf16")(pixels)
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.1, atol=0.1)
    assert rounded.dtype == torch.float32
    assert model.features(pixels).dtype == torch.float32


def test_unknown_precisions(model):
    with pytest.raises(ValueError, match="precision is 'fp8'; use one of fp32, bf16"):
        model.set_precision("fp8")


def test_bf16_on_a_slow_cpu(model, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    words = "no instructions for bf16 .* --precision fp32"
    with pytest.warns(UserWarning, match=words):
        model.set_precision("bf16")


def test_time_goes_to_the_outer_block(monkeypatch):
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
def test_odd_images_are_warned_of_once(model, pixels, images, mean, std, words):
    model.set_normalization(mean, std)._range_checked = False
    if words is not None:
        with pytest.warns(UserWarning, match=words) as warned:
            model.features(images(pixels))
        assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.features(images(pixels))


def gradients(head, maps, factors):
    """Averaged logits, and gradients of their product with factors.

    Those are gradients in maps, weights and biases.
    """
    maps = maps.clone().requires_grad_()
    logits = head(maps).mean((2, 3))
    loss = (logits * factors).sum()
    return [logits, *torch.autograd.grad(loss, [maps, head.weight, head.bias])]


def test_averaging_convolution_is_the_average():
    random = torch.Generator().manual_seed(0)
    maps = torch.randn(3, 8, 5, 4, generator=random, dtype=torch.float64)
    factors = torch.randn(3, 6, generator=random, dtype=torch.float64)
    head = AveragingConv2d(8, 6).double()
    plain = nn.Conv2d(8, 6, 1).double()
    plain.load_state_dict(head.state_dict())
    assert head(maps).shape == (3, 6, 1, 1)
    expected = gradients(plain, maps, factors)
    torch.testing.assert_close(gradients(head, maps, factors), expected)


@pytest.mark.parametrize(
    ("settings", "is_averaging"),
    [({}, True), ({"relu_logits": True}, False), ({"head_kernel": 3}, False)],
)
def test_squeezenets_that_average(settings, is_averaging):
    """Unless a ReLU or a larger kernel stands between; also after a reset."""
    model = split_backbone(
        "squeezenet1_0", None, n_classes=4, image_size=64, **settings, codebook=None
    )
    assert isinstance(model.plastic_layers.head, AveragingConv2d) == is_averaging
    model.reset_head(7)
    assert isinstance(model.plastic_layers.head, AveragingConv2d) == is_averaging
    assert model.n_classes == 7


ONES = torch.ones(6, 16, 7, 5)
LAYOUTS = {
    "contiguous": ONES,
    "channels last": ONES.contiguous(memory_format=torch.channels_last),
    "permuted": ONES.permute(3, 0, 2, 1),
    "double": ONES.double(),
    "no multiple of eight": ONES.flatten()[:1003],
}


@pytest.mark.parametrize("values", LAYOUTS.values(), ids=LAYOUTS)
def test_values_are_doubled_or_dropped(values):
    with torch.random.fork_rng():
        expected = values * coin_mask(values)
    dropped = CoinDropout()(values)
    assert torch.equal(dropped, expected)
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert 0.4 < (dropped > 0).double().mean() < 0.6
    assert dropped.stride() == values.stride()
    assert dropped.dtype == values.dtype


@pytest.mark.parametrize("values", LAYOUTS.values(), ids=LAYOUTS)
def test_gradients_are_doubled_or_dropped(values):
    values = values.clone().requires_grad_()
    dropped = CoinDropout()(values)
    dropped.sum().backward()
    assert torch.equal(values.grad, dropped)


def test_coins_are_fair_and_independent():
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
    torch.manual_seed(3)
    dropped = CoinDropout(p).train(training)(values)
    torch.manual_seed(3)
    assert torch.equal(dropped, nn.Dropout(p).train(training)(values))


def test_every_dropout_is_replaced():
    inner = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    network = replace_dropout(nn.Sequential(nn.Dropout(0.3), inner))
    assert type(network[0]) is CoinDropout
    assert network[0].p == 0.3
    assert type(network[1][1]) is CoinDropout
    assert network[1][1].p == 0.5


def test_other_dropouts_stay():
    network = replace_dropout(nn.Sequential(nn.Dropout2d()))
    assert type(network[0]) is nn.Dropout2d


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
