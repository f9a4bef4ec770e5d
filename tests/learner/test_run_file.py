"""Learner files of runs: what is built of a file answers as the run did."""

import json
import re
import shutil
from dataclasses import asdict

import numpy as np
import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from watched import VARIANTS, Answers, entry_of

from benchmarks_toybox_ilab import ClipFolder, pixel_transform
from benchmarks_toybox_ilab.datasets.clip_folder import ClipFolderFrames
from crumb_avalanche.cli import main
from crumb_avalanche.learner.file import holds_weights, read_header
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.run_answers import cannot_be_taught
from crumb_avalanche.methods.registry import (
    STRATEGIES,
    LearningSettings,
    build_strategy,
)
from crumb_avalanche.methods.run_file import (
    LEARNER,
    NOT_KEPT,
    LearnerError,
    LearnerHeader,
    load_learner,
    save_learner,
)
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.runs.predictions import read_predictions
from crumb_avalanche.runs.tables import usage_of
from crumb_avalanche.system.tensor_file import read_state, write_state

KEPT = [*(name for name in STRATEGIES if name not in NOT_KEPT), *VARIANTS]
# Others are slow here: tests of methods and checkpoints go over the states of all
# strategies.
QUICK = ("crumb", "er", "rda")
REST = [name for name in KEPT if name not in QUICK]
SIZE = 32
LEARNING = dict(learning_rate=0.02, batch_size=5, eval_batch_size=8, first_epochs=2)
NETWORK = dict(name="small_cnn", n_classes=6, image_size=SIZE)


def run_of(name, clips, folder):
    """Do a run and return its folder."""
    entry, method = entry_of(name)
    command = [
        *(
            "run",
            "--benchmark",
            "clip_folder",
            "--dataset-root",
            clips,
            "--weights",
            "none",
            "--preset",
            "paper",
        ),
        *(
            "--backbone",
            "small_cnn",
            "--image-size",
            SIZE,
            "--batch-size",
            "4",
            "--first-epochs",
            "3",
        ),
        *(
            "--threads",
            "1",
            "--progress",
            "false",
            "--strategy",
            entry.name,
            "--mem-size",
            "8",
        ),
        *(part for key, value in method.items() for part in (f"--method.{key}", value)),
        *("--learning-rate", "0.003", "--checkpoint", "false", "--output", folder),
        *("--evaluate-quantized", "true") * (name == "crumb"),
    ]
    assert main([str(part) for part in command]) == 0
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory, clips):
    """A function that returns the folder of a finished run of a strategy."""
    made = {}

    def of(name):
        if name not in made:
            made[name] = run_of(
                name, clips, tmp_path_factory.mktemp(name.replace(" ", "_"))
            )
        return made[name]

    return of


@pytest.mark.parametrize("names", [QUICK, pytest.param(REST, marks=pytest.mark.slow)])
def test_the_file_alone_gives_the_answers_of_the_run(runs, clips, names):
    several = 0
    for name in names:
        folder, answers = runs(name), Answers()
        expected = read_predictions(folder)["answer"]
        several += len(set(expected)) > 1
        strategy, header = load_learner(folder / LEARNER)
        transform = pixel_transform(header.transform["size"])
        stream = ClipFolder(clips, train_transform=transform, eval_transform=transform)
        strategy.plugins.append(answers)
        strategy.eval(stream.test_stream)
        rows = np.concatenate(
            [list(test.dataset.frame_row) for test in stream.test_stream]
        )
        assert np.array_equal(
            np.asarray(answers.given)[np.argsort(rows, kind="stable")], expected
        ), name
        entry, method = entry_of(name)
        assert header.strategy == entry.name and method.items() <= header.method.items()
        assert {one["name"] for one in header.classes} == {
            "apple",
            "box",
            "cup",
            "dice",
        }
        result = json.loads((folder / "result.json").read_text())
        assert sum(one["images"] for one in header.classes) == result["images"]["train"]
    assert several > len(names) / 2, (
        "a learner that always says the same proves nothing"
    )


@pytest.mark.parametrize("name", ["crumb", "er", "rda"])
def test_crumb_predict_gives_the_answers_of_the_run(runs, clips, crumb, name):
    folder = runs(name)
    table, said = ClipFolderFrames(clips), read_predictions(folder)
    photos = [clips / table.path[row] for row in said["row"]]
    code, out, err = crumb("predict", folder, *photos, "--json", "--threads", "1")
    assert code == 0, err
    found = [json.loads(line) for line in out.splitlines()]
    assert [one["label"] for one in found] == [
        table.classes[label] for label in said["answer"]
    ]
    assert {one["known"] for one in found} == {None} or name == "rda"
    shares = [
        one["confidence"] + sum(other["confidence"] for other in one["runners_up"])
        for one in found
    ]
    assert shares == pytest.approx([1] * len(found), abs=1e-4)
    lines = usage_of(folder, name)
    assert f"crumb predict {folder} photo.jpg" in lines[0] and holds_weights(
        folder / LEARNER
    )
    assert any("crumb teach" in line and "crumb serve" in line for line in lines) == (
        name == "rda"
    )
    assert bool(cannot_be_taught(read_header(folder / LEARNER))) == (name != "rda")


def test_a_run_is_asked_from_python(runs, clips):
    """By photo, folder and clip alike, with any runtime, and without a random number."""
    folder = runs("er")
    torch.manual_seed(5)
    expected = torch.get_rng_state(), np.random.get_state()[1].copy()
    learner = Learner.load(folder)
    assert torch.equal(torch.get_rng_state(), expected[0]) and np.array_equal(
        np.random.get_state()[1], expected[1]
    )
    together = list(learner.predict_all(clips / "apple" / "object0" / "clip0"))
    assert len(together) == 5 and {answer.truth for answer in together} == {None}
    alone = learner.predict(together[2].path)
    assert alone.label == together[2].label and alone.confidence == pytest.approx(
        together[2].confidence, rel=1e-4
    )
    clip = learner.predict(torch.randint(0, 256, (5, 3, 40, 40), dtype=torch.uint8))
    assert len(clip.frames) == 5 and clip.known is None
    pytest.importorskip("onnxruntime")
    assert learner.use_runtime("onnxruntime").name == "onnxruntime"
    found = learner.predict(together[2].path)
    assert found.label == alone.label and found.confidence == pytest.approx(
        alone.confidence, rel=1e-3
    )


def test_a_run_in_closed_form_is_taught_on(runs, tmp_path):
    learner = Learner.load(runs("rda"))
    learner.teach(np.full((2, 32, 32, 3), 200, np.uint8), "new")
    learner.save(tmp_path / "mine.safetensors")
    names = [info.name for info in Learner.load(tmp_path / "mine.safetensors").classes]
    assert names == ["apple", "box", "cup", "dice", "new"]


def test_a_run_folder_is_shown_and_not_changed(runs, clips, crumb, tmp_path):
    folder, file = runs("er"), runs("er") / LEARNER
    before = file.read_bytes()
    code, out, _ = crumb("learner", "show", folder)
    assert code == 0 and all(
        part in out
        for part in ("er, of a run", "small_cnn at 32", "apple: ", "8 at most")
    )
    assert "can be asked" in out and "learned by er" in out
    for place, words in (
        (folder, ["is a folder", f"copy {file}"]),
        (file, ["learned by er", "crumb predict"]),
    ):
        teach, forget = (
            ("teach", place, clips / "apple", "--label", "x"),
            ("learner", "forget", place, "apple"),
        )
        other = ("export", place) if place == file else ("serve", place, "--port", "0")
        for command in (teach, forget, other):
            code, _, err = crumb(*command)
            assert (
                code == 1
                and all(word in err for word in words)
                and err.count("\n") == 1
            ), err
    learner = Learner.load(file)
    for change in (
        lambda: learner.teach(clips, "x"),
        lambda: learner.save(file),
        lambda: learner.forget("apple"),
    ):
        with pytest.raises(LearnerError, match="crumb run --strategy rda"):
            change()
    assert (
        file.read_bytes() == before
        and not folder.with_name(f"{folder.name}.lock").exists()
    )
    code, _, err = crumb(
        "predict", folder, clips / "apple" / "object0", "--html", tmp_path / "page.html"
    )
    text = (tmp_path / "page.html").read_text()
    assert (
        code == 0
        and "There are no heat maps" in text
        and "not calibrated" in err
        and "not calibrated" in text
    )


def test_a_folder_whose_files_were_changed_is_not_asked(runs, clips, crumb, tmp_path):
    shutil.copytree(runs("er"), tmp_path / "run")
    photo = next(clips.rglob("*.png"))
    result = tmp_path / "run" / "result.json"
    for text in (re.sub(r"\d", "7", result.read_text(), count=1), "{", "[" * 200_000):
        result.write_text(text)
        code, out, err = crumb("predict", tmp_path / "run", photo)
        assert (
            code == 1
            and not out
            and "result.json is not what the run wrote" in err
            and "restore it" in err
        )
        assert crumb("predict", tmp_path / "run" / LEARNER, photo)[0] == 0
    result.unlink()
    assert crumb("predict", tmp_path / "run", photo)[0] == 0


def new_strategy(name):
    """An untrained strategy on a small network, with the header of its file."""
    entry, method = entry_of(name)
    model = split_backbone(
        weights=None, codebook=Codebook(16, 16) if entry.codebook else None, **NETWORK
    )
    learning, evaluator = LearningSettings(**LEARNING), EvaluationPlugin(loggers=[])
    strategy = build_strategy(
        entry.name, model, learning, 0, method=method, evaluator=evaluator
    )
    whole = asdict(entry.method_settings(method))
    return strategy, LearnerHeader(entry.name, whole, LEARNING, 0, 0, NETWORK, None)


def test_no_file_of_chance_or_without_a_request(tmp_path, crumb, tiny):
    with pytest.raises(
        LearnerError,
        match="strategy chance has no learner file: its answers are random",
    ):
        save_learner(tmp_path / LEARNER, *new_strategy("chance"))
    for options in (
        ("--strategy", "chance"),
        ("--strategy", "ncm", "--keep-learner", "false"),
    ):
        code, _, err = crumb(*tiny, *options, "--output", tmp_path / options[1])
        assert code == 0, err
        assert (
            not (tmp_path / options[1] / LEARNER).exists()
            and (tmp_path / options[1] / "result.json").exists()
        )


def test_files_that_hold_no_learner_are_refused(tmp_path):
    saved = tmp_path / LEARNER
    save_learner(saved, *new_strategy("ncm"))
    with pytest.raises(LearnerError, match="there is no file"):
        load_learner(tmp_path / "missing.safetensors")
    state, metadata = read_state(saved)
    write_state(tmp_path / "other.safetensors", state, {"format": "crumb-checkpoint-1"})
    with pytest.raises(
        LearnerError, match="of format 'crumb-checkpoint-1', not crumb-run-learner-1"
    ):
        load_learner(tmp_path / "other.safetensors")
    newer = json.loads(metadata["learner"]) | {"colour": "red"}
    write_state(saved, state, {**metadata, "learner": json.dumps(newer)})
    with pytest.raises(LearnerError, match=r"is no valid learner.*\(colour is unknown"):
        read_header(saved)
    del state["strategy"]["method"]
    write_state(saved, state, metadata)
    with pytest.raises(LearnerError, match="does not fit strategy ncm"):
        load_learner(saved)


def test_weights_that_the_header_does_not_name_are_refused(runs, tmp_path):
    state, metadata = read_state(runs("er") / LEARNER)
    name, weights = next(
        (name, one)
        for name, one in state["feature_extractor"].items()
        if one.is_floating_point()
    )
    for value, words in (
        (float("nan"), "not finite"),
        (0.5, "are not those that its header names"),
    ):
        changed = weights.clone()
        changed.view(-1)[0] = value
        state["feature_extractor"][name] = changed
        write_state(tmp_path / LEARNER, state, metadata)
        with pytest.raises(LearnerError, match=words):
            load_learner(tmp_path / LEARNER)
