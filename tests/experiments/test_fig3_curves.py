"""Curves are those of the runs, and each figure shows the protocols that it has in the paper."""

import csv
import json
import math

import pytest
from called_script import called
from fig3_curves import picture, protocols_of, rmse, room_for_all, write_curves
from made_runs import made_run
from PIL import Image
from support.common_options import common_options, parser_for
from support.saved_picture import save_picture
from support.side_by_side import find
from table1_accuracy import assembled


def test_protocols_of_the_figures():
    assert protocols_of("3", "core50") == ["class_instance"] and protocols_of("3", "cifar100") == ["class_iid"]
    assert protocols_of("S1", "core50") == ["class_iid"] and protocols_of("S1", "cifar100") == []
    assert protocols_of("S2", "core50") == ["class_instance", "class_iid"]


def test_errors_are_root_mean_square():
    assert rmse([1.0, 3.0, 5.0]) == pytest.approx(math.sqrt(8 / 3))


def test_room_for_all():
    given = common_options(parser_for("Doc.", "runs").parse_args(["--quick"]))
    from benchmarks_toybox_ilab.catalog import get_benchmark

    table = get_benchmark("toy_shapes_short").table(None, 0)
    assert room_for_all(given) == {"toy_shapes_short": len(table.rows("train"))}, "all classes are as large"


def test_room_for_the_largest_class_of_any_run(tmp_path):
    for name, frames in (("a", 2), ("b", 4), ("c", 12)):  # of each object; every run holds another one out
        for kind in ("cup", "pear"):
            for frame in range(frames):
                path = tmp_path / kind / name / "clip" / f"{frame:02}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8)).save(path)
    given = ["--benchmark", "clip_folder", "--dataset-root", str(tmp_path), "--runs", "0-7"]
    (room,) = room_for_all(common_options(parser_for("Doc.", "runs").parse_args(given))).values()
    assert room == 2 * 16, "where the object of two frames is held out"


def test_curves_of_made_runs(tmp_path):
    for run, right in ((0, 100), (1, 120)):
        made_run(tmp_path / "eth80" / "class_iid" / "crumb" / f"run{run}", right)
    made_run(tmp_path / "eth80" / "joint" / "offline" / "run0", 180, joint=True)
    given = common_options(parser_for("Doc.", "runs").parse_args(["--output", str(tmp_path), "--benchmark", "eth80"]))
    findings = find(assembled(given, ["crumb", "ewc", "offline"], ["class_iid"]), [0, 1])
    write_curves(tmp_path / "fig.csv", findings)
    with open(tmp_path / "fig.csv") as file:
        rows = [(row["method"], row["run"], row["experience"], float(row["accuracy"])) for row in csv.DictReader(file)]
    assert rows[:4] == [("Ours", "0", "1", 90), ("Ours", "0", "2", 50), ("Ours", "1", "1", 90), ("Ours", "1", "2", 60)]
    assert rows[4:] == [("Upper bound", "0", "2", 90)]
    figure = picture(findings, "A title")
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"Ours", "Upper bound"}
    for path in save_picture(figure, tmp_path, "fig"):
        assert path.stat().st_size > 5000


def test_untested_experiences_are_left_out(tmp_path):
    folder = tmp_path / "eth80" / "class_iid" / "crumb"
    for run, after in ((0, [90.0, None, 50.0]), (1, [80.0, 70.0, 60.0])):
        path = made_run(folder / f"run{run}", 100) / "result.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"accuracy_after": after}))
    given = common_options(parser_for("Doc.", "runs").parse_args(["--output", str(tmp_path), "--benchmark", "eth80"]))
    findings = find(assembled(given, ["crumb"], ["class_iid"]), [0, 1])
    write_curves(tmp_path / "fig.csv", findings)
    with open(tmp_path / "fig.csv") as file:
        assert [row["accuracy"] for row in csv.DictReader(file)][:3] == ["90.0000", "", "50.0000"]
    line, *_ = picture(findings, "A title").axes[0].containers[0]
    assert line.get_xydata().tolist() == [[1, 85], [3, 55]], "means of both runs, where both were tested"


def test_a_figure_without_a_panel(tmp_path):
    done = called("fig3_curves", "--figure", "S1", "--benchmark", "cifar100", "--output", tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip() == "error: figure S1 has no panel of cifar100: it shows video benchmarks"


@pytest.mark.slow
def test_quick_without_a_limit_of_memory(tmp_path):
    done = called("fig3_curves", "--quick", "--figure", "S2", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "figS2.png").stat().st_size > 5000 and (tmp_path / "figS2.csv").exists()
