"""``crumb backbones`` lists networks and measures them; runs and learners take them by name."""

import json
import sys

import numpy as np
import pytest
import timm_models  # noqa: F401 - registers networks
import torch
from PIL import Image
from site_parts.result_tables import backbones as built_in

from crumb_avalanche.cli import backbones
from crumb_avalanche.learner.export import export_onnx
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.methods.run_file import LearnerError
from crumb_avalanche.models.backbone_names import PREPROCESSING
from crumb_avalanche.models.backbones import BACKBONES
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import RunSettings

TOY = """
from torch import nn
from crumb_avalanche.models.backbone_names import Preprocessing
from crumb_avalanche.models.backbones import Backbone, register_backbone

class Toy(nn.Module):
    def __init__(self, side):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 24, 3, 2), nn.ReLU(), nn.Conv2d(24, 32, 3, 2), nn.ReLU())
        self.head = nn.Linear(32, 10)

def ends(network):
    return {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "head": network.head}

halves = (0.5, 0.5, 0.5)
toy = Backbone(2, lambda network: network.layers, ends, Toy)
register_backbone("toy", toy, Preprocessing(48, "bicubic", halves, halves))
"""
DINO = "timm:small_dinov2"


def photos(colour, count=4):
    """Noisy ``(N, 48, 40, 3)`` images of a colour."""
    noise = np.random.default_rng(sum(colour)).integers(0, 60, (count, 48, 40, 3))
    return (noise + np.array(colour)).astype(np.uint8)


def test_named_backbones_are_measured(done, monkeypatch):
    monkeypatch.setattr(backbones, "SECONDS", 0.01)
    out = done("backbones", "small_cnn", "timm:test_convnext")
    own, other = (
        line.split()
        for line in out.splitlines()
        if line.startswith(("small_cnn ", "timm:test_convnext"))
    )
    assert own[1:6] == ["64", "11", "128x8x8", "16", "640"] and float(own[-1]) > 0
    assert other[:6] == [
        "timm:test_convnext.r160_in1k",
        "160",
        "stages.2",
        "48x10x10",
        "16",
        "256",
    ]


def test_a_plan_takes_what_timm_says():
    plan = RunPlan.of(
        RunSettings(backbone="timm:mobilenetv3_small_050", strategy="crumb")
    )
    assert (
        plan.backbone == "timm:mobilenetv3_small_050.lamb_in1k"
        and plan.weights == "timm"
    )
    assert plan.image_size == 224 and plan.codebook_dim == 12  # of 24 channels
    given = RunSettings(
        backbone=DINO,
        weights="none",
        image_size=32,
        codebook_dim=8,
        cut_layer="blocks.0",
    )
    plan = RunPlan.of(given)
    assert (plan.weights, plan.image_size, plan.codebook_dim, plan.cut_layer) == (
        "none",
        32,
        8,
        "blocks.0",
    )
    assert RunPlan.of(RunSettings(backbone=DINO, strategy="rda")).image_size == 64


@pytest.mark.parametrize(
    ("strategy", "backbone"),
    [("rda", "timm:small_swin"), pytest.param("crumb", DINO, marks=pytest.mark.slow)],
)
def test_a_run_and_its_learner(ran, done, tmp_path, strategy, backbone):
    network = ("--backbone", backbone, "--image-size", 64)  # the last of a flag counts
    ran(
        tmp_path / "run",
        *network,
        "--strategy",
        strategy,
        "--feature-cache",
        tmp_path / "cache",
    )
    assert (
        json.loads((tmp_path / "run" / "ledger.json").read_text())["frozen_bytes"] > 0
    )
    Image.fromarray(photos((150, 0, 0))[0]).save(tmp_path / "photo.png")
    assert json.loads(
        done("predict", tmp_path / "run", tmp_path / "photo.png", "--json")
    )["label"]


@pytest.mark.parametrize(
    ("method", "backbone"),
    [
        ("rda", DINO),
        pytest.param("crumb", "timm:test_efficientnet", marks=pytest.mark.slow),
    ],
)
def test_a_learner_is_kept_without_a_download_and_exported(
    method, backbone, tmp_path, monkeypatch
):
    learner = Learner(method, backbone, None, 64, 10_000_000)
    for label, colour in (("red", (180, 0, 0)), ("green", (0, 180, 0))):
        learner.teach(photos(colour, 24), label)
    path = tmp_path / "kept.safetensors"
    learner.save(path)
    monkeypatch.setattr(
        "timm.models._builder.load_pretrained", None
    )  # a download would call it
    again = Learner.load(path)
    assert (
        again.network.sha256 == learner.network.sha256
        and again.network.interpolation == "bicubic"
    )
    assert torch.equal(again.network.model.pixel_mean, learner.network.model.pixel_mean)
    for photo in (*photos((180, 0, 0), 2), *photos((0, 180, 0), 2)):
        one, other = learner.predict(photo), again.predict(photo)
        assert (one.label, one.confidence) == (other.label, other.confidence)
    assert again.explain(photo).shape == (64, 64)
    if method == "rda":
        pytest.importorskip("onnxruntime")
        assert export_onnx(
            learner, tmp_path / "dino.onnx"
        ).holds  # bicubic, and patches without other tokens
    learner.save(path, weights=False)
    with pytest.raises(LearnerError, match=r"holds no weights.*'timm'"):
        Learner.load(path)


@pytest.fixture
def one_file(tmp_path, monkeypatch):
    """A backbone of a file of a user, which is gone after the test."""
    (tmp_path / "net_of_a_user.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("net_of_a_user")
    for known in (sys.modules, BACKBONES, PREPROCESSING):
        known.pop("net_of_a_user" if known is sys.modules else "toy")


def test_a_backbone_of_one_file_is_taken_by_name(one_file, done, clips, tmp_path):
    model = tmp_path / "taught.safetensors"
    done(
        "teach",
        model,
        clips,
        "--backbone",
        "toy",
        "--weights",
        "none",
        "--method",
        "slda",
    )
    network = Learner.load(model).network
    assert (network.backbone, network.image_size, network.interpolation) == (
        "toy",
        48,
        "bicubic",
    )
    assert network.model.pixel_std.flatten().tolist() == [
        0.5
    ] * 3 and network.model.map_shape == (24, 23, 23)
    plan = RunPlan.of(RunSettings(backbone="toy", weights="none"))
    assert (plan.image_size, plan.codebook_dim) == (48, 12)
    assert "24x23x23" in done("backbones", "toy")
    assert "| `toy` | 2 | 48 | bicubic |" in built_in()
