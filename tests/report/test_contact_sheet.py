"""The page of answers: what it shows first, what it leaves out, and what it counts."""

import base64
import io

import numpy as np
import pytest
from html_pages import ATTACK, Page
from PIL import Image

from crumb_avalanche.learner.answer import Answer, ClassInfo
from crumb_avalanche.learner.clips import BadImage, Clip
from crumb_avalanche.report.contact_sheet import ContactSheet, heat_map


class Stub:
    """Answers that a clip shows what its path says: ``LABEL CONFIDENCE``."""

    method, image_size, classes = "stub", 16, [ClassInfo("a", 1), ClassInfo("b", 1)]
    note, explains = "", False

    def predict_all(self, clip):
        frames = [path for path, _ in clip.frames]
        label, confidence = clip.path.split()[:2]
        known = None if label == "a" else confidence > "0.5"
        yield Answer(label, float(confidence), known, (("other", 0.1),), clip.path, clip.label, (None,) * len(frames))


def clip(path, label=None, colours=((9, 9, 9),)):
    return Clip(path, label, iter([(path, Image.new("RGB", (40, 20), colour)) for colour in colours]))


def sheet_of(*clips, most=300):
    sheet = ContactSheet(Stub(), most)
    unread = []
    answers = list(sheet.ask(clips, "skip", unread.append))
    assert [answer.path for answer in answers] == [one.path for one in clips]
    return sheet


def images(page):
    return [value for tag, key, value in page.attributes if (tag, key) == ("img", "src")]


def pixels(uri):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def test_mistakes_come_first_and_the_most_confident_on_top():
    asked = [("a 0.7 w", "a"), ("b 0.6 x", "a"), ("b 0.9 y", "a"), ("b 0.8 z", "b")]
    page = Page(sheet_of(*(clip(*one) for one in asked), most=3).page("mine", []))
    places = [page.text.index(path) for path in ("b 0.9 y", "b 0.6 x", "a 0.7 w")]
    assert "Images are shown of 3 of the 4 answers" in page.text and "b 0.8 z" not in page.text
    assert places == sorted(places) and len(images(page)) == 3 and "2 of 4 right (50.0 %) The true class" in page.text
    (row,) = page.tables["confused"]
    assert [row[name]["text"] for name in ("truth", "answer", "images")] == ["a", "b", "2"]
    assert "There are no heat maps" in page.text


def test_unknown_images_are_named_so_and_unlabelled_ones_are_not_counted():
    page = Page(sheet_of(clip("b 0.4 x"), clip("a 0.4 y")).page("mine", []))
    assert "unknown (nearest: b)" in page.text and "unknown (nearest: a)" not in page.text
    assert "1 of 2 unknown" in page.text and " %) The true class" not in page.text and "Confusion" not in page.text


@pytest.mark.parametrize("count", [1, 200])
def test_a_clip_shows_its_middle_frame(count):
    colours = [(number, number, number) for number in range(count)]
    (uri,) = images(Page(sheet_of(clip("a 0.7", None, colours)).page("mine", [])))
    assert pixels(uri).shape == (20, 40, 3)
    assert abs(pixels(uri).mean() - count // 2) <= max(1, count / 64)


def test_names_and_paths_are_text():
    sheet = sheet_of(clip(f"b 0.9 {ATTACK}", ATTACK))
    page = Page(sheet.page(ATTACK, [BadImage(ATTACK, ATTACK)]))
    assert page.tags["script"] == 1 and ("img", "src", "x") not in page.attributes
    assert all(value.startswith("data:") for value in images(page))


def test_heat_maps_are_orange_for_the_answer_and_blue_against_it():
    import torch

    shares = torch.zeros(28, 28)
    shares[:14], shares[20:] = 2.0, -1.0
    uri = heat_map(shares, (100, 50))
    found = pixels(uri).astype(int)
    assert found.shape == (14, 28, 4)
    assert found[0, 0, 0] > found[0, 0, 2] and found[-1, 0, 2] > found[-1, 0, 0]
    assert found[0, 0, 3] > found[-1, 0, 3] > found[8, 0, 3] == 0
