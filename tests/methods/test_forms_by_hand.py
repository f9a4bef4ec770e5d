"""Closed forms by hand: LoRanPAC, PLDA, and ridge regression on random features."""

import pickle
from types import SimpleNamespace

import pytest
import torch
from closed_form_cases import D, feed, images

from crumb_avalanche.learner.evidence import evidence
from crumb_avalanche.learner.run_file import probabilities
from crumb_avalanche.methods.loranpac import LoRanPAC
from crumb_avalanche.methods.plda import PostDeploymentLDA
from crumb_avalanche.methods.ranpac import RandomProjection, chosen_ridge
from crumb_avalanche.methods.registry import STRATEGIES


def fed(truncated):
    """Two images (2, 0) of class 0 and one (0, 1) of class 1, and the answers to the two axes."""
    form = LoRanPAC(2, 2, projection=2, rank=1.0, truncated=truncated)
    form._weights = torch.eye(2, dtype=torch.float64)
    form.update(torch.tensor([[2.0, 0], [2, 0], [0, 1]]), torch.tensor([0, 0, 1]))
    return form, form.scores(torch.eye(2))


def test_what_is_small_is_dropped_for_good():
    """Squared singular values are 8 along the first axis and 1 along the second; class sums are (4, 0) and (0, 1).

    Least squares has the weights 4 / 8 and 1 / 1. With 60 % truncated, one direction of three images is kept, and
    class 1 has no weight. Two images (0, 2) of class 1 then make squared singular values of 8 and 8 instead of 9, two
    of five directions are kept, and the sum of class 1 is (0, 5).
    """
    _, answers = fed(truncated=0.25)
    torch.testing.assert_close(answers, torch.tensor([[0.5, 0], [0, 1]], dtype=torch.float64))
    form, answers = fed(truncated=0.6)
    torch.testing.assert_close(answers, torch.tensor([[0.5, 0], [0, 0]], dtype=torch.float64))
    form.update(torch.tensor([[0.0, 2], [0, 2]]), torch.tensor([1, 1]))
    torch.testing.assert_close(form.scores(torch.eye(2)), torch.tensor([[0.5, 0], [0, 5 / 8]], dtype=torch.float64))


def test_one_class_a_step_with_more_features_than_images_stays_accurate():
    """Equal features of hundreds of images leave all singular values but a few at the rounding of float32."""
    generator = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(8, 16, generator=generator)
    form = LoRanPAC(8, 16, projection=300, rank=0.5)
    for label, centre in enumerate(centres):
        rows = centre + 1e-3 * torch.randn(60, 16, generator=generator)
        for some in rows.split(7):
            form.update(some, torch.full((len(some),), label))
    scores = form.scores(centres)
    torch.testing.assert_close(scores, torch.eye(8, dtype=torch.float64), rtol=0, atol=0.02)


def test_later_classes_leave_the_covariance_and_images_are_rejected_by_relative_distance():
    """Classes 3 and 0 form the covariance, in the order of arrival: scatters 2 along y and 2 along x of 4 images.

    The covariance is I / 2, shrunk to 3 / 4 I by a shrinkage of 1 / 2. Class 1 has the mean (0, 3) and adds nothing.
    Squared distances of (0, 0), (4, 0) and (0, 3) to a point are those of the plane by 3 / 4. The Gaussian of all
    classes has the centre (4, 3) / 3 and the covariance 3 / 4 I + ((32, -12), (-12, 18)) / 9.
    """
    features = torch.tensor([[0.0, 1], [0, -1], [5, 0], [3, 0], [0, 1], [0, 5]])
    form = feed(PostDeploymentLDA(4, 2, shrinkage=0.5, base_classes=2), features, torch.tensor([3, 3, 0, 0, 1, 1]), 2)
    torch.testing.assert_close(form.covariance, torch.eye(2) / 2)
    assert form.shaping.tolist() == [2, 0, 0, 2] and form.image_counts.tolist() == [2, 2, 0, 2]
    points = torch.tensor([[4.0, 3], [-4, -3]], dtype=torch.float64)
    expected = torch.tensor([[8, 4.5, 0], [-24, -13.5, 0]], dtype=torch.float64) / 0.75
    torch.testing.assert_close(form.scores(points)[:, [0, 1, 3]], expected)
    total = 0.75 * torch.eye(2, dtype=torch.float64) + torch.tensor([[32, -12], [-12, 18]], dtype=torch.float64) / 9
    rest = points - torch.tensor([4 / 3, 1], dtype=torch.float64)
    background = (rest @ torch.linalg.inv(total) * rest).sum(1)
    nearest = torch.tensor([9, 25], dtype=torch.float64) / 0.75  # to (4, 0), and to (0, 0)
    torch.testing.assert_close(evidence(form, points).typicality[:, 0], background - nearest)


def test_merged_parts_with_the_same_base_classes_equal_one():
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.randn(60, 3, generator=generator), torch.arange(60) % 4
    whole, one, other = (PostDeploymentLDA(4, 3, base_classes=2) for _ in range(3))
    whole.update(features, labels)
    one.update(features[:23], labels[:23])
    other.update(features[24:], labels[24:])  # begins with classes 0 and 1, too
    other.update(features[23:24], labels[23:24])
    one.merge(other)
    assert one.shaping.tolist() == whole.shaping.tolist() == [15, 15, 0, 0]
    torch.testing.assert_close(one.covariance, whole.covariance, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(one.means, whole.means, rtol=1e-5, atol=1e-6)


def test_the_chosen_ridge_by_hand():
    """One random feature of 1 for each of two images, so that the Gram matrix is 2, and a ridge of 2 s.

    The weight of a class sum t is t / (2 + 2 s), the effective parameters are p = 1 / (1 + s). Two images of one class
    (t = 2) have the error 2 s^2 / (1 + s)^2 / (2 - p)^2 = 2 s^2 / (1 + 2 s)^2, which rises with s: a small ridge. Two
    images of two classes (t = 1 twice) look the same; the residuals rise from 1 to 2 with s, but the squared
    denominator rises from 1 to 4: the largest ridge.
    """
    one = torch.ones(1, dtype=torch.float64)
    assert chosen_ridge(one, 2.0 * one, images=2) == 1e-3  # residuals of smaller ones are below the rounding of sums
    assert chosen_ridge(one, one, images=2) == 100
    assert chosen_ridge(one, one, images=1) == 100, "as many parameters as images at small ridges"


def test_the_projection_comes_from_its_seed_alone():
    features, labels = images(200, 4)
    one, other, third = (feed(RandomProjection(4, D, projection=20, seed=seed), features, labels) for seed in (3, 3, 4))
    assert torch.equal(one.gram, other.gram) and not torch.equal(one.gram, third.gram)
    again = pickle.loads(pickle.dumps(one))
    assert again._weights is None and torch.equal(again.scores(features), one.scores(features))


@pytest.mark.parametrize("name", ["ranpac", "ranpac_gcv", "acil", "foal"])
def test_forms_of_one_base_have_its_temperature(name):
    strategy = SimpleNamespace(statistics=STRATEGIES[name].form(2, 3, projection=4))
    outputs = torch.tensor([[0.06, 0.0]])
    torch.testing.assert_close(probabilities(strategy, outputs), (outputs.double() / 0.06).softmax(1))
