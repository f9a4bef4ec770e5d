"""Ridge regression on random features by hand, and against the recursion of ACIL and F-OAL."""

import pickle
from types import SimpleNamespace

import pytest
import torch
from closed_form_cases import D, feed, images

from crumb_avalanche.learner.run_file import probabilities
from crumb_avalanche.methods.ranpac import RandomProjection, chosen_ridge
from crumb_avalanche.methods.registry import STRATEGIES

CLASSES = 4


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
    features, labels = images(200, CLASSES)
    one, other, third = (
        feed(RandomProjection(CLASSES, D, projection=20, seed=seed), features, labels) for seed in (3, 3, 4)
    )
    assert torch.equal(one.gram, other.gram) and not torch.equal(one.gram, third.gram)
    again = pickle.loads(pickle.dumps(one))
    assert again._weights is None and torch.equal(again.scores(features), one.scores(features))


@pytest.mark.parametrize("name", ["ranpac", "ranpac_gcv", "acil", "foal"])
def test_forms_of_one_base_have_its_temperature(name):
    strategy = SimpleNamespace(statistics=STRATEGIES[name].form(2, 3, projection=4))
    outputs = torch.tensor([[0.06, 0.0]])
    torch.testing.assert_close(probabilities(strategy, outputs), (outputs.double() / 0.06).softmax(1))
