"""The same photos taught again are learned, but say nothing of how well it answers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from small_lessons import images, same

from crumb_avalanche.learner import history
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.shards import LessonSource, ShardedLesson
from crumb_avalanche.learner.taught_images import ROUNDING, TaughtImages


@pytest.fixture
def learner(make):
    """A learner of three classes with two clips each, and its own records."""
    learner = make()
    for seed in range(2):
        for number in range(3):
            learner.teach(images(number, 3, seed=seed), f"c{number}")
    return learner


def asked(lesson):
    """How many clips were taught before, and how many asked and recognised."""
    return lesson.repeated, lesson.answered, lesson.right


def evidence_of(learner):
    """What the confidence of an answer is computed from."""
    records = learner._classifier.confidence.state_dict()
    return {
        "records": len(records["labels"]),
        "clips": list(learner._classifier.classes.clips),
        "rates": learner.rates,
    }


# What is evidence


def test_the_same_clip_again_is_no_evidence(learner):
    # Given a learner with rates of its own
    before = evidence_of(learner)
    photo = images(1, 3, seed=1)[0]
    # When one of its photos is taught again and again
    lessons = [learner.teach(photo, "c1") for _ in range(5)]
    # Then it is learned
    assert learner.classes[1].images == 11
    # And not counted
    assert [asked(lesson) for lesson in lessons] == 5 * [(1, 0, 0)]
    notes = {lesson.repeated_note for lesson in lessons}
    assert notes == {"1 clip taught before: not counted as asked"}
    assert evidence_of(learner) == before


def test_a_clip_with_a_new_image_is_evidence(learner):
    # Given a learner, and a clip with one image that it has not seen
    clip = [*images(1, 3, seed=1), *images(1, 1, seed=9)]
    # When it is taught
    lesson = learner.teach(clip, "c1")
    # Then it was asked
    assert lesson.repeated == 0
    assert lesson.answered == 1


def test_a_clip_of_another_class_is_evidence(learner):
    """Its label may be wrong, which is asked about."""
    # Given a learner
    # When a clip is taught again under another name
    lesson = learner.teach(images(1, 3, seed=1), "c2")
    # Then it was asked, and its label is in doubt
    assert asked(lesson) == (0, 1, 0)
    assert [doubt.other for doubt in lesson.doubts] == ["c1"]


def test_a_clip_twice_in_one_lesson(make):
    # Given a learner of two classes
    learner = make()
    for number in range(2):
        learner.teach(images(number, 3), f"c{number}")
    # When a lesson shows the same new clip twice
    clip = list(images(1, 3, seed=5))
    lesson = learner.teach([clip, clip], "c1")
    # Then it counts once
    assert lesson.clips == 2
    assert lesson.repeated == 1
    assert lesson.answered == 1


def test_images_in_another_order_and_batch(learner, tmp_path):
    # Given photos that were taught together
    paths = []
    for number, pixels in enumerate(images(1, 11, seed=6)):
        path = tmp_path / f"{number}.png"
        Image.fromarray(pixels).save(path)
        paths.append(path)
    learner.teach(tmp_path, "c1")
    # When two are taught again, the later one first
    lesson = learner.teach([paths[10], paths[3]], "c1")
    # Then they are the same, although they passed the network in another batch
    assert asked(lesson) == (1, 0, 0)


def test_what_was_forgotten_is_new(learner):
    # Given a learner that forgot a class
    learner.forget("c1")
    # When it is taught anew
    lesson = learner.teach(images(1, 3, seed=1), "c1")
    # Then nothing of it was taught before
    assert lesson.repeated == 0


def test_an_empty_scene_is_not_asked(make):
    # Given a learner that was shown an empty scene
    learner = make()
    for number in range(2):
        learner.teach(images(number, 3), f"c{number}")
    learner.teach_nothing(images(9, 3))
    # When it is shown again
    lesson = learner.teach_nothing(images(9, 3))
    # Then it is learned, and does not count as taught before
    assert lesson.nothing == 3
    assert lesson.repeated == 0


# Images by their features


@pytest.mark.parametrize(("factor", "is_same"), [(0.5, True), (2, False)])
def test_images_are_the_same_up_to_rounding(factor, is_same):
    # Given an image of two views
    features = torch.randn(1, 20, generator=torch.Generator().manual_seed(1))
    taught = TaughtImages(n_views=2)
    taught.add("cup", features)
    # When one of its views differs a little
    other = features.clone()
    other[0, 0] += factor * ROUNDING * features[0, :10].norm()
    # Then it is the same up to rounding, and for its class alone
    assert taught.among("cup", other).tolist() == [is_same]
    assert taught.among("mug", other).tolist() == [False]


@pytest.fixture
def both_views():
    """The features of an image, ``(1, 20)``: of two views, 10 each."""
    return torch.randn(1, 20, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def first_view(both_views):
    """Taught images with that image, whose second view was not computed."""
    taught = TaughtImages(n_views=2)
    taught.add("cup", torch.cat([both_views[:, :10], torch.zeros(1, 10)], 1))
    return taught


def test_views_that_both_images_have_are_compared(first_view, both_views):
    assert first_view.among("cup", both_views).tolist() == [True]


def test_images_without_a_view_in_common_differ(first_view, both_views):
    second_view = both_views.clone()
    second_view[:, :10] = 0
    assert first_view.among("cup", second_view).tolist() == [False]


# Changes

PICTURES = st.tuples(st.integers(0, 2), st.integers(0, 1))  # few, so that they repeat
CLIPS = st.lists(PICTURES, min_size=1, max_size=2)
LESSONS = st.lists(
    st.tuples(st.lists(CLIPS, min_size=1, max_size=2), st.integers(0, 2)),
    min_size=3,
    max_size=6,
)


def lesson_of(clips, number):
    """The source of a lesson and its label."""
    source = []
    for clip in clips:
        source.append([images(number, 1, seed)[0] for number, seed in clip])
    return source, f"c{number}"


def taught(make, lessons):
    learner = make()
    for source, label in lessons:
        learner.teach(source, label)
    return learner


def counts(learner):
    """What is counted in each lesson."""
    return [(lesson.images, *asked(lesson)) for lesson in learner.lessons]


@settings(max_examples=8)
@given(data=st.data(), drawn=LESSONS, is_saved=st.booleans())
def test_undo_and_move_with_repeated_clips(
    make, tmp_path_factory, data, drawn, is_saved
):
    # Given lessons of few pictures, some of which come again
    lessons = [lesson_of(*lesson) for lesson in drawn]
    learner = taught(make, lessons)
    if is_saved:
        path = tmp_path_factory.mktemp("learner") / "a.safetensors"
        learner.save(path)
        learner = Learner.load(path)
    # When a lesson is taken back, or was of another class
    number = data.draw(st.integers(1, len(lessons)))
    source, label = lessons[number - 1]
    if data.draw(st.booleans()):
        learner.undo(number)
        lessons[number - 1 : number] = []
    else:
        learner.move(label, "right", lesson=number)
        lessons[number - 1] = (source, "right")
    # Then the learner is the one that was taught the changed lessons
    expected = taught(make, lessons)
    assert counts(learner) == counts(expected)
    assert same(learner, expected)


def test_the_first_of_two_is_taken_back(learner):
    # Given a clip that was taught twice
    first = learner.teach(images(1, 3, seed=7), "c1")
    learner.teach(images(1, 3, seed=7), "c1")
    assert learner.lessons[-1].repeated == 1
    # When the first lesson is taken back
    learner.undo(first.number)
    # Then the second one is evidence
    assert learner.lessons[-1].repeated == 0
    assert learner.lessons[-1].answered == 1


def test_the_image_that_was_new_is_removed(learner):
    # Given a clip with one image that was new
    learner.teach([*images(1, 3, seed=1), *images(1, 1, seed=9)], "c1")
    assert learner.lessons[-1].repeated == 0
    # When that image is removed
    learner.remove_image(learner.lessons[-1].number, 3)
    # Then the clip is one that was taught before
    assert asked(learner.lessons[-1]) == (1, 0, 0)


def test_a_lesson_without_history_was_taught_all_the_same(make, monkeypatch):
    # Given a clip that was taught twice, of which the history has the second lesson
    monkeypatch.setattr(history, "MOST_LESSONS", 3)
    learner = make()
    lessons = [(0, 1), (1, 1), (1, 2), (0, 1), (1, 3)]  # class and seed
    for number, seed in lessons:
        learner.teach(images(number, 3, seed=seed), f"c{number}")
    assert learner.undoable == [3, 4, 5]
    # When a lesson before it is taken back
    learner.undo(3)
    # Then it is still one that was taught before
    assert [lesson.repeated for lesson in learner.lessons] == [0, 0, 1, 0]


def test_repeated_clips_in_shards(make, clips, tmp_path):
    # Given two equal learners of an object of two classes
    one_pass = make()
    shards = make()
    for learner in (one_pass, shards):
        for name in ("apple", "cup"):
            learner.teach(clips / name / "object0", name)
    # When a folder with two of their clips is taught in one pass and in shards
    expected = one_pass.teach(clips / "cup", "cup")
    source = LessonSource.of(clips / "cup", "cup")
    plan = ShardedLesson.plan(shards, source, 3, tmp_path)
    for shard in plan.shards:
        shard.folder.mkdir()
        shard.compute()
    lesson = plan.teach(shards)
    # Then both learn the same
    assert asked(lesson) == asked(expected)
    assert lesson.repeated == 2
    assert same(shards, one_pass)
