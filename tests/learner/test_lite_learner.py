"""EfficientNet-Lite0 with the weights of its package: exported, saved, cut by name."""

import numpy as np
import pytest
import torch

from benchmarks_toybox_ilab.datasets.toy_shapes import ToyShapesReader
from crumb_avalanche.learner.export import export_onnx
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.methods.run_header import LearnerError
from crumb_avalanche.models import backbone_names, weights
from crumb_avalanche.models.backbone_names import default_backbone, package_of_weights
from crumb_avalanche.models.networks import EfficientNetLite
from crumb_avalanche.models.split_at import split_at
from crumb_avalanche.models.weights import packaged_weights, renamed_weights

pytestmark = pytest.mark.skipif(
    package_of_weights() is None, reason="needs the extra weights"
)
SIDE = 64
SHAPES = ("arrow", "fish", "mug", "tree")
PATCHES = np.random.default_rng(0).integers(0, 256, (2, 6, 4, 4, 3), np.uint8)
IMAGES = PATCHES.repeat(16, 2).repeat(16, 3)  # six of each of two classes


@pytest.fixture(scope="module")
def learner():
    """A learner of two classes of coarse patches."""
    learner = Learner("recommended", "efficientnet_lite0", image_size=SIDE)
    learner.teach(IMAGES[0], "a")
    learner.teach(IMAGES[1], "b")
    return learner


def views(class_name, sessions):
    """A view of a rendered shape in each of some sessions."""
    reader = ToyShapesReader()
    paths = [f"{class_name}/object0/session{number}/frame00-of5" for number in sessions]
    return [reader(path) for path in paths]


@pytest.mark.parametrize("images", [(1, 1, 1, 1), (1, 2, 1, 2)])
def test_one_image_of_a_class_is_enough_for_a_name(images):
    learner = Learner("recommended", "efficientnet_lite0")
    for class_name, count in zip(SHAPES, images, strict=True):
        learner.teach(views(class_name, range(count)), class_name)
    answers = []
    for class_name in SHAPES:
        for view in views(class_name, range(2, 6)):
            answer = learner.predict(view)
            answers.append(answer.known and answer.label == class_name)
    assert sum(answers) >= len(answers) / 2


def test_the_default_backbone_of_crumb_teach(crumb, clips, tmp_path):
    path = tmp_path / "a.safetensors"
    code, _, err = crumb("teach", path, clips, "--image-size", SIDE)
    assert code == 0
    line = "new learner with efficientnet_lite0, ImageNet weights of the package"
    assert line in err


@pytest.mark.parametrize(
    ("given", "backbone"),
    [
        ("torchvision", "efficientnet_lite0"),
        ("w.npz", "squeezenet1_0"),
        (None, "squeezenet1_0"),
    ],
)
def test_the_default_backbone(given, backbone):
    assert default_backbone(given) == backbone


def test_the_default_backbone_without_its_package(monkeypatch):
    monkeypatch.setattr(backbone_names, "package_of_weights", lambda: None)
    assert default_backbone() == "squeezenet1_0"
    assert default_backbone("package") == "efficientnet_lite0"


def test_export(learner, tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    asked = list(IMAGES.reshape(-1, SIDE, SIDE, 3))
    assert export_onnx(learner, tmp_path / "a.onnx", asked).holds


def check_loaded(loaded, learner):
    """The same weights, whose licence is named, and the same answers."""
    assert loaded.network.sha256 == learner.network.sha256
    assert "(Apache-2.0)" in loaded.network.source
    asked = IMAGES[0, 0]
    assert loaded.predict(asked).confidence == learner.predict(asked).confidence


def test_a_file_with_weights(learner, tmp_path, monkeypatch):
    """It needs no package."""
    learner.save(tmp_path / "a.safetensors")
    monkeypatch.setattr(weights, "package_of_weights", lambda: None)
    check_loaded(Learner.load(tmp_path / "a.safetensors"), learner)


def test_a_file_without_weights(learner, tmp_path):
    """It names their package."""
    path = tmp_path / "a.safetensors"
    learner.save(path, weights=False)
    check_loaded(Learner.load(path, "package"), learner)
    line = "holds no weights: give those of ImageNet weights of the package"
    with pytest.raises(LearnerError, match=line):
        Learner.load(path)


def test_a_cut_by_name(learner):
    """The maps are those of the cut by number."""
    network = EfficientNetLite().eval()
    network.load_state_dict(renamed_weights(packaged_weights(), network, "the package"))
    cut = split_at(network, "features.11", n_classes=2, image_size=SIDE).eval()
    cut.set_normalization((0.5,) * 3, (0.5,) * 3)
    pixels = torch.from_numpy(IMAGES[1]).permute(0, 3, 1, 2)
    assert torch.equal(cut.extract(pixels), learner.network.model.extract(pixels))
