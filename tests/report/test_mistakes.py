"""What a run on own clips says of its mistakes, and the rules for what would help."""

from collections import Counter

import numpy as np
import pytest
from html_pages import ATTACK, Page
from PIL import Image

from benchmarks_toybox_ilab.tables.frame import Frame
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.report.mistakes import (
    ClassCounts,
    advice,
    film_next,
    place_of,
    places_table,
    write_mistakes,
)
from crumb_avalanche.runs.run_folder import MISTAKES


def classes(**right):
    """Classes of 5 objects, 100 images and 40 test images of 2 objects each."""
    return [ClassCounts(name, 5, 10, 100, 40, number, 2) for name, number in right.items()]


def test_a_good_run_gets_no_advice():
    assert advice(classes(cup=40, mug=39), 1) == []


def test_the_worst_class_with_fewer_objects_is_named_first():
    few = ClassCounts("pen", 1, 2, 12, 40, 10, 2)
    better = ClassCounts("jar", 2, 2, 100, 40, 20, 2)
    right = ClassCounts("key", 1, 1, 10, 40, 40, 2)  # few objects are no harm here
    lines = advice([*classes(cup=40, mug=40), better, few, right], 50)
    shown = [line for line in lines if line.startswith("Show other objects")]
    assert [line.split(": ")[0] for line in shown] == ["Show other objects of pen", "Show other objects of jar"]
    assert all(part in shown[0] for part in ("10 of 40", "1 object in 2 clips", "12 images", "median", "2 objects"))


@pytest.mark.parametrize(("unread", "said"), [(0, False), (14, False), (15, True)])
def test_unread_files_are_named_from_a_twentieth(unread, said):
    lines = advice(classes(a=40, b=40), 0, unread, preset="paper")  # 280 files were read
    assert (f"{unread} of {280 + unread}" in "".join(lines)) == said


def test_a_test_on_few_images_is_not_trusted():
    (line,) = advice([*classes(a=40), ClassCounts("b", 5, 5, 100, 19, 19, 2)], 0)
    assert "1 of 2" in line and "b (19 images of 2 objects)" in line
    assert "b (90 images of 1 object)" in advice([ClassCounts("b", 5, 5, 100, 90, 90, 1)], 0)[0]


@pytest.fixture
def table(tmp_path):
    """Two classes of 2 + 1 objects with an image each clip; the second clip of the test object of b is missing."""
    frames = []
    for name in ("a", "b"):
        for number in range(6):
            path, split = f"{name}{number}.png", "test" if number > 3 else "train"
            frames.append(Frame(path, name, f"o{number // 2}", f"s{number % 2}", 0, split))
            if path != "b5.png":
                Image.new("RGB", (30, 20), (number, 99, 0)).save(tmp_path / path)
    return FrameTable(frames, tmp_path, classes=[*"ab"])


def predictions(table, answers, confidence):
    rows = table.rows("test")
    values = {"row": rows, "label": table.labels[rows], "answer": answers, "confidence": confidence}
    return {name: np.asarray(column) for name, column in values.items()}


def test_the_page_lists_mistakes_with_the_most_confident_first(table, tmp_path):
    write_mistakes(tmp_path, table, predictions(table, [1, 0, 0, 0], [0.5, 0.9, 0.7, 0.8]), "paper", ATTACK, 2)
    page = Page((tmp_path / MISTAKES).read_text())
    assert "1 of 4 test images right (25.0 %)" in page.text and "2 files could not be read" in page.text
    places = [page.text.rindex(f"{path}.png") for path in ("b5", "b4", "a4")]  # 80 %, 70 % and 50 % sure
    assert places == sorted(places) and "a5.png" not in page.text and "80\u00a0%" in "".join(page.texts)
    sources = [value for tag, key, value in page.attributes if (tag, key) == ("img", "src")]
    assert len(sources) == 10 and all(uri.startswith("data:image/jpeg") for uri in sources)  # b5 is missing
    assert page.text.index("b taken for a") < page.text.index("a0.png") < page.text.index("a taken for b")
    (line,) = page.tables["places-table"]
    assert [line[name]["text"] for name in line] == ["other objects than were learned", "25.0", "4"]
    worst = page.tables["classes-table"][0]
    shown = {name: worst[name]["text"] for name in ("class", "accuracy", "tested", "objects", "clips", "images")}
    assert shown == {"class": "b", "accuracy": "0.0", "tested": "2", "objects": "2", "clips": "4", "images": "4"}
    assert page.tags["script"] == 1 and "--preset recommended" in page.text


def test_held_out_objects_clips_and_rests_of_clips_are_told_apart():
    names = [
        ("o0", "s0", "train"),
        ("o0", "s0", "test"),
        ("o0", "s1", "test"),
        ("o0", "s2", "test"),
        ("o1", "s0", "test"),
    ]
    frames = [Frame(f"a{n}.png", "a", one, clip, n, split) for n, (one, clip, split) in enumerate(names)]
    table = FrameTable([*frames, Frame("b.png", "b", "o0", "s1", 0, "train")], classes=[*"ab"])
    rows = places_table(table, predictions(table, [0, 0, 1, 1], [1] * 4)).rows
    assert [[cell.text for cell in row[1:]] for row in rows] == [["0.0", "1"], ["50.0", "2"], ["100.0", "1"]]


def test_a_frame_of_a_video_is_named_by_clip_and_second():
    assert place_of(".crumb_frames/2fps/mug/kitchen.mp4/000004.png") == "mug/kitchen.mp4, second 1.5"
    assert place_of("mug/kitchen/000004.png") == "mug/kitchen/000004.png"


def test_the_pair_that_is_confused_most_is_to_be_filmed_next():
    (line,) = film_next(Counter({("mug", "mug"): 9, ("mug", "bowl"): 3, ("bowl", "mug"): 1}))
    assert line.startswith("Film mug next") and line.endswith("3 of 4 mistakes are mug taken for bowl.")
    assert film_next(Counter({("mug", "bowl"): 1})) == film_next(Counter()) == []
