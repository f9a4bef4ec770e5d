"""What a person may rely on: lessons in any order, undo, forget, and a file that is whole or refused."""

import json
import math
import pickle
import re
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from patch_images import images
from PIL import Image
from small_lessons import METHODS, same, taught

from benchmarks_toybox_ilab.tables.frame import BadFrameError
from benchmarks_toybox_ilab.tables.image import read_image
from crumb_avalanche.learner.classifier import CLOSED_FORMS, Classifier
from crumb_avalanche.learner.file import read_header
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.predictor import NothingTaughtError
from crumb_avalanche.learner.replay import REPLAY
from crumb_avalanche.learner.run_file import LearnerError
from crumb_avalanche.methods.features import FeatureMoments, feature_length
from crumb_avalanche.methods.form_budget import BudgetError
from crumb_avalanche.system.tensor_bytes import tensor_bytes


@pytest.mark.parametrize("method", [*CLOSED_FORMS, *(pytest.param(name, marks=pytest.mark.slow) for name in REPLAY)])
def test_it_grows_from_one_class_to_fifty(make, method):
    learner = make(method)
    for number in range(50):
        learner.teach(images(number, 4), f"c{number}")
        if number in (0, 1, 9, 49):
            answers = [learner.predict(images(n, 1, seed=1)).label for n in range(number + 1)]
            right = np.mean([answer == f"c{n}" for n, answer in enumerate(answers)])
            assert right >= (0.8 if method != "ranpac" else 0.6), (number, right)
    assert [info.images for info in learner.classes] == [4] * 50


@pytest.mark.parametrize("size", [0, -1, 2.5])
def test_an_image_size_that_is_none_is_refused(size):
    with pytest.raises(ValueError, match=f"image_size is {size}, but must be a whole number of at least 1"):
        Learner(weights=None, image_size=size)


@pytest.mark.parametrize("method", CLOSED_FORMS)
def test_the_order_of_lessons_does_not_matter(make, method):
    one, other = make(method), make(method)
    for number in range(5):
        one.teach(images(number), f"c{number}")
        other.teach(images(4 - number), f"c{4 - number}")
    for number in range(5):
        a, b = (learner.predict(images(number, 1, seed=1)) for learner in (one, other))
        assert a.label == b.label == f"c{number}"


@pytest.mark.parametrize("method", METHODS)
def test_a_class_may_come_back(make, method):
    learner = taught(make(method), 3)
    learner.teach(images(0, 5, seed=2), "c0")
    assert [(info.name, info.images) for info in learner.classes] == [("c0", 11), ("c1", 6), ("c2", 6)]
    assert learner.predict(images(0, 1, seed=3)).label == "c0"


@pytest.mark.parametrize("method", METHODS)
def test_nothing_one_class_and_one_image(make, method):
    learner = make(method)
    with pytest.raises(NothingTaughtError, match=r"nothing was taught.*teach"):
        learner.predict(images(0, 1))
    learner.teach(images(0, 1), "only")
    answer = learner.predict(images(1, 1))
    assert answer.label == "only" and answer.confidence == pytest.approx(1) and not answer.runners_up
    learner.teach(images(1, 1), "other")
    assert {learner.predict(images(n, 1)).label for n in (0, 1)} == {"only", "other"}


@pytest.mark.parametrize("method", METHODS)
def test_undo_restores_every_bit(make, method, tmp_path):
    learner = taught(make(method), 3)
    before = pickle.loads(pickle.dumps(learner))  # shares no memory
    learner.teach(images(7), "new")
    learner.save(tmp_path / "a.safetensors")
    learner = Learner.load(tmp_path / "a.safetensors")  # a file can be undone, too
    assert learner.undo().images == {"new": 6}
    assert same(learner, before) and learner.lessons == before.lessons
    learner.teach(images(8), "c0")
    learner.undo()
    assert same(learner, before)
    with pytest.raises(ValueError, match="no lesson to take back"):
        learner.undo()


@pytest.mark.parametrize("method", METHODS)
def test_forget_leaves_nothing_of_the_class(make, method):
    learner, without = taught(make(method), 3), make(method)
    learner.teach(images(9), "last")
    remains = learner.forget("c1")
    assert [info.name for info in learner.classes] == ["c0", "c2", "last"]
    assert "c1" not in json.dumps({**learner.state_dict(), "statistics": 0, "confidence": 0}, default=str)
    for number in (0, 2):
        without.teach(images(number), f"c{number}")
    without.teach(images(9), "last")
    if not remains:
        for number in (0, 1, 2, 9):
            a, b = (one.predict(images(number, 1, seed=1)) for one in (learner, without))
            assert a.label == b.label != "c1"
    learner.undo()  # the last lesson, without the class that was forgotten
    assert [info.name for info in learner.classes] == ["c0", "c2"]
    learner.teach(images(1), "c1")  # anew
    assert learner.predict(images(1, 1, seed=1)).label == "c1"


def test_a_small_budget_has_the_features_of_the_head_alone(make):
    usual = make("rda")
    model, length = usual.network.model, usual._classifier.length
    assert usual.features["cells"] == 2 and length == 4 * model.map_shape[0] + feature_length(model)
    least = 20 * (4 * (length + 3) + 8 * (length + 2 * math.ceil(length / 32)))  # means and 8 directions of 20 classes
    assert make("rda", budget_bytes=least).features == usual.features
    small = make("rda", budget_bytes=least - 1)
    assert (small.features["maps"], small._classifier.length) == (False, feature_length(model))
    with pytest.raises(ValueError, match="cannot be merged"):
        usual.merge(small)


def test_a_file_in_the_home_folder(make, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    learner = taught(make(), classes=2)
    learner.save("~/mine.safetensors")
    assert (tmp_path / "home" / "mine.safetensors").is_file() and not (tmp_path / "~").exists()
    assert same(Learner.load("~/mine.safetensors"), learner)


def test_rename(make):
    learner = taught(make(), 2)
    learner.rename("c0", "cup")
    assert learner.predict(images(0, 1)).label == "cup" and learner.lessons[0].images == {"cup": 6}
    with pytest.raises(ValueError, match="a class 'c1' already"):
        learner.rename("cup", "c1")
    with pytest.raises(ValueError, match=r"no class 'x'.*cup, c1"):
        learner.rename("x", "y")
    learner.undo()
    assert [info.name for info in learner.classes] == ["cup"]


@pytest.mark.parametrize("name", ["", "a/b", "two\nlines", "x" * 300])
def test_names_that_are_not_allowed(make, name):
    learner = make()
    with pytest.raises(ValueError, match="name"):
        learner.teach(images(0), name)
    assert not learner.classes and not learner.lessons


def test_a_bad_lesson_leaves_the_learner_as_it_was(make):
    learner = taught(make(), 2)
    before = pickle.loads(pickle.dumps(learner))  # shares no memory
    bad = images(3).astype(np.float32) / 255
    bad[4, 0, 0, 0] = np.nan
    with pytest.raises(ValueError, match=r"NaN|finite|nan"):
        learner.teach([*images(3), *bad], "bad")
    with pytest.raises(ValueError, match=r"no image to learn, 1 file could not be read; source: holds NaN"):
        learner.teach(bad[4], "bad", on_bad="skip")
    with pytest.raises(ValueError):
        learner.teach([], "nothing")
    assert same(learner, before) and len(learner.lessons) == 2
    learner.undo()


def test_the_budget_is_kept_and_what_gives_way_is_told(make):
    length = make("rda", budget_bytes=1)._classifier.length  # with the features of a small budget
    learner = make("rda", budget_bytes=30 * 2 * length)
    notes = []
    for number in range(8):
        notes += learner.teach(images(number, 10), f"c{number}").notes
        assert learner.bytes <= learner.budget_bytes
    assert any("directions" in note for note in notes)
    with pytest.raises(BudgetError, match=r"needed for .* classes.* budget .* forget"):
        taught(learner, 40)
    assert len(learner.classes) < 40 and learner.bytes <= learner.budget_bytes


@pytest.mark.parametrize("method", CLOSED_FORMS)
def test_the_budget_is_kept_to_the_last_class(method):
    known, length = Classifier(method, FeatureMoments(), 20, budget_bytes := 6000), 20
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(BudgetError, match="budget"):
        for number in range(1000):
            known.learn(torch.randn(4, length, generator=generator), known.number_of(f"c{number}")[0])
            assert tensor_bytes(known.statistics.tensors()) <= budget_bytes
    another = known.statistics.class_bytes(0)
    assert tensor_bytes(known.statistics.tensors()) + another > budget_bytes


@pytest.mark.parametrize("method", CLOSED_FORMS)
@pytest.mark.parametrize("weights", [True, False])
def test_a_file_answers_the_same(make, method, weights, weights_file, tmp_path):
    learner = taught(make(method), 4)
    learner.save(tmp_path / "mine.safetensors", weights=weights)
    header = read_header(tmp_path / "mine.safetensors")
    assert header["classes"] == [{"name": f"c{number}", "images": 6} for number in range(4)]
    assert header["network"]["included"] is weights
    if not weights:
        with pytest.raises(LearnerError, match=r"holds no weights.*SHA-256"):
            Learner.load(tmp_path / "mine.safetensors")
    again = Learner.load(tmp_path / "mine.safetensors", weights=None if weights else weights_file)
    assert same(learner, again) and again.lessons == learner.lessons
    for number in range(4):
        assert learner.predict(images(number, 3, seed=1)) == again.predict(images(number, 3, seed=1))
    again.teach(images(5), "more")
    learner.teach(images(5), "more")
    assert same(learner, again)


def test_a_clip_has_an_answer_and_one_for_each_frame(make):
    learner = taught(make(), 3)
    answer = learner.predict(images(1, 5, seed=1))
    assert answer.label == "c1" and len(answer.frames) == 5
    assert {frame.label for frame in answer.frames} == {"c1"}
    shares = [answer.confidence, *(share for _, share in answer.runners_up)]
    assert sum(shares) == pytest.approx(1) and shares == sorted(shares, reverse=True)


def test_images_are_decoded_one_at_a_time_and_computed_in_small_batches(make, tmp_path, monkeypatch):
    """What a lesson and an answer hold does not depend on the number of images."""
    learner, decoded, computed, taken = make(), [], [], []
    for number in range(150):
        Image.fromarray(images(0, 1, seed=number)[0]).save(tmp_path / f"{number}.png")

    def watched_read(*arguments, **keywords):
        image = read_image(*arguments, **keywords)
        decoded.append(weakref.ref(image))
        assert sum(reference() is not None for reference in decoded) == 1
        return image

    def watched_features(model, pixels, of=learner._classifier.compute):
        computed.append(len(pixels))
        return of(model, pixels)

    def watched_learn(features, number, of=learner._classifier.learn):
        taken.append(len(features))
        of(features, number)

    monkeypatch.setattr("crumb_avalanche.learner.sources.read_image", watched_read)
    monkeypatch.setattr(learner._classifier, "compute", watched_features)
    monkeypatch.setattr(learner._classifier, "learn", watched_learn)
    learner.teach(tmp_path, "red")
    assert len(decoded) == sum(computed) == sum(taken) == 150 and max(computed) == 8 and max(taken) == 64
    assert len([*learner.predict_all(tmp_path)]) == 150 and max(computed) == 8


def test_threads_may_ask_while_one_teaches(make):
    learner, wrong = taught(make(), 2), []

    def ask():
        for _ in range(20):
            wrong.extend(n for n in (0, 1) if learner.predict(images(n, 1, seed=1)).label != f"c{n}")

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(2, 8):
        learner.teach(images(number), f"c{number}")
    for thread in threads:
        thread.join()
    assert not wrong and len(learner.classes) == 8


@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")  # of files that garbage of other tests leaves open
def test_threads_do_not_mix_their_images(make):
    learner, found = taught(make(), 6), []
    pictures = [images(number, 3 + number, seed=2) for number in range(6)]
    expected = [learner.predict(some) for some in pictures]

    def ask():
        found.append([learner.predict(some) for some in pictures])

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 3


def test_a_finished_run_can_be_asked_and_taught(crumb, tiny, tmp_path, clips):
    code, _, err = crumb(*tiny, "--output", tmp_path / "run", "--strategy", "rda", "--budget-images", 8)
    assert code == 0, err
    learner = Learner.load(tmp_path / "run")
    photos = sorted((clips / "cup").rglob("*.png"))
    assert learner.predict(photos[0]).label in {info.name for info in learner.classes}
    learner.teach(images(0), "new")
    learner.save(tmp_path / "mine.safetensors")
    assert {info.name for info in Learner.load(tmp_path / "mine.safetensors").classes} > {"new", "cup"}
    code, _, err = crumb(*tiny, "--output", tmp_path / "other", "--strategy", "finetune")
    learner = Learner.load(tmp_path / "other")
    assert learner.predict(photos[0]).known is None
    with pytest.raises(LearnerError, match=r"learned by finetune; only rda, slda"):
        learner.teach(images(0), "new")


def test_the_readme_s_lines(weights_file, tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "README.md").read_text()
    snippet = re.search(r"```python\n(from crumb_avalanche import Learner.*?)```", text, re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("mug", "shoe")):
        (tmp_path / "clips" / name).mkdir(parents=True)
        for place, pixels in enumerate(images(number)):
            Image.fromarray(pixels).save(tmp_path / "clips" / name / f"{place}.png")
    Image.fromarray(images(0, 1, seed=1)[0]).save(tmp_path / "photo.jpg")
    # The small network in the place of a download.
    small = 'backbone="small_cnn", weights="weights.safetensors", image_size=32)'
    (tmp_path / "weights.safetensors").write_bytes(weights_file.read_bytes())
    names: dict = {}
    exec(compile(snippet.replace('backbone="squeezenet1_0")', small), "README.md", "exec"), names)
    assert names["answer"].label == "mug"
    assert Learner.load("mine.safetensors").predict("photo.jpg") == names["answer"]


def test_a_list_of_frames_is_one_clip_in_teaching_and_in_answers(make, tmp_path):
    """Near copies do not fill the records that say which images are unknown."""
    learner = taught(make(), 2)
    paths = []
    for number, image in enumerate(images(0, 12, seed=2)):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
        paths.append(tmp_path / f"{number}.png")
    missing = learner.clips_missing
    for source in (
        list(images(0, 12, seed=2)),
        [Image.fromarray(image) for image in images(0, 12, seed=2)],
        (image for image in images(0, 12, seed=2)),
        images(0, 12, seed=2),
        paths,
    ):
        lesson = learner.teach(source, "c0")
        assert (lesson.clips, lesson.images) == (1, {"c0": 12})
        missing -= 1
        assert learner.clips_missing == missing
    assert learner.teach([paths[:6], paths[6:]], "c0").clips == 2
    for source in (paths, images(0, 12, seed=2), list(images(0, 12, seed=2))):
        assert len(learner.predict(source).frames) == 12
    answers = list(learner.predict_all([paths[:5], paths[5:]]))
    assert [len(answer.frames) for answer in answers] == [5, 7]
    assert [answer.path for answer in learner.predict_all(tmp_path / "*.png")] == list(map(str, paths))


def test_the_photos_of_a_folder_are_answered_as_they_are_read(make, tmp_path):
    learner = taught(make(), 2)
    for number in range(20):
        Image.fromarray(images(number % 2, 1)[0]).save(tmp_path / f"{number}.png")
    (tmp_path / "20.png").write_bytes(b"no image")
    answers = learner.predict_all(tmp_path)
    assert [next(answers).label for _ in range(16)] == ["c0", "c1"] * 8
    with pytest.raises(BadFrameError, match=r"20\.png"):
        list(answers)
