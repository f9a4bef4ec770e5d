"""``--runtime int8``: a learner and a run keep their calibration, are answered by it, and refuse another."""

import asyncio
import io
import json

import numpy as np
import pytest
from lossy_engine import LossyEngine
from PIL import Image

from crumb_avalanche.learner.export import ExportError, export_onnx
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.shared import SharedLearner
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
    assert code == 0 and f"runtime {one.runtime}, " in err, "auto is int8 here"
    assert [json.loads(line)["confidence"] for line in table.splitlines()] == answers
    assert f"runtime {one.runtime}, " in crumb("predict", taught, photos / "dark" / "0.png")[2], "also for one photo"
    code, _, err = crumb("predict", taught, photos, "--runtime", "torch")
    assert code != 0 and f"learned with runtime {one.runtime}" in err and "give --runtime int8 or auto" in err
    code, _, err = crumb("teach", taught, photos, "--progress", "false")
    assert code == 0 and len({lesson.runtime for lesson in Learner.load(taught).lessons}) == 1
    with pytest.raises(ExportError, match="a learner in int8 cannot be exported"):
        export_onnx(one, tmp_path / "graph.onnx")


def test_shared_copies_answer_in_int8(taught, photos):
    learner = Learner.load(taught)
    shared = SharedLearner(learner, taught)
    assert shared.learner is not learner and shared.learner.runtime == learner.runtime
    stream = io.BytesIO()
    Image.open(photos / "dark" / "0.png").save(stream, "PNG")

    async def use():
        await shared.teach("dim", [("a.png", stream.getvalue())])
        return await shared.predict(stream.getvalue())

    answer, _ = asyncio.run(use())
    shared.close()
    again = Learner.load(taught)
    assert again.lessons[-1].runtime == str(learner.runtime)
    assert again.predict(photos / "dark" / "0.png").confidence == answer.confidence


def test_workers_learn_in_int8(taught, photos):
    learner = Learner.load(taught)
    lesson = learner.teach(photos, engine=LossyEngine())  # a worker with another runtime would refuse
    assert lesson.runtime == str(learner.runtime) and lesson.runtime.startswith("int8 ")


def test_a_learner_without_its_calibration_is_refused(taught, crumb, photos):
    state, metadata = read_state(taught)
    write_state(taught, {**state, "int8": None}, metadata)
    code, _, err = crumb("predict", taught, photos)
    assert code != 0 and "holds no calibration: take the file from where it was written" in err


def test_other_learners_refuse_int8(crumb, photos, taught, tmp_path, new):
    plain = tmp_path / "plain.safetensors"
    assert crumb("teach", plain, photos, *new)[0] == 0
    code, _, err = crumb("teach", plain, photos, "--runtime", "int8", "--progress", "false")
    assert code != 0 and "for a new learner of method" in err and "one that learned with torch" in err
    code, _, err = crumb("predict", plain, photos, "--runtime", "int8")
    assert code != 0 and "for a new learner" in err
    with pytest.raises(RuntimeRefusedError, match=r"not for a learner by replay \(crumb\)"):
        Learner("crumb", "small_cnn", None, 32).use_runtime("int8", photos)
    code, _, err = crumb(
        "teach", tmp_path / "new.safetensors", "--camera", "0", "--label", "a", *new, "--runtime", "int8"
    )
    assert code != 0 and "there are none: give them (crumb teach MODEL SOURCE" in err
    one, other = Learner.load(taught), Learner.load(taught)
    other.network.model.runtime = Learner.load(plain).runtime
    with pytest.raises(ValueError, match=r"runtime torch .* cannot be merged into one of int8 .*: teach its images"):
        one.merge(other)
    other = Learner.load(taught)
    other.undo()
    other.teach(photos)
    one.merge(other)
    assert len(one.lessons) == 2


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
    code, _, err = crumb("predict", tmp_path / "one" / "run0", clips)
    assert code == 0 and f"runtime {one['runtime']}, " in err


def test_a_sample_is_spread_over_the_source(photos):
    whole = [len(some) for some in sample(photos, 32, "bilinear")]
    assert whole == [6]
    few = next(sample(photos, 32, "bilinear", 2)).float().mean((1, 2, 3))
    assert few[0] < 100 < few[1], "one of each class"
    (photos / "dark" / "0.png").write_bytes(b"damaged")
    assert sum(map(len, sample(photos, 32, "bilinear"))) == 5
    arrays = np.zeros((70, 32, 32, 3), np.uint8)
    assert sum(map(len, sample(arrays, 32, "bilinear"))) == 64
