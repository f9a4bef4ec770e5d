"""KLDA by hand, and its random features against the kernel."""

import math

import torch
from closed_form_cases import D, images

from crumb_avalanche.methods.klda import KernelLDA


def test_klda_by_hand():
    """With W = (1, 0) and no phases, x becomes (cos x, 1).

    Class 0 has the images 0 and pi/2, at (1, 1) and (0, 1): mean (1/2, 1), scatter 1/2 in the first feature. Class 1
    has the image pi at (-1, 1). The covariance of three images is diag(1/6, 0), its mean variance 1/12; with a share of
    1 it becomes diag(1/4, 1/12). Weights are (2, 12) and (-4, 12), offsets (1 + 12) / 2 and (4 + 12) / 2.
    """
    klda = KernelLDA(2, 1, projection=2, shrinkage=1.0)
    klda._drawn = torch.tensor([[1.0, 0]], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    klda.update(torch.tensor([[0.0], [math.pi / 2], [math.pi]]), torch.tensor([0, 0, 1]))
    scores = klda.scores(torch.tensor([[0.0], [math.pi]]))
    expected = torch.tensor([[14 - 6.5, 8 - 8], [10 - 6.5, 16 - 8]], dtype=torch.float64)
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)


def test_random_fourier_features_approximate_the_kernel():
    features, _ = images(30, 4)
    klda = KernelLDA(4, D, projection=20_000, gamma=0.05)
    values = klda.transformed(features)
    torch.testing.assert_close(
        values @ values.T, (-0.05 * torch.cdist(features, features) ** 2).exp().double(), rtol=0, atol=0.04
    )
