"""Backbones of timm by name: eight families keep the contract of ``SplitModel``."""

import copy
import pickle
import re
import sys
from pathlib import Path

import pytest
import timm
import timm_models  # noqa: F401 - registers networks
import torch
from safetensors.torch import save_file

import crumb_avalanche
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.models.backbone_names import full_name, preprocessing_of
from crumb_avalanche.models.backbones import map_channels, split_backbone
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.layers import step_flops
from crumb_avalanche.models.weights import WeightsError

SIDE = 64
# Name; cut; map; grid of the image's locations in it; length of a memory block;
# features of the closed forms.
FAMILIES = {
    "ResNet": ("test_resnet", "layer3", (192, 4, 4), (4, 4), 16, 2 * 192 + 96),
    "ConvNeXt": ("test_convnext", "stages.2", (48, 4, 4), (4, 4), 16, 2 * 48 + 64),
    "MobileNetV3": (
        "mobilenetv3_small_050",
        "blocks.3",
        (24, 4, 4),
        (4, 4),
        12,
        2 * 24 + 1024,
    ),
    "MobileNetV4": (
        "mobilenetv4_conv_small_035",
        "blocks.2",
        (32, 4, 4),
        (4, 4),
        16,
        2 * 32 + 1280,
    ),
    "EfficientNet": (
        "test_efficientnet",
        "blocks.3",
        (48, 4, 4),
        (4, 4),
        16,
        2 * 48 + 256,
    ),
    "RegNet": ("regnetx_002", "s3", (152, 4, 4), (4, 4), 8, 2 * 152 + 368),
    "ViT": ("test_vit", "blocks.4", (64, 1 + 16, 1), (4, 4), 16, 2 * 64 + 64),
    "DINOv2": (
        "small_dinov2",
        "blocks.1",
        (32, 1 + 4 + 64, 1),
        (8, 8),
        16,
        2 * 32 + 32,
    ),
    "Swin": ("small_swin", "layers.2", (64, 4, 4), (4, 4), 16, 2 * 64 + 128),
}


def images(count=3, side=SIDE):
    return torch.randint(
        0,
        256,
        (count, 3, side, side),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(0),
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_keeps_the_contract(name, tmp_path):
    # A network with ten classes, and the model made from its weights, as timm publishes
    # them.
    name, cut, shape, grid, length, features = FAMILIES[name]
    fixed = {"img_size": SIDE} if timm.get_pretrained_cfg(name).fixed_input_size else {}
    network = timm.create_model(name, num_classes=10, **fixed).eval()
    left_out = () if network.pretrained_cfg["num_classes"] else ("head.",)
    weights = {
        name: one
        for name, one in network.state_dict().items()
        if not name.startswith(left_out)
    }
    save_file(weights, tmp_path / "weights.safetensors")
    model = split_backbone(
        f"timm:{name}", tmp_path / "weights.safetensors", n_classes=10, image_size=SIDE
    ).eval()
    model.plastic_layers.head.load_state_dict(network.get_classifier().state_dict())
    pixels = images()

    # It answers as timm's network does on images normalised as timm says.
    config = network.pretrained_cfg
    mean, std = (torch.tensor(config[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        wanted = network((pixels / 255 - mean) / std)
    largest = wanted.abs().max()  # 0.0004 to 66; rounding changes 2e-6 of it
    torch.testing.assert_close(
        model(pixels) / largest, wanted / largest, rtol=0, atol=2e-5
    )
    assert model.interpolation == config["interpolation"]

    # Images -> maps -> codes -> P, with gradients in P only.
    assert (
        model.stages[-1] == cut
        and model.map_shape == shape
        and model.codebook.codebook_dim == length
    )
    maps = model.extract(pixels)
    assert torch.equal(torch.cat([model.extract(one[None]) for one in pixels]), maps)
    calibrate(model, [(one, 0) for one in pixels])
    codes = model.encode(model.features(pixels))
    assert codes.shape == (3, shape[0] // length, *shape[1:])
    model.train()(pixels).sum().backward()
    assert all(weight.grad is None for weight in model.feature_extractor.parameters())
    assert (
        model.plastic_layers.head.weight.grad.abs().sum() > 0
        and model.codebook.blocks.grad.abs().sum() > 0
    )

    # Closed forms, costs, copies.
    model.eval()
    assert model.places(maps).shape == (3, shape[0], *grid)
    moments = FeatureMoments(maps=True, deviations=True)
    assert moments.length(model) == features and moments(model, pixels).isfinite().all()
    assert min(step_flops(model)) > 0
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied.eval()(pixels), model(pixels))


def test_class_token_and_registers_are_no_places_of_the_image():
    model = split_backbone("timm:small_dinov2", None, n_classes=2).eval()
    maps = torch.randn(2, *model.map_shape)
    places = model.places(maps)
    assert torch.equal(places.flatten(2), maps[:, :, 5:, 0])
    other = maps.clone()
    other[:, :, :5] += 1000
    of_map = FeatureMoments(maps=True, deviations=True)
    features, changed = of_map.of_maps(model, maps), of_map.of_maps(model, other)
    assert torch.equal(features[:, :64], changed[:, :64])  # means and deviations
    assert not torch.allclose(
        features[:, 64:], changed[:, 64:]
    )  # the class token, at the head
    torch.testing.assert_close(features[:, :32], places.mean((2, 3)))


def test_preprocessing_is_timms_unless_a_size_is_given():
    name = full_name("timm:test_convnext")
    assert name == "timm:test_convnext.r160_in1k" and full_name(name) == name
    assert (
        full_name("resnet18") == "resnet18" and preprocessing_of("resnet18").size == 224
    )
    expected = preprocessing_of(name)
    assert (expected.size, expected.interpolation, expected.mean) == (
        160,
        "bicubic",
        (0.5, 0.5, 0.5),
    )
    model = split_backbone(name, None, n_classes=2)
    assert (
        model.image_size == 160
        and model.map_shape == (48, 10, 10)
        and model.pixel_std.flatten()[0] == 0.5
    )
    model = split_backbone(
        name,
        None,
        n_classes=2,
        preprocessing={**expected.as_dict(), "interpolation": "bilinear"},
    )
    assert model.interpolation == "bilinear"
    # At other cuts.
    for cut, shape, frozen in (
        (2, (32, 8, 8), 2),
        (0, (3, 64, 64), 0),
        ("stages.2.blocks.0", (48, 4, 4), 1),
    ):
        before = torch.get_rng_state()
        assert map_channels("timm:test_convnext", cut, SIDE) == shape[0]
        assert torch.equal(torch.get_rng_state(), before)
        model = split_backbone(
            "timm:test_convnext", None, n_classes=2, cut_layer=cut, image_size=SIDE
        ).eval()
        assert model.map_shape == shape and len(model.stages) == frozen
        assert model(images()).shape == (3, 2) and (model.codebook is None) == (
            cut == 0
        )


@pytest.mark.parametrize(
    ("name", "cut", "words"),
    [
        ("timm:convnext_ato", None, "no network 'convnext_ato'.*convnext_atto"),
        ("timm:resnet18.nothing", None, "nothing.*resnet18.a1_in1k"),
        (
            "timm:test_convnext",
            "stages.9",
            "cannot be cut after 'stages.9'.*--cut-layer.*stages.0, stages.1",
        ),
        ("timm:test_convnext", 9, "cut_layer is 9.*4 stages.*give 0 to 4"),
        ("timm:test_convnext", -1, "cut_layer is -1.*give 0 to 4"),
        ("timm:levit_128s", None, "2 linear or convolutional layers.*not distilled"),
        ("resnet18", "layer3", "'layer3'.*give a number"),
        ("resnet", None, "'resnet' is unknown.*timm:NAME"),
        ("timm:hrnet_w18_small", None, "hrnet_w18_small.*returns a list.*--cut-layer"),
    ],
)
def test_errors_name_the_cure(name, cut, words):
    with pytest.raises(ValueError, match=f"(?s){words}"):
        split_backbone(name, None, n_classes=2, cut_layer=cut, image_size=SIDE)


def test_weights_that_do_not_fit_or_cannot_be_downloaded(tmp_path, monkeypatch):
    path = tmp_path / "other.safetensors"
    other = timm.create_model("test_resnet", num_classes=3)
    save_file(other.state_dict(), path)
    with pytest.raises(
        WeightsError,
        match=r"fit timm:test_efficientnet \(Error\(s\) .* \.\.\.\): .*--backbone",
    ):
        split_backbone("timm:test_efficientnet", path, n_classes=2, image_size=SIDE)
    # A file with another number of classes fits, and so does a state dict of
    # torch.save.
    torch.save(other.state_dict(), tmp_path / "other.pth")
    for file in (path, tmp_path / "other.pth"):
        model = split_backbone("timm:test_resnet", file, n_classes=2, image_size=SIDE)
        assert torch.equal(
            model.feature_extractor.layer1[0].conv1.weight, other.layer1[0].conv1.weight
        )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        WeightsError, match=r"(?s)weights of timm:test_resnet .*--weights FILE.*'none'"
    ):
        split_backbone("timm:test_resnet", "torchvision", n_classes=2, image_size=SIDE)


def test_timm_is_needed_for_its_networks_only(monkeypatch):
    for path in Path(crumb_avalanche.__file__).parent.rglob("*.py"):
        assert not re.search(
            r"^(import|from) timm\b", path.read_text(), re.MULTILINE
        ), path
    monkeypatch.setitem(sys.modules, "timm", None)
    split_backbone("small_cnn", None, n_classes=2, image_size=32)
    with pytest.raises(ImportError, match=re.escape('pip install -e ".[timm]"')):
        split_backbone("timm:resnet34", None, n_classes=2)
