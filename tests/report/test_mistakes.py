"""``mistakes.html``: what a run got wrong, and what would help most."""

from collections import Counter

import numpy as np
import pytest
from fake_runs import ATTACK, Page
from PIL import Image

from benchmarks_toybox_ilab.tables.frame import Frame
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.report.mistakes import (
    ClassCounts,
    advice,
    film_next,
    kinds_table,
    pair_pictures,
    source_of,
    write_mistakes,
)
from crumb_avalanche.runs.run_folder import MISTAKES


def class_counts(name="a", objects=5, clips=10, images=100, tested=40, **changes):
    """A class of 5 objects, with all of 40 test images of 2 objects right."""
    values = {"right": tested, "tested_objects": 2, **changes}
    return ClassCounts(name, objects, clips, images, tested, **values)


GOOD = [class_counts("cup"), class_counts("mug")]


def test_a_good_run_gets_no_advice():
    assert advice([class_counts("cup"), class_counts("mug", right=39)], 1) == []


@pytest.fixture
def few_objects():
    """Advice about a run in which two classes have few objects and many mistakes."""
    pen = class_counts("pen", objects=1, clips=2, images=12, right=10)
    jar = class_counts("jar", objects=2, clips=2, right=20)
    # Few objects are no harm here.
    key = class_counts("key", objects=1, clips=1, images=10)
    lines = advice([*GOOD, jar, pen, key], 50)
    return [line for line in lines if line.startswith("Show other objects")]


def test_the_worst_class_is_named_first(few_objects):
    heads = [line.split(": ")[0] for line in few_objects]
    assert heads == ["Show other objects of pen", "Show other objects of jar"]


@pytest.mark.parametrize(
    "words",
    [
        "10 of 40",
        "1 object in 2 clips",
        "12 images",
        "the median of the classes is 2 objects",
    ],
)
def test_few_objects_are_counted(few_objects, words):
    assert words in few_objects[0]


@pytest.mark.parametrize(("unread", "is_said"), [(0, False), (14, False), (15, True)])
def test_unread_files_count_from_a_twentieth(unread, is_said):
    lines = advice(GOOD, 0, unread, preset="paper")  # 280 files were read
    assert (f"{unread} of {280 + unread}" in "".join(lines)) == is_said


def test_few_test_images_are_not_trusted():
    small_class = class_counts("b", clips=5, tested=19)
    (line,) = advice([class_counts(), small_class], 0)
    assert "1 of 2" in line
    assert "b (19 images of 2 objects)" in line


def test_one_test_object_is_not_trusted():
    (line,) = advice([class_counts("b", clips=5, tested=90, tested_objects=1)], 0)
    assert "b (90 images of 1 object)" in line


@pytest.fixture
def table(tmp_path):
    """Two classes of 2 + 1 objects with an image each clip; b5.png is missing."""
    frames = []
    for name in ("a", "b"):
        for number in range(6):
            path = f"{name}{number}.png"
            split = "test" if number > 3 else "train"
            clip = (f"o{number // 2}", f"s{number % 2}")
            frames.append(Frame(path, name, *clip, 0, split))
            if path != "b5.png":
                Image.new("RGB", (30, 20), (number, 99, 0)).save(tmp_path / path)
    return FrameTable(frames, tmp_path, classes=[*"ab"])


def predictions(table, answers, confidence):
    rows = table.rows("test")
    return {
        "row": np.asarray(rows),
        "label": np.asarray(table.labels[rows]),
        "answer": np.asarray(answers),
        "confidence": np.asarray(confidence),
    }


@pytest.fixture
def page(table, tmp_path):
    """The page of a run with three mistakes of four, by a strategy that attacks it."""
    answers = predictions(table, [1, 0, 0, 0], [0.5, 0.9, 0.7, 0.8])
    write_mistakes(tmp_path, table, answers, "paper", ATTACK, 2)
    return Page((tmp_path / MISTAKES).read_text())


@pytest.mark.parametrize(
    "words",
    [
        "1 of 4 test images right (25.0 %)",
        "2 files could not be read",
        "--preset recommended",
        "all stand at the top of the page",  # three of the four that have room there
    ],
)
def test_the_page_says(page, words):
    assert words in page.text


def test_the_most_confident_mistakes_come_first(page):
    # 80 %, 70 % and 50 % sure
    positions = [page.text.index(f"{name}.png") for name in ("b5", "b4", "a4")]
    assert positions == sorted(positions)
    assert "a5.png" not in page.text
    assert "80\u00a0%" in "".join(page.texts)


def test_missing_files_have_no_thumbnail(page):
    assert len(page.images()) == 10  # b5 is missing


def test_thumbnails_are_in_the_page(page):
    assert all(uri.startswith("data:image/jpeg") for uri in page.images())


def test_confused_pairs_show_what_was_learned(page):
    positions = list(map(page.text.index, ("b taken for a", "a0.png", "a taken for b")))
    assert positions == sorted(positions)


@pytest.mark.parametrize(
    ("learned", "shown"),
    [(2, ["b0", "b1"]), (3, ["b0", "b1", "b2"]), (9, ["b0", "b3", "b6"])],
)
def test_examples_are_spread_over_what_was_learned(learned, shown):
    """An image of a is taken for b; the files are missing."""
    frames = [Frame(f"b{n}", "b", "o", "s", n, "train") for n in range(learned)]
    frames += [Frame(f"a{n}", "a", "o", "s", n, "train") for n in range(2)]
    frames.append(Frame("asked", "a", "o", "t", 0, "test"))
    table = FrameTable(frames, "nowhere")
    asked = predictions(table, answers=[1], confidence=[0.9])
    (pair,) = pair_pictures(table, asked, Counter({("a", "b"): 1}))
    assert [example.source for example in pair.learned] == shown
    assert [example.source for example in pair.mistaken] == ["asked"]


def test_kinds_of_test_images_are_counted(page):
    (row,) = page.tables["kinds-table"]
    texts = [cell["text"] for cell in row.values()]
    assert texts == ["other objects than were learned", "25.0", "4"]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("class", "b"),
        ("accuracy", "0.0"),
        ("tested", "2"),
        ("objects", "2"),
        ("clips", "4"),
        ("images", "4"),
    ],
)
def test_the_worst_class_is_on_top(page, column, text):
    assert page.tables["classes-table"][0][column]["text"] == text


def test_names_on_the_page_are_text(page):
    assert page.tags["script"] == 1


def test_objects_clips_and_rests_are_told_apart():
    frames = [
        Frame("a0.png", "a", "o0", "s0", 0, "train"),
        Frame("a1.png", "a", "o0", "s0", 1, "test"),
        Frame("a2.png", "a", "o0", "s1", 2, "test"),
        Frame("a3.png", "a", "o0", "s2", 3, "test"),
        Frame("a4.png", "a", "o1", "s0", 4, "test"),
        Frame("b.png", "b", "o0", "s1", 0, "train"),
    ]
    table = FrameTable(frames, classes=[*"ab"])
    rows = kinds_table(table, predictions(table, [0, 0, 1, 1], [1] * 4)).rows
    counts = [[cell.text for cell in row[1:]] for row in rows]
    assert counts == [["0.0", "1"], ["50.0", "2"], ["100.0", "1"]]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            ".crumb_frames/2fps/mug/kitchen.mp4/000004.png",
            "mug/kitchen.mp4, second 1.5",
        ),
        ("mug/kitchen/000004.png", "mug/kitchen/000004.png"),
    ],
)
def test_where_an_owner_finds_a_frame(path, source):
    assert source_of(path) == source


def test_the_pair_confused_most_is_filmed_next():
    pairs = Counter({("mug", "mug"): 9, ("mug", "bowl"): 3, ("bowl", "mug"): 1})
    (line,) = film_next(pairs)
    assert line.startswith("Film mug next")
    assert line.endswith("3 of 4 mistakes are mug taken for bowl.")


@pytest.mark.parametrize("pairs", [{("mug", "bowl"): 1}, {}])
def test_single_mistakes_are_not_filmed(pairs):
    assert film_next(Counter(pairs)) == []
