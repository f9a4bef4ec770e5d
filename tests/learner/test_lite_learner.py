"""EfficientNet-Lite0 with the weights of its package: exported, kept in a file, cut by name."""

import numpy as np
import pytest
import torch

from crumb_avalanche.learner.export import export_onnx
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.methods.run_file import LearnerError
from crumb_avalanche.models import backbone_names, weights
from crumb_avalanche.models.backbone_names import default_backbone, package_of_weights
from crumb_avalanche.models.networks import EfficientNetLite
from crumb_avalanche.models.split_at import split_at
from crumb_avalanche.models.weights import in_order, packaged_weights

pytestmark = pytest.mark.skipif(
    package_of_weights() is None, reason="needs the extra weights"
)
SIDE = 64
IMAGES = (
    np.random.default_rng(0)
    .integers(0, 256, (2, 6, 4, 4, 3), np.uint8)
    .repeat(16, 2)
    .repeat(16, 3)
)


@pytest.fixture(scope="module")
def learner():
    """A learner of two classes of coarse patches."""
    learner = Learner("recommended", "efficientnet_lite0", image_size=SIDE)
    for name, some in zip("ab", IMAGES):
        learner.teach(some, name)
    return learner


def test_new_learners_take_it_where_its_weights_are(
    crumb, clips, tmp_path, monkeypatch
):
    code, _, err = crumb(
        "teach", tmp_path / "a.safetensors", clips, "--image-size", SIDE
    )
    assert (
        code == 0
        and "new learner with efficientnet_lite0, ImageNet weights of the package"
        in err
    )
    assert [default_backbone(one) for one in ("torchvision", "w.npz", None)] == [
        "efficientnet_lite0",
        "squeezenet1_0",
        "squeezenet1_0",
    ]
    monkeypatch.setattr(backbone_names, "package_of_weights", lambda: None)
    assert (default_backbone(), default_backbone("package")) == (
        "squeezenet1_0",
        "efficientnet_lite0",
    )


def test_it_is_exported(learner, tmp_path):
    for package in ("onnx", "onnxruntime"):
        pytest.importorskip(package)
    assert export_onnx(
        learner, tmp_path / "a.onnx", [*IMAGES.reshape(-1, SIDE, SIDE, 3)]
    ).holds


def test_its_file_holds_the_weights_or_names_their_package(
    learner, tmp_path, monkeypatch
):
    learner.save(tmp_path / "whole.safetensors")
    learner.save(tmp_path / "bare.safetensors", weights=False)
    again = Learner.load(tmp_path / "bare.safetensors", "package")
    monkeypatch.setattr(weights, "package_of_weights", lambda: None)
    for one in (again, Learner.load(tmp_path / "whole.safetensors")):
        assert (
            one.network.sha256 == learner.network.sha256
            and "(Apache-2.0)" in one.network.source
        )
        assert (
            one.predict(IMAGES[0, 0]).confidence
            == learner.predict(IMAGES[0, 0]).confidence
        )
    with pytest.raises(
        LearnerError,
        match="holds no weights: give those of ImageNet weights of the package",
    ):
        Learner.load(tmp_path / "bare.safetensors")


def test_it_is_cut_by_name_as_by_number(learner):
    network = EfficientNetLite().eval()
    network.load_state_dict(in_order(packaged_weights(), network, "the package"))
    cut = split_at(network, "features.11", n_classes=2, image_size=SIDE).eval()
    cut.set_normalization((0.5,) * 3, (0.5,) * 3)
    model, pixels = (
        learner.network.model,
        torch.from_numpy(IMAGES[1]).permute(0, 3, 1, 2),
    )
    assert torch.equal(cut.extract(pixels), model.extract(pixels))
