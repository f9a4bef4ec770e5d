"""``--runtime int8``: a learner and a run keep their calibration, are answered by it, and refuse another."""

import json

import pytest
from lossy_engine import LossyEngine

from crumb_avalanche.learner.export import ExportError, export_onnx
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.sources import sample
from crumb_avalanche.models.runtimes import RuntimeRefusedError
from crumb_avalanche.system.tensor_file import read_state, write_state


@pytest.fixture(autouse=True)
def packages():
    for package in ("openvino", "onnx", "onnxruntime"):
        pytest.importorskip(package)


@pytest.fixture
def taught(crumb, photos, tmp_path, new):
    """A learner's file, taught in int8."""
    path = tmp_path / "mine.safetensors"
    code, _, err = crumb("teach", path, photos, *new, "--runtime", "int8")
    assert code == 0 and "runtime int8 " in err and "from torch's maps" in err
    return path


def test_a_learner_keeps_its_calibration(crumb, photos, taught, tmp_path):
    one = Learner.load(taught)
    assert one.runtime.name == "int8" and [lesson.runtime for lesson in one.lessons] == [str(one.runtime)]
    answers = [answer.confidence for answer in one.predict_all(photos)]
    assert crumb("learner", "show", taught)[1].count(f", by {one.runtime}") == 1
    code, table, err = crumb("predict", taught, photos, "--json")
    assert code == 0 and err == ""
    assert [json.loads(line)["confidence"] for line in table.splitlines()] == answers
    code, _, err = crumb("teach", taught, photos, "--progress", "false")
    assert code == 0 and len({lesson.runtime for lesson in Learner.load(taught).lessons}) == 1
    # A worker with another runtime would refuse.
    assert Learner.load(taught).teach(photos, engine=LossyEngine()).runtime == str(one.runtime)
    with pytest.raises(ExportError, match="a learner in int8 cannot be exported"):
        export_onnx(one, tmp_path / "graph.onnx")


def test_other_runtimes_and_learners_are_refused(crumb, photos, taught, tmp_path, new):
    plain, first = tmp_path / "plain.safetensors", Learner.load(taught)
    assert crumb("teach", plain, photos, *new)[0] == 0
    for arguments, words in (
        (("predict", taught, photos, "--runtime", "torch"), f"learned with runtime {first.runtime}"),
        (("predict", taught, photos, "--runtime", "torch"), "give --runtime int8 or auto"),
        (("teach", plain, photos, "--runtime", "int8"), "for a new learner of method"),
        (("predict", plain, photos, "--runtime", "int8"), "for a new learner"),
        (
            ("teach", tmp_path / "new", "--camera", "0", "--label", "a", *new, "--runtime", "int8"),
            "there are none: give",
        ),
    ):
        code, _, err = crumb(*arguments)
        assert code != 0 and words in err
    with pytest.raises(RuntimeRefusedError, match=r"not for a learner by replay \(crumb\)"):
        Learner("crumb", "small_cnn", None, 32).use_runtime("int8", photos)
    other = Learner.load(taught)
    other.network.model.runtime = Learner.load(plain).runtime
    with pytest.raises(ValueError, match=r"runtime torch .* cannot be merged into one of int8 .*: teach its images"):
        first.merge(other)
    state, metadata = read_state(taught)
    write_state(taught, {**state, "int8": None}, metadata)
    code, _, err = crumb("predict", taught, photos)
    assert code != 0 and "holds no calibration: take the file from where it was written" in err


@pytest.mark.parametrize("strategy", ["ncm", pytest.param("crumb", marks=pytest.mark.slow)])
def test_a_run_keeps_its_calibration(crumb, tiny, tmp_path, clips, strategy):
    arguments = (*tiny, "--strategy", strategy, "--runs", "0", "--mem-size", "8", "--first-epochs", "1")
    arguments += ("--runtime", "int8", "--feature-cache", tmp_path / "cache")
    for name in ("one", "two"):
        code, out, err = crumb(*arguments, "--output", tmp_path / name)
        assert code == 0 and "runtime int8 " in out, err
    one, two = (json.loads((tmp_path / name / "run0" / "result.json").read_text()) for name in ("one", "two"))
    assert one["runtime"] == two["runtime"] and one["runtime"].startswith("int8 "), "calibrated on the same images"
    assert len(list((tmp_path / "cache").glob("*.maps"))) == 1
    assert crumb("predict", tmp_path / "one" / "run0", clips)[0] == 0


def test_a_sample_is_spread_over_the_source(photos):
    assert [len(some) for some in sample(photos, 32, "bilinear")] == [6]
    few = next(sample(photos, 32, "bilinear", 2)).float().mean((1, 2, 3))
    assert few[0] < 100 < few[1], "one of each class"
    (photos / "dark" / "0.png").write_bytes(b"damaged")
    assert sum(map(len, sample(photos, 32, "bilinear"))) == 5
