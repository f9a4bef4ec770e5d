"""``crumb predict``: a table, JSON, CSV and a page, and what it leaves out."""

import csv
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from fake_runs import Page
from fake_videos import write_video
from PIL import Image

from crumb_avalanche.cli.predict import (
    COLUMNS,
    check_strict_counts,
    csv_row,
    line_of,
    print_answers,
    summarize,
)
from crumb_avalanche.cli.settings import PredictSettings
from crumb_avalanche.images import camera
from crumb_avalanche.images.clips import Clip
from crumb_avalanche.learner.answer import Answer
from crumb_avalanche.learner.learner import Learner


@pytest.fixture
def predict(mine, done):
    """A function that asks the learner, and returns what is printed, in lines."""

    def asked(*words):
        return done("predict", mine, *words).splitlines()

    return asked


@pytest.fixture
def answers(predict):
    """A function that asks the learner, and returns its answers."""

    def asked(*words):
        return list(map(json.loads, predict(*words, "--json")))

    return asked


def test_a_folder_of_runs_is_told(refused, tmp_path):
    for number in range(2):
        run = tmp_path / "runs" / f"run{number}"
        run.mkdir(parents=True)
        (run / "learner.safetensors").touch()
    words = r"folder of 2 runs and has no learner.safetensors .*such as .*run0"
    refused(words, "predict", tmp_path / "runs", "photo.jpg")
    refused(words, "export", tmp_path / "runs")


@pytest.mark.parametrize("command", ["predict", "export", "learner show"])
def test_a_folder_without_a_learner_is_told(refused, tmp_path, command):
    words = "is a folder without a learner: give a learner file, .* folder of a run"
    source = ["photo.jpg"] if command == "predict" else []
    refused(words, *command.split(), tmp_path, *source)


# Forms of answers


def test_a_table(predict, place):
    labels = [line.split("  ")[1] for line in predict(place / "photos")]
    assert labels == ["blue", "green", "red"]


def test_a_camera_is_asked_for_its_seconds(predict, place, monkeypatch):
    asked = []

    def clip_of_camera(device, seconds):
        asked.append((device, seconds))
        return Clip(f"camera {device}", None, iter([("camera 0", image)]))

    image = Image.open(place / "photos" / "red.png")
    monkeypatch.setattr(camera, "camera_clip", clip_of_camera)
    (line,) = predict("--camera", "0", "--seconds", "3.5")
    assert line.split("  ")[:2] == ["camera 0", "red"]
    assert asked == [("0", 3.5)]


def test_json(answers, place):
    first, second, third = answers(place / "photos")
    assert [first["label"], second["label"], third["label"]] == ["blue", "green", "red"]
    assert first.keys() == {
        "path",
        "label",
        "confidence",
        "known",
        "unknown",
        "runners_up",
    }


def test_csv(predict, place):
    photos = place / "photos"
    lines = predict(photos / "red.png", photos / "blue.png", "--csv")
    first, second = csv.DictReader(io.StringIO("\n".join(lines)))
    assert (first["label"], second["label"]) == ("red", "blue")
    assert float(first["confidence"]) > 0.34


def test_each_answer_comes_at_once(tmp_path, monkeypatch):
    path = tmp_path / "out"

    def answers():
        yield Answer("mug", 0.5, True, path="0.jpg")
        assert "0.jpg" in path.read_text()
        yield Answer("mug", 0.5, True, path="1.jpg")
        assert "1.jpg" in path.read_text()

    with path.open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert len(print_answers(answers(), PredictSettings("mine"))) == 2


# What is named


@pytest.mark.parametrize("strict", [0.01, 0.99])
def test_a_strictness_of_these_answers(answers, mine, place, strict):
    # Given a learner that was asked enough clips to tell unknown things
    learner = Learner.load(mine)
    for level in range(learner.missing_clips):
        grey = np.full((2, 40, 40, 3), 50 * level, np.uint8)
        learner.teach(grey, "red")
    learner.save(mine)
    content = mine.read_bytes()
    # When it is asked with another confidence to name a class from
    asked = answers(place / "photos", "--strict", strict)
    # Then this decides what is named
    named = [answer["known"] for answer in asked]
    assert named == [answer["confidence"] >= strict for answer in asked]
    # And the learner stays as it is
    assert mine.read_bytes() == content


def test_nothing_is_known_before_unknown_things_can_be_told(answers, place):
    asked = answers(place / "photos")
    assert [answer["known"] for answer in asked] == [None] * 3
    assert [answer["unknown"] for answer in asked] == [False] * 3


def test_a_learner_that_cannot_tell_unknown_things_says_so_once(mine, place, crumb):
    # Given a learner without a prior, which was asked few clips before learning
    # When it is asked about several photos
    _, _, err = crumb("predict", mine, place / "photos", "--strict", 0.99)
    # Then it says once what is missing
    assert err.count("cannot tell unknown things yet, however strict it is") == 1


def test_no_strictness_of_a_run():
    learner = SimpleNamespace(strict=0.0, method="er")
    with pytest.raises(ValueError, match="er of a run always names a class"):
        check_strict_counts(learner)


# Cameras and videos


@pytest.fixture
def video(tmp_path):
    """Three seconds at ten frames a second."""
    pytest.importorskip("av")
    return write_video(tmp_path / "clip.mp4")


@pytest.mark.parametrize("frames", [1, 3])
def test_a_video_is_named_by_its_file(answers, tmp_path, frames):
    # Given a video of so many frames
    pytest.importorskip("av")
    path = write_video(tmp_path / "clip.mp4", seconds=frames / 10)
    # When it is asked about
    (answer,) = answers(path)
    # Then the answer is of the file, also if it has a single frame
    assert answer["path"] == str(path)


def test_watch_answers_each_frame(answers, video):
    frames = answers("--watch", video)
    assert len(frames) == 30
    assert frames[0].keys() >= {"label", "known", "time", "changed", "dropped"}


def test_watch_prints_changes(answers, predict, video):
    changes = sum(answer["changed"] for answer in answers("--watch", video))
    assert len(predict("--watch", video)) == changes > 0


@pytest.mark.parametrize("name", ["clip.mp4", "photo.png"])
def test_watch_prints_the_answer_for_what_is_short(answers, predict, tmp_path, name):
    # Given a video that is shorter than half a window, or a photo
    pytest.importorskip("av")
    path = tmp_path / name
    if name == "clip.mp4":
        write_video(path, seconds=0.4)
    else:
        Image.new("RGB", (32, 32), "red").save(path)
    # When it is watched
    lines = predict("--watch", path)
    # Then its last answer is printed, though no answer is a change
    *_, last = answers("--watch", path)
    assert not last["changed"]
    assert len(lines) == 1
    assert last["label"] in lines[0]


def test_watch_stands_alone(mine, video, refused):
    words = "--watch stands alone, or with --json"
    refused(words, "predict", mine, video, "--watch", video)


# Folders of classes


def test_a_labelled_folder_is_summed_up(mine, place, done):
    assert "3 of 3 right (100.0 %)" in done("predict", mine, place / "test")
    done("learner", "rename", mine, "red", "crimson")
    out = done("predict", mine, place / "test")
    assert "2 of 3 right" in out
    assert "red taken for crimson: 1" in out


@pytest.fixture
def trip(place, tmp_path):
    """Folders that are named after no class."""
    folder = tmp_path / "trip"
    for day, name in (("day1", "red"), ("day2", "blue")):
        (folder / day).mkdir(parents=True)
        shutil.copy(place / "photos" / f"{name}.png", folder / day)
    return folder


def test_folders_of_no_class_say_nothing(mine, trip, tmp_path, done, answers):
    page = tmp_path / "page.html"
    out = done("predict", mine, trip, "--html", page)
    assert "red.png  red" in out
    assert "right" not in out
    assert "taken for" not in out
    assert "Mistakes" not in Page(page.read_text()).text
    assert [answer.get("truth") for answer in answers(trip)] == [None, None]


def test_a_folder_of_nearly_the_name_of_a_class(mine, trip, done):
    # Given a folder whose name differs by case from that of the class in it
    (trip / "day1").rename(trip / "RED")
    # When it is asked about
    out = done("predict", mine, trip)
    # Then the right answer is no mistake
    assert "1 of 2 right (50.0 %)" in out
    assert "RED" not in out.partition("right")[2]


def test_one_folder_of_a_class_is_enough(mine, trip, done):
    (trip / "day1").rename(trip / "red")
    out = done("predict", mine, trip)
    assert "1 of 2 right (50.0 %)" in out
    assert "day2 taken for blue: 1" in out


def unknown_and_known(truth, label, unknown, known):
    """Answers for photos of a class: those called unknown, and those that are not."""
    of_unknown = [Answer(label, 1.0, False, truth=truth)] * unknown
    return of_unknown + [Answer(label, 1.0, True, truth=truth)] * known


@pytest.mark.parametrize(
    "line",
    [
        "6 of 18 right (33.3 %), 11 unknown, 1 taken for another class",
        "  dog was not taught: 3 of 4 unknown",
        "  dog taken for cow: 1",
    ],
)
def test_unknown_answers_are_summed_up(capsys, line):
    answers = unknown_and_known("cow", "cow", 8, 6)
    answers += unknown_and_known("dog", "cow", 3, 1)
    summarize(answers, {"cow", "horse"})
    assert line in capsys.readouterr().out.splitlines()


def test_the_most_confident_mistakes_are_listed_first(capsys):
    answers = []
    for confidence in (0.5, 0.9, 0.7):
        path = f"{confidence}.jpg"
        answers.append(Answer("cup", confidence, True, path=path, truth="mug"))
    summarize(answers, {"cup", "mug"})
    *_, first, second, third = capsys.readouterr().out.splitlines()
    assert first == "  0.9.jpg: cup 90 %, is mug"
    assert second == "  0.7.jpg: cup 70 %, is mug"
    assert third == "  0.5.jpg: cup 50 %, is mug"


def test_unknown_answers_have_no_share():
    answer = Answer("mug", 1.0, False, (("cup", 0.0),), path="a.jpg")
    assert line_of(answer) == "a.jpg  unknown (nearest: mug)"


@pytest.mark.parametrize(
    ("known", "unknown"), [(True, False), (False, True), (None, False)]
)
def test_unknown_in_json_and_csv(known, unknown):
    answer = Answer("mug", 0.5, known)
    assert answer.as_dict()["unknown"] is unknown
    assert dict(zip(COLUMNS, csv_row(answer), strict=True))["unknown"] is unknown


# Pages


def contents(folder):
    """The bytes of all files of a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def asked_for_a_page(mine, place, tmp_path, crumb):
    """A page of mistakes and an unreadable file, with code, output and error."""
    crumb("learner", "rename", mine, "red", "<i>")
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    page = tmp_path / "page.html"
    said = crumb("predict", mine, place / "test", bad, "--json", "--html", page)
    return page, said


def test_a_page_changes_no_answer(mine, place, asked_for_a_page, crumb):
    page, (code, out, err) = asked_for_a_page
    plain = crumb("predict", mine, place / "test", "--json")[1]
    assert (code, out) == (1, plain)
    assert f"written: {page}" in err


def test_nothing_is_written_beside_a_source(mine, place, tmp_path, done):
    before = contents(place)
    done("predict", mine, place / "test", "--html", tmp_path / "page.html")
    assert contents(place) == before


def test_a_page_says_what_is_wrong(asked_for_a_page):
    page = Page(asked_for_a_page[0].read_text())
    assert "2 of 3 right (66.7 %)" in page.text
    assert "1 file could not be read" in page.text
    (row,) = page.tables["confused"]
    cells = [row[name]["text"] for name in ("truth", "answer", "images")]
    assert cells == ["red", "<i>", "1"]
    mistakes = page.text.rindex("Mistakes")
    assert mistakes < page.text.index("is red") < page.text.rindex("Other answers")


def test_a_page_holds_its_pictures(asked_for_a_page):
    page = Page(asked_for_a_page[0].read_text())
    sources = [
        value
        for _, name, value in page.attributes
        if name in ("src", "href") and value[0] != "#"
    ]
    kinds = [source.partition(";")[0] for source in sources]
    # A photo and a heat map of each.
    assert kinds.count("data:image/jpeg") == 3
    assert kinds.count("data:image/png") == 3
    assert all(source.startswith("data:") for source in sources)


@pytest.mark.skipif(os.name != "posix", reason="a shell closes the output")
def test_a_page_without_an_output(mine, place, tmp_path):
    page = tmp_path / "page.html"
    words = [sys.executable, "-m", "crumb_avalanche.cli", "predict", mine]
    words += [place / "photos" / "red.png", "--html", page]
    command = shlex.join(map(str, words))
    process = subprocess.run(
        f"{command} >&-", shell=True, capture_output=True, text=True
    )
    assert process.returncode == 0
    assert process.stderr.splitlines()[-1] == f"written: {page}"
    assert "red.png" in Page(page.read_text()).text


# Boxes


@pytest.fixture
def boxes(place):
    """A file of boxes, of which one is wrong."""
    file = place / "boxes.json"
    boxes = {
        "photos/red.png": [[0, 0, 20, 20], [5, 5, 30, 30]],
        "photos/blue.png": [],
        "photos/green.png": [[9, 9, 2, 2]],
    }
    file.write_text(json.dumps(boxes), encoding="utf-8-sig")
    return file


def test_boxes_are_asked_about_one_by_one(mine, boxes, crumb):
    code, out, err = crumb("predict", mine, "--boxes", boxes, "--json")
    first, second = map(json.loads, out.splitlines())
    assert (first["box"], second["box"]) == ([0, 0, 20, 20], [5, 5, 30, 30])
    assert (first["label"], second["label"]) == ("red", "red")
    assert code == 1
    assert "green.png: box 1 of 1 is [9.0, 9.0, 2.0, 2.0], which is empty" in err
    assert "1 file could not be read" in err


def test_a_wrong_box_of_the_only_photo(mine, place, refused):
    file = place / "boxes.json"
    file.write_text('{"photos/red.png": [[10, 20, 90]]}')
    words = r"red.png: box 1 of 1 is \[10.0, 20.0, 90.0\], less than four numbers"
    refused(words, "predict", mine, "--boxes", file)


def test_a_damaged_photo_with_boxes(mine, tmp_path, refused):
    # Given a file of boxes of a photo that cannot be read
    (tmp_path / "cut.jpg").write_bytes(b"no image")
    (tmp_path / "boxes.json").write_text('{"cut.jpg": [[1, 1, 5, 5]]}')
    # When it is asked about
    err = refused(
        "cut.jpg: is not an image", "predict", mine, "--boxes", tmp_path / "boxes.json"
    )
    # Then the error names it once, and has no advice for Python
    assert err.count("cut.jpg") == 1
    assert "on_bad" not in err


def test_boxes_are_on_the_page(mine, boxes, tmp_path, crumb):
    page = tmp_path / "page.html"
    crumb("predict", mine, "--boxes", boxes, "--html", page)
    assert "red.png#box=5,5,30,30" in Page(page.read_text()).text


@pytest.mark.parametrize(
    "text", ["[]", "[" * 200_000, '{"a.png": null}', '{"a.png": [], "a.png": []}']
)
def test_a_file_that_holds_no_boxes(mine, tmp_path, refused, text):
    file = tmp_path / "boxes.json"
    file.write_text(text)
    words = r'is not JSON as {"photo.jpg": \[\[10, 20, 110, 220\]\]}'
    refused(words, "predict", mine, "--boxes", file)


# What is left out


def test_a_bad_source_keeps_no_other(mine, place, tmp_path, crumb):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    sources = [tmp_path / name for name in ("empty", "none.png", "bad.jpg")]
    code, out, err = crumb("predict", mine, *sources, place / "photos" / "red.png")
    assert code == 1
    assert "red.png  red" in out
    assert "3 files could not be read" in err
    assert "bad.jpg" in err
    assert "empty: holds no photo and no video" in err
    assert "there is no file or folder" in err


def test_predict_imports_only_what_it_needs(mine, place, tmp_path):
    program = (
        "import sys\nfrom crumb_avalanche.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "needless = {'avalanche', 'matplotlib', 'torchvision', 'torch._dynamo'}\n"
        "print(sorted(needless & {*sys.modules}), code)"
    )
    command = [sys.executable, "-c", program, "predict", mine]
    command += [place / "photos" / "red.png", "--html", tmp_path / "page.html"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert process.stdout.splitlines()[-1] == "[] 0", process.stdout
