"""FeCAM, KLDA, ACIL, F-OAL, RanPAC's ridge, Deep SRDA and LR-RGDA against cases worked by hand and slow twins."""

import math

import pytest
import torch
from avalanche.models.fecam import FeCAMClassifier, compute_covariance, compute_means
from torch.distributions import MultivariateNormal

from crumb_avalanche.methods.fecam import FeCAM
from crumb_avalanche.methods.gaussians import LowRankCovariance, PackedScatter
from crumb_avalanche.methods.klda import KernelLDA
from crumb_avalanche.methods.lr_rgda import LowRankRda
from crumb_avalanche.methods.ranpac import FOAL, RIDGES, RandomProjection, chosen_ridge
from crumb_avalanche.methods.srda import StreamingRda

D, CLASSES = 6, 4


def toy(count=200, seed=0, shift=0.0):
    """Classes with centres and covariances of their own, in random order."""
    generator, fixed = (torch.Generator().manual_seed(number) for number in (seed, 9))
    centres, mixing = 2 * torch.randn(CLASSES, D, generator=fixed), torch.randn(CLASSES, D, D, generator=fixed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    noise = torch.randn(count, D, generator=generator)
    return centres[labels] + torch.einsum("nd,nde->ne", noise, mixing[labels]) + shift, labels


def feed(statistics, features, labels, size=7):
    for some, its_labels in zip(features.split(size), labels.split(size)):
        statistics.update(some, its_labels)
    return statistics


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


def test_fecams_rest_of_the_variance_is_spread_evenly():
    features, labels = toy()
    ours = FeCAM(CLASSES, D, directions=2, shrink_diagonal=2.0, shrink_others=1.0, tukey=1.0)
    ours.update(features, labels)
    fresh = torch.nn.functional.normalize(toy(seed=1)[0].double())
    for label in range(CLASSES):
        group = features[labels == label].double()
        values, vectors = torch.linalg.eigh(torch.cov(group.T, correction=0))
        kept = (vectors[:, -2:] * values[-2:]) @ vectors[:, -2:].T + values[:-2].sum() / D * torch.eye(D)
        shrunk = kept + 2 * kept.diagonal().mean() * torch.eye(D)
        shrunk = shrunk + kept[~torch.eye(D, dtype=torch.bool)].mean() * (1 - torch.eye(D))
        deviations = shrunk.diagonal().sqrt()
        rest = fresh - torch.nn.functional.normalize(group.mean(0), dim=0)
        expected = ((rest @ torch.linalg.inv(shrunk / deviations / deviations[:, None])) * rest).sum(1)
        torch.testing.assert_close(-ours.scores(toy(seed=1)[0])[:, label], expected, rtol=1e-2, atol=1e-3)


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
    features, _ = toy(30)
    klda = KernelLDA(CLASSES, D, projection=20_000, gamma=0.05)
    values = klda.transformed(features)
    torch.testing.assert_close(
        values @ values.T, (-0.05 * torch.cdist(features, features) ** 2).exp().double(), rtol=0, atol=0.04
    )


def test_klda_separates_what_lies_around_each_other():
    """Two circles around one centre, which no linear classifier separates."""
    generator = torch.Generator().manual_seed(0)
    angles, labels = 2 * math.pi * torch.rand(400, generator=generator), torch.arange(400) % 2
    features = torch.stack([angles.cos(), angles.sin()], 1) * (1 + 2 * labels[:, None])
    klda = feed(KernelLDA(2, 2, projection=100, gamma=0.5), features[:200], labels[:200])
    assert (klda.scores(features[200:]).argmax(1) == labels[200:]).double().mean() > 0.98


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
    features, labels = toy()
    order = labels.argsort(stable=True)  # classes one after the other
    features, labels, fresh = features[order], labels[order], toy(seed=1)[0]
    ours = form(CLASSES, D, projection=30, seed=3)
    slow = Recursion(30, ridge=2.0)
    for some, its_labels in zip(features.split(7), labels.split(7)):
        ours.update(some, its_labels)
        slow.update(ours.project(some), its_labels)
        ours.ridge = 2.0 / float(ours.gram.diagonal().mean())  # the recursion's is a constant
        known = slow.weights.shape[1]
        torch.testing.assert_close(
            ours.scores(fresh)[:, :known], ours.project(fresh) @ slow.weights, rtol=1e-3, atol=1e-4
        )


def test_the_recursion_by_hand():
    """Values 1 and 2 of class 0 with a ridge of 1: the inverse is 1, 1/2, 1/6, the weight 0, 1/2, 1/2."""
    slow = Recursion(1, ridge=1.0)
    for value, inverse, weight in ((1.0, 1 / 2, 1 / 2), (2.0, 1 / 6, 1 / 2)):
        slow.update(torch.tensor([[value]], dtype=torch.float64), torch.tensor([0]))
        assert (slow.inverse.item(), slow.weights.item()) == pytest.approx((inverse, weight))


def test_sigmoid_features_by_hand():
    ridge = FOAL(1, 4, projection=1)
    ridge._weights = torch.tensor([[1.0], [1], [0], [0]], dtype=torch.float64)
    assert ridge.project(torch.tensor([[1.0, 3, 9, 9]])).item() == pytest.approx(1 / (1 + math.exp(-2)))


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


def test_the_chosen_ridge_follows_the_noise_and_needs_no_byte():
    features, labels = toy(300)
    noisy = torch.randint(CLASSES, (300,), generator=torch.Generator().manual_seed(5))
    chosen = []
    for targets in (labels, noisy):
        ours = feed(RandomProjection(CLASSES, D, projection=60, ridge=0), features, targets)
        assert ours.held_bytes == RandomProjection(CLASSES, D, projection=60).held_bytes
        values, vectors = torch.linalg.eigh(ours.gram.double())
        unit = float(values.mean())
        energies = (vectors.T @ ours.sums.double().T).square().sum(1)
        chosen.append(chosen_ridge(values.clamp_min(0) / unit, energies / unit, 300))
        fixed = feed(RandomProjection(CLASSES, D, projection=60, ridge=chosen[-1]), features, targets)
        torch.testing.assert_close(ours.scores(features), fixed.scores(features), rtol=1e-4, atol=1e-5)
    assert chosen[0] < chosen[1] and set(chosen) <= set(RIDGES)


def test_the_chosen_ridge_against_the_matrix_of_fitted_targets():
    features, labels = toy(60)
    ours = feed(RandomProjection(CLASSES, D, projection=40, ridge=0), features, labels)
    hidden, targets = ours.project(features), torch.eye(CLASSES, dtype=torch.float64)[labels]
    unit, errors = float((hidden.T @ hidden).diagonal().mean()), {}
    for ridge in RIDGES:
        fitted = hidden @ torch.linalg.solve(hidden.T @ hidden + ridge * unit * torch.eye(40), hidden.T)
        if fitted.trace() <= 0.95 * 60:
            errors[ridge] = float((targets - fitted @ targets).square().sum() / (60 - fitted.trace()) ** 2)
    fixed = feed(RandomProjection(CLASSES, D, projection=40, ridge=min(errors, key=errors.get)), features, labels)
    torch.testing.assert_close(ours.scores(features), fixed.scores(features), rtol=1e-4, atol=1e-5)


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
    features, labels = toy()
    ours = LowRankRda(CLASSES, D, directions, whole=True, own=0.6, common=0.5, ridge=0.02)
    ours.update(features, labels)
    groups = [features[labels == label].double() for label in range(CLASSES)]
    covariances = [torch.cov(group.T, correction=0) for group in groups]
    common = sum(len(group) * covariance for group, covariance in zip(groups, covariances)) / len(labels)
    fresh, expected = toy(seed=1)[0], []
    for group, covariance in zip(groups, covariances):
        values, vectors = torch.linalg.eigh(covariance)
        own = (vectors[:, -directions:] * values[-directions:]) @ vectors[:, -directions:].T
        blended = 0.6 * own + 0.5 * common + 0.02 * common.diagonal().mean() * torch.eye(D)
        expected.append(MultivariateNormal(group.mean(0), blended).log_prob(fresh.double()))
    scores, expected = ours.scores(fresh), torch.stack(expected, 1)
    torch.testing.assert_close(scores - scores[:, :1], expected - expected[:, :1], rtol=1e-2, atol=2e-2)


def test_what_srdas_directions_leave_out_has_the_shape_of_the_common_covariance():
    features, labels = toy()
    ours = StreamingRda(CLASSES, D, directions=2, own=0.5, shrinkage=1e-9)
    ours.update(features, labels)
    seen = torch.ones(CLASSES, dtype=torch.bool)
    common, rows, outside = ours.covariances(seen)
    fresh, expected = toy(seed=1)[0], []
    for label, (its, rest) in enumerate(zip(rows, outside)):
        share = float(rest / (rest + its.square().sum()))
        assert 0.05 < share < 0.6
        mean = features[labels == label].double().mean(0)
        blended = 0.5 * (its.T @ its + share * common) + 0.5 * common
        log_share = (labels == label).double().mean().log()
        expected.append(MultivariateNormal(mean, blended).log_prob(fresh.double()) + log_share)
    scores, expected = ours.scores(fresh), torch.stack(expected, 1)
    torch.testing.assert_close(scores - scores[:, :1], expected - expected[:, :1], rtol=1e-4, atol=1e-4)


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


def test_bytes_by_hand():
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
