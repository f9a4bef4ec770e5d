"""The parts of an image that a learner looks at, and how much each counts."""

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks_toybox_ilab.streams.torch_dataset import PixelTransform
from crumb_avalanche.images.looks import Looks, LookWeights
from crumb_avalanche.learner.confidence import Confidence
from crumb_avalanche.learner.evidence import Evidence
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.methods.features import FeatureMoments, middle_of

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


def noise_pixels(height=16, width=24):
    """The pixels of an image of noise."""
    random = np.random.default_rng(0)
    return random.integers(0, 256, (height, width, 3), dtype=np.uint8)


def looks_at(pixels, *shares):
    """What looks make of an image for a network of 8 x 8 pixels."""
    return Looks(shares).transform(8, "bilinear")(Image.fromarray(pixels))


def resized(pixels):
    return PixelTransform(8)(Image.fromarray(pixels))


# Looks


def test_a_look_is_the_middle_resized():
    pixels = noise_pixels()
    full, half = looks_at(pixels, 1.0, 0.5)
    assert torch.equal(full, resized(pixels))
    assert torch.equal(half, resized(pixels[4:12, 6:18]))


def test_a_look_has_bytes_of_the_size():
    (look,) = looks_at(noise_pixels(), 0.5)
    assert look.shape == (3, 8, 8)
    assert look.dtype == torch.uint8


def test_a_look_keeps_small_details():
    pixels = noise_pixels(width=16)
    (half,) = looks_at(pixels, 0.5)  # has as many pixels as it is resized to
    assert np.array_equal(half.permute(1, 2, 0).numpy(), pixels[4:12, 4:12])


def test_the_whole_image_is_not_stacked():
    pixels = noise_pixels()
    image = Looks().transform(8, "bilinear")(Image.fromarray(pixels))
    assert torch.equal(image, resized(pixels))


@pytest.mark.parametrize("shares", [(), (0.5,) * 4, (0.05,), (1.1,)])
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
    ("shares", "views"),
    [((1.0,), 1), ((0.6,), 2), ((1.0, 0.5), 3), ((0.9, 0.7, 0.5), 4)],
)
def test_number_of_views(shares, views):
    assert Looks(shares).views == views


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


def test_the_closest_look_has_a_second_view():
    usual = FeatureMoments(maps=True, cells=2, inner=0.8, window=0.2)
    wide_views, near_views = Looks((0.75, 0.5)).windows(usual)
    assert wide_views == [usual]
    assert near_views[0] == usual
    close = near_views[1]
    assert (close.inner, close.window) == pytest.approx((0.52, 0.13))
    assert close.cells == 2


def test_the_whole_image_has_one_view():
    features = FeatureMoments(maps=True, cells=2, inner=0.8, window=0.2)
    assert Looks((1.0,)).windows(features) == [[features]]


def test_features_are_those_of_each_crop(learner):
    pixels = torch.randint(0, 256, (2, 2, 3, SIDE, SIDE), dtype=torch.uint8)
    classifier = learner._classifier
    model = learner.network.model
    wide, near = pixels.unbind(1)
    (first,), (second, third) = classifier.looks.windows(classifier.features)
    slow = torch.cat([first(model, wide), second(model, near), third(model, near)], 1)
    torch.testing.assert_close(classifier.compute(model, pixels), slow, rtol=0, atol=0)


def test_the_whole_image_has_the_features_of_a_run(weights_file):
    learner = learner_of(weights_file, (1.0,))
    features = FeatureMoments(**learner._classifier.statistics.moments)
    assert learner.features == vars(features)


# Weights of looks

FIRST_RIGHT = torch.tensor([[[4.0, 0.0], [0.0, 4.0]]], dtype=torch.float64)
SECOND_RIGHT = FIRST_RIGHT.flip(1)


def observed(scores, clips=5):
    """Weights of two views that saw clips of class 0."""
    weights = LookWeights(2)
    for _ in range(clips):
        weights.observe(scores, 0)
    return weights


def test_looks_weigh_the_same_at_first():
    assert LookWeights(2).weights().tolist() == pytest.approx([0.5, 0.5])


def test_the_look_that_was_right_counts_more():
    weights = observed(FIRST_RIGHT).weights()
    assert weights[0] > 0.6
    assert float(weights.sum()) == pytest.approx(1)


def test_losses_of_two_learners_are_added():
    weights = observed(FIRST_RIGHT)
    weights.add(observed(SECOND_RIGHT).losses)
    assert weights.weights().tolist() == pytest.approx([0.5, 0.5])


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
    assert float(losses.sum()) > 0
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


@pytest.mark.parametrize(
    ("confidence", "known"),
    [(Confidence(usual=0.4), [False, True]), (Confidence(), [True, True])],
    ids=["usual", "none"],
)
def test_the_usual_threshold_before_a_fit(confidence, known):
    evidence = Evidence(
        scores=5 * torch.eye(3).double()[:2],
        labels=torch.arange(3),
        counts=torch.ones(3).long(),
        typicality=torch.tensor([[-0.2, 0.59, 1], [0.3, 0.11, 0]], dtype=torch.float64),
    )
    assert confidence.known(evidence).tolist() == known
