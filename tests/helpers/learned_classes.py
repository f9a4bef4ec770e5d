"""The classes of a learner, and of its file."""

from crumb_avalanche.learner.learner import Learner


def counts(learner):
    """The number of images learned of each class, by name."""
    return {info.name: info.images for info in learner.classes}


def names_of(path):
    """The names of the classes of a learner's file."""
    return [info.name for info in Learner.load(path).classes]
