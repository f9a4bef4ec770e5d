"""Streams of lessons, measures and tables of the script for calibration and unknown
classes.
"""

import argparse
import csv
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from novelty import Order, measured
from open_set import (
    SCENES,
    Run,
    confidence_margins,
    left_out_sets,
    print_thresholds,
    read_runs,
    run_rows,
    scenes_of,
    values_of,
)
from open_set import summary as summary_of_streams
from PIL import Image, ImageDraw
from scenes import (
    check_made_with,
    learned_in_a_run,
    measure,
    recorded_made_with,
    summary,
)
from support.open_set import (
    METHODS,
    Measured,
    Stream,
    auroc,
    lessons_of,
    output_of,
    run_stream,
)
from support.scenes import SIDE, TAUGHT, Scenes, View, view_of

from benchmarks_toybox_ilab.streams.protocols import plan_stream
from benchmarks_toybox_ilab.tables.frame import Frame
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.runs.run_folder import write_csv

REPOSITORY = Path(__file__).parents[2]
HEADER = (
    "stream,method,run,left_out,accuracy,ece,ece_usual,known_rejected,"
    "unknown_rejected,auroc\n"
)


def made_table(objects=4, clips=2, frames=6, classes=5):
    """Classes of four objects, of which the last is held out."""
    counts = (classes, objects, clips, frames)
    rows = []
    for class_, object_, clip, frame in np.ndindex(counts):
        row = Frame(
            path=f"{class_}/{object_}/{clip}/{frame}",
            class_name=f"class{class_}",
            object_name=f"object{object_}",
            session=str(clip),
            frame=frame,
            split="test" if object_ == objects - 1 else "train",
        )
        rows.append(row)
    return FrameTable(rows)


def test_auroc_by_hand():
    assert auroc(torch.tensor([3.0, 4]), torch.tensor([1.0, 2])) == 1
    assert auroc(torch.tensor([1.0, 3]), torch.tensor([2.0])) == 0.5
    assert auroc(torch.tensor([1.0]), torch.tensor([1.0])) == 0.5, "ties count half"


def test_a_lesson_is_an_object_with_all_its_clips():
    table = made_table()
    labels, rows_of_lessons = zip(*lessons_of(table, [0, 2, 3], seed=1))
    names = np.array(table.object_name)
    rows = np.array(rows_of_lessons)
    assert rows.shape == (3 * 3, 12)
    assert (names[rows] == names[rows[:, :1]]).all()
    assert (labels == table.labels[rows].T).all()
    assert len(set(labels[:6])) == 2, "two classes at a time"
    train = table.rows("train")
    taught = train[np.isin(table.labels[train], [0, 2, 3])]
    assert sorted(rows.flatten()) == taught.tolist()


def test_lessons_of_a_seed():
    table = made_table()
    _, rows = zip(*lessons_of(table, [0, 2, 3], seed=1))
    _, same_rows = zip(*lessons_of(table, [0, 2, 3], seed=1))
    assert np.array_equal(rows, same_rows)


def test_combinations_left_out():
    table = Stream("eth80", lambda run: None, 2)
    assert (
        len(left_out_sets(table, 8, 10)) == 28 == len(set(left_out_sets(table, 8, 10)))
    )
    assert (
        len(left_out_sets(table, 8, 3)) == 3 and len(left_out_sets(table, 50, 10)) == 10
    )
    assert all(len(set(labels)) == 2 for labels in left_out_sets(table, 50, 10))


@pytest.fixture
def make():
    """A function that makes a learner of whole images with a small network of random
    weights.
    """

    def made(method="rda"):
        torch.manual_seed(0)
        return Learner(method, "small_cnn", None, 32, looks=(1.0,))

    return made


@pytest.mark.parametrize("method", METHODS[:2])
def test_a_run_tells_separate_classes_and_unknown_ones(method, make):
    """Classes far apart, objects near each other.

    All answers right, unknown classes below known ones.
    """
    table, empty = made_table(objects=7), make(method)._classifier
    generator = np.random.default_rng(0)
    length = empty.length
    centres, shifts = (
        10 * generator.normal(size=(5, length)),
        generator.normal(size=(5, 7, length)),
    )
    objects = np.array([int(name[6:]) for name in table.object_name])
    noise = 0.3 * generator.normal(size=(len(table), length))
    features = torch.from_numpy(
        centres[table.labels] + shifts[table.labels, objects] + noise
    ).float()
    closed = run_stream(empty, table, features, (), 0)
    assert (
        closed.accuracy == 1
        and closed.ece < 0.1
        and closed.unknown_rejected is None
        and closed.auroc is None
    )
    opened = run_stream(empty, table, features, (1, 4), 0)
    assert opened.auroc > 0.9 and opened.unknown_rejected > opened.known_rejected
    assert not empty.classes.names, "the one without classes stays"


def test_novelty_along_a_stream(make):
    """Classes far apart: all answers right.

    Images of later classes and novel ones score lower.
    """
    table, empty = made_table(objects=7), make("slda")._classifier
    centres = 10 * np.random.default_rng(0).normal(size=(6, empty.length))
    noise = np.random.default_rng(1).normal(size=(len(table), empty.length))
    features = torch.from_numpy(centres[table.labels] + noise).float()
    novel = torch.from_numpy(centres[5] + noise[:9]).float()
    rows = plan_stream(table, "class_instance", 3, 1).train
    stages = list(measured(empty, Order(table, features, novel, rows), every=2))
    assert [(stage.classes, stage.accuracy) for stage in stages] == [
        (2, 1.0),
        (4, 1.0),
        (5, 1.0),
    ]
    # Two classes far apart share no image: the largest probability is always 1.
    assert stages[-1].auroc > 0.8
    assert all(stage.auroc_of_learner > 0.9 for stage in stages)
    (end,) = measured(empty, Order(table, features, novel[:0], rows), every=5)
    assert end.auroc is None and end.auroc_of_learner is None


def noise_picture(draws):
    pixels = draws.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((32, 32))


def test_scenes(make, tmp_path, monkeypatch, capsys):
    """What is shown as nothing is called known less often; features are kept."""
    draws = np.random.default_rng(0)
    files = []
    for number in range(150):
        files.append(tmp_path / f"{number}.png")
        noise_picture(draws).save(files[-1])
    objects = {}
    for label in range(8):
        objects[f"class{label}"] = {}
        for number in range(3):
            picture = noise_picture(draws)
            view = View(picture, picture.convert("RGBA"))
            objects[f"class{label}"][f"object{number}"] = [view] * 20
    monkeypatch.setattr("open_set.cut_outs", lambda root: objects)
    monkeypatch.setattr("open_set.half_of", lambda folders, development: files)
    chosen = argparse.Namespace(
        eth80=tmp_path / "objects",
        photos=[],
        splits=1,
        features=tmp_path / "kept",
        backbone="small_cnn",
    )
    learner = make()
    (scenes,) = scenes_of(learner, chosen, True)
    assert len(scenes.uses) == len(scenes.labels) == 8 * 28 + 40
    assert len(scenes.features) == 8 * 28 + 40
    (again,) = scenes_of(learner, chosen, True)
    assert torch.equal(scenes.features, again.features)
    noise_picture(draws).resize((40, 40)).save(files[0])
    list(scenes_of(learner, chosen, True))
    assert len(list(chosen.features.iterdir())) == 2, "features of other photos"
    scores = confidence_margins(learner, scenes, (0, 1))
    assert (
        set(SCENES) <= set(scores)
        and len(scores["never taught"]) == 6 * 12
        and len(scores["known"]) == 16
    )
    assert (scores["own scene, shown"] >= 0).sum() <= (scores["own scene"] >= 0).sum()
    print_thresholds(learner, chosen)
    assert re.search(
        r"8 classes: .*\nsmall_cnn: -?[01]\.\d{3}$", capsys.readouterr().out.strip()
    )


BLUE, RED, GREEN = (40, 60, 190), (190, 50, 40), (70, 160, 60)


def picture(shape, colour, angle=0):
    image = Image.new("RGB", (128, 128), BLUE)
    getattr(ImageDraw.Draw(image), shape)((30 + angle, 34, 94 + angle, 90), fill=colour)
    return image


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder, draws = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(400):
        colours = draws.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(colours).save(folder / f"{number}.png")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    path = tmp_path_factory.mktemp("views") / "view.png"
    objects = {}
    for name, shape, colour in (("cup", "rectangle", RED), ("pear", "ellipse", GREEN)):
        objects[name] = {}
        for number in range(3):
            own_colour = tuple(np.add(colour, 5 * number).tolist())
            views = []
            for view_number in range(16):
                picture(shape, own_colour, view_number).save(path)
                views.append(view_of(path))
            objects[name][f"{name}{number}"] = views
    return objects


def test_an_object_is_cut_out_of_a_blue_ground(objects, tmp_path):
    cup = objects["cup"]["cup0"][0].cut
    assert abs(cup.width - 65) <= 4 and abs(cup.height - 57) <= 4
    pixels = np.asarray(cup)
    assert pixels[pixels[:, :, 3] == 255][:, :3].mean(0) == pytest.approx(RED, abs=12)
    Image.new("RGB", (128, 128), BLUE).save(tmp_path / "empty.png")
    assert view_of(tmp_path / "empty.png") is None


def test_an_object_has_the_height_that_is_asked_for(objects, photos):
    scenes = Scenes(objects, photos, 0)
    black = Image.new("RGB", (SIDE, SIDE))
    rows = (
        np.asarray(scenes.shown(objects["cup"]["cup0"][0], black, 0.5))
        .any(2)
        .any(1)
        .nonzero()[0]
    )
    assert rows[-1] - rows[0] + 1 == pytest.approx(0.5 * SIDE, abs=2)


def lesson_images(objects, photos, stream):
    """The images of each lesson of a split, `(lessons, TAUGHT, SIDE, SIDE, 3)`."""
    _, images = zip(*Scenes(objects, photos, 3).lessons(stream))
    return np.array([list(map(np.asarray, of_lesson)) for of_lesson in images])


def test_too_few_photos_are_counted(objects, photos):
    with pytest.raises(ValueError, match=r"there are 2 photos .* a split takes 187;"):
        Scenes(objects, photos[:2], 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"development": True}, "made with development False, and this command has"),
        ({"weights_of": {"small": "other"}}, "made with weights of small none"),
    ],
)
def test_counts_of_other_options_are_not_resumed(change, words, tmp_path):
    values = dict(
        output=tmp_path,
        eth80=None,
        photos=[],
        development=False,
        runtime="torch",
        quick=False,
        weights_of={"small": "none"},
    )
    check_made_with(argparse.Namespace(**values))
    check_made_with(argparse.Namespace(**{**values, "weights_of": {"large": "none"}}))
    with pytest.raises(ValueError, match=f"{words}.*give another --output"):
        check_made_with(argparse.Namespace(**{**values, **change}))


def test_counts_of_unknown_options_are_not_resumed(tmp_path):
    (tmp_path / "scenes.csv").write_text("counts")
    with pytest.raises(ValueError, match=r"counts and no made_with\.json"):
        recorded_made_with(tmp_path)


@pytest.mark.parametrize("quick", [True, False])
def test_quick_tables_have_a_folder_of_their_own(quick):
    chosen = argparse.Namespace(output="runs", quick=quick)
    assert output_of(chosen) == (Path("runs/quick") if quick else Path("runs"))


def test_a_split_has_the_same_images(objects, photos):
    images = lesson_images(objects, photos, "own")
    assert np.array_equal(images, lesson_images(objects, photos, "own"))


@pytest.mark.parametrize(("stream", "count"), [("own", 1), ("three", 3), ("plain", 1)])
def test_photos_of_a_lesson(objects, photos, stream, count):
    for images in lesson_images(objects, photos, stream):
        assert len(np.unique(images[:, 0, 0], axis=0)) == count


def test_all_lessons_of_a_table_have_one_photo(objects, photos):
    images = lesson_images(objects, photos, "table")
    assert images.shape[:2] == (2, TAUGHT)
    assert len(np.unique(images[:, :, 0, 0].reshape(-1, 3), axis=0)) == 1


@pytest.mark.parametrize("stream, ways", [("own", 9), ("plain", 2)])
def test_a_learner_is_taught_and_asked(
    objects, photos, weights_file, stream, ways, monkeypatch
):
    torch.set_num_threads(1)
    monkeypatch.setattr("scenes.AT_A_TIME", 3)  # so that the last image is asked alone
    learner = Learner("slda", "small_cnn", weights_file, 32, looks=(0.75, 0.5))
    counts = measure(learner, Scenes(objects, photos, 1), stream)
    assert len(counts) == ways
    assert counts["same"].images == 4
    for count in counts.values():
        assert 0 <= count.right <= count.images and count.known <= count.images


def test_a_summary_has_a_line_for_each_case():
    case = dict(backbone="small", method="slda", looks="0.75", stream="own")
    rows = []
    for split, right in (("0", "4"), ("1", "2")):
        row = {**case, "split": split, "images": "4", "right": right}
        rows.append({**row, "asked": "same", "known": "4"})
        rows.append({**row, "asked": "empty", "known": "1"})
    header, _, line = summary(rows).splitlines()
    assert "same" in header and "empty called known" in header
    assert "75.0 ± 317.7" in line and "25.0 ± 0.0" in line


def test_a_method_without_lessons_learns_the_same_middles_in_a_run(
    objects, photos, weights_file, tmp_path
):
    scenes = Scenes(objects, photos, 1)
    learner = learned_in_a_run(
        scenes,
        "own",
        0.6,
        tmp_path,
        strategy="crumb",
        backbone="small_cnn",
        weights=str(weights_file),
        image_size=32,
        first_epochs=1,
        threads=1,
    )
    # Two objects with one image each are held out.
    (last,) = (tmp_path / "clips" / "cup").glob("*/7.png")
    with Image.open(last) as image:
        assert image.size == (154, 154)
    counts = measure(learner, scenes, "own", share=0.6)
    assert len(counts) == 9
    assert counts["same"].images == 4
    assert counts["empty"].images == 60 and counts["empty"].right == 0


def open_run(number, rejected):
    """A run of ETH-80 that leaves a class out and rejects so much of it."""
    measured = Measured(1.0, 0.0, 0.0, 0.0, rejected, 0.5)
    return Run("eth80", "rda", number, ("car",), measured, split=f"split{number}")


def test_runs_of_a_split_are_one_unit():
    runs = [open_run(0, 0.1), open_run(1, 0.5), open_run(0, 0.3)]
    values = values_of(runs, "eth80", "rda", "unknown_rejected")
    assert values == pytest.approx([0.2, 0.5])


def test_runs_of_a_file_are_those_written(tmp_path):
    runs = [open_run(0, 0.25), open_run(1, 0.5)]
    path = tmp_path / "open_set_runs.csv"
    write_csv(path, run_rows(runs))
    assert read_runs(path) == runs


@pytest.mark.parametrize(
    ("text", "words"),
    [("stream,run\n", "has no column method"), (HEADER, "has no runs")],
)
def test_a_file_without_runs_is_refused(text, words, tmp_path):
    path = tmp_path / "open_set_runs.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        read_runs(path)


@pytest.mark.parametrize(
    ("runs", "published"),
    [
        ("experiments/results/open_set_runs.csv", "open_set.csv"),
        ("docs/results/open_set_recommended_runs.csv", "open_set_recommended.csv"),
    ],
)
def test_published_intervals_are_those_of_the_recorded_runs(runs, published):
    _, lines = summary_of_streams(read_runs(REPOSITORY / runs))
    with open(REPOSITORY / "docs" / "results" / published, newline="") as file:
        _, *rows = csv.reader(file)
    assert [line[1:] for line in lines] == [row[1:] for row in rows[: len(lines)]]
