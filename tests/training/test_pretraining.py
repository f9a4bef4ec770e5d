"""Pretraining trains P and the codebook but not F, resumes bit for bit, and writes a
file that is read as written.
"""

import contextlib
import io
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from fake_runs import weights_of
from flags import flags
from small_models import coloured
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, TensorDataset

from crumb_avalanche.cli import main
from crumb_avalanche.models.weights import (
    WeightsError,
    check_and_load,
    weights_hash,
)
from crumb_avalanche.runs import pretrain as command
from crumb_avalanche.system.folder_lock import in_use, locked
from crumb_avalanche.system.tensor_file import read_state, write_state, write_tensors
from crumb_avalanche.training.checkpoint import CheckpointError, CheckpointFolder
from crumb_avalanche.training.pretraining import (
    FORMAT,
    PretrainingSettings,
    pretrain,
    read_pretrained,
    save_pretrained,
)

# What a file of the small model was made with.
MADE_WITH = {
    "backbone": "tiny",
    "classes": 4,
    "head_kernel": 1,
    "codebook_size": 8,
    "codebook_dim": 4,
}


@pytest.fixture(scope="module")
def images():
    return coloured()


def learn(model, images, **settings):
    """Pretrain in batches of 8, by default at a learning rate of 0.05."""
    chosen = PretrainingSettings(**{"batch_size": 8, "learning_rate": 0.05, **settings})
    return pretrain(model, images, chosen, progress=False)


def hashes_of(model):
    """Hashes of the weights of the parts of a model, by their name."""
    hashes = {}
    for name in ("feature_extractor", "plastic_layers", "codebook"):
        hashes[name] = weights_hash(getattr(model, name))
    return hashes


@pytest.fixture(scope="module")
def trained(make_model, images):
    """A model that was pretrained for eight epochs on maps, its history, and the hashes
    of its weights before.
    """
    model = make_model()
    pixels, labels = images.tensors
    before = hashes_of(model)
    model.fold_feature_scale(model.features(pixels))
    maps = TensorDataset(model.extract(pixels), labels)  # train as images do
    history = learn(model, maps, epochs=8, learning_rate=0.01)
    return model, history, before


def test_the_loss_falls(trained):
    _, history, _ = trained
    assert len(history) == 8
    assert all(epoch.keys() == history[0].keys() for epoch in history)
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    assert history[-1]["direct_accuracy"] > 80
    assert history[-1]["codebook_accuracy"] > 60


def test_plastic_layers_and_codebook_change_but_not_f(trained):
    model, _, before = trained
    hashes = hashes_of(model)
    assert hashes["feature_extractor"] == before["feature_extractor"]
    assert hashes["plastic_layers"] != before["plastic_layers"]
    assert hashes["codebook"] != before["codebook"]


def test_a_pretrained_model_is_in_evaluation_mode(trained):
    model, _, _ = trained
    assert not model.training


def test_a_loss_that_diverges_is_named(model, images):
    words = r"the pretraining loss became .* in epoch 1; lower --learning-rate"
    with pytest.raises(RuntimeError, match=words):
        learn(model, images, learning_rate=1e30)


def percent_right(logits, labels):
    return 100 * float((logits.argmax(1) == labels).float().mean())


@pytest.mark.parametrize(("alpha", "beta"), [(0, 1), (0.5, 2)])
def test_one_step_equals_the_formula(make_model, images, alpha, beta):
    model = make_model()
    twin = make_model()
    pixels, labels = images.tensors

    (epoch,) = learn(
        model,
        images,
        epochs=1,
        batch_size=40,
        momentum=0,
        weight_decay=0,
        direct_weight=alpha,
        codebook_weight=beta,
    )

    feature_map = twin.features(pixels)
    direct = twin.plastic_layers(feature_map)
    quantized = twin.plastic_layers(twin.codebook(feature_map))
    direct_loss = cross_entropy(direct, labels)
    codebook_loss = cross_entropy(quantized, labels)
    loss = alpha * direct_loss + beta * codebook_loss
    loss.backward()
    assert epoch["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert epoch["direct_accuracy"] == pytest.approx(percent_right(direct, labels))
    assert epoch["codebook_accuracy"] == pytest.approx(percent_right(quantized, labels))
    for (name, weight), before in zip(model.named_parameters(), twin.parameters()):
        if before.grad is None:
            continue
        expected = before - 0.05 * before.grad
        torch.testing.assert_close(weight, expected, rtol=1e-4, atol=1e-6, msg=name)


def test_a_saved_file_is_read_as_written(make_model, images, tmp_path):
    pixels, _ = images.tensors
    model = make_model()
    model.fold_feature_scale(model.features(pixels))
    learn(model, images, epochs=1)
    path = tmp_path / "made" / "model.safetensors"

    save_pretrained(path, model, MADE_WITH)
    state, made_with = read_pretrained(path)

    assert made_with == MADE_WITH
    second = make_model(seed=1)
    check_and_load(second, state, str(path))
    assert weights_hash(second) == weights_hash(model)
    assert torch.equal(second.eval()(pixels), model(pixels))


class InterruptedReadingError(Exception):
    pass


class CutOff(Dataset):
    """Images that raise an error after a number of reads."""

    def __init__(self, images, reads):
        self.images = images
        self.reads = reads

    def __len__(self):
        return len(self.images)

    def __getitem__(self, row):
        self.reads -= 1
        if self.reads < 0:
            raise InterruptedReadingError
        return self.images[row]


FOUR_EPOCHS = PretrainingSettings(epochs=4, batch_size=8, learning_rate=0.05)


@pytest.fixture
def checkpoints(tmp_path):
    return CheckpointFolder(tmp_path / "checkpoints")


def with_dropout(make_model, seed=0):
    model = make_model(seed=seed)
    model.plastic_layers.relu = nn.Sequential(nn.ReLU(), nn.Dropout(0.5))
    torch.manual_seed(5)
    return model


@pytest.mark.parametrize("reads", [40, 100])
def test_an_interrupted_pretraining_ends_bit_identical(
    make_model, images, checkpoints, reads
):
    uninterrupted = with_dropout(make_model)
    history = pretrain(uninterrupted, images, FOUR_EPOCHS, False)
    draws = torch.rand(3)
    cut_off = CutOff(images, reads)
    with pytest.raises(InterruptedReadingError):
        pretrain(with_dropout(make_model), cut_off, FOUR_EPOCHS, False, checkpoints)

    resumed = with_dropout(make_model, seed=3)
    torch.manual_seed(77)
    finished_epochs = reads // 40
    remaining = CutOff(images, 160 - 40 * finished_epochs)
    resumed_history = pretrain(resumed, remaining, FOUR_EPOCHS, False, checkpoints)

    assert resumed_history == history
    assert remaining.reads == 0
    assert weights_hash(resumed) == weights_hash(uninterrupted)
    assert torch.equal(torch.rand(3), draws)
    assert checkpoints.numbers() == [3, 2]


def test_a_finished_pretraining_is_read_without_an_image(
    make_model, images, checkpoints
):
    finished = with_dropout(make_model)
    history = pretrain(finished, images, FOUR_EPOCHS, False, checkpoints)
    draws = torch.rand(3)
    model = with_dropout(make_model, seed=4)
    no_images = CutOff(images, reads=0)
    assert pretrain(model, no_images, FOUR_EPOCHS, False, checkpoints) == history
    assert weights_hash(model) == weights_hash(finished)
    assert torch.equal(torch.rand(3), draws)
    assert checkpoints.numbers() == [3, 2]


@pytest.fixture
def pretrain_with(make_model, images, tmp_path):
    """A function that pretrains for two epochs, or resumes, with other settings."""

    def call(weights="none", learning_rate=0.001):
        settings = PretrainingSettings(
            epochs=2, batch_size=8, learning_rate=learning_rate
        )
        folder = CheckpointFolder(tmp_path / "two_epochs", {"weights": weights})
        return pretrain(make_model(), images, settings, False, folder)

    return call


def test_the_same_settings_resume(pretrain_with):
    assert pretrain_with() == pretrain_with()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"learning_rate": 0.5},
            "made with learning_rate=0.001, not 0.5; resume with the same",
        ),
        (
            {"weights": "other.npz"},
            "two_epochs .* with weights='none', not 'other.npz'; .* remove that folder",
        ),
    ],
    ids=["learning rate", "weights"],
)
def test_other_settings_are_refused_by_name(pretrain_with, change, words):
    pretrain_with()
    with pytest.raises(CheckpointError, match=words):
        pretrain_with(**change)


@dataclass
class CalledCommand:
    """A command that was called.

    Attributes:
        code: its exit code.
        out: what it printed.
        error: what it printed to the standard error.
        output: the file or folder that it writes.
    """

    code: int
    out: str
    error: str
    output: Path


def call(arguments, output):
    """Call a command for a fixture of the module; `crumb` is for one test."""
    out = io.StringIO()
    error = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = main([*map(str, arguments), "--output", str(output)])
    return CalledCommand(code, out.getvalue(), error.getvalue(), output)


@pytest.fixture(scope="module")
def photos(clips, tmp_path_factory):
    """The frames of the clips in a folder for each class: 120 photos."""
    root = tmp_path_factory.mktemp("pretraining") / "photos"
    for folder in clips.iterdir():
        (root / folder.name).mkdir(parents=True)
        for number, frame in enumerate(sorted(folder.rglob("*.png"))):
            (root / folder.name / f"{number}.png").write_bytes(frame.read_bytes())
    return root


def options_of(photos, **settings):
    """The command of a pretraining that takes a second."""
    options = flags(
        data=photos,
        weights="none",
        backbone="small_cnn",
        image_size=32,
        batch_size=16,
        learning_rate=0.01,
        threads=1,
        progress=False,
        **settings,
    )
    return ["pretrain", *options]


@pytest.fixture
def photos_to_change(photos, tmp_path):
    return Path(shutil.copytree(photos, tmp_path / "photos"))


def test_hidden_files_are_skipped(done, photos_to_change, tmp_path):
    hidden = photos_to_change / "cup" / "._0.png"
    hidden.write_bytes(b"what a Mac leaves on a stick")
    options = options_of(photos_to_change, epochs=1)
    done(*options, "--output", tmp_path / "x.safetensors")


def test_damaged_images_are_named(done, refused, photos_to_change, tmp_path):
    # Given a pretrained file, and an image that cannot be read
    output = tmp_path / "x.safetensors"
    options = [*options_of(photos_to_change, epochs=1), "--output", output]
    done(*options)
    content = output.read_bytes()
    damaged = photos_to_change / "cup" / "0.png"
    damaged.write_bytes(b"no picture")
    # When it is to be written again
    words = "cannot decode .*; replace it or remove it"
    error = refused(words, *options, "--overwrite", "true")
    # Then the image is named, and the file stays
    assert str(damaged) in error
    assert output.read_bytes() == content


@pytest.fixture(scope="module")
def interrupted(photos, tmp_path_factory):
    """A pretraining that was stopped after the second of three epochs."""
    write = CheckpointFolder.write

    def cut_off(self, notes, state):
        assert in_use(self.folder)
        write(self, notes, state)
        if len(notes["history"]) == 2:
            raise KeyboardInterrupt

    output = tmp_path_factory.mktemp("interrupted") / "cut.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointFolder, "write", cut_off)
        return call(options_of(photos, epochs=3), output)


def checkpoints_of(output):
    """The folder of the checkpoints of a file that is to be written."""
    return output.with_name(f"{output.name}.checkpoints")


def test_an_interrupted_pretraining_says_how_to_resume(interrupted):
    words = (
        "crumb pretrain: stopped; what was finished is kept, and the same command "
        "resumes"
    )
    assert interrupted.code == 130
    assert words in interrupted.error


def test_an_interrupted_pretraining_leaves_checkpoints_and_maps(interrupted):
    names = {path.name for path in checkpoints_of(interrupted.output).iterdir()}
    assert names == {"00000000.safetensors", "00000001.safetensors", "maps"}
    assert not interrupted.output.exists()


def test_an_interrupted_pretraining_refuses_other_settings(
    refused, photos, interrupted
):
    words = (
        "holds checkpoints made with codebook_size=256, not 128; resume with the same "
        "settings"
    )
    options = options_of(photos, epochs=3, codebook_size=128)
    refused(words, *options, "--output", interrupted.output)


def test_an_interrupted_pretraining_resumes(done, photos, interrupted, tmp_path):
    options = options_of(photos, epochs=3)
    uninterrupted = tmp_path / "uninterrupted.safetensors"
    done(*options, "--output", uninterrupted)
    assert not list(tmp_path.glob("*.checkpoints"))
    resumed = tmp_path / "resumed.safetensors"
    shutil.copytree(checkpoints_of(interrupted.output), checkpoints_of(resumed))

    printed = done(*options, "--output", resumed)

    assert "120 images of 4 classes" in printed
    assert not checkpoints_of(resumed).exists()
    expected, expected_notes = read_pretrained(uninterrupted)
    state, notes = read_pretrained(resumed)
    assert notes["history"] == expected_notes["history"]
    assert state.keys() == expected.keys()
    assert all(state[name].equal(expected[name]) for name in expected)


def test_an_output_that_appears_during_a_pretraining_stays(
    refused, photos, tmp_path, monkeypatch
):
    file = tmp_path / "x.safetensors"

    def locked_after_another_wrote(folder):
        file.write_text("of another")
        return locked(folder)

    monkeypatch.setattr(command, "locked", locked_after_another_wrote)
    words = (
        "x.safetensors exists already; choose another --output, or replace it with "
        "--overwrite true"
    )
    refused(words, *options_of(photos, epochs=1), "--output", file)
    assert file.read_text() == "of another"
    assert list(tmp_path.glob("x*")) == [file]


@pytest.fixture(scope="module")
def pretrained(photos, tmp_path_factory):
    """A file that was pretrained on 20 images of each class."""
    output = tmp_path_factory.mktemp("pretrained") / "made.safetensors"
    pretraining = call(options_of(photos, epochs=1, images_per_class=20), output)
    assert pretraining.code == 0, pretraining.error
    return pretraining


@pytest.fixture(scope="module")
def run_from_pretrained(tiny, pretrained, tmp_path_factory):
    """The folder of a run from the pretrained file, at a learning rate of 0."""
    settings = flags(pretrained=pretrained.output, learning_rate=0)
    output = tmp_path_factory.mktemp("run_from_pretrained") / "run"
    run = call([*tiny, *settings], output)
    assert run.code == 0, run.error
    return output


def test_a_pretraining_may_take_fewer_images(pretrained):
    assert "80 images of 4 classes" in pretrained.out


def test_a_run_starts_from_the_pretrained_file_with_a_new_head(
    pretrained, run_from_pretrained
):
    state, _ = read_pretrained(pretrained.output)
    saved = {}
    for name, weights in state.items():
        # The run measures the error of the codes on its own images.
        if not name.startswith(("feature_extractor.", "codes_error")):
            saved[name] = weights
    learned = weights_of(run_from_pretrained)
    learned.pop("codes_error")
    assert learned.keys() == saved.keys()
    changed = {name for name in saved if not saved[name].equal(learned[name])}
    assert changed == {"plastic_layers.head.weight", "plastic_layers.head.bias"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"codebook_dim": 8}, "codebook_dim=16, but this run has codebook_dim=8"),
        ({"cut_layer": 3}, "cut_layer=None, but this run has cut_layer=3"),
    ],
    ids=["codebook", "cut"],
)
def test_a_run_of_another_model_is_refused(
    refused, tiny, pretrained, tmp_path, settings, words
):
    options = flags(pretrained=pretrained.output, **settings)
    refused(words, *tiny, *options, "--output", tmp_path / "run")


def test_a_file_of_a_learner_is_no_pretrained_file(
    refused, tiny, run_from_pretrained, tmp_path
):
    file = run_from_pretrained / "learner.safetensors"
    options = flags(pretrained=file, output=tmp_path / "run")
    refused("was not written by crumb pretrain", *tiny, *options)


@pytest.mark.parametrize("name", ["SVHN", "utils"])
def test_a_torchvision_name_without_training_images_is_refused(refused, tmp_path, name):
    words = f"torchvision has no data set {name!r} with train=True"
    output = tmp_path / "x.safetensors"
    refused(words, "pretrain", "--data", f"torchvision:{name}", "--output", output)


def pretrain_for_an_epoch(make_model, images, folder):
    settings = PretrainingSettings(epochs=1, batch_size=8)
    return pretrain(make_model(), images, settings, False, CheckpointFolder(folder))


def rewritten(folder, change):
    """The newest checkpoint of a folder, changed, with right checksums."""
    path = max(folder.glob("*.safetensors"))
    state, metadata = read_state(path)
    notes = json.loads(metadata["notes"])
    change(state, notes)
    write_state(path, state, {**metadata, "notes": json.dumps(notes)})
    return path


# A change of the state of a checkpoint, and what is said about it.
STATES = {
    "no model": (lambda state: state.pop("model"), "model is missing"),
    "no momentum": (lambda state: state.pop("momentum"), "momentum is missing"),
    "no rows": (lambda state: state.pop("rows"), "rows is missing"),
    "no random numbers": (lambda state: state.pop("rng"), "rng is missing"),
    "no torch": (lambda state: state["rng"].pop("torch"), "torch"),
    "an unknown entry": (lambda state: state.update(x=1), "x is unknown"),
    "fewer momenta": (lambda state: state["momentum"].pop(), "momentum is a list of"),
    "another momentum": (
        lambda state: state["momentum"].__setitem__(0, torch.zeros(3)),
        r"momentum\[0\] is float32 \(3,\)",
    ),
    "a weight less": (
        lambda state: state["model"].pop("plastic_layers.head.weight"),
        "has no 'plastic_layers.head.weight'",
    ),
    "short rows": (
        lambda state: state.update(rows=torch.zeros(2, dtype=torch.uint8)),
        "RNG state",
    ),
}


@pytest.mark.parametrize(("change", "words"), STATES.values(), ids=STATES)
def test_a_checkpoint_of_another_state_is_refused(
    make_model, images, tmp_path, change, words
):
    pretrain_for_an_epoch(make_model, images, tmp_path)
    path = rewritten(tmp_path, lambda state, notes: change(state))
    with pytest.raises(CheckpointError, match=words) as refusal:
        pretrain_for_an_epoch(make_model, images, tmp_path)
    message = str(refusal.value)
    assert f"the state in {path} does not fit this pretraining" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "history",
    [None, [{"loss": 1.0}], [{"loss": "1"}], 3, [{"loss": -1.0}]],
    ids=["none", "incomplete", "text", "number", "negative loss"],
)
def test_a_checkpoint_with_another_history_is_damaged(
    make_model, images, tmp_path, history
):
    pretrain_for_an_epoch(make_model, images, tmp_path)
    rewritten(tmp_path, lambda state, notes: notes.update(history=history))
    with (
        pytest.warns(UserWarning, match=r"history.* trying the one before it"),
        pytest.raises(CheckpointError, match=r"all checkpoints in .* are damaged"),
    ):
        pretrain_for_an_epoch(make_model, images, tmp_path)


@pytest.mark.parametrize(
    ("made_with", "words"),
    [
        ([], "a list of 0"),
        ({**MADE_WITH, "classes": "four"}, "classes is 'four'"),
        ({**MADE_WITH, "classes": 10**9}, "no tensor has that many rows"),
        ({**MADE_WITH, "backbone": None}, "backbone is None"),
        ({"backbone": "tiny"}, "classes is missing"),
    ],
    ids=["list", "text", "too many classes", "no backbone", "no classes"],
)
def test_a_pretrained_file_with_damaged_settings(model, tmp_path, made_with, words):
    path = tmp_path / "made.safetensors"
    save_pretrained(path, model, made_with)
    with pytest.raises(WeightsError, match=f"settings of its pretraining.*{words}"):
        read_pretrained(path)


def test_a_pretrained_file_without_settings(model, tmp_path):
    path = tmp_path / "made.safetensors"
    write_tensors(path, model.state_dict(), {"format": FORMAT})
    with pytest.raises(WeightsError, match="is damaged: the settings"):
        read_pretrained(path)
