"""``crumb report`` on hand-made run folders: tables, CSV, pictures and errors."""

import csv
import io
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from fake_runs import ATTACK, Page, csv_of, fake_run, report, sweep
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
from crumb_avalanche.report.page import Cell, Table, setting
from crumb_avalanche.report.pictures import Curve, comparison_picture
from crumb_avalanche.report.runs import find_runs, groups_of, read_run
from crumb_avalanche.runs.run_folder import MISTAKES


def check_pictures(folder: Path) -> None:
    """Check that both pictures exist in their formats, and that no temporary file is left."""
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "report.svg").read_text().rstrip().endswith("</svg>")
    assert (folder / "report.html").read_text().endswith("</html>\n")
    assert (folder / "report.csv").exists() and (folder / "comparison.csv").exists()
    assert not list(folder.glob("*.part"))


def lines_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_one_run_as_tables(tmp_path, capsys):
    report(
        fake_run(tmp_path / "a", replay_weight=3.0, method=dict(freeze_codebook=True))
    )
    lines = lines_of(capsys.readouterr().out)
    assert "strategy crumb" in lines and "method.freeze_codebook True" in lines
    assert "replay_weight 3.0" in lines  # the preset says 5
    assert not any(
        line.startswith(("pretrained", "threads", "output")) for line in lines
    )
    assert "exp 1 100.0 100.00" in lines and "exp 2 60.0 80.0 70.00" in lines
    assert "memory in all 81,304 B" in lines and "time: search 2.0 s (20 %)" in lines


def test_pictures_go_into_the_run_folder_or_to_output(tmp_path, capsys):
    folder = fake_run(tmp_path / "runs" / "a")
    (fake_run(tmp_path / "runs" / "cut") / "result.json").unlink()
    report(tmp_path / "runs")
    last = capsys.readouterr().out.splitlines()[-1]
    assert (
        last
        == f"unfinished and left out, without result.json: {tmp_path / 'runs' / 'cut'}"
    )
    check_pictures(folder)
    report(folder, output=tmp_path / "new" / "place")
    check_pictures(tmp_path / "new" / "place")
    assert (tmp_path / "new/place/report.svg").read_bytes() == (
        folder / "report.svg"
    ).read_bytes()


def test_the_joint_learner_and_one_without_memory_or_classes(tmp_path, capsys):
    nothing = dict.fromkeys(
        [
            "buffer_items",
            "buffer_bytes",
            "label_bytes",
            "codebook_bytes",
            "memory_bytes",
        ],
        0,
    )
    joint = fake_run(tmp_path / "a", strategy="offline", ledger=nothing)
    assert read_run(joint).classes_seen == [4]
    report(joint)
    assert "joint 60.0 80.0 70.00" in lines_of(capsys.readouterr().out)
    check_pictures(tmp_path / "a")
    report(
        fake_run(
            tmp_path / "b", result=dict(classes_order=..., classes_per_experience=...)
        )
    )


def test_comparison(tmp_path, capsys):
    report(sweep(tmp_path / "runs"), output=tmp_path)
    out = capsys.readouterr().out
    lines = lines_of(out)
    assert "crumb 3 70.00 +- 10.00 1,001 11 60.0 10.0" in lines
    assert "finetune 1 25.00 0 0 80.0 10.0" in lines  # one run has no spread
    assert (
        "times of different runs are comparable only when measured side by side" in out
    )
    assert (
        "settings in which they differ" in lines and "finetune finetune" in lines
    )  # the strategy and nothing else
    assert "note: groups have different run numbers" in out
    check_pictures(tmp_path)
    first, second = csv_of(tmp_path, "comparison.csv")
    assert (first["group"], first["runs"], first["final_accuracy"]) == (
        "crumb",
        "3",
        "70.00 ± 10.00",
    )
    assert [
        first[name] for name in ("memory_bytes", "buffer_items", "images_per_second")
    ] == ["1001", "11", "60.0"]
    assert (second["group"], second["final_accuracy"]) == ("finetune", "25.00")


@contextmanager
def full_disk(room):
    """Let no file grow above some bytes, as on a disk that is full."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# Too little for the page, and for the picture alone.
@pytest.mark.parametrize("room", [100, 40_000])
def test_a_full_disk_leaves_no_half_report(tmp_path, room):
    run = fake_run(tmp_path / "run")
    words = "the report cannot be written to .*/new/place.*; or name another folder"
    with full_disk(room), pytest.raises(ValueError, match=words):
        report(run, output=tmp_path / "new" / "place")
    assert not (tmp_path / "new").exists()


def test_a_full_disk_keeps_the_report_before(tmp_path):
    run = fake_run(tmp_path / "run")
    other = fake_run(tmp_path / "other", strategy="finetune")
    report(run)
    before = {path: path.read_bytes() for path in run.iterdir()}
    words = "the report cannot be written to"
    with full_disk(40_000), pytest.raises(ValueError, match=words):
        report(run, other, output=run)
    assert {path: path.read_bytes() for path in run.iterdir()} == before


def test_labels_tell_groups_apart_and_say_no_more(tmp_path, capsys):
    fake_run(tmp_path / "a", pretrained=None)
    fake_run(
        tmp_path / "b", pretrained="/long/way/to/the/folder/of/files/cifar.safetensors"
    )
    other = fake_run(tmp_path / "c", strategy="finetune", batch_size=32)
    labels = [
        group.label
        for group in groups_of(
            [read_run(path) for path in find_runs([str(tmp_path)]).finished]
        )
    ]
    assert labels == [
        "crumb, pretrained=none",
        "crumb, pretrained=cifar.safetensors",
        "finetune",
    ]
    report(
        other, fake_run(tmp_path / "d", strategy="ewc", protocol="class_iid")
    )  # another stream is always named
    out = capsys.readouterr().out
    assert (
        "finetune, protocol=class_instance" in out and "ewc, protocol=class_iid" in out
    )
    check_pictures(tmp_path)  # beside the first folder


def test_repeats_of_a_run_are_pointed_out(tmp_path, capsys):
    first, second = fake_run(tmp_path / "a"), fake_run(tmp_path / "b")
    report(first, first, second)  # the same folder twice is one run
    assert (
        f"run 0 occurs 2 times, which are not independent: {first}, {second}"
        in capsys.readouterr().out
    )
    report(first, fake_run(tmp_path / "c", result=dict(frame_table_sha256="def")))
    assert "run 0 occurs 2 times, on different images" in capsys.readouterr().out


def test_chance_is_drawn_only_where_it_is_the_same():
    def drawn(*curves):
        legend = comparison_picture("a", list(curves)).legends[0]
        return "chance" in [text.get_text() for text in legend.get_texts()]

    stream = Curve("a", [90.0, 80.0], None, [80.0], chance=[50.0, 25.0])
    joint = Curve("b", [95.0], None, [95.0], joint=True, chance=[25.0])
    assert drawn(stream, joint)
    assert not drawn(
        stream, Curve("c", [90.0, 80.0], None, [80.0], chance=[20.0, 10.0])
    )
    assert not drawn(stream, Curve("d", [90.0, 80.0], None, [80.0]))


def test_no_finished_run(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for folders, words in (
        ([], "no folder was given; write crumb report FOLDER"),
        ([tmp_path / "nowhere"], "nowhere does not exist; crumb report takes folders"),
        ([tmp_path / "file"], "file is a file; crumb report takes folders"),
        (
            [tmp_path / "empty"],
            r"no finished run: there is no result\.json.*Nor is there a config\.yaml",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            report(*folders)
    folder = fake_run(tmp_path / "a")
    (folder / "result.json").unlink()
    with pytest.raises(
        ValueError,
        match=r"Started but not finished: .*a\. To go on: crumb run --config .*a/config",
    ):
        report(folder)


def test_one_damaged_run_among_others_does_not_stop_the_report(tmp_path, capsys):
    sweep(tmp_path)
    (tmp_path / "crumb/run2/result.json").write_text("{")
    fake_run(tmp_path / "odd", rows=["0,x,", "1,9,9"])
    fake_run(tmp_path / "text", result=dict(final_accuracy="x"))
    words = r"the rest is written:\n.*run2/result\.json is not what the run wrote"
    with pytest.raises(ValueError, match=words) as error:
        report(tmp_path)
    assert "odd holds settings, a ledger or a matrix that no run writes" in str(
        error.value
    )
    assert (
        "text/result.json is not what the run wrote: final_accuracy is 'x', but has to be"
        in str(error.value)
    )
    # 60 and 70: mean 65, deviation sqrt(2 * 25)
    assert "crumb 2 65.00 +- 7.07" in " ".join(capsys.readouterr().out.split())
    check_pictures(tmp_path)


def test_one_line_for_each_run(tmp_path):
    report(sweep(tmp_path / "runs"), output=tmp_path / "out")
    lines = csv_of(tmp_path / "out")
    assert [line["run"] for line in lines] == ["0", "1", "2", "0"]
    assert [line["final_accuracy"] for line in lines] == [
        "60.00",
        "70.00",
        "80.00",
        "25.00",
    ]
    first, last = lines[0], lines[-1]
    assert (first["accuracy_after_1"], first["accuracy_after_2"]) == ("100.00", "60.00")
    assert (first["memory_bytes"], first["train_seconds"]) == (
        "1000",
        "10.0",
    )  # no thousands separator
    assert (last["strategy"], last["group"], last["folder"]) == (
        "finetune",
        "finetune",
        "../runs/finetune",
    )
    assert (
        "threads" not in first and "replay_weight" not in first
    )  # no part of the result; the same in all


def test_what_was_not_run_is_empty(tmp_path):
    """Of 3, 2 and 1 experiences; the joint learner stands where a stream of two ends."""
    after = dict(accuracy_after=[100.0, 80.0, 70.0])
    fake_run(tmp_path / "long", result=after, rows=["0,9,,", "1,9,9,", "2,9,9,9"])
    fake_run(tmp_path / "short", strategy="finetune")
    fake_run(tmp_path / "joint", strategy="offline")
    report(tmp_path)
    names = [f"accuracy_after_{number}" for number in (1, 2, 3)]
    after = {
        line["strategy"]: [line[name] for name in names] for line in csv_of(tmp_path)
    }
    assert after["crumb"] == ["100.00", "80.00", "70.00"]
    assert after["finetune"] == ["100.00", "70.00", ""] and after["offline"] == [
        "",
        "70.00",
        "",
    ]


def test_csv_gives_back_what_went_in():
    nasty = 'a\\b{c}$d&e#f|m"n[o*p, q\nr'
    rows = [[Cell(nasty), setting([1, 2])], [Cell("1,234", "1234"), Cell("")]]
    text = Table({"a": "A", "b": "B"}, rows).csv
    assert list(csv.reader(io.StringIO(text, newline=""))) == [
        ["a", "b"],
        [nasty, "1, 2"],
        ["1234", ""],
    ]


def classes(**right):
    """Classes of 5 objects, 100 images and 40 test images of 2 objects each."""
    return [
        ClassCounts(name, 5, 10, 100, 40, number, 2) for name, number in right.items()
    ]


def test_a_good_run_gets_no_advice():
    assert advice(classes(cup=40, mug=39), 1) == []


def test_the_worst_class_with_fewer_objects_is_named_first():
    few = ClassCounts("pen", 1, 2, 12, 40, 10, 2)
    better = ClassCounts("jar", 2, 2, 100, 40, 20, 2)
    right = ClassCounts("key", 1, 1, 10, 40, 40, 2)  # few objects are no harm here
    lines = advice([*classes(cup=40, mug=40), better, few, right], 50)
    shown = [line for line in lines if line.startswith("Show other objects")]
    assert [line.split(": ")[0] for line in shown] == [
        "Show other objects of pen",
        "Show other objects of jar",
    ]
    assert all(
        part in shown[0]
        for part in (
            "10 of 40",
            "1 object in 2 clips",
            "12 images",
            "median",
            "2 objects",
        )
    )


@pytest.mark.parametrize(("unread", "said"), [(0, False), (14, False), (15, True)])
def test_unread_files_are_named_from_a_twentieth(unread, said):
    lines = advice(
        classes(a=40, b=40), 0, unread, preset="paper"
    )  # 280 files were read
    assert (f"{unread} of {280 + unread}" in "".join(lines)) == said


def test_a_test_on_few_images_is_not_trusted():
    (line,) = advice([*classes(a=40), ClassCounts("b", 5, 5, 100, 19, 19, 2)], 0)
    assert "1 of 2" in line and "b (19 images of 2 objects)" in line
    assert (
        "b (90 images of 1 object)"
        in advice([ClassCounts("b", 5, 5, 100, 90, 90, 1)], 0)[0]
    )


@pytest.fixture
def table(tmp_path):
    """Two classes of 2 + 1 objects with an image each clip; the second clip of the test object of b is missing."""
    frames = []
    for name in ("a", "b"):
        for number in range(6):
            path, split = f"{name}{number}.png", "test" if number > 3 else "train"
            frames.append(
                Frame(path, name, f"o{number // 2}", f"s{number % 2}", 0, split)
            )
            if path != "b5.png":
                Image.new("RGB", (30, 20), (number, 99, 0)).save(tmp_path / path)
    return FrameTable(frames, tmp_path, classes=[*"ab"])


def predictions(table, answers, confidence):
    rows = table.rows("test")
    values = {
        "row": rows,
        "label": table.labels[rows],
        "answer": answers,
        "confidence": confidence,
    }
    return {name: np.asarray(column) for name, column in values.items()}


def test_the_page_lists_mistakes_with_the_most_confident_first(table, tmp_path):
    write_mistakes(
        tmp_path,
        table,
        predictions(table, [1, 0, 0, 0], [0.5, 0.9, 0.7, 0.8]),
        "paper",
        ATTACK,
        2,
    )
    page = Page((tmp_path / MISTAKES).read_text())
    assert (
        "1 of 4 test images right (25.0 %)" in page.text
        and "2 files could not be read" in page.text
    )
    places = [
        page.text.rindex(f"{path}.png") for path in ("b5", "b4", "a4")
    ]  # 80 %, 70 % and 50 % sure
    assert (
        places == sorted(places)
        and "a5.png" not in page.text
        and "80\u00a0%" in "".join(page.texts)
    )
    sources = [
        value for tag, key, value in page.attributes if (tag, key) == ("img", "src")
    ]
    assert len(sources) == 10 and all(
        uri.startswith("data:image/jpeg") for uri in sources
    )  # b5 is missing
    assert (
        page.text.index("b taken for a")
        < page.text.index("a0.png")
        < page.text.index("a taken for b")
    )
    (line,) = page.tables["places-table"]
    assert [line[name]["text"] for name in line] == [
        "other objects than were learned",
        "25.0",
        "4",
    ]
    worst = page.tables["classes-table"][0]
    shown = {
        name: worst[name]["text"]
        for name in ("class", "accuracy", "tested", "objects", "clips", "images")
    }
    assert shown == {
        "class": "b",
        "accuracy": "0.0",
        "tested": "2",
        "objects": "2",
        "clips": "4",
        "images": "4",
    }
    assert page.tags["script"] == 1 and "--preset recommended" in page.text


def test_held_out_objects_clips_and_rests_of_clips_are_told_apart():
    names = [
        ("o0", "s0", "train"),
        ("o0", "s0", "test"),
        ("o0", "s1", "test"),
        ("o0", "s2", "test"),
        ("o1", "s0", "test"),
    ]
    frames = [
        Frame(f"a{n}.png", "a", one, clip, n, split)
        for n, (one, clip, split) in enumerate(names)
    ]
    table = FrameTable(
        [*frames, Frame("b.png", "b", "o0", "s1", 0, "train")], classes=[*"ab"]
    )
    rows = places_table(table, predictions(table, [0, 0, 1, 1], [1] * 4)).rows
    assert [[cell.text for cell in row[1:]] for row in rows] == [
        ["0.0", "1"],
        ["50.0", "2"],
        ["100.0", "1"],
    ]


def test_a_frame_of_a_video_is_named_by_clip_and_second():
    assert (
        place_of(".crumb_frames/2fps/mug/kitchen.mp4/000004.png")
        == "mug/kitchen.mp4, second 1.5"
    )
    assert place_of("mug/kitchen/000004.png") == "mug/kitchen/000004.png"


def test_the_pair_that_is_confused_most_is_to_be_filmed_next():
    (line,) = film_next(
        Counter({("mug", "mug"): 9, ("mug", "bowl"): 3, ("bowl", "mug"): 1})
    )
    assert line.startswith("Film mug next") and line.endswith(
        "3 of 4 mistakes are mug taken for bowl."
    )
    assert film_next(Counter({("mug", "bowl"): 1})) == film_next(Counter()) == []
