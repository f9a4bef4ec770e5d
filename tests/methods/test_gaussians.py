"""Gaussians of features against their definition over all images at once, and what they approximate."""

import pytest
import torch
from closed_form_cases import D, discriminant, feed, images
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal

from crumb_avalanche.methods.gaussians import PackedScatter
from crumb_avalanche.methods.klda import KernelLDA
from crumb_avalanche.methods.lr_rgda import LowRankRda
from crumb_avalanche.methods.slda import StreamingLDA
from crumb_avalanche.methods.srda import StreamingRda
from crumb_avalanche.system.tensor_file import tensor_bytes

CLASSES = 4


def blocks(count=400, seed=0):
    """Features of classes one after the other, as in a stream, and their labels."""
    features, labels = images(count, CLASSES, seed)
    order = labels.argsort(stable=True)
    return features[order], labels[order]


def assert_same_densities(ours, expected, **tolerance):
    """Equal up to a constant of each image."""
    torch.testing.assert_close(ours - ours[:, :1], expected - expected[:, :1], **tolerance)


@pytest.mark.parametrize("own_images", [0.0, 30.0])
@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("shrinkage", [1e-4, 1.0, 500.0])
def test_rda_where_directions_leave_a_rest(shrinkage, diagonal, own_images):
    # The definition again, of what is kept: a class's scatter is B^T B, and the rest of its trace lies all around.
    features, labels = blocks()
    features, labels = (part[(labels != 1) | (torch.arange(len(labels)) % 3 == 0)] for part in (features, labels))
    ours = discriminant(CLASSES, D, 2, own=0.4, shrinkage=shrinkage, own_images=own_images, diagonal=diagonal)
    feed(ours, features, labels)
    kept = torch.stack([ours.directions.of_class(label) for label in range(CLASSES)])
    outside, counts = ours.directions.outside.double(), torch.bincount(labels).double()
    assert (outside > 0.01 * kept.square().sum((1, 2))).all()
    common = (torch.einsum("ckd,cke->de", kept, kept) + outside.sum() / D * torch.eye(D)) / len(labels)
    variances = common.diagonal() if diagonal else common.diagonal().mean().expand(D)
    common += min(1.0, shrinkage * D / len(labels)) * variances.diag()
    means = torch.stack([features[labels == label].double().mean(0) for label in range(CLASSES)])
    centre, whitening = means.mean(0), torch.linalg.inv(torch.linalg.cholesky(common)).T
    space = torch.linalg.svd((means - centre) @ whitening, full_matrices=False)[2][: CLASSES - 1].T
    fresh = images(200, CLASSES, 1)[0].double()
    expected = []
    for label in range(CLASSES):
        own = kept[label] @ whitening @ space
        rest = outside[label] / (outside[label] + kept[label].square().sum())
        share = 0.4 * counts[label] / (counts[label] + own_images)
        covariance = (1 - share + share * rest) * torch.eye(CLASSES - 1) + share * own.T @ own / counts[label]
        placed = [(point - centre) @ whitening @ space for point in (fresh, means[label])]
        expected.append(MultivariateNormal(placed[1], covariance).log_prob(placed[0]))
    assert_same_densities(ours.scores(fresh), torch.stack(expected, 1), rtol=1e-4, atol=1e-4)


def test_a_feature_that_never_varies_does_not_break_the_diagonal():
    features, labels = blocks()
    features[:, 2] = 9 * labels.float()  # constant within each class
    scores = feed(discriminant(CLASSES, D, directions=D, diagonal=True), features, labels).scores(features)
    assert scores.isfinite().all() and (scores.argmax(1) == labels).all()


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
    assert_same_densities(ours.scores(fresh), torch.stack(expected, 1), rtol=1e-2, atol=2e-2)


def test_what_srdas_directions_leave_out_has_the_shape_of_the_common_covariance():
    features, labels = images(200, CLASSES)
    ours = StreamingRda(CLASSES, D, directions=2, own=0.5, shrinkage=1e-9)
    ours.update(features, labels)
    every = torch.ones(CLASSES, dtype=torch.bool)
    rows, numbers, outside = ours.held(every)
    common = ours.common_covariance(every, rows, outside)
    fresh, expected = images(200, CLASSES, 1)[0], []
    for label, (its, rest) in enumerate(zip(rows.split(numbers.tolist()), outside)):
        share = float(rest / (rest + its.square().sum()))
        its = its / (labels == label).sum() ** 0.5
        assert 0.05 < share < 0.6
        mean = features[labels == label].double().mean(0)
        blended = 0.5 * (its.T @ its + share * common) + 0.5 * common
        log_share = (labels == label).double().mean().log()
        expected.append(MultivariateNormal(mean, blended).log_prob(fresh.double()) + log_share)
    assert_same_densities(ours.scores(fresh), torch.stack(expected, 1), rtol=1e-4, atol=1e-4)


def test_one_image_at_a_time_far_from_the_origin_and_many_of_them():
    """float32 sums of products would have lost the covariance: the mean is 1,000 times the deviations."""
    features, labels = images(3000, CLASSES)
    features = 1000 + features
    means = torch.stack([features[labels == c].double().mean(0) for c in range(CLASSES)])
    rest = features.double() - means[labels]
    covariance = rest.T @ rest / len(labels)
    largest = covariance.abs().max()
    lda = feed(StreamingLDA(CLASSES, D), features, labels, size=1)
    assert (lda.means.double() - means).abs().max() < 1e-5 * 1000
    assert (lda.covariance.double() - covariance).abs().max() < 1e-4 * largest
    # Of the largest entry, not of each: small ones are differences of products, whose rounding differs between CPUs.
    many = feed(StreamingLDA(CLASSES, D), features, labels, 300).covariance.double()
    assert (many - covariance).abs().max() < 2e-6 * largest


def test_random_fourier_features_approximate_the_kernel():
    features, _ = images(30, 4)
    values = KernelLDA(4, D, projection=20_000, gamma=0.05).transformed(features)
    kernel = (-0.05 * torch.cdist(features, features) ** 2).exp().double()
    torch.testing.assert_close(values @ values.T, kernel, rtol=0, atol=0.04)


@settings(max_examples=25)
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
