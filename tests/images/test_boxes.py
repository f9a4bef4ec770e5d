"""Boxes around objects, each of which is answered or learned."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from small_lessons import copied

from benchmarks_toybox_ilab.tables import image as image_module
from benchmarks_toybox_ilab.tables.image import read_image
from crumb_avalanche.images.boxes import boxes_of, cut_out

RED = (200, 30, 30)
GREEN = (30, 200, 30)
GREY = (128, 128, 128)
BOXES = [(10, 10, 40, 40), (60, 30, 90, 60)]
SCORED = [[*box, 0.9, 3] for box in BOXES]  # with score and class


def picture(*colours):
    """A grey picture with a square of each colour."""
    image = Image.new("RGB", (120, 80), GREY)
    for colour, box in zip(colours, BOXES):
        image.paste(colour, box)
    return image


@pytest.fixture(scope="module")
def taught_once(make):
    """A learner that was taught three times what is red and what is green."""
    learner = make()
    for seed, (name, colour) in enumerate([("red", RED), ("green", GREEN)] * 3):
        noise = np.random.default_rng(seed).normal(0, 20, (4, 40, 40, 3))
        learner.teach(np.clip(noise + colour, 0, 255).astype(np.uint8), name)
    return learner


@pytest.fixture
def taught(taught_once):
    return copied(taught_once)


def labels_of(predictions):
    return [prediction.label for prediction in predictions]


# Boxes that are asked about


def test_boxes_are_answered_in_order(taught):
    predictions = taught.predict(picture(RED, GREEN), BOXES)
    assert labels_of(predictions) == ["red", "green"]
    assert [prediction.box for prediction in predictions] == BOXES


def test_a_dictionary_has_the_box(taught):
    _, green = taught.predict(picture(RED, GREEN), BOXES)
    assert green.as_dict()["box"] == list(BOXES[1])


def test_an_image_without_a_box_has_none(taught):
    assert "box" not in taught.predict(picture(RED, GREEN)).as_dict()


def test_a_box_is_answered_as_its_part(taught):
    image = picture(RED, GREEN)
    _, green = taught.predict(image, BOXES)
    cut = taught.predict(cut_out(image, BOXES[1]))
    assert (cut.label, cut.known) == (green.label, green.known)


def test_a_box_may_come_several_times(taught):
    predictions = taught.predict(picture(RED, GREEN), [BOXES[0]] * 9)
    assert labels_of(predictions) == ["red"] * 9


def test_a_single_box(taught):
    predictions = taught.predict(picture(RED, GREEN), BOXES[0])
    assert len(predictions) == 1


class Detections:
    """A result as ultralytics returns it."""

    class Boxes:
        xyxy = torch.tensor(BOXES, dtype=torch.float32)

    boxes = Boxes()


TORCHVISION = {"boxes": torch.tensor(BOXES), "scores": [1, 1]}


@pytest.mark.parametrize(
    "detections",
    [
        BOXES,
        np.array(SCORED),
        torch.tensor(SCORED),
        TORCHVISION,
        [TORCHVISION],
        Detections(),
        [Detections()],
    ],
    ids=["list", "array", "tensor", "dict", "dicts", "object", "objects"],
)
def test_boxes_are_those_of_any_detector(taught, detections):
    sizes = []

    def detector(image):
        sizes.append(image.size)
        return detections

    image = picture(RED, GREEN)
    predictions = taught.predict(image, detector=detector)
    assert labels_of(predictions) == ["red", "green"]
    assert sizes == [image.size]


def test_no_box_is_given(taught):
    assert taught.predict(picture(RED, GREEN), []) == []


def test_no_box_is_detected(taught):
    def detector(image):
        return np.zeros((0, 6))

    assert taught.predict(picture(RED, GREEN), detector=detector) == []


# Boxes that are learned


def test_the_scene_is_not_learned(make):
    boxed = make()
    cut = make()
    images = [picture(RED), picture(GREEN, RED)]
    boxed.teach(images, "red", box=BOXES)
    cut.teach([cut_out(image, box) for image, box in zip(images, BOXES)], "red")
    tensors = boxed._classifier.tensors()
    for tensor, expected in zip(tensors, cut._classifier.tensors(), strict=True):
        assert torch.equal(tensor, expected)


def test_each_box_counts_as_an_image(make):
    learner = make()
    learner.teach([picture(RED), picture(GREEN, RED)], "red", box=BOXES)
    assert learner.lessons[0].images == {"red": 2}


WRONG = pytest.mark.parametrize(
    ("boxes", "words"),
    [
        (
            [(10, 20, 90)],
            r"box 1 of 1 is \[10.0, 20.0, 90.0\], less than four .*; give",
        ),
        (
            [(0, 0, 5, 9), (5, 0, 5, 9)],
            r"box 2 of 2 is \[5.0, 0.0, 5.0, 9.0\], which is empty; give",
        ),
        ([(0, 0, float("nan"), 9)], r"\[0.0, 0.0, nan, 9.0\], not finite .*; give"),
        ([(200, 0, 220, 9)], "outside the image of 120 x 80"),
        ("here", "boxes are str; give"),
        ([BOXES, BOXES[0]], "boxes are"),
        ([(0, 0, 10**400, 9)], "boxes are"),
        (["a", 1, 2, 3], "'a' of the boxes is no number; give"),
        ([(0, 0, 9, 9), (0, 0, "b", 9)], "'b' of the boxes is no number; give"),
    ],
    ids=[
        "three",
        "empty",
        "nan",
        "outside",
        "text",
        "ragged",
        "huge",
        "letter",
        "letter of the second",
    ],
)


@WRONG
def test_wrong_boxes_are_not_answered(taught, boxes, words):
    with pytest.raises(ValueError, match=words):
        taught.predict(picture(RED), boxes)


@WRONG
def test_wrong_boxes_are_not_learned(taught, boxes, words):
    lessons = taught.lessons
    with pytest.raises(ValueError, match=words):
        taught.teach(picture(RED), "red", box=boxes)
    assert taught.lessons == lessons


@pytest.mark.parametrize(("images", "boxes"), [(2, 1), (1, 2)])
def test_each_image_needs_a_box(taught, images, boxes):
    with pytest.raises(ValueError, match="give a box for each image"):
        taught.teach([picture(RED)] * images, "red", box=BOXES[:boxes])
    assert len(taught.lessons) == 6


def test_images_that_are_left_out_need_their_boxes(taught, tmp_path):
    with pytest.raises(ValueError, match="on_bad is 'skip' beside a box for each"):
        taught.teach([picture(RED)] * 2, "red", box=BOXES, on_bad="skip")
    assert len(taught.lessons) == 6


def test_a_box_counts_pixels_of_a_jpeg_that_is_decoded_smaller(tmp_path, monkeypatch):
    # Given a JPEG with too many pixels, which is decoded at a half of its sides
    monkeypatch.setattr(image_module, "MOST_PIXELS", 3000)
    path = tmp_path / "large.jpg"
    picture(RED, GREEN).save(path, quality=95)
    image = read_image(path)
    assert image.size == (60, 40)
    # When it is cut to a box in pixels of the file
    cut = cut_out(image, BOXES[1], margin=0)
    # Then the box is where it is in the file
    assert cut.size == (15, 15)
    np.testing.assert_allclose(np.asarray(cut).mean((0, 1)), GREEN, atol=30)
    with pytest.raises(ValueError, match="outside the image of 120 x 80"):
        cut_out(image, (130, 0, 140, 10))


def test_boxes_of_several_images(taught):
    with pytest.raises(ValueError, match="boxes are those of one image"):
        taught.predict([picture(RED)] * 2, BOXES)


# What is cut out


@st.composite
def any_box(draw):
    """A box of 1 to 200 pixels, also outside of the image."""
    left, top = draw(st.floats(-50, 150)), draw(st.floats(-50, 150))
    width, height = draw(st.floats(1, 200)), draw(st.floats(1, 200))
    return (left, top, left + width, top + height)


@given(box=any_box())
def test_the_part_lies_in_the_image(box):
    left, top, right, bottom = box
    try:
        cut = cut_out(Image.new("RGB", (120, 80)), box)
    except ValueError:
        assert left >= 120 or top >= 80 or right <= 0 or bottom <= 0
        return
    side = round(1.5 * max(right - left, bottom - top))
    assert cut.size == (min(side, 120), min(side, 80))


@given(box=any_box())
def test_a_box_is_read_as_it_is(box):
    assert boxes_of(box) == [box]
