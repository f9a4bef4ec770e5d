"""``crumb teach``, ``predict`` and ``learner`` as a person uses them."""

import csv
import io
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from crumb_avalanche.cli import main
from crumb_avalanche.models.backbones import SmallCNN
from crumb_avalanche.system.folder_lock import locked_file
from crumb_avalanche.system.tensor_file import write_tensors

COLOURS = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200)}
NEW = ["--backbone", "small_cnn", "--image-size", "32", "--threads", "1", "--progress", "false"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with weights, a tree of three classes, and a photo of each."""
    folder = tmp_path_factory.mktemp("teach")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        write_tensors(folder / "weights.safetensors", SmallCNN().state_dict(), {})
    random = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        for clip in range(2):
            for frame in range(3):
                save(random, colour, folder / "tree" / name / f"object{clip}" / f"{frame}.png")
        save(random, colour, folder / "photos" / f"{name}.png")
        save(random, colour, folder / "test" / name / "1.png")
    return folder


def save(random, colour, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    noisy = np.clip(np.array(colour) + random.normal(0, 20, (40, 40, 3)), 0, 255)
    Image.fromarray(noisy.astype(np.uint8)).save(path)


@pytest.fixture
def model(place, tmp_path, capsys):
    """A learner of three classes."""
    path = tmp_path / "mine.safetensors"
    assert main(["teach", str(path), str(place / "tree"), "--weights", str(place / "weights.safetensors"), *NEW]) == 0
    capsys.readouterr()
    return path


def ask(capsys, *arguments):
    """Run a command; return its exit code, output and errors."""
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def test_teach_makes_a_learner_and_goes_on_with_it(place, tmp_path, capsys):
    path = tmp_path / "mine.safetensors"
    weights = ["--weights", str(place / "weights.safetensors"), *NEW]
    code, out, _ = ask(capsys, "teach", path, place / "tree" / "red", "--label", "red", *weights)
    assert code == 0 and "learned red: 6 images" in out and "1 classes" in out
    code, out, _ = ask(capsys, "teach", path, place / "tree" / "blue", "--label", "sky", "--progress", "false")
    assert code == 0 and "2 classes" in out
    code, out, _ = ask(capsys, "predict", path, place / "photos" / "blue.png")
    assert code == 0 and "blue.png  sky" in out


def test_predict_as_table_json_and_csv(model, place, capsys):
    code, out, _ = ask(capsys, "predict", model, place / "photos")
    assert code == 0 and [line.split("  ")[1] for line in out.splitlines()] == ["blue", "green", "red"]
    code, out, _ = ask(capsys, "predict", model, place / "photos", "--json")
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["label"] for answer in answers] == ["blue", "green", "red"]
    assert all(answer.keys() == {"path", "label", "confidence", "known", "runners_up"} for answer in answers)
    code, out, _ = ask(capsys, "predict", model, place / "photos" / "red.png", place / "photos" / "blue.png", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["label"] for row in rows] == ["red", "blue"] and float(rows[0]["confidence"]) > 0.34


def test_predict_sums_up_a_labelled_folder(model, place, capsys):
    code, out, _ = ask(capsys, "predict", model, place / "test")
    assert code == 0 and "3 of 3 right (100.0 %)" in out
    ask(capsys, "learner", "rename", model, "red", "crimson")
    code, out, _ = ask(capsys, "predict", model, place / "test")
    assert "2 of 3 right" in out and "red taken for crimson: 1" in out


def test_learner_commands(model, place, tmp_path, capsys):
    code, out, _ = ask(capsys, "learner", "show", model)
    assert code == 0 and all(
        word in out for word in ("red: 6 images", "small_cnn at 32 pixels", "SHA-256", "no images")
    )
    code, out, _ = ask(capsys, "learner", "rename", model, "red", "rot")
    assert code == 0 and out == "renamed red to rot\n"
    code, out, _ = ask(capsys, "learner", "forget", model, "green")
    assert code == 0 and "forgot green; what remains: the share" in out
    other = tmp_path / "other.safetensors"
    weights = ["--weights", str(place / "weights.safetensors"), *NEW]
    ask(capsys, "teach", other, place / "tree" / "green", "--label", "green", *weights)
    code, out, _ = ask(capsys, "learner", "merge", model, other, "--output", tmp_path / "both.safetensors")
    assert code == 0 and "3 classes" in out
    code, out, _ = ask(capsys, "predict", tmp_path / "both.safetensors", place / "photos" / "green.png")
    assert "green.png  green" in out
    code, out, _ = ask(capsys, "learner", "undo", other)
    assert code == 0 and "took back: green (6 images)" in out
    code, _, err = ask(capsys, "predict", other, place / "photos" / "green.png")
    assert code == 1 and "nothing was taught" in err


def test_bad_input_is_a_line_and_nothing_is_lost(model, place, tmp_path, capsys):
    before = model.read_bytes()
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "photo.jpg").write_bytes(b"no image")
    cases = [
        (["teach", model, tmp_path / "absent"], "no file or folder"),
        (["teach", model, tmp_path / "empty", "--label", "x"], "no photo and no video"),
        (["teach", model, place / "photos"], "has no class: give"),
        (["teach", model, place / "photos", "--label", "a/b"], "class name"),
        (["teach", model, tmp_path / "bad", "--label", "x"], "no image to learn"),
        (["teach", model, tmp_path / "bad", "--label", "x", "--on-bad-frame", "raise"], "photo.jpg"),
        (["teach", model], "give a source"),
        (["predict", model], "give images"),
        (["predict", tmp_path / "absent.safetensors", place / "photos"], "there is no file"),
        (["learner", "forget", model, "nobody"], "no class 'nobody'"),
        (["learner", "merge", model, model], "--output"),
    ]
    for arguments, words in cases:
        code, _, err = ask(capsys, *arguments)
        assert code == 1 and words in err and "Traceback" not in err, (arguments, err)
    assert model.read_bytes() == before


def test_a_photo_that_cannot_be_read_does_not_keep_the_others_from_an_answer(model, place, tmp_path, capsys):
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    code, out, err = ask(capsys, "predict", model, tmp_path / "bad.jpg", place / "photos" / "red.png")
    assert code == 1 and "red.png  red" in out and "bad.jpg" in err and "1 files could not be read" in err


def test_a_second_teacher_is_told_who_has_the_file(model, place, capsys):
    with locked_file(model):
        code, _, err = ask(capsys, "teach", model, place / "tree", "--progress", "false")
    assert code == 1 and "is being changed by process" in err


def test_predict_imports_nothing_that_it_does_not_need(model, place):
    program = (
        "import sys\nfrom crumb_avalanche.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "needless = {'avalanche', 'matplotlib', 'torchvision', 'torch._dynamo'}\n"
        "print(sorted(needless & {*sys.modules}), code)"
    )
    command = [sys.executable, "-c", program, "predict", str(model), str(place / "photos" / "red.png")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] 0", done.stdout
