"""Merging: two learners that were taught apart answer as one, and no image counts twice."""

import copy

import pytest
import torch
from patch_images import SIZE, images
from small_lessons import same, taught

from crumb_avalanche.learner import lesson
from crumb_avalanche.learner.classifier import CLOSED_FORMS
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.network import NetworkError


@pytest.mark.parametrize("method", CLOSED_FORMS)
def test_merge_answers_as_one_taught_with_both(make, method):
    one, two, both = make(method), make(method), make(method)
    for number in range(6):
        (one if number < 3 else two).teach(images(number), f"c{number}")
        both.teach(images(number), f"c{number}")
    two.teach(images(0, 6, seed=5), "c0")
    both.teach(images(0, 6, seed=5), "c0")
    one.merge(two)
    assert {info.name: info.images for info in one.classes} == {info.name: info.images for info in both.classes}
    for number in range(6):
        assert one.predict(images(number, 1, seed=1)).label == both.predict(images(number, 1, seed=1)).label


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
    with pytest.raises(ValueError, match=r"2 of the same lessons \(\S+Z?: cup; .*: c1\).*twice: teach a new learner"):
        one.merge(two)
    assert same(one, before) and one.lessons == before.lessons
    with pytest.raises(ValueError, match="hold 2 of the same lessons"):
        one.merge(copy.deepcopy(two))
    apart.merge(two)
    with pytest.raises(ValueError, match="hold 3 of the same lessons"):
        apart.merge(two)
    for name in ("c0", "c1"):
        two.forget(name)
    one.merge(two)  # nothing counts twice any more
    assert {info.name: info.images for info in one.classes} == {"cup": 6, "c1": 6, "c2": 6, "c3": 6}


def test_lessons_at_the_same_instant_are_not_the_same(make, monkeypatch):
    monkeypatch.setattr(lesson, "now", lambda: "2026-01-01T00:00:00+00:00")
    one, two = taught(make()), taught(make())
    assert one.lessons == two.lessons
    one.merge(two)
    assert [info.images for info in one.classes] == [12] * 4


def test_merge_refuses_another_method_or_network(make):
    with pytest.raises(ValueError, match="slda cannot be merged into one of rda"):
        make("rda").merge(make("slda"))
    torch.manual_seed(1)
    other = Learner("rda", "small_cnn", None, SIZE)
    with pytest.raises(NetworkError, match="different networks"):
        make("rda").merge(other)


def test_merge_refuses_itself_and_what_is_no_learner(make):
    learner = taught(make(), classes=2)
    with pytest.raises(ValueError, match="cannot be merged with itself"):
        learner.merge(learner)
    with pytest.raises(TypeError, match=r"other is str; give a Learner, such as Learner\.load\(path\)"):
        learner.merge("yours.safetensors")
    assert [info.images for info in learner.classes] == [6, 6]
