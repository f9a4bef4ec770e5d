"""``crumb report`` on hand-made run folders: tables, CSV, pictures and errors."""

import csv
import io
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import pytest
from fake_runs import csv_of, fake_run, page_of, report, sweep

from crumb_avalanche.report.page import Cell, Table, setting_cell
from crumb_avalanche.report.pictures import Curve, comparison_picture
from crumb_avalanche.report.runs import find_runs, groups_of, read_run

FILES = ("report.png", "report.svg", "report.html", "report.csv", "comparison.csv")


def lines_of(capsys) -> list[str]:
    """The printed lines, with single spaces."""
    return single_spaced(capsys.readouterr().out)


def single_spaced(text: str) -> list[str]:
    """The lines of a text, with single spaces."""
    return [" ".join(line.split()) for line in text.splitlines()]


def check_files(folder: Path) -> None:
    """Check that a report is complete, and that no temporary file is left."""
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "report.svg").read_text().rstrip().endswith("</svg>")
    assert (folder / "report.html").read_text().endswith("</html>\n")
    assert all((folder / name).exists() for name in FILES)
    assert not list(folder.glob(".*"))


@pytest.fixture(scope="module")
def one_run(tmp_path_factory):
    """The printed lines about a run."""
    settings = {"replay_weight": 3.0, "method": {"freeze_codebook": True}}
    printed = io.StringIO()
    with redirect_stdout(printed):
        report(fake_run(tmp_path_factory.mktemp("runs") / "a", **settings))
    return single_spaced(printed.getvalue())


@pytest.mark.parametrize(
    "line",
    [
        "strategy crumb",
        "method.freeze_codebook True",
        "replay_weight 3.0",  # the preset says 5
        "exp 1 100.0 100.00",
        "exp 2 60.0 80.0 70.00",
        "memory in all 81,304 B",
        "time: search 2.0 s (20 %)",
    ],
)
def test_a_run_is_printed(one_run, line):
    assert line in one_run


@pytest.mark.parametrize("name", ["pretrained", "threads", "output"])
def test_usual_settings_are_not_printed(one_run, name):
    assert not any(line.startswith(name) for line in one_run)


def test_files_go_into_the_run_folder(tmp_path, capsys):
    folder = fake_run(tmp_path / "runs" / "a")
    report(tmp_path / "runs")
    check_files(folder)
    lines = lines_of(capsys)
    assert f"written to {folder}:" in lines
    assert ", ".join(FILES) in lines


def test_files_go_to_the_output(tmp_path):
    folder = fake_run(tmp_path / "runs" / "a")
    report(folder)
    report(folder, output=tmp_path / "new" / "place")
    check_files(tmp_path / "new" / "place")
    again = (tmp_path / "new" / "place" / "report.svg").read_bytes()
    assert again == (folder / "report.svg").read_bytes()


def test_files_go_beside_several_folders(tmp_path):
    report(fake_run(tmp_path / "a"), fake_run(tmp_path / "b", strategy="finetune"))
    check_files(tmp_path)


def test_unfinished_runs_are_named(tmp_path, capsys):
    fake_run(tmp_path / "a")
    unfinished = fake_run(tmp_path / "cut")
    (unfinished / "result.json").unlink()
    report(tmp_path)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"unfinished and left out, without result.json: {unfinished}"


def test_a_joint_learner_has_one_row(tmp_path, capsys):
    empty = ("buffer_items", "buffer_bytes", "label_bytes", "codebook_bytes")
    ledger = dict.fromkeys((*empty, "memory_bytes"), 0)
    joint = fake_run(tmp_path / "a", strategy="offline", ledger=ledger)
    report(joint)
    assert "joint 60.0 80.0 70.00" in lines_of(capsys)
    check_files(joint)


def test_memory_above_the_budget_is_printed(tmp_path, capsys):
    bought = dict(budget_bytes=65_000, mem_size=12)
    words = "memory in all is 16,304 B (25 %) above the budget of 65,000 B"
    report(fake_run(tmp_path / "a" / "run", result=bought))
    assert words in capsys.readouterr().out
    assert words in page_of(tmp_path / "a" / "run").text
    report(tmp_path / "a", fake_run(tmp_path / "b", strategy="finetune"))
    assert any(
        line.startswith(f"note: crumb: {words}: as in the paper")
        for line in lines_of(capsys)
    )


def test_a_joint_learner_has_seen_all_classes(tmp_path):
    joint = fake_run(tmp_path / "a", strategy="offline")
    assert read_run(joint).classes_seen == [4]


def test_a_run_without_classes_is_reported(tmp_path):
    absent = {"classes_order": ..., "classes_per_experience": ...}
    report(fake_run(tmp_path / "a", result=absent))
    check_files(tmp_path / "a")


@pytest.mark.parametrize(
    "line",
    [
        "crumb 3 70.00 +- 10.00 40.0 1,001 60.0 10.0",
        "finetune 1 25.00 40.0 0 80.0 10.0",  # one run has no spread
        "settings in which they differ",
        "finetune finetune",  # the strategy and nothing else
        "note: groups have different run numbers, so their orders of classes differ",
        "images/s: times of different runs are comparable only when measured side by "
        "side",
    ],
)
def test_groups_are_compared(tmp_path, capsys, line):
    report(sweep(tmp_path / "runs"), output=tmp_path)
    assert line in lines_of(capsys)


def test_a_comparison_as_csv(tmp_path):
    report(sweep(tmp_path / "runs"), output=tmp_path)
    check_files(tmp_path)
    crumb, finetune = csv_of(tmp_path, "comparison.csv")
    assert crumb == {
        "group": "crumb",
        "runs": "3",
        "final_accuracy": "70.00 ± 10.00",
        "forgetting": "40.0",
        "memory_bytes": "1001",
        "images_per_second": "60.0",
        "train_seconds": "10.0",
    }
    assert (finetune["group"], finetune["final_accuracy"]) == ("finetune", "25.00")


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
    second = fake_run(tmp_path / "other", strategy="finetune")
    report(run)
    before = {path: path.read_bytes() for path in run.iterdir()}
    words = "the report cannot be written to"
    with full_disk(40_000), pytest.raises(ValueError, match=words):
        report(run, second, output=run)
    assert {path: path.read_bytes() for path in run.iterdir()} == before


def labels_in(folder: Path) -> list[str]:
    """The labels of the groups of runs below a folder."""
    runs = list(map(read_run, find_runs([str(folder)]).finished))
    return [group.label for group in groups_of(runs)]


def test_labels_tell_groups_apart(tmp_path):
    fake_run(tmp_path / "a", pretrained=None)
    path = "/long/way/to/the/folder/of/files/cifar.safetensors"
    fake_run(tmp_path / "b", pretrained=path)
    fake_run(tmp_path / "c", strategy="finetune", batch_size=32)
    assert labels_in(tmp_path) == [
        "crumb, pretrained=none",
        "crumb, pretrained=cifar.safetensors",
        "finetune",
    ]


def test_labels_name_other_streams(tmp_path):
    fake_run(tmp_path / "a", strategy="finetune")
    fake_run(tmp_path / "b", strategy="ewc", protocol="class_iid")
    assert labels_in(tmp_path) == [
        "finetune, protocol=class_instance",
        "ewc, protocol=class_iid",
    ]


def test_folders_are_in_natural_order(tmp_path):
    for name in ("run10", "run2", "²"):
        fake_run(tmp_path / name)
    names = [path.name for path in find_runs([str(tmp_path)]).finished]
    assert names == ["run2", "run10", "²"]


def test_the_same_folder_twice_is_one_run(tmp_path, capsys):
    run = fake_run(tmp_path / "a")
    report(run, run)
    assert "occurs" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("frames", "reason"),
    [("abc", "which are not independent"), ("def", "on different images")],
)
def test_repeats_are_pointed_out(tmp_path, capsys, frames, reason):
    first = fake_run(tmp_path / "a")
    second = fake_run(tmp_path / "b", result={"frame_table_sha256": frames})
    report(first, second)
    note = f"run 0 occurs 2 times, {reason}: {first}, {second}"
    assert note in capsys.readouterr().out


STREAM = Curve("a", [90.0, 80.0], None, [80.0], chance=[50.0, 25.0])


@pytest.mark.parametrize(
    ("curve", "is_drawn"),
    [
        (Curve("b", [95.0], None, [95.0], joint=True, chance=[25.0]), True),
        (Curve("c", [90.0, 80.0], None, [80.0], chance=[20.0, 10.0]), False),
        (Curve("d", [90.0, 80.0], None, [80.0]), False),
    ],
    ids=["joint", "other", "unknown"],
)
def test_a_common_chance_level_is_drawn(curve, is_drawn):
    (legend,) = comparison_picture("a", [STREAM, curve]).legends
    names = [text.get_text() for text in legend.get_texts()]
    assert ("chance" in names) == is_drawn


def test_a_folder_is_needed():
    with pytest.raises(ValueError, match="no folder was given; write crumb report"):
        report()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere", "nowhere does not exist; crumb report takes folders"),
        ("file", "file is a file; crumb report takes folders"),
        ("empty", r"there is no result\.json.*Nor is there a config\.yaml"),
    ],
)
def test_folders_without_a_run_are_refused(tmp_path, name, words):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=words):
        report(tmp_path / name)


def test_an_unfinished_run_says_how_to_go_on(tmp_path):
    folder = fake_run(tmp_path / "a")
    (folder / "result.json").unlink()
    words = "Started but not finished: .*a. To go on: crumb run --config .*a/config"
    with pytest.raises(ValueError, match=words):
        report(folder)


@pytest.fixture(scope="module")
def damaged_folder(tmp_path_factory):
    """A folder of runs of which three are damaged."""
    folder = tmp_path_factory.mktemp("damaged")
    sweep(folder)
    (folder / "crumb/run2/result.json").write_text("{")
    fake_run(folder / "odd", rows=["0,x,", "1,9,9"])
    fake_run(folder / "text", result={"final_accuracy": "x"})
    return folder


@pytest.fixture(scope="module")
def damaged(damaged_folder):
    """The error of a report on runs of which three are damaged, and what it printed."""
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(ValueError) as error:
        report(damaged_folder)
    return str(error.value), single_spaced(printed.getvalue())


@pytest.mark.parametrize(
    "words",
    [
        "the rest is written",
        "run2/result.json is not what the run wrote",
        "odd holds settings, a ledger or a matrix that no run writes",
        "text/result.json is not what the run wrote: final_accuracy is 'x', but has "
        "to be",
    ],
)
def test_damaged_runs_are_named(damaged, words):
    error, _ = damaged
    assert words in error


def test_damaged_runs_do_not_stop_the_report(damaged, damaged_folder):
    _, lines = damaged
    # 60 and 70: mean 65, deviation sqrt(2 * 25)
    assert any(line.startswith("crumb 2 65.00 +- 7.07") for line in lines)
    check_files(damaged_folder)


@pytest.fixture(scope="module")
def sweep_lines(tmp_path_factory):
    """The lines of a sweep's ``report.csv``."""
    folder = tmp_path_factory.mktemp("sweep")
    report(sweep(folder / "runs"), output=folder / "out")
    return csv_of(folder / "out")


def test_a_line_for_each_run(sweep_lines):
    finals = [line["final_accuracy"] for line in sweep_lines]
    assert finals == ["60.00", "70.00", "80.00", "25.00"]
    assert [line["run"] for line in sweep_lines] == ["0", "1", "2", "0"]


@pytest.mark.parametrize(
    ("column", "first", "last"),
    [
        ("accuracy_after_1", "100.00", "100.00"),
        ("accuracy_after_2", "60.00", "25.00"),
        ("memory_bytes", "1000", "0"),  # no thousands separator
        ("train_seconds", "10.0", "10.0"),
        ("strategy", "crumb", "finetune"),
        ("group", "crumb", "finetune"),
        ("folder", "../runs/crumb/run0", "../runs/finetune"),
    ],
)
def test_columns_of_runs(sweep_lines, column, first, last):
    assert (sweep_lines[0][column], sweep_lines[-1][column]) == (first, last)


@pytest.mark.parametrize("setting", ["threads", "replay_weight"])
def test_equal_settings_have_no_column(sweep_lines, setting):
    assert setting not in sweep_lines[0]


@pytest.mark.parametrize(
    ("strategy", "after"),
    [
        ("crumb", ["100.00", "80.00", "70.00"]),
        ("finetune", ["100.00", "70.00", ""]),
        ("offline", ["", "70.00", ""]),
    ],
)
def test_what_was_not_run_is_empty(tmp_path, strategy, after):
    """Of 3, 2 and 1 experiences; the joint one stands where a stream of two ends."""
    long = {"accuracy_after": [100.0, 80.0, 70.0]}
    fake_run(tmp_path / "long", result=long, rows=["0,9,,", "1,9,9,", "2,9,9,9"])
    fake_run(tmp_path / "short", strategy="finetune")
    fake_run(tmp_path / "joint", strategy="offline")
    report(tmp_path)
    lines = {line["strategy"]: line for line in csv_of(tmp_path)}
    names = [f"accuracy_after_{number}" for number in (1, 2, 3)]
    assert [lines[strategy][name] for name in names] == after


def test_csv_gives_back_what_went_in():
    nasty = 'a\\b{c}$d&e#f|m"n[o*p, q\nr'
    rows = [[Cell(nasty), setting_cell([1, 2])], [Cell("1,234", "1234"), Cell("")]]
    text = Table({"a": "A", "b": "B"}, rows).csv
    assert list(csv.reader(io.StringIO(text, newline=""))) == [
        ["a", "b"],
        [nasty, "1, 2"],
        ["1234", ""],
    ]
