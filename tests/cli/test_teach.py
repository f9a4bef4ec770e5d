"""``crumb teach`` and ``learner`` as a person uses them."""

import json
import re
import shutil
import threading

import numpy as np
import pytest
import torch
from called_command import NEW, ask
from PIL import Image

from crumb_avalanche.learner.file import holds_weights
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.models.networks import SmallCNN
from crumb_avalanche.system.atomic_file import atomic_write
from crumb_avalanche.system.folder_lock import locked_file
from crumb_avalanche.system.tensor_file import write_tensors


def test_teach_makes_a_learner_and_goes_on_with_it(place, tmp_path, capsys):
    path = tmp_path / "mine.safetensors"
    weights = ["--weights", str(place / "weights.safetensors"), *NEW]
    code, out, _ = ask(capsys, "teach", path, place / "tree" / "red", "--label", "red", *weights)
    assert code == 0 and "learned red: 6 images" in out and "1 class," in out
    assert "nearly every image is called known until a second class, and then clips of 5 more objects" in out
    code, out, _ = ask(capsys, "teach", path, place / "tree" / "blue", "--label", "sky", "--progress", "false")
    assert code == 0 and "2 classes" in out and "is called known until clips of 4 more objects" in out
    code, out, _ = ask(capsys, "predict", path, place / "photos" / "blue.png")
    assert code == 0 and "blue.png  sky" in out


def test_teach_by_replay(place, tmp_path, capsys):
    path = tmp_path / "mine.safetensors"
    weights = ["--weights", str(place / "weights.safetensors"), "--method", "er", *NEW]
    code, out, _ = ask(capsys, "teach", path, place / "tree", *weights)
    assert code == 0 and "learned red: 6 images" in out and "3 classes" in out
    code, out, _ = ask(capsys, "predict", path, place / "photos")
    assert code == 0 and [line.split("  ")[1] for line in out.splitlines()] == ["blue", "green", "red"]
    code, out, _ = ask(capsys, "learner", "show", path)
    assert code == 0 and "18 memories (images)" in out and "er replays images: it holds some" in out
    other = tmp_path / "other.safetensors"
    other.write_bytes(path.read_bytes())
    code, _, err = ask(capsys, "learner", "merge", path, other, "--output", tmp_path / "both.safetensors")
    assert code and "cannot be merged" in err and "closed form" in err


def test_learner_commands(mine, place, tmp_path, capsys):
    code, out, _ = ask(capsys, "learner", "show", mine)
    assert code == 0 and all(
        word in out for word in ("red: 6 images", "small_cnn at 32 pixels", "SHA-256", "no images")
    )
    code, out, _ = ask(capsys, "learner", "rename", mine, "red", "rot")
    assert code == 0 and out == "renamed red to rot\n"
    code, out, _ = ask(capsys, "learner", "forget", mine, "green")
    assert code == 0 and out == "forgot green; nothing of it remains\n"  # the budget has no room for a common scatter
    other = tmp_path / "other.safetensors"
    weights = ["--weights", str(place / "weights.safetensors"), *NEW]
    ask(capsys, "teach", other, place / "tree" / "green", "--label", "green", *weights)
    code, out, _ = ask(capsys, "learner", "merge", mine, other, "--output", tmp_path / "both.safetensors")
    assert code == 0 and "3 classes" in out
    code, out, _ = ask(capsys, "predict", tmp_path / "both.safetensors", place / "photos" / "green.png")
    assert "green.png  green" in out
    code, out, _ = ask(capsys, "learner", "undo", other)
    assert code == 0 and "took back: green (6 images)" in out
    code, _, err = ask(capsys, "predict", other, place / "photos" / "green.png")
    assert code == 1 and "nothing was taught" in err


def test_lessons_of_forgotten_classes_are_named_as_such(mine, place, capsys):
    ask(capsys, "teach", mine, place / "tree" / "red", "--label", "extra", "--progress", "false")
    ask(capsys, "learner", "forget", mine, "extra")
    code, out, _ = ask(capsys, "learner", "show", mine)
    assert code == 0 and re.search(r"\+00:00  classes that were forgotten", out)
    code, out, _ = ask(capsys, "learner", "undo", mine)
    assert code == 0 and out == "took back: classes that were forgotten\n"


@pytest.mark.parametrize(
    "other",
    [
        *(["--method", "slda"], ["--backbone", "resnet18"], ["--image-size", "64"], ["--budget-bytes", "9000"]),
        ["--cut-layer", "2"],
    ],
)
def test_settings_of_a_new_learner_that_an_existing_one_lacks_are_refused(mine, place, capsys, other):
    before = mine.read_bytes()
    teach = ["teach", mine, place / "tree" / "red", "--label", "red", "--progress", "false"]
    code, _, err = ask(capsys, *teach, *other)
    assert code == 1 and f"leave {' '.join(other)} out, or name a new file" in err
    assert mine.read_bytes() == before
    made = ["--method", "recommended", "--backbone", "small_cnn", "--image-size", "32"]
    cut = re.search(r"was made with --cut-layer (\d+)", ask(capsys, *teach, "--cut-layer", "2")[2])[1]
    assert ask(capsys, *teach, *made, "--cut-layer", cut)[0] == 0  # the usual one, which the file does not name


def test_an_existing_learner_keeps_its_cut(place, tmp_path, capsys):
    path, cut = tmp_path / "mine.safetensors", ["--cut-layer", "8"]
    new = ["--weights", place / "weights.safetensors", *NEW]
    teach = ["teach", path, place / "tree" / "red", "--label", "red"]
    assert ask(capsys, *teach, *new, *cut)[0] == 0
    assert ask(capsys, *teach, "--progress", "false", *cut)[0] == ask(capsys, *teach, "--progress", "false")[0] == 0
    code, _, err = ask(capsys, *teach, "--cut-layer", "9")
    assert code == 1 and "was made with --cut-layer 8 and keeps it: leave --cut-layer 9 out, or name a new file" in err


def test_a_folder_one_level_too_high_is_taken_as_one_class_and_said(place, tmp_path, capsys):
    shutil.copytree(place / "tree", tmp_path / "top" / "data")
    new = ["--weights", place / "weights.safetensors", *NEW]
    code, out, err = ask(capsys, "teach", tmp_path / "a.safetensors", tmp_path / "top", *new)
    assert code == 0 and "learned data: 18 images" in out
    top = tmp_path / "top"
    assert err == (
        f"all of {top} is taken as one class, data; if blue, green, red are the classes, give {top / 'data'}\n"
    )
    for number, source in enumerate([["top/data"], ["top/data/red", "--label", "red"], ["top", "--label", "data"]]):
        path = tmp_path / f"{number}.safetensors"
        assert ask(capsys, "teach", path, tmp_path / source[0], *source[1:], *new)[::2] == (0, "")


def test_a_file_without_weights_stays_so_until_told_otherwise(place, tmp_path, capsys):
    path, weights = tmp_path / "lean.safetensors", ["--weights", place / "weights.safetensors"]
    teach = ["teach", path, place / "tree" / "red", "--label", "red", *weights, "--progress", "false"]
    held = []
    for more in ([*NEW[:4], "--without-weights"], [], ["--without-weights", "false"], [], ["--without-weights"]):
        code, _, err = ask(capsys, *teach, *more)
        assert code == 0, err
        held.append(holds_weights(path))
    assert held == [False, False, True, True, False]


def test_a_source_that_cannot_be_taught_is_refused_before_the_network_is_loaded(mine, place, capsys, monkeypatch):
    monkeypatch.setattr(Learner, "load", lambda *_: pytest.fail("loaded"))
    for source, words in [
        (["absent.jpg", "--label", "x"], "no file or folder absent.jpg"),
        ([place / "photos" / "red.png"], "has no class: give"),
        ([place / "photos", "--label", "a/b"], "class name 'a/b'"),
    ]:
        code, out, err = ask(capsys, "teach", mine, *source)
        assert code == 1 and words in err and err.count("\n") == 1 and not out


def test_a_source_without_images_does_not_stop_the_others(mine, place, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    page, red = tmp_path / "page.html", place / "photos" / "red.png"
    sources = [tmp_path / "empty", tmp_path / "none.png", red]
    code, out, err = ask(capsys, "predict", mine, *sources, "--json", "--html", page)
    assert code == 1 and json.loads(out)["path"] == str(red) and page.exists()
    assert "2 files could not be read" in err and "empty: holds no photo and no video" in err
    assert "there is no file or folder" in err and "Traceback" not in err


def test_bad_input_is_a_line_and_nothing_is_lost(mine, place, tmp_path, capsys):
    before = mine.read_bytes()
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "photo.jpg").write_bytes(b"no image")
    cases = [
        (["teach", mine, tmp_path / "absent"], "no file or folder"),
        (["teach", mine, tmp_path / "empty", "--label", "x"], "no photo and no video"),
        (["teach", mine, place / "photos"], "has no class: give .* and no photo or video beside them"),
        (["teach", mine, place / "photos", "--label", "a/b"], "class name"),
        (
            ["teach", mine, tmp_path / "bad", "--label", "x"],
            "no image to learn, 1 file could not be read; .*photo.jpg",
        ),
        (["predict", mine, tmp_path / "empty"], "no photo and no video"),
        (["teach", mine, tmp_path / "bad", "--label", "x", "--on-bad-frame", "raise"], "photo.jpg"),
        (["teach", mine], "give a source"),
        (["predict", mine], "give images"),
        (["predict", mine, place / "photos", "--json", "--csv"], "give one of them"),
        (["predict", tmp_path / "absent.safetensors", place / "photos"], "there is no file"),
        (["learner", "forget", mine, "nobody"], "no class 'nobody'"),
        (["learner", "merge", mine, mine], "merge needs --output"),
        (["learner", "merge", mine, mine, "--output", tmp_path / "both"], "cannot be merged with itself"),
    ]
    for arguments, words in cases:
        code, _, err = ask(capsys, *arguments)
        assert code == 1 and re.search(words, err) and "Traceback" not in err, (arguments, err)
    assert mine.read_bytes() == before


@pytest.mark.parametrize("name", ["a/b", "two\nlines", "x" * 300, " ", "<script>alert(1)</script>"])
def test_a_class_name_that_is_not_allowed_is_a_line_with_the_rule(mine, place, capsys, name):
    before = mine.read_bytes()
    teach = ["teach", mine, place / "photos", "--label", name, "--progress", "false"]
    for command in (teach, ["learner", "rename", mine, "red", name]):
        code, out, err = ask(capsys, *command)
        assert code == 1 and not out and err.count("\n") == 1
        assert "1 to 200 characters without slashes" in err and "Choose another name" in err
    assert mine.read_bytes() == before


def test_html_in_a_class_name_is_text(mine, place, capsys):
    code, out, _ = ask(capsys, "learner", "rename", mine, "red", "<img src=x onerror=alert(1)>")
    assert code == 0
    code, out, _ = ask(capsys, "predict", mine, place / "photos" / "red.png", "--json")
    assert code == 0 and json.loads(out)["label"] == "<img src=x onerror=alert(1)>"


def test_other_networks_methods_and_weights_are_refused_with_the_cure(mine, place, tmp_path, capsys):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        write_tensors(tmp_path / "others.safetensors", SmallCNN().state_dict(), {})
    options = {
        "others": ["--weights", tmp_path / "others.safetensors"],
        "squeezenet": ["--weights", "none", "--backbone", "squeezenet1_0"],
        "slda": ["--weights", place / "weights.safetensors", "--method", "slda"],
        "bare": ["--weights", place / "weights.safetensors", "--without-weights"],
    }
    files = {name: tmp_path / f"{name}_learner.safetensors" for name in options}
    for name, some in options.items():
        new = ["--backbone", "small_cnn", *NEW[2:]] if name != "squeezenet" else NEW[2:]
        assert ask(capsys, "teach", files[name], place / "photos", "--label", "x", *new, *some)[0] == 0
    before = {path: path.read_bytes() for path in (mine, *files.values())}
    merged, wrong = ["--output", tmp_path / "merged.safetensors"], ["--weights", tmp_path / "others.safetensors"]
    more = [place / "photos", "--label", "y", *wrong, "--progress", "false"]
    cases = [
        (["learner", "merge", mine, files["others"], *merged], "different networks.*teach one of them again"),
        (["learner", "merge", mine, files["squeezenet"], *merged], "small_cnn.*squeezenet1_0.*same network"),
        (["learner", "merge", mine, files["slda"], *merged], "slda cannot be merged into one of rda.*method=rda"),
        (["learner", "merge", mine, files["bare"], *merged], r"no weights.*SHA-256 \w{12}.*--weights"),
        (["predict", files["bare"], place / "photos", *wrong], "SHA-256.*was taught with.*give the weight file"),
        (["teach", files["bare"], *more], "SHA-256.*was taught with.*give the weight file"),
        (["predict", mine, place / "photos", *wrong], "SHA-256.*was taught with.*give the weight file"),
        (["teach", mine, *more], "SHA-256.*was taught with.*give the weight file"),
        (["learner", "undo", files["bare"], *wrong], "SHA-256.*was taught with.*give the weight file"),
    ]
    for arguments, words in cases:
        code, out, err = ask(capsys, *arguments)
        assert code == 1 and not out and err.count("\n") == 1 and re.search(words, err), (arguments, out, err)
    assert {path: path.read_bytes() for path in before} == before
    assert not (tmp_path / "merged.safetensors").exists() and not list(tmp_path.glob(".*"))


def test_an_image_of_nan_is_a_line_and_the_others_are_learned(mine, place, tmp_path, capsys):
    (tmp_path / "floats").mkdir()
    for name, value in (("good.tiff", 7.0), ("nan.tiff", np.nan)):
        pixels = np.full((40, 40), value, np.float32)
        Image.fromarray(pixels).save(tmp_path / "floats" / name)
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(tmp_path / "floats" / "black.png")
    code, out, err = ask(capsys, "teach", mine, tmp_path / "floats", "--label", "x", "--progress", "false")
    assert code == 0 and "learned x: 1 image" in out, err
    assert re.search("could not read .*nan.tiff: .*from nan to nan; save it with 8 or 16 bits", out)
    code, _, err = ask(capsys, "predict", mine, tmp_path / "floats" / "nan.tiff")
    assert code == 1 and "nan.tiff" in err and "8 or 16 bits" in err


def test_a_second_teacher_is_told_who_has_the_file(mine, place, capsys):
    with locked_file(mine):
        code, _, err = ask(capsys, "teach", mine, place / "tree", "--progress", "false")
    assert code == 1 and "is being changed by another process" in err


def test_others_predict_from_the_last_whole_file_while_one_teaches(mine, place, tmp_path, capsys):
    learner = Learner.load(mine)
    learner.forget("blue")
    changed, red = tmp_path / "changed.safetensors", place / "photos" / "red.png"
    learner.save(changed)
    pair = mine.read_bytes(), changed.read_bytes()
    end = threading.Event()

    def replace():
        while not end.is_set():
            for content in pair:
                with atomic_write(mine) as unfinished:
                    unfinished.write_bytes(content)

    with locked_file(mine):  # as a teacher holds it
        writer = threading.Thread(target=replace)
        writer.start()
        try:
            found = []
            for _ in range(8):
                code, out, err = ask(capsys, "predict", mine, red, "--json")
                assert code == 0, err
                found.append((json.loads(out)["label"], len(json.loads(out)["runners_up"])))
        finally:
            end.set()
            writer.join()
    assert set(found) <= {("red", 1), ("red", 2)}


def test_folders_that_are_probably_no_classes_are_asked_about(place, tmp_path, capsys):
    weights = ["--weights", str(place / "weights.safetensors"), *NEW]
    for split in ("train", "valid"):
        shutil.copytree(place / "test", tmp_path / "set" / split)
    path = tmp_path / "mine.safetensors"
    code, _, err = ask(capsys, "teach", path, tmp_path / "set", *weights)
    assert code == 1 and "looks like the splits of a data set" in err and "--new-class" in err and not path.exists()
    assert ask(capsys, "teach", path, tmp_path / "set", "--new-class", *weights)[0] == 0
    assert [info.name for info in Learner.load(path).classes] == ["train", "valid"]


def test_a_name_that_is_nearly_known_is_asked_about(mine, place, capsys):
    for command in (("teach", mine, place / "photos", "--label", "RED"), ("learner", "rename", mine, "blue", "Red")):
        code, out, err = ask(capsys, *command)
        assert code == 1 and not out and "is nearly the name of class 'red'" in err and "--new-class" in err
    assert ask(capsys, "learner", "rename", mine, "blue", "Red", "--new-class")[0] == 0
    assert ask(capsys, "teach", mine, place / "photos", "--label", "RED", "--new-class")[0] == 0
    assert [info.name for info in Learner.load(mine).classes] == ["Red", "green", "red", "RED"]


def test_what_is_ignored_is_said_in_one_line(mine, place, tmp_path, capsys):
    shutil.copytree(place / "test", tmp_path / "tree")
    for name in ("red/a.heic", "red/b.heic", "dog/c.heic", "green/labels.txt", "green/@eaDir"):
        (tmp_path / "tree" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "tree" / name).write_bytes(b"")
    said = r"no photo and no video in it: dog; ignored: 3 \.heic \(convert them to JPEG or PNG\), 1 \.txt and 1 hidden"
    for command in ("teach", "predict"):
        with pytest.warns(UserWarning, match=said) as warned:
            assert ask(capsys, command, mine, tmp_path / "tree")[0] == 0
        assert len(warned) == 1
