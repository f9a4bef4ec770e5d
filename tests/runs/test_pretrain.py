"""`crumb pretrain`: interrupted, twice at once, and what it writes."""

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


def test_hidden_files_are_skipped_and_damaged_images_named(crumb, options, images, tmp_path):
    (images / "cup" / "._0.png").write_bytes(b"what a Mac leaves on a stick")
    options = [*options, "--epochs", "1", "--output", tmp_path / "x.safetensors"]
    assert crumb(*options)[0] == 0
    (images / "cup" / "0.png").write_bytes(b"no picture")
    code, _, err = crumb(*options, "--overwrite", "true")
    assert code == 1 and f"cannot decode {images / 'cup' / '0.png'} (" in err and "; replace it or remove it" in err


def test_an_interrupted_pretraining_resumes(crumb, options, tmp_path, monkeypatch):
    whole, cut = tmp_path / "whole.safetensors", tmp_path / "cut.safetensors"
    code, _, err = crumb(*options, "--epochs", "3", "--output", whole)
    assert code == 0, err
    assert not [*tmp_path.glob("*.checkpoints")]
    write = CheckpointFolder.write

    def cut_off(self, notes, state):
        write(self, notes, state)
        if len(notes["history"]) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFolder, "write", cut_off)
        code, _, err = crumb(*options, "--epochs", "3", "--output", cut)
    assert code == 130 and "crumb pretrain: stopped; what was finished is kept, and the same command resumes" in err
    folder = tmp_path / "cut.safetensors.checkpoints"
    names = ["00000000.safetensors", "00000001.safetensors", "maps"]
    assert sorted(path.name for path in folder.iterdir()) == names and not cut.exists()
    code, _, err = crumb(*options, "--epochs", "3", "--codebook-size", "128", "--output", cut)
    assert code == 1 and "holds checkpoints made with codebook_size=256, not 128; resume with the same settings" in err
    code, out, err = crumb(*options, "--epochs", "3", "--output", cut)
    assert code == 0, err
    (one, first), (other, second) = read_pretrained(whole), read_pretrained(cut)
    assert first["history"] == second["history"] and one.keys() == other.keys()
    assert all(one[name].equal(other[name]) for name in one)
    assert "120 images of 4 classes" in out and not folder.exists()


def test_a_second_pretraining_of_one_output_is_refused(crumb, options, tmp_path, monkeypatch):
    file, folder = tmp_path / "x.safetensors", tmp_path / "x.safetensors.checkpoints"
    with locked(folder):
        code, _, err = crumb(*options, "--epochs", "1", "--output", file)
    words = f"{folder} is in use by another process"
    assert code == 1 and words in err and "wait for its end, or choose another --output" in err
    assert not file.exists() and not [*folder.iterdir()]

    def late(folder):
        file.write_text("of another")
        return locked(folder)

    monkeypatch.setattr(pretrain, "locked", late)
    code, _, err = crumb(*options, "--epochs", "1", "--output", file)
    assert code == 1 and f"{file} exists already; choose another --output, or replace it with --overwrite true" in err
    assert file.read_text() == "of another" and [*tmp_path.glob("x*")] == [file]


def test_a_run_starts_from_the_pretrained_file_with_a_new_head(crumb, options, tiny, tmp_path):
    file = tmp_path / "made.safetensors"
    code, out, err = crumb(*options, "--epochs", "1", "--images-per-class", "20", "--output", file)
    assert code == 0 and "80 images of 4 classes" in out, err
    run = (*tiny, "--output", tmp_path / "run", "--pretrained", file)
    code, _, err = crumb(*run, "--learning-rate", "0")
    assert code == 0, err
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
        code, _, err = crumb(*run, "--output", tmp_path / "other", *wrong)
        assert code == 1 and words in err


@pytest.mark.parametrize("name", ["SVHN", "utils"])
def test_unsupported_torchvision_data_sets_are_refused(crumb, tmp_path, name):
    code, _, err = crumb("pretrain", "--data", f"torchvision:{name}", "--output", tmp_path / "x.safetensors")
    assert code == 1 and f"torchvision has no data set {name!r} with train=True" in err
