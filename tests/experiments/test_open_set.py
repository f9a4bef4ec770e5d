"""Streams of lessons, measures and tables of the script for calibration and unknown classes."""

import numpy as np
import pytest
import torch
from open_set import left_out_sets
from PIL import Image
from support.open_set import METHODS, Stream, auroc, features_of, lessons_of, run_stream

from benchmarks_toybox_ilab.tables.frame import Frame
from benchmarks_toybox_ilab.tables.frame_table import FrameTable


def made_table(objects=4, clips=2, frames=6, classes=5):
    """Classes of four objects, of which the last is held out."""
    return FrameTable(
        [
            Frame(f"{c}/{o}/{s}/{f}", f"class{c}", f"object{o}", str(s), f, "test" if o == objects - 1 else "train")
            for c in range(classes)
            for o in range(objects)
            for s in range(clips)
            for f in range(frames)
        ]
    )


def test_auroc_by_hand():
    assert auroc(torch.tensor([3.0, 4]), torch.tensor([1.0, 2])) == 1
    assert auroc(torch.tensor([1.0, 3]), torch.tensor([2.0])) == 0.5
    assert auroc(torch.tensor([1.0]), torch.tensor([1.0])) == 0.5, "ties count half"


def test_a_lesson_is_an_object_with_all_its_clips():
    table = made_table()
    lessons = list(lessons_of(table, [0, 2, 3], seed=1))
    assert len(lessons) == 3 * 3 and all(len(rows) == 12 for _, rows in lessons)
    for label, rows in lessons:
        assert len({table.object_name[row] for row in rows}) == 1 and set(table.labels[rows]) == {label}
    assert len({label for label, _ in lessons[:6]}) == 2, "two classes at a time"
    taught = np.concatenate([rows for _, rows in lessons])
    assert sorted(taught) == [row for row in table.rows("train") if table.labels[row] in (0, 2, 3)]
    again = list(lessons_of(table, [0, 2, 3], seed=1))
    assert all(np.array_equal(one[1], other[1]) for one, other in zip(lessons, again))


def test_a_class_with_one_clip_has_lessons_of_twenty_photos():
    frames = [
        Frame(f"{c}/{f}", f"class{c}", "only", "0", f, "test" if f >= 50 else "train") for c in "ab" for f in range(60)
    ]
    lessons = list(lessons_of(FrameTable(frames), [0, 1], seed=0))
    assert sorted(len(rows) for _, rows in lessons) == [25] * 4
    assert len(set(np.concatenate([rows for _, rows in lessons]))) == 100


def test_combinations_left_out():
    table = Stream("eth80", lambda run: None, 2)
    assert len(left_out_sets(table, 8, 10)) == 28 == len(set(left_out_sets(table, 8, 10)))
    assert len(left_out_sets(table, 8, 3)) == 3 and len(left_out_sets(table, 50, 10)) == 10
    assert all(len(set(labels)) == 2 for labels in left_out_sets(table, 50, 10))


@pytest.mark.parametrize("method", METHODS)
def test_a_run_tells_separate_classes_and_unknown_ones(method):
    """Classes far apart, objects near each other: all answers right, unknown classes below known ones."""
    table = made_table(objects=7)
    generator = np.random.default_rng(0)
    centres, shifts = 10 * generator.normal(size=(5, 30)), generator.normal(size=(5, 7, 30))
    objects = np.array([int(name[6:]) for name in table.object_name])
    features = centres[table.labels] + shifts[table.labels, objects] + 0.3 * generator.normal(size=(len(table), 30))
    closed = run_stream(method, table, features, 10, (), 0)
    assert closed.accuracy == 1 and closed.ece < 0.1 and closed.unknown_rejected is None and not closed.auroc
    opened = run_stream(method, table, features, 10, (1, 4), 0, candidates=method == "rda")
    assert opened.auroc["chosen"] > 0.9 and opened.unknown_rejected > opened.known_rejected
    assert len(opened.auroc) == (13 if method == "rda" else 1)
    assert all(0 <= area <= 1 for area in opened.auroc.values())


def test_features_are_kept(tmp_path, make_model, monkeypatch):
    table = FrameTable(
        [Frame(f"{number}", "ab"[number % 2], "object", "0", number, "train") for number in range(4)],
        reader=lambda path: Image.new("RGB", (16, 16), (50 * int(path), 0, 90)),
    )
    moments = METHODS["rda"][0]
    first = features_of(make_model(), moments, table, tmp_path, "small")
    monkeypatch.setattr(FrameTable, "read", None)
    assert np.array_equal(features_of(make_model(), moments, table, tmp_path, "small"), first)
    with pytest.raises(TypeError):  # images are read for another network
        features_of(make_model(), moments, table, tmp_path, "other")
