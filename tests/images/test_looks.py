"""The parts of an image that a learner looks at and how much each counts, and boxes, each of which is answered."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from benchmarks_toybox_ilab.streams.torch_dataset import PixelTransform
from crumb_avalanche.images.boxes import boxes_of, cut_out
from crumb_avalanche.images.looks import Looks, LookWeights
from crumb_avalanche.learner.confidence import Confidence
from crumb_avalanche.learner.evidence import Evidence
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.methods.features import FeatureMoments, middle_of

SIDE, CHOSEN = 32, (0.75, 0.5)


@pytest.fixture
def learner(weights_file):
    return Learner(
        backbone="small_cnn", weights=weights_file, image_size=SIDE, looks=CHOSEN
    )


def pictures(colour, surroundings, number=6, seed=0):
    """Noisy images with a square of one colour in the middle of another."""
    noise = np.random.default_rng(seed).integers(-20, 20, (number, SIDE, SIDE, 3))
    images = np.full((number, SIDE, SIDE, 3), surroundings) + noise
    images[:, 10:22, 10:22] = np.array(colour) + noise[:, 10:22, 10:22]
    return images.clip(0, 255).astype(np.uint8)


def test_a_look_is_cut_out_of_the_image_as_it_is():
    pixels = np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)
    whole, half = Looks((1.0, 0.5)).transform(8, "bilinear")(Image.fromarray(pixels))
    assert torch.equal(whole, PixelTransform(8)(Image.fromarray(pixels)))
    assert half.shape == (3, 8, 8) and half.dtype == torch.uint8
    assert torch.equal(half, PixelTransform(8)(Image.fromarray(pixels[4:12, 6:18])))
    # All details of the half are there: it has as many pixels as it is resized to.
    square = Looks((0.5,)).transform(8, "bilinear")(Image.fromarray(pixels[:, :16]))[0]
    assert np.array_equal(square.permute(1, 2, 0).numpy(), pixels[4:12, 4:12])
    assert torch.equal(Looks().transform(8, "bilinear")(Image.fromarray(pixels)), whole)


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


def test_the_window_weights_the_last_map_as_a_gaussian():
    features, values = (
        FeatureMoments(window=0.3),
        torch.rand(2, 5, 4, 4, generator=torch.Generator().manual_seed(1)),
    )
    weights = [
        np.exp(-(((place + 0.5) / 4 - 0.5) ** 2) / (2 * 0.3**2)) for place in range(4)
    ]
    weighted = sum(
        weights[row] * weights[column] * values[:, :, row, column]
        for row in range(4)
        for column in range(4)
    )
    torch.testing.assert_close(
        features.of_layers([values]), weighted / sum(weights) ** 2
    )


def test_the_inner_part_alone_counts():
    features = FeatureMoments(maps=True, cells=2, inner=0.5)
    maps, head = torch.rand(2, 3, 8, 8), torch.rand(2, 4)
    changed = maps.clone()
    changed[:, :, 0], changed[:, :, :, 7] = 9, 9
    assert torch.equal(
        features.of_layers([maps, head]), features.of_layers([changed, head])
    )
    assert features.of_layers([maps, head]).shape == (2, 3 * 4 + 4)


def test_the_closest_look_has_a_second_view_close_to_the_middle():
    features = FeatureMoments(maps=True, cells=2, inner=0.8, window=0.2)
    (wide,), (usual, close) = Looks((0.75, 0.5)).windows(features)
    assert wide == usual == features
    assert (close.inner, close.window) == pytest.approx(
        (0.52, 0.13)
    ) and close.cells == 2
    assert Looks((1.0,)).windows(features) == [[features]]
    assert [
        Looks(shares).views for shares in ((1.0,), (0.6,), (1.0, 0.5), (0.9, 0.7, 0.5))
    ] == [1, 2, 3, 4]


def test_the_views_of_a_learner_are_those_of_each_crop(learner):
    pixels = torch.randint(0, 256, (2, 2, 3, SIDE, SIDE), dtype=torch.uint8)
    classifier, model = learner._classifier, learner.network.model
    wide, near = pixels.unbind(1)
    (first,), (second, third) = classifier.looks.windows(classifier.features)
    slow = torch.cat([first(model, wide), second(model, near), third(model, near)], 1)
    torch.testing.assert_close(classifier.compute(model, pixels), slow, rtol=0, atol=0)


def test_the_look_that_is_right_before_learning_counts_more():
    first, second = LookWeights(2), LookWeights(2)
    assert first.weights().tolist() == pytest.approx([0.5, 0.5])
    right, wrong = [4.0, 0.0], [0.0, 4.0]
    for _ in range(5):
        first.observe(torch.tensor([[right, wrong]], dtype=torch.float64), 0)
        second.observe(torch.tensor([[wrong, right]], dtype=torch.float64), 0)
    weights = first.weights()
    assert weights[0] > 0.6 and float(weights.sum()) == pytest.approx(1)
    first.add(second.losses)
    assert first.weights().tolist() == pytest.approx([0.5, 0.5])


def test_it_answers_by_the_object_where_the_surroundings_mislead(weights_file):
    red, green, blue, grey = (
        (200, 40, 40),
        (40, 200, 40),
        (40, 40, 200),
        (120, 120, 120),
    )
    right = {}
    for looks in ((1.0,), (0.375,)):  # the square is 12 of 32 pixels
        learner = Learner("ncm", "small_cnn", weights_file, SIDE, looks=looks)
        learner.teach(pictures(red, blue), "red")
        learner.teach(pictures(green, grey), "green")
        asked = [pictures(red, grey, seed=1), pictures(green, blue, seed=1)]
        frames = [
            [frame.label for frame in learner.predict(list(some)).frames]
            for some in asked
        ]
        right[looks] = frames[0].count("red") + frames[1].count("green")
    assert right[(0.375,)] == 12 > right[(1.0,)]


def test_each_image_counts_once_and_the_file_keeps_looks_and_weights(learner, tmp_path):
    for number in range(3):
        for colour in ("red", "green"):
            learner.teach(
                np.random.default_rng(number).integers(
                    0, 256, (6, SIDE, SIDE, 3), dtype=np.uint8
                ),
                colour,
            )
    assert [info.images for info in learner.classes] == [18, 18]
    learner.save(tmp_path / "two.safetensors")
    again, image = (
        Learner.load(tmp_path / "two.safetensors"),
        pictures((190, 60, 60), (0, 0, 0), 1)[0],
    )
    assert again.looks == CHOSEN and again.predict(image) == learner.predict(image)
    losses = [one._classifier.look_weights.losses for one in (learner, again)]
    assert torch.equal(*losses) and float(losses[0].sum()) > 0
    learner.undo()
    assert float(learner._classifier.look_weights.losses.sum()) < float(losses[1].sum())


def test_learners_of_other_looks_are_not_merged(learner, weights_file):
    other = Learner(
        backbone="small_cnn", weights=weights_file, image_size=SIDE, looks=(1.0,)
    )
    for one in (learner, other):
        one.teach(pictures((200, 40, 40), (40, 40, 200)), "red")
    with pytest.raises(ValueError, match="looks"):
        learner.merge(other)


def test_the_whole_image_alone_has_the_features_of_a_run(weights_file):
    learner = Learner(
        backbone="small_cnn", weights=weights_file, image_size=SIDE, looks=(1.0,)
    )
    assert learner.features == vars(
        FeatureMoments(**learner._classifier.statistics.moments)
    )


def test_where_the_evidence_lies_is_within_the_looks(learner):
    learner.teach(pictures((200, 40, 40), (40, 40, 200)), "red")
    learner.teach(pictures((40, 200, 40), (120, 120, 120)), "green")
    shares = learner.explain(pictures((200, 40, 40), (120, 120, 120), 1)[0])
    assert (
        shares.shape == (SIDE, SIDE)
        and not shares[:4].any()
        and not shares[:, -4:].any()
        and shares.abs().max() > 0
    )


def test_a_usual_threshold_of_the_sum_holds_until_one_is_fitted():
    typicality = torch.tensor([[-0.2, 0.59, 1], [0.3, 0.11, 0]], dtype=torch.float64)
    found = Evidence(
        5 * torch.eye(3).double()[:2], torch.arange(3), torch.ones(3).long(), typicality
    )
    assert Confidence(usual=0.4).known(found).tolist() == [False, True]
    assert Confidence().known(found).tolist() == [True, True]


RED, GREEN, GRAY = (200, 30, 30), (30, 200, 30), (128, 128, 128)
PLACES = [(10, 10, 40, 40), (60, 30, 90, 60)]


def picture(*colours):
    """A gray picture with a square of each colour."""
    image = Image.new("RGB", (120, 80), GRAY)
    for colour, place in zip(colours, PLACES):
        image.paste(colour, place)
    return image


@pytest.fixture
def taught(make):
    learner = make()
    for seed, (name, colour) in enumerate((("red", RED), ("green", GREEN)) * 3):
        noise = np.random.default_rng(seed).normal(0, 20, (4, 40, 40, 3))
        learner.teach(np.clip(noise + colour, 0, 255).astype(np.uint8), name)
    return learner


class Results:
    """As ultralytics returns them."""

    def __init__(self, boxes):
        self.boxes = type(
            "Boxes", (), {"xyxy": torch.tensor(boxes, dtype=torch.float32)}
        )()


def test_each_box_of_an_image_is_answered_in_order(taught):
    image = picture(RED, GREEN)
    found = taught.predict(image, PLACES)
    assert [one.label for one in found] == ["red", "green"] and [
        one.box for one in found
    ] == PLACES
    assert (
        found[1].as_dict()["box"] == list(PLACES[1])
        and "box" not in taught.predict(image).as_dict()
    )
    alone = taught.predict(cut_out(image, PLACES[1]))
    assert (alone.label, alone.known) == (found[1].label, found[1].known)
    twice = taught.predict(image, [PLACES[0]] * 9)
    assert len(twice) == 9 and {one.label for one in twice} == {"red"}


def test_boxes_are_those_of_any_detector(taught):
    image, seen = picture(RED, GREEN), []
    scored = [[*box, 0.9, 3] for box in PLACES]
    forms = (
        PLACES,
        np.array(scored),
        torch.tensor(scored),
        {"boxes": torch.tensor(PLACES), "scores": [1, 1]},
    )
    for form in (*forms, [forms[3]], Results(PLACES), [Results(PLACES)]):
        detector = lambda image, form=form: seen.append(image.size) or form  # noqa: E731
        assert [one.label for one in taught.predict(image, detector=detector)] == [
            "red",
            "green",
        ]
    assert set(seen) == {image.size}
    assert (
        taught.predict(image, [])
        == []
        == taught.predict(image, detector=lambda image: np.zeros((0, 6)))
    )
    assert len(taught.predict(image, PLACES[0])) == 1


def test_the_scene_around_a_box_is_not_learned(make):
    boxed, cut = make(), make()
    images = [picture(RED), picture(GREEN, RED)]
    boxed.teach(images, "red", box=PLACES)
    cut.teach([cut_out(image, box) for image, box in zip(images, PLACES)], "red")
    equal = [
        torch.equal(*pair)
        for pair in zip(
            boxed._classifier.tensors(), cut._classifier.tensors(), strict=True
        )
    ]
    assert all(equal) and boxed.lessons[0].images == {"red": 2}


@pytest.mark.parametrize(
    ("boxes", "says"),
    [
        ([(0, 0, 5)], "empty or too large; give"),
        ([(5, 0, 5, 9)], "empty or too large; give"),
        ([(0, 0, float("nan"), 9)], "empty or too large; give"),
        ([(200, 0, 220, 9)], "outside the image of 120 x 80"),
        ("here", "boxes are str; give"),
        ([PLACES, PLACES[0]], "boxes are"),
        ([(0, 0, 10**400, 9)], "boxes are"),
    ],
    ids=["three", "empty", "nan", "outside", "text", "ragged", "huge"],
)
def test_wrong_boxes_are_refused_and_nothing_is_learned(taught, boxes, says):
    before = taught.lessons
    with pytest.raises(ValueError, match=says):
        taught.predict(picture(RED), boxes)
    with pytest.raises(ValueError, match=says):
        taught.teach(picture(RED), "red", box=boxes)
    assert taught.lessons == before


def test_there_are_as_many_boxes_as_images(taught):
    for images, boxes in (([picture(RED)] * 2, PLACES[:1]), ([picture(RED)], PLACES)):
        with pytest.raises(ValueError, match="give a box for each image"):
            taught.teach(images, "red", box=boxes)
    with pytest.raises(ValueError, match="boxes are those of one image"):
        taught.predict([picture(RED)] * 2, PLACES)
    assert len(taught.lessons) == 6


edges = st.tuples(*[st.floats(-50, 150)] * 2, *[st.floats(1, 200)] * 2)


@given(box=edges)
def test_what_is_cut_out_lies_in_the_image_and_holds_the_box(box):
    left, top, width, height = box
    image = Image.new("RGB", (120, 80))
    try:
        part = cut_out(image, (left, top, left + width, top + height))
    except ValueError:
        assert left >= 120 or top >= 80 or left + width <= 0 or top + height <= 0
        return
    side = round(1.5 * max(width, height))
    assert part.size == (min(side, 120), min(side, 80))
    assert boxes_of((left, top, left + width, top + height))[0][:2] == (left, top)
