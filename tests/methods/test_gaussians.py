"""Closed forms by hand: Gaussians of features, LoRanPAC, PLDA, and ridge regression on random features."""

import pickle
from types import SimpleNamespace

import pytest
import torch
from closed_form_cases import D, discriminant, feed, images
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal

from crumb_avalanche.learner.evidence import evidence
from crumb_avalanche.methods.gaussians import PackedScatter
from crumb_avalanche.methods.klda import KernelLDA
from crumb_avalanche.methods.loranpac import LoRanPAC
from crumb_avalanche.methods.lr_rgda import LowRankRda
from crumb_avalanche.methods.plda import PostDeploymentLDA
from crumb_avalanche.methods.ranpac import RandomProjection, chosen_ridge
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.methods.run_file import probabilities
from crumb_avalanche.methods.slda import StreamingLDA
from crumb_avalanche.methods.srda import StreamingRda
from crumb_avalanche.methods.typicality import DISTANCE, RISE
from crumb_avalanche.system.tensor_file import tensor_bytes

CLASSES = 4


def blocks(count=400, seed=0):
    """Features of classes one after the other, as in a stream, and their labels."""
    features, labels = images(count, CLASSES, seed)
    order = labels.argsort(stable=True)
    return features[order], labels[order]


def assert_same_densities(ours, expected, **tolerance):
    """Equal up to a constant of each image."""
    torch.testing.assert_close(
        ours - ours[:, :1], expected - expected[:, :1], **tolerance
    )


@pytest.mark.parametrize("own_images", [0.0, 30.0])
@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("shrinkage", [1e-4, 1.0, 500.0])
def test_rda_where_directions_leave_a_rest(shrinkage, diagonal, own_images):
    # The definition again, of what is kept: a class's scatter is B^T B, and the rest of
    # its trace lies all around.
    features, labels = blocks()
    features, labels = (
        part[(labels != 1) | (torch.arange(len(labels)) % 3 == 0)]
        for part in (features, labels)
    )
    ours = discriminant(
        CLASSES,
        D,
        2,
        own=0.4,
        shrinkage=shrinkage,
        own_images=own_images,
        diagonal=diagonal,
    )
    feed(ours, features, labels)
    kept = torch.stack([ours.directions.of_class(label) for label in range(CLASSES)])
    outside, counts = ours.directions.outside.double(), torch.bincount(labels).double()
    assert (outside > 0.01 * kept.square().sum((1, 2))).all()
    common = (
        torch.einsum("ckd,cke->de", kept, kept) + outside.sum() / D * torch.eye(D)
    ) / len(labels)
    variances = common.diagonal() if diagonal else common.diagonal().mean().expand(D)
    common += min(1.0, shrinkage * D / len(labels)) * variances.diag()
    means = torch.stack(
        [features[labels == label].double().mean(0) for label in range(CLASSES)]
    )
    centre, whitening = means.mean(0), torch.linalg.inv(torch.linalg.cholesky(common)).T
    space = torch.linalg.svd((means - centre) @ whitening, full_matrices=False)[2][
        : CLASSES - 1
    ].T
    fresh = images(200, CLASSES, 1)[0].double()
    expected = []
    for label in range(CLASSES):
        own = kept[label] @ whitening @ space
        rest = outside[label] / (outside[label] + kept[label].square().sum())
        share = 0.4 * counts[label] / (counts[label] + own_images)
        covariance = (1 - share + share * rest) * torch.eye(
            CLASSES - 1
        ) + share * own.T @ own / counts[label]
        placed = [
            (point - centre) @ whitening @ space for point in (fresh, means[label])
        ]
        expected.append(MultivariateNormal(placed[1], covariance).log_prob(placed[0]))
    assert_same_densities(
        ours.scores(fresh), torch.stack(expected, 1), rtol=1e-4, atol=1e-4
    )


def test_a_feature_that_never_varies_does_not_break_the_diagonal():
    features, labels = blocks()
    features[:, 2] = 9 * labels.float()  # constant within each class
    scores = feed(
        discriminant(CLASSES, D, directions=D, diagonal=True), features, labels
    ).scores(features)
    assert scores.isfinite().all() and (scores.argmax(1) == labels).all()


@pytest.mark.parametrize("directions", [1, 3, D])
def test_lr_rgda_is_the_gaussian_of_the_strongest_directions(directions):
    features, labels = images(200, CLASSES)
    ours = LowRankRda(
        CLASSES, D, directions, whole=True, own=0.6, common=0.5, ridge=0.02
    )
    ours.update(features, labels)
    groups = [features[labels == label].double() for label in range(CLASSES)]
    covariances = [torch.cov(group.T, correction=0) for group in groups]
    common = sum(
        len(group) * covariance for group, covariance in zip(groups, covariances)
    ) / len(labels)
    fresh, expected = images(200, CLASSES, 1)[0], []
    for group, covariance in zip(groups, covariances):
        values, vectors = torch.linalg.eigh(covariance)
        own = (vectors[:, -directions:] * values[-directions:]) @ vectors[
            :, -directions:
        ].T
        blended = (
            0.6 * own + 0.5 * common + 0.02 * common.diagonal().mean() * torch.eye(D)
        )
        expected.append(
            MultivariateNormal(group.mean(0), blended).log_prob(fresh.double())
        )
    assert_same_densities(
        ours.scores(fresh), torch.stack(expected, 1), rtol=1e-2, atol=2e-2
    )


def test_what_srdas_directions_leave_out_has_the_shape_of_the_common_covariance():
    features, labels = images(200, CLASSES)
    ours = StreamingRda(CLASSES, D, directions=2, own=0.5, shrinkage=1e-9)
    ours.update(features, labels)
    every = torch.ones(CLASSES, dtype=torch.bool)
    scatters = ours.stored_scatters(every)
    common = ours.common_covariance(every, scatters)
    fresh, expected = images(200, CLASSES, 1)[0], []
    for label, (its, rest) in enumerate(
        zip(scatters.rows.split(scatters.counts.tolist()), scatters.outside)
    ):
        share = float(rest / (rest + its.square().sum()))
        its = its / (labels == label).sum() ** 0.5
        assert 0.05 < share < 0.6
        mean = features[labels == label].double().mean(0)
        blended = 0.5 * (its.T @ its + share * common) + 0.5 * common
        log_share = (labels == label).double().mean().log()
        expected.append(
            MultivariateNormal(mean, blended).log_prob(fresh.double()) + log_share
        )
    assert_same_densities(
        ours.scores(fresh), torch.stack(expected, 1), rtol=1e-4, atol=1e-4
    )


def test_one_image_at_a_time_far_from_the_origin_and_many_of_them():
    """float32 sums of products would have lost the covariance: the mean is 1,000 times the deviations."""
    features, labels = images(3000, CLASSES)
    features = 1000 + features
    means = torch.stack(
        [features[labels == c].double().mean(0) for c in range(CLASSES)]
    )
    rest = features.double() - means[labels]
    covariance = rest.T @ rest / len(labels)
    largest = covariance.abs().max()
    lda = feed(StreamingLDA(CLASSES, D), features, labels, size=1)
    assert (lda.means.double() - means).abs().max() < 1e-5 * 1000
    assert (lda.covariance.double() - covariance).abs().max() < 1e-4 * largest
    # Of the largest entry, not of each: small ones are differences of products, whose
    # rounding differs between CPUs.
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
    torch.testing.assert_close(
        packed.whole(), together.T @ together, rtol=1e-5, atol=1e-4
    )
    assert tensor_bytes(packed.strips) == PackedScatter.bytes_of(length)
    assert PackedScatter.bytes_of(length) < 4 * length**2 or length <= 64


def fed(truncated):
    """Two images (2, 0) of class 0 and one (0, 1) of class 1, and the answers to the two axes."""
    form = LoRanPAC(2, 2, projection=2, rank=1.0, truncated=truncated)
    form._weights = torch.eye(2, dtype=torch.float64)
    form.update(torch.tensor([[2.0, 0], [2, 0], [0, 1]]), torch.tensor([0, 0, 1]))
    return form, form.scores(torch.eye(2))


def test_what_is_small_is_dropped_for_good():
    """Squared singular values are 8 along the first axis and 1 along the second; class sums are (4, 0) and (0, 1).

    Least squares has the weights 4 / 8 and 1 / 1. With 60 % truncated, one direction of
    three images is kept, and class 1 has no weight. Two images (0, 2) of class 1 then
    make squared singular values of 8 and 8 instead of 9, two of five directions are
    kept, and the sum of class 1 is (0, 5).
    """
    _, answers = fed(truncated=0.25)
    torch.testing.assert_close(
        answers, torch.tensor([[0.5, 0], [0, 1]], dtype=torch.float64)
    )
    form, answers = fed(truncated=0.6)
    torch.testing.assert_close(
        answers, torch.tensor([[0.5, 0], [0, 0]], dtype=torch.float64)
    )
    form.update(torch.tensor([[0.0, 2], [0, 2]]), torch.tensor([1, 1]))
    torch.testing.assert_close(
        form.scores(torch.eye(2)),
        torch.tensor([[0.5, 0], [0, 5 / 8]], dtype=torch.float64),
    )


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
    torch.testing.assert_close(
        scores, torch.eye(8, dtype=torch.float64), rtol=0, atol=0.02
    )


def test_later_classes_leave_the_covariance_and_images_are_rejected_by_relative_distance():
    """Classes 3 and 0 form the covariance, in the order of arrival: scatters 2 along y and 2 along x of 4 images.

    The covariance is I / 2, shrunk to 3 / 4 I by a shrinkage of 1 / 2. Class 1 has the
    mean (0, 3) and adds nothing. Squared distances of (0, 0), (4, 0) and (0, 3) to a
    point are those of the plane by 3 / 4. The Gaussian of all classes has the centre
    (4, 3) / 3 and the covariance 3 / 4 I + ((32, -12), (-12, 18)) / 9.
    """
    features = torch.tensor([[0.0, 1], [0, -1], [5, 0], [3, 0], [0, 1], [0, 5]])
    form = feed(
        PostDeploymentLDA(4, 2, shrinkage=0.5, base_classes=2),
        features,
        torch.tensor([3, 3, 0, 0, 1, 1]),
        2,
    )
    torch.testing.assert_close(form.covariance, torch.eye(2) / 2)
    assert form.shaping.tolist() == [2, 0, 0, 2] and form.image_counts.tolist() == [
        2,
        2,
        0,
        2,
    ]
    points = torch.tensor([[4.0, 3], [-4, -3]], dtype=torch.float64)
    expected = torch.tensor([[8, 4.5, 0], [-24, -13.5, 0]], dtype=torch.float64) / 0.75
    torch.testing.assert_close(form.scores(points)[:, [0, 1, 3]], expected)
    total = (
        0.75 * torch.eye(2, dtype=torch.float64)
        + torch.tensor([[32, -12], [-12, 18]], dtype=torch.float64) / 9
    )
    rest = points - torch.tensor([4 / 3, 1], dtype=torch.float64)
    background = (rest @ torch.linalg.inv(total) * rest).sum(1)
    relative = (
        background - torch.tensor([9, 25], dtype=torch.float64) / 0.75
    )  # to (4, 0), and to (0, 0)
    expected = (
        DISTANCE * relative / (200 / 27) ** 0.5 + RISE * 2 / 3
    )  # the length of the means is that root
    torch.testing.assert_close(evidence(form, points).typicality[:, 0], expected)


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

    The weight of a class sum t is t / (2 + 2 s), the effective parameters are p = 1 /
    (1 + s). Two images of one class (t = 2) have the error 2 s^2 / (1 + s)^2 / (2 -
    p)^2 = 2 s^2 / (1 + 2 s)^2, which rises with s: a small ridge. Two images of two
    classes (t = 1 twice) look the same; the residuals rise from 1 to 2 with s, but the
    squared denominator rises from 1 to 4: the largest ridge.
    """
    one = torch.ones(1, dtype=torch.float64)
    assert (
        chosen_ridge(one, 2.0 * one, images=2) == 1e-3
    )  # residuals of smaller ones are below the rounding of sums
    assert chosen_ridge(one, one, images=2) == 100
    assert chosen_ridge(one, one, images=1) == 100, (
        "as many parameters as images at small ridges"
    )


def test_the_projection_comes_from_its_seed_alone():
    features, labels = images(200, 4)
    one, other, third = (
        feed(RandomProjection(4, D, projection=20, seed=seed), features, labels)
        for seed in (3, 3, 4)
    )
    assert torch.equal(one.gram, other.gram) and not torch.equal(one.gram, third.gram)
    again = pickle.loads(pickle.dumps(one))
    assert again._weights is None and torch.equal(
        again.scores(features), one.scores(features)
    )


@pytest.mark.parametrize("name", ["ranpac", "ranpac_gcv", "acil", "foal"])
def test_forms_of_one_base_have_its_temperature(name):
    strategy = SimpleNamespace(statistics=STRATEGIES[name].form(2, 3, projection=4))
    outputs = torch.tensor([[0.06, 0.0]])
    torch.testing.assert_close(
        probabilities(strategy, outputs), (outputs.double() / 0.06).softmax(1)
    )
