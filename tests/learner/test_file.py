"""Learner files: a new process predicts as the run did, and continues training as the same process would."""

import json
import random
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from small_models import DrawnOnce
from variants import VARIANTS, entry_of
from watched import Answers

from benchmarks_toybox_ilab import ToyShapesFrames, make_benchmark, pixel_transform
from benchmarks_toybox_ilab.datasets.clip_folder import ClipFolderFrames
from crumb_avalanche.learner.file import holds_weights, read_header
from crumb_avalanche.learner.run_file import (
    LEARNER,
    NOT_KEPT,
    LearnerError,
    LearnerHeader,
    cannot_be_taught,
    load_learner,
    save_learner,
)
from crumb_avalanche.methods.registry import STRATEGIES, LearningSettings, build_strategy
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.runs.recorder import read_predictions
from crumb_avalanche.runs.tables import usage_of
from crumb_avalanche.system.tensor_file import read_state, write_state

pytestmark = pytest.mark.filterwarnings("ignore:No loggers specified")
KEPT = [*(name for name in STRATEGIES if name not in NOT_KEPT), *VARIANTS]
SIZE = 32
LEARNING = dict(learning_rate=0.02, batch_size=5, eval_batch_size=8, first_epochs=2)
NETWORK = dict(name="small_cnn", n_classes=6, image_size=SIZE)

# Answers of learner files to the test images of their runs, in a process that knows nothing of the runs.
ANSWER = """
import sys, warnings
import numpy as np
import torch
warnings.simplefilter("ignore")
sys.path[:0] = sys.argv[1].split(":")
from watched import Answers
from benchmarks_toybox_ilab import ClipFolder, pixel_transform
from crumb_avalanche.learner.run_file import load_learner
torch.set_num_threads(1)
for folder in sys.argv[3:]:
    learner = load_learner(f"{folder}/learner.safetensors")
    size = learner.header.transform["size"]
    stream = ClipFolder(sys.argv[2], train_transform=pixel_transform(size), eval_transform=pixel_transform(size))
    answers = Answers()
    learner.strategy.plugins.append(answers)
    learner.strategy.eval(stream.test_stream)
    rows = np.concatenate([list(test.dataset.frame_row) for test in stream.test_stream])
    np.savez(f"{folder}/again.npz", answer=np.asarray(answers.given)[np.argsort(rows, kind="stable")])
"""


@pytest.fixture(scope="module")
def again(tmp_path_factory, clips):
    """Folders of finished runs, one per strategy and kind of file, with the answers of a new process."""
    from crumb_avalanche.cli import main

    folders = {}
    for name in KEPT:
        folder = folders[name, "full"] = tmp_path_factory.mktemp(name.replace(" ", "_"))
        entry, method = entry_of(name)
        command = [
            *("run", "--benchmark", "clip_folder", "--dataset-root", clips, "--weights", "none", "--preset", "paper"),
            *("--backbone", "small_cnn", "--image-size", SIZE, "--batch-size", "4", "--first-epochs", "3"),
            *("--threads", "1", "--progress", "false", "--strategy", entry.name, "--mem-size", "8"),
            *(part for key, value in method.items() for part in (f"--method.{key}", value)),
            *("--learning-rate", "0.003", "--checkpoint", "false", "--output", folder),
        ]
        assert main([str(part) for part in command]) == 0
        learner = load_learner(folder / LEARNER)
        folders[name, "answers"] = folder / "answers"
        save_learner(folder / "answers" / LEARNER, learner.strategy, replace(learner.header, keep="answers"))
    command = [sys.executable, "-c", ANSWER, ":".join(sys.path), str(clips), *map(str, folders.values())]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folders


@pytest.mark.parametrize("keep", ["full", "answers"])
@pytest.mark.parametrize("name", KEPT)
def test_a_new_process_gives_the_answers_of_the_run(again, name, keep):
    folder = again[name, keep]
    expected = read_predictions(again[name, "full"])["answer"]
    assert np.array_equal(np.load(folder / "again.npz")["answer"], expected)
    header = read_header(folder / LEARNER)
    entry, method = entry_of(name)
    assert header.strategy == entry.name and header.keep == keep and method.items() <= header.method.items()
    assert {one["name"] for one in header.classes} == {"apple", "box", "cup", "dice"}
    result = json.loads((again[name, "full"] / "result.json").read_text())
    assert sum(one["images"] for one in header.classes) == result["images"]["train"]


@pytest.mark.parametrize("name", ["crumb", "crumb closed_form_stock", "remind", "icarl", "er", "finetune", "rda"])
def test_crumb_predict_gives_the_answers_of_the_run(again, clips, crumb, name):
    table, said = ClipFolderFrames(clips), read_predictions(again[name, "full"])
    photos = [clips / table.path[row] for row in said["row"]]
    for folder in (again[name, "full"], again[name, "answers"]):
        code, out, err = crumb("predict", folder, *photos, "--json", "--threads", "1")
        assert code == 0, err
        found = [json.loads(line) for line in out.splitlines()]
        assert [one["label"] for one in found] == [table.classes[label] for label in said["answer"]]
        assert {one["known"] for one in found} == {None} or name == "rda"
    header = read_header(again[name, "full"] / LEARNER)
    lines = usage_of(again[name, "full"], header.strategy)
    assert f"crumb predict {again[name, 'full']} photo.jpg" in lines[0] and holds_weights(again[name, "full"] / LEARNER)
    assert any("crumb teach" in line and "crumb serve" in line for line in lines) == (name == "rda")
    assert bool(cannot_be_taught(header)) == (name != "rda")


def test_most_learners_predict_several_classes(again):
    several = [name for name in KEPT if len(set(read_predictions(again[name, "full"])["answer"])) > 1]
    assert len(several) > len(KEPT) / 2, several


def test_answer_files_are_smaller(again):
    for name in ("crumb", "image_replay", "rda"):
        full, answers = ((again[name, keep] / LEARNER).stat().st_size for keep in ("full", "answers"))
        assert answers <= full and (answers < full or name == "rda")


def new_strategy(name, stream):
    """A strategy on a small network, with the header of its file; all global seeds are set."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    entry, method = entry_of(name)
    model = split_backbone(weights=None, codebook=Codebook(16, 16) if entry.codebook else None, **NETWORK)
    calibrate(model, stream.train_stream[0].dataset)
    mem_size = 12 if entry.budgeted else 0
    learning, evaluator = LearningSettings(**LEARNING), EvaluationPlugin(loggers=[])
    strategy = build_strategy(entry.name, model, learning, mem_size, 0, method=method, evaluator=evaluator)
    whole = asdict(entry.method_settings(method))
    header = LearnerHeader(entry.name, whole, LEARNING, mem_size, 0, NETWORK, (16, 16) if entry.codebook else None)
    return strategy, header


def shapes():
    """Three experiences of two classes."""
    table = ToyShapesFrames(
        classes=("fish", "house", "key", "leaf", "ring", "star"), objects_per_class=2, sessions=2, frames_per_clip=4,
        size=SIZE, held_out_sessions=(1,),
    )  # fmt: skip
    table.reader = DrawnOnce()
    return make_benchmark(table, "class_instance", 0, 2, pixel_transform(SIZE), pixel_transform(SIZE))


def outputs_of(strategy, stream):
    answers = Answers()
    strategy.plugins.append(answers)
    strategy.eval(stream.test_stream)
    return answers.given


@pytest.mark.parametrize("name", [name for name in KEPT if not entry_of(name)[0].joint])
def test_a_loaded_learner_trains_as_the_one_in_memory(name, tmp_path):
    stream = shapes()
    strategy, header = new_strategy(name, stream)
    for experience in stream.train_stream[:2]:
        strategy.train(experience)
    save_learner(tmp_path / LEARNER, strategy, header)
    strategy.train(stream.train_stream[2])
    torch.manual_seed(99)
    np.random.seed(99)
    loaded = load_learner(tmp_path / LEARNER).strategy
    loaded.train(shapes().train_stream[2])
    expected = strategy.model.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in loaded.model.state_dict().items())
    assert outputs_of(loaded, stream) == outputs_of(strategy, stream)


def test_answers_alone_do_not_train_on(tmp_path):
    stream = shapes()
    strategy, header = new_strategy("finetune", stream)
    strategy.train(stream.train_stream[0])
    save_learner(tmp_path / LEARNER, strategy, replace(header, keep="answers"))
    loaded = load_learner(tmp_path / LEARNER).strategy
    with pytest.raises(LearnerError, match=r"learner\.safetensors was kept with keep_learner=answers.*=full"):
        loaded.train(stream.train_stream[1])
    assert outputs_of(loaded, stream) == outputs_of(strategy, stream)


def test_a_state_that_cannot_be_said_is_a_learner_error(tmp_path):
    strategy, header = new_strategy("finetune", shapes())
    strategy.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    with pytest.raises(LearnerError, match="finetune cannot be saved: the optimizer holds weights that are not the mo"):
        save_learner(tmp_path / LEARNER, strategy, header)


def test_chance_is_refused_by_name(tmp_path, crumb, tiny):
    stream = shapes()
    strategy, header = new_strategy("chance", stream)
    with pytest.raises(LearnerError, match="strategy chance has no learner file: its answers are random"):
        save_learner(tmp_path / LEARNER, strategy, header)
    code, _, err = crumb(*tiny, "--strategy", "chance", "--output", tmp_path / "run")
    assert code == 0, err
    assert not (tmp_path / "run" / LEARNER).exists()


def test_keep_learner_none_writes_no_file(crumb, tiny, tmp_path):
    assert crumb(*tiny, "--strategy", "ncm", "--keep-learner", "none", "--output", tmp_path)[0] == 0
    assert not (tmp_path / LEARNER).exists() and (tmp_path / "result.json").exists()


@pytest.fixture
def saved(tmp_path):
    stream = shapes()
    strategy, header = new_strategy("ncm", stream)
    strategy.train(stream.train_stream[0])
    save_learner(tmp_path / LEARNER, strategy, header)
    return tmp_path / LEARNER


def test_files_that_hold_no_learner_are_refused(saved, tmp_path):
    with pytest.raises(LearnerError, match="there is no file"):
        load_learner(tmp_path / "missing.safetensors")
    state, metadata = read_state(saved)
    write_state(tmp_path / "other.safetensors", state, {"format": "crumb-checkpoint-1"})
    with pytest.raises(LearnerError, match="of format 'crumb-checkpoint-1', not crumb-run-learner-1"):
        load_learner(tmp_path / "other.safetensors")
    newer = json.loads(metadata["learner"]) | {"colour": "red"}
    write_state(saved, state, {**metadata, "learner": json.dumps(newer)})
    with pytest.raises(LearnerError, match=r"is no valid learner.*\('colour' is unknown"):
        read_header(saved)
    del state["strategy"]["method"]
    write_state(saved, state, metadata)
    with pytest.raises(LearnerError, match="does not fit strategy ncm"):
        load_learner(saved)
