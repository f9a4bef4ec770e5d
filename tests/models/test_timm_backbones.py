"""Backbones of timm by name: ten families keep the contract of ``SplitModel``."""

import copy
import pickle
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import timm
import timm_models  # noqa: F401 - registers networks
import torch
from safetensors.torch import save_file

import crumb_avalanche
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.models.backbone_names import full_name, preprocessing_of
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.layers import step_flops
from crumb_avalanche.models.penultimate import penultimate
from crumb_avalanche.models.split_backbone import map_shape_of, split_backbone
from crumb_avalanche.models.weights import WeightsError

SIDE = 64


@dataclass(frozen=True)
class Family:
    """A network of timm and what its split has at 64 pixels.

    Attributes:
        name: in timm.
        cut: name of the last stage of F.
        map_shape: of one map.
        grid: of the image's locations in it.
        codebook_dim: length of a memory block with which 28 memories take at least the
            12,288 bytes of an image: the largest divisor of C up to 28 C H W / 12288.
        features: number of features of the closed forms.
    """

    name: str
    cut: str
    map_shape: tuple[int, ...]
    grid: tuple[int, int]
    codebook_dim: int
    features: int


FAMILIES = {
    "ResNet": Family("test_resnet", "layer3", (192, 4, 4), (4, 4), 6, 2 * 192 + 96),
    "ConvNeXt": Family("test_convnext", "stages.2", (48, 4, 4), (4, 4), 1, 160),
    "MobileNetV3": Family(
        "mobilenetv3_small_050", "blocks.3", (24, 4, 4), (4, 4), 1, 2 * 24 + 1024
    ),
    "MobileNetV4": Family(
        "mobilenetv4_conv_small_035", "blocks.2", (32, 4, 4), (4, 4), 1, 64 + 1280
    ),
    "EfficientNet": Family(
        "test_efficientnet", "blocks.3", (48, 4, 4), (4, 4), 1, 2 * 48 + 256
    ),
    "RegNet": Family("regnetx_002", "s3", (152, 4, 4), (4, 4), 4, 2 * 152 + 368),
    "ViT": Family("test_vit", "blocks.4", (64, 1 + 16, 1), (4, 4), 2, 2 * 64 + 64),
    "DINOv2": Family(
        "small_dinov2", "blocks.1", (32, 1 + 4 + 64, 1), (8, 8), 4, 2 * 32 + 32
    ),
    "CLIP": Family("small_clip", "blocks.1", (32, 1 + 64, 1), (8, 8), 4, 2 * 32 + 32),
    "SigLIP": Family("small_siglip", "blocks.1", (32, 8, 8), (8, 8), 4, 2 * 32 + 32),
    "Swin": Family("small_swin", "layers.2", (64, 4, 4), (4, 4), 2, 2 * 64 + 128),
}


def images(count=3, side=SIDE):
    random = torch.Generator().manual_seed(0)
    shape = (count, 3, side, side)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=random)


def network_of(family):
    """A network of ten classes, as timm makes it."""
    has_fixed_size = timm.get_pretrained_cfg(family.name).fixed_input_size
    options = {"img_size": SIDE} if has_fixed_size else {}
    return timm.create_model(family.name, num_classes=10, **options).eval()


def published_weights(network):
    """The weights of a network as timm publishes them: some without a head."""
    left_out = () if network.pretrained_cfg["num_classes"] else ("head.",)
    state = network.state_dict()
    return {name: state[name] for name in state if not name.startswith(left_out)}


@dataclass(frozen=True)
class Split:
    """A network of timm, and the model made from its weights, with its head."""

    family: Family
    network: torch.nn.Module
    model: torch.nn.Module


@pytest.fixture(scope="module", params=FAMILIES)
def split(request, tmp_path_factory):
    family = FAMILIES[request.param]
    network = network_of(family)
    path = tmp_path_factory.mktemp("timm") / "weights.safetensors"
    save_file(published_weights(network), path)
    model = split_backbone(
        f"timm:{family.name}", path, n_classes=10, image_size=SIDE
    ).eval()
    model.plastic_layers.head.load_state_dict(network.get_classifier().state_dict())
    return Split(family=family, network=network, model=model)


def test_a_model_answers_as_its_network(split):
    """On images normalised as timm says."""
    pixels = images()
    config = split.network.pretrained_cfg
    mean = torch.tensor(config["mean"]).view(1, 3, 1, 1)
    std = torch.tensor(config["std"]).view(1, 3, 1, 1)
    with torch.no_grad():
        expected = split.network((pixels / 255 - mean) / std)
    largest = expected.abs().max()  # 0.0004 to 66; rounding changes 2e-6 of it
    logits = split.model(pixels)
    torch.testing.assert_close(logits / largest, expected / largest, rtol=0, atol=2e-5)
    assert split.model.interpolation == config["interpolation"]


def test_where_a_family_is_cut(split):
    assert split.model.stages[-1] == split.family.cut
    assert split.model.map_shape == split.family.map_shape
    assert split.model.codebook.codebook_dim == split.family.codebook_dim


def test_a_map_is_the_same_alone(split):
    pixels = images()
    alone = torch.cat([split.model.extract(image[None]) for image in pixels])
    assert torch.equal(alone, split.model.extract(pixels))


def test_gradients_are_in_p_and_the_codebook(split):
    pixels = images()
    model = copy.deepcopy(split.model)
    calibrate(model, [(image, 0) for image in pixels])
    channels, height, width = split.family.map_shape
    groups = channels // split.family.codebook_dim
    assert model.encode(model.features(pixels)).shape == (3, groups, height, width)
    model.train()(pixels).sum().backward()
    assert all(weight.grad is None for weight in model.feature_extractor.parameters())
    assert model.plastic_layers.head.weight.grad.abs().sum() > 0
    assert model.codebook.blocks.grad.abs().sum() > 0


def test_features_of_closed_forms(split):
    pixels = images()
    model = split.model
    grid_of_image = model.patch_grid(model.extract(pixels))
    assert grid_of_image.shape == (3, split.family.map_shape[0], *split.family.grid)
    moments = FeatureMoments(maps=True, deviations=True)
    assert moments.length(model) == split.family.features
    assert moments(model, pixels).isfinite().all()


def test_operations_are_counted(split):
    assert min(step_flops(split.model)) > 0


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["deepcopy", "pickle"],
)
def test_copies_answer_alike(split, copied):
    pixels = images()
    assert torch.equal(copied(split.model).eval()(pixels), split.model(pixels))


def test_tokens_that_are_no_patches():
    model = split_backbone("timm:small_dinov2", None, n_classes=2).eval()
    maps = torch.randn(2, *model.map_shape)
    grid = model.patch_grid(maps)
    assert torch.equal(grid.flatten(2), maps[:, :, 5:, 0])
    moved = maps.clone()
    moved[:, :, :5] += 1000
    of_map = FeatureMoments(maps=True, deviations=True)
    features = of_map.of_maps(model, maps)
    changed = of_map.of_maps(model, moved)
    assert torch.equal(features[:, :64], changed[:, :64])  # means and deviations
    assert not torch.allclose(
        features[:, 64:], changed[:, 64:]
    )  # the class token, at the head
    torch.testing.assert_close(features[:, :32], grid.mean((2, 3)))


CONVNEXT = "timm:test_convnext.r160_in1k"


@pytest.mark.parametrize(
    ("name", "full"),
    [("timm:test_convnext", CONVNEXT), (CONVNEXT, CONVNEXT), ("resnet18", "resnet18")],
)
def test_full_names(name, full):
    assert full_name(name) == full


def test_preprocessing_is_timms():
    preprocessing = preprocessing_of(CONVNEXT)
    assert preprocessing.size == 160
    assert preprocessing.interpolation == "bicubic"
    assert preprocessing.mean == (0.5, 0.5, 0.5)
    assert preprocessing_of("resnet18").size == 224


def test_a_model_has_timms_preprocessing():
    model = split_backbone(CONVNEXT, None, n_classes=2)
    assert model.image_size == 160
    assert model.map_shape == (48, 10, 10)
    assert model.pixel_std.flatten()[0] == 0.5


def test_preprocessing_can_be_given():
    preprocessing = preprocessing_of(CONVNEXT).as_dict()
    preprocessing["interpolation"] = "bilinear"
    model = split_backbone(CONVNEXT, None, n_classes=2, preprocessing=preprocessing)
    assert model.interpolation == "bilinear"


cuts = pytest.mark.parametrize(
    ("cut", "shape", "n_stages"),
    [
        (2, (32, 8, 8), 2),
        (0, (3, 64, 64), 0),
        ("stages.2.blocks.0", (48, 4, 4), 1),
    ],
)


@cuts
def test_other_cuts(cut, shape, n_stages):
    model = split_backbone(
        "timm:test_convnext", None, n_classes=2, cut_layer=cut, image_size=SIDE
    ).eval()
    assert model.map_shape == shape
    assert len(model.stages) == n_stages
    assert model(images()).shape == (3, 2)
    assert (model.codebook is None) == (cut == 0)


@cuts
def test_channels_leave_the_rng_alone(cut, shape, n_stages):
    before = torch.get_rng_state()
    assert map_shape_of("timm:test_convnext", cut, SIDE) == shape
    assert torch.equal(torch.get_rng_state(), before)


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
        ("resnet18", "layer3", "'layer3'.*give a number"),
        ("resnet", None, "'resnet' is unknown.*timm:NAME"),
        ("timm:hrnet_w18_small", None, "hrnet_w18_small.*returns a list.*--cut-layer"),
    ],
)
def test_errors_name_the_cure(name, cut, words):
    with pytest.raises(ValueError, match=f"(?s){words}"):
        split_backbone(name, None, n_classes=2, cut_layer=cut, image_size=SIDE)


@pytest.fixture
def other():
    """A network with another number of classes."""
    return timm.create_model("test_resnet", num_classes=3)


def test_weights_of_another_network(tmp_path, other):
    path = tmp_path / "other.safetensors"
    save_file(other.state_dict(), path)
    words = r"fit timm:test_efficientnet \(Error\(s\) .* \.\.\.\): .*--backbone"
    with pytest.raises(WeightsError, match=words):
        split_backbone("timm:test_efficientnet", path, n_classes=2, image_size=SIDE)


@pytest.mark.parametrize(
    ("suffix", "save"), [(".safetensors", save_file), (".pth", torch.save)]
)
def test_weights_of_other_classes(tmp_path, other, suffix, save):
    path = tmp_path / f"other{suffix}"
    save(other.state_dict(), path)
    model = split_backbone("timm:test_resnet", path, n_classes=2, image_size=SIDE)
    weight = model.feature_extractor.layer1[0].conv1.weight
    assert torch.equal(weight, other.layer1[0].conv1.weight)


def test_weights_that_cannot_be_downloaded(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    words = r"(?s)weights of timm:test_resnet .*--weights FILE.*'none'"
    with pytest.raises(WeightsError, match=words):
        split_backbone("timm:test_resnet", "torchvision", n_classes=2, image_size=SIDE)


def test_no_module_imports_timm_at_once():
    sources = Path(crumb_avalanche.__file__).parent.rglob("*.py")
    pattern = re.compile(r"^(import|from) timm\b", re.MULTILINE)
    assert [path for path in sources if pattern.search(path.read_text())] == []


@pytest.fixture
def without_timm(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)


def test_other_networks_need_no_timm(without_timm):
    split_backbone("small_cnn", None, n_classes=2, image_size=32)


def test_its_networks_need_timm(without_timm):
    with pytest.raises(ImportError, match=re.escape('pip install -e ".[timm]"')):
        split_backbone("timm:resnet34", None, n_classes=2)


@pytest.mark.parametrize(
    ("name", "map_shape"),
    [
        ("deit_tiny_distilled_patch16_224", (192, 2 + 16, 1)),
        ("levit_128s", (256, 2, 2)),
        pytest.param("resnet50_clip", (1024, 4, 4), marks=pytest.mark.slow),
    ],
)
def test_a_head_comes_behind_the_features(name, map_shape, tmp_path):
    """Where timm has two classifiers, or one inside a pool by attention."""
    has_fixed_size = timm.get_pretrained_cfg(name).fixed_input_size
    options = {"img_size": SIDE} if has_fixed_size else {}
    network = timm.create_model(name, num_classes=10, **options).eval()
    path = tmp_path / "weights.safetensors"
    save_file(network.state_dict(), path)
    model = split_backbone(f"timm:{name}", path, n_classes=3, image_size=SIDE).eval()
    network.reset_classifier(0)
    normalized = model.normalized(images())
    with torch.no_grad():
        maps = model.features(images())
        features = penultimate(model, maps)
        torch.testing.assert_close(features, network(normalized), rtol=1e-4, atol=1e-4)
        assert model.classify(maps).shape == (3, 3)
    assert model.map_shape == map_shape
