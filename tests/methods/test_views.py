"""The parts of an image that a closed form looks at, and how much each counts."""

import numpy as np
import pytest
import torch
from PIL import Image

from crumb_avalanche.images.looks import LookTransform
from crumb_avalanche.learner import history
from crumb_avalanche.learner.evidence import evidence
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.methods import look_weights as weights_module
from crumb_avalanche.methods.features import FeatureMoments, middle_of
from crumb_avalanche.methods.look_forms import EarlierForms, LookForms
from crumb_avalanche.methods.look_weights import LookWeights
from crumb_avalanche.methods.looks import TOWARDS_MIDDLE, Looks, ViewFeatures
from crumb_avalanche.methods.ncm import ClassMeans

SIDE = 32
CHOSEN = (0.75, 0.5)
RED = (200, 40, 40)
GREEN = (40, 200, 40)
BLUE = (40, 40, 200)
GREY = (120, 120, 120)


def learner_of(weights_file, looks, method="recommended"):
    return Learner(method, "small_cnn", weights_file, SIDE, looks=looks)


@pytest.fixture
def learner(weights_file):
    return learner_of(weights_file, CHOSEN)


def pictures(colour, surroundings, number=6, seed=0):
    """Noisy images with a square of one colour in the middle of another."""
    noise = np.random.default_rng(seed).integers(-20, 20, (number, SIDE, SIDE, 3))
    images = np.full((number, SIDE, SIDE, 3), surroundings) + noise
    images[:, 10:22, 10:22] = np.array(colour) + noise[:, 10:22, 10:22]
    return images.clip(0, 255).astype(np.uint8)


# Looks


@pytest.mark.parametrize("shares", [(), (0.5, 0.6, 0.7, 0.8), (0.05,), (1.1,)])
def test_other_looks_are_refused(shares):
    with pytest.raises(ValueError, match="one to three shares"):
        Looks(shares)


@pytest.mark.parametrize(
    "length, share, expected",
    [(13, 0.8, (1, 12)), (14, 0.8, (1, 13)), (7, 0.1, (3, 4)), (4, 1, (0, 4))],
)
def test_the_middle_of_an_axis(length, share, expected):
    assert middle_of(length, share) == expected


@pytest.mark.parametrize(
    ("shares", "n_views"),
    [((1.0,), 1), ((0.6,), 2), ((1.0, 0.5), 3), ((0.9, 0.7, 0.5), 4)],
)
def test_number_of_views(shares, n_views):
    assert Looks(shares).n_views == n_views


# Features of a look


def test_the_window_is_a_gaussian():
    maps = torch.rand(2, 5, 4, 4, generator=torch.Generator().manual_seed(1))
    window = 0.3
    weights = torch.empty(4)
    for cell in range(4):
        distance = (cell + 0.5) / 4 - 0.5
        weights[cell] = np.exp(-(distance**2) / (2 * window**2))
    grid = torch.outer(weights, weights)
    weighted = (maps * grid).sum(dim=(2, 3)) / grid.sum()
    features = FeatureMoments(window=window)
    torch.testing.assert_close(features.of_layers([maps]), weighted)


@pytest.fixture
def inner_features():
    """Features of the inner half of a map."""
    return FeatureMoments(maps=True, cells=2, inner=0.5)


def test_the_edge_does_not_count(inner_features):
    maps = torch.rand(2, 3, 8, 8)
    head = torch.rand(2, 4)
    changed = maps.clone()
    changed[:, :, 0] = 9
    changed[:, :, :, 7] = 9
    features = inner_features.of_layers([maps, head])
    assert torch.equal(features, inner_features.of_layers([changed, head]))


def test_features_of_cells_and_head(inner_features):
    features = inner_features.of_layers([torch.rand(2, 3, 8, 8), torch.rand(2, 4)])
    assert features.shape == (2, 3 * 4 + 4)


MOMENTS = FeatureMoments(maps=True, cells=2)


def test_the_closest_look_has_a_second_view():
    (wide,), (near, close) = Looks((0.75, 0.5)).windows(MOMENTS)
    assert wide == near
    assert (near.inner, near.window) == (0.8, 0.18)
    assert (close.inner, close.window) == (0.52, 0.117)
    assert close.cells == 2


def test_the_whole_image_alone_has_one_view():
    assert Looks((1.0,)).windows(MOMENTS) == [[MOMENTS]]


def test_the_whole_image_has_one_view_beside_another_look():
    (whole,), _ = Looks((1.0, 0.6)).windows(MOMENTS)
    assert whole == MOMENTS


def test_windows_of_the_middle_are_within_those_of_the_features():
    moments = FeatureMoments(inner=0.5, window=0.1)
    _, (near, close) = Looks((1.0, 0.6)).windows(moments)
    assert (near.inner, near.window) == (0.4, 0.1)
    assert (close.inner, close.window) == (0.26, 0.1)


def pixels_of_two_looks():
    draws = torch.Generator().manual_seed(0)
    shape = (2, 2, 3, SIDE, SIDE)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=draws)


@pytest.mark.parametrize("shares", [(0.75, 0.5), (1.0, 0.5)])
def test_features_are_those_of_each_crop(weights_file, shares):
    learner = learner_of(weights_file, shares)
    classifier = learner._classifier
    model = learner.network.model
    pixels = pixels_of_two_looks()
    views = []
    windows_of_looks = classifier.looks.windows(classifier.features)
    for look, windows in zip(pixels.unbind(1), windows_of_looks):
        views += [window(model, look) for window in windows]
    slow = torch.cat(views, 1)
    torch.testing.assert_close(classifier.compute(model, pixels, shares), slow)


def test_views_that_are_not_looked_at_are_0(learner):
    features = ViewFeatures(MOMENTS, Looks((1.0, 0.5)))
    images = pixels_of_two_looks()[:, 0]
    model = learner.network.model
    whole, near, close = features(model, [images], [0]).chunk(3, 1)
    assert whole.any(1).all()
    assert not near.any()
    assert not close.any()


def test_a_learner_has_the_features_of_a_run(weights_file):
    learner = learner_of(weights_file, (1.0,))
    features = FeatureMoments(**learner._classifier.statistics.moments)
    assert learner.features == vars(features)


# Weights of looks

FIRST_RIGHT = torch.tensor([[[4.0, 0.0], [0.0, 4.0]]], dtype=torch.float64)
SECOND_RIGHT = FIRST_RIGHT.flip(1)
BOTH_RIGHT = torch.tensor([[[4.0, 0.0], [4.0, 0.0]]], dtype=torch.float64)
# One says what the other does not know.
EACH_KNOWS_A_PART = torch.tensor(
    [[[4.0, 0.0, 4.0], [4.0, 4.0, 0.0]]], dtype=torch.float64
)


@pytest.fixture
def look_weights(monkeypatch):
    """A function that returns the weights of two views after some clips."""
    a_view_each = [[TOWARDS_MIDDLE], [TOWARDS_MIDDLE]]
    monkeypatch.setattr(Looks, "_windows", a_view_each)
    monkeypatch.setattr(weights_module, "LEAST_CLIPS", 5)

    def make(scores=FIRST_RIGHT, clips=5):
        weights = LookWeights(Looks((0.9, 0.8)))
        for _ in range(clips):
            weights.observe(scores, 0)
        return weights

    return make


def test_looks_weigh_the_same_at_first(look_weights):
    assert look_weights(clips=0).weights().tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize(
    ("shares", "clips", "usual"),
    [
        ((1.0,), 0, [1]),
        ((0.6,), 0, [0.5, 0.5]),
        ((0.75, 0.5), 9, [1 / 3, 1 / 3, 1 / 3]),
        ((1.0, 0.6), 0, [0.25, 0.375, 0.375]),
        ((1.0, 0.6), 10, [0.575, 0.2125, 0.2125]),
        ((1.0, 0.6), 10**6, [0.9, 0.05, 0.05]),
        ((1.0, 0.75, 0.5), 0, [0.25, 0.25, 0.25, 0.25]),
    ],
    ids=str,
)
def test_the_whole_image_counts_more_with_clips(shares, clips, usual):
    weights = Looks(shares).usual_weights(clips).tolist()
    assert weights == pytest.approx(usual, abs=1e-4)


def test_the_look_that_was_right_counts_more(look_weights):
    weights = look_weights().weights()
    assert weights[0] > 0.6
    assert float(weights.sum()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("scores", "best"), [(FIRST_RIGHT, 0), (SECOND_RIGHT, 1)], ids=["first", "second"]
)
def test_the_best_look_was_right(look_weights, scores, best):
    assert look_weights(scores).best == best


def test_losses_of_two_learners_are_added(look_weights):
    weights = look_weights(FIRST_RIGHT)
    weights.merge(look_weights(SECOND_RIGHT))
    assert weights.weights().tolist() == pytest.approx([0.5, 0.5])
    assert weights.clips == 10


@pytest.mark.parametrize(
    ("scores", "clips", "used"),
    [
        (FIRST_RIGHT, 5, (0,)),
        (SECOND_RIGHT, 5, (1,)),
        (FIRST_RIGHT, 4, (0, 1)),
        (EACH_KNOWS_A_PART, 5, (0, 1)),
        (BOTH_RIGHT, 50, (0, 1)),
    ],
    ids=["first", "second", "few clips", "both are needed", "no evidence"],
)
def test_a_look_that_is_enough_stays_alone(look_weights, scores, clips, used):
    weights = look_weights(scores, clips)
    weights.settle()
    assert weights.used == used
    assert len(weights.weights()) == len(used)


def test_nothing_is_learned_of_one_look_alone(look_weights):
    weights = look_weights()
    weights.settle()
    losses = weights.losses
    weights.observe(SECOND_RIGHT[:, :1], 0)
    assert torch.equal(weights.losses, losses)
    assert weights.clips == 5


def test_views_that_were_not_computed_do_not_answer(look_weights):
    features = torch.ones(3, 2, 4)
    features[:, 1] = 0
    assert look_weights().views_in(features) == [0]


def test_a_view_of_one_image_may_be_0(look_weights):
    features = torch.ones(3, 2, 4)
    features[1, 1] = 0
    assert look_weights().views_in(features) == [0, 1]


def test_features_without_a_used_view_are_refused(look_weights):
    weights = look_weights(FIRST_RIGHT)
    weights.settle()
    features = torch.ones(3, 2, 4)
    features[:, 0] = 0
    with pytest.raises(ValueError, match="compute them anew"):
        weights.views_in(features)


# What answers for clips before they are learned


@pytest.fixture
def nearest_means():
    """Two of three classes with two images each, of one look."""
    forms = LookForms(Looks(), ClassMeans(3, 4))
    forms.update(torch.eye(4)[[0, 1, 0, 1], None], torch.tensor([0, 1, 0, 1]))
    return forms


def learn_an_image(forms):
    forms.update(torch.eye(4)[:1, None], torch.tensor([0]))


@pytest.mark.parametrize(("label", "knows"), [(0, True), (2, False)])
def test_a_class_has_to_be_known_to_be_predicted(nearest_means, label, knows):
    forms = EarlierForms().copy_that_knows(nearest_means, label)
    assert (forms is not None) == knows


def test_earlier_forms_follow_when_there_are_half_as_many_again(nearest_means):
    earlier = EarlierForms()
    first = earlier.copy_that_knows(nearest_means, 0)
    learn_an_image(nearest_means)
    assert earlier.copy_that_knows(nearest_means, 0) is first
    learn_an_image(nearest_means)
    assert earlier.copy_that_knows(nearest_means, 0) is not first


def test_earlier_forms_are_restored(nearest_means):
    earlier = EarlierForms()
    views = torch.eye(4)[:, None]
    expected = earlier.copy_that_knows(nearest_means, 0).scores(views)
    state = earlier.state_dict()
    learn_an_image(nearest_means)
    restored = EarlierForms()
    restored.load_state_dict(state, nearest_means)
    scores = restored.copy_that_knows(nearest_means, 0).scores(views)
    assert torch.equal(scores, expected)


# Learners with looks


def objects_known(weights_file, share):
    """How many of 12 objects a learner knows in the scene of the other one."""
    learner = learner_of(weights_file, (share,), "ncm")
    learner.teach(pictures(RED, BLUE), "red")
    learner.teach(pictures(GREEN, GREY), "green")
    red = learner.predict(list(pictures(RED, GREY, seed=1))).frames
    green = learner.predict(list(pictures(GREEN, BLUE, seed=1))).frames
    correct = sum(frame.label == "red" for frame in red)
    return correct + sum(frame.label == "green" for frame in green)


def test_a_close_look_ignores_the_scene(weights_file):
    assert objects_known(weights_file, 0.375) == 12  # the square is 12 of 32 pixels


def test_a_scene_misleads_a_wide_look(weights_file):
    assert objects_known(weights_file, 1.0) < 12


@pytest.fixture
def noise_learner(learner):
    """A learner of two classes of noise."""
    for seed in range(3):
        random = np.random.default_rng(seed)
        images = random.integers(0, 256, (6, SIDE, SIDE, 3), dtype=np.uint8)
        learner.teach(images, "red")
        learner.teach(images, "green")
    return learner


def test_each_image_counts_once(noise_learner):
    assert [info.images for info in noise_learner.classes] == [18, 18]


def test_the_file_has_looks_and_weights(noise_learner, tmp_path):
    noise_learner.save(tmp_path / "two.safetensors")
    loaded = Learner.load(tmp_path / "two.safetensors")
    assert loaded.looks == CHOSEN
    losses = noise_learner._classifier.look_weights.losses
    assert losses.any()
    assert torch.equal(loaded._classifier.look_weights.losses, losses)


def test_a_loaded_learner_answers_the_same(noise_learner, tmp_path):
    noise_learner.save(tmp_path / "two.safetensors")
    loaded = Learner.load(tmp_path / "two.safetensors")
    image = pictures((190, 60, 60), (0, 0, 0), 1)[0]
    assert loaded.predict(image) == noise_learner.predict(image)


def test_undo_takes_losses_of_looks_back(noise_learner):
    losses = noise_learner._classifier.look_weights.losses
    noise_learner.undo()
    remaining = noise_learner._classifier.look_weights.losses
    assert float(remaining.sum()) < float(losses.sum())


@pytest.fixture
def settled(weights_file, monkeypatch):
    """A learner that found in its third lesson that one look is enough."""
    monkeypatch.setattr(weights_module, "LEAST_CLIPS", 1)
    monkeypatch.setattr(weights_module, "LEAST_EVIDENCE", 0.0)
    monkeypatch.setattr(weights_module, "ENOUGH", 100.0)
    learner = learner_of(weights_file, (1.0, 0.5))
    learner.teach(pictures(RED, BLUE), "red")
    learner.teach(pictures(GREEN, GREY), "green")
    assert learner.looks_used == (1.0, 0.5)
    learner.teach(pictures(RED, GREY, seed=1), "red")
    return learner


def test_one_look_alone_is_used(settled):
    assert len(settled.looks_used) == 1
    pixels = settled._transform(Image.fromarray(pictures(RED, BLUE)[0]))
    assert len(pixels) == 1


def test_images_count_once_whatever_is_looked_at(settled):
    settled.teach(pictures(GREEN, BLUE, seed=2), "green")
    assert [info.images for info in settled.classes] == [12, 12]


def test_a_file_has_the_looks_that_are_used(settled, tmp_path):
    settled.teach(pictures(GREEN, BLUE, seed=2), "green")
    settled.save(tmp_path / "settled.safetensors")
    loaded = Learner.load(tmp_path / "settled.safetensors")
    assert loaded.looks_used == settled.looks_used
    image = pictures(RED, BLUE, 1, seed=3)[0]
    assert loaded.predict(image) == settled.predict(image)


def test_undo_takes_back_that_one_look_is_enough(settled):
    settled.undo()
    assert settled.looks_used == (1.0, 0.5)
    assert settled.predict(pictures(RED, BLUE, 1)[0]).label == "red"


def test_a_lesson_with_one_look_stays_when_one_before_is_taken_back(settled):
    settled.teach(pictures(GREEN, BLUE, seed=2), "green")
    settled.undo(3)
    assert [info.images for info in settled.classes] == [6, 12]
    assert settled.predict(pictures(GREEN, BLUE, 1)[0]).label == "green"


def test_features_of_before_one_look_was_given_up_are_answered(settled):
    """As of a clip that is asked while another thread teaches."""
    shares = settled.looks
    pixels = LookTransform(shares, SIDE)(Image.fromarray(pictures(RED, BLUE, 1)[0]))
    classifier = settled._classifier
    of_both = settled._compute(pixels[None], shares)
    alone = settled._compute(
        pixels[None, list(classifier.look_weights.used)], settled.looks_used
    )
    expected = classifier.evidence(alone).scores
    scores = classifier.evidence(of_both).scores
    torch.testing.assert_close(scores, expected, rtol=1e-6, atol=0)


def test_scores_are_means_over_the_views(learner):
    learner.teach(pictures(RED, BLUE), "red")
    learner.teach(pictures(GREEN, GREY), "green")
    classifier = learner._classifier
    pixels = LookTransform(CHOSEN, SIDE)(Image.fromarray(pictures(RED, GREY, 1)[0]))
    features = learner._compute(pixels[None], CHOSEN)
    weights = [0.5, 0.25, 0.25]
    classifier.look_weights.weights = lambda views=None: torch.tensor(
        weights, dtype=torch.float64
    )
    expected = 0.0
    for view, weight in enumerate(weights):
        look = classifier.looks.look_of_views[view]
        of_view = evidence(
            classifier.forms.by_look[look],
            classifier._by_view(features)[:, view],
            classifier.nothing.of_look(look),
        )
        expected = expected + weight * of_view.scores
    torch.testing.assert_close(classifier.evidence(features).scores, expected)


def test_other_looks_are_not_merged(learner, weights_file):
    second = learner_of(weights_file, (1.0,))
    learner.teach(pictures(RED, BLUE), "red")
    second.teach(pictures(RED, BLUE), "red")
    with pytest.raises(ValueError, match="looks"):
        learner.merge(second)


def test_evidence_lies_within_the_looks(learner):
    learner.teach(pictures(RED, BLUE), "red")
    learner.teach(pictures(GREEN, GREY), "green")
    evidence = learner.explain(pictures(RED, GREY, 1)[0])
    assert evidence.shape == (SIDE, SIDE)
    assert evidence.abs().max() > 0
    assert not evidence[:4].any()
    assert not evidence[:, -4:].any()


def test_merged_learners_have_the_looks_of_both(settled, weights_file):
    second = learner_of(weights_file, (1.0, 0.5))
    second.teach(pictures(BLUE, GREY, seed=4), "blue")
    second.merge(settled)
    assert second.looks_used == settled.looks_used
    assert [info.name for info in second.classes] == ["blue", "red", "green"]
    assert second.predict(pictures(BLUE, GREY, 1, seed=5)[0]).label == "blue"


def test_learners_of_looks_apart_are_not_merged(settled, weights_file):
    second = learner_of(weights_file, (1.0, 0.5))
    second.teach(pictures(BLUE, GREY, seed=4), "blue")
    (used,) = settled._classifier.forms.used
    second._classifier.keep_looks([1 - used])
    with pytest.raises(ValueError, match="teach the images of one to the other"):
        second.merge(settled)


@pytest.mark.parametrize(
    ("budget", "looks"), [(60_000, 2), (3_000, 1)], ids=["features go", "a look goes"]
)
def test_features_are_given_up_before_a_look(weights_file, budget, looks):
    learner = learner_of(weights_file, (1.0, 0.5))
    learner._classifier.budget_bytes = budget
    for number, colour in enumerate([RED, GREEN, BLUE, GREY]):
        learner.teach(pictures(colour, RED), f"class{number}")
    assert len(learner.looks_used) == looks
    assert learner._classifier.length == learner._classifier.head_length


@pytest.fixture
def settling_otherwise(settled, monkeypatch):
    """The learner, of which lessons that are learned again settle on the other look."""
    (used,) = settled._classifier.forms.used

    def settle_on_the_other_look(weights):
        if weights.clips and len(weights.used) > 1:
            weights.used = (1 - used,)

    monkeypatch.setattr(LookWeights, "settle", settle_on_the_other_look)
    return settled


def test_lessons_learned_again_keep_the_looks_of_later_ones(settling_otherwise):
    learner = settling_otherwise
    used = learner.looks_used
    learner.teach(pictures(GREEN, BLUE, seed=2), "green")
    learner.remove_image(1, 0)
    assert learner.looks_used == used
    assert sum(info.images for info in learner.classes) == 23


def test_lessons_that_drop_out_keep_the_looks_of_later_ones(
    settling_otherwise, monkeypatch
):
    learner = settling_otherwise
    used = learner.looks_used
    learner.teach(pictures(BLUE, GREY, seed=4), "blue")
    learner.forget("blue")  # lessons are no longer as they were observed
    monkeypatch.setattr(history, "MOST_LESSONS", 4)
    learner.teach(pictures(GREEN, BLUE, seed=2), "green")
    learner.teach(pictures(GREEN, GREY, seed=3), "green")
    assert len(learner.undoable) < 6
    learner.undo()
    assert learner.looks_used == used


def test_the_look_that_stays_has_the_whole_budget(learner):
    learner._classifier.budget_bytes = 40_000
    learner.teach(pictures(RED, BLUE, 20), "red")
    learner.teach(pictures(GREEN, GREY, 20), "green")
    directions = learner._classifier.statistics.settings["total_directions"]
    learner._classifier.keep_looks([0])
    assert learner._classifier.statistics.settings["total_directions"] > directions
