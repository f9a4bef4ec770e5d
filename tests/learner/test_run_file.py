"""Learner files of runs: what is built of a file answers as the run did."""

import json
import re
import shutil
from dataclasses import asdict, dataclass, replace

import numpy as np
import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from flags import flags
from watched import VARIANTS, Answers, entry_of

from benchmarks_toybox_ilab import ClipFolder, pixel_transform
from benchmarks_toybox_ilab.datasets.clip_folder import ClipFolderFrames
from crumb_avalanche.cli import main
from crumb_avalanche.learner.header import cannot_be_taught, holds_weights, read_header
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.methods.registry import (
    STRATEGIES,
    LearningSettings,
    build_strategy,
)
from crumb_avalanche.methods.run_file import (
    NOT_KEPT,
    _build_strategy,
    load_learner,
    save_learner,
)
from crumb_avalanche.methods.run_header import (
    LEARNER,
    LearnerError,
    LearnerHeader,
    read_run_header,
)
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.networks import NETWORKS
from crumb_avalanche.models.split_backbone import split_backbone
from crumb_avalanche.runs.predictions import read_predictions
from crumb_avalanche.runs.tables import usage_of
from crumb_avalanche.system.file_metadata import read_metadata
from crumb_avalanche.system.tensor_file import read_state, write_state

KEPT = [*(name for name in STRATEGIES if name not in NOT_KEPT), *VARIANTS]
# Others are slow here: tests of methods and checkpoints go over the states of all
# strategies.
QUICK = ("crumb", "er", "rda")
SLOW = [
    pytest.param(name, marks=pytest.mark.slow) for name in KEPT if name not in QUICK
]
SIZE = 32
CLASSES = ["apple", "box", "cup", "dice"]
LEARNING = LearningSettings(
    learning_rate=0.02, batch_size=5, eval_batch_size=8, first_epochs=2
)
NETWORK = dict(name="small_cnn", n_classes=6, image_size=SIZE)


# Runs


def run_of(name, clips, folder):
    """Do a run and return its folder."""
    entry, method = entry_of(name)
    settings = flags(
        benchmark="clip_folder",
        dataset_root=clips,
        weights="none",
        preset="paper",
        backbone="small_cnn",
        image_size=SIZE,
        batch_size=4,
        first_epochs=3,
        threads=1,
        progress=False,
        strategy=entry.name,
        mem_size=8,
        learning_rate=0.003,
        checkpoint=False,
        output=folder,
    )
    for setting, value in method.items():
        settings += [f"--method.{setting}", str(value)]
    if name == "crumb":
        settings += ["--evaluate-quantized", "true"]
    assert main(["run", *settings]) == 0
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory, clips):
    """A function that returns the folder of a finished run of a strategy."""
    folders = {}

    def folder_of(name):
        if name not in folders:
            folder = tmp_path_factory.mktemp(name.replace(" ", "_"))
            folders[name] = run_of(name, clips, folder)
        return folders[name]

    return folder_of


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


# The file of a run


def answers_of(strategy, header, clips):
    """What a strategy answers for the tested frames, in the order of their rows."""
    transform = pixel_transform(header.transform["size"])
    stream = ClipFolder(clips, train_transform=transform, eval_transform=transform)
    answers = Answers()
    strategy.plugins.append(answers)
    strategy.eval(stream.test_stream)
    rows = []
    for experience in stream.test_stream:
        rows += list(experience.dataset.frame_row)
    return np.asarray(answers.given)[np.argsort(rows, kind="stable")]


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_a_file_answers_as_its_run(runs, clips, name):
    folder = runs(name)
    strategy, header = load_learner(folder / LEARNER)
    answers = answers_of(strategy, header, clips)
    assert np.array_equal(answers, read_predictions(folder)["answer"])


def test_most_runs_have_several_answers(runs):
    """Learners that always say the same would prove nothing above."""
    answers = [set(read_predictions(runs(name))["answer"]) for name in QUICK]
    assert sum(len(labels) > 1 for labels in answers) > len(QUICK) / 2


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_the_header_names_the_method(runs, name):
    _, header = load_learner(runs(name) / LEARNER)
    entry, method = entry_of(name)
    assert header.strategy == entry.name
    assert method.items() <= header.method.items()


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_the_header_counts_images(runs, name):
    folder = runs(name)
    header = read_header(folder / LEARNER)
    images = {info["name"]: info["images"] for info in header.classes}
    assert sorted(images) == CLASSES
    assert sum(images.values()) == result_of(folder)["images"]["train"]


@pytest.mark.parametrize("name", QUICK)
def test_the_file_has_its_weights(runs, name):
    assert holds_weights(runs(name) / LEARNER)


@pytest.mark.parametrize(("name", "taught"), [("crumb", False), ("rda", True)])
def test_which_files_can_be_taught(runs, name, taught):
    header = read_header(runs(name) / LEARNER)
    assert bool(cannot_be_taught(header)) != taught


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory, clips):
    """The folder of a run with a pretrained network that preset tuned fine-tunes."""
    folder = tmp_path_factory.mktemp("fine_tuned")
    torch.manual_seed(0)
    torch.save(NETWORKS["mobilenet_v2"]().state_dict(), folder / "weights.pth")
    settings = flags(
        benchmark="clip_folder",
        dataset_root=clips,
        preset="tuned",
        backbone="mobilenet_v2",
        weights=folder / "weights.pth",
        image_size=SIZE,
        first_epochs=1,
        mem_size=8,
        threads=1,
        progress=False,
        checkpoint=False,
        output=folder / "run",
    )
    assert main(["run", *settings]) == 0
    return folder / "run"


def test_a_fine_tuned_network_answers_as_its_run(fine_tuned, clips):
    strategy, header = load_learner(fine_tuned / LEARNER)
    assert header.network["fine_tuning"]
    assert strategy.model.fixed_statistics
    answers = answers_of(strategy, header, clips)
    assert np.array_equal(answers, read_predictions(fine_tuned)["answer"])


def test_the_run_says_that_it_fine_tuned(fine_tuned):
    assert "fine_tuning: true" in (fine_tuned / "config.yaml").read_text()


# crumb predict


@dataclass(frozen=True)
class Predicted:
    """What `crumb predict` prints of the photos that a run was tested on.

    Attributes:
        answers: a dictionary for each photo.
        expected: class names that the run answered.
    """

    answers: list[dict]
    expected: list[str]


@pytest.fixture
def predicted(runs, clips, done, name):
    folder = runs(name)
    table = ClipFolderFrames(clips)
    predictions = read_predictions(folder)
    photos = [clips / table.path[row] for row in predictions["row"]]
    out = done("predict", folder, *photos, "--json", "--threads", "1")
    return Predicted(
        answers=list(map(json.loads, out.splitlines())),
        expected=[table.classes[label] for label in predictions["answer"]],
    )


@pytest.mark.parametrize("name", QUICK)
def test_crumb_predict_answers_as_the_run(predicted):
    labels = [answer["label"] for answer in predicted.answers]
    assert labels == predicted.expected


@pytest.mark.parametrize("name", ["crumb", "er"])
def test_a_run_does_not_say_what_is_known(predicted):
    assert {answer["known"] for answer in predicted.answers} == {None}


def test_a_run_has_no_budget(runs):
    assert Learner.load(runs("er")).budget_bytes == 0


@pytest.mark.parametrize("name", QUICK)
def test_confidences_add_up(predicted):
    for answer in predicted.answers:
        runners_up = [runner["confidence"] for runner in answer["runners_up"]]
        assert answer["confidence"] + sum(runners_up) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("name", "taught"), [("crumb", False), ("rda", True)])
def test_a_run_says_what_to_do_with_it(runs, name, taught):
    folder = runs(name)
    predict, *further = usage_of(folder, name)
    assert f"crumb predict {folder} photo.jpg" in predict
    text = "\n".join(further)
    assert ("crumb teach" in text and "crumb serve" in text) == taught


def test_a_page_of_a_run_has_no_heat_maps(runs, clips, crumb, tmp_path):
    page = tmp_path / "page.html"
    photos = clips / "apple" / "object0"
    code, _, err = crumb("predict", runs("er"), photos, "--html", page)
    assert code == 0
    assert "not calibrated" in err
    assert "not calibrated" in page.read_text()
    assert "There are no heat maps" in page.read_text()


# From Python


def test_loading_a_run_draws_no_random_numbers(runs):
    folder = runs("er")
    torch.manual_seed(5)
    of_torch = torch.get_rng_state()
    of_numpy = np.random.get_state()[1].copy()
    Learner.load(folder)
    assert torch.equal(torch.get_rng_state(), of_torch)
    assert np.array_equal(np.random.get_state()[1], of_numpy)


def test_a_strategy_has_the_precision_of_its_run(runs):
    path = runs("er") / "learner.safetensors"
    header = read_run_header(path, read_metadata(path))
    strategy = _build_strategy(replace(header, precision="bf16"), "cpu")
    assert strategy.model.precision == "bf16"


@pytest.fixture
def er(runs):
    """The learner of a run of experience replay."""
    return Learner.load(runs("er"))


@pytest.fixture
def photo(clips):
    return clips / "apple" / "object0" / "clip0" / "frame2.png"


def test_a_folder_is_answered_as_its_photos(er, photo):
    answers = list(er.predict_all(photo.parent))
    alone = er.predict(photo)
    assert len(answers) == 5
    assert {answer.truth for answer in answers} == {None}
    assert answers[2].label == alone.label
    assert answers[2].confidence == pytest.approx(alone.confidence, rel=1e-4)


def test_a_clip_is_answered_frame_by_frame(er):
    clip = er.predict(torch.randint(0, 256, (5, 3, 40, 40), dtype=torch.uint8))
    assert len(clip.frames) == 5
    assert clip.known is None


def test_another_runtime_answers_the_same(er, photo):
    pytest.importorskip("onnxruntime")
    expected = er.predict(photo)
    assert er.use_runtime("onnxruntime").name == "onnxruntime"
    answer = er.predict(photo)
    assert answer.label == expected.label
    assert answer.confidence == pytest.approx(expected.confidence, rel=1e-3)


def test_a_run_in_closed_form_is_taught_on(runs, tmp_path):
    learner = Learner.load(runs("rda"))
    learner.teach(np.full((2, 32, 32, 3), 200, np.uint8), "new")
    learner.save(tmp_path / "mine.safetensors")
    loaded = Learner.load(tmp_path / "mine.safetensors")
    assert [info.name for info in loaded.classes] == [*CLASSES, "new"]


# A run is not changed


@pytest.fixture
def unchanged(runs):
    """The folder of a run, which is the same after the test."""
    folder = runs("er")
    content = (folder / LEARNER).read_bytes()
    yield folder
    assert (folder / LEARNER).read_bytes() == content
    assert not folder.with_name(f"{folder.name}.lock").exists()


@pytest.mark.parametrize(
    "words",
    [
        "er, of a run",
        "small_cnn at 32",
        "apple: ",
        "8 at most",
        "can predict",
        "learned by er",
    ],
)
def test_a_run_is_shown(unchanged, done, words):
    assert words in done("learner", "show", unchanged)


CHANGING = {
    "teach": lambda path, clips: ("teach", path, clips / "apple", "--label", "x"),
    "forget": lambda path, clips: ("learner", "forget", path, "apple"),
    "serve": lambda path, clips: ("serve", path, "--port", "0"),
    "export": lambda path, clips: ("export", path),
}


@pytest.mark.parametrize("command", ["teach", "forget", "serve"])
def test_the_folder_of_a_run_is_not_changed(unchanged, clips, refused, command):
    words = CHANGING[command](unchanged, clips)
    err = refused("is a folder", *words)
    assert f"copy {unchanged / LEARNER}" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["teach", "forget", "export"])
def test_the_file_of_a_run_is_not_changed(unchanged, clips, refused, command):
    words = CHANGING[command](unchanged / LEARNER, clips)
    err = refused("learned by er", *words)
    assert "crumb predict" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda learner, path: learner.teach(np.zeros((1, 8, 8, 3), np.uint8), "x"),
        lambda learner, path: learner.save(path),
        lambda learner, path: learner.forget("apple"),
    ],
    ids=["teach", "save", "forget"],
)
def test_the_learner_of_a_run_is_not_changed(unchanged, change):
    path = unchanged / LEARNER
    learner = Learner.load(path)
    with pytest.raises(LearnerError, match="crumb run --strategy rda"):
        change(learner, path)


# Damage


@pytest.fixture
def copied_run(runs, tmp_path):
    return shutil.copytree(runs("er"), tmp_path / "run")


@pytest.mark.parametrize("damage", ["number", "{", "[" * 200_000], ids=len)
def test_a_changed_result_is_refused(copied_run, photo, refused, crumb, damage):
    result = copied_run / "result.json"
    text = damage
    if damage == "number":
        text = re.sub(r"\d", "7", result.read_text(), count=1)
    result.write_text(text)
    err = refused("result.json is not what the run wrote", "predict", copied_run, photo)
    assert "restore it" in err
    # The learner's file is whole.
    assert crumb("predict", copied_run / LEARNER, photo)[0] == 0


def test_a_run_without_a_result_is_asked(copied_run, photo, done):
    (copied_run / "result.json").unlink()
    done("predict", copied_run, photo)


def new_strategy(name):
    """An untrained strategy on a small network, with the header of its file."""
    entry, method = entry_of(name)
    codebook = Codebook(16, 16) if entry.codebook else None
    model = split_backbone(weights=None, codebook=codebook, **NETWORK)
    evaluator = EvaluationPlugin(loggers=[])
    strategy = build_strategy(
        entry.name, model, LEARNING, 0, method=method, evaluator=evaluator
    )
    settings = asdict(entry.method_settings(method))
    header = LearnerHeader(entry.name, settings, asdict(LEARNING), 0, 0, NETWORK, None)
    return strategy, header


def test_chance_has_no_file(tmp_path):
    words = "strategy chance has no learner file: its answers are random"
    with pytest.raises(LearnerError, match=words):
        save_learner(tmp_path / LEARNER, *new_strategy("chance"))


@pytest.mark.parametrize(
    "settings",
    [{"strategy": "chance"}, {"strategy": "ncm", "keep_learner": False}],
    ids=["chance", "not asked for"],
)
def test_a_run_without_a_file(done, tiny, tmp_path, settings):
    done(*tiny, *flags(output=tmp_path, **settings))
    assert (tmp_path / "result.json").exists()
    assert not (tmp_path / LEARNER).exists()


@dataclass
class SavedFile:
    """The parts of a learner's file, which `write` puts together again."""

    state: dict
    metadata: dict
    path: object

    def write(self):
        write_state(self.path, self.state, self.metadata)


@pytest.fixture
def ncm_file(tmp_path):
    path = tmp_path / LEARNER
    save_learner(path, *new_strategy("ncm"))
    return SavedFile(*read_state(path), path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(LearnerError, match="there is no file"):
        load_learner(tmp_path / "missing.safetensors")


def test_a_file_of_another_format(ncm_file):
    ncm_file.metadata = {"format": "crumb-checkpoint-1"}
    ncm_file.write()
    words = "of format 'crumb-checkpoint-1', not crumb-run-learner-1"
    with pytest.raises(LearnerError, match=words):
        load_learner(ncm_file.path)


def test_a_header_with_an_unknown_entry(ncm_file):
    header = json.loads(ncm_file.metadata["learner"]) | {"colour": "red"}
    ncm_file.metadata["learner"] = json.dumps(header)
    ncm_file.write()
    words = r"is no valid learner.*\(colour is unknown"
    with pytest.raises(LearnerError, match=words):
        read_header(ncm_file.path)


def test_a_state_without_its_method(ncm_file):
    del ncm_file.state["strategy"]["method"]
    ncm_file.write()
    with pytest.raises(LearnerError, match="does not fit strategy ncm"):
        load_learner(ncm_file.path)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "not finite"),
        (0.5, "are not those that its header names"),
    ],
)
def test_weights_that_were_changed(runs, tmp_path, value, words):
    file = SavedFile(*read_state(runs("er") / LEARNER), tmp_path / LEARNER)
    tensors = file.state["feature_extractor"].values()
    weights = next(tensor for tensor in tensors if tensor.is_floating_point())
    weights.view(-1)[0] = value
    file.write()
    with pytest.raises(LearnerError, match=words):
        load_learner(file.path)
