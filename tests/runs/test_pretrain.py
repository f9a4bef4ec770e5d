"""`crumb pretrain`: interrupted, twice at once, and what it writes."""

import pytest
import torch
from learned import weights_of
from safetensors.torch import load_file

from crumb_avalanche.models.map_store import ENTRY_BYTES
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


def same(one, other) -> bool:
    (weights, made_with), (weights_too, made_with_too) = read_pretrained(one), read_pretrained(other)
    assert made_with["history"] == made_with_too["history"]
    return weights.keys() == weights_too.keys() and all(weights[name].equal(weights_too[name]) for name in weights)


def test_hidden_files_are_skipped_and_damaged_images_named(crumb, options, images, tmp_path):
    (images / "cup" / "._0.png").write_bytes(b"what a Mac leaves on a stick")
    options = [*options, "--epochs", "1", "--output", tmp_path / "x.safetensors"]
    assert crumb(*options)[0] == 0
    (images / "cup" / "0.png").write_bytes(b"no picture")
    code, _, err = crumb(*options, "--overwrite", "true")
    assert code == 1 and f"cannot decode {images / 'cup' / '0.png'} (" in err and "; replace it or remove it" in err


def test_precision_of_the_network_and_of_the_cache(crumb, options, tmp_path):
    sizes = {}
    for precision, cached in (("fp32", "fp32"), ("bf16", "fp16")):
        output, folder = tmp_path / f"{precision}.safetensors", tmp_path / precision
        given = ("--epochs", "1", "--precision", precision, "--cache-precision", cached, "--feature-cache", folder)
        code, _, err = crumb(*options, *given, "--output", output)
        assert code == 0, err
        (maps,) = folder.glob("*.maps")
        sizes[cached] = maps.stat().st_size - 120 * ENTRY_BYTES
    assert sizes["fp32"] == 2 * sizes["fp16"]
    (weights, made_with), (others, _) = (read_pretrained(tmp_path / f"{name}.safetensors") for name in ("bf16", "fp32"))
    assert made_with["precision"] == "bf16" and made_with["cache_precision"] == "fp16"
    frozen = [name for name in weights if name.startswith("feature_extractor.")]
    plastic = [name for name in weights if name.startswith("plastic_layers.")]
    assert frozen and all(weights[name].equal(others[name]) for name in frozen)
    assert any(not weights[name].equal(others[name]) for name in plastic)
    assert all(tensor.dtype != torch.bfloat16 for tensor in weights.values())


def test_an_interrupted_pretraining_resumes(crumb, options, tmp_path, monkeypatch):
    from crumb_avalanche.training.checkpoint import CheckpointFolder

    whole, cut = tmp_path / "whole.safetensors", tmp_path / "cut.safetensors"
    code, _, err = crumb(*options, "--epochs", "3", "--output", whole)
    assert code == 0, err
    assert sorted(path.name for path in tmp_path.glob("*.checkpoints")) == []

    write = CheckpointFolder.write

    def cut_off(self, notes, *state):
        write(self, notes, *state)
        if len(notes["history"]) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(CheckpointFolder, "write", cut_off)
    code, _, err = crumb(*options, "--epochs", "3", "--output", cut)
    assert code == 130 and "crumb pretrain: stopped; what was finished is kept, and the same command resumes" in err
    monkeypatch.undo()
    folder = tmp_path / "cut.safetensors.checkpoints"
    names = ["00000000.safetensors", "00000001.safetensors", "maps"]
    assert sorted(path.name for path in folder.iterdir()) == names and not cut.exists()
    code, _, err = crumb(*options, "--epochs", "3", "--codebook-size", "128", "--output", cut)
    assert code == 1 and "holds checkpoints made with codebook_size=256, not 128; resume with the same settings" in err
    code, out, err = crumb(*options, "--epochs", "3", "--output", cut)
    assert code == 0, err
    assert "120 images of 4 classes" in out and same(whole, cut) and not folder.exists()


def test_a_second_pretraining_of_one_output_is_refused(crumb, options, tmp_path, monkeypatch):
    from crumb_avalanche.runs import pretrain
    from crumb_avalanche.system.folder_lock import locked

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
    assert crumb(*options, "--epochs", "1", "--output", file)[0] == 0
    code, _, err = crumb(*tiny, "--pretrained", file, "--learning-rate", "0", "--output", tmp_path / "run")
    assert code == 0, err
    saved = load_file(file)
    then = {name: value for name, value in saved.items() if not name.startswith("feature_extractor.")}
    now = weights_of(tmp_path / "run")
    changed = {name for name in then if not then[name].equal(now[name])}
    assert then.keys() == now.keys() and changed == {"plastic_layers.head.weight", "plastic_layers.head.bias"}


def test_unsupported_torchvision_data_sets_are_refused(crumb, tmp_path):
    for name in ("SVHN", "Flowers102"):
        code, _, err = crumb("pretrain", "--data", f"torchvision:{name}", "--output", tmp_path / "x.safetensors")
        assert code == 1 and f"torchvision's {name} has no train=True" in err and "unpack it as an image folder" in err
    for name in ("utils", "Nothing"):
        code, _, err = crumb("pretrain", "--data", f"torchvision:{name}", "--output", tmp_path / "x.safetensors")
        assert code == 1 and f"torchvision has no data set {name!r}" in err
