"""What a lesson says of its clips: recognised, taken for another class, or news."""

import itertools

import pytest
from PIL import Image
from small_lessons import images

from crumb_avalanche.learner.lesson import Guess, doubt_of
from crumb_avalanche.learner.lesson_record import Doubt

NEW = 8  # colours that no class has


@pytest.fixture
def learner(make):
    """A learner of four classes, that tells unknown images by its own records."""
    learner = make()
    for seed in range(4):
        for number in range(4):
            learner.teach(images(number, seed=seed), f"c{number}")
    return learner


def asked(lesson):
    """How many clips were asked, recognised and unknown before they were learned."""
    return lesson.answered, lesson.right, lesson.unknown


def test_a_clip_that_is_recognised(learner):
    clip = images(1, seed=9)
    answer = learner.predict(clip)
    assert (answer.label, answer.known) == ("c1", True)
    lesson = learner.teach(clip, "c1")
    assert (asked(lesson), lesson.doubts) == ((1, 1, 0), ())


def test_clips_of_class_folders_are_asked(make, tmp_path):
    # Given folders of four classes, with three clips each
    for number, seed in itertools.product(range(4), range(3)):
        clip_folder = tmp_path / f"c{number}" / f"clip{seed}"
        clip_folder.mkdir(parents=True)
        for frame, image in enumerate(images(number, 2, seed=seed)):
            Image.fromarray(image).save(clip_folder / f"{frame}.png")
    # When they are taught as one lesson
    lesson = make().teach(tmp_path)
    # Then clips of known classes are asked, but those of the only one
    assert lesson.clips == 12
    assert lesson.answered == 6


def test_an_unknown_clip_is_news(learner):
    """Also if its class is the nearest: the name came, but nobody would see it."""
    clip = images(NEW, seed=9)
    answer = learner.predict(clip)
    assert answer.unknown
    lesson = learner.teach(clip, answer.label)
    assert (asked(lesson), lesson.doubts) == ((1, 0, 1), ())


def test_an_unknown_clip_of_another_class(learner):
    """It looks like no class, so its label is in no doubt."""
    clip = images(NEW, seed=9)
    nearest = learner.predict(clip).label
    label = next(info.name for info in learner.classes if info.name != nearest)
    lesson = learner.teach(clip, label)
    assert (asked(lesson), lesson.doubts) == ((1, 0, 1), ())


def test_a_known_clip_of_another_class(learner):
    lesson = learner.teach(images(0, seed=0), "c1")
    assert asked(lesson) == (1, 0, 0)
    assert lesson.doubts == (Doubt("c1", 6, 0, "c0", 6),)


def test_counts_of_a_lesson_learned_again(learner):
    """What was unknown is recognised once an earlier lesson has another name."""
    clip = images(NEW, seed=9)
    wrong = learner.teach(clip, "c0")
    later = learner.teach(images(NEW, seed=10), "new")
    assert later.answered == 0
    learner.move("c0", "new", lesson=wrong.number)
    assert asked(learner.lessons[-1])[0] == 1


@pytest.mark.parametrize(
    ("as_label", "as_other", "unknown", "doubted"),
    [
        (0, 4, 0, True),
        (0, 4, 9, True),
        (3, 4, 0, True),
        (4, 4, 0, False),
        (5, 4, 9, False),
        (0, 0, 4, False),
    ],
)
def test_most_known_images_look_like_another(as_label, as_other, unknown, doubted):
    guesses = [Guess("cup", 0.01)] * as_label
    guesses += [Guess("mug", 0.01)] * as_other
    guesses += [Guess(None, 0.01)] * unknown
    assert (doubt_of("cup", guesses) is not None) == doubted


@pytest.mark.parametrize(
    ("unknown", "text"),
    [
        (0, "1 of 6 images looked like cup, 5 like mug: is the label right?"),
        (
            2,
            "1 of 6 images looked like cup, 5 like mug, 2 like nothing that was "
            "taught: is the label right?",
        ),
    ],
)
def test_the_text_of_a_doubt(unknown, text):
    assert Doubt("cup", 6, 1, "mug", 5, unknown).text == text
