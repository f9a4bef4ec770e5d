"""How typical images are, by formulas over whole matrices, and images of nothing."""

import copy
import pickle

import pytest
import torch
from closed_form_cases import discriminant
from small_lessons import SIZE, images, same, taught
from torch.nn import functional

from crumb_avalanche.learner.confidence import Confidence
from crumb_avalanche.learner.evidence import evidence
from crumb_avalanche.learner.explanation import attributed_to_layers
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.nothing import (
    LEAST_APART,
    MOST_SHOWN,
    drawn_images,
    usual_threshold,
)
from crumb_avalanche.learner.predictor import NothingTaughtError
from crumb_avalanche.learner.record_fit import STRICT
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.ranpac import FOAL, RandomProjection
from crumb_avalanche.methods.slda import StreamingLDA
from crumb_avalanche.methods.typicality import (
    DISTANCE,
    DRAWN,
    OUTSIDE,
    RISE,
    STRENGTH,
    MeansSpan,
    Typicality,
    Whitening,
)

D = 12
CLASSES = 5
TAUGHT = [0, 1, 3]
FRESH = 200  # images that are asked about
BUILD = {
    "rda": lambda: discriminant(CLASSES, D, directions=3),
    "rda, many": lambda: discriminant(CLASSES, D, directions=6),
    "rda, of all features": lambda: discriminant(CLASSES, D, directions=3, span=False),
    "rda, whole": lambda: discriminant(CLASSES, D, directions=4, whole=True),
    "slda": lambda: StreamingLDA(CLASSES, D, shrinkage=0.05),
    "ncm": lambda: ClassMeans(CLASSES, D),
    "ranpac": lambda: RandomProjection(CLASSES, D, projection=30, ridge=0.1),
}
EVERY_FORM = pytest.mark.parametrize("name", BUILD)
GAUSSIANS = pytest.mark.parametrize("name", [name for name in BUILD if "da" in name])
IDENTITY = torch.eye(D, dtype=torch.float64)


def draw(count=FRESH, seed=0, classes=TAUGHT):
    """Features of some of five classes, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    centres = 4 * torch.randn(CLASSES, D, generator=torch.Generator().manual_seed(9))
    drawn = torch.randint(len(classes), (count,), generator=generator)
    labels = torch.tensor(classes)[drawn]
    mixing = torch.randn(D, D, generator=torch.Generator().manual_seed(8))
    noise = torch.randn(count, D, generator=generator) @ mixing
    return centres[labels] + noise / 3 + 2, labels


def features_of(*arguments, **keywords):
    """The features alone of `draw`."""
    return draw(*arguments, **keywords)[0]


def trained(name):
    """A closed form that learned 200 images, in batches of 13."""
    statistics = BUILD[name]()
    features, labels = draw()
    for rows in torch.arange(len(labels)).split(13):
        statistics.update(features[rows], labels[rows])
    return statistics


def typicality_of(statistics, features):
    """Three columns of how typical images are; see `Evidence.typicality`."""
    return evidence(statistics, features).typicality.T


# Gaussians


def common_scatter(statistics):
    """The sum over images of squared deviations, as far as a form has it."""
    if statistics.scatter is not None:
        return statistics.scatter.whole()
    directions = statistics.directions
    rows = torch.cat([directions.of_class(label) for label in range(CLASSES)])
    return rows.mT @ rows + directions.outside.double().sum() / D * IDENTITY


def covariance_of(statistics):
    """The common covariance that a form uses, from its statistics."""
    if isinstance(statistics, StreamingLDA):
        return 0.95 * statistics.covariance.double() + 0.05 * IDENTITY
    covariance = common_scatter(statistics) / FRESH
    shrinkage = min(1.0, D / FRESH) * covariance.diagonal().mean()
    return covariance + shrinkage * IDENTITY


def means_of(statistics):
    return statistics.means[TAUGHT].double()


class Whitened:
    """Images and class means where the common covariance is the identity.

    The origin is the mean of the class means.

    Attributes:
        rows: `(n, D)` of images.
        means: `(classes, D)`.
    """

    def __init__(self, statistics, features):
        means = means_of(statistics)
        root = torch.linalg.cholesky(torch.linalg.inv(covariance_of(statistics)))
        self.rows = (features.double() - means.mean(0)) @ root
        self.means = (means - means.mean(0)) @ root

    def cosines(self, rows):
        """Cosine of each row with the mean of nearest direction."""
        directions = functional.normalize(self.means)
        return (functional.normalize(rows) @ directions.mT).amax(1)


def squared_heights(corners):
    """Squared heights of a triangle of `(3, D)` corners."""
    sides = corners - corners.roll(1, 0)
    bases = corners.roll(2, 0) - corners.roll(1, 0)
    along = (sides * bases).sum(1) ** 2 / bases.square().sum(1)
    return sides.square().sum(1) - along


@pytest.fixture
def statistics(name):
    return trained(name)


@pytest.fixture
def whitened(statistics):
    return Whitened(statistics, features_of(seed=1))


@pytest.fixture
def typicality(statistics):
    return typicality_of(statistics, features_of(seed=1))


@GAUSSIANS
def test_the_distance_relative_to_any_class(whitened, typicality):
    rows, means = whitened.rows, whitened.means
    # The total covariance is 1 plus the covariance of the means, within their span.
    total = torch.linalg.inv(IDENTITY + means.mT @ means / 3)
    to_any = ((rows @ total) * rows).sum(1)
    to_nearest = torch.cdist(rows, means).square().amin(1)
    scale = DISTANCE / means.square().sum(1).mean().sqrt()
    expected = scale * (to_any - to_nearest) + RISE * 2 / 3
    torch.testing.assert_close(typicality[0], expected, rtol=1e-4, atol=1e-4)


@GAUSSIANS
def test_the_cosine_within_the_span_and_outside(whitened, typicality):
    rows, means = whitened.rows, whitened.means
    within = whitened.cosines(rows @ torch.linalg.pinv(means) @ means)
    height = squared_heights(means).mean()
    outside = 1 / (1 + (OUTSIDE * D / height) ** 2)
    expected = (1 - outside) * (2 * within - 1) + outside * whitened.cosines(rows)
    torch.testing.assert_close(typicality[1], expected, rtol=1e-4, atol=1e-8)


@GAUSSIANS
def test_the_plain_cosine(whitened, typicality):
    expected = whitened.cosines(whitened.rows)
    torch.testing.assert_close(typicality[2], expected, rtol=1e-4, atol=1e-8)


@GAUSSIANS
def test_the_cosine_at_a_mean_is_one(statistics):
    _, cosine, _ = typicality_of(statistics, means_of(statistics)[1:2])
    assert cosine.tolist() == pytest.approx([1], abs=1e-4)


# Other closed forms


def test_distances_of_class_means():
    """They are those of unit vectors, within the plane of the means."""
    statistics = trained("ncm")
    fresh = features_of(seed=1)
    means = functional.normalize(means_of(statistics))
    rows = functional.normalize(fresh.double()) - means.mean(0)
    corners = means - means.mean(0)
    plane = torch.linalg.qr(corners.mT[:, :2]).Q
    distances = torch.cdist(rows @ plane, corners @ plane).square()
    relative, _, _ = typicality_of(statistics, 7 * fresh)
    torch.testing.assert_close(-relative, distances.amin(1))


def test_cosines_of_class_means():
    statistics = trained("ncm")
    fresh = features_of(seed=1)
    means = functional.normalize(means_of(statistics))
    rows = functional.normalize(fresh.double()) - means.mean(0)
    directions = functional.normalize(means - means.mean(0))
    cosines = functional.normalize(rows) @ directions.mT
    _, cosine, _ = typicality_of(statistics, 7 * fresh)
    torch.testing.assert_close(cosine, cosines.amax(1))


def test_leverage_of_a_random_projection():
    statistics = trained("ranpac")
    fresh = features_of(seed=1)
    gram = statistics.gram.double()
    gram += 0.1 * gram.diagonal().mean() * torch.eye(30)
    hidden = statistics.project(fresh)
    leverage = ((hidden @ torch.linalg.inv(gram)) * hidden).sum(1)
    largest = statistics.scores(fresh)[:, TAUGHT].amax(1)
    score, by_leverage, _ = typicality_of(statistics, fresh)
    torch.testing.assert_close(score, largest)
    torch.testing.assert_close(
        by_leverage, largest / leverage.sqrt(), rtol=1e-4, atol=0
    )


def learned(statistics):
    features, labels = draw()
    statistics.update(features, labels)
    return statistics


def test_another_form_has_its_largest_score():
    statistics = learned(FOAL(CLASSES, D, projection=10))
    measured = evidence(statistics, features_of())
    largest = measured.scores.amax(1)
    assert torch.equal(measured.typicality, largest[:, None].expand(-1, 3))


def test_a_chosen_ridge_has_its_largest_score():
    """Each solution chooses its own ridge, so there is no leverage."""
    statistics = learned(RandomProjection(CLASSES, D, projection=300, ridge=0.0))
    measured = evidence(statistics, features_of())
    largest = measured.scores.amax(1)
    assert torch.equal(measured.typicality, largest[:, None].expand(-1, 3))


class FirstMean(ClassMeans):
    """Class means to which an image is typical by its distance from the first one."""

    def _typicality(self, features, space, left_out):
        closeness = -(features - self.means[0].double()).norm(dim=1)
        scores = self.classifier()(features)
        return Typicality(scores, closeness[:, None].expand(-1, 3))


def test_a_method_says_what_typical_is():
    statistics = learned(FirstMean(CLASSES, D))
    features = features_of()
    distance = (features - statistics.means[0]).double().norm(dim=1)
    relative, _, _ = typicality_of(statistics, features)
    torch.testing.assert_close(relative, -distance)


# Typicality without a class

REMAINING = [0, 3]


@GAUSSIANS
def test_a_class_left_out_of_gaussians(statistics):
    """The values are those of the other class means in the same whitened space."""
    fresh = features_of(seed=1)
    nothing = features_of(DRAWN + 3, seed=2, classes=(2, 4))
    measured = evidence(statistics, fresh, nothing, left_out=1)
    values, vectors = torch.linalg.eigh(covariance_of(statistics))
    means = statistics.means[REMAINING].double()
    whitening = Whitening(vectors, values.sqrt())
    span = MeansSpan.of_whitened(means, whitening).against_background(nothing)
    rows = fresh.double() - span.centre
    expected = span.typicality(measured.scores, span.whiten(rows))
    torch.testing.assert_close(measured.left_out, expected.values)


def test_a_class_left_out_of_class_means():
    statistics = trained("ncm")
    fresh = features_of(seed=1)
    measured = evidence(statistics, fresh, left_out=1)
    means = functional.normalize(statistics.means[REMAINING].double())
    span = MeansSpan.of_unit_vectors(means)
    rows = functional.normalize(fresh.double()) - span.centre
    expected = span.typicality(measured.scores, rows)
    torch.testing.assert_close(measured.left_out, expected.values)


def test_a_class_left_out_of_other_forms():
    statistics = learned(FOAL(CLASSES, D, projection=10))
    measured = evidence(statistics, features_of(), left_out=1)
    largest = measured.scores[:, [0, 2]].amax(1)
    assert torch.equal(measured.left_out, largest[:, None].expand(-1, 3))


@EVERY_FORM
@pytest.mark.parametrize("label", [2, None])
def test_a_class_that_is_not_there_is_not_left_out(statistics, label):
    assert evidence(statistics, features_of(), left_out=label).left_out is None


# Evidence of any closed form


@EVERY_FORM
def test_evidence_covers_the_taught_classes(statistics):
    measured = evidence(statistics, features_of(seed=1))
    assert measured.class_of_column.tolist() == TAUGHT
    assert measured.image_counts.sum() == FRESH
    assert measured.typicality.shape == (FRESH, 3)
    assert measured.typicality.isfinite().all()


@EVERY_FORM
def test_scores_are_divided_by_the_temperature(statistics):
    fresh = features_of(seed=1)
    scores = evidence(statistics, fresh).scores * statistics.temperature
    torch.testing.assert_close(scores, statistics.scores(fresh)[:, TAUGHT])


@EVERY_FORM
def test_evidence_follows_updates(statistics):
    fresh, labels = draw(seed=1)
    before = evidence(statistics, fresh).typicality
    statistics.update(fresh[:50] + 9, labels[:50])
    after = evidence(statistics, fresh).typicality
    rebuilt = type(statistics).from_state(statistics.state_dict())
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, evidence(rebuilt, fresh).typicality)


@EVERY_FORM
def test_without_a_class_there_is_no_evidence(name):
    with pytest.raises(ValueError, match="no class yet"):
        evidence(BUILD[name](), features_of())


@EVERY_FORM
def test_evidence_of_a_single_image(name):
    statistics = BUILD[name]()
    features = features_of()
    statistics.update(features[:1], torch.tensor([3]))
    measured = evidence(statistics, features)
    assert measured.scores.shape == (FRESH, 1)
    assert measured.typicality.isfinite().all()


@EVERY_FORM
def test_evidence_of_equal_images_is_finite(name):
    statistics = BUILD[name]()
    features = features_of()
    statistics.update(features[:1].repeat(5, 1), torch.tensor([3, 2, 2, 3, 3]))
    measured = evidence(statistics, features)
    assert all(values.isfinite().all() for values in measured[:4])


def pickled(statistics):
    return pickle.loads(pickle.dumps(statistics))


@EVERY_FORM
@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_copies_are_typical_alike(statistics, copied):
    fresh = features_of(seed=1)
    expected = evidence(statistics, fresh).typicality
    assert torch.equal(evidence(copied(statistics), fresh).typicality, expected)


# What of an image speaks for its class


def test_explain_of_an_image(make):
    assert taught(make(), 2).explain(images(0, 1)).shape == (SIZE, SIZE)


def test_explain_takes_a_single_image(make):
    with pytest.raises(ValueError, match="single image"):
        taught(make(), 2).explain(images(0, 3))


def test_explain_before_anything_is_taught(make):
    with pytest.raises(NothingTaughtError):
        make().explain(images(0, 1))


@pytest.fixture
def layer():
    """Maps of an image, `(1, 3, 4, 5)`."""
    return torch.rand(1, 3, 4, 5, dtype=torch.float64, requires_grad=True)


def test_a_location_has_its_part_of_the_margin(layer):
    weights = torch.rand(3, 2, dtype=torch.float64)
    flat = torch.rand(1, 2, dtype=torch.float64, requires_grad=True)
    scores = (layer.mean((2, 3)) @ weights + flat)[0]
    of_layer, of_flat = attributed_to_layers(scores, [layer, flat])
    direction = weights[:, scores.argmax()] - weights[:, scores.argmin()]
    deviations = layer - layer.mean((2, 3), keepdim=True)
    expected = (deviations * direction[:, None, None]).sum(1) / 20
    torch.testing.assert_close(of_layer[0], expected)
    assert not of_flat.any()


def test_with_one_class_it_is_the_score(layer):
    scores = layer.mean((2, 3)).sum(1)
    (shares,) = attributed_to_layers(scores, [layer])
    assert shares.shape == (1, 1, 4, 5)
    assert float(shares.sum()) == pytest.approx(0, abs=1e-9)


# Images of nothing that are drawn


def test_drawn_images_are_always_the_same():
    assert torch.equal(drawn_images(40), drawn_images(40))


def test_drawn_images_differ_from_each_other():
    drawn = drawn_images(40)
    assert drawn.shape == (DRAWN, 3, 40, 40)
    assert drawn.dtype == torch.uint8
    assert len({image.numpy().tobytes() for image in drawn}) == DRAWN
    assert (drawn.float().std((1, 2, 3)) > 10).all()


@pytest.mark.parametrize(
    ("backbone", "threshold"),
    [
        ("efficientnet_lite0", 0.63),
        ("mobilenet_v2", 0.57),
        ("squeezenet1_1", 0.48),
        ("timm:other", 0.56),  # the mean of those
    ],
)
def test_a_backbone_has_its_usual_threshold(backbone, threshold):
    assert usual_threshold(backbone) == pytest.approx(threshold)


# Images of nothing that are shown

DRAWN_FEATURES = features_of(DRAWN, seed=2, classes=(2, 4))
SHOWN_FEATURES = torch.cat([DRAWN_FEATURES, features_of(5, seed=3, classes=(2,))])
WITH_NOTHING = pytest.mark.parametrize("name", ["rda", "slda"])


def cosines_apart(statistics, fresh, nothing):
    """Cosines with the nearest mean, seen from images of nothing.

    Directions in which these differ count little.
    """
    middle = nothing.mean(0).double()
    rows = (nothing - nothing.mean(0)).double()
    within = covariance_of(statistics)
    length = (rows @ torch.linalg.inv(within) * rows).sum()
    strength = STRENGTH * len(rows) / length
    inverse = torch.linalg.inv(within + strength * rows.mT @ rows)
    images = fresh.double() - middle
    means = means_of(statistics) - middle
    image_lengths = ((images @ inverse) * images).sum(1).sqrt()
    mean_lengths = ((means @ inverse) * means).sum(1).sqrt()
    cosines = images @ inverse @ means.mT / image_lengths[:, None] / mean_lengths
    return cosines.amax(1)


@WITH_NOTHING
def test_cosines_are_seen_from_nothing(statistics):
    fresh = features_of(seed=1)
    measured = evidence(statistics, fresh, SHOWN_FEATURES)
    expected = cosines_apart(statistics, fresh, DRAWN_FEATURES)
    torch.testing.assert_close(
        measured.typicality[:, 2], expected, rtol=1e-4, atol=1e-8
    )


@WITH_NOTHING
def test_cosines_apart_from_what_was_shown(statistics):
    fresh = features_of(seed=1)
    measured = evidence(statistics, fresh, SHOWN_FEATURES)
    expected = cosines_apart(statistics, fresh, SHOWN_FEATURES)
    torch.testing.assert_close(measured.apart, expected, rtol=1e-4, atol=1e-8)


@WITH_NOTHING
def test_distances_do_not_depend_on_nothing(statistics):
    fresh = features_of(seed=1)
    measured = evidence(statistics, fresh, SHOWN_FEATURES).typicality
    assert torch.equal(measured[:, 0], evidence(statistics, fresh).typicality[:, 0])


@WITH_NOTHING
def test_the_cosine_moves_by_a_share_of_the_plain_one(statistics):
    fresh = features_of(seed=1)
    measured = evidence(statistics, fresh, SHOWN_FEATURES).typicality
    change = measured - evidence(statistics, fresh).typicality
    ratio = change[:, 1] / change[:, 2]
    assert 0 < ratio[0] < 1
    torch.testing.assert_close(ratio, ratio[:1].expand(FRESH))


@WITH_NOTHING
@pytest.mark.parametrize("nothing", [None, DRAWN_FEATURES], ids=["none", "drawn"])
def test_nothing_is_apart_if_nothing_was_shown(statistics, nothing):
    assert evidence(statistics, features_of(seed=1), nothing).apart is None


class EmptyScene:
    """Three objects that were learned in a scene, which was shown without them.

    Attributes:
        scene: evidence of images of the scene alone.
        known: evidence of images of the second object in it.
    """

    def __init__(self):
        self.random = torch.Generator().manual_seed(0)
        self.background, *objects = 4 * self.noise(4)
        statistics = StreamingLDA(3, 400, shrinkage=0.05)
        for label, pattern in enumerate(objects):
            statistics.update(self.seen(pattern), torch.full((20,), label))
        nothing = torch.cat([self.noise(DRAWN), self.seen(0, 6)])
        self.scene = evidence(statistics, self.seen(0), nothing)
        self.known = evidence(statistics, self.seen(objects[1]), nothing)

    def noise(self, count):
        return torch.randn(count, 400, generator=self.random)

    def seen(self, pattern, count=20):
        return self.background + pattern + self.noise(count)


@pytest.fixture(scope="module")
def empty_scene():
    return EmptyScene()


def test_an_empty_scene_looks_typical(empty_scene):
    assert empty_scene.scene.typicality[:, 2].mean() > 0.3 > LEAST_APART


def test_an_empty_scene_is_not_apart(empty_scene):
    assert empty_scene.scene.apart.mean() < LEAST_APART


def test_an_object_in_the_scene_is_apart(empty_scene):
    assert empty_scene.known.apart.min() > 0.3
    assert (Confidence().probabilities(empty_scene.known).amax(1) > STRICT).all()


def test_what_is_not_apart_is_unknown(empty_scene):
    apart = torch.full((20,), LEAST_APART - 0.01)
    scene = empty_scene.scene._replace(apart=apart)
    assert not (Confidence().probabilities(scene).amax(1) > STRICT).any()


# Lessons of nothing


@pytest.fixture(params=["rda", "slda"])
def learner(make, request):
    """A learner of three classes that can be shown nothing."""
    return taught(make(request.param), 3)


def ask(learner):
    return learner.predict(images(1, 4, seed=3))


def test_a_lesson_of_nothing(learner):
    lesson = learner.teach_nothing(images(20, 4))
    assert lesson.images == {}
    assert (lesson.nothing, lesson.clips, lesson.answered) == (4, 1, 0)
    assert learner.nothing == 4


def test_nothing_is_no_class(learner):
    learner.teach_nothing(images(20, 4))
    assert [info.name for info in learner.classes] == ["c0", "c1", "c2"]


def test_nothing_does_not_change_the_answer(learner):
    before = ask(learner)
    learner.teach_nothing(images(20, 4))
    after = ask(learner)
    assert (after.label, after.confidence) == (before.label, before.confidence)


def test_a_file_has_what_was_shown_as_nothing(learner, tmp_path):
    learner.teach_nothing(images(20, 4))
    learner.save(tmp_path / "a.safetensors")
    loaded = Learner.load(tmp_path / "a.safetensors")
    assert same(loaded, learner)
    assert loaded.lessons == learner.lessons
    assert loaded.nothing == 4
    assert ask(loaded) == ask(learner)


def test_a_lesson_of_nothing_is_taken_back(learner, tmp_path):
    before = ask(learner)
    learner.teach_nothing(images(20, 4))
    learner.save(tmp_path / "a.safetensors")
    loaded = Learner.load(tmp_path / "a.safetensors")
    assert loaded.undo().nothing == 4
    assert loaded.nothing == 0
    assert ask(loaded) == before


@pytest.fixture
def shown_first(make):
    """A learner that was shown nothing before anything else."""
    learner = make("rda")
    learner.teach_nothing(images(20, 5))
    learner.teach(images(5), "c5")
    return learner


def test_a_merge_takes_what_was_shown_as_nothing(make, shown_first):
    learner = taught(make("rda"), 2)
    learner.merge(shown_first)
    assert learner.nothing == 5
    assert len(learner._classifier.nothing.of_look(0)) == DRAWN + 5


def test_nothing_is_merged_once(make, shown_first):
    learner = taught(make("rda"), 2)
    learner.merge(shown_first)
    with pytest.raises(ValueError, match="hold the same"):
        learner.merge(shown_first)


def test_the_latest_images_of_nothing_are_kept(make):
    learner = taught(make("rda"), 1)
    lessons = MOST_SHOWN // 8 + 2
    for number in range(lessons):
        learner.teach_nothing(images(number, 20))
    assert len(learner._classifier.nothing.of_look(0)) == DRAWN + MOST_SHOWN
    assert learner.nothing == 20 * lessons


def test_other_methods_cannot_be_shown_nothing(make):
    learner = taught(make("ncm"), 2)
    with pytest.raises(ValueError, match="rda and slda can"):
        learner.teach_nothing(images(1))
    assert learner.nothing == 0
    assert len(learner.lessons) == 2
