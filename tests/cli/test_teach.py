"""``crumb teach`` and ``learner`` as a person uses them."""

import json
import re
import shutil

import pytest
import torch

from crumb_avalanche.learner.file import holds_weights
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.models.networks import SmallCNN
from crumb_avalanche.models.runtimes import TORCH
from crumb_avalanche.system.tensor_file import write_tensors

QUIET = ("--progress", "false")
NEW = ["--backbone", "small_cnn", "--image-size", "32", "--threads", "1", *QUIET]


def names_of(path):
    return [one.name for one in Learner.load(path).classes]


def test_a_wrong_lesson_is_asked_about_found_and_taken_back(
    place, new, tmp_path, done, refused
):
    path, photos = tmp_path / "mine.safetensors", tmp_path / "pictures"
    for label, folder in (
        ("red", "red"),
        ("blue", "blue"),
        ("red", "red"),
        ("blue", "red"),
        ("blue", "blue"),
    ):
        options = ("--label", label, "--keep-pictures", *(() if path.exists() else new))
        out = done("teach", path, place / "tree" / folder, *options)
        doubt = r"0 of 6 images looked like blue, 6 like red: is the label right\? If not: .* blue RIGHT --lesson 4"
        assert bool(re.search(doubt, out)) == (label != folder), out
    out = done("learner", "lessons", path, "--pictures", photos)
    assert re.search(
        r"(?m)^lesson 4  \S+  blue \(6 images\), red\n  0 of 6 images looked like blue",
        out,
    )
    assert sorted(one.name for one in photos.iterdir()) == [
        f"lesson-{number}.jpg" for number in range(1, 6)
    ]
    for arguments, said in (
        (
            ["move", path, "blue", "red", "--lesson", 4],
            "moved the images of blue of lesson 4 to red\n",
        ),
        (["undo", path, "--lesson", 4], "took back lesson 4: red (6 images)\n"),
        (["move", path, "red", "crimson"], "moved the images of red to crimson\n"),
    ):
        assert done("learner", *arguments) == said
    assert [lesson.images for lesson in Learner.load(path).lessons] == [
        {"crimson": 6},
        {"blue": 6},
    ] * 2
    refused(
        "there is no lesson 4; only 1, 2, 3, 5 can be taken back",
        "learner",
        "undo",
        path,
        "--lesson",
        4,
    )


def test_teach_makes_a_learner_and_goes_on_with_it(place, new, tmp_path, done):
    path = tmp_path / "mine.safetensors"
    out = done("teach", path, place / "tree" / "red", "--label", "red", *new)
    assert "learned red: 6 images" in out and "1 class," in out
    assert (
        "known from unknown until a second class, and then clips of 5 more objects"
        in out
    )
    out = done(
        "teach", path, *(place / "tree" / "blue").rglob("*.*"), "--label", "sky", *QUIET
    )
    assert "learned sky: 6 images" in out and "2 classes" in out
    assert "known from unknown until clips of 4 more objects" in out
    assert "blue.png  sky" in done("predict", path, place / "photos" / "blue.png")


def test_what_ran_the_network_is_said_and_kept(
    place, new, tmp_path, crumb, done, refused, monkeypatch
):
    faster = f"onnxruntime {pytest.importorskip('onnxruntime').__version__}"
    model, photos = tmp_path / "mine.safetensors", place / "photos"
    made = "new learner with small_cnn, the file weights.safetensors\n"
    assert crumb("teach", model, place / "tree", *new)[::2] == (0, made), (
        "torch, by the environment of the tests"
    )
    monkeypatch.setenv("CRUMB_RUNTIME", "onnxruntime")
    assert crumb("teach", model, place / "tree", *QUIET)[::2] == (0, ""), (
        "nothing is said of what was not asked for"
    )
    assert [lesson.runtime for lesson in Learner.load(model).lessons] == [
        str(TORCH),
        faster,
    ]
    assert done("learner", "show", model).count(f", by {faster}") == 1
    code, table, err = crumb("predict", model, photos)
    assert code == 0 and err == ""
    err = crumb("predict", model, photos, "--runtime", "onnxruntime")[2]
    assert f"runtime {faster}, " in err and "of torch's (allowed 1e-04)" in err
    assert crumb("predict", model, photos, "--runtime", "torch") == (0, table, ""), (
        "the same to a percent"
    )
    refused("'tpu'.*onnxruntime", "predict", model, photos, "--runtime", "tpu")


def test_the_empty_scene_is_shown_as_nothing(mine, place, done):
    before = names_of(mine)
    out = done("teach", mine, "--nothing", place / "tree" / "green", *QUIET)
    assert "learned that 6 images show nothing\n" in out and "--nothing" not in out
    assert names_of(mine) == before and Learner.load(mine).nothing == 6
    assert (
        json.loads(done("predict", mine, place / "photos" / "green.png", "--json"))[
            "known"
        ]
        is False
    )
    assert (
        "nothing (6 images)" in done("learner", "undo", mine)
        and Learner.load(mine).nothing == 0
    )


def test_learner_commands(mine, place, new, tmp_path, done, refused):
    other, both = tmp_path / "other.safetensors", tmp_path / "both.safetensors"
    done("teach", other, place / "tree" / "green", "--label", "green", *new)
    done("teach", mine, place / "tree" / "red", "--label", "extra", *QUIET)
    for arguments, words in (
        (
            ["show", mine],
            "(?s)small_cnn at 32 pixels.*SHA-256.*red: 6 images.*no images",
        ),
        (
            ["rename", mine, "red", "<img src=x onerror=alert(1)>"],
            "^renamed red to <img src=x onerror=alert.1.>\n$",
        ),
        (
            ["forget", mine, "green"],
            "^forgot green; nothing of it remains\n$",
        ),  # no room for a common scatter
        (["merge", mine, other, "--output", both], "4 classes"),
        (["forget", mine, "extra"], "^forgot extra"),
        (["show", mine], r"\+00:00  classes that were forgotten"),
        (["undo", mine], "^took back lesson 2: classes that were forgotten\n$"),
        (["undo", other], r"took back lesson 1: green \(6 images\)"),
    ):
        out = done("learner", *arguments)
        assert re.search(words, out), (arguments, out)
    assert "green.png  green" in done("predict", both, place / "photos" / "green.png")
    answer = json.loads(done("predict", mine, place / "photos" / "red.png", "--json"))
    assert answer["label"] == "<img src=x onerror=alert(1)>", "html in a name is text"
    refused("nothing was taught", "predict", other, place / "photos" / "green.png")


def test_an_existing_learner_keeps_its_settings(
    mine, place, new, tmp_path, done, refused
):
    path, before = tmp_path / "cut.safetensors", mine.read_bytes()
    lesson = [place / "tree" / "red", "--label", "red", *QUIET]
    for other in (
        "--method slda",
        "--backbone resnet18",
        "--image-size 64",
        "--budget-bytes 9000",
        "--cut-layer 2",
    ):
        refused(
            f"leave {other} out, or name a new file",
            "teach",
            mine,
            *lesson,
            *other.split(),
        )
    assert mine.read_bytes() == before
    for more in ([*new, "--cut-layer", "8"], ["--cut-layer", "8"], []):
        done("teach", path, *lesson, *more)
    words = "was made with --cut-layer 8 and keeps it: leave --cut-layer 9 out, or name a new file"
    refused(words, "teach", path, *lesson, "--cut-layer", "9")
    err = refused(
        "was made with --cut-layer", "teach", mine, *lesson, "--cut-layer", "2"
    )
    made = [
        "--method",
        "recommended",
        "--backbone",
        "small_cnn",
        "--image-size",
        "32",
        "--cut-layer",
    ]
    done(
        "teach", mine, *lesson, *made, re.search(r"with --cut-layer (\d+)", err)[1]
    )  # the usual one, not in the file


def test_a_folder_one_level_too_high_is_taken_as_one_class_and_said(
    place, new, tmp_path, crumb
):
    top = tmp_path / "top"
    shutil.copytree(place / "test", top / "data")
    code, out, err = crumb("teach", tmp_path / "a.safetensors", top, *new)
    assert code == 0 and "learned data: 3 images" in out
    made = "new learner with small_cnn, the file weights.safetensors\n"
    assert err == (
        f"all of {top} is taken as one class, data; if blue, green, red are the classes, give {top / 'data'}\n{made}"
    )
    for number, source in enumerate([[top / "data"], [top, "--label", "data"]]):
        assert crumb("teach", tmp_path / f"{number}.safetensors", *source, *new)[
            ::2
        ] == (0, made)


def test_a_file_without_weights_stays_so_until_told_otherwise(place, tmp_path, done):
    path, weights = (
        tmp_path / "lean.safetensors",
        ["--weights", place / "weights.safetensors"],
    )
    teach = ["teach", path, place / "tree" / "red", "--label", "red", *weights, *QUIET]
    held = []
    for more in (
        [*NEW[:4], "--without-weights"],
        [],
        ["--without-weights", "false"],
        [],
        ["--without-weights"],
    ):
        done(*teach, *more)
        held.append(holds_weights(path))
    assert held == [False, False, True, True, False]


RULE = "1 to 200 characters without slashes.* Choose another name"


def test_bad_input_is_a_line_and_nothing_is_lost(
    mine, place, tmp_path, done, refused, monkeypatch
):
    before, photos, green = (
        mine.read_bytes(),
        place / "photos",
        place / "tree" / "green",
    )
    for name in ("train", "valid"):
        shutil.copytree(place / "test", tmp_path / "splits" / name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "photo.jpg").write_bytes(b"no image")
    early = [  # before the network is loaded
        (["teach", mine, "absent.jpg", "--label", "x"], "no file or folder absent.jpg"),
        (["teach", mine, photos / "red.png"], "has no class: give"),
        (
            ["teach", mine, photos / "red.png", photos / "blue.png"],
            "has no class: give",
        ),
        (["teach", mine, photos, "--label", "a/b"], f"class name 'a/b'.*{RULE}"),
        (["teach", mine, photos, "--label", "two\nlines"], RULE),
        (
            ["teach", mine, photos],
            "has no class: give .* and no photo or video beside them",
        ),
        (["teach", mine], "give a source"),
        (["teach", mine, green, "--nothing", green], "give a source"),
        (
            ["teach", mine, "--nothing", green, "--label", "green"],
            "an empty scene has no class",
        ),
        (
            ["teach", mine, tmp_path / "splits"],
            "looks like the splits of a data set.*--new-class",
        ),
        (["predict", mine], "give images"),
        (["predict", mine, photos, "--json", "--csv"], "give one of them"),
        (
            ["predict", mine, photos, "--html", photos / "red.png"],
            r"red.png is the page to write; .* ends in \.html",
        ),
        (["learner", "show", mine, "--lesson", 4], "only undo and move have --lesson"),
        (
            ["learner", "undo", mine, "--pictures", photos],
            "only lessons has --pictures",
        ),
        (["learner", "merge", mine, mine], "merge needs --output"),
        (
            ["learner", "merge", mine, mine, "--output", tmp_path / "both"],
            "cannot be merged with itself",
        ),
    ]
    late = [
        (["teach", mine, tmp_path / "empty", "--label", "x"], "no photo and no video"),
        (
            ["teach", mine, tmp_path / "bad", "--label", "x"],
            "no image to learn, 1 file could not .*; .*photo.jpg",
        ),
        (
            [
                "teach",
                mine,
                tmp_path / "bad",
                "--label",
                "x",
                "--on-bad-frame",
                "raise",
            ],
            "photo.jpg",
        ),
        (
            ["teach", mine, photos, "--label", "RED"],
            "is nearly the name of class 'red'.*--new-class",
        ),
        (["predict", mine, tmp_path / "empty"], "no photo and no video"),
        (["predict", tmp_path / "absent.safetensors", photos], "there is no file"),
        (["learner", "forget", mine, "nobody"], "no class 'nobody'"),
        (
            ["learner", "rename", mine, "blue", "Red"],
            "is nearly the name of class 'red'.*--new-class",
        ),
        *(
            (["learner", "rename", mine, "red", name], RULE)
            for name in ("a/b", "a\nb", "x" * 300, " ", "<b>a</b>")
        ),
    ]
    for cases in (early, late):
        with monkeypatch.context() as patch:
            if cases is early:
                patch.setattr(Learner, "load", lambda *_: pytest.fail("loaded"))
            for arguments, words in cases:
                err = refused(words, *arguments)
                assert cases is late or err.count("\n") == 1, arguments
    assert mine.read_bytes() == before
    done("learner", "rename", mine, "blue", "Red", "--new-class")
    done("teach", mine, photos, "--label", "RED", "--new-class")
    done("teach", mine, tmp_path / "splits", "--new-class")
    assert names_of(mine) == ["Red", "green", "red", "RED", "train", "valid"]


def test_other_networks_methods_and_weights_are_refused_with_the_cure(
    mine, place, tmp_path, done, refused
):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        write_tensors(tmp_path / "others.safetensors", SmallCNN().state_dict(), {})
    options = {
        "others": ["--weights", tmp_path / "others.safetensors", *NEW],
        "squeezenet": ["--weights", "none", "--backbone", "squeezenet1_0", *NEW[2:]],
        "slda": ["--weights", place / "weights.safetensors", "--method", "slda", *NEW],
        "bare": ["--weights", place / "weights.safetensors", "--without-weights", *NEW],
    }
    files = {name: tmp_path / f"{name}_learner.safetensors" for name in options}
    for name, some in options.items():
        done("teach", files[name], place / "photos", "--label", "x", *some)
    before = {path: path.read_bytes() for path in (mine, *files.values())}
    merged, wrong = (
        ["--output", tmp_path / "merged.safetensors"],
        ["--weights", tmp_path / "others.safetensors"],
    )
    more, taught = (
        [place / "photos", "--label", "y", *wrong, *QUIET],
        "SHA-256.*was taught with.*give the weight file",
    )
    cases = [
        (
            ["learner", "merge", mine, files["others"], *merged],
            "different networks.*teach one of them again",
        ),
        (
            ["learner", "merge", mine, files["squeezenet"], *merged],
            "small_cnn.*squeezenet1_0.*same network",
        ),
        (
            ["learner", "merge", mine, files["slda"], *merged],
            "slda cannot be merged into one of rda.*method=rda",
        ),
        (
            ["learner", "merge", mine, files["bare"], *merged],
            r"no weights.*SHA-256 \w{12}.*--weights",
        ),
        (["predict", files["bare"], place / "photos", *wrong], taught),
        (["teach", mine, *more], taught),
        (["learner", "undo", files["bare"], *wrong], taught),
    ]
    for arguments, words in cases:
        assert refused(words, *arguments).count("\n") == 1, arguments
    assert {path: path.read_bytes() for path in before} == before
    assert not (tmp_path / "merged.safetensors").exists() and not list(
        tmp_path.glob(".*")
    )
