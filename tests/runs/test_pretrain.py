"""`crumb pretrain`: interrupted, beside another process, and what it writes."""

import pytest
from learned import weights_of

from crumb_avalanche.runs import pretrain
from crumb_avalanche.system.folder_lock import locked
from crumb_avalanche.training.checkpoint import CheckpointFolder
from crumb_avalanche.training.pretraining import read_pretrained


@pytest.fixture
def images(clips, tmp_path):
    """The frames of the clips in one folder a class: 120 images."""
    root = tmp_path / "images"
    for folder in clips.iterdir():
        (root / folder.name).mkdir(parents=True)
        for number, frame in enumerate(sorted(folder.rglob("*.png"))):
            (root / folder.name / f"{number}.png").write_bytes(frame.read_bytes())
    return root


@pytest.fixture
def options(images):
    """Settings of a pretraining that takes a second."""
    return [
        *("pretrain", "--data", str(images), "--weights", "none", "--backbone", "small_cnn", "--image-size", "32"),
        *("--batch-size", "16", "--learning-rate", "0.01", "--threads", "1", "--progress", "false"),
    ]


def test_hidden_files_are_skipped_and_damaged_images_named(done, refused, options, images, tmp_path):
    (images / "cup" / "._0.png").write_bytes(b"what a Mac leaves on a stick")
    options = [*options, "--epochs", "1", "--output", tmp_path / "x.safetensors"]
    done(*options)
    (images / "cup" / "0.png").write_bytes(b"no picture")
    err = refused("cannot decode .*; replace it or remove it", *options, "--overwrite", "true")
    assert str(images / "cup" / "0.png") in err


def test_an_interrupted_pretraining_resumes(crumb, done, refused, options, tmp_path, monkeypatch):
    whole, cut = tmp_path / "whole.safetensors", tmp_path / "cut.safetensors"
    options = [*options, "--epochs", "3"]
    done(*options, "--output", whole)
    assert not [*tmp_path.glob("*.checkpoints")]
    write = CheckpointFolder.write

    def cut_off(self, notes, state):
        write(self, notes, state)
        if len(notes["history"]) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFolder, "write", cut_off)
        code, _, err = crumb(*options, "--output", cut)
    assert code == 130 and "crumb pretrain: stopped; what was finished is kept, and the same command resumes" in err
    folder = tmp_path / "cut.safetensors.checkpoints"
    names = ["00000000.safetensors", "00000001.safetensors", "maps"]
    assert sorted(path.name for path in folder.iterdir()) == names and not cut.exists()
    words = "holds checkpoints made with codebook_size=256, not 128; resume with the same settings"
    refused(words, *options, "--codebook-size", "128", "--output", cut)
    out = done(*options, "--output", cut)
    (one, first), (other, second) = read_pretrained(whole), read_pretrained(cut)
    assert first["history"] == second["history"] and one.keys() == other.keys()
    assert all(one[name].equal(other[name]) for name in one)
    assert "120 images of 4 classes" in out and not folder.exists()


def test_an_output_that_appears_during_a_pretraining_stays(refused, options, tmp_path, monkeypatch):
    file = tmp_path / "x.safetensors"

    def late(folder):
        file.write_text("of another")
        return locked(folder)

    monkeypatch.setattr(pretrain, "locked", late)
    words = "x.safetensors exists already; choose another --output, or replace it with --overwrite true"
    refused(words, *options, "--epochs", "1", "--output", file)
    assert file.read_text() == "of another" and [*tmp_path.glob("x*")] == [file]


def test_a_run_starts_from_the_pretrained_file_with_a_new_head(done, refused, options, tiny, tmp_path):
    file = tmp_path / "made.safetensors"
    out = done(*options, "--epochs", "1", "--images-per-class", "20", "--output", file)
    assert "80 images of 4 classes" in out
    run = (*tiny, "--output", tmp_path / "run", "--pretrained", file)
    done(*run, "--learning-rate", "0")
    saved = read_pretrained(file)[0]
    then = {name: value for name, value in saved.items() if not name.startswith("feature_extractor.")}
    now = weights_of(tmp_path / "run")
    changed = {name for name in then if not then[name].equal(now[name])}
    assert then.keys() == now.keys() and changed == {"plastic_layers.head.weight", "plastic_layers.head.bias"}
    for wrong, words in (
        (("--codebook-dim", "8"), "codebook_dim=16, but this run has codebook_dim=8"),
        (("--cut-layer", "3"), "cut_layer=None, but this run has cut_layer=3"),
        (("--pretrained", tmp_path / "run" / "learner.safetensors"), "was not written by crumb pretrain"),
    ):
        refused(words, *run, "--output", tmp_path / "other", *wrong)
    for name in ("SVHN", "utils"):
        words = f"torchvision has no data set {name!r} with train=True"
        refused(words, "pretrain", "--data", f"torchvision:{name}", "--output", tmp_path / "x.safetensors")
