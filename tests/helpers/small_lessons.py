"""Lessons of small images, and whether two learners are the same."""

import torch
from patch_images import images

from crumb_avalanche.system.tensor_file import flatten


def taught(learner, classes=4, count=6):
    for number in range(classes):
        learner.teach(images(number, count), f"c{number}")
    return learner


def tensors(learner):
    """All tensors of a learner's state by name."""
    return flatten({**learner.state_dict(), "history": None, "pictures": None, "lessons": None})[1]


def same(one, other):
    one, other = tensors(one), tensors(other)
    return one.keys() == other.keys() and all(
        torch.equal(value.nan_to_num(7), other[name].nan_to_num(7)) for name, value in one.items()
    )
