"""The page of a learner's answers: mistakes first, thumbnails and heat maps."""

import base64
import io

import numpy as np
import pytest
import torch
from fake_runs import ATTACK, Page
from PIL import Image

from crumb_avalanche.images.clips import BadImage, Clip
from crumb_avalanche.learner.answer import Answer, ClassInfo
from crumb_avalanche.report.contact_sheet import ContactSheet, heat_map


class Stub:
    """Answers that a clip shows what its path says: ``LABEL CONFIDENCE``."""

    method = "stub"
    image_size = 16
    classes = (ClassInfo("a", 1), ClassInfo("b", 1))
    note = ""
    rates = (0.2, 0.04, 0.3)
    explains = False

    def predict_all(self, clip):
        frames = [path for path, _ in clip.frames]
        label, confidence = clip.path.split()[:2]
        known = None if label == "a" else confidence > "0.5"
        yield Answer(
            label,
            float(confidence),
            known,
            (("other", 0.1),),
            clip.path,
            clip.label,
            (None,) * len(frames),
        )


def clip(path, label=None, colours=((9, 9, 9),)):
    frames = [(path, Image.new("RGB", (40, 20), colour)) for colour in colours]
    return Clip(path, label, iter(frames))


def sheet_of(*clips, most=300):
    sheet = ContactSheet(Stub(), most)
    answers = list(sheet.predict_all(clips, "skip", [].append))
    assert [answer.path for answer in answers] == [asked.path for asked in clips]
    return sheet


def page_of(*clips, most=300):
    return Page(sheet_of(*clips, most=most).page("mine", []))


def pixels(uri):
    """The pixels of a data URI, ``(H, W, channels)``."""
    _, _, data = uri.partition(",")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))).astype(int)


@pytest.fixture
def mistakes():
    """A page of at most three of four answers, two of them wrong."""
    return page_of(
        clip("a 0.7 w", "a"),
        clip("b 0.6 x", "a"),
        clip("b 0.9 y", "a"),
        clip("b 0.8 z", "b"),
        most=3,
    )


def test_the_most_confident_mistakes_come_first(mistakes):
    positions = list(map(mistakes.text.index, ("b 0.9 y", "b 0.6 x", "a 0.7")))
    assert positions == sorted(positions)


def test_further_answers_have_no_image(mistakes):
    assert "b 0.8 z" not in mistakes.text
    assert len(mistakes.images()) == 3


@pytest.mark.parametrize(
    "words",
    [
        "Images are shown of 3 of the 4 answers",
        "2 of 4 right (50.0 %), 0 unknown, 2 taken for another class The true class",
        "There are no heat maps",
    ],
)
def test_the_page_says(mistakes, words):
    assert words in mistakes.text


def test_confused_classes_are_counted(mistakes):
    assert mistakes.column_of("confused", "truth") == ["a"]
    assert mistakes.column_of("confused", "answer") == ["b"]
    assert mistakes.column_of("confused", "images") == ["2"]


@pytest.fixture
def unlabelled():
    """A page of an unknown and a known image without a true class."""
    return page_of(clip("b 0.4 x"), clip("a 0.4 y"))


@pytest.mark.parametrize("words", ["unknown (nearest: b)", "1 of 2 unknown"])
def test_unknown_images_are_named_so(unlabelled, words):
    assert words in unlabelled.text


@pytest.mark.parametrize(
    "words", ["unknown (nearest: a)", " %) The true class", "Confusion"]
)
def test_unlabelled_images_are_not_counted(unlabelled, words):
    assert words not in unlabelled.text


@pytest.fixture
def unknown():
    """A page of a right answer, three unknown ones of two classes, and a mistake."""
    return page_of(
        clip("b 0.9 v", "b"),
        clip("b 0.4 w", "b"),
        clip("b 0.3 x", "dog"),
        clip("b 0.2 y", "dog"),
        clip("b 0.8 z", "dog"),
    )


@pytest.mark.parametrize(
    "words",
    [
        "1 of 5 right (20.0 %), 3 unknown, 1 taken for another class",
        "2 of the unknown ones show classes that were not taught",
    ],
)
def test_unknown_answers_are_counted(unknown, words):
    assert words in unknown.text


def test_unknown_answers_are_no_confusion(unknown):
    assert unknown.column_of("confused", "truth") == ["dog"]
    assert unknown.column_of("confused", "answer") == ["b"]
    assert unknown.column_of("confused", "images") == ["1"]


def test_the_matrix_has_an_unknown_column(unknown):
    assert "is b dog (unknown) right" in unknown.text
    assert "b 1 1 50 %" in unknown.text
    assert "dog 1 2 0 %" in unknown.text


def test_groups_of_answers_are_in_order(unknown):
    positions = [unknown.text.index(f"b 0.{digit}") for digit in "849"]
    assert positions == sorted(positions)


def test_an_unknown_answer_has_no_bar():
    page = page_of(clip("b 0.4 x"))
    assert ("div", "class", "bar") not in page.attributes


@pytest.mark.parametrize("count", [1, 200])
def test_a_clip_shows_its_middle_frame(count):
    colours = [(number, number, number) for number in range(count)]
    (uri,) = page_of(clip("a 0.7", None, colours)).images()
    assert pixels(uri).shape == (20, 40, 3)
    assert abs(pixels(uri).mean() - count // 2) <= max(1, count / 64)


@pytest.fixture
def attacked():
    """A page whose names and paths are HTML."""
    sheet = sheet_of(clip(f"b 0.9 {ATTACK}", ATTACK))
    return Page(sheet.page(ATTACK, [BadImage(ATTACK, ATTACK)]))


def test_names_and_paths_are_text(attacked):
    assert attacked.tags["script"] == 1


def test_all_images_are_in_the_page(attacked):
    uris = attacked.images()
    assert uris
    assert all(uri.startswith("data:") for uri in uris)


@pytest.fixture
def heat():
    """A heat map ``(14, 28, 4)``: evidence for the answer above, against it below."""
    shares = torch.zeros(28, 28)
    shares[:14] = 2.0
    shares[20:] = -1.0
    return pixels(heat_map(shares, (100, 50)))


def test_heat_maps_have_the_shape_of_the_image(heat):
    assert heat.shape == (14, 28, 4)


def test_heat_maps_are_orange_for_the_answer(heat):
    red, _, blue, _ = heat[0, 0]
    assert red > blue


def test_heat_maps_are_blue_against_the_answer(heat):
    red, _, blue, _ = heat[-1, 0]
    assert blue > red


def test_heat_maps_are_clear_without_evidence(heat):
    opacity = heat[:, 0, 3]
    assert opacity[0] > opacity[-1] > opacity[8] == 0
