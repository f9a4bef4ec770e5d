"""A finished run is asked with ``crumb predict RUN_FOLDER`` and answers as its evaluation did."""

import json
import re
import shutil

import numpy as np
import pytest
import torch

from benchmarks_toybox_ilab.datasets.clip_folder import ClipFolderFrames
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.run_file import LEARNER, LearnerError
from crumb_avalanche.runs.recorder import read_predictions


@pytest.fixture(scope="module")
def runs(tmp_path_factory, clips):
    """Folders of finished runs by strategy."""
    from crumb_avalanche.cli import main

    folders = {}
    for name in ("er", "crumb"):
        folders[name] = tmp_path_factory.mktemp(name)
        command = [
            *("run", "--benchmark", "clip_folder", "--dataset-root", clips, "--weights", "none", "--preset", "paper"),
            *("--backbone", "small_cnn", "--image-size", 32, "--batch-size", "4", "--first-epochs", "3"),
            *("--threads", "1", "--progress", "false", "--strategy", name, "--mem-size", "8"),
            *("--learning-rate", "0.003", "--checkpoint", "false", "--output", folders[name]),
            *("--evaluate-quantized", "true") * (name == "crumb"),
        ]
        assert main([str(part) for part in command]) == 0
    return folders


def answers(out):
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("name", ["er", "crumb"])
def test_it_answers_as_the_run_did(runs, clips, crumb, name):
    """Also through the codebook; ``test_file.py`` has other strategies."""
    table, said = ClipFolderFrames(clips), read_predictions(runs[name])
    photos = [clips / table.path[row] for row in said["row"]]
    code, out, err = crumb("predict", runs[name], *photos, "--json", "--threads", "1")
    assert code == 0, err
    found = answers(out)
    assert [one["label"] for one in found] == [table.classes[label] for label in said["answer"]]
    assert {one["known"] for one in found} == {None}
    keys = ["path", "label", "confidence", "known", "runners_up"]
    assert all(list(one) == keys for one in found)
    shares = [one["confidence"] + sum(other["confidence"] for other in one["runners_up"]) for one in found]
    assert shares == pytest.approx([1] * len(found), abs=1e-4)


def test_a_folder_is_asked_photo_by_photo_and_in_batches_alike(runs, clips):
    learner = Learner.load(runs["er"])
    together = list(learner.predict_all(clips / "apple" / "object0" / "clip0"))
    assert len(together) == 5 and {answer.truth for answer in together} == {None}
    for answer in together[::2]:
        alone = learner.predict(answer.path)
        assert alone.label == answer.label and alone.confidence == pytest.approx(answer.confidence, rel=1e-4)


def test_a_clip_is_asked_as_one_and_a_page_has_no_heat_maps(runs, clips, crumb, tmp_path):
    frames = torch.randint(0, 256, (5, 3, 40, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    answer = Learner.load(runs["er"] / LEARNER).predict(frames)
    assert len(answer.frames) == 5 and answer.known is None
    code, _, err = crumb("predict", runs["er"], clips, "--html", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert code == 0 and "There are no heat maps" in text and "not calibrated" in err and "not calibrated" in text


def test_a_folder_whose_files_were_changed_is_not_asked(runs, clips, crumb, tmp_path):
    shutil.copytree(runs["er"], tmp_path / "run")
    photo = next(clips.rglob("*.png"))
    for name in ("ledger.json", "result.json"):
        text = (tmp_path / "run" / name).read_text()
        (tmp_path / "run" / name).write_text(re.sub(r"\d", "7", text, count=1))
        code, out, err = crumb("predict", tmp_path / "run", photo)
        assert code == 1 and not out and f"{name} is not what the run wrote" in err and "restore it" in err
        assert crumb("predict", tmp_path / "run" / LEARNER, photo)[0] == 0
        (tmp_path / "run" / name).write_text(text)
    (tmp_path / "run" / "result.json").write_text("{")
    assert "result.json cannot be used" in crumb("predict", tmp_path / "run", photo)[2]
    (tmp_path / "run" / "result.json").unlink()
    assert crumb("predict", tmp_path / "run", photo)[0] == 0


def test_a_run_folder_is_shown_and_not_changed(runs, clips, crumb):
    code, out, _ = crumb("learner", "show", runs["er"])
    assert code == 0 and all(part in out for part in ("er, of a run", "small_cnn at 32", "apple: ", "8 at most"))
    assert "can be asked" in out and "learned by er" in out
    teach = ("teach", runs["er"], clips / "apple", "--label", "x")
    for command in (teach, ("learner", "forget", runs["er"], "apple"), ("serve", runs["er"], "--port", "0")):
        code, _, err = crumb(*command)
        assert code == 1 and "is a folder" in err and f"copy {runs['er'] / LEARNER}" in err
    assert not runs["er"].with_name(f"{runs['er'].name}.lock").exists()


def test_a_run_of_replayed_images_is_asked_with_any_runtime(runs, clips):
    learner, photo = Learner.load(runs["er"]), next(clips.rglob("*.png"))
    usual = learner.predict(photo)
    pytest.importorskip("onnxruntime")
    assert learner.use_runtime("onnxruntime").name == "onnxruntime"
    found = learner.predict(photo)
    assert found.label == usual.label and found.confidence == pytest.approx(usual.confidence, rel=1e-3)


def test_asking_does_not_draw_random_numbers(runs, clips):
    torch.manual_seed(5)
    expected = torch.get_rng_state(), np.random.get_state()[1].copy()
    Learner.load(runs["crumb"])
    assert torch.equal(torch.get_rng_state(), expected[0]) and np.array_equal(np.random.get_state()[1], expected[1])


@pytest.mark.parametrize(
    "command",
    [("teach", "{}", "{clips}/apple", "--label", "x"), ("learner", "forget", "{}", "apple"), ("export", "{}")],
)
def test_changes_are_refused_with_the_cure(runs, clips, crumb, command):
    file = runs["er"] / LEARNER
    before = file.read_bytes()
    code, _, err = crumb(*(part.format(file, clips=clips) for part in command))
    assert code == 1 and "learned by er" in err and "crumb predict" in err and "crumb teach" in err
    assert "Traceback" not in err and file.read_bytes() == before
    learner = Learner.load(file)
    for change in (lambda: learner.teach(clips, "x"), lambda: learner.save(file), lambda: learner.forget("apple")):
        with pytest.raises(LearnerError, match="crumb run --strategy rda"):
            change()
