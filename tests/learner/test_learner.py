"""What a person may rely on: lessons in any order, undo, forget, merge, the file."""

import copy
import json
import math
import pickle
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from learned_classes import counts
from PIL import Image
from small_lessons import SIZE, images, same, taught

from crumb_avalanche.learner import lesson as lesson_module
from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.header import CLOSED_FORMS, read_header
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.network import NetworkError
from crumb_avalanche.learner.predictor import NothingTaughtError
from crumb_avalanche.methods.budgeted_statistics import BudgetError
from crumb_avalanche.methods.features import FeatureMoments, feature_length
from crumb_avalanche.methods.run_header import LearnerError
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.tensor_file import tensor_bytes

closed_forms = pytest.mark.parametrize("method", CLOSED_FORMS)


def label(learner, number, seed=1):
    """The answer for an image of a class."""
    return learner.predict(images(number, 1, seed=seed)).label


def copy_of(learner):
    """A copy that shares no memory."""
    return pickle.loads(pickle.dumps(learner))


# Lessons


@closed_forms
def test_one_class_to_thirty(make, method):
    learner = make(method)
    least = 0.8 if method != "ranpac" else 0.6
    for number in range(30):
        learner.teach(images(number, 4), f"c{number}")
        if number in (0, 1, 9, 29):
            right = [label(learner, n) == f"c{n}" for n in range(number + 1)]
            assert np.mean(right) >= least
    assert counts(learner) == {f"c{number}": 4 for number in range(30)}


@closed_forms
def test_before_the_first_lesson(make, method):
    with pytest.raises(NothingTaughtError, match=r"nothing was taught.*teach"):
        make(method).predict(images(0, 1))


@closed_forms
def test_a_single_class(make, method):
    learner = make(method)
    learner.teach(images(0, 1), "only")
    answer = learner.predict(images(1, 1))
    assert answer.label == "only"
    assert answer.confidence == pytest.approx(1)
    assert not answer.runners_up


@closed_forms
def test_a_class_that_comes_back(make, method):
    learner = make(method)
    learner.teach(images(0, 1), "first")
    learner.teach(images(1, 1), "other")
    assert {label(learner, number, seed=0) for number in (0, 1)} == {"first", "other"}
    learner.teach(images(0, 5, seed=2), "first")
    assert counts(learner) == {"first": 6, "other": 1}
    assert label(learner, 0, seed=3) == "first"


@closed_forms
def test_order_and_merging(make, method):
    """Neither changes answers."""
    forward = taught(make(method), 5)
    backward = make(method)
    for number in reversed(range(5)):
        backward.teach(images(number), f"c{number}")
    merged = taught(make(method), 2)
    apart = make(method)
    for number in range(2, 5):
        apart.teach(images(number), f"c{number}")
    for learner in (forward, backward, apart):
        learner.teach(images(0, 6, seed=5), "c0")
    merged.merge(apart)
    learners = (forward, backward, merged)
    assert counts(forward) == counts(backward) == counts(merged)
    for number in range(5):
        answers = {label(learner, number) for learner in learners}
        assert answers == {f"c{number}"}


def bad_image():
    """An image with a value that is no number."""
    pixels = images(3, 1)[0].astype(np.float32) / 255
    pixels[0, 0, 0] = np.nan
    return pixels


@pytest.mark.parametrize(
    ("source", "name", "options", "line"),
    [
        ([*images(3), bad_image()], "bad", {}, "holds NaN"),
        (
            bad_image(),
            "bad",
            {"on_bad": "skip"},
            "no image to learn, 1 file could not be read; source: holds NaN",
        ),
        ([], "none", {}, "holds no photo"),
        (images(3), "a/b", {}, "class name 'a/b'"),
    ],
)
def test_a_bad_lesson(make, source, name, options, line):
    """It leaves the learner as it was."""
    learner = taught(make(), 2)
    before = copy_of(learner)
    with pytest.raises(ValueError, match=line):
        learner.teach(source, name, **options)
    assert same(learner, before)
    assert learner.lessons == before.lessons
    learner.undo()


def test_an_image_size_of_zero():
    line = "image_size is 0, but must be a whole number of at least 1"
    with pytest.raises(ValueError, match=line):
        Learner(weights=None, image_size=0)


# Names and classes


def test_rename(make):
    learner = taught(make(), 2)
    learner.rename("c0", "cup")
    assert label(learner, 0, seed=0) == "cup"
    assert learner.lessons[0].images == {"cup": 6}
    learner.undo()
    assert list(counts(learner)) == ["cup"]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("c0", "c1", "a class 'c1' already"),
        ("x", "y", r"no class 'x'.*c0, c1"),
        ("x", "x", r"no class 'x'.*c0, c1"),
    ],
)
def test_rename_that_is_refused(make, old, new, line):
    learner = taught(make(), 2)
    with pytest.raises(ValueError, match=line):
        learner.rename(old, new)
    assert list(counts(learner)) == ["c0", "c1"]


@pytest.fixture(params=CLOSED_FORMS)
def forgetful(make, request):
    """A learner that forgot c1 of c0, c1, c2 and last; what remains; one without c1."""
    learner = taught(make(request.param), 3)
    learner.teach(images(9), "last")
    remains = learner.forget("c1")
    without = make(request.param)
    for number, name in ((0, "c0"), (2, "c2"), (9, "last")):
        without.teach(images(number), name)
    return learner, remains, without


def test_forget(forgetful):
    """It leaves nothing of the class but in statistics that classes share."""
    learner, remains, without = forgetful
    assert list(counts(learner)) == ["c0", "c2", "last"]
    values = {**learner.state_dict(), "statistics": 0, "confidence": 0}
    assert "c1" not in json.dumps(values, default=str)
    if not remains:
        for number in (0, 1, 2, 9):
            assert label(learner, number) == label(without, number) != "c1"


def test_pictures_of_a_forgotten_class_go(make, tmp_path):
    # Given a learner that keeps pictures of its lessons
    learner = make()
    learner.keep_pictures = True
    taught(learner, 2)
    # When it forgets a class, and is saved with pictures
    learner.forget("c1")
    path = tmp_path / "mine.safetensors"
    learner.save(path, pictures=True)
    # Then the file holds the picture of the other class alone
    pictures = [lesson.picture for lesson in Learner.load(path).lessons]
    assert [bool(picture) for picture in pictures] == [True, False]
    assert Learner.load(path).lessons[1].pictured == ()


def test_the_source_of_a_forgotten_class_goes(make, tmp_path):
    # Given a lesson whose source has the name of its class
    learner = make()
    (tmp_path / "mug").mkdir()
    Image.fromarray(images(0)[0]).save(tmp_path / "mug" / "0.png")
    learner.teach(tmp_path / "mug", "mug")
    # When the class is forgotten
    learner.forget("mug")
    # Then nothing that is saved has the name
    assert "mug" not in json.dumps(learner.state_dict(), default=str)


def test_teaching_what_was_forgotten(forgetful):
    learner, _, _ = forgetful
    learner.undo()  # the last lesson, without the class that was forgotten
    assert list(counts(learner)) == ["c0", "c2"]
    learner.teach(images(1), "c1")
    assert label(learner, 1) == "c1"


# Files


@pytest.fixture(params=CLOSED_FORMS)
def saved(make, request, tmp_path):
    """A learner before and after its last lesson, and its file."""
    before = taught(make(request.param), 3)
    learner = copy_of(before)
    learner.teach(images(7), "new")
    learner.save(tmp_path / "a.safetensors")
    return before, learner, tmp_path / "a.safetensors"


def test_a_file_holds_every_bit(saved):
    _, learner, path = saved
    loaded = Learner.load(path)
    assert same(learner, loaded)
    assert loaded.lessons == learner.lessons
    asked = images(1, 3, seed=1)
    assert learner.predict(asked) == loaded.predict(asked)


def test_undo_after_loading(saved):
    before, _, path = saved
    loaded = Learner.load(path)
    assert loaded.undo().images == {"new": 6}
    assert same(loaded, before)
    assert loaded.lessons == before.lessons
    loaded.teach(images(8), "c0")
    before.teach(images(8), "c0")
    assert same(loaded, before)


@pytest.mark.parametrize("weights", [True, False])
def test_header_of_a_file(make, weights, tmp_path):
    taught(make(), 2).save(tmp_path / "a.safetensors", weights=weights)
    header = read_header(tmp_path / "a.safetensors")
    assert header["names"] == ["c0", "c1"]
    assert header["network"]["included"] is weights


@closed_forms
def test_a_file_without_weights(make, method, weights_file, tmp_path):
    learner = taught(make(method), 3)
    path = tmp_path / "a.safetensors"
    learner.save(path, weights=False)
    with pytest.raises(LearnerError, match=r"holds no weights.*SHA-256"):
        Learner.load(path)
    assert same(learner, Learner.load(path, weights=weights_file))


def test_a_file_in_the_home_folder(make, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    learner = taught(make(), 2)
    learner.save("~/a.safetensors")
    assert (tmp_path / "a.safetensors").exists()
    assert same(learner, Learner.load("~/a.safetensors"))


# Merging


def apart(make, path, saved):
    """Two copies of a learner, each taught and renamed on its own since then."""
    learner = taught(make(), classes=2)
    copied = copy.deepcopy(learner)
    if saved:
        learner.save(path)
        copied = Learner.load(path)
    learner.rename("c0", "cup")
    learner.teach(images(2), "c2")
    copied.teach(images(3), "c3")
    return learner, copied


@pytest.mark.parametrize("saved", [False, True])
def test_merge_of_copies(make, tmp_path, saved):
    """It is refused, whatever names their classes have now."""
    learner, copied = apart(make, tmp_path / "a.safetensors", saved)
    before = copy_of(learner)
    line = r"the same 2 lessons \(\S+Z?: cup; .*: c1\).*twice: teach a new learner"
    with pytest.raises(ValueError, match=line):
        learner.merge(copied)
    assert same(learner, before)
    assert learner.lessons == before.lessons


def test_merge_of_the_same_twice(make, tmp_path):
    _, copied = apart(make, tmp_path, saved=False)
    learner = make()
    learner.merge(copied)
    with pytest.raises(ValueError, match="hold the same 3 lessons"):
        learner.merge(copied)


def test_merge_of_copies_that_forgot(make, tmp_path):
    """Nothing counts twice."""
    learner, copied = apart(make, tmp_path, saved=False)
    for name in ("c0", "c1"):
        copied.forget(name)
    learner.merge(copied)
    assert counts(learner) == {"cup": 6, "c1": 6, "c2": 6, "c3": 6}


def test_merge_of_lessons_at_one_instant(make, monkeypatch):
    """They are not the same for that."""
    monkeypatch.setattr(lesson_module, "now", lambda: "2026-01-01T00:00:00+00:00")
    learner = taught(make())
    second = taught(make())
    assert learner.lessons == second.lessons
    learner.merge(second)
    assert list(counts(learner).values()) == [12] * 4


def other_network(make):
    torch.manual_seed(1)
    return Learner("rda", "small_cnn", None, SIZE)


def other_features(make):
    usual = make()
    learner = Learner.__new__(Learner)
    moments = {**vars(usual._classifier.features), "power": 0.25}
    learner._set_up("rda", usual.network, usual.budget_bytes, moments)
    return learner


@pytest.mark.parametrize(
    ("make_other", "error", "line"),
    [
        (
            other_features,
            ValueError,
            r"other features cannot be .*\(power is [\d.]+ here, 0\.25 there\): teach",
        ),
        (
            lambda make: make("slda"),
            ValueError,
            "slda cannot be merged into one of rda",
        ),
        (other_network, NetworkError, "different networks"),
        (
            lambda make: "yours.safetensors",
            TypeError,
            r"other is str; give a Learner, such as Learner\.load\(path\)",
        ),
    ],
)
def test_merge_of_what_does_not_fit(make, make_other, error, line):
    learner = taught(make(), classes=2)
    with pytest.raises(error, match=line):
        learner.merge(make_other(make))
    assert list(counts(learner).values()) == [6, 6]


def test_merge_without_a_network(make, tmp_path):
    # Given a learner that was loaded without its network
    path = tmp_path / "learner.safetensors"
    taught(make(), 2).save(path)
    unbuilt = Learner.load(path, network=False)
    # When it is merged into another one
    learner = make()
    learner.merge(unbuilt)
    # Then that knows its classes, which is not so the other way round
    assert list(counts(learner)) == ["c0", "c1"]
    with pytest.raises(LearnerError, match="loaded without its network"):
        unbuilt.merge(taught(make(), 1))


def test_merge_with_itself(make):
    learner = taught(make(), classes=2)
    with pytest.raises(ValueError, match="cannot be merged with itself"):
        learner.merge(learner)
    assert list(counts(learner).values()) == [6, 6]


def test_merge_of_a_learner_in_a_lesson(make):
    """What another thread is teaching is taken without the lesson under way."""
    learner = taught(make(), classes=2)
    second = make()
    second.teach(images(5), "c5")

    def merge(count):
        thread = threading.Thread(target=learner.merge, args=(second,))
        thread.start()
        thread.join()

    second.teach(images(6), "c6", progress=merge)
    assert counts(learner) == {"c0": 6, "c1": 6, "c5": 6}
    assert counts(second) == {"c5": 6, "c6": 6}


# Budget


@pytest.fixture
def least_budget(make):
    """The least budget that has room for all features of twenty classes."""
    length = make("rda")._classifier.length
    mean = 4 * (length + 3)
    directions = 8 * (length + 2 * math.ceil(length / 32))
    return 20 * (mean + directions)


def test_usual_features(make, least_budget):
    learner = make("rda")
    model = learner.network.model
    length = 4 * model.map_shape[0] + feature_length(model)
    assert learner.features["cells"] == 2
    assert learner._classifier.length == length
    assert make("rda", budget_bytes=least_budget).features == learner.features


def test_features_of_a_small_budget(make, least_budget):
    """They are those of the head alone."""
    learner = make("rda", budget_bytes=least_budget - 1)
    assert learner.features["maps"] is False
    assert learner._classifier.length == feature_length(learner.network.model)
    with pytest.raises(ValueError, match="cannot be merged"):
        make("rda").merge(learner)


@pytest.fixture
def frugal(make):
    """A learner with a budget that two directions of fifteen classes take."""
    length = make("rda", budget_bytes=1)._classifier.length
    return make("rda", budget_bytes=30 * 2 * length)


def test_what_gives_way(frugal):
    notes = []
    for number in range(8):
        notes += frugal.teach(images(number, 10), f"c{number}").notes
        assert frugal.bytes <= frugal.budget_bytes
    assert any("directions" in note for note in notes)


def test_a_full_budget(frugal):
    with pytest.raises(BudgetError, match=r"needed for .* classes.* budget .* forget"):
        taught(frugal, 40)
    assert len(frugal.classes) < 40
    assert frugal.bytes <= frugal.budget_bytes


def test_gram_matrix_takes_half_of_the_budget():
    classifier = Classifier("ranpac", FeatureMoments(), 20, 80_000)
    assert classifier.statistics.gram.nbytes == 40_000


@closed_forms
def test_the_budget_is_kept_to_the_last_class(method):
    budget = 6000
    classifier = Classifier(method, FeatureMoments(), 20, budget)
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(BudgetError, match="budget"):
        for number in range(1000):
            class_number, _ = classifier.ensure_class(f"c{number}")
            classifier.learn(torch.randn(4, 20, generator=generator), class_number)
            assert tensor_bytes(classifier.statistics.tensors()) <= budget
    assert classifier.statistics.least_bytes(len(classifier.classes.infos) + 1) > budget


# Clips


@pytest.fixture
def clip(tmp_path):
    """Twelve frames of class c0, and their files."""
    frames = images(0, 12, seed=2)
    paths = [tmp_path / f"{number}.png" for number in range(12)]
    for path, image in zip(paths, frames):
        Image.fromarray(image).save(path)
    return frames, paths


CLIPS = {
    "arrays": lambda frames, paths: list(frames),
    "images": lambda frames, paths: list(map(Image.fromarray, frames)),
    "iterator": lambda frames, paths: iter(frames),
    "array": lambda frames, paths: frames,
    "paths": lambda frames, paths: paths,
}


@pytest.mark.parametrize("kind", CLIPS)
def test_a_lesson_of_one_clip(make, clip, kind):
    """Near copies do not fill the records that say which images are unknown."""
    learner = taught(make(), 2)
    recorded = learner._classifier.confidence.number_of_clips
    lesson = learner.teach(CLIPS[kind](*clip), "c0")
    assert lesson.clips == 1
    assert lesson.images == {"c0": 12}
    assert learner._classifier.confidence.number_of_clips == recorded + 1


def test_a_lesson_of_two_clips(make, clip):
    _, paths = clip
    assert make().teach([paths[:6], paths[6:]], "c0").clips == 2


@pytest.mark.parametrize("kind", ["arrays", "array", "paths"])
def test_the_answer_for_a_clip(make, clip, kind):
    answer = taught(make(), 4).predict(CLIPS[kind](*clip))
    assert [frame.label for frame in answer.frames] == ["c0"] * 12
    shares = [answer.confidence, *(share for _, share in answer.runners_up)]
    assert sum(shares) == pytest.approx(1)
    assert shares == sorted(shares, reverse=True)


def test_answers_for_two_clips(make, clip):
    _, paths = clip
    answers = taught(make(), 2).predict_all([paths[:5], paths[5:]])
    assert [len(answer.frames) for answer in answers] == [5, 7]


def test_answers_for_a_pattern(make, clip, tmp_path):
    _, paths = clip
    answers = taught(make(), 2).predict_all(tmp_path / "*.png")
    assert [answer.path for answer in answers] == list(map(str, paths))


# Threads

# Files that garbage of other tests leaves open are no matter.
only_clean = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")


def ask_in_threads(learner, asked, meanwhile=lambda: None):
    """Ask about clips in three threads; return the answers of each."""
    answers = []

    def ask():
        answers.append(list(map(learner.predict, asked)))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    meanwhile()
    for thread in threads:
        thread.join()
    return answers


@only_clean
def test_threads_that_ask(make):
    """They do not mix their images."""
    learner = taught(make(), 6)
    asked = [images(number, 3 + number, seed=2) for number in range(6)]
    expected = list(map(learner.predict, asked))
    assert ask_in_threads(learner, asked) == [expected] * 3


@only_clean
def test_threads_that_ask_while_one_teaches(make):
    learner = taught(make(), 6)
    asked = [images(number, 3 + number, seed=2) for number in range(6)]

    def teach():
        for number in range(6, 9):
            learner.teach(images(number), f"c{number}")

    answers = ask_in_threads(learner, asked, teach)
    labels = [answer.label for thread in answers for answer in thread]
    assert labels == [f"c{number}" for number in range(6)] * 3
    assert len(learner.classes) == 9


# The readme


@pytest.fixture
def readme(weights_file, tmp_path, monkeypatch):
    """The names that the readme's lines leave, in a folder with its clips."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("mug", "shoe")):
        (tmp_path / "clips" / name).mkdir(parents=True)
        for index, pixels in enumerate(images(number)):
            Image.fromarray(pixels).save(tmp_path / "clips" / name / f"{index}.png")
    Image.fromarray(images(0, 1, seed=1)[0]).save(tmp_path / "photo.jpg")
    (tmp_path / "weights.safetensors").write_bytes(weights_file.read_bytes())
    text = (Path(__file__).parents[2] / "README.md").read_text()
    pattern = r"```python\n(from crumb_avalanche import Learner.*?)```"
    lines = re.search(pattern, text, re.DOTALL)[1]
    # The small network in the place of a download.
    small = (
        'Learner(backbone="small_cnn", weights="weights.safetensors", image_size=32)'
    )
    names: dict = {}
    exec(compile(lines.replace("Learner()", small), "README.md", "exec"), names)
    return names


def test_the_lines_of_the_readme(readme):
    assert readme["answer"].label == "mug"
    assert Learner.load("mine.safetensors").predict("photo.jpg") == readme["answer"]


def test_a_folder_called_source(readme, tmp_path):
    """So are images in memory called, too."""
    (tmp_path / "source").mkdir()
    assert readme["learner"].predict(list(images(0))).label == "mug"


# Features that cannot be used


@pytest.fixture(params=[np.nan, np.inf, 3e38])
def damaging(monkeypatch, request):
    """Let the network give bad values for white images; return six, the third white."""
    extract = SplitModel._extract_at_once

    def damaged(model, pixels):
        maps = extract(model, pixels).clone()
        white = (pixels == 255).flatten(1).all(1)
        maps[white, 0, 0, 0] = request.param
        return maps

    monkeypatch.setattr(SplitModel, "_extract_at_once", damaged)
    pixels = images(3)
    pixels[2] = 255
    return pixels


def test_bad_features_are_refused(make, damaging):
    """By the name of the image."""
    learner = make()
    learner.teach(images(1), "other")
    before = copy_of(learner)
    with pytest.raises(ValueError, match=r"^source\[2\]: .*must be finite"):
        learner.teach(damaging, "bad")
    assert same(learner, before)
    assert len(learner.lessons) == 1
    with pytest.raises(ValueError, match=r"^source\[2\]: .*must be finite"):
        learner.predict(damaging)


def test_bad_features_are_left_out_of_a_lesson(make, damaging):
    learner = make()
    lesson = learner.teach(damaging, "bad", on_bad="skip")
    assert [bad.path for bad in lesson.unread] == ["source[2]"]
    assert "finite" in lesson.unread[0].reason
    assert lesson.images == {"bad": 5}
    plain = make()
    plain.teach(np.delete(images(3), 2, axis=0), "bad")
    assert same(learner, plain)


def test_bad_features_are_left_out_of_answers(make, damaging):
    left_out = []
    learner = taught(make(), 2)
    answers = learner.predict_all(damaging, on_bad="skip", report=left_out.append)
    assert [len(answer.frames) for answer in answers] == [5]
    assert [bad.path for bad in left_out] == ["source[2]"]


def test_a_lesson_of_bad_features_alone(make, damaging):
    line = r"no image to learn, 1 file could not be read; source\[0\]: .*finite"
    with pytest.raises(ValueError, match=line):
        make().teach(damaging[2:3], "bad", on_bad="skip")


# How sure an answer has to be


def test_a_learner_stays_as_strict_as_it_was_set(make, tmp_path):
    """In a file, and when a lesson is taken back; confidences do not change."""
    learner = taught(make(), 3)
    answer = learner.predict(images(1, 1, seed=2))
    learner.set_strict(0.99)
    strict = learner.predict(images(1, 1, seed=2))
    assert strict.confidence == answer.confidence
    learner.save(tmp_path / "a.safetensors")
    loaded = Learner.load(tmp_path / "a.safetensors")
    loaded.undo()
    assert loaded.strict == 0.99
    assert loaded.rates is not None


def test_a_number_is_no_looks():
    words = r"looks is 0.6; give a tuple, such as \(0.6,\)"
    with pytest.raises(TypeError, match=words):
        Learner(backbone="small_cnn", weights=None, image_size=32, looks=0.6)


@pytest.mark.parametrize(("clips", "words"), [(4, "1 more clip of known"), (5, "")])
def test_a_learner_says_that_it_cannot_tell_unknown_things(
    make, tmp_path, clips, words
):
    # Given a learner without a prior that was asked so many clips of known classes
    learner = taught(make(), 2)
    for seed in range(1, clips + 1):
        learner.teach(images(0, seed=seed), "c0")
    # Then it says how many more it needs
    assert learner.missing_clips == 5 - clips
    assert words in learner.note and bool(learner.note) == bool(words)
    # And until then no answer says that its class is known
    answer = learner.predict(images(0, seed=9))
    assert not answer.unknown
    assert answer.known is (None if words else True)
    assert answer.frames[0].known is answer.known
    # And its file has the number
    learner.save(tmp_path / "a.safetensors")
    assert read_header(tmp_path / "a.safetensors")["missing_clips"] == 5 - clips


@pytest.mark.parametrize("strict", [0, 1, 1.5, math.nan, "a", None])
def test_a_confidence_that_is_none(make, strict):
    with pytest.raises(ValueError, match=r"strict is .*; give a confidence from 0\.01"):
        make().set_strict(strict)


def test_a_folder_is_no_learner_file(make, tmp_path):
    with pytest.raises(IsADirectoryError, match=r"is a folder.*; give the path"):
        make().save(tmp_path)


def test_what_is_no_learner_is_not_replaced(make, tmp_path):
    # Given a file that is no learner
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    # When a learner is saved to it
    with pytest.raises(FileExistsError, match=r"notes\.txt exists and is no learner"):
        make().save(notes, overwrite=True)
    # Then it stays
    assert notes.read_text() == "mine"


def test_another_learner_is_replaced_on_request(make, tmp_path):
    # Given the file of a learner
    path = tmp_path / "a.safetensors"
    taught(make(), 2).save(path)
    # When another one is saved to it
    other = taught(make(), 3)
    with pytest.raises(FileExistsError, match=r"Learner\.load goes on with it"):
        other.save(path)
    # Then the file stays, but on request
    assert len(Learner.load(path).classes) == 2
    other.save(path, overwrite=True)
    assert len(Learner.load(path).classes) == 3


def test_a_number_is_no_path():
    with pytest.raises(TypeError, match=r"the path is 3 \(int\); give text"):
        Learner.load(3)


def test_rates_are_in_the_header(make, tmp_path):
    learner = taught(make(), 2)
    learner.teach(images(0, seed=1), "c0")
    learner.save(tmp_path / "a.safetensors")
    rates = read_header(tmp_path / "a.safetensors")["rates"]
    assert rates == pytest.approx(learner.rates._asdict())


@pytest.mark.parametrize("classes", [0, 1])
def test_rates_need_two_classes(make, classes):
    assert taught(make(), classes).rates is None


def test_clips_of_each_class_are_counted(make):
    learner = taught(make(), 2)
    learner.teach(images(0, seed=1), "c0")
    assert learner._classifier.classes.clips == [2, 1]
    learner.move("c1", "c0")
    assert learner._classifier.classes.clips == [3, 0]
