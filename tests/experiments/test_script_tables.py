"""The paper's numbers beside ours, and the rows of every table.

Cells without runs are empty.
"""

import contextlib
import csv
import io
import json
import statistics
from dataclasses import asdict, replace

import pytest
import task_incremental
import yaml
from buffer_sizes import formula, remind_formula, size_of
from called_script import EXPERIMENTS, made_run
from deviations import ROWS as DEVIATIONS
from deviations import settings_of as settings_of_deviation
from fig3_curves import csv_rows_of, panels_of_curves, protocols_of
from recommended import ROWS as RECOMMENDED
from recommended import settings_of as settings_of_recommended
from scipy.stats import ttest_rel
from support.common_options import QUICK, common_options, parser_for
from support.findings import Cell, find
from support.paper_numbers import PAPER_VALUES, PaperNumbers, PaperValue
from support.pictures import curves
from support.replay_cost import (
    ALL_MAPS,
    BATCHES,
    CRUMB,
    SAMPLE,
    SINGLE,
    Part,
    Ratio,
    ratios,
)
from support.rows import chosen_rows, rows_of
from support.statistics import holm
from support.tables import csv_columns, publish, text_tables
from table1_accuracy import METHODS, cells_of
from table2_cost import measure_once, measured, quantities_of
from table3_codes_vs_images import COUNTS, paper_row
from table3_codes_vs_images import cells_of as cells_of_table3
from taught_learner import halves
from taught_learner import lines_of as lines_of_taught

from benchmarks_toybox_ilab.tables.frame import Frame
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.methods.registry import get_strategy
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.split_backbone import split_backbone
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.run_folder import FinishedRunError, write_csv, write_json
from crumb_avalanche.runs.settings import RunSettings

PAPER = PaperNumbers()
BYTES_DIAL = rows_of("bytes_dial")


def options(folder, *arguments):
    """Options of a table that is written to this folder."""
    parser = parser_for("Doc.", "runs", several=True)
    return common_options(parser.parse_args(["--output", str(folder), *arguments]))


def changed(folder, **entries):
    """Change entries of a result."""
    path = folder / "result.json"
    result = json.loads(path.read_text()) | entries
    path.write_text(json.dumps(result))
    return folder


def rows_of_csv(path):
    """The rows of a CSV file by the names of its columns."""
    with open(path) as file:
        return list(csv.DictReader(file))


def made_cells(folder):
    """Two runs of Ours, two of another row of which one fails its first task, a row
    that was not run, and one that cannot be run.
    """
    made_run(folder / "ours" / "run0", 160)
    made_run(folder / "ours" / "run1", 170)
    made_run(folder / "half" / "run0", 120)
    made_run(folder / "half" / "run1", 110, first=55.0)
    paper = PaperValue(78.22, False)
    ours = Cell(
        row="Ours",
        benchmark="core50",
        protocol="class_iid",
        folder=folder / "ours",
        paper=paper,
        paper_dataset="core50",
        reference=folder / "ours",
        paper_reference=paper,
    )
    half = replace(
        ours, row="Half", folder=folder / "half", paper=PaperValue(73.5, True)
    )
    not_run = replace(half, row="Not run", folder=folder / "none")
    needs = replace(ours, row="Needs", folder=None, paper=None, note="needs ImageNet")
    return [ours, half, not_run, needs]


@pytest.fixture
def cells(tmp_path):
    """The made cells, in folders that a test may change."""
    return made_cells(tmp_path)


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    """What is found of the made cells, where the third run of each is missing."""
    return find(made_cells(tmp_path_factory.mktemp("cells")), [0, 1, 2])


@pytest.fixture(scope="module")
def finding_of(findings):
    """The findings by the name of the row."""
    return {finding.cell.row: finding for finding in findings}


def test_a_finding_for_each_cell_in_their_order(findings):
    rows = [finding.cell.row for finding in findings]
    assert rows == ["Ours", "Half", "Not run", "Needs"]


def test_the_reference_is_compared_with_the_paper_alone(finding_of):
    ours = finding_of["Ours"]
    assert ours.mean == pytest.approx(82.5)
    assert csv_columns(ours)["std"] == pytest.approx(12.5**0.5)
    assert ours.difference == pytest.approx(82.5 - 78.22)
    assert ours.paired is None
    assert ours.s4 is None


def test_runs_are_paired_with_those_of_the_reference(finding_of):
    half = finding_of["Half"]
    assert half.mean == pytest.approx(57.5)
    assert half.paper_effect == pytest.approx(73.5 - 78.22)
    assert half.paired.mean == pytest.approx(-25)
    assert half.paired.differences == pytest.approx({0: -20, 1: -30})
    assert half.paired.p == pytest.approx(ttest_rel([60, 55], [80, 85]).pvalue)
    assert half.p_holm == half.paired.p, "one comparison is not corrected"


def test_the_papers_test_pairs_batches_of_100_images(finding_of):
    half = finding_of["Half"]
    assert half.s4.pairs == 4
    assert half.s4.difference == pytest.approx(-25)
    assert half.s4.p < 0.05
    assert half.s4_holm == half.s4.p, "one comparison is not corrected"


def test_a_run_that_fails_its_first_task_is_filtered(finding_of):
    half = finding_of["Half"]
    assert [run.number for run in half.filter[0]] == [0]
    assert half.mean_filtered == 60
    assert half.s4_filtered.pairs == 2


def test_a_cell_that_was_not_run_is_empty(finding_of):
    not_run = finding_of["Not run"]
    assert not_run.mean is None
    assert not_run.paired is None
    assert not_run.s4 is None
    assert not_run.difference is None


def test_a_cell_without_a_folder_has_no_runs(finding_of):
    assert finding_of["Needs"].runs == ()


def test_another_benchmark_is_not_compared_with_the_paper(cells):
    ours = cells[0]
    (finding,) = find([replace(ours, benchmark="eth80")], [0])
    assert finding.mean == 80
    assert finding.difference is None


def test_lines_of_a_text_table(findings):
    (table,) = text_tables(findings)
    ours, half, not_run, _ = table.lines
    assert ours[:7] == ["Ours", "78.22", "82.5 +- 3.5", "+4.3", "2", "82.5", "2"]
    numbers = ["73.5*", "57.5 +- 3.5", "-16.0", "2", "60.0", "1", "-4.7", "-25.0"]
    assert half[1:9] == numbers
    assert not_run[2:7] == [""] * 5
    assert table.header[-1] == "note"


@pytest.fixture(scope="module")
def published(findings, tmp_path_factory):
    """The folder of a published table, with what was printed in `printed.txt`."""
    folder = tmp_path_factory.mktemp("published")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        publish(findings, "A heading", folder / "out", "table")
    (folder / "out" / "printed.txt").write_text(printed.getvalue())
    return folder / "out"


def test_a_published_text_has_headings_rows_and_notes(published):
    text = (published / "table.md").read_text()
    assert text.startswith("# A heading\n\n## core50, class-iid")
    assert "| Needs |  |  |" in text
    assert "needs ImageNet |" in text
    assert "needs ImageNet" in (published / "printed.txt").read_text()


def test_a_published_picture_is_drawn(published):
    assert (published / "table.png").stat().st_size > 5000


def test_a_published_csv_file_has_the_columns_of_a_finding(published, finding_of):
    first, *_ = rows_of_csv(published / "table.csv")
    assert list(first) == list(csv_columns(finding_of["Ours"]))


def test_a_published_row_has_all_that_was_compared(published, finding_of):
    row = rows_of_csv(published / "table.csv")[1]
    half = finding_of["Half"]
    assert float(row["ours"]) == pytest.approx(57.5)
    assert row["paper_differs_p01"] == "True"
    assert row["run_numbers"] == "0 1"
    assert float(row["s4_p"]) == half.s4.p
    assert float(row["p"]) == half.paired.p
    assert row["effect_of_runs"] == "-20.0000 -30.0000"


@pytest.mark.parametrize(
    "column", ["ours", "std", "runs", "difference", "p", "runs_filtered"]
)
def test_a_published_row_without_runs_is_empty(published, column):
    assert rows_of_csv(published / "table.csv")[2][column] == ""


@pytest.mark.parametrize(
    ("test", "corrected"), [("paired", "p_holm"), ("s4", "s4_holm")]
)
def test_correction_counts_a_folder_once(cells, tmp_path, test, corrected):
    ours, half, *_ = cells
    made_run(tmp_path / "third" / "run0", 150)
    made_run(tmp_path / "third" / "run1", 152)
    half_again = replace(half, row="Half again")
    third = replace(half, row="Third", folder=tmp_path / "third")
    _, *compared = find([ours, half, half_again, third], [0, 1])
    p_half, _, p_third = [getattr(finding, test).p for finding in compared]
    half_holm, third_holm = holm([p_half, p_third])
    p_values = [getattr(finding, corrected) for finding in compared]
    assert p_values == [half_holm, half_holm, third_holm]


def test_runs_of_other_test_images_are_not_compared(cells, tmp_path):
    made_run(tmp_path / "other" / "run0", 100, shift=3)
    other = replace(cells[1], folder=tmp_path / "other")
    with pytest.raises(ValueError, match="tested on different images"):
        find([other], [0])


def test_runs_without_predictions_have_no_batches(cells, tmp_path):
    (tmp_path / "half" / "run0" / "predictions.npz").unlink()
    (tmp_path / "half" / "run1" / "predictions.npz").unlink()
    _, half, *_ = find(cells, [0, 1])
    assert half.s4 is None
    assert half.s4_holm is None
    assert half.paired.mean == pytest.approx(-25)


def test_a_result_that_was_changed_is_named(cells, tmp_path):
    changed(tmp_path / "ours" / "run0", files={}, result_sha256="0" * 64)
    with pytest.raises(ValueError, match=r"result\.json is not what the run wrote"):
        find(cells, [0])


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("{", r"ours/run0/result\.json is damaged"),
        (
            '{"final_accuracy": 3}',
            "has no accuracy_after, final_accuracy_per_experience",
        ),
    ],
    ids=["damaged", "incomplete"],
)
def test_a_result_that_cannot_be_read_is_named(cells, tmp_path, result, words):
    (tmp_path / "ours" / "run0" / "result.json").write_text(result)
    with pytest.raises(ValueError, match=words):
        find(cells, [0])


@pytest.fixture(scope="module")
def listed_runs(tmp_path_factory):
    """The rows of a published list of two runs; the second recorded how it was made."""
    output = tmp_path_factory.mktemp("listed")
    made_run(output / "rows" / "run0", 160)
    folder = made_run(output / "rows" / "run1", 170)
    settings = RunSettings(
        strategy="image_replay",
        mem_size=200,
        run=1,
        threads=1,
        weights="/x/squeezenet.npz",
        dataset_root="/x/eth80",
        output="/x/out",
        feature_cache="/x/cache",
    )
    (folder / "config.yaml").write_text(yaml.safe_dump(vars(settings)))
    provenance = {"weights": "sha256:0123456789abcdef"}
    changed(folder, seconds=12.3456, frame_table_sha256="abc", provenance=provenance)
    cell = Cell("Im. replay", "eth80", "class_iid", output / "rows")
    publish(find([cell], [0, 1, 2]), "A heading", output, "table")
    return rows_of_csv(output / "table_runs.csv")


def test_a_list_of_runs_has_those_that_exist(listed_runs):
    assert [row["run"] for row in listed_runs] == ["0", "1"]


def test_a_listed_run_may_lack_time_and_settings(listed_runs):
    row = listed_runs[0]
    assert row["final_accuracy"] == "80.0"
    assert row["seconds"] == ""
    assert row["settings"] == ""


def test_a_listed_run_has_its_time_and_table_of_frames(listed_runs):
    row = listed_runs[1]
    assert row["seconds"] == "12.3"
    assert row["frame_table_sha256"] == "abc"


def test_listed_settings_are_those_that_change_a_result(listed_runs):
    assert set(listed_runs[1]["settings"].split()) == {
        "preset=paper",
        "learning_rate=None",
        "strategy=image_replay",
        "weights=squeezenet.npz@01234567",
        "mem_size=200",
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("table1 core50 class_instance crumb", PaperValue(78.5, None)),
        ("table1 imagenet class_iid gss", None),
        ("table2 cifar100 class_iid remind peak_ram_gb", PaperValue(0.87)),
        ("table3 core50 class_iid image_replay@n_x=3200", PaperValue(79.72, False)),
    ],
)
def test_a_number_of_the_paper(key, value):
    assert PAPER.find(*key.split()) == value


def test_a_number_of_the_paper_that_differs_from_ours():
    value = PAPER.find("table4", "core50", "class_instance", "Half capacity")
    assert value == PaperValue(73.55, True)


def test_the_papers_numbers_are_of_these_tables():
    tables = {table for table, *_ in PAPER}
    assert tables == {"table1", "table2", "table3", "table4", "s5"}


def test_a_number_of_the_paper_stands_once():
    _, *lines = PAPER_VALUES.read_text().splitlines()
    assert len(PAPER) == len(lines)


def test_scripts_repeat_no_number_of_the_paper():
    percents = set()
    for (table, *_), value in PAPER.items():
        if table in ("table3", "table4"):
            percents.add(f"{value.value:.2f}")
    for path in EXPERIMENTS.rglob("*.py"):
        text = path.read_text()
        repeated = [percent for percent in percents if percent in text]
        assert not repeated, f"{path} has numbers of the paper"


@pytest.mark.parametrize("name", RECOMMENDED)
def test_a_row_of_recommended_has_existing_settings(name):
    row = RECOMMENDED[name]
    strategy = row.get("settings", {}).get("strategy", "rda")
    get_strategy(strategy).method_settings(row.get("method", {}))
    RunPlan.of(RunSettings(**settings_of_recommended(name, "class_instance")))


@pytest.mark.parametrize("name", BYTES_DIAL)
def test_a_row_of_bytes_dial_has_existing_settings(name):
    settings = {"preset": "recommended", **BYTES_DIAL[name].get("settings", {})}
    RunPlan.of(RunSettings(**settings))


@pytest.mark.parametrize("name", DEVIATIONS)
def test_a_row_of_deviations_has_existing_settings(name):
    RunPlan.of(RunSettings(**settings_of_deviation(name, "class_instance")))


def test_chosen_rows_are_compared_with_recommended():
    assert chosen_rows(RECOMMENDED, ["slda", "ncm"]) == ["recommended", "slda", "ncm"]


def test_every_number_of_table_1_has_its_cell(tmp_path):
    benchmarks = [benchmark for table, benchmark, *_ in PAPER if table == "table1"]
    parsed = options(tmp_path, "--benchmark", *dict.fromkeys(benchmarks))
    cells = cells_of(parsed, METHODS, ["class_instance", "class_iid"])
    cells_with_number = [cell for cell in cells if cell.paper is not None]
    assert len(cells_with_number) == len(benchmarks)


@pytest.mark.parametrize(
    ("benchmark", "counts"),
    [
        ("core50", COUNTS),
        ("toybox", [200]),
        ("cifar100", [2000]),
        ("imagenet", [50_000]),
    ],
    ids=["core50", "toybox", "cifar100", "imagenet"],
)
def test_every_number_of_table_3_has_its_cell(tmp_path, benchmark, counts):
    parsed = options(tmp_path, "--benchmark", benchmark)
    cells = cells_of_table3(parsed, parsed.protocols(benchmark), counts, None)
    expected = []
    for key, value in PAPER.items():
        if key[:2] == ("table3", benchmark):
            expected.append(value.value)
    assert sorted(cell.paper.value for cell in cells) == sorted(expected)


def test_table_3_of_other_videos_stands_beside_core50():
    _, paper_dataset = paper_row(PAPER, "eth80", "class_iid", "crumb", 400)
    assert paper_dataset == "core50"


def test_table_3_of_another_count_has_no_number():
    row = paper_row(PAPER, "cifar100", "class_iid", "crumb", 400)
    assert row == (None, "cifar100")


def test_codes_of_table_3_start_from_the_pretrained_file(tmp_path):
    parsed = options(tmp_path, "--benchmark", "eth80")
    ours, images = cells_of_table3(parsed, ["class_iid"], [400], "file")
    assert ours.settings == dict(
        protocol="class_iid",
        strategy="crumb",
        mem_size=400,
        codebook_dim=8,
        pretrained="file",
    )
    assert "pretrained" not in images.settings


@pytest.mark.parametrize(
    ("images", "length", "memories"),
    [
        (15, 16, 416.8),
        (30, 16, 834.3),
        (100, 16, 2782.7),
        (10_000, 16, 278_342),
        (15, 8, 208.6),
        (100, 32, 5563.8),
    ],
)
def test_sizes_of_buffers_by_hand(images, length, memories):
    """(images * 150,528 - 256 * length) / (86,528 / length)."""
    size = formula(images, (512, 13, 13), 256, length)
    assert size == pytest.approx(memories, abs=0.5)


@pytest.fixture(scope="module")
def squeezenet():
    """The paper's network with its codebook, without weights."""
    return split_backbone(weights=None, n_classes=10, codebook=Codebook(256, 16))


@pytest.mark.parametrize("benchmark", ["core50", "icub", "cifar100", "imagenet"])
def test_counts_and_bytes_of_buffers(squeezenet, benchmark):
    size = size_of(benchmark, squeezenet, PAPER)
    assert size.ours == size.paper
    assert size.true_bytes == size.ours * (5408 + 2) + 4 * 256 * 16
    assert size.exact_bytes <= size.budget
    assert size.budget < size.exact_bytes + 5408


def test_the_size_of_reminds_buffer_is_the_papers():
    remind = PAPER.find("s5", "imagenet", "", "remind", "n_x").value
    size = remind_formula(10_000, (512, 13, 13), PAPER)
    assert size == pytest.approx(remind, abs=1)


def test_an_offline_bound_runs_once_for_both_protocols(tmp_path, monkeypatch):
    benchmarks = ["--benchmark", "eth80", "cifar100", "--dataset-root", "A", "B"]
    parsed = options(tmp_path, *benchmarks, "--runs", "0-1")
    started = []

    def record(self, runs, finished=None):
        started.extend(runs)
        return {}

    monkeypatch.setattr(type(parsed), "do", record)
    cells = cells_of(parsed, ["crumb", "offline"], ["class_instance", "class_iid"])
    findings, _ = parsed.run_cells(cells, family="fair")
    folders = [settings.output.removeprefix(f"{tmp_path}/") for settings in started]
    assert folders[:5] == [
        "eth80/class_instance/crumb/run0",
        "eth80/joint/offline/run0",
        "eth80/class_iid/crumb/run0",
        "cifar100/class_iid/crumb/run0",
        "cifar100/joint/offline/run0",
    ]
    assert [settings.run for settings in started] == [0] * 5 + [1] * 5, "run by run"
    assert {settings.dataset_root for settings in started} == {"A", "B"}
    assert len(cells) == 6
    assert len(findings) == 6


@pytest.fixture(scope="module")
def findings_of_curves(tmp_path_factory):
    """Two runs of Ours, of which one was tested after the second experience, and one of
    the upper bound.
    """
    output = tmp_path_factory.mktemp("curves")
    ours = output / "eth80" / "class_iid" / "crumb"
    changed(made_run(ours / "run0", 100), accuracy_after=[90.0, None, 50.0])
    changed(made_run(ours / "run1", 100), accuracy_after=[80.0, 70.0, 60.0])
    made_run(output / "eth80" / "joint" / "offline" / "run0", 180, joint=True)
    parsed = options(output, "--benchmark", "eth80")
    return find(cells_of(parsed, ["crumb", "ewc", "offline"], ["class_iid"]), [0, 1])


def test_rows_of_curves_are_those_of_all_runs(findings_of_curves):
    _, *rows = csv_rows_of(findings_of_curves)
    points = [row[2:] for row in rows]
    assert points[:3] == [
        ["Ours", 0, 1, "90.0000"],
        ["Ours", 0, 2, ""],
        ["Ours", 0, 3, "50.0000"],
    ]
    assert points[6:] == [["Upper bound", 0, 2, "90.0000"]]


@pytest.fixture(scope="module")
def figure_of_curves(findings_of_curves):
    return curves(panels_of_curves(findings_of_curves), "A title")


def test_a_method_without_runs_has_no_curve(figure_of_curves):
    (legend,) = figure_of_curves.legends
    names = {text.get_text() for text in legend.get_texts()}
    assert names == {"Ours", "Upper bound"}


def test_a_curve_has_means_where_all_runs_were_tested(figure_of_curves):
    line, *_ = figure_of_curves.axes[0].containers[0]
    assert line.get_xydata().tolist() == [[1, 85], [3, 55]]


def test_ticks_of_curves_are_whole_experiences(figure_of_curves):
    ticks = [float(tick) for tick in figure_of_curves.axes[0].get_xticks()]
    assert ticks
    assert all(tick.is_integer() for tick in ticks)


@pytest.mark.parametrize(
    ("figure", "benchmark", "protocols"),
    [
        ("3", "core50", ["class_instance"]),
        ("3", "cifar100", ["class_iid"]),
        ("S1", "core50", ["class_iid"]),
        ("S1", "cifar100", []),
        ("S2", "core50", ["class_instance", "class_iid"]),
    ],
)
def test_protocols_of_a_figure(figure, benchmark, protocols):
    assert protocols_of(figure, benchmark) == protocols


def test_ratios_by_hand():
    times = {CRUMB: 2.0, SINGLE: 20.0, BATCHES: 4.0}
    memory = {CRUMB: 1.0, ALL_MAPS: 8.0, SAMPLE: 4.0}
    all_ratios = ratios(times, times, memory)
    assert Ratio("time of an image", CRUMB, SINGLE, 0.1) in all_ratios
    assert Ratio("time of the whole run", CRUMB, BATCHES, 0.5) in all_ratios
    assert Ratio("memory", CRUMB, ALL_MAPS, 0.125) in all_ratios
    assert Ratio("memory", SAMPLE, ALL_MAPS, 0.5) in all_ratios


def costs(path, crumb_seconds):
    """Write the costs of CRUMB and REMIND in a run."""
    header = ["quantity", "method", "by", "value"]
    rows = [
        ["seconds_whole_run", CRUMB, "", crumb_seconds],
        ["seconds_whole_run", SINGLE, "", 7200],
        ["peak_bytes", CRUMB, "", 3e7],
        ["held_bytes", CRUMB, "", 1e7],
        ["peak_bytes", ALL_MAPS, "", 8e8],
        ["held_bytes", ALL_MAPS, "", 2e8],
    ]
    write_csv(path, [header, *rows])
    return path


@pytest.fixture
def cost_files(tmp_path):
    """Two measured runs, and the file of one that was not measured."""
    return [
        costs(tmp_path / "a.csv", 1800),
        costs(tmp_path / "b.csv", 5400),
        tmp_path / "none.csv",
    ]


def test_costs_are_read_in_the_papers_units(cost_files):
    memory, time = measured(cost_files[0])
    assert memory.crumb == 0.04
    assert memory.remind == 1.0
    assert time.crumb == 0.5
    assert time.remind == 2.0


def test_costs_stand_beside_the_papers(cost_files):
    memory, time = quantities_of("cifar100", cost_files, PAPER)
    assert memory.ours.ratio == pytest.approx(4)
    assert time.ours.ratio == pytest.approx(50)
    cells = ["0.29", "1", "1.91", "2", "15.2 %", "50.0 %", "+34.8", "2"]
    assert time.line[3:11] == cells


def test_a_benchmark_that_was_not_measured_is_empty(cost_files):
    for quantity in quantities_of("imagenet", cost_files[2:], PAPER):
        assert quantity.ours is None
        assert quantity.cell("ours") == ""
        assert quantity.cell("runs") == ""
        assert quantity.cell("difference") == ""


def test_costs_on_another_benchmark_have_no_difference(cost_files):
    memory, _ = quantities_of("eth80", cost_files[:1], PAPER)
    assert memory.cell("paper's data set") == "cifar100"
    assert memory.cell("difference") == ""
    assert memory.cell("ours") == "4.0 %"


@pytest.fixture
def measured_part(tmp_path):
    """A run of which a part was measured."""
    part = Part(stream_images=100, experiences=2, table_images=80)
    write_json(tmp_path / "made_with.json", asdict(part))
    return costs(tmp_path / "cost_of_replay.csv", 1800)


def test_a_measured_part_is_named_and_has_no_difference(measured_part):
    for quantity in quantities_of("cifar100", [measured_part], PAPER):
        assert quantity.part == (
            "100 images of each experience, the first 2 experiences, REMIND's tables "
            "of 80 maps"
        )
        assert quantity.cell("difference") == ""


def test_another_part_is_not_measured_over(measured_part):
    settings = RunSettings(output=str(measured_part.parent))
    with pytest.raises(FinishedRunError, match="other settings; choose another"):
        measure_once(settings, Part())


def test_each_half_has_objects_of_every_class():
    classes = {"c1": "cup", "c2": "cup", "c3": "cup", "p1": "pear", "p2": "pear"}
    frames = []
    for object_name, class_name in classes.items():
        for number in range(2):
            path = f"{class_name}/{object_name}/{number}.png"
            frames.append(Frame(path, class_name, object_name, "1", number, "train"))
    table = FrameTable(frames)
    first, second = halves(table, range(len(table)))
    assert {table[row].object_name for row in first} == {"c1", "c3", "p1"}
    assert {table[row].object_name for row in second} == {"c2", "p2"}
    assert sorted(first + second) == list(range(len(table)))


def test_the_table_of_the_taught_learner_compares_the_same_runs():
    accuracies = {
        "run": {0: 90.0, 1: 92.0, 2: 91.0},
        "taught": {0: 91.0, 2: 93.0},
        "own 0, small": {0: 50.0},
        "own 0.3, small": {0: 48.0},
    }
    run, taught, _, own = lines_of_taught(accuracies, {0: "a", 1: "b", 2: "c"})
    assert run[2:] == ["", "", ""]
    assert taught[2:] == ["+1.50 to run", "-4.9 to +7.9", "+1.0 +2.0"]
    assert own[2:] == ["-2.00 to own 0, small", "", "-2.0"]


def figures_of(value):
    """A run of which each figure has this value."""
    return dict.fromkeys(task_incremental.FIGURES, value)


def test_differences_to_fine_tuning_are_within_a_run():
    results = {
        "finetune": {0: figures_of(10.0), 1: figures_of(30.0)},
        "ewc": {0: figures_of(14.0), 1: figures_of(36.0)},
    }
    *_, forgetting = task_incremental.csv_rows_of(results)
    std = round(22 / 2**0.5, 4)
    difference_std = round(2**0.5, 4)
    assert forgetting == ["ewc", "forgetting", 2, 25.0, std, 5.0, difference_std]


def test_a_run_without_fine_tuning_has_no_difference():
    results = {"finetune": {0: figures_of(10.0)}, "si": {5: figures_of(10.0)}}
    *_, forgetting = task_incremental.csv_rows_of(results)
    assert forgetting == ["si", "forgetting", 1, 10.0, "", "", ""]


def settings_of_finetune(clips, folder):
    """Settings of a run of four experiences of a class."""
    return RunSettings(
        **QUICK,
        benchmark="clip_folder",
        dataset_root=str(clips),
        classes_per_experience=1,
        strategy="finetune",
        threads=1,
        progress=False,
        output=str(folder),
    )


@pytest.fixture(scope="module")
def shortened_run(clips, tmp_path_factory):
    """Settings of a run that was measured on two of its four experiences."""
    settings = settings_of_finetune(clips, tmp_path_factory.mktemp("shortened"))
    task_incremental.measure(settings, experiences=2)
    return settings


def test_a_stream_may_be_shortened(shortened_run):
    figures = json.loads(task_incremental.path_of(shortened_run).read_text())
    learned = figures["after_learning"]
    final = figures["after_the_stream"]
    assert len(learned) == 2
    assert len(final) == 2
    assert figures["task_incremental"] == statistics.fmean(final)
    assert figures["forgetting"] == learned[0] - final[0]


def test_figures_of_a_shortened_stream_are_not_those_of_a_longer_one(shortened_run):
    words = "made with other settings; use another --output"
    with pytest.raises(ValueError, match=words):
        task_incremental.measure(shortened_run, experiences=3)


def test_a_stream_of_one_experience_is_refused(clips, tmp_path):
    settings = settings_of_finetune(clips, tmp_path)
    words = "the stream has 1 experience, so nothing can be forgotten; give"
    with pytest.raises(ValueError, match=words):
        task_incremental.measure(settings, experiences=1)
    assert not task_incremental.path_of(settings).exists()
    task_incremental.measure(settings, experiences=2)  # nothing stands in its way
