"""Distances of images against the formulas over whole matrices, and images of nothing, drawn or of an empty scene."""

import copy
import pickle

import numpy as np
import pytest
import torch
from closed_form_cases import discriminant
from small_lessons import SIZE, images, same, taught
from torch.nn import functional

from crumb_avalanche.learner.confidence import Confidence
from crumb_avalanche.learner.evidence import evidence, shares_of
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.nothing import (
    LEAST_APART,
    MOST_SHOWN,
    THRESHOLDS,
    drawn_images,
    usual_threshold,
)
from crumb_avalanche.learner.predictor import NothingTaughtError
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.ranpac import FOAL, RandomProjection
from crumb_avalanche.methods.slda import StreamingLDA
from crumb_avalanche.methods.typicality import (
    DISTANCE,
    DRAWN,
    OUTSIDE,
    RISE,
    STRENGTH,
    Typicality,
)

D, CLASSES = 12, 5
BUILD = {
    "rda": lambda: discriminant(CLASSES, D, directions=3),
    "rda, many": lambda: discriminant(CLASSES, D, directions=6),
    "rda, of all features": lambda: discriminant(CLASSES, D, directions=3, span=False),
    "rda, whole": lambda: discriminant(CLASSES, D, directions=4, whole=True),
    "slda": lambda: StreamingLDA(CLASSES, D, shrinkage=0.05),
    "ncm": lambda: ClassMeans(CLASSES, D),
    "ranpac": lambda: RandomProjection(CLASSES, D, projection=30, ridge=0.1),
}


def data(count=200, seed=0, classes=(0, 1, 3)):
    """Features of three of five classes, and images far from all of them."""
    generator = torch.Generator().manual_seed(seed)
    centres = 4 * torch.randn(CLASSES, D, generator=torch.Generator().manual_seed(9))
    labels = torch.tensor(classes)[
        torch.randint(len(classes), (count,), generator=generator)
    ]
    mixing = torch.randn(D, D, generator=torch.Generator().manual_seed(8))
    return centres[labels] + torch.randn(
        count, D, generator=generator
    ) @ mixing / 3 + 2, labels


def trained(name):
    statistics = BUILD[name]()
    features, labels = data()
    for rows in torch.arange(len(labels)).split(13):
        statistics.update(features[rows], labels[rows])
    return statistics


def covariance(statistics):
    """The common covariance that a closed form of Gaussians uses, from its statistics."""
    if isinstance(statistics, StreamingLDA):
        return 0.95 * statistics.covariance.double() + 0.05 * torch.eye(
            D, dtype=torch.float64
        )
    if statistics.scatter is not None:
        common = statistics.scatter.whole()
    else:
        rows = torch.cat(
            [statistics.directions.of_class(label) for label in range(CLASSES)]
        )
        outside = statistics.directions.outside.double().sum() / D
        common = rows.mT @ rows + outside * torch.eye(D, dtype=torch.float64)
    common = common / 200
    return common + min(1.0, D / 200) * common.diagonal().mean() * torch.eye(
        D, dtype=torch.float64
    )


@pytest.mark.parametrize(
    "name", ["rda", "rda, many", "rda, of all features", "rda, whole", "slda"]
)
def test_distances_of_gaussians(name):
    statistics, (fresh, _) = trained(name), data(seed=1)
    means, root = (
        statistics.means[[0, 1, 3]].double(),
        torch.linalg.cholesky(torch.linalg.inv(covariance(statistics))),
    )
    rows, places = (
        (fresh.double() - means.mean(0)) @ root,
        (means - means.mean(0)) @ root,
    )
    relative, cosine, plain = evidence(statistics, fresh).typicality.T
    # In units of the total covariance: 1 plus the covariance of the means, by the part
    # within the span alone.
    total = torch.linalg.inv(torch.eye(D, dtype=torch.float64) + places.mT @ places / 3)
    difference = ((rows @ total) * rows).sum(1) - torch.cdist(
        rows, places
    ).square().amin(1)
    expected = (
        DISTANCE * difference / places.square().sum(1).mean().sqrt() + RISE * 2 / 3
    )
    assert torch.allclose(relative, expected, rtol=1e-4, atol=1e-4)
    within = rows @ torch.linalg.pinv(places) @ places
    cosines = [
        (functional.normalize(some) @ functional.normalize(places).mT).amax(1)
        for some in (within, rows)
    ]
    sides, lines = places - places.roll(1, 0), places.roll(2, 0) - places.roll(1, 0)
    heights = sides.square().sum(1) - (sides * lines).sum(1) ** 2 / lines.square().sum(
        1
    )  # of a triangle, squared
    outside = 1 / (1 + (OUTSIDE * D / heights.mean()) ** 2)
    assert torch.allclose(
        cosine, (1 - outside) * (2 * cosines[0] - 1) + outside * cosines[1], rtol=1e-4
    )
    assert torch.allclose(plain, cosines[1], rtol=1e-4)
    at_mean = evidence(statistics, means[1:2]).typicality[:, 1]
    assert torch.allclose(at_mean, torch.ones(1, dtype=torch.float64), atol=1e-4)


@pytest.mark.parametrize("name", ["rda", "slda"])
def test_cosines_are_seen_from_images_of_nothing_and_without_their_directions(name):
    statistics, (fresh, _), drawn = (
        trained(name),
        data(seed=1),
        data(DRAWN, seed=2, classes=(2, 4))[0],
    )
    shown = torch.cat([drawn, data(5, seed=3, classes=(2,))[0]])

    def expected(nothing):
        rows, middle = (nothing - nothing.mean(0)).double(), nothing.mean(0).double()
        within = covariance(statistics)
        strength = STRENGTH * len(rows) / (rows @ torch.linalg.inv(within) * rows).sum()
        inverse = torch.linalg.inv(within + strength * rows.mT @ rows)
        images, means = (
            fresh.double() - middle,
            statistics.means[[0, 1, 3]].double() - middle,
        )
        lengths = [((some @ inverse) * some).sum(1).sqrt() for some in (images, means)]
        return images @ inverse @ means.mT / lengths[0][:, None] / lengths[1]

    found, plain = evidence(statistics, fresh, shown), evidence(statistics, fresh)
    assert torch.allclose(found.typicality[:, 2], expected(drawn).amax(1), rtol=1e-4)
    assert torch.allclose(found.apart, expected(shown).amax(1), rtol=1e-4)
    assert (
        torch.equal(found.typicality[:, 0], plain.typicality[:, 0])
        and plain.apart is None
    )
    cosine, apart = (found.typicality - plain.typicality)[:, 1:].T
    assert (
        torch.allclose(cosine / apart, cosine[0] / apart[0])
        and 0 < cosine[0] / apart[0] < 1
    )
    assert evidence(statistics, fresh, drawn).apart is None


def test_distances_of_class_means_are_of_unit_vectors():
    statistics, (fresh, _) = trained("ncm"), data(seed=1)
    means = functional.normalize(statistics.means[[0, 1, 3]].double(), dim=1)
    values = functional.normalize(fresh.double(), dim=1)
    relative, cosine, _ = evidence(statistics, 7 * fresh).typicality.T
    centre = means.mean(0)
    plane = torch.linalg.qr((means - centre).mT[:, :2]).Q
    assert torch.allclose(
        -relative,
        torch.cdist((values - centre) @ plane, (means - centre) @ plane)
        .square()
        .amin(1),
    )
    expected = (
        functional.normalize(values - centre) @ functional.normalize(means - centre).mT
    )
    assert torch.allclose(cosine, expected.amax(1))


def test_leverage_of_random_projection():
    statistics, (fresh, _) = trained("ranpac"), data(seed=1)
    gram = (
        statistics.gram.double()
        + 0.1 * statistics.gram.double().diagonal().mean() * torch.eye(30)
    )
    hidden = statistics.project(fresh)
    evidence_found = evidence(statistics, fresh)
    leverage = ((hidden @ torch.linalg.inv(gram)) * hidden).sum(1)
    largest = statistics.scores(fresh)[:, [0, 1, 3]].amax(1)
    assert torch.allclose(evidence_found.typicality[:, 0], largest)
    assert torch.allclose(
        evidence_found.typicality[:, 1], largest / leverage.sqrt(), rtol=1e-4
    )


@pytest.mark.parametrize("name", BUILD)
def test_evidence_covers_the_classes_with_images(name):
    statistics, (fresh, _) = trained(name), data(seed=1)
    found = evidence(statistics, fresh)
    assert found.labels.tolist() == [0, 1, 3] and found.counts.sum() == 200
    assert torch.allclose(
        found.scores * statistics.temperature, statistics.scores(fresh)[:, [0, 1, 3]]
    )
    assert found.typicality.shape == (200, 3) and found.typicality.isfinite().all()


@pytest.mark.parametrize("name", BUILD)
def test_evidence_follows_updates(name):
    statistics, (fresh, labels) = trained(name), data(seed=1)
    before = evidence(statistics, fresh).typicality
    statistics.update(fresh[:50] + 9, labels[:50])
    after, anew = (
        evidence(statistics, fresh).typicality,
        type(statistics).from_state(statistics.state_dict()),
    )
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


class Nearest(ClassMeans):
    """Class means to which an image is typical by its distance from the first one."""

    def _typicality(self, features, space):
        distance = (features - self.means[0].double()).norm(dim=1)
        return Typicality.of_three(
            self.solution()(features), -distance, -distance, -distance
        )


def test_a_method_says_what_typical_is():
    statistics = Nearest(CLASSES, D)
    features, labels = data()
    statistics.update(features, labels)
    distance = (features - statistics.means[0]).double().norm(dim=1)
    found = evidence(statistics, features).typicality
    assert torch.allclose(found[:, 0], -distance)


@pytest.mark.parametrize("name", BUILD)
def test_copies_are_typical_alike(name):
    statistics, (fresh, _) = trained(name), data(seed=1)
    before = evidence(statistics, fresh).typicality
    for copied in (
        copy.deepcopy(statistics),
        pickle.loads(pickle.dumps(statistics)),
    ):
        assert torch.equal(evidence(copied, fresh).typicality, before)


def test_explain_takes_a_single_image(make):
    learner = taught(make(), 2)
    assert learner.explain(images(0, 1)).shape == (SIZE, SIZE)
    with pytest.raises(ValueError, match="single image"):
        learner.explain(images(0, 3))
    with pytest.raises(NothingTaughtError):
        make().explain(images(0, 1))


def test_the_shares_of_a_location_are_its_part_of_the_margin():
    layer = torch.rand(1, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    weights, flat = (
        torch.rand(3, 2, dtype=torch.float64),
        torch.rand(1, 2, dtype=torch.float64, requires_grad=True),
    )
    scores = (layer.mean((2, 3)) @ weights + flat)[0]
    shares, of_flat = shares_of(scores, [layer, flat])
    direction = weights[:, scores.argmax()] - weights[:, scores.argmin()]
    expected = (
        (layer - layer.mean((2, 3), keepdim=True)) * direction[:, None, None]
    ).sum(1) / 20
    assert torch.allclose(shares[0], expected) and not of_flat.any()
    (alone,) = shares_of(
        (layer.mean((2, 3)) @ weights)[0, :1], [layer]
    )  # the score, with one class
    assert alone.shape == (1, 1, 4, 5) and float(alone.sum()) == pytest.approx(
        0, abs=1e-9
    )


def test_drawn_images_are_always_the_same_and_different_from_each_other():
    drawn = drawn_images(40)
    assert drawn.shape == (DRAWN, 3, 40, 40) and drawn.dtype == torch.uint8
    assert torch.equal(drawn, drawn_images(40))
    assert len({image.numpy().tobytes() for image in drawn}) == DRAWN
    assert (drawn.float().std((1, 2, 3)) > 10).all()


def test_other_backbones_take_the_mean_of_the_usual_thresholds():
    assert usual_threshold("efficientnet_lite0") == THRESHOLDS["efficientnet_lite0"]
    assert usual_threshold("timm:other") == pytest.approx(
        np.mean(list(THRESHOLDS.values()))
    )


def test_a_scene_that_was_shown_is_apart_from_what_was_shown_in_it():
    draws = torch.Generator().manual_seed(0)
    place, *objects = 4 * torch.randn(4, 400, generator=draws)
    statistics = StreamingLDA(3, 400, shrinkage=0.05)

    def seen(thing, count=20):
        return place + thing + torch.randn(count, 400, generator=draws)

    for label, thing in enumerate(objects):
        statistics.update(seen(thing), torch.full((20,), label))
    nothing = torch.cat([torch.randn(DRAWN, 400, generator=draws), seen(0, 6)])
    scene, known = (
        evidence(statistics, some, nothing) for some in (seen(0), seen(objects[1]))
    )
    assert scene.typicality[:, 2].mean() > 0.3 > LEAST_APART > scene.apart.mean()
    assert known.apart.min() > 0.3
    unknown = Confidence().known(
        scene._replace(apart=torch.full((20,), LEAST_APART - 0.01))
    )
    assert not unknown.any() and Confidence().known(known).all()


@pytest.mark.parametrize("method", ["rda", "slda"])
def test_a_lesson_of_nothing_is_kept_and_taken_back_and_has_no_name(
    make, method, tmp_path
):
    learner = taught(make(method), 3)
    before = learner.predict(images(1, 4, seed=3))
    lesson = learner.teach_nothing(images(20, 4))
    assert (lesson.images, lesson.nothing, lesson.clips, lesson.answered) == (
        {},
        4,
        1,
        0,
    )
    assert learner.nothing == 4 and [info.name for info in learner.classes] == [
        "c0",
        "c1",
        "c2",
    ]
    answer = learner.predict(images(1, 4, seed=3))
    assert (answer.label, answer.confidence) == (before.label, before.confidence)
    learner.save(tmp_path / "a.safetensors")
    again = Learner.load(tmp_path / "a.safetensors")
    assert (
        same(again, learner) and again.lessons == learner.lessons and again.nothing == 4
    )
    assert again.predict(images(1, 4, seed=3)) == answer
    assert again.undo().nothing == 4 and again.nothing == 0
    assert again.predict(images(1, 4, seed=3)) == before


def test_merging_keeps_what_was_shown_as_nothing(make):
    one, other = taught(make("rda"), 2), make("rda")
    other.teach_nothing(images(20, 5))  # it may come first
    other.teach(images(5), "c5")
    one.merge(other)
    assert one.nothing == 5 and len(one._classifier.nothing) == DRAWN + 5
    with pytest.raises(ValueError, match="of the same lessons"):
        one.merge(other)


def test_the_latest_images_of_nothing_are_kept(make):
    learner = taught(make("rda"), 1)
    for number in range(MOST_SHOWN // 8 + 2):
        learner.teach_nothing(images(number, 20))
    assert len(learner._classifier.nothing) == DRAWN + MOST_SHOWN
    assert learner.nothing == 20 * (MOST_SHOWN // 8 + 2)


def test_other_methods_refuse_and_stay_as_they_are(make):
    learner = taught(make("ncm"), 2)
    with pytest.raises(ValueError, match="rda and slda can"):
        learner.teach_nothing(images(1))
    assert learner.nothing == 0 and len(learner.lessons) == 2
