"""The lines of the page for robots that run without this package answer as the learner does."""

import contextlib
import io

import pytest
from page_commands import ROOT
from patch_images import SIZE, images
from PIL import Image

from crumb_avalanche.learner.export import export_onnx
from crumb_avalanche.learner.learner import Learner


def test_plain_onnx_runtime_answers_as_the_learner(weights_file, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    text = (ROOT / "docs" / "robots.md").read_text(encoding="utf-8")
    lines = text.rpartition("```python\n")[2].partition("```")[0]
    learner = Learner(backbone="small_cnn", weights=weights_file, image_size=SIZE)
    for number in range(3):
        learner.teach(images(number), f"c{number}")
    monkeypatch.chdir(tmp_path)
    export_onnx(learner, tmp_path / "mine.onnx")
    Image.fromarray(images(1, 1, seed=3)[0]).save("photo.jpg")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(lines, "robots.md", "exec"), {})
    label, share = printed.getvalue().split()
    answer = learner.predict("photo.jpg")
    assert label == answer.label and float(share) == pytest.approx(answer.confidence, abs=1e-3)
