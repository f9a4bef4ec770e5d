"""Boxes: what is asked and learned of an image is the part around each."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from crumb_avalanche.learner.boxes import boxes_of, cut_out

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
        self.boxes = type("Boxes", (), {"xyxy": torch.tensor(boxes, dtype=torch.float32)})()


def test_each_box_of_an_image_is_answered_in_order(taught):
    image = picture(RED, GREEN)
    found = taught.predict(image, PLACES)
    assert [one.label for one in found] == ["red", "green"] and [one.box for one in found] == PLACES
    assert found[1].as_dict()["box"] == list(PLACES[1]) and "box" not in taught.predict(image).as_dict()
    alone = taught.predict(cut_out(image, PLACES[1]))
    assert (alone.label, alone.known) == (found[1].label, found[1].known)
    twice = taught.predict(image, [PLACES[0]] * 9)
    assert len(twice) == 9 and {one.label for one in twice} == {"red"}


def test_boxes_are_those_of_any_detector(taught):
    image, seen = picture(RED, GREEN), []
    scored = [[*box, 0.9, 3] for box in PLACES]
    forms = PLACES, np.array(scored), torch.tensor(scored), {"boxes": torch.tensor(PLACES), "scores": [1, 1]}
    for form in (*forms, [forms[3]], Results(PLACES), [Results(PLACES)]):
        detector = lambda image, form=form: seen.append(image.size) or form  # noqa: E731
        assert [one.label for one in taught.predict(image, detector=detector)] == ["red", "green"]
    assert set(seen) == {image.size}
    assert taught.predict(image, []) == [] == taught.predict(image, detector=lambda image: np.zeros((0, 6)))
    assert len(taught.predict(image, PLACES[0])) == 1


def test_the_scene_around_a_box_is_not_learned(make):
    boxed, cut = make(), make()
    images = [picture(RED), picture(GREEN, RED)]
    boxed.teach(images, "red", box=PLACES)
    cut.teach([cut_out(image, box) for image, box in zip(images, PLACES)], "red")
    equal = [torch.equal(*pair) for pair in zip(boxed._classifier.tensors(), cut._classifier.tensors(), strict=True)]
    assert all(equal) and boxed.lessons[0].images == {"red": 2}


@pytest.mark.parametrize(
    ("boxes", "says"),
    [
        ([(0, 0, 5)], "empty; give"),
        ([(5, 0, 5, 9)], "empty; give"),
        ([(0, 0, float("nan"), 9)], "empty; give"),
        ([(200, 0, 220, 9)], "outside the image of 120 x 80"),
        ("here", "boxes are str; give"),
        ([PLACES, PLACES[0]], "boxes are"),
    ],
    ids=["three", "empty", "nan", "outside", "text", "ragged"],
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
