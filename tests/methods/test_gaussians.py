"""Regularised discriminant analysis against Gaussians written down over all images at once."""

import math

import pytest
import torch
from closed_form_cases import discriminant, feed
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal

from crumb_avalanche.methods.fecam import FeCAM
from crumb_avalanche.methods.gaussians import LowRankCovariance, PackedScatter
from crumb_avalanche.methods.klda import KernelLDA
from crumb_avalanche.methods.lr_rgda import LowRankRda
from crumb_avalanche.methods.srda import StreamingRda
from crumb_avalanche.system.tensor_bytes import tensor_bytes

D, CLASSES = 6, 4


def toy(count=400, seed=0):
    """Classes with centres and covariances of their own, in blocks as in a stream."""
    generator = torch.Generator().manual_seed(seed)
    fixed = torch.Generator().manual_seed(9)
    centres, mixing = 2 * torch.randn(CLASSES, D, generator=fixed), torch.randn(CLASSES, D, D, generator=fixed)
    labels = torch.arange(CLASSES).repeat_interleave(count // CLASSES)
    noise = torch.randn(len(labels), D, generator=generator)
    return centres[labels] + torch.einsum("nd,nde->ne", noise, mixing[labels]), labels


@pytest.mark.parametrize("images", [0.0, 30.0])
@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("shrinkage", [1e-4, 1.0, 500.0])
def test_scores_where_directions_leave_a_rest(shrinkage, diagonal, images):
    # The definition again, of what is kept: a class's scatter is B^T B, and the rest of its trace lies all around.
    features, labels = toy()
    features, labels = (part[(labels != 1) | (torch.arange(len(labels)) % 3 == 0)] for part in (features, labels))
    ours = discriminant(CLASSES, D, directions=2, own=0.4, shrinkage=shrinkage, own_images=images, diagonal=diagonal)
    feed(ours, features, labels)
    kept = torch.stack([ours.directions.of_class(label) for label in range(CLASSES)])
    outside, counts = ours.directions.outside.double(), torch.bincount(labels).double()
    assert (outside > 0.05 * kept.square().sum((1, 2))).all()
    common = (torch.einsum("ckd,cke->de", kept, kept) + outside.sum() / D * torch.eye(D)) / len(labels)
    variances = common.diagonal() if diagonal else common.diagonal().mean().expand(D)
    common += min(1.0, shrinkage * D / len(labels)) * variances.diag()
    means = torch.stack([features[labels == label].double().mean(0) for label in range(CLASSES)])
    centre, whitening = means.mean(0), torch.linalg.inv(torch.linalg.cholesky(common)).T
    space = torch.linalg.svd((means - centre) @ whitening, full_matrices=False)[2][: CLASSES - 1].T
    fresh = toy(seed=1)[0].double()
    expected = []
    for label in range(CLASSES):
        own = kept[label] @ whitening @ space
        rest = outside[label] / (outside[label] + kept[label].square().sum())
        share = 0.4 * counts[label] / (counts[label] + images)
        covariance = (1 - share + share * rest) * torch.eye(CLASSES - 1) + share * own.T @ own / counts[label]
        placed = [(point - centre) @ whitening @ space for point in (fresh, means[label])]
        expected.append(MultivariateNormal(placed[1], covariance).log_prob(placed[0]))
    scores, expected = ours.scores(fresh), torch.stack(expected, 1)
    torch.testing.assert_close(scores - scores[:, :1], expected - expected[:, :1], rtol=1e-4, atol=1e-4)


def test_a_feature_that_never_varies_does_not_break_the_diagonal():
    features, labels = toy()
    features[:, 2] = labels.float()  # constant within each class
    ours = feed(discriminant(CLASSES, D, directions=D, diagonal=True), features, labels)
    assert ours.scores(features).isfinite().all() and (ours.scores(features).argmax(1) == labels).all()


def test_directions_of_all_images_at_once_are_exact():
    features, labels = toy()
    ours = discriminant(CLASSES, D, directions=2)
    ours.update(features, labels)
    group = features[labels == 1].double()
    energies, vectors = torch.linalg.eigh((group - group.mean(0)).T @ (group - group.mean(0)))
    expected = (vectors[:, -2:] * energies[-2:]) @ vectors[:, -2:].T
    kept = ours.directions.of_class(1)
    torch.testing.assert_close(kept.T @ kept, expected, rtol=2e-3, atol=1e-2 * float(expected.abs().max()))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 150), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_packed_scatter_is_the_matrix(length, sizes):
    generator = torch.Generator().manual_seed(length)
    packed, rows = PackedScatter(length), []
    for size in sizes:
        rows.append(torch.randn(size, length, generator=generator, dtype=torch.float64))
        packed.add(rows[-1])
    together = torch.cat(rows)
    torch.testing.assert_close(packed.whole(), together.T @ together, rtol=1e-5, atol=1e-4)
    assert tensor_bytes(packed.strips) == PackedScatter.bytes_of(length)
    assert PackedScatter.bytes_of(length) < 4 * length**2 or length <= 64


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_low_rank_covariance_is_its_matrix(sign):
    generator = torch.Generator().manual_seed(0)
    rows, rest = (torch.randn(count, D, generator=generator, dtype=torch.float64) for count in (3, 10))
    rows[2] *= 0.2
    signs = torch.tensor([1.0, 1, sign], dtype=torch.float64)
    matrix = 0.5 * torch.eye(D) + (rows.T * signs) @ rows
    ours = LowRankCovariance(rows, 0.5, signs)
    torch.testing.assert_close(ours.distances(rest), ((rest @ torch.linalg.inv(matrix)) * rest).sum(1))
    if sign > 0:
        assert ours.log_determinant == pytest.approx(float(matrix.logdet()))
        assert LowRankCovariance(rows[:0], 0.5).log_determinant == pytest.approx(D * math.log(0.5))


def test_bytes_of_every_form_of_gaussians():
    counted = 4 * 10 * (512 + 1)  # means and counts of ten classes
    beside = 3 * 4 * 10  # scales, counts and rest of the directions
    empty = {
        FeCAM(10, 512, covariance="common"): counted + PackedScatter.bytes_of(512),
        FeCAM(10, 512, 512): counted + beside,
        KernelLDA(10, 512, projection=100): 4 * 10 * (100 + 1) + PackedScatter.bytes_of(100),
        StreamingRda(10, 512, 512): counted + beside,
        LowRankRda(10, 512, 64, whole=True): counted + beside + PackedScatter.bytes_of(512),
        LowRankRda(10, 512, 64): counted + beside,
    }
    assert [statistics.held_bytes for statistics in empty] == list(empty.values())
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.randn(80, 512, generator=generator), torch.arange(80) // 70  # 70 and 10 images
    for statistics, before in empty.items():
        statistics.update(features, labels)
        limit = 0 if statistics.directions is None else statistics.directions.most
        rows = min(limit, 69) + min(limit, 9)
        assert statistics.held_bytes == before + 2 * 512 * rows
