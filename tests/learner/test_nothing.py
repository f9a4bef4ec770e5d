"""Images of nothing: those that are drawn, and a lesson that shows the empty scene."""

import numpy as np
import pytest
import torch
from patch_images import images
from small_lessons import same, taught

from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.nothing import DRAWN, MOST_SHOWN, USUAL_COSINE, drawn_images, usual_cosine


def test_drawn_images_are_always_the_same_and_different_from_each_other():
    drawn = drawn_images(40)
    assert drawn.shape == (DRAWN, 3, 40, 40) and drawn.dtype == torch.uint8
    assert torch.equal(drawn, drawn_images(40))
    assert len({image.numpy().tobytes() for image in drawn}) == DRAWN
    assert (drawn.float().std((1, 2, 3)) > 10).all()


def test_other_backbones_take_the_mean_of_the_usual_thresholds():
    assert usual_cosine("efficientnet_lite0") == USUAL_COSINE["efficientnet_lite0"]
    assert usual_cosine("timm:other") == pytest.approx(np.mean(list(USUAL_COSINE.values())))


@pytest.fixture(params=["rda", "slda"])
def learner(make, request):
    return taught(make(request.param), 3)


def test_what_was_shown_as_nothing_is_unknown_and_never_an_answer(learner, tmp_path):
    """An empty scene that looks just as a class does."""
    before, scene = learner.predict(images(1, 4, seed=3)), images(1, 4, seed=8)
    lesson = learner.teach_nothing(scene)
    assert (lesson.images, lesson.nothing, lesson.clips, lesson.answered) == ({}, 4, 1, 0)
    assert learner.nothing == 4 and len(learner.classes) == 3
    answer = learner.predict(images(1, 4, seed=9))
    assert answer.known is False and (answer.label, answer.confidence) == (before.label, before.confidence)
    learner.save(tmp_path / "a.safetensors")
    again = Learner.load(tmp_path / "a.safetensors")
    assert same(again, learner) and again.lessons == learner.lessons and again.nothing == 4
    assert again.predict(images(1, 4, seed=9)) == answer
    assert again.undo().nothing == 4 and again.nothing == 0
    assert again.predict(images(1, 4, seed=3)) == before


def test_merging_keeps_what_was_shown_as_nothing(make):
    one, other = taught(make("rda"), 2), make("rda")
    other.teach(images(5), "c5")
    other.teach_nothing(images(1, 4))
    one.merge(other)
    assert one.nothing == 4 and one.predict(images(1, 3, seed=2)).known is False
    with pytest.raises(ValueError, match="the same lesson"):
        one.merge(other)


def test_a_lesson_of_nothing_may_come_first(make):
    learner = make("rda")
    learner.teach_nothing(images(1, 4))
    learner.teach(images(1), "c1")
    assert learner.predict(images(1, 2, seed=5)).known is False


def test_the_latest_images_of_nothing_are_kept(learner):
    for number in range(MOST_SHOWN // 8 + 2):
        learner.teach_nothing(images(number, 20))
    assert len(learner._classifier.nothing) == DRAWN + MOST_SHOWN
    assert learner.nothing == 20 * (MOST_SHOWN // 8 + 2)


@pytest.mark.parametrize("method", ["ncm", "er"])
def test_other_methods_refuse_and_stay_as_they_are(make, method):
    learner = taught(make(method), 2)
    with pytest.raises(ValueError, match="rda and slda can"):
        learner.teach_nothing(images(1))
    assert learner.nothing == 0 and len(learner.lessons) == 2
