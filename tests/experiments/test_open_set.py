"""Streams of lessons, measures and tables of the script for calibration and unknown
classes.
"""

import argparse
import csv
import re
import shutil
from dataclasses import replace
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
    for class_number, object_number, clip, frame in np.ndindex(counts):
        is_held_out = object_number == objects - 1
        row = Frame(
            path=f"{class_number}/{object_number}/{clip}/{frame}",
            class_name=f"class{class_number}",
            object_name=f"object{object_number}",
            session=str(clip),
            frame=frame,
            split="test" if is_held_out else "train",
        )
        rows.append(row)
    return FrameTable(rows)


@pytest.mark.parametrize(
    ("known", "unknown", "area"),
    [([3.0, 4], [1.0, 2], 1), ([1.0, 3], [2.0], 0.5), ([1.0], [1.0], 0.5)],
    ids=["separate", "mixed", "ties count half"],
)
def test_auroc_by_hand(known, unknown, area):
    assert auroc(torch.tensor(known), torch.tensor(unknown)) == area


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


TWO_LEFT_OUT = Stream("eth80", lambda run: None, left_out=2)


def test_many_runs_leave_out_each_combination_once():
    left_out = left_out_sets(TWO_LEFT_OUT, classes=8, runs=10)
    assert len(left_out) == 28
    assert len(set(left_out)) == 28


def test_few_runs_leave_out_a_set_each():
    assert len(left_out_sets(TWO_LEFT_OUT, classes=8, runs=3)) == 3


def test_runs_of_many_classes_leave_out_a_set_each():
    left_out = left_out_sets(TWO_LEFT_OUT, classes=50, runs=10)
    assert len(left_out) == 10
    assert all(len(set(labels)) == 2 for labels in left_out)


def make_learner(method="rda"):
    """A learner of whole images with a small network of random weights."""
    torch.manual_seed(0)
    return Learner(method, "small_cnn", None, 32, looks=(1.0,))


@pytest.fixture
def table():
    return made_table(objects=7)


def separate_features(table, length):
    """Features ``(rows, length)`` of which classes are far apart, objects near each
    other.
    """
    generator = np.random.default_rng(0)
    centres = 10 * generator.normal(size=(5, length))
    shifts = generator.normal(size=(5, 7, length))
    noise = 0.3 * generator.normal(size=(len(table), length))
    objects = np.array([int(name[6:]) for name in table.object_name])
    middles = centres[table.labels] + shifts[table.labels, objects]
    return torch.from_numpy(middles + noise).float()


@pytest.mark.parametrize("method", METHODS[:2])
def test_a_run_tells_separate_classes(method, table):
    empty = make_learner(method)._classifier
    features = separate_features(table, empty.length)
    measures = run_stream(empty, table, features, (), 0)
    assert measures.accuracy == 1
    assert measures.ece < 0.1
    assert measures.unknown_rejected is None
    assert measures.auroc is None
    assert not empty.classes.names, "a copy was taught"


@pytest.mark.parametrize("method", METHODS[:2])
def test_a_run_tells_unknown_classes_from_known_ones(method, table):
    empty = make_learner(method)._classifier
    features = separate_features(table, empty.length)
    measures = run_stream(empty, table, features, (1, 4), 0)
    assert measures.auroc > 0.9
    assert measures.unknown_rejected > measures.known_rejected
    assert not empty.classes.names, "a copy was taught"


@pytest.fixture
def empty():
    """A classifier without classes."""
    return make_learner("slda")._classifier


@pytest.fixture
def order(table, empty):
    """Five classes far apart, taught one by one, and a novel sixth."""
    centres = 10 * np.random.default_rng(0).normal(size=(6, empty.length))
    noise = np.random.default_rng(1).normal(size=(len(table), empty.length))
    features = torch.from_numpy(centres[table.labels] + noise).float()
    novel = torch.from_numpy(centres[5] + noise[:9]).float()
    rows = plan_stream(table, "class_instance", 3, 1).train
    return Order(table, features, novel, rows)


def test_later_and_novel_classes_score_lower_along_a_stream(empty, order):
    stages = list(measured(empty, order, every=2))
    assert [stage.classes for stage in stages] == [2, 4, 5]
    assert [stage.accuracy for stage in stages] == [1.0, 1.0, 1.0]
    assert all(stage.auroc_of_learner > 0.9 for stage in stages)
    # Two classes far apart share no image: the largest probability is always 1.
    assert stages[-1].auroc > 0.8


def test_a_stream_without_novel_images_has_no_auroc_at_its_end(empty, order):
    without_novel = replace(order, novel=order.novel[:0])
    (end,) = measured(empty, without_novel, every=5)
    assert end.auroc is None
    assert end.auroc_of_learner is None


def noise_image(draws):
    pixels = draws.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((32, 32))


def noise_objects(draws):
    """Eight classes of three objects, each with 20 times the same view of noise."""
    objects = {}
    for label in range(8):
        objects[f"class{label}"] = {}
        for number in range(3):
            image = noise_image(draws)
            view = View(image, image.convert("RGBA"))
            objects[f"class{label}"][f"object{number}"] = [view] * 20
    return objects


class NoiseScenes:
    """Photos and objects of noise, the options of the script, and a learner."""

    def __init__(self, folder):
        draws = np.random.default_rng(0)
        self.files = [folder / f"{number}.png" for number in range(150)]
        for file in self.files:
            noise_image(draws).save(file)
        self.objects = noise_objects(draws)
        self.options = argparse.Namespace(
            eth80=folder / "objects",
            photos=[],
            splits=1,
            features=folder / "features",
            backbone="small_cnn",
        )
        self.learner = make_learner()

    def features(self):
        """Features of the images of the split."""
        (scenes,) = scenes_of(self.learner, self.options, development=True)
        return scenes

    def stored(self):
        """The files of stored features."""
        return set(self.options.features.iterdir())


@pytest.fixture(scope="module")
def noise_scenes(tmp_path_factory):
    """Scenes of objects and photos of noise, which the script finds."""
    scenes = NoiseScenes(tmp_path_factory.mktemp("scenes"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("open_set.cut_outs", lambda root: scenes.objects)
        patch.setattr("open_set.half_of", lambda folders, development: scenes.files)
        yield scenes


@pytest.fixture(scope="module")
def scene_features(noise_scenes):
    return noise_scenes.features()


def test_scenes_are_of_all_classes_and_empty_photos(scene_features):
    assert len(scene_features.uses) == 8 * 28 + 40
    assert len(scene_features.labels) == 8 * 28 + 40
    assert len(scene_features.features) == 8 * 28 + 40


def test_what_is_shown_as_nothing_is_called_known_less_often(
    noise_scenes, scene_features
):
    margins = confidence_margins(noise_scenes.learner, scene_features, (0, 1))
    assert set(SCENES) <= set(margins)
    assert len(margins["never taught"]) == 6 * 12
    assert len(margins["known"]) == 16
    called_known = (margins["own scene"] >= 0).sum()
    called_known_after = (margins["own scene, shown"] >= 0).sum()
    assert called_known_after <= called_known


def test_thresholds_are_printed(noise_scenes, capsys):
    print_thresholds(noise_scenes.learner, noise_scenes.options)
    printed = capsys.readouterr().out.strip()
    assert re.search(r"8 classes: .*\nsmall_cnn: -?[01]\.\d{3}$", printed)


def test_features_of_scenes_are_stored(noise_scenes, scene_features):
    stored = noise_scenes.stored()
    assert torch.equal(noise_scenes.features().features, scene_features.features)
    assert noise_scenes.stored() == stored


@pytest.fixture
def changed_photo(noise_scenes, tmp_path):
    """A photo of the scenes that is replaced during the test."""
    photo = noise_scenes.files[0]
    shutil.copy2(photo, tmp_path / "first.png")
    noise_image(np.random.default_rng(1)).resize((40, 40)).save(photo)
    yield photo
    shutil.copy2(tmp_path / "first.png", photo)


def test_features_of_other_photos_are_stored_beside_them(
    noise_scenes, scene_features, changed_photo
):
    stored = noise_scenes.stored()
    noise_scenes.features()
    assert stored < noise_scenes.stored()
    assert len(noise_scenes.stored()) == len(stored) + 1


BLUE = (40, 60, 190)
RED = (190, 50, 40)
GREEN = (70, 160, 60)


def shape_on_blue(shape, colour, shift=0):
    """An image of a rectangle or an ellipse on a blue ground."""
    image = Image.new("RGB", (128, 128), BLUE)
    draw = getattr(ImageDraw.Draw(image), shape)
    draw((30 + shift, 34, 94 + shift, 90), fill=colour)
    return image


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Files of 400 photos of smooth colours."""
    folder = tmp_path_factory.mktemp("photos")
    draws = np.random.default_rng(0)
    for number in range(400):
        colours = draws.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(colours).save(folder / f"{number}.png")
    return sorted(folder.iterdir())


def views_of(shape, colour, path):
    """Views of an object, each shifted by a pixel more."""
    views = []
    for shift in range(16):
        shape_on_blue(shape, colour, shift).save(path)
        views.append(view_of(path))
    return views


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """Three cups and three pears, each of its own colour, with 16 views."""
    path = tmp_path_factory.mktemp("views") / "view.png"
    objects = {"cup": {}, "pear": {}}
    for number in range(3):
        red = tuple(np.add(RED, 5 * number).tolist())
        green = tuple(np.add(GREEN, 5 * number).tolist())
        objects["cup"][f"cup{number}"] = views_of("rectangle", red, path)
        objects["pear"][f"pear{number}"] = views_of("ellipse", green, path)
    return objects


def test_an_object_is_cut_out_of_a_blue_ground(objects):
    cup = objects["cup"]["cup0"][0].cut
    assert cup.width == pytest.approx(65, abs=4)
    assert cup.height == pytest.approx(57, abs=4)
    pixels = np.asarray(cup)
    is_opaque = pixels[:, :, 3] == 255
    mean_colour = pixels[is_opaque][:, :3].mean(0)
    assert mean_colour == pytest.approx(RED, abs=12)


def test_a_blue_ground_without_an_object_has_no_view(tmp_path):
    Image.new("RGB", (128, 128), BLUE).save(tmp_path / "empty.png")
    assert view_of(tmp_path / "empty.png") is None


def test_an_object_has_the_height_that_is_asked_for(objects, photos):
    scenes = Scenes(objects, photos, 0)
    black = Image.new("RGB", (SIDE, SIDE))
    image = scenes.shown(objects["cup"]["cup0"][0], black, 0.5)
    has_object = np.asarray(image).any(axis=(1, 2))  # of each row of pixels
    rows = has_object.nonzero()[0]
    assert rows[-1] - rows[0] + 1 == pytest.approx(0.5 * SIDE, abs=2)


def lesson_images(objects, photos, stream):
    """The images of each lesson of a split, `(lessons, TAUGHT, SIDE, SIDE, 3)`."""
    pixels = []
    for _, images in Scenes(objects, photos, 3).lessons(stream):
        pixels.append(np.stack(images))
    return np.stack(pixels)


def test_too_few_photos_are_counted(objects, photos):
    with pytest.raises(ValueError, match=r"there are 2 photos .* a split takes 187;"):
        Scenes(objects, photos[:2], 0)


MADE_WITH = {
    "eth80": None,
    "photos": [],
    "development": False,
    "runtime": "torch",
    "quick": False,
    "weights_of": {"small": "none"},
}


def check_options(output, **changes):
    check_made_with(argparse.Namespace(output=output, **{**MADE_WITH, **changes}))


def test_counts_of_another_network_are_added(tmp_path):
    check_options(tmp_path)
    check_options(tmp_path, weights_of={"large": "none"})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"development": True}, "made with development False, and this command has"),
        ({"weights_of": {"small": "other"}}, "made with weights of small none"),
    ],
    ids=["other photos", "other weights"],
)
def test_counts_of_other_options_are_not_resumed(change, words, tmp_path):
    check_options(tmp_path)
    check_options(tmp_path, weights_of={"large": "none"})
    with pytest.raises(ValueError, match=f"{words}.*give another --output"):
        check_options(tmp_path, **change)


def test_counts_of_unknown_options_are_not_resumed(tmp_path):
    (tmp_path / "scenes.csv").write_text("counts")
    with pytest.raises(ValueError, match=r"counts and no made_with\.json"):
        recorded_made_with(tmp_path)


@pytest.mark.parametrize(
    ("quick", "folder"), [(True, Path("runs/quick")), (False, Path("runs"))]
)
def test_quick_tables_have_a_folder_of_their_own(quick, folder):
    chosen = argparse.Namespace(output="runs", quick=quick)
    assert output_of(chosen) == folder


def test_a_split_has_the_same_images(objects, photos):
    images = lesson_images(objects, photos, "own")
    assert np.array_equal(images, lesson_images(objects, photos, "own"))


@pytest.mark.parametrize(("stream", "count"), [("own", 1), ("three", 3), ("plain", 1)])
def test_photos_of_a_lesson(objects, photos, stream, count):
    for images in lesson_images(objects, photos, stream):
        corners = images[:, 0, 0]
        assert len(np.unique(corners, axis=0)) == count


def test_all_lessons_of_a_table_have_one_photo(objects, photos):
    images = lesson_images(objects, photos, "table")
    assert images.shape[:2] == (2, TAUGHT)
    corners = images[:, :, 0, 0].reshape(-1, 3)
    assert len(np.unique(corners, axis=0)) == 1


@pytest.mark.parametrize(("stream", "ways"), [("own", 9), ("plain", 2)])
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
        assert 0 <= count.right <= count.images
        assert count.known <= count.images


def test_a_summary_has_a_line_for_each_case():
    case = dict(backbone="small", method="slda", looks="0.75", stream="own", images="4")
    first = {**case, "split": "0", "right": "4"}
    second = {**case, "split": "1", "right": "2"}
    rows = []
    for counts in (first, second):
        rows.append({**counts, "asked": "same", "known": "4"})
        rows.append({**counts, "asked": "empty", "known": "1"})
    header, _, line = summary(rows).splitlines()
    assert "same" in header
    assert "empty called known" in header
    assert "75.0 ± 317.7" in line
    assert "25.0 ± 0.0" in line


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
    (last_frame,) = (tmp_path / "clips" / "cup").glob("*/7.png")
    with Image.open(last_frame) as image:
        assert image.size == (154, 154)
    counts = measure(learner, scenes, "own", share=0.6)
    assert len(counts) == 9
    assert counts["same"].images == 4
    assert counts["empty"].images == 60
    assert counts["empty"].right == 0


def open_run(number, unknown_rejected):
    """A run of ETH-80 that leaves a class out and rejects this share of it."""
    measures = Measured(
        accuracy=1.0,
        ece=0.0,
        ece_usual=0.0,
        known_rejected=0.0,
        unknown_rejected=unknown_rejected,
        auroc=0.5,
    )
    return Run("eth80", "rda", number, ("car",), measures, split=f"split{number}")


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
    ids=["without a column", "without a row"],
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
    ids=["all methods", "recommended"],
)
def test_published_intervals_are_those_of_the_recorded_runs(runs, published):
    _, lines = summary_of_streams(read_runs(REPOSITORY / runs))
    with open(REPOSITORY / "docs" / "results" / published, newline="") as file:
        _, *published_lines = csv.reader(file)
    published_lines = published_lines[: len(lines)]
    assert [line[1:] for line in lines] == [line[1:] for line in published_lines]
