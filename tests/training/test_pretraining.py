"""Pretraining trains P and the codebook but not F, resumes bit for bit, and writes a
file that is read as written.
"""

import json

import pytest
import torch
from fake_runs import weights_of
from small_models import coloured
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, TensorDataset

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


@pytest.fixture(scope="module")
def images():
    return coloured()


def learn(model, images, **settings):
    chosen = PretrainingSettings(**dict(batch_size=8, learning_rate=0.05) | settings)
    return pretrain(model, images, chosen, progress=False)


def test_the_loss_falls_and_f_does_not_change(model, images):
    before = {}
    for name in ("feature_extractor", "plastic_layers", "codebook"):
        before[name] = weights_hash(getattr(model, name))
    model.fold_feature_scale(model.features(images.tensors[0]))
    maps = TensorDataset(
        model.extract(images.tensors[0]), images.tensors[1]
    )  # train as images do
    history = learn(model, maps, epochs=8, learning_rate=0.01)
    assert len(history) == 8 and all(
        epoch.keys() == history[0].keys() for epoch in history
    )
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    assert history[-1]["direct_accuracy"] > 80 and history[-1]["codebook_accuracy"] > 60
    assert weights_hash(model.feature_extractor) == before["feature_extractor"]
    assert weights_hash(model.plastic_layers) != before["plastic_layers"]
    assert weights_hash(model.codebook) != before["codebook"]
    assert not model.training
    with pytest.raises(
        RuntimeError,
        match=r"the pretraining loss became .* in epoch 1; lower --learning-rate",
    ):
        learn(model, images, learning_rate=1e30)


@pytest.mark.parametrize("alpha, beta", [(0, 1), (0.5, 2)])
def test_one_step_equals_the_formula(make_model, images, alpha, beta):
    model, twin = make_model(), make_model()
    settings = dict(
        epochs=1,
        batch_size=40,
        momentum=0,
        weight_decay=0,
        direct_weight=alpha,
        codebook_weight=beta,
    )
    history = learn(model, images, **settings)
    pixels, labels = images.tensors
    feature_map = twin.features(pixels)
    direct, quantized = (
        twin.plastic_layers(feature_map),
        twin.plastic_layers(twin.codebook(feature_map)),
    )
    loss = alpha * cross_entropy(direct, labels) + beta * cross_entropy(
        quantized, labels
    )
    assert history[0]["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    right = []
    for logits in (direct, quantized):
        right.append(100 * float((logits.argmax(1) == labels).float().mean()))
    assert [
        history[0]["direct_accuracy"],
        history[0]["codebook_accuracy"],
    ] == pytest.approx(right)
    loss.backward()
    for (name, now), then in zip(model.named_parameters(), twin.parameters()):
        if then.grad is not None:
            torch.testing.assert_close(
                now, then - 0.05 * then.grad, rtol=1e-4, atol=1e-6, msg=name
            )


def test_a_saved_file_is_read_as_written(make_model, images, tmp_path):
    model, path = make_model(), tmp_path / "made" / "model.safetensors"
    model.fold_feature_scale(model.features(images.tensors[0]))
    learn(model, images, epochs=1)
    made_with = {
        "backbone": "tiny",
        "classes": 4,
        "head_kernel": 1,
        "codebook_size": 8,
        "codebook_dim": 4,
    }
    save_pretrained(path, model, made_with)
    state, read = read_pretrained(path)
    assert read == made_with
    second = make_model(seed=1)
    check_and_load(second, state, str(path))
    assert weights_hash(second) == weights_hash(model)
    assert torch.equal(second.eval()(images.tensors[0]), model(images.tensors[0]))


class Interrupted(Exception):
    pass


class CutOff(Dataset):
    """The images, until so many were read."""

    def __init__(self, whole, reads):
        self.whole = whole
        self.reads = reads

    def __len__(self):
        return len(self.whole)

    def __getitem__(self, row):
        self.reads -= 1
        if self.reads < 0:
            raise Interrupted
        return self.whole[row]


def with_dropout(make_model, seed=0):
    model = make_model(seed=seed)
    model.plastic_layers.relu = nn.Sequential(nn.ReLU(), nn.Dropout(0.5))
    torch.manual_seed(5)
    return model


@pytest.mark.parametrize("reads", [40, 100])
def test_an_interrupted_pretraining_ends_bit_identical(
    make_model, images, tmp_path, reads
):
    settings = PretrainingSettings(epochs=4, batch_size=8, learning_rate=0.05)
    whole, checkpoints = (
        with_dropout(make_model),
        CheckpointFolder(tmp_path / "checkpoints"),
    )
    history = pretrain(whole, images, settings, False)
    with pytest.raises(Interrupted):
        pretrain(
            with_dropout(make_model),
            CutOff(images, reads),
            settings,
            False,
            checkpoints,
        )
    torch.manual_seed(77)
    model, rest = (
        with_dropout(make_model, seed=3),
        CutOff(images, 160 - reads // 40 * 40),
    )
    assert pretrain(model, rest, settings, False, checkpoints) == history
    assert rest.reads == 0 and weights_hash(model) == weights_hash(whole)
    draws, again = torch.rand(3), with_dropout(make_model, seed=4)
    assert (
        pretrain(again, images, settings, False, checkpoints) == history
    )  # nothing is left to do
    assert weights_hash(again) == weights_hash(whole) and torch.equal(
        torch.rand(3), draws
    )
    assert checkpoints.numbers() == [3, 2]


def test_other_settings_are_refused_by_name(make_model, images, tmp_path):
    def resume(made_with, **changes):
        settings = PretrainingSettings(**dict(epochs=2, batch_size=8) | changes)
        return pretrain(
            make_model(),
            images,
            settings,
            False,
            CheckpointFolder(tmp_path / "kept", made_with),
        )

    assert resume({"weights": "none"}) == resume({"weights": "none"})
    with pytest.raises(
        CheckpointError,
        match=r"made with learning_rate=0.001, not 0.5; resume with the same",
    ):
        resume({"weights": "none"}, learning_rate=0.5)
    with pytest.raises(
        CheckpointError,
        match=r"kept .* with weights='none', not 'other.npz'; .* remove that folder",
    ):
        resume({"weights": "other.npz"})


@pytest.fixture
def photos(clips, tmp_path):
    """The frames of the clips in one folder a class: 120 photos."""
    root = tmp_path / "photos"
    for folder in clips.iterdir():
        (root / folder.name).mkdir(parents=True)
        for number, frame in enumerate(sorted(folder.rglob("*.png"))):
            (root / folder.name / f"{number}.png").write_bytes(frame.read_bytes())
    return root


@pytest.fixture
def options(photos):
    """Settings of a pretraining that takes a second."""
    return [
        *(
            "pretrain",
            "--data",
            str(photos),
            "--weights",
            "none",
            "--backbone",
            "small_cnn",
            "--image-size",
            "32",
        ),
        *(
            "--batch-size",
            "16",
            "--learning-rate",
            "0.01",
            "--threads",
            "1",
            "--progress",
            "false",
        ),
    ]


def test_hidden_files_are_skipped_and_damaged_images_named(
    done, refused, options, photos, tmp_path
):
    (photos / "cup" / "._0.png").write_bytes(b"what a Mac leaves on a stick")
    options = [*options, "--epochs", "1", "--output", tmp_path / "x.safetensors"]
    done(*options)
    (photos / "cup" / "0.png").write_bytes(b"no picture")
    err = refused(
        "cannot decode .*; replace it or remove it", *options, "--overwrite", "true"
    )
    assert str(photos / "cup" / "0.png") in err


def test_an_interrupted_pretraining_resumes(
    crumb, done, refused, options, tmp_path, monkeypatch
):
    whole, cut = tmp_path / "whole.safetensors", tmp_path / "cut.safetensors"
    options = [*options, "--epochs", "3"]
    done(*options, "--output", whole)
    assert not [*tmp_path.glob("*.checkpoints")]
    write = CheckpointFolder.write

    def cut_off(self, notes, state):
        assert in_use(self.folder)
        write(self, notes, state)
        if len(notes["history"]) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFolder, "write", cut_off)
        code, _, err = crumb(*options, "--output", cut)
    assert (
        code == 130
        and (
            "crumb pretrain: stopped; what was finished is kept, and the same command "
            "resumes"
        )
        in err
    )
    folder = tmp_path / "cut.safetensors.checkpoints"
    names = ["00000000.safetensors", "00000001.safetensors", "maps"]
    assert sorted(path.name for path in folder.iterdir()) == names and not cut.exists()
    words = (
        "holds checkpoints made with codebook_size=256, not 128; resume with the same "
        "settings"
    )
    refused(words, *options, "--codebook-size", "128", "--output", cut)
    out = done(*options, "--output", cut)
    (one, first), (other, second) = read_pretrained(whole), read_pretrained(cut)
    assert first["history"] == second["history"] and one.keys() == other.keys()
    assert all(one[name].equal(other[name]) for name in one)
    assert "120 images of 4 classes" in out and not folder.exists()


def test_an_output_that_appears_during_a_pretraining_stays(
    refused, options, tmp_path, monkeypatch
):
    file = tmp_path / "x.safetensors"

    def late(folder):
        file.write_text("of another")
        return locked(folder)

    monkeypatch.setattr(command, "locked", late)
    words = (
        "x.safetensors exists already; choose another --output, or replace it with "
        "--overwrite true"
    )
    refused(words, *options, "--epochs", "1", "--output", file)
    assert file.read_text() == "of another" and [*tmp_path.glob("x*")] == [file]


def test_a_run_starts_from_the_pretrained_file_with_a_new_head(
    done, refused, options, tiny, tmp_path
):
    file = tmp_path / "made.safetensors"
    out = done(*options, "--epochs", "1", "--images-per-class", "20", "--output", file)
    assert "80 images of 4 classes" in out
    run = (*tiny, "--output", tmp_path / "run", "--pretrained", file)
    done(*run, "--learning-rate", "0")
    saved = read_pretrained(file)[0]
    then = {
        name: value
        for name, value in saved.items()
        # The run measures the error of the codes on its own images.
        if not name.startswith(("feature_extractor.", "codes_error"))
    }
    now = weights_of(tmp_path / "run")
    changed = {name for name in then if not then[name].equal(now[name])}
    now.pop("codes_error")
    assert then.keys() == now.keys() and changed == {
        "plastic_layers.head.weight",
        "plastic_layers.head.bias",
    }
    for wrong, words in (
        (("--codebook-dim", "8"), "codebook_dim=16, but this run has codebook_dim=8"),
        (("--cut-layer", "3"), "cut_layer=None, but this run has cut_layer=3"),
        (
            ("--pretrained", tmp_path / "run" / "learner.safetensors"),
            "was not written by crumb pretrain",
        ),
    ):
        refused(words, *run, "--output", tmp_path / "other", *wrong)
    for name in ("SVHN", "utils"):
        words = f"torchvision has no data set {name!r} with train=True"
        refused(
            words,
            "pretrain",
            "--data",
            f"torchvision:{name}",
            "--output",
            tmp_path / "x.safetensors",
        )


def one_epoch(make_model, images, folder, epochs=1):
    settings = PretrainingSettings(epochs=epochs, batch_size=8)
    return pretrain(make_model(), images, settings, False, CheckpointFolder(folder))


def rewritten(folder, change):
    """The newest checkpoint of a folder, changed, with right checksums."""
    path = max(folder.glob("*.safetensors"))
    state, metadata = read_state(path)
    notes = json.loads(metadata["notes"])
    change(state, notes)
    write_state(path, state, {**metadata, "notes": json.dumps(notes)})
    return path


STATES = {
    "no model": (lambda state: state.pop("model"), "model is missing"),
    "no momentum": (lambda state: state.pop("momentum"), "momentum is missing"),
    "no rows": (lambda state: state.pop("rows"), "rows is missing"),
    "no random numbers": (lambda state: state.pop("rng"), "rng is missing"),
    "no torch": (lambda state: state["rng"].pop("torch"), "torch"),
    "a part more": (lambda state: state.update(x=1), "x is unknown"),
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


@pytest.mark.parametrize("case", STATES)
def test_a_checkpoint_without_a_part_is_refused(make_model, images, tmp_path, case):
    change, words = STATES[case]
    one_epoch(make_model, images, tmp_path)
    path = rewritten(tmp_path, lambda state, notes: change(state))
    with pytest.raises(CheckpointError, match=words) as refusal:
        one_epoch(make_model, images, tmp_path, epochs=1)
    assert f"the state in {path} does not fit this pretraining" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "history", [None, [{"loss": 1.0}], [{"loss": "1"}], 3, [{"loss": -1.0}]]
)
def test_a_checkpoint_with_other_notes_is_damaged(
    make_model, images, tmp_path, history
):
    one_epoch(make_model, images, tmp_path)
    rewritten(tmp_path, lambda state, notes: notes.update(history=history))
    with (
        pytest.warns(UserWarning, match=r"history.* trying the one before it"),
        pytest.raises(CheckpointError, match=r"all checkpoints in .* are damaged"),
    ):
        one_epoch(make_model, images, tmp_path)


MADE_WITH = {
    "backbone": "tiny",
    "classes": 4,
    "head_kernel": 1,
    "codebook_size": 8,
    "codebook_dim": 4,
}


@pytest.mark.parametrize(
    "made_with, words",
    [
        ([], "a list of 0"),
        ({**MADE_WITH, "classes": "four"}, "classes is 'four'"),
        ({**MADE_WITH, "classes": 10**9}, "no tensor has that many rows"),
        ({**MADE_WITH, "backbone": None}, "backbone is None"),
        ({"backbone": "tiny"}, "classes is missing"),
    ],
)
def test_a_pretrained_file_with_other_settings(model, tmp_path, made_with, words):
    path = tmp_path / "made.safetensors"
    save_pretrained(path, model, made_with)
    with pytest.raises(WeightsError, match=f"settings of its pretraining.*{words}"):
        read_pretrained(path)


def test_a_pretrained_file_without_settings(model, tmp_path):
    path = tmp_path / "made.safetensors"
    write_tensors(path, model.state_dict(), {"format": FORMAT})
    with pytest.raises(WeightsError, match="is damaged: the settings"):
        read_pretrained(path)
