"""Errors of bad input name the value, the rule and the cure, and lose no results."""

import json
import os
import re
import shutil

import numpy as np
import pytest
import torch
from learned import buffer_of, weights_of
from PIL import Image
from safetensors import SafetensorError

from crumb_avalanche.learner.file import read_header
from crumb_avalanche.learner.run_file import LEARNER
from crumb_avalanche.models.networks import SmallCNN
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.runs.stream import _grouped


def fails(crumb, *arguments) -> str:
    code, _, err = crumb(*arguments)
    assert code != 0
    return err


def test_errors_of_unknown_names_list_the_known_ones(crumb, tiny, tmp_path):
    err = fails(crumb, *tiny, "--output", tmp_path, "--benchmark", "eth8")
    assert "eth8" in err and "eth80" in err and "clip_folder" in err and "toy_shapes" in err
    err = fails(crumb, *tiny, "--output", tmp_path, "--strategy", "crumbs")
    assert "'crumbs' is unknown; known are aanets, bic, finetune, offline, chance, cope" in err
    err = fails(crumb, *tiny, "--output", tmp_path, "--backbone", "resnet")
    assert "'resnet' is unknown; known are squeezenet1_0" in err
    err = fails(crumb, *tiny, "--output", tmp_path, "--codebook-init", "zeros")
    assert "known are matched" in err
    err = fails(crumb, *tiny, "--output", tmp_path, "--selection-rule", "all")
    assert "known are every_jth, reservoir, reference" in err
    assert "unrecognized" in fails(crumb, *tiny, "--output", tmp_path, "--budget-image", "3").lower()
    assert "class_instance" in fails(crumb, *tiny, "--output", tmp_path, "--protocol", "iid")


def test_missing_and_empty_roots_are_refused(crumb, tiny, tmp_path):
    for root in (tmp_path / "nowhere", tmp_path):
        for benchmark in ("eth80", "clip_folder"):
            err = fails(crumb, *tiny, "--output", tmp_path / "o", "--benchmark", benchmark, "--dataset-root", root)
            assert str(root) in err and ("<object>" in err or "class/object/clip" in err or "layout" in err)
    err = fails(crumb, "run", "--benchmark", "eth80", "--output", tmp_path / "o")
    assert "needs --dataset-root" in err


@pytest.mark.parametrize("value", [np.nan, 3e38])
@pytest.mark.parametrize("strategy", ["slda", "crumb"])
def test_a_frame_of_floating_point_numbers_is_refused_or_skipped(crumb, tiny, clips, tmp_path, strategy, value):
    root = tmp_path / "clips"
    shutil.copytree(clips, root)
    folder = root / "cup" / "object1" / "clip0"
    (folder / "frame2.png").unlink()
    pixels = np.zeros((32, 32), np.float32)
    pixels[3, 3] = value
    Image.fromarray(pixels).save(folder / "frame2.tif")
    more = ["--dataset-root", root, "--strategy", strategy]
    err = fails(crumb, *tiny, "--output", tmp_path / "a", *more)
    assert "cup/object1/clip0/frame2.tif" in err and "mode F" in err and "--on-bad-frame skip" in err
    assert crumb(*tiny, "--output", tmp_path / "b", *more, "--on-bad-frame", "skip")[0] == 0
    assert json.loads((tmp_path / "b" / "result.json").read_text())["bad_frames_skipped"] == 1


@pytest.fixture
def white_frames(clips, tmp_path, monkeypatch):
    """Copies of clips with and without some white frames, whose feature maps are not finite; their names."""
    extract = SplitModel._extract

    def damaged(model, images):
        maps = extract(model, images).clone()
        maps[(images == 255).flatten(1).all(1), 0, 0, 0] = float("nan")
        return maps

    monkeypatch.setattr(SplitModel, "_extract", damaged)
    bad = [f"cup/object{number}/clip0/frame2.png" for number in range(3)]  # one of these objects is held out
    for folder in ("without", "clips"):
        shutil.copytree(clips, tmp_path / folder)
        for name in bad:
            (tmp_path / folder / name).unlink()
            if folder == "clips":
                Image.new("RGB", (32, 32), "white").save(tmp_path / folder / name)
    return bad


def test_frames_whose_features_are_not_finite_are_refused(crumb, tiny, tmp_path, white_frames):
    options = [*tiny, "--strategy", "ncm", "--output", tmp_path / "out", "--dataset-root", tmp_path / "clips"]
    assert re.search(r"frame cup/object\d/clip0/frame2.png \(row .*finite", fails(crumb, *options))


def test_a_video_that_cannot_be_read_is_an_error_or_skipped(crumb, tiny, clips, tmp_path):
    pytest.importorskip("av")
    root = tmp_path / "clips"
    shutil.copytree(clips, root)
    (root / "cup" / "object1" / "film.mp4").write_bytes(b"no video")
    more = ["--dataset-root", root, "--strategy", "ncm", "--runs", "0"]
    err = fails(crumb, *tiny, "--output", tmp_path / "a", *more)
    assert "cup/object1/film.mp4 cannot be opened" in err and "--on-bad-frame skip" in err
    options = [*tiny, "--output", tmp_path / "b", *more, "--on-bad-frame", "skip"]
    assert crumb(*options)[0] == 0
    result = json.loads((tmp_path / "b" / "run0" / "result.json").read_text())
    assert result["bad_frames_skipped"] == 1 and "film.mp4" in result["bad_frames"][0]
    assert "already finished" in crumb(*options)[1]


@pytest.mark.parametrize("damage", ["truncated", "no image"])
def test_a_frame_that_cannot_be_read(crumb, tiny, clips, tmp_path, damage):
    root = tmp_path / "clips"
    shutil.copytree(clips, root)
    frame = root / "cup" / "object1" / "clip0" / "frame2.png"
    frame.write_bytes(frame.read_bytes()[:200] if damage == "truncated" else b"hello")
    err = fails(crumb, *tiny, "--output", tmp_path / "a", "--dataset-root", root)
    assert "cup/object1/clip0/frame2.png" in err and "--on-bad-frame skip" in err
    assert not (tmp_path / "a" / "result.json").exists()
    code, _, err = crumb(*tiny, "--output", tmp_path / "b", "--dataset-root", root, "--on-bad-frame", "skip")
    assert code == 0, err
    result = json.loads((tmp_path / "b" / "result.json").read_text())
    assert result["bad_frames_skipped"] == 1 and "frame2.png" in result["bad_frames"][0]


def test_a_bad_frame_late_in_the_stream_keeps_what_was_learned(crumb, tiny, clips, tmp_path):
    root = tmp_path / "clips"
    shutil.copytree(clips, root)
    assert crumb(*tiny, "--output", tmp_path / "good", "--dataset-root", root)[0] == 0
    order = json.loads((tmp_path / "good" / "result.json").read_text())["classes_order"]
    for frame in (root / order[-1]).rglob("frame3.png"):
        frame.write_bytes(b"no picture")
    output = tmp_path / "bad"
    assert "cannot decode frame" in fails(crumb, *tiny, "--output", output, "--dataset-root", root)
    # the buffer still has what the first experience stored
    labels = buffer_of(output / "interrupted")["labels"]
    assert int((labels >= 0).sum()) > 0 and weights_of(output / "interrupted")
    assert "frame3.png" in (output / "interrupted" / "error.txt").read_text()


@pytest.mark.parametrize("options", [[], ["--checkpoint-every", "2"], ["--checkpoint", "false"]], ids=" ".join)
def test_a_full_disk(crumb, tiny, tmp_path, monkeypatch, options):
    def full_disk(tensors, file, metadata):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("crumb_avalanche.system.tensor_file.save_file", full_disk)
    err = fails(crumb, *tiny, "--output", tmp_path, *options)
    if "false" in options:  # the learner is the first file that is refused, after the last step
        said = "make room on that disk and give"
    else:
        said = "Free some room and give"
        assert f"what was learned so far could not be kept in {tmp_path / 'interrupted'}" in err
        assert "No space left" in (tmp_path / "interrupted" / "error.txt").read_text()
    last = err.splitlines()[-1]
    assert f"{said} the same command again" in last and "No space left on device" in last
    assert not (tmp_path / "result.json").exists() and not list(tmp_path.rglob("*.part"))


def test_weights_of_another_model(crumb, tiny, tmp_path):
    file = tmp_path / "small.pth"
    torch.save(SmallCNN().state_dict(), file)
    err = fails(crumb, *tiny, "--output", tmp_path, "--backbone", "squeezenet1_0", "--weights", file)
    assert "features.0.weight" in err and "(32, 3, 3, 3)" in err and "weights of another model" in err
    err = fails(crumb, *tiny, "--output", tmp_path, "--weights", tmp_path / "none.npz")
    assert "there is no weight file" in err
    file.write_bytes(file.read_bytes()[:1000])
    assert "cannot be read" in fails(crumb, *tiny, "--output", tmp_path, "--weights", file)


def test_sizes_that_do_not_fit(crumb, tiny, tmp_path):
    err = fails(crumb, *tiny, "--output", tmp_path, "--codebook-dim", "24")
    assert "128 channels, which codebook_dim=24 does not divide" in err
    err = fails(crumb, *tiny, "--output", tmp_path, "--budget-bytes", "100")
    assert "a budget of 100 bytes holds no memory" in err
    err = fails(crumb, *tiny, "--output", tmp_path, "--mem-size", "3")
    assert "mem_size=3 cannot hold a memory of each of the 4 classes" in err
    err = fails(crumb, *tiny, "--output", tmp_path, "--mem-size", "9", "--budget-images", "2")
    assert "both given" in err
    assert "runs is '1-'" in fails(crumb, *tiny, "--output", tmp_path, "--runs", "1-")


@pytest.mark.parametrize(
    "given, said",
    [
        ("batch_size -3", "batch_size is -3; give 1 or more"),
        ("batch_size 0", "batch_size is 0; give 1 or more"),
        ("classes_per_experience 0", "classes_per_experience is 0; give 1 or more"),
        ("first_epochs 0", "first_epochs is 0; give 1 or more"),
        ("threads -1", "threads is -1; give 0 or more"),
        ("weight_decay -1", "weight_decay is -1.0; give 0 or more"),
        ("momentum 2", "momentum is 2.0; give 0 or more, but less than 1"),
        ("cut_layer -1", "cut_layer is -1; give 0 or more"),
        ("cut_layer 99", "cut_layer is 99, but small_cnn has 14 layers to cut at; give 0 to 14"),
        ("image_size 4", "the feature extractor cannot take images of 4 pixels"),
        ("epochs 1000000000000000000", "epochs is 1000000000000000000; give 100,000 or less"),
        ("weight_decay 1e300", "weight_decay is 1e+300; give 1,000 or less"),
        ("weight_decay .inf", "weight_decay is inf; give a finite number"),
        ("budget_images .inf", "budget_images is inf; give a finite number"),
        ("learning_rate .nan", "learning_rate is nan; give a finite number"),
        ("replay_compute 1e18", "replay_compute is 1e+18; give 1,000 or less"),
        ("threads 1000000000000", "threads is 1000000000000; give 1,024 or less"),
        ("run 99999999999", "run is 99999999999; give 4,294,967,295 or less"),
        ("runs 0-99999999999", "run is 99999999999; give 4,294,967,295 or less"),
        ("runs 0-1000000", "1,000,001 runs; give 10,000 or fewer"),
        ("budget_bytes 1000000000000", "memories; lower it, or give --mem-size 10000000 or less"),
        ("device foo", "device is 'foo'; give cpu, cuda, or one of several such as cuda:1"),
        ("device cuda:99", "device is cuda:99, but torch sees"),
    ],
)
def test_values_out_of_their_range(crumb, tiny, tmp_path, given, said):
    name, value = given.split()
    assert said in fails(crumb, *tiny, f"--{name}", value, "--output", tmp_path / "run")


def test_a_file_in_the_place_of_a_folder(crumb, tiny, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for name in ("output", "feature_cache"):
        err = fails(crumb, *tiny, "--output", tmp_path / "o", f"--{name}", tmp_path / "notes.txt")
        assert f"{name} is {tmp_path / 'notes.txt'}, which is a file; give a folder" in err
        err = fails(crumb, *tiny, "--output", tmp_path / "o", f"--{name}", os.devnull)
        assert f"{name} is {os.devnull}, which is a pipe or a device; give a folder" in err
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_the_description_of_a_stream_is_printed_and_recorded(crumb, tiny, clips, tmp_path):
    code, out, err = crumb(*tiny, "--output", tmp_path / "run")
    assert code == 0, err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    images = result["images"]
    assert images["train"] + images["test"] == len(list(clips.rglob("*.png")))
    assert list(result["held_out"].values()) == ["1 of 3 objects: object0"] * 4
    assert f"held out for the test:\n  {', '.join(result['held_out'])}: 1 of 3 objects\n" in out
    assert f"4 classes, 12 objects, 24 clips: {images['train']} images to learn, {images['test']} to test" in out


def test_the_held_out_part_of_each_class_is_printed(crumb, tiny, clips, tmp_path):
    root = tmp_path / "clips"
    shutil.copytree(clips, root)
    for name in ("object1", "object2"):
        shutil.rmtree(root / "cup" / name)
    shutil.copytree(clips / "cup" / "object0" / "clip0", root / "photos")  # a class of five images and nothing else
    arguments = ("--dataset-root", root, "--strategy", "finetune", "--run", "1", "--output", tmp_path / "mixed")
    code, out, err = crumb(*tiny, *arguments)
    assert code == 0, err
    lines = [
        "held out for the test:",
        "  apple, box, dice: 1 of 3 objects",
        "  cup: 1 of 2 clips of its one object",
        "  photos: the last 1 of 5 frames of its one clip",
    ]
    assert "\n".join(lines) in out
    result = json.loads((tmp_path / "mixed" / "result.json").read_text())
    assert result["held_out"]["apple"] == "1 of 3 objects: object1"
    assert result["held_out"]["cup"] == "1 of 2 clips of its one object: clip1"


def test_many_classes_take_few_lines():
    alike = _grouped({f"c{number}": f"1 of 4 objects: o{number}" for number in range(100)})
    assert alike == f"\n  {', '.join(f'c{number}' for number in range(10))} and 90 more: 1 of 4 objects"
    lines = _grouped({f"c{n}": f"the last 1 of {n + 2} frames of its one clip" for n in range(100)}).splitlines()[1:]
    assert len(lines) == 11 and lines[0] == "  c0: the last 1 of 2 frames of its one clip"
    assert lines[-1] == "  and of 90 more classes (held_out in result.json)"


def test_a_single_class_gives_a_warning(crumb, tiny, clips, tmp_path):
    shutil.copytree(clips / "cup", tmp_path / "clips" / "cup")
    with pytest.warns(UserWarning, match="only one class, cup, so every answer is right; add folders of other"):
        crumb(*tiny, "--output", tmp_path / "run", "--dataset-root", tmp_path / "clips")


def test_a_late_error_keeps_the_finished_run(crumb, tiny, tmp_path, monkeypatch):
    assert crumb(*tiny, "--output", tmp_path)[0] == 0
    before = {name: (tmp_path / name).read_bytes() for name in ("result.json", "config.yaml")}

    def refuse(*arguments, **keywords):
        raise ValueError("no such method")

    monkeypatch.setattr("crumb_avalanche.runs.session.build_strategy", refuse)
    assert "no such method" in fails(crumb, *tiny, "--output", tmp_path, "--overwrite", "true", "--epochs", "3")
    assert before == {name: (tmp_path / name).read_bytes() for name in before}


@pytest.mark.parametrize("several", [False, True])
def test_checkpoints_left_by_a_kill_after_the_result_are_removed(crumb, tiny, tmp_path, monkeypatch, several):
    with monkeypatch.context() as patch:
        patch.setattr("crumb_avalanche.runs.run.tidy_up", lambda folder: None)  # as if it had not come to that
        assert crumb(*tiny, "--runs", "0", "--output", tmp_path)[0] == 0
    assert (tmp_path / "run0" / "resume").exists()
    _, out, err = crumb(*tiny, "--output", *([tmp_path, "--runs", "0"] if several else [tmp_path / "run0"]))
    assert "already finished" in out if several else "already holds a finished run" in err
    assert not (tmp_path / "run0" / "resume").exists() and (tmp_path / "run0" / "result.json").exists()


def test_keyboard_interrupt_keeps_what_was_learned(crumb, tiny, tmp_path, monkeypatch):
    def stop(self):
        raise KeyboardInterrupt

    monkeypatch.setattr("crumb_avalanche.training.stream_strategy.StreamStrategy.optimizer_step", stop)
    code, _, err = crumb(*tiny, "--output", tmp_path / "a")
    last = "the same command resumes after the last finished experience"
    assert code == 130 and err.splitlines()[-1].startswith(f"crumb run: stopped; {last}")
    code, _, err = crumb(*tiny, "--output", tmp_path / "b", "--checkpoint", "false")
    assert code == 130 and "is in interrupted/ in the output folder" in err.splitlines()[-1]
    assert weights_of(tmp_path / "b" / "interrupted")
    for keep in ("answers", "none"):  # says what a finished run keeps: of this one, nothing else is left
        output = tmp_path / keep
        assert crumb(*tiny, "--output", output, "--checkpoint", "false", "--keep-learner", keep)[0] == 130
        assert read_header(output / "interrupted" / LEARNER).keep == "full"


def test_a_loss_that_turns_nan_stops_with_the_last_good_state(crumb, tiny, tmp_path):
    err = fails(crumb, *tiny, "--output", tmp_path, "--learning-rate", "1e6", "--strategy", "finetune")
    assert "the loss became" in err and "--clamp-gradients 10" in err
    weights = weights_of(tmp_path / "interrupted")
    assert all(bool(torch.isfinite(value.float()).all()) for value in weights.values())
    assert not (tmp_path / "result.json").exists()
