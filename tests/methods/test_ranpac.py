"""Ridge regression on random features by hand, and against the recursion of ACIL and F-OAL."""

import pickle
from types import SimpleNamespace

import pytest
import torch
from closed_form_cases import D, feed, images

from crumb_avalanche.learner.run_file import probabilities
from crumb_avalanche.methods.ranpac import FOAL, RandomProjection, chosen_ridge
from crumb_avalanche.methods.registry import STRATEGIES

CLASSES = 4


class Recursion:
    """Recursive least squares as ACIL and F-OAL have it: the inverse ``R`` and the weights after every batch."""

    def __init__(self, length, ridge):
        self.inverse = torch.eye(length, dtype=torch.float64) / ridge
        self.weights = torch.zeros(length, 0, dtype=torch.float64)

    def update(self, hidden, labels):
        more = int(labels.max()) + 1 - self.weights.shape[1]
        self.weights = torch.cat([self.weights, self.weights.new_zeros(len(self.weights), max(more, 0))], 1)
        targets = torch.eye(self.weights.shape[1], dtype=torch.float64)[labels]
        gain = torch.linalg.inv(torch.eye(len(hidden)) + hidden @ self.inverse @ hidden.T)
        self.inverse = self.inverse - self.inverse @ hidden.T @ gain @ hidden @ self.inverse
        self.weights = self.weights + self.inverse @ hidden.T @ (targets - hidden @ self.weights)


@pytest.mark.parametrize("form", [RandomProjection, FOAL])
def test_the_recursion_gives_the_answers_of_the_gram_matrix_after_every_batch(form):
    features, labels = images(200, CLASSES)
    order = labels.argsort(stable=True)  # classes one after the other
    features, labels, fresh = features[order], labels[order], images(200, CLASSES, 1)[0]
    ours = form(CLASSES, D, projection=30, seed=3)
    slow = Recursion(30, ridge=2.0)
    for some, its_labels in zip(features.split(7), labels.split(7)):
        ours.update(some, its_labels)
        slow.update(ours.project(some), its_labels)
        ours.ridge = 2.0 / float(ours.gram.diagonal().mean())  # the recursion's is a constant
        known = slow.weights.shape[1]
        torch.testing.assert_close(
            ours.scores(fresh)[:, :known], ours.project(fresh) @ slow.weights, rtol=1e-2, atol=1e-3
        )


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
