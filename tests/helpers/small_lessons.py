"""Lessons of images of four coloured patches, a class by its colours, and whether two
learners are the same.
"""

import copy

import numpy as np
import torch

from crumb_avalanche.system.tensor_file import flatten

SIZE = 32
COLOURS = np.random.default_rng(7).integers(0, 256, (60, 4, 3))


def images(number, count=6, seed=0):
    """Noisy images of four patches whose colours are a class's own.

    ``(count, 32, 32, 3)`` uint8.
    """
    random = np.random.default_rng(1000 * seed + number)
    patches = np.kron(COLOURS[number].reshape(2, 2, 3), np.ones((16, 16, 1)))
    return np.clip(
        patches + random.normal(0, 25, (count, SIZE, SIZE, 3)), 0, 255
    ).astype(np.uint8)


def taught(learner, classes=4, count=6):
    for number in range(classes):
        learner.teach(images(number, count), f"c{number}")
    return learner


def copied(learner):
    """A copy of a learner, with the same network."""
    return copy.deepcopy(learner, {id(learner.network): learner.network})


def tensors(learner):
    """All tensors of a learner's state by name."""
    return flatten(
        {**learner.state_dict(), "history": None, "pictures": None, "lessons": None}
    )[1]


def same(one, other):
    one, other = tensors(one), tensors(other)
    return one.keys() == other.keys() and all(
        torch.equal(value.nan_to_num(7), other[name].nan_to_num(7))
        for name, value in one.items()
    )
