"""Names and counts of the classes of a learner."""

import copy

import pytest

from crumb_avalanche.learner.answer import ClassInfo
from crumb_avalanche.learner.taught_classes import TaughtClasses


def mug_and_pen():
    """Two classes: three images of a mug in one clip, five of a pen in two."""
    classes = TaughtClasses()
    classes.count(classes.add("mug"), n_images=3, n_clips=1)
    classes.count(classes.add("pen"), n_images=5, n_clips=2)
    return classes


def test_classes_are_numbered_as_they_come():
    classes = mug_and_pen()
    assert classes.numbers == [0, 1]
    assert classes.find("pen") == 1
    assert classes.infos == [ClassInfo("mug", 3), ClassInfo("pen", 5)]


def test_a_new_class_gets_the_number_of_one_that_was_forgotten():
    classes = mug_and_pen()
    classes.forget(0)
    assert classes.numbers == [1]
    assert classes.add("cup") == 0
    assert classes.images == [0, 5]


def test_a_class_that_moves_is_counted_as_the_other():
    classes = mug_and_pen()
    classes.move(source=0, target=1)
    assert classes.infos == [ClassInfo("pen", 8)]
    assert classes.clips == [0, 3]


def test_a_missing_class_is_named_with_those_taught():
    with pytest.raises(
        ValueError, match="there is no class 'cup'; taught are: mug, pen"
    ):
        mug_and_pen().find("cup")


def test_a_name_that_is_taken_is_refused():
    classes = mug_and_pen()
    with pytest.raises(ValueError, match="there is a class 'pen' already"):
        classes.rename("mug", "pen")
    assert classes.names == ["mug", "pen"]


def test_a_copy_is_counted_apart():
    classes = mug_and_pen()
    copied = copy.deepcopy(classes)
    copied.count(0, n_images=1, n_clips=1)
    copied.rename("pen", "pencil")
    assert classes.state_dict() == mug_and_pen().state_dict()


def test_a_state_is_loaded():
    classes = TaughtClasses()
    classes.load_state_dict(mug_and_pen().state_dict())
    assert classes.infos == mug_and_pen().infos
