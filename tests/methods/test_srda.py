"""Deep SRDA and LR-RGDA by hand, and where directions leave a rest."""

import math

import pytest
import torch
from closed_form_cases import D, images
from torch.distributions import MultivariateNormal

from crumb_avalanche.methods.lr_rgda import LowRankRda
from crumb_avalanche.methods.srda import StreamingRda

CLASSES = 4


def crossed():
    """Two classes of two images: class 0 at (1, 0) and (-1, 0), class 1 at (0, 3) and (0, 5).

    Their covariances are diag(1, 0) and diag(0, 1), the common one is diag(1/2, 1/2), and its mean variance 1/2.
    """
    return torch.tensor([[1.0, 0], [-1, 0], [0, 3], [0, 5]]), torch.tensor([0, 0, 1, 1])


def test_srda_by_hand():
    """Blended half and half: diag(3/4, 1/4); 0.8 of it and 0.2 of the unit matrix by 1/2: diag(0.7, 0.3)."""
    srda = StreamingRda(2, 2, directions=2, own=0.5, shrinkage=0.2)
    srda.update(*crossed())
    scores = srda.scores(torch.tensor([[0.0, 0], [1, 0]]))
    differences = [16 / 0.7 / 2, (1 / 0.3 + 16 / 0.7 - 1 / 0.7) / 2]
    assert (scores[:, 0] - scores[:, 1]).tolist() == pytest.approx(differences, rel=1e-3)
    srda.update(torch.tensor([[0.0, 3], [0, 5]]), torch.tensor([1, 1]))
    # Class 1 has two thirds of the images; the common covariance is diag(1/3, 2/3), its mean variance is 1/2 again.
    first, second = (0.8 * (1 / 2 + 1 / 6) + 0.1, 0.8 / 3 + 0.1), (0.8 / 6 + 0.1, 0.8 * (1 / 2 + 1 / 3) + 0.1)
    scores = srda.scores(torch.tensor([[0.0, 0]]))[0]
    determinants = math.log(first[0] * first[1]) - math.log(second[0] * second[1])
    expected = (16 / second[1] - determinants) / 2 + math.log(1 / 3) - math.log(2 / 3)
    assert float(scores[0] - scores[1]) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("whole", [False, True])
def test_lr_rgda_by_hand(whole):
    """1 diag(1, 0) + 2 diag(1/2, 1/2) + 0.4 times 1/2 of the unit matrix: diag(2.2, 1.2) and diag(1.2, 2.2)."""
    lr_rgda = LowRankRda(2, 2, directions=1, whole=whole, own=1.0, common=2.0, ridge=0.4)
    lr_rgda.update(*crossed())
    scores = lr_rgda.scores(torch.tensor([[0.0, 0], [1, 0]]))
    differences = [16 / 2.2 / 2, (1 / 1.2 + 16 / 2.2 - 1 / 2.2) / 2]
    assert (scores[:, 0] - scores[:, 1]).tolist() == pytest.approx(differences, rel=1e-3)


@pytest.mark.parametrize("directions", [1, 3, D])
def test_lr_rgda_is_the_gaussian_of_the_strongest_directions(directions):
    features, labels = images(200, CLASSES)
    ours = LowRankRda(CLASSES, D, directions, whole=True, own=0.6, common=0.5, ridge=0.02)
    ours.update(features, labels)
    groups = [features[labels == label].double() for label in range(CLASSES)]
    covariances = [torch.cov(group.T, correction=0) for group in groups]
    common = sum(len(group) * covariance for group, covariance in zip(groups, covariances)) / len(labels)
    fresh, expected = images(200, CLASSES, 1)[0], []
    for group, covariance in zip(groups, covariances):
        values, vectors = torch.linalg.eigh(covariance)
        own = (vectors[:, -directions:] * values[-directions:]) @ vectors[:, -directions:].T
        blended = 0.6 * own + 0.5 * common + 0.02 * common.diagonal().mean() * torch.eye(D)
        expected.append(MultivariateNormal(group.mean(0), blended).log_prob(fresh.double()))
    scores, expected = ours.scores(fresh), torch.stack(expected, 1)
    torch.testing.assert_close(scores - scores[:, :1], expected - expected[:, :1], rtol=1e-2, atol=2e-2)


def test_what_srdas_directions_leave_out_has_the_shape_of_the_common_covariance():
    features, labels = images(200, CLASSES)
    ours = StreamingRda(CLASSES, D, directions=2, own=0.5, shrinkage=1e-9)
    ours.update(features, labels)
    seen = torch.ones(CLASSES, dtype=torch.bool)
    common, rows, outside = ours.covariances(seen)
    fresh, expected = images(200, CLASSES, 1)[0], []
    for label, (its, rest) in enumerate(zip(rows, outside)):
        share = float(rest / (rest + its.square().sum()))
        assert 0.05 < share < 0.6
        mean = features[labels == label].double().mean(0)
        blended = 0.5 * (its.T @ its + share * common) + 0.5 * common
        log_share = (labels == label).double().mean().log()
        expected.append(MultivariateNormal(mean, blended).log_prob(fresh.double()) + log_share)
    scores, expected = ours.scores(fresh), torch.stack(expected, 1)
    torch.testing.assert_close(scores - scores[:, :1], expected - expected[:, :1], rtol=1e-4, atol=1e-4)
