"""``crumb teach`` and ``learner`` as a person uses them."""

import json
import re
import shutil

import pytest
import torch

from crumb_avalanche.learner.file import holds_weights
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.models.networks import SmallCNN
from crumb_avalanche.system.folder_lock import locked_file
from crumb_avalanche.system.tensor_file import write_tensors

QUIET = ("--progress", "false")
NEW = ["--backbone", "small_cnn", "--image-size", "32", "--threads", "1", *QUIET]


def test_a_wrong_lesson_is_asked_about_found_and_taken_back(place, new, tmp_path, crumb):
    path, photos = tmp_path / "mine.safetensors", tmp_path / "pictures"
    for label, folder in (("red", "red"), ("blue", "blue"), ("red", "red"), ("blue", "red"), ("blue", "blue")):
        options = ("--label", label, "--keep-pictures", *(() if path.exists() else new))
        code, out, _ = crumb("teach", path, place / "tree" / folder, *options)
        doubt = r"0 of 6 images looked like blue, 6 like red: is the label right\? If not: .* blue RIGHT --lesson 4"
        assert code == 0 and bool(re.search(doubt, out)) == (label != folder), out
    code, out, _ = crumb("learner", "lessons", path, "--pictures", photos)
    assert code == 0 and re.search(r"(?m)^lesson 4  \S+  blue \(6 images\), red\n  0 of 6 images looked like blue", out)
    assert sorted(one.name for one in photos.iterdir()) == [f"lesson-{number}.jpg" for number in range(1, 6)]
    for arguments, words in (
        (["move", path, "blue", "red", "--lesson", 4], "^moved the images of blue of lesson 4 to red\n$"),
        (["undo", path, "--lesson", 4], r"^took back lesson 4: red \(6 images\)\n$"),
        (["move", path, "red", "crimson"], "^moved the images of red to crimson\n$"),
    ):
        code, out, _ = crumb("learner", *arguments)
        assert code == 0 and re.search(words, out), (arguments, out)
    assert [lesson.images for lesson in Learner.load(path).lessons] == [{"crimson": 6}, {"blue": 6}] * 2
    for arguments, words in (
        (["undo", path, "--lesson", 4], "there is no lesson 4; only 1, 2, 3, 5 can be taken back"),
        (["show", path, "--lesson", 4], "only undo and move have --lesson"),
        (["undo", path, "--pictures", photos], "only lessons has --pictures"),
    ):
        code, _, err = crumb("learner", *arguments)
        assert code == 1 and words in err


@pytest.fixture
def new(place):
    """The options of a new learner."""
    return ["--weights", place / "weights.safetensors", *NEW]


def names_of(path):
    return [one.name for one in Learner.load(path).classes]


def test_teach_makes_a_learner_and_goes_on_with_it(place, new, tmp_path, crumb):
    path = tmp_path / "mine.safetensors"
    code, out, _ = crumb("teach", path, place / "tree" / "red", "--label", "red", *new)
    assert code == 0 and "learned red: 6 images" in out and "1 class," in out
    assert "known from unknown until a second class, and then clips of 5 more objects" in out
    code, out, _ = crumb("teach", path, place / "tree" / "blue", "--label", "sky", *QUIET)
    assert code == 0 and "2 classes" in out and "known from unknown until clips of 4 more objects" in out
    code, out, _ = crumb("predict", path, place / "photos" / "blue.png")
    assert code == 0 and "blue.png  sky" in out


def test_the_empty_scene_is_shown_as_nothing(mine, place, crumb):
    before = names_of(mine)
    code, out, _ = crumb("teach", mine, "--nothing", place / "tree" / "green", *QUIET)
    assert code == 0 and "learned that 6 images show nothing\n" in out and "--nothing" not in out
    assert names_of(mine) == before and Learner.load(mine).nothing == 6
    assert json.loads(crumb("predict", mine, place / "photos" / "green.png", "--json")[1])["known"] is False
    code, out, _ = crumb("learner", "undo", mine)
    assert code == 0 and "nothing (6 images)" in out and Learner.load(mine).nothing == 0
    for arguments, words in (
        ((place / "tree" / "green", "--nothing", place / "tree" / "green"), "give a source"),
        (("--nothing", place / "tree" / "green", "--label", "green"), "an empty scene has no class"),
    ):
        code, _, err = crumb("teach", mine, *arguments)
        assert code == 1 and words in err


def test_teach_by_replay(place, new, tmp_path, crumb):
    path, other = tmp_path / "mine.safetensors", tmp_path / "other.safetensors"
    code, out, _ = crumb("teach", path, place / "tree", "--method", "crumb", *new)
    assert code == 0 and "learned red: 6 images" in out and "3 classes" in out
    code, out, _ = crumb("predict", path, place / "photos")
    assert code == 0 and [line.split("  ")[1] for line in out.splitlines()] == ["blue", "green", "red"]
    code, out, _ = crumb("learner", "show", path)
    assert code == 0 and "18 memories (feature maps" in out and "It holds no images" in out
    other.write_bytes(path.read_bytes())
    code, _, err = crumb("learner", "merge", path, other, "--output", tmp_path / "both.safetensors")
    assert code and "cannot be merged" in err and "closed form" in err


def test_learner_commands(mine, place, new, tmp_path, crumb):
    other, both = tmp_path / "other.safetensors", tmp_path / "both.safetensors"
    assert crumb("teach", other, place / "tree" / "green", "--label", "green", *new)[0] == 0
    crumb("teach", mine, place / "tree" / "red", "--label", "extra", *QUIET)
    for arguments, words in (
        (["show", mine], "(?s)small_cnn at 32 pixels.*SHA-256.*red: 6 images.*no images"),
        (["rename", mine, "red", "<img src=x onerror=alert(1)>"], "^renamed red to <img src=x onerror=alert.1.>\n$"),
        (["forget", mine, "green"], "^forgot green; nothing of it remains\n$"),  # no room for a common scatter
        (["merge", mine, other, "--output", both], "4 classes"),
        (["forget", mine, "extra"], "^forgot extra"),
        (["show", mine], r"\+00:00  classes that were forgotten"),
        (["undo", mine], "^took back lesson 2: classes that were forgotten\n$"),
        (["undo", other], r"took back lesson 1: green \(6 images\)"),
    ):
        code, out, _ = crumb("learner", *arguments)
        assert code == 0 and re.search(words, out), (arguments, out)
    assert "green.png  green" in crumb("predict", both, place / "photos" / "green.png")[1]
    answer = crumb("predict", mine, place / "photos" / "red.png", "--json")[1]
    assert json.loads(answer)["label"] == "<img src=x onerror=alert(1)>", "html in a name is text"
    code, _, err = crumb("predict", other, place / "photos" / "green.png")
    assert code == 1 and "nothing was taught" in err


@pytest.mark.parametrize(
    "other",
    [
        *(["--method", "slda"], ["--backbone", "resnet18"], ["--image-size", "64"], ["--budget-bytes", "9000"]),
        ["--cut-layer", "2"],
    ],
)
def test_settings_of_a_new_learner_that_an_existing_one_lacks_are_refused(mine, place, crumb, other):
    before = mine.read_bytes()
    code, _, err = crumb("teach", mine, place / "tree" / "red", "--label", "red", *QUIET, *other)
    assert code == 1 and f"leave {' '.join(other)} out, or name a new file" in err
    assert mine.read_bytes() == before


def test_an_existing_learner_keeps_its_settings(mine, place, new, tmp_path, crumb):
    path = tmp_path / "cut.safetensors"
    teach = ["teach", path, place / "tree" / "red", "--label", "red"]
    for more in ([*new, "--cut-layer", "8"], ["--cut-layer", "8", *QUIET], QUIET):
        assert crumb(*teach, *more)[0] == 0
    err = crumb(*teach, "--cut-layer", "9")[2]
    assert "was made with --cut-layer 8 and keeps it: leave --cut-layer 9 out, or name a new file" in err
    teach[1] = mine
    cut = re.search(r"was made with --cut-layer (\d+)", crumb(*teach, "--cut-layer", "2")[2])[1]
    made = ["--method", "recommended", "--backbone", "small_cnn", "--image-size", "32"]
    assert crumb(*teach, *QUIET, *made, "--cut-layer", cut)[0] == 0  # the usual one, not named in the file


def test_a_folder_one_level_too_high_is_taken_as_one_class_and_said(place, new, tmp_path, crumb):
    top = tmp_path / "top"
    shutil.copytree(place / "test", top / "data")
    code, out, err = crumb("teach", tmp_path / "a.safetensors", top, *new)
    assert code == 0 and "learned data: 3 images" in out
    made = "new learner with small_cnn, the file weights.safetensors\n"
    assert err == (
        f"all of {top} is taken as one class, data; if blue, green, red are the classes, give {top / 'data'}\n{made}"
    )
    for number, source in enumerate([[top / "data"], [top, "--label", "data"]]):
        assert crumb("teach", tmp_path / f"{number}.safetensors", *source, *new)[::2] == (0, made)


def test_a_file_without_weights_stays_so_until_told_otherwise(place, tmp_path, crumb):
    path, weights = tmp_path / "lean.safetensors", ["--weights", place / "weights.safetensors"]
    teach = ["teach", path, place / "tree" / "red", "--label", "red", *weights, *QUIET]
    held = []
    for more in ([*NEW[:4], "--without-weights"], [], ["--without-weights", "false"], [], ["--without-weights"]):
        code, _, err = crumb(*teach, *more)
        assert code == 0, err
        held.append(holds_weights(path))
    assert held == [False, False, True, True, False]


def test_a_source_that_cannot_be_taught_is_refused_before_the_network_is_loaded(mine, place, crumb, monkeypatch):
    monkeypatch.setattr(Learner, "load", lambda *_: pytest.fail("loaded"))
    for source, words in [
        (["absent.jpg", "--label", "x"], "no file or folder absent.jpg"),
        ([place / "photos" / "red.png"], "has no class: give"),
        ([place / "photos", "--label", "a/b"], "class name 'a/b'"),
    ]:
        code, out, err = crumb("teach", mine, *source)
        assert code == 1 and words in err and err.count("\n") == 1 and not out


RULE = "1 to 200 characters without slashes.* Choose another name"


def test_bad_input_is_a_line_and_nothing_is_lost(mine, place, tmp_path, crumb):
    before, photos = mine.read_bytes(), place / "photos"
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "photo.jpg").write_bytes(b"no image")
    cases = [
        (["teach", mine, tmp_path / "empty", "--label", "x"], "no photo and no video"),
        (["teach", mine, photos], "has no class: give .* and no photo or video beside them"),
        (["teach", mine, tmp_path / "bad", "--label", "x"], "no image to learn, 1 file could not .*; .*photo.jpg"),
        (["teach", mine, tmp_path / "bad", "--label", "x", "--on-bad-frame", "raise"], "photo.jpg"),
        (["teach", mine], "give a source"),
        (["predict", mine], "give images"),
        (["predict", mine, tmp_path / "empty"], "no photo and no video"),
        (["predict", mine, photos, "--json", "--csv"], "give one of them"),
        (["predict", tmp_path / "absent.safetensors", photos], "there is no file"),
        (["learner", "forget", mine, "nobody"], "no class 'nobody'"),
        (["learner", "merge", mine, mine], "merge needs --output"),
        (["learner", "merge", mine, mine, "--output", tmp_path / "both"], "cannot be merged with itself"),
        (["teach", mine, photos, "--label", "RED"], "is nearly the name of class 'red'.*--new-class"),
        (["learner", "rename", mine, "blue", "Red"], "is nearly the name of class 'red'.*--new-class"),
        *((["learner", "rename", mine, "red", name], RULE) for name in ("a/b", "a\nb", "x" * 300, " ", "<b>a</b>")),
        (["teach", mine, photos, "--label", "two\nlines"], RULE),
    ]
    for arguments, words in cases:
        code, out, err = crumb(*arguments)
        assert code == 1 and re.search(words, err) and "Traceback" not in err and not out, (arguments, err)
    with locked_file(mine):
        code, _, err = crumb("teach", mine, place / "tree", *QUIET)
    assert code == 1 and "is being changed by another process" in err
    assert mine.read_bytes() == before
    assert crumb("learner", "rename", mine, "blue", "Red", "--new-class")[0] == 0
    assert crumb("teach", mine, photos, "--label", "RED", "--new-class")[0] == 0
    assert names_of(mine) == ["Red", "green", "red", "RED"]


def test_other_networks_methods_and_weights_are_refused_with_the_cure(mine, place, tmp_path, crumb):
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
        assert crumb("teach", files[name], place / "photos", "--label", "x", *some)[0] == 0
    before = {path: path.read_bytes() for path in (mine, *files.values())}
    merged, wrong = ["--output", tmp_path / "merged.safetensors"], ["--weights", tmp_path / "others.safetensors"]
    more, taught = [place / "photos", "--label", "y", *wrong, *QUIET], "SHA-256.*was taught with.*give the weight file"
    cases = [
        (["learner", "merge", mine, files["others"], *merged], "different networks.*teach one of them again"),
        (["learner", "merge", mine, files["squeezenet"], *merged], "small_cnn.*squeezenet1_0.*same network"),
        (["learner", "merge", mine, files["slda"], *merged], "slda cannot be merged into one of rda.*method=rda"),
        (["learner", "merge", mine, files["bare"], *merged], r"no weights.*SHA-256 \w{12}.*--weights"),
        (["predict", files["bare"], place / "photos", *wrong], taught),
        (["teach", mine, *more], taught),
        (["learner", "undo", files["bare"], *wrong], taught),
    ]
    for arguments, words in cases:
        code, out, err = crumb(*arguments)
        assert code == 1 and not out and err.count("\n") == 1 and re.search(words, err), (arguments, out, err)
    assert {path: path.read_bytes() for path in before} == before
    assert not (tmp_path / "merged.safetensors").exists() and not list(tmp_path.glob(".*"))


def test_folders_that_are_probably_no_classes_are_asked_about(place, new, tmp_path, crumb):
    for split in ("train", "valid"):
        shutil.copytree(place / "test", tmp_path / "set" / split)
    path = tmp_path / "mine.safetensors"
    code, _, err = crumb("teach", path, tmp_path / "set", *new)
    assert code == 1 and "looks like the splits of a data set" in err and "--new-class" in err and not path.exists()
    assert crumb("teach", path, tmp_path / "set", "--new-class", *new)[0] == 0
    assert names_of(path) == ["train", "valid"]


def test_what_is_ignored_is_said_in_one_line(mine, place, tmp_path, crumb):
    shutil.copytree(place / "test", tmp_path / "tree")
    for name in ("red/a.heic", "red/b.heic", "dog/c.heic", "green/labels.txt", "green/@eaDir"):
        (tmp_path / "tree" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "tree" / name).write_bytes(b"")
    said = r"no photo and no video in it: dog; ignored: 3 \.heic \(convert them to JPEG or PNG\), 1 \.txt and 1 hidden"
    for command in ("teach", "predict"):
        with pytest.warns(UserWarning, match=said) as warned:
            assert crumb(command, mine, tmp_path / "tree")[0] == 0
        assert len(warned) == 1
