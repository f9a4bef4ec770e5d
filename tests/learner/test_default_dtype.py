"""A program that set torch's default type to float64 gets the same learner."""

import pytest
import torch
from small_lessons import SIZE, images, same, taught
from torch import nn

from crumb_avalanche.learner.export import export_onnx
from crumb_avalanche.learner.header import CLOSED_FORMS
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.models.split_at import split_at
from crumb_avalanche.models.split_backbone import split_backbone


@pytest.fixture
def float64():
    """``torch.set_default_dtype(torch.float64)``, as a script may have called it."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def new_learner(method, weights_file):
    return taught(Learner(method, "small_cnn", weights_file, SIZE), 3)


@pytest.fixture(scope="module")
def usual(weights_file):
    """Learners by method, taught where the default type is float32."""
    return {method: new_learner(method, weights_file) for method in CLOSED_FORMS}


@pytest.mark.parametrize("method", CLOSED_FORMS)
def test_teaching(usual, float64, weights_file, method):
    learner = new_learner(method, weights_file)
    assert {weight.dtype for weight in learner.network.model.parameters()} == {
        torch.float32
    }
    assert learner.bytes == usual[method].bytes
    answer = learner.predict(images(1, seed=3))
    expected = usual[method].predict(images(1, seed=3))
    assert answer.label == expected.label == "c1"
    assert answer.confidence == pytest.approx(expected.confidence, abs=1e-5)


@pytest.mark.parametrize("method", ["rda", "slda"])
def test_nothing(usual, float64, weights_file, method):
    learner = new_learner(method, weights_file)
    learner.teach_nothing(images(9))
    assert learner.nothing == 6


@pytest.mark.parametrize("method", CLOSED_FORMS)
def test_explaining(usual, float64, method):
    shares = usual[method].explain(images(0, 1))
    assert shares.dtype == torch.float32 and shares.shape == (SIZE, SIZE)


@pytest.mark.parametrize("method", CLOSED_FORMS)
def test_saving_and_loading(usual, float64, tmp_path, method):
    usual[method].save(tmp_path / "mine.safetensors")
    assert same(Learner.load(tmp_path / "mine.safetensors"), usual[method])


@pytest.mark.parametrize("method", CLOSED_FORMS)
def test_exporting(usual, float64, tmp_path, method):
    pytest.importorskip("onnxruntime")
    assert export_onnx(usual[method], tmp_path / "mine.onnx").holds


@pytest.mark.parametrize("backbone", ["small_cnn", "squeezenet1_0", "mobilenet_v2"])
def test_drawn_weights(float64, backbone):
    torch.manual_seed(0)
    model = split_backbone(backbone, weights=None, n_classes=3, image_size=64)
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    expected = split_backbone(backbone, weights=None, n_classes=3, image_size=64)
    for weight, expected_weight in zip(
        model.parameters(), expected.parameters(), strict=True
    ):
        assert torch.equal(weight, expected_weight)


def test_new_head(model, float64):
    model.reset_head(5)
    assert model(torch.zeros(2, 3, 32, 32, dtype=torch.float32)).shape == (2, 5)


@pytest.fixture
def model(make_model):
    return make_model().eval()


def small_network():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, 2),
    )  # fmt: skip


def test_own_network_is_refused(float64):
    with pytest.raises(TypeError, match=r"0\.weight is torch\.float64.*\.float\(\)"):
        split_at(small_network(), "1", n_classes=3, image_size=32)


def test_own_network_in_float32(float64):
    model = split_at(small_network().float(), "1", n_classes=3, image_size=32)
    images = torch.zeros(2, 3, 32, 32, dtype=torch.float32)
    assert model(images).dtype == torch.float32
