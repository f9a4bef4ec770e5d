"""``crumb backbones`` lists networks; runs and learners take them by name."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import timm_models  # noqa: F401 - registers networks
import torch
from PIL import Image
from site_parts.result_tables import backbones as built_in

from crumb_avalanche.learner.export import export_onnx
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.methods.run_header import LearnerError
from crumb_avalanche.models.backbone_names import PREPROCESSING
from crumb_avalanche.models.backbones import BACKBONES
from crumb_avalanche.models.recorded_backbones import recorded_backbones
from crumb_avalanche.runs import backbone_measures
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import RunSettings

TOY = """
from torch import nn
from crumb_avalanche.models.backbone_names import Preprocessing
from crumb_avalanche.models.backbones import Backbone, register_backbone

class Toy(nn.Module):
    def __init__(self, side):
        super().__init__()
        first = nn.Conv2d(3, 24, 3, 2)
        second = nn.Conv2d(24, 32, 3, 2)
        self.layers = nn.Sequential(first, nn.ReLU(), second, nn.ReLU())
        self.head = nn.Linear(32, 10)

def ends(network):
    pool = nn.AdaptiveAvgPool2d(1)
    return {"pool": pool, "flatten": nn.Flatten(), "head": network.head}

halves = (0.5, 0.5, 0.5)
toy = Backbone(2, lambda network: network.layers, ends, Toy)
register_backbone("toy", toy, Preprocessing(48, "bicubic", halves, halves))
"""
DINO = "timm:small_dinov2"


def photos(colour, count=4):
    """Noisy ``(N, 48, 40, 3)`` images of a colour."""
    noise = np.random.default_rng(sum(colour)).integers(0, 60, (count, 48, 40, 3))
    return (noise + np.array(colour)).astype(np.uint8)


@pytest.fixture
def quick(monkeypatch):
    """Speed is measured for a hundredth of a second."""
    monkeypatch.setattr(backbone_measures, "SECONDS", 0.01)


def test_a_list_fits_80_columns(done):
    assert max(map(len, done("backbones").splitlines())) <= 80


def test_a_list_has_all_built_in(done):
    names = [line.split()[0] for line in done("backbones").splitlines()]
    assert set(BACKBONES) <= set(names)


def test_a_list_does_not_import_torch():
    code = (
        "import sys; sys.argv = ['crumb', 'backbones']\n"
        "from crumb_avalanche.cli import main\n"
        "assert not main()\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    "name",
    [
        "small_cnn",
        "mlp",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in BACKBONES
            if name not in ("small_cnn", "mlp")
        ),
    ],
)
def test_a_record_is_what_is_measured(quick, name):
    recorded = recorded_backbones()[name]
    now = backbone_measures.measure_backbone(name)
    unmeasured = {"images_per_second": 0, "eth80": None, "splits": 0}
    rounded = {}
    for entry in ("trained", "megabytes", "gflops"):
        rounded[entry] = pytest.approx(getattr(now, entry), rel=1e-3)
    assert replace(recorded, **unmeasured) == replace(now, **unmeasured, **rounded)


def test_a_built_in_one_is_recorded(done):
    text = done("backbones", "small_cnn")
    assert "maps 128x8x8 after 11, in 512 bytes of codes" in text
    assert "recorded" in text


def test_a_built_in_one_is_measured(quick, done):
    text = done("backbones", "small_cnn", "--measure", "--image-size", 32)
    assert "maps 128x4x4 after 11, in 128 bytes of codes" in text
    assert "measured here" in text


def test_one_of_timm_is_measured(quick, done):
    text = done("backbones", "timm:test_convnext")
    assert text.startswith("timm:test_convnext.r160_in1k\n")
    assert "160 x 160 pixels" in text
    assert "maps 48x10x10 after stages.2" in text
    assert "256 for" in text


def test_a_plan_takes_what_timm_says():
    settings = RunSettings(backbone="timm:mobilenetv3_small_050", strategy="crumb")
    plan = RunPlan.of(settings)
    assert plan.backbone == "timm:mobilenetv3_small_050.lamb_in1k"
    assert plan.weights == "timm"
    assert (plan.image_size, plan.codebook_dim) == (224, 12)  # of 24 channels


def test_a_plan_of_rda_takes_what_timm_says():
    plan = RunPlan.of(RunSettings(backbone=DINO, strategy="rda"))
    assert plan.image_size == 64


def test_a_plan_takes_what_is_given():
    settings = {
        "weights": "none",
        "image_size": 32,
        "codebook_dim": 8,
        "cut_layer": "blocks.0",
    }
    plan = RunPlan.of(RunSettings(backbone=DINO, **settings))
    assert {name: getattr(plan, name) for name in settings} == settings


@pytest.mark.parametrize(
    ("strategy", "backbone"),
    [("rda", "timm:small_swin"), pytest.param("crumb", DINO, marks=pytest.mark.slow)],
)
def test_a_run_and_its_learner(ran, done, tmp_path, strategy, backbone):
    run = tmp_path / "run"
    photo = tmp_path / "photo.png"
    settings = ["--strategy", strategy, "--feature-cache", tmp_path / "cache"]
    # The last of a flag counts.
    ran(run, "--backbone", backbone, "--image-size", 64, *settings)
    ledger = json.loads((run / "ledger.json").read_text())
    assert ledger["frozen_bytes"] > 0
    Image.fromarray(photos((150, 0, 0))[0]).save(photo)
    assert json.loads(done("predict", run, photo, "--json"))["label"]


@pytest.mark.parametrize(
    ("method", "backbone"),
    [
        ("rda", DINO),
        pytest.param("crumb", "timm:test_efficientnet", marks=pytest.mark.slow),
    ],
)
def test_a_learner_is_kept_and_exported(method, backbone, tmp_path, monkeypatch):
    learner = Learner(method, backbone, None, 64, 10_000_000)
    learner.teach(photos((180, 0, 0), 24), "red")
    learner.teach(photos((0, 180, 0), 24), "green")
    path = tmp_path / "kept.safetensors"
    learner.save(path)
    # A download would call it.
    monkeypatch.setattr("timm.models._builder.load_pretrained", None)
    loaded = Learner.load(path)
    network = loaded.network
    assert network.sha256 == learner.network.sha256
    assert network.interpolation == "bicubic"
    assert torch.equal(network.model.pixel_mean, learner.network.model.pixel_mean)
    asked = [*photos((180, 0, 0), 2), *photos((0, 180, 0), 2)]
    assert answers(loaded, asked) == answers(learner, asked)
    assert loaded.explain(asked[-1]).shape == (64, 64)
    if method == "rda":
        pytest.importorskip("onnxruntime")
        # Bicubic, and patches without other tokens.
        assert export_onnx(learner, tmp_path / "dino.onnx").holds
    learner.save(path, weights=False)
    with pytest.raises(LearnerError, match=r"holds no weights.*'timm'"):
        Learner.load(path)


def answers(learner, images):
    """The label and the confidence of each image."""
    predicted = list(map(learner.predict, images))
    return [(answer.label, answer.confidence) for answer in predicted]


@pytest.fixture
def one_file(tmp_path, monkeypatch):
    """A backbone of a file of a user, which is gone after the test."""
    (tmp_path / "net_of_a_user.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("net_of_a_user")
    sys.modules.pop("net_of_a_user")
    BACKBONES.pop("toy")
    PREPROCESSING.pop("toy")


def test_a_backbone_of_one_file_is_taught(one_file, done, clips, tmp_path):
    path = tmp_path / "taught.safetensors"
    settings = ["--backbone", "toy", "--weights", "none", "--method", "slda"]
    done("teach", path, clips, *settings)
    network = Learner.load(path).network
    assert (network.backbone, network.image_size) == ("toy", 48)
    assert network.interpolation == "bicubic"
    assert network.model.pixel_std.flatten().tolist() == [0.5] * 3
    assert network.model.map_shape == (24, 23, 23)


def test_a_backbone_of_one_file_is_planned(one_file):
    plan = RunPlan.of(RunSettings(backbone="toy", weights="none"))
    assert (plan.image_size, plan.codebook_dim) == (48, 12)


def test_a_backbone_of_one_file_is_listed(one_file, done):
    assert "24x23x23" in done("backbones", "toy")
    assert "| `toy` | 2 | 48 | bicubic |" in built_in()
