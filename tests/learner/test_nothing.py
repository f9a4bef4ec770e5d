"""Images of nothing: those that are drawn, and a lesson that shows the empty scene."""

import numpy as np
import pytest
import torch
from patch_images import images
from small_lessons import same, taught

from crumb_avalanche.learner.calibration import Confidence
from crumb_avalanche.learner.evidence import evidence
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.nothing import DRAWN, LEAST_APART, MOST_SHOWN, USUAL_COSINE, drawn_images, usual_cosine
from crumb_avalanche.methods.slda import StreamingLDA


def test_drawn_images_are_always_the_same_and_different_from_each_other():
    drawn = drawn_images(40)
    assert drawn.shape == (DRAWN, 3, 40, 40) and drawn.dtype == torch.uint8
    assert torch.equal(drawn, drawn_images(40))
    assert len({image.numpy().tobytes() for image in drawn}) == DRAWN
    assert (drawn.float().std((1, 2, 3)) > 10).all()


def test_other_backbones_take_the_mean_of_the_usual_thresholds():
    assert usual_cosine("efficientnet_lite0") == USUAL_COSINE["efficientnet_lite0"]
    assert usual_cosine("timm:other") == pytest.approx(np.mean(list(USUAL_COSINE.values())))


def test_a_scene_that_was_shown_is_apart_from_what_was_shown_in_it():
    draws = torch.Generator().manual_seed(0)
    place, *objects = 4 * torch.randn(4, 400, generator=draws)
    statistics = StreamingLDA(3, 400, shrinkage=0.05)

    def seen(thing, count=20):
        return place + thing + torch.randn(count, 400, generator=draws)

    for label, thing in enumerate(objects):
        statistics.update(seen(thing), torch.full((20,), label))
    drawn = torch.randn(DRAWN, 400, generator=draws)
    nothing = torch.cat([drawn, seen(0, 6)])
    scene, known = (evidence(statistics, some, nothing) for some in (seen(0), seen(objects[1])))
    assert scene.typicality[:, 2].mean() > 0.3 > LEAST_APART > scene.apart.mean()
    assert known.apart.min() > 0.3
    unknown = Confidence().known(scene._replace(apart=torch.full((20,), LEAST_APART - 0.01)))
    assert not unknown.any() and Confidence().known(known).all()


@pytest.mark.parametrize("method", ["rda", "slda"])
def test_a_lesson_of_nothing_is_kept_and_taken_back_and_has_no_name(make, method, tmp_path):
    learner = taught(make(method), 3)
    before = learner.predict(images(1, 4, seed=3))
    lesson = learner.teach_nothing(images(20, 4))
    assert (lesson.images, lesson.nothing, lesson.clips, lesson.answered) == ({}, 4, 1, 0)
    assert learner.nothing == 4 and [info.name for info in learner.classes] == ["c0", "c1", "c2"]
    answer = learner.predict(images(1, 4, seed=3))
    assert (answer.label, answer.confidence) == (before.label, before.confidence)
    learner.save(tmp_path / "a.safetensors")
    again = Learner.load(tmp_path / "a.safetensors")
    assert same(again, learner) and again.lessons == learner.lessons and again.nothing == 4
    assert again.predict(images(1, 4, seed=3)) == answer
    assert again.undo().nothing == 4 and again.nothing == 0
    assert again.predict(images(1, 4, seed=3)) == before


def test_merging_keeps_what_was_shown_as_nothing(make):
    one, other = taught(make("rda"), 2), make("rda")
    other.teach_nothing(images(20, 5))  # it may come first
    other.teach(images(5), "c5")
    one.merge(other)
    assert one.nothing == 5 and len(one._classifier.nothing) == DRAWN + 5
    with pytest.raises(ValueError, match="of the same lessons"):
        one.merge(other)


def test_the_latest_images_of_nothing_are_kept(make):
    learner = taught(make("rda"), 1)
    for number in range(MOST_SHOWN // 8 + 2):
        learner.teach_nothing(images(number, 20))
    assert len(learner._classifier.nothing) == DRAWN + MOST_SHOWN
    assert learner.nothing == 20 * (MOST_SHOWN // 8 + 2)


def test_other_methods_refuse_and_stay_as_they_are(make):
    learner = taught(make("ncm"), 2)
    with pytest.raises(ValueError, match="rda and slda can"):
        learner.teach_nothing(images(1))
    assert learner.nothing == 0 and len(learner.lessons) == 2
