"""FeCAM by hand, against Avalanche's, and where directions leave a rest."""

import pytest
import torch
from avalanche.models.fecam import FeCAMClassifier, compute_covariance, compute_means
from closed_form_cases import feed

from crumb_avalanche.methods.fecam import FeCAM

D, CLASSES = 6, 4


def toy(count=200, seed=0, shift=0.0):
    """Classes with centres and covariances of their own, in random order."""
    generator, fixed = (torch.Generator().manual_seed(number) for number in (seed, 9))
    centres, mixing = 2 * torch.randn(CLASSES, D, generator=fixed), torch.randn(CLASSES, D, D, generator=fixed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    noise = torch.randn(count, D, generator=generator)
    return centres[labels] + torch.einsum("nd,nde->ne", noise, mixing[labels]) + shift, labels


@pytest.mark.parametrize("covariance", ["class", "common"])
def test_fecam_by_hand(covariance):
    """Roots of the images are (1, 1) and (3, 3) of class 0, and (2, 0) of class 1.

    The covariance of class 0 has four elements of 1, so that V_1 = V_2 = 1. With 2 V_1 on the diagonal and 1 V_2 beside
    it, it becomes ((3, 2), (2, 3)), and ((1, 2/3), (2/3, 1)) after scaling; its inverse is 9/5 ((1, -2/3), (-2/3, 1)).
    The common covariance has elements of 2/3, and the same form. Class 1 alone has no variance, so the unit matrix.
    """
    fecam = FeCAM(2, 2, 2, covariance=covariance, shrink_diagonal=2.0, shrink_others=1.0)
    fecam.update(torch.tensor([[1.0, 1], [9, 9], [4, 0]]), torch.tensor([0, 0, 1]))
    r = 0.5**0.5  # class 0 has its mean at (r, r) on the circle, class 1 at (1, 0)
    scores = fecam.scores(torch.tensor([[1.0, 0], [0, 16]]))
    first = 9 / 5 * ((1 - r) ** 2 + r**2 + 4 / 3 * r * (1 - r))
    second = 2.0 if covariance == "class" else 9 / 5 * (1 + 1 + 4 / 3)  # from (0, 1) to (1, 0)
    expected = torch.tensor([[-first, 0], [-first, -second]], dtype=torch.float64)
    torch.testing.assert_close(scores, expected, rtol=1e-3, atol=1e-6)


def test_fecam_keeps_signs_and_undoes_negative_correlation():
    """Images (1, -1) and (-1, 1) of a class around (0, 0) and two features: V_2 = -1, off the diagonal stays -1 - 1."""
    fecam = FeCAM(1, 2, 2, shrink_diagonal=3.0, shrink_others=1.0, tukey=1.0)
    fecam.update(torch.tensor([[1.0, -1], [-1, 1]]), torch.tensor([0, 0]))
    # ((4, -2), (-2, 4)), scaled ((1, -1/2), (-1/2, 1)), inverse 4/3 ((1, 1/2), (1/2, 1)).
    scores = fecam.scores(torch.tensor([[1.0, 0], [3, 4], [-3, 4]]))
    expected = [-4 / 3, -4 / 3 * (1 + 0.6 * 0.8), -4 / 3 * (1 - 0.6 * 0.8)]
    assert scores.flatten().tolist() == pytest.approx(expected, rel=1e-3)
    assert FeCAM(1, 2).transformed(torch.tensor([-4.0, 9.0])).tolist() == [-2, 3]


def test_answers_of_avalanches_fecam():
    """It shrinks twice, by 1 each time: 1 (2 + 1) at once."""
    features, labels = toy(shift=12.0)
    features, fresh = features.clamp_min(0.01), toy(seed=1, shift=12.0)[0].clamp_min(0.01)
    host = FeCAMClassifier()
    raised = host.apply_transforms(features)
    host.replace_class_means_dict(compute_means(raised, labels))
    host.replace_class_cov_dict(host.apply_cov_transforms(compute_covariance(raised, labels)))
    ours = feed(FeCAM(CLASSES, D, D, shrink_diagonal=3.0, shrink_others=3.0), features, labels)
    torch.testing.assert_close(ours.scores(fresh).float(), host(fresh), rtol=2e-2, atol=1e-4)
    assert (ours.scores(fresh).argmax(1) == host(fresh).argmax(1)).double().mean() > 0.98
