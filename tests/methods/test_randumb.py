"""RanDumb and SimpleCIL: values by hand, scikit-learn's shrinkage, and ``ncm``."""

import math

import pytest
import torch
from closed_form_cases import D, images

from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.randumb import RanDumb, oracle_shrinkage
from crumb_avalanche.methods.simple_cil import SimpleCIL


def test_oracle_shrinkage_by_hand():
    # a = (4 + 0 + 0 + 1) / 4 = 1.25, v = 1.5: (1.25 + 2.25) / (20 (1.25 - 1.125)) = 1.4
    assert oracle_shrinkage(torch.diag(torch.tensor([2.0, 1.0])), 19) == 1
    # the same with 100 images: 3.5 / (101 * 0.125)
    share = oracle_shrinkage(torch.diag(torch.tensor([2.0, 1.0])), 100)
    assert share == pytest.approx(3.5 / 12.625)


@pytest.mark.parametrize("covariance", [torch.zeros(3, 3), torch.eye(3)])
def test_oracle_shrinkage_of_equal_variances(covariance):
    assert oracle_shrinkage(covariance, 50) == 1


@pytest.mark.parametrize("count", [8, 40, 400])
def test_oracle_shrinkage_is_that_of_scikit_learn(count):
    covariance = pytest.importorskip("sklearn.covariance")
    samples, _ = images(count, 3)
    expected = covariance.OAS().fit(samples.double().numpy())
    empirical = covariance.empirical_covariance(samples.double().numpy())
    share = oracle_shrinkage(torch.from_numpy(empirical), count)
    assert share == pytest.approx(expected.shrinkage_, rel=1e-9)


def test_randumb_of_two_images_by_hand():
    """One image of each class: no covariance, so the unit matrix stands for it."""
    randumb = RanDumb(2, 1, projection=1, seed=0)
    randumb.update(torch.tensor([[1.0], [-2.0]]), torch.tensor([0, 1]))
    drawn = randumb._fourier_features()
    weight, phase = float(drawn.weights), float(drawn.phases)
    means = [math.sqrt(2) * math.cos(weight * value + phase) for value in (1.0, -2.0)]
    embedded = math.sqrt(2) * math.cos(weight * 0.5 + phase)
    expected = [embedded * mean - mean**2 / 2 for mean in means]
    scores = randumb.scores(torch.tensor([[0.5]]))
    assert scores[0].tolist() == pytest.approx(expected, rel=1e-6)


def test_randumb_is_nearest_in_mahalanobis_distance():
    features, labels = images(90, 3)
    randumb = RanDumb(3, D, projection=12)
    randumb.update(features, labels)
    embedded = randumb.transformed(features)
    rows = torch.cat([embedded[labels == c] - randumb.means[c] for c in range(3)])
    covariance = rows.mT @ rows / len(rows)
    share = oracle_shrinkage(covariance, len(rows))
    shrunk = (1 - share) * covariance
    shrunk += share * covariance.diagonal().mean() * torch.eye(12)
    differences = embedded[:, None] - randumb.means.double()
    inverse = torch.linalg.inv(shrunk)
    distances = torch.einsum("ncd,de,nce->nc", differences, inverse, differences)
    nearest = distances.argmin(1)
    assert torch.equal(randumb.scores(features).argmax(1), nearest)


def test_simplecil_by_hand():
    simple = SimpleCIL(2, 2)
    features = torch.tensor([[3.0, 0.0], [1.0, 0.0], [0.0, 5.0]])
    simple.update(features, torch.tensor([0, 0, 1]))
    scores = simple.scores(torch.tensor([[4.0, 3.0]]))
    assert scores[0].tolist() == pytest.approx([0.8, 0.6])


def test_simplecil_is_ncm():
    features, labels = images(60, 4)
    simple, means = SimpleCIL(4, D), ClassMeans(4, D)
    for form in (simple, means):
        form.update(features, labels)
    assert torch.equal(simple.scores(features), means.scores(features))
