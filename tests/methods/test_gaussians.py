"""Closed forms by hand: Gaussians, LoRanPAC, PLDA, and ridge regression."""

import pickle
from types import SimpleNamespace

import pytest
import torch
from closed_form_cases import D, axes_of, discriminant, feed, images
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal

from crumb_avalanche.learner.evidence import evidence
from crumb_avalanche.methods.gaussian_solution import (
    ROWS_AT_ONCE,
    LowRankRoot,
    Span,
    products_of_rows,
)
from crumb_avalanche.methods.klda import KernelLDA
from crumb_avalanche.methods.loranpac import LoRanPAC
from crumb_avalanche.methods.lr_rgda import LowRankRda
from crumb_avalanche.methods.packed_scatter import PackedScatter
from crumb_avalanche.methods.plda import PostDeploymentLDA
from crumb_avalanche.methods.ranpac import RandomProjection, chosen_ridge
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.methods.run_file import probabilities
from crumb_avalanche.methods.slda import StreamingLDA
from crumb_avalanche.methods.srda import StreamingRda
from crumb_avalanche.methods.typicality import DISTANCE, RISE
from crumb_avalanche.system.tensor_file import tensor_bytes

CLASSES = 4
EYE = torch.eye(D, dtype=torch.float64)


def exact(values):
    return torch.tensor(values, dtype=torch.float64)


def blocks(count=400, seed=0):
    """Features of classes one after the other, as in a stream, and their labels."""
    features, labels = images(count, CLASSES, seed)
    order = labels.argsort(stable=True)
    return features[order], labels[order]


def groups_of(features, labels):
    """``(n, D)`` float64 features of each class."""
    return [features[labels == label].double() for label in range(CLASSES)]


def fresh():
    return images(200, CLASSES, seed=1)[0]


def assert_same_densities(scores, expected, **tolerance):
    """Equal up to a constant of each image."""
    torch.testing.assert_close(
        scores - scores[:, :1], expected - expected[:, :1], **tolerance
    )


class DefinedRda:
    """Regularised discriminant by its definition, of what directions hold.

    A class's scatter is ``B^T B``, and the rest of its trace lies all around.
    """

    def __init__(self, statistics, features, labels, shrinkage, diagonal, own_images):
        directions = statistics.directions
        self.rows = torch.stack(list(map(directions.of_class, range(CLASSES))))
        self.outside = directions.outside.double()
        self.counts = torch.bincount(labels).double()
        groups = groups_of(features, labels)
        self.means = torch.stack([group.mean(0) for group in groups])
        self.own = 0.4 * self.counts / (self.counts + own_images)
        whitening = self.whitening(shrinkage, diagonal)
        self.centre = self.means.mean(0)
        space = axes_of((self.means - self.centre) @ whitening)
        self.projection = whitening @ space

    def whitening(self, shrinkage, diagonal):
        scatters = torch.einsum("ckd,cke->de", self.rows, self.rows)
        total = self.counts.sum()
        common = (scatters + self.outside.sum() / D * EYE) / total
        variances = common.diagonal().mean().expand(D)
        if diagonal:
            variances = common.diagonal()
        common = common + min(1.0, shrinkage * D / float(total)) * variances.diag()
        return torch.linalg.inv(torch.linalg.cholesky(common)).T

    def covariance(self, label):
        rows = self.rows[label] @ self.projection
        outside = self.outside[label]
        left_out = outside / (outside + self.rows[label].square().sum())
        share = self.own[label]
        isotropic = 1 - share + share * left_out
        of_class = share * rows.T @ rows / self.counts[label]
        return isotropic * torch.eye(CLASSES - 1) + of_class

    def log_densities(self, features):
        points = (features.double() - self.centre) @ self.projection
        means = (self.means - self.centre) @ self.projection
        densities = []
        for c in range(CLASSES):
            densities.append(
                MultivariateNormal(means[c], self.covariance(c)).log_prob(points)
            )
        return torch.stack(densities, 1)


@pytest.mark.parametrize("own_images", [0.0, 30.0])
@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("shrinkage", [1e-4, 1.0, 500.0])
def test_rda_where_directions_leave_a_rest(shrinkage, diagonal, own_images):
    features, labels = blocks()
    used = (labels != 1) | (torch.arange(len(labels)) % 3 == 0)  # of unequal size
    features, labels = features[used], labels[used]
    rule = dict(shrinkage=shrinkage, diagonal=diagonal, own_images=own_images)
    statistics = discriminant(CLASSES, D, 2, own=0.4, **rule)
    feed(statistics, features, labels)
    defined = DefinedRda(statistics, features, labels, **rule)
    assert (defined.outside > 0.01 * defined.rows.square().sum((1, 2))).all()
    scores = statistics.scores(fresh())
    expected = defined.log_densities(fresh())
    assert_same_densities(scores, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture
def few_rows():
    """Features and labels of three classes, with fewer directions than features."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 2])
    return torch.randn(len(labels), 24, generator=generator) + labels[:, None], labels


@pytest.mark.parametrize(
    "options",
    [{}, {"diagonal": False}, {"part": 16}, {"eight_bits": False}, {"own_images": 9.0}],
)
@pytest.mark.parametrize("images", [10, 3], ids=["few of a class", "one of a class"])
def test_few_rows_are_solved_by_products(few_rows, monkeypatch, options, images):
    features, labels = few_rows
    statistics = RegularizedDiscriminant(3, 24, 8, **options)
    one_of_each_first = [0, 3, 5, 1, 2, 4, 6, 7, 8, 9]
    learned = one_of_each_first[:images]
    statistics.update(features[learned], labels[learned])
    asked = features.flip(0) + 0.3
    nothing = features[:4] - 5
    fast = statistics.typicality(asked, nothing)
    assert isinstance(statistics.solution().root, LowRankRoot)
    monkeypatch.setattr(RegularizedDiscriminant, "_low_rank_root", lambda *_: None)
    slow_statistics = statistics.like(statistics.state_dict())
    slow_statistics.load_state_dict(statistics.state_dict())
    slow = slow_statistics.typicality(asked, nothing)
    assert not isinstance(slow_statistics.solution().root, LowRankRoot)
    torch.testing.assert_close(fast.scores, slow.scores, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(fast.values, slow.values, rtol=1e-9, atol=1e-9)


def test_no_image_is_like_an_unseen_class(few_rows):
    features, labels = few_rows
    asked = features.flip(0) + 0.3
    nothing = features[:4] - 5
    seen_alone = RegularizedDiscriminant(3, 24, 8)
    seen_alone.update(features, labels)
    with_unseen = RegularizedDiscriminant(5, 24, 8)
    with_unseen.update(features, labels)
    expected = seen_alone.typicality(asked, nothing).values
    values = with_unseen.typicality(asked, nothing).values
    torch.testing.assert_close(values, expected)


@pytest.mark.parametrize("count", [1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 1])
def test_products_of_rows(count):
    """Of one piece of rows, and of several, the last one of a single row."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(count, 40, generator=generator, dtype=torch.float64)
    products = products_of_rows(rows)
    torch.testing.assert_close(products, rows @ rows.mT, rtol=1e-12, atol=1e-12)
    assert torch.equal(products, products.mT)


def test_rows_where_the_covariance_is_1(few_rows):
    features, _ = few_rows
    variances = torch.linspace(0.5, 2, 24, dtype=torch.float64)
    root = LowRankRoot.of_rows(features.double(), variances, 10.0)
    covariance = features.double().mT @ features.double() / 10 + variances.diag()
    rows = features.double() * 2 - 1
    white, products = root.whitened_rows(rows)
    solved = covariance.inverse() @ rows.mT
    torch.testing.assert_close(white @ white.mT, rows @ solved)
    torch.testing.assert_close(products.mT, features.double() @ solved)
    torch.testing.assert_close(white, root.whiten(rows))


@pytest.mark.parametrize("classes", [3, 8, 40])
def test_span_of_class_means(classes):
    """Its axes are principal ones, of fewer and of more classes than features."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(classes, 8, generator=generator, dtype=torch.float64)
    means -= means.mean(0)
    span = Span.of_means(means)
    rank = min(8, classes - 1)
    lengths = torch.linalg.svdvals(means)[:rank]
    torch.testing.assert_close(span.lengths, lengths)
    torch.testing.assert_close(span.means.mT @ span.means, lengths.square().diag())
    torch.testing.assert_close(span.means @ span.axes.mT, means)
    unit = torch.eye(rank, dtype=torch.float64)
    torch.testing.assert_close(span.axes.mT @ span.axes, unit)


@pytest.mark.parametrize("classes", [0, 1, 7])
def test_bytes_grow_with_the_classes(classes):
    statistics = RegularizedDiscriminant(2, 24, 8)
    allocated = RegularizedDiscriminant(classes, 24, 8)
    expected = tensor_bytes(allocated.tensors())
    assert statistics._bytes_without_images(classes) == expected


def test_a_constant_feature_does_not_break_the_diagonal():
    features, labels = blocks()
    features[:, 2] = 9 * labels.float()  # constant within each class
    statistics = discriminant(CLASSES, D, directions=D, diagonal=True)
    scores = feed(statistics, features, labels).scores(features)
    assert scores.isfinite().all()
    assert (scores.argmax(1) == labels).all()


def strongest(covariance, directions):
    """What the strongest directions hold of a covariance."""
    values, vectors = torch.linalg.eigh(covariance)
    axes = vectors[:, -directions:]
    return (axes * values[-directions:]) @ axes.T


@pytest.mark.parametrize("directions", [1, 3, D])
def test_lr_rgda_has_the_strongest_directions(directions):
    features, labels = images(200, CLASSES)
    weights = dict(own=0.6, common=0.5, ridge=0.02)
    statistics = LowRankRda(CLASSES, D, directions, whole=True, **weights)
    statistics.update(features, labels)
    groups = groups_of(features, labels)
    covariances = [torch.cov(group.T, correction=0) for group in groups]
    scatters = [len(groups[c]) * covariances[c] for c in range(CLASSES)]
    common = sum(scatters) / len(labels)
    shared = 0.5 * common + 0.02 * common.diagonal().mean() * EYE
    expected = []
    for group, covariance in zip(groups, covariances):
        blended = 0.6 * strongest(covariance, directions) + shared
        gaussian = MultivariateNormal(group.mean(0), blended)
        expected.append(gaussian.log_prob(fresh().double()))
    scores = statistics.scores(fresh())
    assert_same_densities(scores, torch.stack(expected, 1), rtol=1e-2, atol=2e-2)


def test_what_srda_leaves_out_has_the_common_shape():
    features, labels = images(200, CLASSES)
    statistics = StreamingRda(CLASSES, D, directions=2, own=0.5, shrinkage=1e-9)
    statistics.update(features, labels)
    every = torch.ones(CLASSES, dtype=torch.bool)
    scatters = statistics.stored_scatters(every)
    common = statistics.common_covariance(every, scatters)
    rows_of_classes = scatters.rows.split(scatters.counts.tolist())
    expected = []
    for label, group in enumerate(groups_of(features, labels)):
        rows = rows_of_classes[label]
        outside = scatters.left_out_traces[label]
        left_out = float(outside / (outside + rows.square().sum()))
        assert 0.05 < left_out < 0.6
        of_group = rows.T @ rows / len(group) + left_out * common
        gaussian = MultivariateNormal(group.mean(0), 0.5 * of_group + 0.5 * common)
        prior = torch.tensor(len(group) / len(labels), dtype=torch.float64).log()
        expected.append(gaussian.log_prob(fresh().double()) + prior)
    scores = statistics.scores(fresh())
    assert_same_densities(scores, torch.stack(expected, 1), rtol=1e-4, atol=1e-4)


class FarImages:
    """Images whose mean is 1,000 times their deviations.

    float32 sums of products would have lost the covariance.
    """

    def __init__(self):
        features, self.labels = images(3000, CLASSES)
        self.features = 1000 + features
        groups = groups_of(self.features, self.labels)
        self.means = torch.stack([group.mean(0) for group in groups])
        outside = self.features.double() - self.means[self.labels]
        self.covariance = outside.T @ outside / len(self.labels)

    def learned(self, size):
        return feed(StreamingLDA(CLASSES, D), self.features, self.labels, size)

    def error(self, size):
        """Of the covariance, relative to its largest entry.

        Not to each: small ones are differences of products, whose rounding differs
        between CPUs.
        """
        difference = self.learned(size).covariance.double() - self.covariance
        return difference.abs().max() / self.covariance.abs().max()


def test_means_of_far_images():
    far = FarImages()
    means = far.learned(size=1).means.double()
    assert (means - far.means).abs().max() < 1e-5 * 1000


@pytest.mark.parametrize(("size", "tolerance"), [(1, 1e-4), (300, 2e-6)])
def test_the_covariance_of_far_images(size, tolerance):
    assert FarImages().error(size) < tolerance


def test_fourier_features_approximate_the_kernel():
    features, _ = images(30, 4)
    values = KernelLDA(4, D, projection=20_000, gamma=0.05).transformed(features)
    kernel = (-0.05 * torch.cdist(features, features) ** 2).exp().double()
    torch.testing.assert_close(values @ values.T, kernel, rtol=0, atol=0.04)


LENGTHS = st.integers(1, 150)


@settings(max_examples=25)
@given(LENGTHS, st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_packed_scatter_is_the_matrix(length, sizes):
    generator = torch.Generator().manual_seed(length)
    shape = (sum(sizes), length)
    rows = torch.randn(shape, generator=generator, dtype=torch.float64)
    packed = PackedScatter(length)
    for batch in rows.split(sizes):
        packed.add(batch)
    torch.testing.assert_close(packed.whole(), rows.T @ rows, rtol=1e-5, atol=1e-4)


@given(LENGTHS)
def test_bytes_of_a_packed_scatter(length):
    size = PackedScatter.bytes_of(length)
    assert tensor_bytes(PackedScatter(length).strips) == size
    assert size < 4 * length**2 or length <= 64


def loranpac(truncated):
    """Two images (2, 0) of class 0, and one (0, 1) of class 1."""
    form = LoRanPAC(2, 2, projection=2, rank=1.0, truncated=truncated)
    form._weights = torch.eye(2, dtype=torch.float64)
    form.update(torch.tensor([[2.0, 0], [2, 0], [0, 1]]), torch.tensor([0, 0, 1]))
    return form


def answers_to_axes(form):
    return form.scores(torch.eye(2))


def test_loranpac_is_least_squares():
    """Squared singular values are 8 and 1 along the axes; sums are (4, 0) and (0, 1).

    The weights are 4 / 8 and 1 / 1.
    """
    expected = exact([[0.5, 0], [0, 1]])
    torch.testing.assert_close(answers_to_axes(loranpac(0.25)), expected)


def test_what_is_small_is_dropped():
    """With 60 % truncated, one direction of three images is left.

    Class 1 has no weight.
    """
    expected = exact([[0.5, 0], [0, 0]])
    torch.testing.assert_close(answers_to_axes(loranpac(0.6)), expected)


def test_what_is_dropped_is_dropped_for_good():
    """Two images (0, 2) of class 1 make squared singular values of 8 and 8, not 9.

    Two of five directions are left, and the sum of class 1 is (0, 5).
    """
    form = loranpac(0.6)
    form.update(torch.tensor([[0.0, 2], [0, 2]]), torch.tensor([1, 1]))
    torch.testing.assert_close(answers_to_axes(form), exact([[0.5, 0], [0, 5 / 8]]))


def test_more_features_than_images_stay_accurate():
    """Of one class a step.

    Equal features of hundreds of images leave all singular values but a few at the
    rounding of float32.
    """
    generator = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(8, 16, generator=generator)
    form = LoRanPAC(8, 16, projection=300, rank=0.5)
    for label, centre in enumerate(centres):
        rows = centre + 1e-3 * torch.randn(60, 16, generator=generator)
        feed(form, rows, torch.full((60,), label))
    expected = torch.eye(8, dtype=torch.float64)
    torch.testing.assert_close(form.scores(centres), expected, rtol=0, atol=0.02)


@pytest.fixture
def plda():
    """Classes 3 and 0 form the covariance, in the order of arrival.

    Their scatters are 2 along y and 2 along x, of 4 images: the covariance is I / 2,
    shrunk to 3 / 4 I by a shrinkage of 1 / 2. Class 1 has the mean (0, 3) and adds
    nothing.
    """
    features = torch.tensor([[0.0, 1], [0, -1], [5, 0], [3, 0], [0, 1], [0, 5]])
    form = PostDeploymentLDA(4, 2, shrinkage=0.5, base_classes=2)
    return feed(form, features, torch.tensor([3, 3, 0, 0, 1, 1]), 2)


POINTS = exact([[4, 3], [-4, -3]])


def test_later_classes_leave_the_covariance(plda):
    torch.testing.assert_close(plda.covariance, torch.eye(2) / 2)
    assert plda.shaping.tolist() == [2, 0, 0, 2]
    assert plda.image_counts.tolist() == [2, 2, 0, 2]


def test_plda_by_hand(plda):
    scores = plda.scores(POINTS)[:, [0, 1, 3]]
    expected = exact([[8, 4.5, 0], [-24, -13.5, 0]]) / 0.75
    torch.testing.assert_close(scores, expected)


def test_plda_rejects_by_relative_distance(plda):
    """Squared distances of (0, 0), (4, 0) and (0, 3) are those of the plane by 3 / 4.

    The Gaussian of all classes has the centre (4, 3) / 3 and the covariance 3 / 4 I +
    ((32, -12), (-12, 18)) / 9.
    """
    total = exact([[32, -12], [-12, 18]]) / 9 + 0.75 * torch.eye(2)
    difference = POINTS - exact([4 / 3, 1])
    background = (difference @ torch.linalg.inv(total) * difference).sum(1)
    nearest = exact([9, 25]) / 0.75  # to (4, 0), and to (0, 0)
    length = (200 / 27) ** 0.5  # of the means
    expected = DISTANCE * (background - nearest) / length + RISE * 2 / 3
    typicality = evidence(plda, POINTS).typicality
    torch.testing.assert_close(typicality[:, 0], expected)


class MergedParts:
    """One instance of all images, and one of two parts with the same base classes."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        features = torch.randn(60, 3, generator=generator)
        labels = torch.arange(60) % 4
        self.complete = self.learned(features, labels, [slice(60)])
        self.merged = self.learned(features, labels, [slice(23)])
        # Begins with classes 0 and 1, too.
        blocks = [slice(24, 60), slice(23, 24)]
        self.merged.merge(self.learned(features, labels, blocks))

    @staticmethod
    def learned(features, labels, batches):
        form = PostDeploymentLDA(4, 3, base_classes=2)
        for batch in batches:
            form.update(features[batch], labels[batch])
        return form


def test_merged_parts_have_the_base_classes_of_one():
    merged = MergedParts()
    assert merged.complete.shaping.tolist() == [15, 15, 0, 0]
    assert merged.merged.shaping.tolist() == [15, 15, 0, 0]


@pytest.mark.parametrize("name", ["covariance", "means"])
def test_merged_parts_equal_one(name):
    instances = MergedParts()
    merged = getattr(instances.merged, name)
    complete = getattr(instances.complete, name)
    torch.testing.assert_close(merged, complete, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("energy", "count", "ridge"),
    [
        # Two images of one class: residuals of smaller ones are below the rounding.
        (2.0, 2, 1e-3),
        # Two images of two classes.
        (1.0, 2, 100),
        # As many parameters as images at small ridges.
        (1.0, 1, 100),
    ],
)
def test_the_chosen_ridge_by_hand(energy, count, ridge):
    """One random feature of 1 for each of two images: the Gram matrix is 2.

    With a ridge of 2 s, the weight of a class sum t is t / (2 + 2 s), and the effective
    parameters are p = 1 / (1 + s). Two images of one class (t = 2) have the error 2 s^2
    / (1 + s)^2 / (2 - p)^2 = 2 s^2 / (1 + 2 s)^2, which rises with s: a small ridge.
    Two images of two classes (t = 1 twice) look the same; the residuals rise from 1 to
    2 with s, but the squared denominator rises from 1 to 4: the largest ridge.
    """
    values = exact([1.0])
    assert chosen_ridge(values, energy * values, n_images=count) == ridge


def projected(seed):
    form = RandomProjection(4, D, projection=20, seed=seed)
    return feed(form, *images(200, 4))


def test_the_projection_comes_from_its_seed():
    assert torch.equal(projected(3).gram, projected(3).gram)
    assert not torch.equal(projected(3).gram, projected(4).gram)


def test_the_projection_is_not_pickled():
    form = projected(3)
    again = pickle.loads(pickle.dumps(form))
    assert again._weights is None
    features, _ = images(200, 4)
    assert torch.equal(again.scores(features), form.scores(features))


@pytest.mark.parametrize("name", ["ranpac", "ranpac_gcv", "acil", "foal"])
def test_forms_of_one_base_have_its_temperature(name):
    strategy = SimpleNamespace(statistics=STRATEGIES[name].form(2, 3, projection=4))
    outputs = torch.tensor([[0.06, 0.0]])
    expected = (outputs.double() / 0.06).softmax(1)
    torch.testing.assert_close(probabilities(strategy, outputs), expected)
