"""``--runtime`` of the commands: what ran the frozen layers is printed and recorded, and a resumed run keeps it."""

import json

import pytest
import yaml

from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.models.runtimes import TORCH
from crumb_avalanche.training.stream_strategy import StreamStrategy

onnxruntime = pytest.importorskip("onnxruntime")
FASTER = f"onnxruntime {onnxruntime.__version__}"


def test_teach_and_predict_say_what_ran_the_network(crumb, photos, new, tmp_path, monkeypatch):
    model = tmp_path / "mine.safetensors"
    code, _, err = crumb("teach", model, photos, *new)
    assert code == 0 and err == "new learner with small_cnn, random weights\n", "torch, by the environment of the tests"
    monkeypatch.setenv("CRUMB_RUNTIME", "onnxruntime")
    code, _, err = crumb("teach", model, photos, "--progress", "false")
    assert code == 0 and err == "", "nothing is said of what was not asked for"
    assert [lesson.runtime for lesson in Learner.load(model).lessons] == [str(TORCH), FASTER]
    assert crumb("learner", "show", model)[1].count(f", by {FASTER}") == 1
    code, table, err = crumb("predict", model, photos)
    assert code == 0 and err == ""
    _, _, err = crumb("predict", model, photos / "dark" / "0.png", "--runtime", "onnxruntime")
    assert f"runtime {FASTER}, " in err and "of torch's (allowed 1e-04)" in err
    assert crumb("predict", model, photos, "--runtime", "torch") == (0, table, ""), "the same to a percent"
    code, _, err = crumb("predict", model, photos, "--runtime", "tpu")
    assert code == 1 and "'tpu'" in err and "onnxruntime" in err


class PowerCut(BaseException):
    """Stands for the sudden end of the process."""


def test_a_resumed_run_keeps_the_runtime_that_auto_chose(crumb, tiny, tmp_path, monkeypatch):
    arguments = (*tiny, "--mem-size", "8", "--first-epochs", "1", "--checkpoint-every", "2", "--runtime", "auto")
    monkeypatch.setenv("CRUMB_RUNTIME", "onnxruntime")
    assert crumb(*arguments, "--output", tmp_path / "whole")[0] == 0
    whole = json.loads((tmp_path / "whole" / "result.json").read_text())
    assert whole["runtime"] == FASTER
    assert "already holds a finished run" in crumb(*arguments, "--output", tmp_path / "whole")[2]
    steps, step = iter(range(5)), StreamStrategy.optimizer_step

    def cut(strategy):
        if next(steps, None) is None:
            raise PowerCut
        step(strategy)

    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        patch.setattr(StreamStrategy, "optimizer_step", cut)
        crumb(*arguments, "--output", tmp_path / "cut")
    monkeypatch.setenv("CRUMB_RUNTIME", "torch")
    code, out, err = crumb(*arguments, "--output", tmp_path / "cut")
    assert code == 0 and "resuming" in out and f"runtime {FASTER}, " in out, err
    text = (tmp_path / "cut" / "config.yaml").read_text()
    assert f"# runtime {FASTER}, " in text and yaml.safe_load(text)["runtime"] == "onnxruntime"
    resumed = json.loads((tmp_path / "cut" / "result.json").read_text())
    for name in ("runtime", "accuracy_after", "plan_sha256"):
        assert resumed[name] == whole[name]
    code, out, err = crumb("learner", "show", tmp_path / "cut")
    assert code == 0 and f"runtime {FASTER}" in out, err


def test_a_finished_run_of_another_runtime_is_not_taken(crumb, tiny, tmp_path, monkeypatch):
    arguments = (*tiny, "--strategy", "ncm", "--runs", "0", "--output", tmp_path)
    monkeypatch.setenv("CRUMB_RUNTIME", "onnxruntime")
    assert crumb(*arguments, "--runtime", "auto")[0] == 0
    assert "already finished" in crumb(*arguments, "--runtime", "auto")[1]
    code, _, err = crumb(*arguments)
    assert code == 1 and "runtime='onnxruntime', not 'torch'" in err
