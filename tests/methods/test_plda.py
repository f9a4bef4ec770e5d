"""PLDA by hand: the covariance of the first classes, and the distances by which it rejects."""

import torch
from closed_form_cases import feed

from crumb_avalanche.learner.evidence import evidence
from crumb_avalanche.methods.plda import PostDeploymentLDA


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
