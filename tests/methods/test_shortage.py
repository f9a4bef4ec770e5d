"""How far classes are from having images enough."""

import pytest
import torch

from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.methods.shortage import shortage


@pytest.mark.parametrize(
    "images, lacking",
    [
        ([4], 0.0),
        ([4, 100], 0.0),
        ([3], 1.0),
        ([1, 1, 1], 1.0),
        # They lack none, one, none and one.
        ([4, 3, 9, 3], 0.5),
        # More than four images of a class do not make up for another one.
        ([100, 1], 1.0),
    ],
)
def test_shortage(images, lacking):
    assert shortage(images) == lacking


def variances_added(counts, diagonal):
    """What shrinking adds to a diagonal, with so many images of each class."""
    statistics = RegularizedDiscriminant(len(counts), len(diagonal), directions=2)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    statistics.update(torch.rand(len(labels), len(diagonal)), labels)
    diagonal = torch.tensor(diagonal, dtype=torch.float64)
    return statistics._variances_added(diagonal, images=len(diagonal)).tolist()


def test_features_keep_their_own_variances_with_images_enough():
    assert variances_added([4, 4], [1.0, 3.0]) == [1.0, 3.0]


def test_features_have_the_mean_variance_with_few_images():
    assert variances_added([1, 2], [1.0, 3.0]) == [2.0, 2.0]


def test_features_are_between_with_a_few_images_less():
    assert variances_added([4, 3], [1.0, 3.0]) == [1.5, 2.5]
