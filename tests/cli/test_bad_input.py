"""Errors of bad input of ``crumb run`` name the value, the rule and the cure, and lose no results."""

import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from crumb_avalanche.models.networks import SmallCNN

STEP = "crumb_avalanche.training.stream_strategy.StreamStrategy.optimizer_step"


@pytest.fixture
def root(clips, tmp_path):
    """A copy of the clips."""
    return shutil.copytree(clips, tmp_path / "clips")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--benchmark eth8", "eth8.; known are .*eth80"),
        ("--benchmark eth80 --dataset-root .", r"\..*<object>"),
        ("--dataset-root nowhere", "nowhere.*<class>/<object>/<clip>"),
        ("--strategy crumbs", "'crumbs' is unknown; known are aanets, bic, finetune, offline, chance, cope"),
        ("--codebook-init zeros", "known are matched"),
        ("--budget-image 3", "[Uu]nrecognized"),
        ("--codebook-dim 24", "128 channels, which codebook_dim=24 does not divide"),
        ("--budget-bytes 100", "a budget of 100 bytes holds no memory"),
        ("--mem-size 9 --budget-images 2", "both given"),
        ("--runs 1-", "runs is '1-'"),
        ("--runs 0-1000000", "1,000,001 runs; give 10,000 or fewer"),
        ("--batch-size -3", "batch_size is -3; give 1 or more"),
        ("--cut-layer 99", "cut_layer is 99, but small_cnn has 14 layers to cut at; give 0 to 14"),
        ("--image-size 4", "the feature extractor cannot take images of 4 pixels"),
        ("--learning-rate nan", "learning_rate is nan; give a finite number"),
        ("--budget-bytes 1000000000000", "memories; lower it, or give --mem-size 10000000 or less"),
        ("--device foo", "device is 'foo'; give cpu, cuda, or one of several such as cuda:1"),
        ("--device cuda:99", "device is cuda:99, but torch sees"),
        ("--image-size 224px", r"run: image_size is '224px'; give a whole number\n$"),
        ("--overwrite maybe", r"run: overwrite is 'maybe'; give true or false\n$"),
        ("--preset best", r"run: preset is 'best'; give one of paper, reference, recommended, tuned\n$"),
        ("--weights none.npz", "there is no weight file"),
        ("--weights other.pth --backbone squeezenet1_0", r"features.0.weight.*\(32, 3, 3, 3\).*another model"),
        ("--weights cut.pth", "cannot be read"),
        ("--output notes.txt", "output is notes.txt, which is a file; give a folder"),
        ("--feature-cache /dev/null", "feature_cache is /dev/null, which is a pipe or a device; give a folder"),
        ("--output notes.txt/x", "notes.txt/x.*Not a directory.*choose another"),
        (f"--feature-cache {'a' * 300}", "File name too long; choose a shorter name"),
        ("--output ", "output is empty; give a path"),
        ("--output a\0b", "zero byte"),
    ],
)
def test_an_option_that_cannot_be_used_is_named_with_the_cure(refused, tiny, tmp_path, monkeypatch, given, words):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("mine")
    torch.save(SmallCNN().state_dict(), "other.pth")
    Path("cut.pth").write_bytes(Path("other.pth").read_bytes()[:1000])
    refused(words, *tiny, "--output", "run", *given.split(" "))
    assert Path("notes.txt").read_text() == "mine" and not Path("run/result.json").exists()


def test_a_frame_that_cannot_be_read_is_refused_or_left_out(ran, refused, tiny, root, tmp_path):
    (root / "cup" / "object1" / "clip0" / "frame2.png").write_bytes(b"hello")
    more = ("--dataset-root", root, "--strategy", "ncm")
    refused("cup/object1/clip0/frame2.png.*--on-bad-frame skip", *tiny, *more, "--output", tmp_path / "a")
    assert not (tmp_path / "a" / "result.json").exists()
    result, _ = ran(tmp_path / "b", *more, "--on-bad-frame", "skip")
    assert result["bad_frames_skipped"] == 1 and "clip0/frame2" in result["bad_frames"][0]


def test_a_bad_frame_late_in_the_stream_keeps_what_was_learned(crumb, ran, refused, tiny, root, tmp_path):
    last = ran(tmp_path / "good", "--dataset-root", root, "--strategy", "ncm")[0]["classes_order"][-1]
    for frame in (root / last).rglob("frame3.png"):
        frame.write_bytes(b"no picture")
    run = (*tiny, "--output", tmp_path / "bad", "--dataset-root", root)
    refused("cannot decode frame", *run)
    assert "1 of 2 experiences are finished" in crumb(*run)[1]


def test_a_full_disk(refused, tiny, tmp_path, monkeypatch):
    def full_disk(tensors, file, metadata):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("crumb_avalanche.system.tensor_file.save_file", full_disk)
    last = refused("Free some room and give the same command again", *tiny, "--output", tmp_path).splitlines()[-1]
    assert "Free some room" in last and "No space left on device" in last
    assert not (tmp_path / "result.json").exists() and not list(tmp_path.rglob("*.part"))


def test_the_held_out_part_of_each_class_is_printed_and_recorded(ran, clips, root, tmp_path):
    for name in ("object1", "object2"):
        shutil.rmtree(root / "cup" / name)
    shutil.copytree(clips / "cup" / "object0" / "clip0", root / "photos")  # a class of five images and nothing else
    result, out = ran(tmp_path / "mixed", "--dataset-root", root, "--strategy", "finetune", "--run", "1")
    for line in (
        "held out for the test:\n  apple, box, dice: 1 of 3 objects\n",
        "  cup: 1 of 2 clips of its one object\n  photos: the last 1 of 5 frames of its one clip\n",
    ):
        assert line in out
    assert result["held_out"]["apple"] == "1 of 3 objects: object1"
    images = result["images"]
    assert images["train"] + images["test"] == len(list(root.rglob("*.png")))
    assert f"{images['train']} images to learn, {images['test']} to test" in out


def test_a_single_class_gives_a_warning(ran, clips, tmp_path):
    shutil.copytree(clips / "cup", tmp_path / "clips" / "cup")
    with pytest.warns(UserWarning, match="only one class, cup, so every answer is right; add folders of other"):
        ran(tmp_path / "run", "--dataset-root", tmp_path / "clips", "--strategy", "ncm")


def test_a_late_error_keeps_the_finished_run(done, refused, tiny, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("crumb_avalanche.runs.run.tidy_up", lambda folder: None)  # killed before it came to that
        done(*tiny, "--output", tmp_path)
    assert (tmp_path / "resume").exists()
    refused("already holds a finished run", *tiny, "--output", tmp_path)
    assert not (tmp_path / "resume").exists()
    before = {name: (tmp_path / name).read_bytes() for name in ("result.json", "config.yaml")}

    def refuse(*arguments, **keywords):
        raise ValueError("no such method")

    monkeypatch.setattr("crumb_avalanche.runs.session.build_strategy", refuse)
    refused("no such method", *tiny, "--output", tmp_path, "--overwrite", "true", "--epochs", "3")
    assert before == {name: (tmp_path / name).read_bytes() for name in before}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_says_how_to_go_on(crumb, tiny, tmp_path, monkeypatch, usual_signals, number):
    monkeypatch.setattr(STEP, lambda self: signal.raise_signal(number))
    before = signal.getsignal(number)
    code, _, err = crumb(*tiny, "--output", tmp_path / "a")
    last = "the same command resumes after the last finished experience"
    assert code == 128 + number and err.splitlines()[-1].startswith(f"crumb run: stopped; {last}")
    assert signal.getsignal(number) == before


def test_a_loss_that_turns_nan_stops_the_run(refused, tiny, tmp_path):
    run = (*tiny, "--output", tmp_path, "--learning-rate", "1e6", "--strategy", "finetune")
    refused("the loss became.*--clamp-gradients 10", *run)
    assert not (tmp_path / "result.json").exists()
