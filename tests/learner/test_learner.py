"""What a person may rely on: lessons in any order, undo, forget, merge, and a file that is whole or refused."""

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
from PIL import Image
from small_lessons import SIZE, images, same, taught

from crumb_avalanche.learner import lesson
from crumb_avalanche.learner.classifier import CLOSED_FORMS, Classifier
from crumb_avalanche.learner.file import read_header
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.network import NetworkError
from crumb_avalanche.learner.predictor import NothingTaughtError
from crumb_avalanche.methods.closed_form import BudgetError
from crumb_avalanche.methods.features import FeatureMoments, feature_length
from crumb_avalanche.methods.run_file import LearnerError
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.tensor_file import tensor_bytes

closed_forms = pytest.mark.parametrize("method", CLOSED_FORMS)


def counts(learner):
    return {info.name: info.images for info in learner.classes}


@closed_forms
def test_it_grows_from_one_class_to_thirty(make, method):
    learner = make(method)
    for number in range(30):
        learner.teach(images(number, 4), f"c{number}")
        if number in (0, 1, 9, 29):
            answers = [
                learner.predict(images(n, 1, seed=1)).label for n in range(number + 1)
            ]
            right = np.mean([answer == f"c{n}" for n, answer in enumerate(answers)])
            assert right >= (0.8 if method != "ranpac" else 0.6), (number, right)
    assert counts(learner) == {f"c{number}": 4 for number in range(30)}


@closed_forms
def test_it_begins_with_nothing_and_a_class_may_come_back(make, method):
    learner = make(method)
    with pytest.raises(NothingTaughtError, match=r"nothing was taught.*teach"):
        learner.predict(images(0, 1))
    learner.teach(images(0, 1), "only")
    answer = learner.predict(images(1, 1))
    assert (
        answer.label == "only"
        and answer.confidence == pytest.approx(1)
        and not answer.runners_up
    )
    learner.teach(images(1, 1), "other")
    assert {learner.predict(images(n, 1)).label for n in (0, 1)} == {"only", "other"}
    learner.teach(images(0, 5, seed=2), "only")
    assert (
        counts(learner) == {"only": 6, "other": 1}
        and learner.predict(images(0, 1, seed=3)).label == "only"
    )


@closed_forms
def test_neither_order_nor_merging_changes_answers(make, method):
    one, reverse, first, second = (make(method) for _ in range(4))
    for number in range(5):
        one.teach(images(number), f"c{number}")
        reverse.teach(images(4 - number), f"c{4 - number}")
        (first if number < 2 else second).teach(images(number), f"c{number}")
    for learner in (one, reverse, second):
        learner.teach(images(0, 6, seed=5), "c0")
    first.merge(second)
    assert counts(one) == counts(reverse) == counts(first)
    for number in range(5):
        found = {
            learner.predict(images(number, 1, seed=1)).label
            for learner in (one, reverse, first)
        }
        assert found == {f"c{number}"}


@closed_forms
@pytest.mark.parametrize("weights", [True, False])
def test_a_file_and_undo_restore_every_bit(
    make, method, weights, weights_file, tmp_path, monkeypatch
):
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    learner = taught(make(method), 3)
    before = pickle.loads(pickle.dumps(learner))  # shares no memory
    learner.teach(images(7), "new")
    learner.save("~/a.safetensors", weights=weights)
    header = read_header(tmp_path / "a.safetensors")
    assert header["names"] == ["c0", "c1", "c2", "new"]
    assert header["network"]["included"] is weights
    if not weights:
        with pytest.raises(LearnerError, match=r"holds no weights.*SHA-256"):
            Learner.load("~/a.safetensors")
    again = Learner.load("~/a.safetensors", weights=None if weights else weights_file)
    assert same(learner, again) and again.lessons == learner.lessons
    assert learner.predict(images(1, 3, seed=1)) == again.predict(images(1, 3, seed=1))
    assert again.undo().images == {"new": 6}
    assert same(again, before) and again.lessons == before.lessons
    for one in (again, before):
        one.teach(images(8), "c0")
    assert same(again, before)


@closed_forms
def test_forget_leaves_nothing_of_the_class(make, method):
    learner, without = taught(make(method), 3), make(method)
    learner.teach(images(9), "last")
    remains = learner.forget("c1")
    assert list(counts(learner)) == ["c0", "c2", "last"]
    assert "c1" not in json.dumps(
        {**learner.state_dict(), "statistics": 0, "confidence": 0}, default=str
    )
    for number, name in ((0, "c0"), (2, "c2"), (9, "last")):
        without.teach(images(number), name)
    for number in (0, 1, 2, 9) if not remains else ():
        labels = {
            one.predict(images(number, 1, seed=1)).label for one in (learner, without)
        }
        assert len(labels) == 1 and "c1" not in labels
    learner.undo()  # the last lesson, without the class that was forgotten
    assert list(counts(learner)) == ["c0", "c2"]
    learner.teach(images(1), "c1")  # anew
    assert learner.predict(images(1, 1, seed=1)).label == "c1"


def test_rename(make):
    learner = taught(make(), 2)
    learner.rename("c0", "cup")
    assert learner.predict(images(0, 1)).label == "cup" and learner.lessons[
        0
    ].images == {"cup": 6}
    with pytest.raises(ValueError, match="a class 'c1' already"):
        learner.rename("cup", "c1")
    with pytest.raises(ValueError, match=r"no class 'x'.*cup, c1"):
        learner.rename("x", "y")
    learner.undo()
    assert list(counts(learner)) == ["cup"]


def test_a_bad_lesson_leaves_the_learner_as_it_was(make):
    learner = taught(make(), 2)
    before = pickle.loads(pickle.dumps(learner))  # shares no memory
    bad = images(3).astype(np.float32) / 255
    bad[4, 0, 0, 0] = np.nan
    for source, label, options, words in (
        ([*images(3), *bad], "bad", {}, "holds NaN"),
        (
            bad[4],
            "bad",
            {"on_bad": "skip"},
            "no image to learn, 1 file could not be read; source: holds NaN",
        ),
        ([], "nothing", {}, "holds no photo"),
        (images(3), "a/b", {}, "class name 'a/b'"),
    ):
        with pytest.raises(ValueError, match=words):
            learner.teach(source, label, **options)
    with pytest.raises(
        ValueError, match="image_size is 0, but must be a whole number of at least 1"
    ):
        Learner(weights=None, image_size=0)
    assert same(learner, before) and len(learner.lessons) == 2
    learner.undo()


@pytest.mark.parametrize("saved", [False, True])
def test_merge_refuses_copies_that_were_taught_further_apart(make, tmp_path, saved):
    """Whatever names their classes have now; also for a file that was merged from one of them."""
    one, apart = taught(make(), classes=2), make()
    if saved:
        one.save(tmp_path / "a.safetensors")
    two = Learner.load(tmp_path / "a.safetensors") if saved else copy.deepcopy(one)
    one.rename("c0", "cup")
    one.teach(images(2), "c2")
    two.teach(images(3), "c3")
    before = copy.deepcopy(one)
    with pytest.raises(
        ValueError,
        match=r"2 of the same lessons \(\S+Z?: cup; .*: c1\).*twice: teach a new learner",
    ):
        one.merge(two)
    assert same(one, before) and one.lessons == before.lessons
    apart.merge(two)
    with pytest.raises(ValueError, match="hold 3 of the same lessons"):
        apart.merge(two)
    for name in ("c0", "c1"):
        two.forget(name)
    one.merge(two)  # nothing counts twice any more
    assert counts(one) == {"cup": 6, "c1": 6, "c2": 6, "c3": 6}


def test_lessons_at_the_same_instant_are_not_the_same(make, monkeypatch):
    monkeypatch.setattr(lesson, "now", lambda: "2026-01-01T00:00:00+00:00")
    one, two = taught(make()), taught(make())
    assert one.lessons == two.lessons
    one.merge(two)
    assert list(counts(one).values()) == [12] * 4


def test_merge_refuses_what_does_not_fit(make):
    learner = taught(make(), classes=2)
    torch.manual_seed(1)
    for other, kind, words in (
        (make("slda"), ValueError, "slda cannot be merged into one of rda"),
        (Learner("rda", "small_cnn", None, SIZE), NetworkError, "different networks"),
        (learner, ValueError, "cannot be merged with itself"),
        (
            "yours.safetensors",
            TypeError,
            r"other is str; give a Learner, such as Learner\.load\(path\)",
        ),
    ):
        with pytest.raises(kind, match=words):
            learner.merge(other)
    assert list(counts(learner).values()) == [6, 6]


def test_a_small_budget_has_the_features_of_the_head_alone(make):
    usual = make("rda")
    model, length = usual.network.model, usual._classifier.length
    assert usual.features["cells"] == 2 and length == 4 * model.map_shape[
        0
    ] + feature_length(model)
    least = 20 * (
        4 * (length + 3) + 8 * (length + 2 * math.ceil(length / 32))
    )  # means and 8 directions of 20 classes
    assert make("rda", budget_bytes=least).features == usual.features
    small = make("rda", budget_bytes=least - 1)
    assert (small.features["maps"], small._classifier.length) == (
        False,
        feature_length(model),
    )
    with pytest.raises(ValueError, match="cannot be merged"):
        usual.merge(small)


def test_the_budget_is_kept_and_what_gives_way_is_told(make):
    length = make(
        "rda", budget_bytes=1
    )._classifier.length  # with the features of a small budget
    learner = make("rda", budget_bytes=30 * 2 * length)
    notes = []
    for number in range(8):
        notes += learner.teach(images(number, 10), f"c{number}").notes
        assert learner.bytes <= learner.budget_bytes
    assert any("directions" in note for note in notes)
    with pytest.raises(BudgetError, match=r"needed for .* classes.* budget .* forget"):
        taught(learner, 40)
    assert len(learner.classes) < 40 and learner.bytes <= learner.budget_bytes
    assert (
        Classifier("ranpac", FeatureMoments(), 20, 80_000).statistics.gram.nbytes
        == 40_000
    ), "half of the budget"


@closed_forms
def test_the_budget_is_kept_to_the_last_class(method):
    known, length = Classifier(method, FeatureMoments(), 20, budget_bytes := 6000), 20
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(BudgetError, match="budget"):
        for number in range(1000):
            known.learn(
                torch.randn(4, length, generator=generator),
                known.number_of(f"c{number}")[0],
            )
            assert tensor_bytes(known.statistics.tensors()) <= budget_bytes
    assert known.statistics.least_bytes(len(known.classes) + 1) > budget_bytes


def test_a_list_of_frames_is_one_clip_in_teaching_and_in_answers(make, tmp_path):
    """Near copies do not fill the records that say which images are unknown."""
    learner = taught(make(), 2)
    frames, paths = (
        images(0, 12, seed=2),
        [tmp_path / f"{number}.png" for number in range(12)],
    )
    for path, image in zip(paths, frames):
        Image.fromarray(image).save(path)
    missing = learner.clips_missing
    for source in (
        list(frames),
        [Image.fromarray(image) for image in frames],
        iter(frames),
        frames,
        paths,
    ):
        lesson = learner.teach(source, "c0")
        missing -= 1
        assert (lesson.clips, lesson.images, learner.clips_missing) == (
            1,
            {"c0": 12},
            missing,
        )
    assert learner.teach([paths[:6], paths[6:]], "c0").clips == 2
    for source in (paths, frames, list(frames)):
        answer = learner.predict(source)
        assert [frame.label for frame in answer.frames] == ["c0"] * 12
        shares = [answer.confidence, *(share for _, share in answer.runners_up)]
        assert sum(shares) == pytest.approx(1) and shares == sorted(
            shares, reverse=True
        )
    answers = list(learner.predict_all([paths[:5], paths[5:]]))
    assert [len(answer.frames) for answer in answers] == [5, 7]
    assert [answer.path for answer in learner.predict_all(tmp_path / "*.png")] == list(
        map(str, paths)
    )


@pytest.mark.filterwarnings(
    "error", "ignore::ResourceWarning"
)  # of files that garbage of other tests leaves open
def test_threads_may_ask_while_one_teaches_and_do_not_mix_their_images(make):
    learner, found = taught(make(), 6), []
    pictures = [images(number, 3 + number, seed=2) for number in range(6)]
    expected = [learner.predict(some) for some in pictures]

    def ask(*_):
        found.append([learner.predict(some) for some in pictures])

    def together(extra=lambda: None):
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        extra()
        for thread in threads:
            thread.join()

    together()
    assert found == [expected] * 3
    together(
        lambda: [learner.teach(images(number), f"c{number}") for number in range(6, 9)]
    )
    assert all(
        [one.label for one in answers] == [f"c{number}" for number in range(6)]
        for answers in found
    )
    assert len(found) == 6 and len(learner.classes) == 9


def test_the_readme_s_lines(weights_file, tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "README.md").read_text()
    snippet = re.search(
        r"```python\n(from crumb_avalanche import Learner.*?)```", text, re.DOTALL
    )[1]
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("mug", "shoe")):
        (tmp_path / "clips" / name).mkdir(parents=True)
        for place, pixels in enumerate(images(number)):
            Image.fromarray(pixels).save(tmp_path / "clips" / name / f"{place}.png")
    Image.fromarray(images(0, 1, seed=1)[0]).save(tmp_path / "photo.jpg")
    # The small network in the place of a download.
    small = (
        'Learner(backbone="small_cnn", weights="weights.safetensors", image_size=32)'
    )
    (tmp_path / "weights.safetensors").write_bytes(weights_file.read_bytes())
    names: dict = {}
    exec(compile(snippet.replace("Learner()", small), "README.md", "exec"), names)
    assert names["answer"].label == "mug"
    assert Learner.load("mine.safetensors").predict("photo.jpg") == names["answer"]
    (tmp_path / "source").mkdir()  # as images in memory are called
    assert names["learner"].predict(list(images(0))).label == "mug"


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_an_image_whose_features_cannot_be_used_is_refused_by_name_or_left_out(
    make, monkeypatch, value
):
    learner, plain, good, bad, extract = (
        make(),
        make(),
        images(3),
        images(3),
        SplitModel._extract,
    )
    bad[2] = 255

    def damaged(model, pixels):
        maps = extract(model, pixels).clone()
        maps[(pixels == 255).flatten(1).all(1), 0, 0, 0] = value
        return maps

    monkeypatch.setattr(SplitModel, "_extract", damaged)
    for one in (learner, plain):
        one.teach(images(1), "other")
    before = pickle.loads(pickle.dumps(learner))
    with pytest.raises(ValueError, match=r"^source\[2\]: .*must be finite"):
        learner.teach(bad, "some")
    assert same(learner, before) and len(learner.lessons) == 1
    lesson = learner.teach(bad, "some", on_bad="skip")
    assert [one.path for one in lesson.unread] == [
        "source[2]"
    ] and "finite" in lesson.unread[0].reason
    plain.teach(np.delete(good, 2, axis=0), "some")
    assert lesson.images == {"some": len(good) - 1} and same(learner, plain)
    left_out = []
    answers = list(learner.predict_all(bad, on_bad="skip", report=left_out.append))
    assert len(answers[0].frames) == len(good) - 1 and [
        one.path for one in left_out
    ] == ["source[2]"]
    with pytest.raises(ValueError, match=r"^source\[2\]: .*must be finite"):
        learner.predict(bad)
    with pytest.raises(
        ValueError,
        match=r"no image to learn, 1 file could not be read; source\[0\]: .*finite",
    ):
        learner.teach(bad[2:3], "some", on_bad="skip")
