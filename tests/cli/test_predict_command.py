"""crumb predict: a table, JSON, CSV and a page; what it leaves out, and what it does not import."""

import csv
import io
import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest
from fake_runs import Page
from fake_videos import write_video

from crumb_avalanche.cli.predict import printed
from crumb_avalanche.cli.settings import PredictSettings
from crumb_avalanche.learner.answer import Answer


def test_predict_as_table_json_and_csv(mine, place, done):
    out = done("predict", mine, place / "photos")
    assert [line.split("  ")[1] for line in out.splitlines()] == [
        "blue",
        "green",
        "red",
    ]
    answers = [
        json.loads(line)
        for line in done("predict", mine, place / "photos", "--json").splitlines()
    ]
    assert [answer["label"] for answer in answers] == ["blue", "green", "red"]
    assert all(
        answer.keys() == {"path", "label", "confidence", "known", "runners_up"}
        for answer in answers
    )
    out = done(
        "predict",
        mine,
        place / "photos" / "red.png",
        place / "photos" / "blue.png",
        "--csv",
    )
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["label"] for row in rows] == ["red", "blue"] and float(
        rows[0]["confidence"]
    ) > 0.34


def test_watch_prints_every_answer_as_json_or_what_changes(
    mine, tmp_path, done, refused
):
    pytest.importorskip("av")
    video = write_video(tmp_path / "clip.mp4")  # 3 seconds at 10 frames per second
    answers = [
        json.loads(line)
        for line in done("predict", mine, "--watch", video, "--json").splitlines()
    ]
    assert len(answers) == 30 and answers[0].keys() >= {
        "label",
        "known",
        "time",
        "changed",
        "dropped",
    }
    changes = done("predict", mine, "--watch", video).splitlines()
    assert len(changes) == sum(answer["changed"] for answer in answers) > 0
    refused(
        "--watch stands alone, or with --json", "predict", mine, video, "--watch", video
    )


def test_each_answer_is_written_as_it_comes(tmp_path, monkeypatch):
    def answers():
        for number in range(3):
            yield Answer("mug", 0.5, True, path=f"{number}.jpg")
            assert f"{number}.jpg" in (tmp_path / "out").read_text()

    with open(tmp_path / "out", "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert len(printed(answers(), PredictSettings("mine"))) == 3


def test_predict_sums_up_a_labelled_folder(mine, place, done):
    assert "3 of 3 right (100.0 %)" in done("predict", mine, place / "test")
    done("learner", "rename", mine, "red", "crimson")
    out = done("predict", mine, place / "test")
    assert "2 of 3 right" in out and "red taken for crimson: 1" in out


def test_folders_that_are_named_after_no_class_say_nothing_about_the_truth(
    mine, place, tmp_path, done
):
    for day, name in (("day1", "red"), ("day2", "blue")):
        (tmp_path / "trip" / day).mkdir(parents=True)
        shutil.copy(place / "photos" / f"{name}.png", tmp_path / "trip" / day)
    out = done("predict", mine, tmp_path / "trip", "--html", tmp_path / "page.html")
    assert "red.png  red" in out and "right" not in out and "taken for" not in out
    assert "Mistakes" not in Page((tmp_path / "page.html").read_text()).text
    lines = done("predict", mine, tmp_path / "trip", "--json").splitlines()
    assert [json.loads(line).get("truth") for line in lines] == [None, None]
    (tmp_path / "trip" / "day1").rename(tmp_path / "trip" / "red")
    out = done("predict", mine, tmp_path / "trip")
    assert "1 of 2 right (50.0 %)" in out and "day2 taken for blue: 1" in out


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_predict_writes_a_page_and_nothing_beside_its_source(
    mine, place, tmp_path, crumb
):
    crumb("learner", "rename", mine, "red", "<i>")
    before, page = contents(place), tmp_path / "page.html"
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    _, plain, _ = crumb("predict", mine, place / "test", "--json")
    code, out, err = crumb(
        "predict", mine, place / "test", tmp_path / "bad.jpg", "--json", "--html", page
    )
    assert (
        code == 1
        and out == plain
        and f"written: {page}" in err
        and contents(place) == before
    )
    found = Page(page.read_text())
    assert (
        "2 of 3 right (66.7 %)" in found.text
        and "1 file could not be read" in found.text
    )
    (row,) = found.tables["confused"]
    assert [row[name]["text"] for name in ("truth", "answer", "images")] == [
        "red",
        "<i>",
        "1",
    ]
    sources = [
        value
        for tag, key, value in found.attributes
        if key in ("src", "href") and value[0] != "#"
    ]
    assert len([one for one in sources if one.startswith("data:image/jpeg")]) == 3
    assert (
        len([one for one in sources if one.startswith("data:image/png")]) == 3
    )  # a heat map for each
    assert all(one.startswith("data:") for one in sources)
    assert (
        found.text.rindex("Mistakes")
        < found.text.index("is red")
        < found.text.rindex("Other answers")
    )


def test_sources_that_cannot_be_read_do_not_keep_the_others_from_an_answer(
    mine, place, tmp_path, crumb
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    sources = [
        tmp_path / "empty",
        tmp_path / "none.png",
        tmp_path / "bad.jpg",
        place / "photos" / "red.png",
    ]
    code, out, err = crumb("predict", mine, *sources)
    assert (
        code == 1
        and "red.png  red" in out
        and "3 files could not be read" in err
        and "bad.jpg" in err
    )
    assert (
        "empty: holds no photo and no video" in err
        and "there is no file or folder" in err
    )


def test_predict_imports_nothing_that_it_does_not_need(mine, place, tmp_path):
    program = (
        "import sys\nfrom crumb_avalanche.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "needless = {'avalanche', 'matplotlib', 'torchvision', 'torch._dynamo'}\n"
        "print(sorted(needless & {*sys.modules}), code)"
    )
    command = [
        sys.executable,
        "-c",
        program,
        "predict",
        str(mine),
        str(place / "photos" / "red.png"),
    ]
    command += ["--html", str(tmp_path / "page.html")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] 0", done.stdout


@pytest.mark.skipif(os.name != "posix", reason="a shell closes the output")
def test_a_page_without_an_output(mine, place, tmp_path):
    page = tmp_path / "page.html"
    words = [sys.executable, "-m", "crumb_avalanche.cli", "predict", mine]
    words += [place / "photos" / "red.png", "--html", page]
    command = shlex.join(map(str, words))
    done = subprocess.run(f"{command} >&-", shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, f"written: {page}\n")
    assert "red.png" in Page(page.read_text()).text


def test_boxes_of_a_file_are_asked_one_by_one_and_drawn(
    mine, place, tmp_path, crumb, refused
):
    boxes = {
        "photos/red.png": [[0, 0, 20, 20], [5, 5, 30, 30]],
        "photos/blue.png": [],
        "photos/green.png": [[9, 9, 2, 2]],
    }
    file, page = place / "boxes.json", tmp_path / "page.html"
    file.write_text(json.dumps(boxes), encoding="utf-8-sig")
    code, out, err = crumb("predict", mine, "--boxes", file, "--json", "--html", page)
    answers = [json.loads(line) for line in out.splitlines()]
    assert [one["box"] for one in answers] == boxes["photos/red.png"] and {
        one["label"] for one in answers
    } == {"red"}
    assert (
        code == 1
        and "green.png: a box is [9.0, 9.0, 2.0, 2.0]" in err
        and "1 file could not be read" in err
    )
    assert "red.png#box=5,5,30,30" in Page(page.read_text()).text
    for text in ("[]", "[" * 200_000, '{"a.png": null}', '{"a.png": [], "a.png": []}'):
        file.write_text(text)
        refused(
            r'is not JSON as {"photo.jpg": \[\[10, 20, 110, 220\]\]}',
            "predict",
            mine,
            "--boxes",
            file,
        )
