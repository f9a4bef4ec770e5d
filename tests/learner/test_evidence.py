"""Distances of images against the formulas over whole matrices, for each closed form."""

import pytest
import torch
from closed_form_cases import discriminant
from patch_images import SIZE, images
from small_lessons import taught
from torch.nn import functional

from crumb_avalanche.learner.evidence import STRENGTH, evidence, shares_of
from crumb_avalanche.learner.nothing import DRAWN
from crumb_avalanche.learner.predictor import NothingTaughtError
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.ranpac import FOAL, RandomProjection
from crumb_avalanche.methods.slda import StreamingLDA

D, CLASSES = 12, 5
BUILD = {
    "rda": lambda: discriminant(CLASSES, D, directions=3),
    "rda, many": lambda: discriminant(CLASSES, D, directions=6),
    "rda, whole": lambda: discriminant(CLASSES, D, directions=4, whole=True),
    "slda": lambda: StreamingLDA(CLASSES, D, shrinkage=0.05),
    "ncm": lambda: ClassMeans(CLASSES, D),
    "ranpac": lambda: RandomProjection(CLASSES, D, projection=30, ridge=0.1),
}


def data(count=200, seed=0, classes=(0, 1, 3)):
    """Features of three of five classes, and images far from all of them."""
    generator = torch.Generator().manual_seed(seed)
    centres = 4 * torch.randn(CLASSES, D, generator=torch.Generator().manual_seed(9))
    labels = torch.tensor(classes)[torch.randint(len(classes), (count,), generator=generator)]
    mixing = torch.randn(D, D, generator=torch.Generator().manual_seed(8))
    return centres[labels] + torch.randn(count, D, generator=generator) @ mixing / 3 + 2, labels


def trained(name):
    statistics = BUILD[name]()
    features, labels = data()
    for part in torch.arange(len(labels)).split(13):
        statistics.update(features[part], labels[part])
    return statistics


def covariance(statistics):
    """The common covariance that a closed form of Gaussians uses, from its statistics."""
    if isinstance(statistics, StreamingLDA):
        return 0.95 * statistics.covariance.double() + 0.05 * torch.eye(D, dtype=torch.float64)
    if statistics.scatter is not None:
        common = statistics.scatter.whole()
    else:
        rows = torch.cat([statistics.directions.of_class(label) for label in range(CLASSES)])
        outside = statistics.directions.outside.double().sum() / D
        common = rows.mT @ rows + outside * torch.eye(D, dtype=torch.float64)
    common = common / 200
    return common + min(1.0, D / 200) * common.diagonal().mean() * torch.eye(D, dtype=torch.float64)


@pytest.mark.parametrize("name", ["rda", "rda, many", "rda, whole", "slda"])
def test_distances_of_gaussians(name):
    statistics, (fresh, _) = trained(name), data(seed=1)
    inverse = torch.linalg.inv(covariance(statistics))
    means, values = statistics.means[[0, 1, 3]].double(), fresh.double()
    centre = means.mean(0)

    def squared(rows):
        return ((rows @ inverse) * rows).sum(-1)

    relative, cosine = parts(statistics, fresh)
    whole = squared(values[:, None] - means).amin(1)
    # In units of the total covariance: S plus the covariance of the means, by the part within the span alone.
    total = torch.linalg.inv(torch.linalg.inv(inverse) + (means - centre).mT @ (means - centre) / 3)
    rows = values - centre
    assert torch.allclose(relative, ((rows @ total) * rows).sum(1) - whole, rtol=1e-4, atol=1e-4)
    products = rows @ inverse @ (means - centre).mT
    lengths = squared(rows).sqrt()[:, None] * squared(means - centre).sqrt()
    assert torch.allclose(cosine, (products / lengths).amax(1), rtol=1e-4)
    assert torch.allclose(parts(statistics, means[1:2])[1], torch.ones(1, dtype=torch.float64), atol=1e-4)


def parts(statistics, features, nothing=None):
    """The relative distance and the cosine."""
    return evidence(statistics, features, nothing).typicality[:, :2].T


@pytest.mark.parametrize("name", ["rda", "slda"])
def test_cosines_are_seen_from_images_of_nothing_and_without_their_directions(name):
    statistics, (fresh, _), drawn = trained(name), data(seed=1), data(DRAWN, seed=2, classes=(2, 4))[0]
    shown = torch.cat([drawn, data(5, seed=3, classes=(2,))[0]])

    def expected(nothing):
        rows, middle = (nothing - nothing.mean(0)).double(), nothing.mean(0).double()
        within = covariance(statistics)
        strength = STRENGTH * len(rows) / (rows @ torch.linalg.inv(within) * rows).sum()
        inverse = torch.linalg.inv(within + strength * rows.mT @ rows)
        images, means = fresh.double() - middle, statistics.means[[0, 1, 3]].double() - middle
        lengths = [((some @ inverse) * some).sum(1).sqrt() for some in (images, means)]
        return images @ inverse @ means.mT / lengths[0][:, None] / lengths[1]

    found, plain = evidence(statistics, fresh, shown), evidence(statistics, fresh)
    assert torch.allclose(found.typicality[:, 2], expected(drawn).amax(1), rtol=1e-4)
    assert torch.allclose(found.apart, expected(shown).amax(1), rtol=1e-4)
    assert torch.equal(found.typicality[:, :2], plain.typicality[:, :2]) and plain.apart is None
    assert torch.equal(plain.typicality[:, 1], plain.typicality[:, 2])
    assert evidence(statistics, fresh, drawn).apart is None


def test_distances_of_class_means_are_of_unit_vectors():
    statistics, (fresh, _) = trained("ncm"), data(seed=1)
    means = functional.normalize(statistics.means[[0, 1, 3]].double(), dim=1)
    values = functional.normalize(fresh.double(), dim=1)
    relative, cosine = parts(statistics, 7 * fresh)
    centre = means.mean(0)
    plane = torch.linalg.qr((means - centre).mT[:, :2]).Q
    assert torch.allclose(-relative, torch.cdist((values - centre) @ plane, (means - centre) @ plane).square().amin(1))
    expected = functional.normalize(values - centre) @ functional.normalize(means - centre).mT
    assert torch.allclose(cosine, expected.amax(1))


def test_leverage_of_random_projection():
    statistics, (fresh, _) = trained("ranpac"), data(seed=1)
    gram = statistics.gram.double() + 0.1 * statistics.gram.double().diagonal().mean() * torch.eye(30)
    hidden = statistics.project(fresh)
    found = evidence(statistics, fresh)
    leverage = ((hidden @ torch.linalg.inv(gram)) * hidden).sum(1)
    largest = statistics.scores(fresh)[:, [0, 1, 3]].amax(1)
    assert torch.allclose(found.typicality[:, 0], largest)
    assert torch.allclose(found.typicality[:, 1], largest / leverage.sqrt(), rtol=1e-4)


@pytest.mark.parametrize("name", BUILD)
def test_evidence_covers_the_classes_with_images(name):
    statistics, (fresh, _) = trained(name), data(seed=1)
    found = evidence(statistics, fresh)
    assert found.labels.tolist() == [0, 1, 3] and found.counts.sum() == 200
    assert torch.allclose(found.scores * statistics.temperature, statistics.scores(fresh)[:, [0, 1, 3]])
    assert found.typicality.shape == (200, 3) and found.typicality.isfinite().all()


@pytest.mark.parametrize("name", BUILD)
def test_evidence_follows_updates(name):
    statistics, (fresh, labels) = trained(name), data(seed=1)
    before = evidence(statistics, fresh).typicality
    statistics.update(fresh[:50] + 9, labels[:50])
    after, anew = evidence(statistics, fresh).typicality, type(statistics).from_state(statistics.state_dict())
    assert not torch.allclose(before, after)
    assert torch.allclose(after, evidence(anew, fresh).typicality)


@pytest.mark.parametrize("name", BUILD)
def test_one_image_and_equal_images_give_finite_evidence(name):
    statistics = BUILD[name]()
    features, _ = data()
    with pytest.raises(ValueError, match="no class yet"):
        evidence(statistics, features)
    statistics.update(features[:1], torch.tensor([3]))
    found = evidence(statistics, features)
    assert found.scores.shape == (200, 1) and found.typicality.isfinite().all()
    statistics.update(features[:1].repeat(4, 1), torch.tensor([2, 2, 3, 3]))
    assert all(values.isfinite().all() for values in evidence(statistics, features)[:4])


def test_another_closed_form_is_as_typical_as_its_largest_score():
    statistics = FOAL(CLASSES, D, projection=10)
    features, labels = data()
    statistics.update(features, labels)
    found = evidence(statistics, features)
    assert torch.equal(found.typicality, found.scores.amax(1)[:, None].expand(-1, 3))


def test_explain_takes_a_single_image(make):
    learner = taught(make(), 2)
    assert learner.explain(images(0, 1)).shape == (SIZE, SIZE)
    with pytest.raises(ValueError, match="single image"):
        learner.explain(images(0, 3))
    with pytest.raises(NothingTaughtError):
        make().explain(images(0, 1))


def test_the_shares_of_a_location_are_its_part_of_the_margin():
    layer = torch.rand(1, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    weights, flat = torch.rand(3, 2, dtype=torch.float64), torch.rand(1, 2, dtype=torch.float64, requires_grad=True)
    scores = (layer.mean((2, 3)) @ weights + flat)[0]
    shares, of_flat = shares_of(scores, [layer, flat])
    direction = weights[:, scores.argmax()] - weights[:, scores.argmin()]
    expected = ((layer - layer.mean((2, 3), keepdim=True)) * direction[:, None, None]).sum(1) / 20
    assert torch.allclose(shares[0], expected) and not of_flat.any()
    (alone,) = shares_of((layer.mean((2, 3)) @ weights)[0, :1], [layer])  # the score, with one class
    assert alone.shape == (1, 1, 4, 5) and float(alone.sum()) == pytest.approx(0, abs=1e-9)
