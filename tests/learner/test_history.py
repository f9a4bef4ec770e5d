"""Any lesson that is kept can be taken back, or learned under another name.

The rest is as if it had never been.
"""

import copy
import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learned_classes import counts
from PIL import Image
from small_lessons import SIZE, images, same

from crumb_avalanche.learner import history
from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.header import CLOSED_FORMS
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.picture_strip import PictureStrip, cells_of
from crumb_avalanche.system.tensor_file import tensor_bytes

CLASSES = 4
BUDGET = 4_000_000
SMALL_BUDGET = 15_000  # bytes; features take four times as many


@pytest.fixture(scope="module")
def make_any(weights_file):
    """A function that makes a learner of a method, looks and a budget."""

    def make(method="rda", looks=(1.0,), budget_bytes=BUDGET):
        return Learner(
            method, "small_cnn", weights_file, SIZE, budget_bytes, looks=looks
        )

    return make


def lesson_of(seed, number, frames):
    """A lesson of a class: its images, and the label that it is given."""
    return images(number, frames, seed=seed), f"c{number}"


def lessons_of_three_classes(count, frames=6):
    """Lessons of three classes, one after the other."""
    return [lesson_of(seed, seed % 3, frames) for seed in range(count)]


def teach(learner, lessons):
    for source, label in lessons:
        learner.teach(source, label)
    return learner


def names(learner):
    return [info.name for info in learner.classes]


def check_same_answers(learner, other):
    """Answers, with confidence and what is unknown, of classes taught and others."""
    assert names(learner) == names(other)
    if not learner.classes:
        return
    for number in range(CLASSES + 1):
        clip = images(number, 2, seed=77)
        answer = learner.predict(clip)
        expected = other.predict(clip)
        labels = [frame.label for frame in answer.frames]
        assert labels == [frame.label for frame in expected.frames]
        assert answer.known == expected.known
        assert answer.confidence == pytest.approx(expected.confidence, abs=1e-4)


def check_same_learner(learner, other):
    """What was learned, the lessons, and what is learned later."""
    assert same(learner, other)
    assert [lesson.images for lesson in learner.lessons] == [
        lesson.images for lesson in other.lessons
    ]
    later = [lesson_of(99, 1, 5)]
    check_same_answers(teach(learner, later), teach(other, later))


LESSONS = st.lists(
    st.tuples(st.integers(0, CLASSES - 1), st.integers(1, 9)), min_size=2, max_size=6
)
CASES = settings(max_examples=3, deadline=None)


@st.composite
def learners(draw):
    """Arguments of a learner, its lessons, and whether it is saved and loaded."""
    method = draw(st.sampled_from(CLOSED_FORMS))
    budget = BUDGET
    if method in ("rda", "ncm"):  # others need 66,052 bytes at least
        budget = draw(st.sampled_from([BUDGET, SMALL_BUDGET]))
    looks = draw(st.sampled_from([(1.0,), (0.75, 0.5)]))
    lessons = draw(LESSONS)
    lessons = [lesson_of(seed, *lesson) for seed, lesson in enumerate(lessons)]
    return (method, looks, budget), lessons, draw(st.booleans())


def taught(make_any, tmp_path_factory, arguments, lessons, saved):
    learner = teach(make_any(*arguments), lessons)
    if not saved:
        return learner
    path = tmp_path_factory.mktemp("learner") / "a.safetensors"
    learner.save(path)
    return Learner.load(path)


@CASES
@given(data=st.data(), case=learners())
def test_undo_of_a_lesson(make_any, tmp_path_factory, data, case):
    """The learner is one that never had the lesson."""
    arguments, lessons, saved = case
    learner = taught(make_any, tmp_path_factory, arguments, lessons, saved)
    number = data.draw(st.sampled_from(learner.undoable))
    source, label = lessons[number - 1]
    assert learner.undo(number).images == {label: len(source)}
    with pytest.raises(ValueError, match=f"there is no lesson {number}; "):
        learner.undo(number)
    without = lessons[: number - 1] + lessons[number:]
    check_same_learner(learner, teach(make_any(*arguments), without))
    assert learner.lessons[-1].number == len(lessons) + (number < len(lessons))


@CASES
@given(data=st.data(), case=learners())
def test_move_of_a_lesson(make_any, tmp_path_factory, data, case):
    """The learner is one that had the lesson with another name."""
    arguments, lessons, saved = case
    learner = taught(make_any, tmp_path_factory, arguments, lessons, saved)
    number = data.draw(st.sampled_from(learner.undoable))
    source, label = lessons[number - 1]
    learner.move(label, "right", lesson=number)
    right = [*lessons[: number - 1], (source, "right"), *lessons[number:]]
    check_same_learner(learner, teach(make_any(*arguments), right))
    assert learner.lessons[-1].number == len(lessons) + 1


def wrong_and_right(make_any, method):
    """A learner whose lesson 5 has the name tea instead of c1, and one without."""
    lessons = lessons_of_three_classes(6)
    right = teach(make_any(method), lessons)
    lessons[4] = (lessons[4][0], "tea")
    return teach(make_any(method), lessons), right


@pytest.mark.parametrize("method", CLOSED_FORMS)
def test_move_of_a_class(make_any, method):
    learner, right = wrong_and_right(make_any, method)
    learner.move("tea", "c1")
    assert counts(learner) == counts(right)
    for number in range(3):
        image = images(number, 1, seed=50)
        answer = learner.predict(image)
        expected = right.predict(image)
        assert answer.label == expected.label
        assert answer.confidence == pytest.approx(expected.confidence, abs=0.05)


@pytest.mark.parametrize("method", CLOSED_FORMS)
def test_undo_after_a_move(make_any, method):
    """Later lessons are learned again under the names that hold now."""
    learner, right = wrong_and_right(make_any, method)
    learner.move("tea", "c1")
    learner.undo(2)
    right.undo(2)
    assert same(learner, right)


def test_move_to_a_new_name(make_any):
    learner = teach(make_any(), [lesson_of(seed, seed, 6) for seed in range(2)])
    learner.move("c1", "cup")
    assert [lesson.images for lesson in learner.lessons] == [{"c0": 6}, {"cup": 6}]


@pytest.fixture
def full(make_any):
    """A learner that keeps features of its last lessons, but not of all; their number.

    The features of a lesson of six images are equally large.
    """
    learner = make_any(budget_bytes=SMALL_BUDGET)
    learner.teach(*lesson_of(0, 0, 6))
    fits = 4 * SMALL_BUDGET // learner._state.history.features[0].bytes
    lessons = [lesson_of(seed, seed % 3, 6) for seed in range(1, fits + 3)]
    return teach(learner, lessons), fits


def saved_and_loaded(learner, path):
    learner.save(path)
    return Learner.load(path)


def test_as_many_lessons_as_fit(full):
    learner, fits = full
    total = len(learner.lessons)
    first = total - fits + 1
    assert learner.undoable == list(range(first, total + 1))
    line = rf"lesson 1 cannot be taken back, only {first}, .*60,000 bytes"
    with pytest.raises(ValueError, match=line):
        learner.undo(1)
    line = rf"lesson 1 can no longer be changed, only those of {first}, .*60,000 bytes"
    with pytest.raises(ValueError, match=line):
        learner.move("c0", "c1", lesson=1)


def test_a_lesson_of_too_many_images(full, tmp_path):
    """It needs no features while it is the last one."""
    learner, fits = full
    learner.teach(*lesson_of(90, 1, 6 * (fits + 1)))
    learner = saved_and_loaded(learner, tmp_path / "a.safetensors")
    number = len(learner.lessons)
    assert learner.undoable == [number]
    with pytest.raises(ValueError, match="no features are kept"):
        learner.move("c1", "c0", lesson=number)
    assert learner.undo().number == number
    learner = saved_and_loaded(learner, tmp_path / "b.safetensors")
    assert learner.undoable == []
    line = "there is no lesson to take back: the features"
    with pytest.raises(ValueError, match=line):
        learner.undo()


def test_undo_of_the_last_predicts_nothing(make_any, monkeypatch):
    """Lessons before it are repeated with what was observed of them."""
    learner = teach(make_any(), lessons_of_three_classes(9, frames=2))

    def predict(*_):
        pytest.fail("a clip is predicted anew")

    monkeypatch.setattr(Classifier, "predict_before_learning", predict)
    assert learner.undo().number == 9


def test_a_clip_is_recorded_as_it_is_answered(make_any):
    """Its label changes the weights of the looks only for answers that come after."""
    learner = teach(make_any(looks=(1.0, 0.5)), lessons_of_three_classes(6))
    classifier = copy.deepcopy(learner._classifier)
    learner.teach(*lesson_of(6, 0, frames=4))
    (clip,) = learner._state.history.features[-1].clips
    answered = classifier.evidence(torch.cat(clip.pieces))
    recorded = clip.observation.records.typicality.double()
    assert torch.allclose(recorded, answered.typicality.double(), atol=1e-6)


def test_most_lessons_that_are_kept(make_any, monkeypatch):
    monkeypatch.setattr(history, "MOST_LESSONS", 3)
    lessons = lessons_of_three_classes(6, frames=2)
    learner = teach(make_any(), lessons)
    assert learner.undoable == [4, 5, 6]
    learner.undo(5)
    without = lessons[:4] + lessons[5:]
    monkeypatch.setattr(history, "MOST_LESSONS", 9)
    assert same(learner, teach(make_any(), without))


@pytest.mark.parametrize(
    ("lessons", "room", "excess"),
    [
        (16, 16, 0),
        (17, 16, 3),  # an eighth of 16 besides the one too many
        (20, 16, 6),
        (16, 15, 1),
        (17, 10, 7),  # 14 are left of 17, of which 10 fit
    ],
)
def test_an_eighth_of_too_many_lessons_goes_at_once(monkeypatch, lessons, room, excess):
    monkeypatch.setattr(history, "MOST_LESSONS", 16)
    features = [SimpleNamespace(bytes=1)] * lessons
    assert history._count_dropped(features, room) == excess


def test_bytes_for_undo(make_any):
    learner = make_any(budget_bytes=SMALL_BUDGET)
    assert learner.undo_bytes == 0
    teach(learner, [lesson_of(0, 0, 2)])
    features = learner._state.history.features[0]
    before = learner._state.history.classifier_before
    assert learner.undo_bytes == features.bytes + tensor_bytes(before.tensors())
    teach(learner, lessons_of_three_classes(20))
    assert learner.undo_bytes <= (4 + 1) * SMALL_BUDGET


def test_undo_after_forget(make_any):
    lessons = lessons_of_three_classes(6)
    learner = teach(make_any(), lessons)
    learner.forget("c1")
    assert learner.undo(1).images == {"c0": 6}
    assert learner.lessons[0].images == {}
    assert names(learner) == ["c2", "c0"]
    for lesson in learner._state.history.features:
        assert "c1" not in [clip.label for clip in lesson.clips]


@pytest.mark.parametrize("most_lessons", [200, 6])
@pytest.mark.parametrize("undone", [1, 2])
@pytest.mark.parametrize(
    "change",
    [
        lambda it: it.forget("c0"),
        lambda it: it.forget("c2"),
        lambda it: it.move("c0", "c1"),
    ],
    ids=["forget the first", "forget another", "move"],
)
def test_undo_after_classes_changed(
    make_any, tmp_path, monkeypatch, change, undone, most_lessons
):
    """Learned again, classes have other numbers; what is observed has these, too."""
    monkeypatch.setattr(history, "MOST_LESSONS", most_lessons)
    learner = teach(make_any(), [lesson_of(seed, seed % 4, 6) for seed in range(5)])
    change(learner)
    teach(learner, [lesson_of(seed, seed % 2 + 1, 6) for seed in range(5, 8)])
    path = tmp_path / "mine.safetensors"
    for _ in range(undone):
        learner.undo()
    learner.save(path)
    check_same_learner(Learner.load(path), learner)


def test_a_class_of_an_older_learner_keeps_its_name(make_any, tmp_path):
    # Given a class that no lesson which can be taken back has taught
    learner = teach(make_any(), [lesson_of(0, 0, 6)])
    learner.merge(teach(make_any(), [lesson_of(1, 1, 6)]))
    teach(learner, [lesson_of(2, 2, 6)])
    # When it gets the name that it has
    learner.rename("c0", "c0")
    # Then the learner can be saved, and taking back a lesson leaves the class
    learner.save(tmp_path / "mine.safetensors")
    learner.undo()
    assert sorted(names(learner)) == ["c0", "c1"]


def test_a_lesson_without_an_image_has_fewer_clips(make_any):
    learner = teach(make_any(), [lesson_of(0, 0, 6)])
    learner.teach([[image] for image in images(1, 3)], "c1")
    learner.remove_image(2, 0)
    assert learner.lessons[1].clips == 2


def test_remove_image_after_forget(make_any, tmp_path):
    learner = teach(make_any(), [lesson_of(seed, seed % 4, 6) for seed in range(5)])
    learner.forget("c1")
    learner.remove_image(5, 0)
    path = tmp_path / "mine.safetensors"
    learner.save(path)
    check_same_learner(Learner.load(path), learner)


def test_history_of_merged_learners(make_any):
    learner = teach(make_any(), [lesson_of(9, 3, 6)])
    second = teach(make_any(), lessons_of_three_classes(6))
    learner.merge(second)
    assert [lesson.number for lesson in learner.lessons] == list(range(1, 8))
    assert learner.undoable == []


def test_undo_without_lessons(make_any):
    with pytest.raises(ValueError, match=r"there is no lesson to take back$"):
        make_any().undo()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda it: it.undo(7), "there is no lesson 7; only 1, 2 can be taken back"),
        (
            lambda it: it.move("c0", "c1", lesson=7),
            "no lesson 7 whose images could be changed; only those of 1, 2 can be",
        ),
        (lambda it: it.remove_image(7, 0), "no lesson 7 whose images"),
        (lambda it: it.move("c0", "c0"), "those of c0 already"),
        (lambda it: it.move("x", "c0"), "no class 'x'"),
        (lambda it: it.move("c0", "c1", lesson=2), "lesson 2 shows c1, not c0"),
        (lambda it: it.move("c0", "C1"), "nearly"),
        (lambda it: it.move("c0", "a/b"), "class name 'a/b'"),
    ],
)
def test_changes_that_are_refused(make_any, change, line):
    learner = teach(make_any(), [lesson_of(0, 0, 3), lesson_of(1, 1, 3)])
    before = copy.deepcopy(learner)
    with pytest.raises(ValueError, match=line):
        change(learner)
    assert same(learner, before)


@pytest.mark.parametrize("number", [True, 1.0, "1"])
@pytest.mark.parametrize(
    "change",
    [
        lambda it, number: it.undo(number),
        lambda it, number: it.remove_image(number, 0),
        lambda it, number: it.move("c0", "c1", lesson=number),
    ],
    ids=["undo", "remove", "move"],
)
def test_a_number_that_is_none(make_any, change, number):
    learner = teach(make_any(), [lesson_of(0, 0, 3)])
    with pytest.raises(TypeError, match=rf"lesson is {number!r} \(.*; give the number"):
        change(learner, number)
    assert len(learner.lessons) == 1


@pytest.fixture
def pictured(make_any, tmp_path):
    """A learner of three lessons, of which the last two have pictures."""
    learner = make_any()
    learner.teach(*lesson_of(0, 0, 3))
    learner.keep_pictures = True
    learner.teach(*lesson_of(1, 1, 30))
    Image.fromarray(images(2, 1)[0]).save(tmp_path / "cup.png")
    learner.teach(tmp_path / "cup.png", "c2")
    return learner


@pytest.mark.parametrize(
    ("pictures", "expected"),
    [(False, [False, False, False]), (True, [False, True, True])],
)
def test_saved_pictures(pictured, tmp_path, pictures, expected):
    pictured.save(tmp_path / "a.safetensors", pictures=pictures)
    loaded = Learner.load(tmp_path / "a.safetensors")
    assert [bool(lesson.picture) for lesson in loaded.lessons] == expected
    assert [lesson.source for lesson in loaded.lessons] == ["", "", "cup.png"]


def test_size_of_a_picture(pictured):
    data = pictured.lessons[1].picture
    picture = Image.open(io.BytesIO(data))
    assert picture.format == "JPEG"
    assert picture.size == (4 * SIZE, 64)
    assert len(data) < 10_000


@pytest.mark.parametrize("count", [1, 4, 7, 8, 9, 20, 33])
def test_a_strip_shows_the_images_that_it_names(count):
    strip = PictureStrip()
    greys = [Image.new("RGB", (64, 64), (7 * n,) * 3) for n in range(count)]
    for _ in strip.noting(iter([("", grey) for grey in greys])):
        pass
    picture = strip.picture()
    numbers = [np.asarray(cell).mean() / 7 for cell in cells_of(picture)]
    assert numbers == pytest.approx(picture.shows, abs=0.3)
    assert len(set(picture.shows)) == min(count, 4)
    assert picture.shows[0] == 0
    assert max(picture.shows) >= (count - 1) / 2


def test_pictures_after_undo(pictured, tmp_path):
    pictured.save(tmp_path / "a.safetensors", pictures=True)
    loaded = Learner.load(tmp_path / "a.safetensors")
    loaded.undo(2)
    assert [bool(lesson.picture) for lesson in loaded.lessons] == [False, True]


# Single images


@pytest.mark.parametrize("saved", [False, True])
def test_remove_an_image(make_any, tmp_path, saved):
    """The learner answers as one that never had it."""
    lessons = lessons_of_three_classes(6)
    learner = teach(make_any(), lessons)
    if saved:
        learner = saved_and_loaded(learner, tmp_path / "a.safetensors")
    learner.remove_image(3, 2)
    source, label = lessons[2]
    lessons[2] = (np.delete(source, 2, axis=0), label)
    expected = teach(make_any(), lessons)
    assert counts(learner) == counts(expected)
    check_same_answers(learner, expected)
    assert learner.lessons[2].images == {"c2": 5}
    assert len(learner.lessons) == 6


@pytest.mark.parametrize(
    ("lesson", "image", "line"),
    [
        (1, 3, "lesson 1 has 3 images of classes, and no image 3"),
        (1, -1, "no image -1"),
        (2, 0, "image 0 is the only one of lesson 2"),
        (7, 0, "there is no lesson 7"),
    ],
)
def test_an_image_that_cannot_be_removed(make_any, lesson, image, line):
    learner = teach(make_any(), [lesson_of(0, 0, 3), lesson_of(1, 1, 1)])
    before = copy.deepcopy(learner)
    with pytest.raises(ValueError, match=line):
        learner.remove_image(lesson, image)
    assert same(learner, before)


def test_a_picture_without_a_removed_image(pictured, tmp_path):
    lesson = pictured.lessons[1]
    assert len(lesson.pictured) == 4
    pictured.remove_image(lesson.number, lesson.pictured[1])
    shows = pictured.lessons[1].pictured
    first, _, third, fourth = lesson.pictured
    assert shows == (first, third - 1, fourth - 1)
    width = Image.open(io.BytesIO(pictured.lessons[1].picture)).width
    assert width == 3 * SIZE
    pictured.save(tmp_path / "a.safetensors", pictures=True)
    assert Learner.load(tmp_path / "a.safetensors").lessons[1].pictured == shows
