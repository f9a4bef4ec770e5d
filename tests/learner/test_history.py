"""Any lesson that is kept can be taken back, or learned under another name: the rest is as if it had never been."""

import copy
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from small_lessons import SIZE, images, same

from crumb_avalanche.learner.classifier import CLOSED_FORMS
from crumb_avalanche.learner.learner import Learner

CLASSES = 4


@pytest.fixture(scope="module")
def make_any(weights_file):
    """A function that makes a learner of a method, looks and a budget."""

    def made(method="rda", looks=(1.0,), budget_bytes=4_000_000):
        return Learner(
            method, "small_cnn", weights_file, SIZE, budget_bytes, looks=looks
        )

    return made


def shown(seed, number, frames):
    """A lesson of a class, with the label that it is given."""
    return images(number, frames, seed=seed), f"c{number}"


def teach(learner, lessons):
    for source, label in lessons:
        learner.teach(source, label)
    return learner


def check_same_answers(one, other):
    """Answers, with confidence and what is unknown, of classes taught and others; and what is learned later."""
    assert [info.name for info in one.classes] == [info.name for info in other.classes]
    for number in range(CLASSES + 1) if one.classes else ():
        pair = [learner.predict(images(number, 2, seed=77)) for learner in (one, other)]
        assert [answer.label for answer in pair[0].frames] == [
            answer.label for answer in pair[1].frames
        ]
        assert pair[0].known == pair[1].known and pair[0].confidence == pytest.approx(
            pair[1].confidence, abs=1e-4
        )


LESSONS = st.lists(
    st.tuples(st.integers(0, CLASSES - 1), st.integers(1, 9)), min_size=2, max_size=6
)


@settings(max_examples=6, deadline=None)
@given(
    data=st.data(),
    method=st.sampled_from(CLOSED_FORMS),
    looks=st.sampled_from([(1.0,), (0.75, 0.5)]),
    lessons=LESSONS,
    saved=st.booleans(),
    moves=st.booleans(),
    budget=st.sampled_from([4_000_000, 15_000]),
)
def test_a_learner_is_as_one_that_never_had_the_lesson_or_had_it_with_another_name(
    make_any, tmp_path_factory, data, method, looks, lessons, saved, moves, budget
):
    lessons = [shown(seed, *one) for seed, one in enumerate(lessons)]
    budget = (
        budget if method in ("rda", "ncm") else 4_000_000
    )  # others need 66,052 bytes at least
    learner = teach(make_any(method, looks, budget), lessons)
    if saved:
        path = tmp_path_factory.mktemp("learner") / "a.safetensors"
        learner.save(path)
        learner = Learner.load(path)
    number = data.draw(st.sampled_from(learner.undoable))
    source, label = lessons[number - 1]
    if moves:
        learner.move(label, "right", lesson=number)
        others = [(source, "right")]
    else:
        assert learner.undo(number).images == {label: len(source)}
        others = []
        with pytest.raises(ValueError, match=f"there is no lesson {number}; "):
            learner.undo(number)
    other = teach(
        make_any(method, looks, budget),
        lessons[: number - 1] + others + lessons[number:],
    )
    assert same(learner, other)
    assert [one.images for one in learner.lessons] == [
        one.images for one in other.lessons
    ]
    more = shown(99, 1, 5)
    check_same_answers(teach(learner, [more]), teach(other, [more]))
    assert learner.lessons[-1].number == len(lessons) + (moves or number < len(lessons))


@pytest.mark.parametrize("method", CLOSED_FORMS)
def test_a_class_is_moved_to_another_one(make_any, method):
    lessons = [shown(seed, seed % 3, 6) for seed in range(6)]
    wrong = [
        (source, "tea" if seed == 4 else label)
        for seed, (source, label) in enumerate(lessons)
    ]
    learner, right = teach(make_any(method), wrong), teach(make_any(method), lessons)
    learner.move("tea", "c1")
    assert {info.name: info.images for info in learner.classes} == {
        info.name: info.images for info in right.classes
    }
    for number in range(3):
        answers = [one.predict(images(number, 1, seed=50)) for one in (learner, right)]
        assert answers[0].label == answers[1].label
        assert answers[0].confidence == pytest.approx(answers[1].confidence, abs=0.05)
    learner.undo(2)  # learned again from features, under the names that hold now
    right.undo(2)
    assert same(learner, right)
    learner.move("c1", "cup")  # a new name
    assert [lesson.images for lesson in learner.lessons][-2:] == [{"cup": 6}, {"c2": 6}]


def test_features_are_kept_as_long_as_the_budget_holds_them(make_any, tmp_path):
    learner = make_any(budget_bytes=15_000)
    learner.teach(*shown(0, 0, 6))
    each = learner._state.history.features[0].bytes
    fits = 60_000 // each
    for number in range(1, fits + 3):
        learner.teach(*shown(number, number % 3, 6))
    total = fits + 3
    assert learner.undoable == list(range(total - fits + 1, total + 1))
    with pytest.raises(
        ValueError,
        match=rf"lesson 1 cannot be taken back, only {total - fits + 1}, .*60,000 bytes",
    ):
        learner.undo(1)
    # A lesson of too many images needs no features while it is last.
    learner.teach(*shown(90, 1, 6 * (fits + 1)))
    learner.save(tmp_path / "a.safetensors")
    learner = Learner.load(tmp_path / "a.safetensors")
    assert learner.undoable == [total + 1]
    with pytest.raises(ValueError, match="no features are kept"):
        learner.move("c1", "c0", lesson=total + 1)
    assert learner.undo().number == total + 1 and not learner.undoable
    learner.save(tmp_path / "a.safetensors")
    learner = Learner.load(tmp_path / "a.safetensors")
    with pytest.raises(
        ValueError, match="there is no lesson to take back: the features"
    ):
        learner.undo()


def test_forgotten_classes_stay_forgotten(make_any):
    learner, other = (
        teach(make_any(), [shown(seed, seed % 3, 6) for seed in range(6)])
        for _ in range(2)
    )
    learner.forget("c1")
    assert learner.undo(1).images == {"c0": 6} and learner.lessons[0].images == {}
    assert [info.name for info in learner.classes] == ["c2", "c0"]
    recorded = learner._state.history.features
    assert not any(clip.label == "c1" for lesson in recorded for clip in lesson.clips)
    learner = teach(make_any(), [shown(9, 3, 6)])
    learner.merge(other)
    assert [lesson.number for lesson in learner.lessons] == list(
        range(1, 8)
    ) and learner.undoable == []


def test_what_cannot_be_taken_back_or_moved(make_any):
    learner = teach(make_any(), [shown(0, 0, 3), shown(1, 1, 3)])
    for call, words in (
        (lambda: make_any().undo(), "there is no lesson to take back$"),
        (lambda: learner.undo(7), "there is no lesson 7; only 1, 2 can be taken back"),
        (lambda: learner.move("c0", "c0"), "those of c0 already"),
        (lambda: learner.move("x", "c0"), "no class 'x'"),
        (lambda: learner.move("c0", "c1", lesson=2), "lesson 2 shows c1, not c0"),
        (lambda: learner.move("c0", "C1"), "nearly"),
        (lambda: learner.move("c0", "a/b"), "class name 'a/b'"),
    ):
        before = copy.deepcopy(learner)
        with pytest.raises(ValueError, match=words):
            call()
        assert same(learner, before)


def test_pictures_are_kept_and_saved_by_request_only(make_any, tmp_path):
    learner = make_any()
    learner.teach(*shown(0, 0, 3))
    learner.keep_pictures = True
    learner.teach(*shown(1, 1, 30))
    Image.fromarray(images(2, 1)[0]).save(tmp_path / "cup.png")
    learner.teach(tmp_path / "cup.png", "c2")
    for pictures, expected in ((False, [False] * 3), (True, [False, True, True])):
        learner.save(tmp_path / "a.safetensors", pictures=pictures)
        again = Learner.load(tmp_path / "a.safetensors")
        assert [bool(lesson.picture) for lesson in again.lessons] == expected
    assert [lesson.source for lesson in again.lessons] == ["", "", "cup.png"]
    picture = Image.open(io.BytesIO(again.lessons[1].picture))
    assert (
        picture.format == "JPEG"
        and picture.size == (4 * SIZE, 64)
        and len(again.lessons[1].picture) < 10_000
    )
    again.undo(2)
    assert [bool(lesson.picture) for lesson in again.lessons] == [False, True]
