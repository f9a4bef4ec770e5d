"""``crumb teach`` and ``crumb learner`` as a person uses them."""

import json
import re
import shutil
import subprocess
import sys

import pytest
import torch
from learned_classes import names_of

from crumb_avalanche.learner.header import holds_weights
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.methods.run_header import LearnerError
from crumb_avalanche.models.networks import SmallCNN
from crumb_avalanche.models.runtimes import TORCH
from crumb_avalanche.system.tensor_file import write_tensors

QUIET = ("--progress", "false")
NEW = ["--backbone", "small_cnn", "--image-size", "32", "--threads", "1", *QUIET]
NEW_LEARNER = "new learner with small_cnn, the file weights.safetensors\n"


@pytest.fixture
def images(place):
    """Folders of six images of a colour, by name."""
    return {name: place / "tree" / name for name in ("red", "green", "blue")}


@pytest.fixture
def teach(done):
    """A function that teaches, and returns what is printed."""

    def taught(path, *words):
        return done("teach", path, *words, *QUIET)

    return taught


@pytest.fixture
def fill(mine, place, tmp_path):
    """A function that fills paths into the words of a command."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "photo.jpg").write_bytes(b"no image")
    shutil.copytree(place / "test", tmp_path / "splits" / "train")
    shutil.copytree(place / "test", tmp_path / "splits" / "valid")
    paths = {
        "mine": mine,
        "photos": place / "photos",
        "green": place / "tree" / "green",
        "splits": tmp_path / "splits",
        "empty": tmp_path / "empty",
        "bad": tmp_path / "bad",
        "tmp": tmp_path,
    }

    def filled(command):
        words = command.split(" ") if isinstance(command, str) else command
        return [word.format_map(paths) for word in words]

    return filled


# Lessons


@pytest.fixture
def wrong_lesson(images, new, tmp_path, done):
    """A learner whose fourth of five lessons has a wrong name, and what was printed."""
    path = tmp_path / "mine.safetensors"

    def lesson(colour, label, *more):
        return done(
            "teach", path, images[colour], "--label", label, "--keep-pictures", *more
        )

    printed = [
        lesson("red", "red", *new),
        lesson("blue", "blue"),
        lesson("red", "red"),
        lesson("red", "blue"),
        lesson("blue", "blue"),
    ]
    return path, printed


def test_a_doubtful_label_is_asked_about(wrong_lesson):
    _, printed = wrong_lesson
    doubt = r"0 of 6 images looked like blue, 6 like red: is the label right\?"
    cure = "If not: .* blue RIGHT --lesson 4"
    assert re.search(f"{doubt} {cure}", printed.pop(3))
    assert not any("is the label right" in out for out in printed)


def test_lessons_are_listed_with_pictures(wrong_lesson, tmp_path, done):
    photos = tmp_path / "pictures"
    out = done("learner", "lessons", wrong_lesson[0], "--pictures", photos)
    lesson = r"lesson 4  \S+  blue \(6 images\), red\n  0 of 6 images looked like blue"
    assert re.search(f"(?m)^{lesson}", out)
    names = sorted(picture.name for picture in photos.iterdir())
    assert names == [f"lesson-{number}.jpg" for number in range(1, 6)]


def test_a_lesson_is_moved_and_taken_back(wrong_lesson, done, refused):
    path = wrong_lesson[0]
    out = done("learner", "move", path, "blue", "red", "--lesson", 4)
    assert out == "moved the images of blue of lesson 4 to red\n"
    out = done("learner", "undo", path, "--lesson", 4)
    assert out == "took back lesson 4: red (6 images)\n"
    out = done("learner", "move", path, "red", "crimson")
    assert out == "moved the images of red to crimson\n"
    images = [lesson.images for lesson in Learner.load(path).lessons]
    assert images == [{"crimson": 6}, {"blue": 6}] * 2
    words = "there is no lesson 4; only 1, 2, 3, 5 can be taken back"
    refused(words, "learner", "undo", path, "--lesson", 4)


def test_teach_makes_a_learner(images, new, tmp_path, done):
    out = done("teach", tmp_path / "new", images["red"], "--label", "red", *new)
    assert "learned red: 6 images" in out
    assert "1 class," in out
    assert "would not know" not in out  # nothing is known of errors with one class


def test_teach_goes_on(images, place, new, tmp_path, done):
    path = tmp_path / "mine.safetensors"
    done("teach", path, images["red"], "--label", "red", *new)
    files = images["blue"].rglob("*.*")
    out = done("teach", path, *files, "--label", "sky", *QUIET)
    assert "learned sky: 6 images" in out
    assert "2 classes" in out
    assert "of others it would name nearly all" in out
    answer = done("predict", path, place / "photos" / "blue.png")
    assert "blue.png  sky" in answer


def test_null_is_the_name_of_a_class(mine, images, teach):
    teach(mine, images["red"], "--label", "null")
    assert names_of(mine) == ["blue", "green", "red", "null"]


def test_the_empty_scene_is_nothing(mine, place, teach, done):
    before = names_of(mine)
    asked = "predict", mine, place / "empty" / "0.png", "--json"
    assert json.loads(done(*asked))["unknown"] is False
    out = teach(mine, "--nothing", place / "empty")
    assert "learned that 6 images show nothing\n" in out
    assert "--nothing" not in out
    assert names_of(mine) == before
    assert Learner.load(mine).nothing == 6
    assert json.loads(done(*asked))["known"] is False


def test_the_empty_scene_is_taken_back(mine, images, teach, done):
    teach(mine, "--nothing", images["green"])
    assert "nothing (6 images)" in done("learner", "undo", mine)
    assert Learner.load(mine).nothing == 0


def test_a_folder_one_level_too_high(place, new, tmp_path, crumb):
    top = tmp_path / "top"
    shutil.copytree(place / "test", top / "data")
    code, out, err = crumb("teach", tmp_path / "a.safetensors", top, *new)
    assert code == 0
    assert "learned data: 3 images" in out
    assert err == (
        f"all of {top} is taken as one class, data; if blue, green, red are the "
        f"classes, give {top / 'data'}\n{NEW_LEARNER}"
    )


def test_the_first_folders_are_named(place, new, tmp_path, crumb):
    data = tmp_path / "top" / "data"
    shutil.copytree(place / "test", data)
    shutil.copytree(data / "blue", data / "white")
    _, _, err = crumb("teach", tmp_path / "a.safetensors", tmp_path / "top", *new)
    assert "if blue, green, red, ... are the classes" in err


@pytest.mark.parametrize("words", ["top/data", "top --label data"])
def test_a_folder_of_the_right_level(place, new, tmp_path, crumb, words):
    shutil.copytree(place / "test", tmp_path / "top" / "data")
    source, *label = words.split()
    path = tmp_path / "mine.safetensors"
    code, _, err = crumb("teach", path, tmp_path / source, *label, *new)
    assert (code, err) == (0, NEW_LEARNER)


# Runtimes, settings and weights


@pytest.fixture
def onnxruntime():
    """The name of the runtime."""
    return f"onnxruntime {pytest.importorskip('onnxruntime').__version__}"


def test_the_runtime_is_kept(
    place, new, tmp_path, crumb, done, monkeypatch, onnxruntime
):
    path = tmp_path / "mine.safetensors"
    # Torch, by the environment of the tests.
    code, _, err = crumb("teach", path, place / "tree", *new)
    assert (code, err) == (0, NEW_LEARNER)
    monkeypatch.setenv("CRUMB_RUNTIME", "onnxruntime")
    code, _, err = crumb("teach", path, place / "tree", *QUIET)
    assert (code, err) == (0, ""), "nothing is said of what was not asked for"
    runtimes = [lesson.runtime for lesson in Learner.load(path).lessons]
    assert runtimes == [str(TORCH), onnxruntime]
    assert done("learner", "show", path).count(f", by {onnxruntime}") == 1


def test_a_runtime_that_is_asked_for_is_said(mine, place, crumb, onnxruntime):
    photos = place / "photos"
    err = crumb("predict", mine, photos, "--runtime", "onnxruntime")[2]
    assert f"runtime {onnxruntime}, " in err
    assert "of torch's (allowed 1e-04)" in err


def test_runtimes_answer_alike(mine, place, crumb, monkeypatch, onnxruntime):
    monkeypatch.setenv("CRUMB_RUNTIME", "onnxruntime")
    code, table, err = crumb("predict", mine, place / "photos")
    assert code == 0
    torch_answer = crumb("predict", mine, place / "photos", "--runtime", "torch")
    assert torch_answer == (0, table, err), "the same to a percent"


def test_an_unknown_runtime(mine, place, refused):
    photos = place / "photos"
    refused("'tpu'.*onnxruntime", "predict", mine, photos, "--runtime", "tpu")


@pytest.mark.parametrize(
    "setting",
    [
        "--method slda",
        "--backbone resnet18",
        "--image-size 64",
        "--budget-bytes 9000",
        "--cut-layer 2",
    ],
)
def test_a_learner_keeps_its_settings(mine, images, refused, setting):
    before = mine.read_bytes()
    words = f"leave {setting} out, or name a new file"
    lesson = [images["red"], "--label", "red", *QUIET]
    refused(words, "teach", mine, *lesson, *setting.split())
    assert mine.read_bytes() == before


def test_a_learner_keeps_its_cut(images, new, tmp_path, teach, refused):
    path = tmp_path / "cut.safetensors"
    lesson = [images["red"], "--label", "red"]
    teach(path, *lesson, *new, "--cut-layer", "8")
    teach(path, *lesson, "--cut-layer", "8")
    teach(path, *lesson)
    words = (
        "was made with --cut-layer 8 and keeps it: leave --cut-layer 9 out, or name a "
        "new file"
    )
    refused(words, "teach", path, *lesson, "--cut-layer", "9", *QUIET)


def test_the_usual_settings_may_be_given(mine, images, teach, refused):
    lesson = [images["red"], "--label", "red"]
    words = "was made with --cut-layer"
    err = refused(words, "teach", mine, *lesson, "--cut-layer", "2", *QUIET)
    usual_cut = re.search(r"with --cut-layer (\d+)", err)[1]  # not in the file
    settings = ["--method", "recommended", "--backbone", "small_cnn"]
    settings += ["--image-size", "32", "--cut-layer", usual_cut]
    assert "learned red" in teach(mine, *lesson, *settings)


def test_weights_stay_in_or_out_of_a_file(images, place, tmp_path, teach):
    path = tmp_path / "lean.safetensors"
    weights = ["--weights", place / "weights.safetensors"]
    lesson = [images["red"], "--label", "red", *weights]
    teach(path, *lesson, *NEW[:4], "--without-weights")
    assert not holds_weights(path)
    teach(path, *lesson)
    assert not holds_weights(path)
    teach(path, *lesson, "--without-weights", "false")
    assert holds_weights(path)
    teach(path, *lesson)
    assert holds_weights(path)
    teach(path, *lesson, "--without-weights")
    assert not holds_weights(path)


# crumb learner


@pytest.mark.parametrize("action", ["show", "lessons"])
def test_what_a_file_says_needs_no_torch(mine, action):
    program = (
        "import sys\nfrom crumb_avalanche.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules, code)"
    )
    command = [sys.executable, "-c", program, "learner", action, mine]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "red (6 images)" in done.stdout
    assert done.stdout.splitlines()[-1] == "False False 0"


@pytest.mark.parametrize(
    "words",
    [
        ("undo",),
        ("rename", "red", "crimson"),
        ("forget", "red"),
        ("move", "red", "blue"),
        ("move", "red", "crimson", "--lesson", 1),
    ],
)
def test_a_change_builds_no_network(mine, done, monkeypatch, words):
    def build(*_, **__):
        pytest.fail("a network is built")

    monkeypatch.setattr("crumb_avalanche.learner.network.split_backbone", build)
    action, *names = words
    assert done("learner", action, mine, *names)


def test_a_learner_after_a_change_answers(mine, place, done):
    done("learner", "rename", mine, "red", "crimson")
    answer = Learner.load(mine).predict(place / "photos" / "red.png")
    assert answer.label == "crimson"


def test_a_change_needs_no_weights(images, mine, teach, done):
    teach(mine, images["red"], "--label", "red", "--without-weights")
    assert done("learner", "undo", mine) == "took back lesson 2: red (6 images)\n"
    assert not holds_weights(mine)


def test_a_learner_without_its_network(mine, place):
    learner = Learner.load(mine, network=False)
    with pytest.raises(LearnerError, match="loaded without its network"):
        learner.predict(place / "photos" / "red.png")


def test_show(mine, done):
    words = (
        "(?s)small_cnn at 32 pixels.*SHA-256.*strict +0.8.*errors.*would name "
        "nearly all.*red: 6 images.*no images.*the names of what was shown, such as "
        "tree"
    )
    assert re.search(words, done("learner", "show", mine))


def test_show_tells_of_pictures(mine, images, teach, done):
    teach(mine, images["red"], "--label", "red", "--keep-pictures")
    out = done("learner", "show", mine)
    assert "It holds small pictures of 1 lesson." in out
    assert "no images" not in out


def test_strict_is_changed_without_a_source(mine, images, teach, done):
    teach(mine, images["red"], "--label", "red", "--keep-pictures")
    before = Learner.load(mine)
    out = done("teach", mine, "--strict", 0.95)
    assert out.startswith("strict is 0.95: a class is named from this confidence on\n")
    after = Learner.load(mine)
    assert after.strict == 0.95
    assert after.lessons == before.lessons
    assert after.lessons[-1].picture


@pytest.mark.parametrize(
    "command",
    [
        "teach {mine} --strict 0.95",
        "teach {mine} {green} --label green",
        "learner show {mine}",
    ],
)
def test_a_learner_that_cannot_tell_unknown_things_says_so(fill, done, command):
    # Given a learner without a prior, which was asked few clips before learning
    # When it is changed, taught or shown
    out = done(*fill(command))
    # Then it says what is missing
    assert re.search(r"cannot tell unknown things yet, .*: \d more clips? of kno", out)


def test_strict_of_a_learner_that_is_not_there(tmp_path, refused):
    absent = tmp_path / "absent.safetensors"
    refused("no learner .*; check the path, or give", "teach", absent, "--strict", 0.9)


def test_a_name_with_html_is_text(mine, place, done):
    name = "<img src=x onerror=alert(1)>"
    out = done("learner", "rename", mine, "red", name)
    assert out == f"renamed red to {name}\n"
    answer = done("predict", mine, place / "photos" / "red.png", "--json")
    assert json.loads(answer)["label"] == name


def test_forget(mine, done):
    # There is no room for a common scatter.
    out = done("learner", "forget", mine, "green")
    assert out == "forgot green; nothing of it remains\n"
    assert names_of(mine) == ["blue", "red"]


def test_a_lesson_of_a_forgotten_class(mine, images, teach, done):
    teach(mine, images["red"], "--label", "extra")
    assert done("learner", "forget", mine, "extra").startswith("forgot extra")
    out = done("learner", "show", mine)
    assert "+00:00  classes that were forgotten" in out
    out = done("learner", "undo", mine)
    assert out.startswith("took back lesson 1: blue (6 images)")
    out = done("learner", "undo", mine)
    assert out == "took back lesson 2, whose classes were forgotten\n"


def test_the_only_lesson_is_taken_back(images, place, new, tmp_path, done, refused):
    path = tmp_path / "other.safetensors"
    done("teach", path, images["green"], "--label", "green", *new)
    out = done("learner", "undo", path)
    assert "took back lesson 1: green (6 images)" in out
    refused("nothing was taught", "predict", path, place / "photos" / "green.png")


def test_merge(mine, images, place, new, tmp_path, done):
    second = tmp_path / "other.safetensors"
    merged = tmp_path / "both.safetensors"
    done("teach", second, images["green"], "--label", "lawn", *new)
    assert "4 classes" in done("learner", "merge", mine, second, "--output", merged)
    assert names_of(merged) == ["blue", "green", "red", "lawn"]
    done("learner", "forget", merged, "green")
    answer = done("predict", merged, place / "photos" / "green.png")
    assert "green.png  lawn" in answer


def test_a_merge_says_which_classes_became_one(mine, images, new, tmp_path, done):
    # Given another learner, of which one class has the name of one here
    second = tmp_path / "other.safetensors"
    done("teach", second, images["green"], "--label", "red", *new)
    done("teach", second, images["green"], "--label", "lawn", *QUIET)
    # When they are merged
    merged = tmp_path / "both.safetensors"
    out = done("learner", "merge", mine, second, "--output", merged)
    # Then the name is said
    first_line, last_line = out.splitlines()
    assert first_line == "red is in both and became one class"
    assert "4 classes" in last_line


def test_a_merge_keeps_pictures(mine, images, place, new, tmp_path, done):
    # Given two learners, each with a lesson that has a picture
    second = tmp_path / "other.safetensors"
    done("teach", mine, images["red"], "--label", "red", "--keep-pictures")
    done("teach", second, images["green"], "--label", "lawn", "--keep-pictures", *new)
    # When they are merged into the file of the first one
    done("learner", "merge", mine, second, "--output", mine)
    # Then the file has the pictures of both
    pictures = [bool(lesson.picture) for lesson in Learner.load(mine).lessons]
    assert pictures == [False, True, True]


# Refusals

RULE = "1 to 200 characters without slashes.* Choose another name"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("teach {mine} absent.jpg --label x", "no file or folder absent.jpg"),
        (
            "teach {mine} {green}/object0 absent --label x",
            "no file or folder absent; check the path",
        ),
        ("teach {mine} {photos}/red.png", "has no class: give"),
        (
            "teach {mine} {photos}/red.png {green}/object0/0.png",
            "photos/red.png has no class: give",
        ),
        ("teach {mine} {photos} --label a/b", f"class name 'a/b'.*{RULE}"),
        (["teach", "{mine}", "{photos}", "--label", "two\nlines"], RULE),
        (
            "teach {mine} {photos}",
            "has no class: give .* and no photo or video beside them",
        ),
        ("teach {mine}", "give a source"),
        ("teach {mine} --strict 0.9 --label x", "give a source"),
        ("teach {mine} {green} --nothing {green}", "give a source"),
        ("teach {mine} --nothing {green} --label green", "an empty scene has no class"),
        (
            "teach {mine} {splits}",
            "looks like the splits of a data set.*--new-class",
        ),
        ("predict {mine}", "give images"),
        ("predict {mine} {photos} --json --csv", "give one of them"),
        (
            "predict {mine} {photos} --html {photos}/red.png",
            r"red.png is the page to write; .* ends in \.html",
        ),
        ("learner forget {mine}", "forget needs MODEL NAME; got 1 name"),
        ("learner show {mine} --lesson 4", "only undo and move have --lesson"),
        ("learner undo {mine} --pictures {photos}", "only lessons has --pictures"),
        ("learner merge {mine} {mine}", "merge needs --output"),
        (
            "learner merge {mine} {mine} --output {tmp}/both",
            "cannot be merged with itself",
        ),
    ],
)
def test_bad_input_before_a_file_is_read(
    mine, fill, refused, monkeypatch, command, words
):
    before = mine.read_bytes()
    monkeypatch.setattr(Learner, "load", lambda *_: pytest.fail("loaded"))
    assert refused(words, *fill(command)).count("\n") == 1
    assert mine.read_bytes() == before


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("teach {mine} {empty} --label x", "no photo and no video"),
        (
            "teach {mine} {bad} --label x",
            "no image to learn, 1 file could not .*; .*photo.jpg",
        ),
        ("teach {mine} {bad} --label x --on-bad-frame raise", "photo.jpg"),
        (
            "teach {mine} {photos} --label RED",
            "is nearly the name of class 'red'.*--new-class",
        ),
        ("predict {mine} {empty}", "no photo and no video"),
        ("predict {tmp}/absent.safetensors {photos}", "there is no file"),
        ("learner forget {mine} nobody", "no class 'nobody'"),
        (
            "learner rename {mine} blue Red",
            "is nearly the name of class 'red'.*--new-class",
        ),
        (["learner", "rename", "{mine}", "red", "a/b"], RULE),
        (["learner", "rename", "{mine}", "red", "a\nb"], RULE),
        (["learner", "rename", "{mine}", "red", "x" * 300], RULE),
        (["learner", "rename", "{mine}", "red", " "], RULE),
        (["learner", "rename", "{mine}", "red", "<b>a</b>"], RULE),
    ],
)
def test_bad_input_loses_nothing(mine, fill, refused, command, words):
    before = mine.read_bytes()
    refused(words, *fill(command))
    assert mine.read_bytes() == before


def test_new_classes_of_near_names(mine, fill, done):
    done(*fill("learner rename {mine} blue Red --new-class"))
    done(*fill("teach {mine} {photos} --label RED --new-class"))
    done(*fill("teach {mine} {splits} --new-class"))
    assert names_of(mine) == ["Red", "green", "red", "RED", "train", "valid"]


@pytest.fixture(scope="module")
def other_weights(tmp_path_factory):
    """A weight file of the same network with other weights."""
    path = tmp_path_factory.mktemp("others") / "others.safetensors"
    with torch.random.fork_rng():
        torch.manual_seed(1)
        write_tensors(path, SmallCNN().state_dict(), {})
    return path


@pytest.fixture
def other_learners(place, tmp_path, other_weights, done):
    """Learners that do not go together with the usual one, by what is different."""
    weights = place / "weights.safetensors"
    options = {
        "others": ["--weights", other_weights, *NEW],
        "squeezenet": ["--weights", "none", "--backbone", "squeezenet1_0", *NEW[2:]],
        "slda": ["--weights", weights, "--method", "slda", *NEW],
        "bare": ["--weights", weights, "--without-weights", *NEW],
    }

    def make(name):
        path = tmp_path / f"{name}_learner.safetensors"
        done("teach", path, place / "photos", "--label", "x", *options[name])
        return path

    return make


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "others",
            r"different networks, small_cnn for images of 32 pixels with the file "
            r"weights\.safetensors \(SHA-256 \w+\.\.\.\) and small_cnn [^{}]*: "
            "teach one of them again",
        ),
        ("squeezenet", "small_cnn.*squeezenet1_0[^{}]*same network"),
        ("slda", "slda cannot be merged into one of rda.*method=rda"),
        ("bare", r"no weights.*SHA-256 \w{12}.*--weights"),
    ],
)
def test_learners_that_cannot_be_merged(
    mine, other_learners, tmp_path, refused, name, words
):
    learner = other_learners(name)
    before = [mine.read_bytes(), learner.read_bytes()]
    merged = tmp_path / "merged.safetensors"
    err = refused(words, "learner", "merge", mine, learner, "--output", merged)
    assert err.count("\n") == 1
    assert [mine.read_bytes(), learner.read_bytes()] == before
    assert not merged.exists()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    "command",
    [
        "predict {bare} {photos}",
        "teach {mine} {photos} --label y",
    ],
)
def test_weights_of_another_network(
    mine, place, other_learners, other_weights, refused, command
):
    paths = {"mine": mine, "bare": other_learners("bare"), "photos": place / "photos"}
    before = [mine.read_bytes(), paths["bare"].read_bytes()]
    words = [word.format_map(paths) for word in command.split()]
    cure = "SHA-256.*was taught with.*give the weight file"
    assert refused(cure, *words, "--weights", other_weights).count("\n") == 1
    assert [mine.read_bytes(), paths["bare"].read_bytes()] == before


@pytest.mark.parametrize(
    "command",
    [
        "teach {photos} {mine}",
        "teach {photos} absent.safetensors",
        "teach {photos} {empty} --label cup",
        "teach {photos} --strict 0.9",
    ],
)
def test_a_folder_in_the_place_of_the_file(fill, refused, command):
    # Given a folder of photos, which is no run
    # When it comes first
    # Then the order of the arguments is said, and no file that does not exist
    err = refused("first argument is the learner's file", *fill(command))
    assert "learner.safetensors" not in err


def test_no_file_replaces_a_folder(mine, place, refused):
    refused("is a folder, .*; give the path", "export", mine, "--output", place)


def test_a_folder_that_is_to_be_changed(place, refused):
    refused(
        "tree is a folder without a learner: give the file of a learner",
        "learner",
        "undo",
        place / "tree",
    )
