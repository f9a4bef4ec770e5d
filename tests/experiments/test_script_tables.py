"""The paper's numbers beside ours, and the rows of every table.

Cells without runs are empty.
"""

import csv
import json
import statistics
from dataclasses import asdict, replace

import pytest
import task_incremental
import yaml
from buffer_sizes import formula, remind_formula, size_of
from called_script import EXPERIMENTS, made_run
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
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.run_folder import FinishedRunError, write_csv, write_json
from crumb_avalanche.runs.settings import RunSettings

PAPER = PaperNumbers()


def options(tmp_path, *more):
    return common_options(
        parser_for("Doc.", "runs", several=True).parse_args(
            ["--output", str(tmp_path), *more]
        )
    )


def changed(folder, **more):
    """Change entries of a result."""
    path = folder / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | more))
    return folder


@pytest.fixture
def cells(tmp_path):
    """Two runs of Ours, two of another row of which one fails its first task, and a row
    that was not run.
    """
    for run, right in ((0, 160), (1, 170)):
        made_run(tmp_path / "ours" / f"run{run}", right)
    made_run(tmp_path / "half" / "run0", 120)
    made_run(tmp_path / "half" / "run1", 110, first=55.0)
    ours = Cell(
        "Ours",
        "core50",
        "class_iid",
        tmp_path / "ours",
        {},
        PaperValue(78.22, False),
        "core50",
    )
    ours = replace(ours, reference=ours.folder, paper_reference=ours.paper)
    half = replace(
        ours, row="Half", folder=tmp_path / "half", paper=PaperValue(73.5, True)
    )
    not_run = replace(half, row="Not run", folder=tmp_path / "none")
    return [
        ours,
        half,
        not_run,
        replace(ours, row="Needs", folder=None, paper=None, note="needs ImageNet"),
    ]


def test_means_differences_and_filter(cells):
    ours, half, not_run, needs = find(cells, [0, 1, 2])
    assert ours.mean == pytest.approx(82.5) and csv_columns(ours)[
        "std"
    ] == pytest.approx(12.5**0.5)
    assert (
        ours.paired is None
        and ours.s4 is None
        and ours.difference == pytest.approx(82.5 - 78.22)
    )
    assert half.mean == pytest.approx(57.5) and half.paired.mean == pytest.approx(-25)
    assert half.paper_effect == pytest.approx(73.5 - 78.22)
    assert half.paired.differences == pytest.approx({0: -20, 1: -30})
    assert (
        half.p_holm
        == half.paired.p
        == pytest.approx(ttest_rel([60, 55], [80, 85]).pvalue)
    )
    assert (
        half.s4.pairs == 4
        and half.s4.difference == pytest.approx(-25)
        and half.s4.p < 0.05
    )
    assert (
        [run.number for run in half.filter[0]],
        half.mean_filtered,
        half.s4_filtered.pairs,
    ) == ([0], 60, 2)
    assert half.s4_holm == half.s4.p, "one comparison is not corrected"
    assert (
        not_run.mean is None
        and not_run.paired is None
        and not_run.s4 is None
        and not_run.difference is None
    )
    assert needs.runs == ()
    (elsewhere,) = find([replace(cells[0], benchmark="eth80")], [0])
    assert elsewhere.difference is None and elsewhere.mean == 80


def test_lines_and_files(cells, tmp_path, capsys):
    findings = find(cells, [0, 1])
    (table,) = text_tables(findings)
    header = table.header
    lines = table.lines
    assert lines[0][:7] == ["Ours", "78.22", "82.5 +- 3.5", "+4.3", "2", "82.5", "2"]
    assert lines[1][1:9] == [
        "73.5*",
        "57.5 +- 3.5",
        "-16.0",
        "2",
        "60.0",
        "1",
        "-4.7",
        "-25.0",
    ]
    assert lines[2][2:7] == [""] * 5 and header[-1] == "note"
    publish(findings, "A heading", tmp_path / "out", "table")
    text = (tmp_path / "out" / "table.md").read_text()
    assert (
        text.startswith("# A heading\n\n## core50, class-iid")
        and "| Needs |  |  |" in text
    )
    assert "needs ImageNet |" in text and "needs ImageNet" in capsys.readouterr().out
    with open(tmp_path / "out" / "table.csv") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(csv_columns(findings[0]))
    assert (
        float(rows[1]["ours"]) == pytest.approx(57.5)
        and rows[1]["paper_differs_p01"] == "True"
    )
    assert (
        rows[1]["run_numbers"] == "0 1" and float(rows[1]["s4_p"]) == findings[1].s4.p
    )
    assert (
        float(rows[1]["p"]) == findings[1].paired.p
        and rows[1]["effect_of_runs"] == "-20.0000 -30.0000"
    )
    assert all(
        rows[2][name] == ""
        for name in ("ours", "std", "runs", "difference", "p", "runs_filtered")
    )
    assert (tmp_path / "out" / "table.png").stat().st_size > 5000


def test_correction_counts_a_folder_once(cells, tmp_path):
    for run, right in ((0, 150), (1, 152)):
        made_run(tmp_path / "third" / f"run{run}", right)
    third = replace(cells[1], row="Third", folder=tmp_path / "third")
    findings = find([*cells[:2], replace(cells[1], row="Half again"), third], [0, 1])
    for name, tests in (("p_holm", "paired"), ("s4_holm", "s4")):
        expected = holm([getattr(findings[index], tests).p for index in (1, 3)])
        assert [getattr(finding, name) for finding in findings[1:]] == [
            expected[0],
            expected[0],
            expected[1],
        ]


def test_runs_that_cannot_be_used_are_named(cells, tmp_path):
    made_run(tmp_path / "other" / "run0", 100, shift=3)
    with pytest.raises(ValueError, match="tested on different images"):
        find([replace(cells[1], folder=tmp_path / "other")], [0])
    (tmp_path / "half" / "run0" / "predictions.npz").unlink()
    (tmp_path / "half" / "run1" / "predictions.npz").unlink()
    half = find(cells, [0, 1])[1]
    assert (
        half.s4 is None
        and half.s4_holm is None
        and half.paired.mean == pytest.approx(-25)
    )
    changed(tmp_path / "ours" / "run0", files={}, result_sha256="0" * 64)
    with pytest.raises(ValueError, match=r"result\.json is not what the run wrote"):
        find(cells, [0])
    (tmp_path / "ours" / "run0" / "result.json").write_text("{")
    with pytest.raises(ValueError, match=r"ours/run0/result\.json is damaged"):
        find(cells, [0])
    (tmp_path / "ours" / "run0" / "result.json").write_text('{"final_accuracy": 3}')
    with pytest.raises(
        ValueError, match="has no accuracy_after, final_accuracy_per_experience"
    ):
        find(cells, [0])


def test_runs_are_listed_with_seed_settings_and_table_of_frames(tmp_path):
    folder = made_run(tmp_path / "rows" / "run1", 170)
    learning = dict(strategy="image_replay", mem_size=200, run=1, threads=1)
    elsewhere = dict(
        weights="/x/squeezenet.npz",
        dataset_root="/x/eth80",
        output="/x/out",
        feature_cache="/x/cache",
    )
    (folder / "config.yaml").write_text(
        yaml.safe_dump(vars(RunSettings(**learning, **elsewhere)))
    )
    provenance = {"weights": "sha256:0123456789abcdef"}
    changed(folder, seconds=12.3456, frame_table_sha256="abc", provenance=provenance)
    made_run(tmp_path / "rows" / "run0", 160)
    findings = find(
        [Cell("Im. replay", "eth80", "class_iid", tmp_path / "rows")], [0, 1, 2]
    )
    publish(findings, "A heading", tmp_path, "table")
    with open(tmp_path / "table_runs.csv") as file:
        plain, row = csv.DictReader(file)
    assert [
        plain[name] for name in ("run", "final_accuracy", "seconds", "settings")
    ] == ["0", "80.0", "", ""]
    assert (row["run"], row["seconds"], row["frame_table_sha256"]) == (
        "1",
        "12.3",
        "abc",
    )
    assert set(row["settings"].split()) == {
        "preset=paper",
        "learning_rate=None",
        "strategy=image_replay",
        "weights=squeezenet.npz@01234567",
        "mem_size=200",
    }


def test_numbers_of_every_table():
    assert PAPER.find("table1", "core50", "class_instance", "crumb") == PaperValue(
        78.5, None
    )
    assert PAPER.find(
        "table2", "cifar100", "class_iid", "remind", "peak_ram_gb"
    ) == PaperValue(0.87)
    assert PAPER.find(
        "table3", "core50", "class_iid", "image_replay@n_x=3200"
    ) == PaperValue(79.72, False)
    assert PAPER.find(
        "table4", "core50", "class_instance", "Half capacity"
    ) == PaperValue(73.55, True)
    assert PAPER.find("table1", "imagenet", "class_iid", "gss") is None
    assert {key[0] for key in PAPER} == {"table1", "table2", "table3", "table4", "s5"}
    assert len(PAPER) == len(PAPER_VALUES.read_text().splitlines()) - 1, (
        "each cell stands once"
    )
    percents = set()
    for (paper_table, *_), value in PAPER.items():
        if paper_table in ("table3", "table4"):
            percents.add(f"{value.value:.2f}")
    for path in EXPERIMENTS.rglob("*.py"):
        assert not [number for number in percents if number in path.read_text()], (
            f"{path} has numbers of the paper"
        )


def test_rows_are_existing_settings():
    for name, row in RECOMMENDED.items():
        get_strategy(row.get("settings", {}).get("strategy", "rda")).method_settings(
            row.get("method", {})
        )
        RunPlan.of(RunSettings(**settings_of_recommended(name, "class_instance")))
    for row in rows_of("bytes_dial").values():
        RunPlan.of(RunSettings(**{"preset": "recommended", **row.get("settings", {})}))
    assert chosen_rows(RECOMMENDED, ["slda", "ncm"]) == ["recommended", "slda", "ncm"]


def test_every_number_of_the_paper_has_its_cell(tmp_path):
    benchmarks = [benchmark for table, benchmark, *_ in PAPER if table == "table1"]
    cells = cells_of(
        options(tmp_path, "--benchmark", *dict.fromkeys(benchmarks)),
        METHODS,
        ["class_instance", "class_iid"],
    )
    cells_with_number = [cell for cell in cells if cell.paper is not None]
    assert len(cells_with_number) == len(benchmarks)
    for benchmark, counts in (
        ("core50", COUNTS),
        ("toybox", [200]),
        ("cifar100", [2000]),
        ("imagenet", [50_000]),
    ):
        parsed = options(tmp_path, "--benchmark", benchmark)
        cells = cells_of_table3(parsed, parsed.protocols(benchmark), counts, None)
        expected = []
        for key, value in PAPER.items():
            if key[:2] == ("table3", benchmark):
                expected.append(value.value)
        assert sorted(cell.paper.value for cell in cells) == sorted(expected)
    assert paper_row(PAPER, "eth80", "class_iid", "crumb", 400)[1] == "core50"
    assert paper_row(PAPER, "cifar100", "class_iid", "crumb", 400) == (None, "cifar100")
    (ours, images) = cells_of_table3(
        options(tmp_path, "--benchmark", "eth80"), ["class_iid"], [400], "file"
    )
    settings = dict(
        protocol="class_iid",
        strategy="crumb",
        mem_size=400,
        codebook_dim=8,
        pretrained="file",
    )
    assert ours.settings == settings and "pretrained" not in images.settings


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
    assert formula(images, (512, 13, 13), 256, length) == pytest.approx(
        memories, abs=0.5
    )


def test_counts_and_bytes_of_buffers():
    from crumb_avalanche.models.codebook import Codebook
    from crumb_avalanche.models.split_backbone import split_backbone

    model = split_backbone(weights=None, n_classes=10, codebook=Codebook(256, 16))
    for name in ("core50", "icub", "cifar100", "imagenet"):
        size = size_of(name, model, PAPER)
        assert size.ours == size.paper, name
        assert size.true_bytes == size.ours * (5408 + 2) + 4 * 256 * 16
        assert size.exact_bytes <= size.budget < size.exact_bytes + 5408
    remind = PAPER.find("s5", "imagenet", "", "remind", "n_x").value
    assert remind_formula(10_000, (512, 13, 13), PAPER) == pytest.approx(remind, abs=1)


def test_an_offline_bound_runs_once_for_both_protocols(tmp_path, monkeypatch):
    parsed = options(
        tmp_path,
        "--benchmark",
        "eth80",
        "cifar100",
        "--dataset-root",
        "A",
        "B",
        "--runs",
        "0-1",
    )
    started = []
    monkeypatch.setattr(
        type(parsed), "do", lambda self, runs, finished=None: started.extend(runs) or {}
    )
    cells = cells_of(parsed, ["crumb", "offline"], ["class_instance", "class_iid"])
    findings, _ = parsed.run_cells(cells, family="fair")
    folders = [settings.output.removeprefix(f"{tmp_path}/") for settings in started]
    assert folders[:5] == [
        *(
            "eth80/class_instance/crumb/run0",
            "eth80/joint/offline/run0",
            "eth80/class_iid/crumb/run0",
        ),
        *("cifar100/class_iid/crumb/run0", "cifar100/joint/offline/run0"),
    ]
    assert [settings.run for settings in started] == [0] * 5 + [1] * 5, "run by run"
    assert {settings.dataset_root for settings in started} == {"A", "B"} and len(
        findings
    ) == len(cells) == 6


def test_curves_of_made_runs(tmp_path):
    folder = tmp_path / "eth80" / "class_iid" / "crumb"
    for run, after in ((0, [90.0, None, 50.0]), (1, [80.0, 70.0, 60.0])):
        changed(made_run(folder / f"run{run}", 100), accuracy_after=after)
    made_run(tmp_path / "eth80" / "joint" / "offline" / "run0", 180, joint=True)
    parsed = options(tmp_path, "--benchmark", "eth80")
    findings = find(
        cells_of(parsed, ["crumb", "ewc", "offline"], ["class_iid"]), [0, 1]
    )
    rows = [row[2:] for row in csv_rows_of(findings)[1:]]
    assert rows[:3] == [
        ["Ours", 0, 1, "90.0000"],
        ["Ours", 0, 2, ""],
        ["Ours", 0, 3, "50.0000"],
    ]
    assert rows[6:] == [["Upper bound", 0, 2, "90.0000"]]
    figure = curves(panels_of_curves(findings), "A title")
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {
        "Ours",
        "Upper bound",
    }
    line, *_ = figure.axes[0].containers[0]
    assert line.get_xydata().tolist() == [[1, 85], [3, 55]], (
        "means of both runs, where both were tested"
    )
    assert {float(tick).is_integer() for tick in figure.axes[0].get_xticks()} == {True}
    assert protocols_of("3", "core50") == ["class_instance"] and protocols_of(
        "3", "cifar100"
    ) == ["class_iid"]
    assert (
        protocols_of("S1", "core50") == ["class_iid"]
        and protocols_of("S1", "cifar100") == []
    )
    assert protocols_of("S2", "core50") == ["class_instance", "class_iid"]


def test_ratios_by_hand():
    times = {CRUMB: 2.0, SINGLE: 20.0, BATCHES: 4.0}
    memory = {CRUMB: 1.0, ALL_MAPS: 8.0, SAMPLE: 4.0}
    all_ratios = ratios(times, times, memory)
    assert Ratio("time of an image", CRUMB, SINGLE, 0.1) in all_ratios
    assert Ratio("time of the whole run", CRUMB, BATCHES, 0.5) in all_ratios
    assert Ratio("memory", CRUMB, ALL_MAPS, 0.125) in all_ratios
    assert Ratio("memory", SAMPLE, ALL_MAPS, 0.5) in all_ratios


def costs(path, crumb_seconds):
    rows = [
        ("seconds_whole_run", CRUMB, crumb_seconds),
        ("seconds_whole_run", SINGLE, 7200),
    ]
    rows += [("peak_bytes", CRUMB, 3e7), ("held_bytes", CRUMB, 1e7)]
    rows += [("peak_bytes", ALL_MAPS, 8e8), ("held_bytes", ALL_MAPS, 2e8)]
    write_csv(
        path,
        [
            ["quantity", "method", "by", "value"],
            *([one, method, "", value] for one, method, value in rows),
        ],
    )
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
    assert (memory.crumb, memory.remind) == (0.04, 1.0)
    assert (time.crumb, time.remind) == (0.5, 2.0)


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


def test_another_benchmark_has_no_difference(cost_files):
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


def test_a_part_is_said_and_has_no_difference(measured_part):
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
    objects = {"c1": "cup", "c2": "cup", "c3": "cup", "p1": "pear", "p2": "pear"}
    rows = []
    for name, class_name in objects.items():
        for frame in range(2):
            path = f"{class_name}/{name}/{frame}.png"
            rows.append(Frame(path, class_name, name, "1", frame, "train"))
    table = FrameTable(rows)
    first, second = halves(table, range(len(table)))
    assert {table[row].object_name for row in first} == {"c1", "c3", "p1"}
    assert {table[row].object_name for row in second} == {"c2", "p2"}
    assert sorted(first + second) == list(range(len(table)))


def test_the_table_of_the_taught_learner_compares_the_same_runs():
    found = {"run": {0: 90.0, 1: 92.0, 2: 91.0}, "taught": {0: 91.0, 2: 93.0}}
    found |= {"own 0, small": {0: 50.0}, "own 0.3, small": {0: 48.0}}
    run, taught, _, own = lines_of_taught(found, {0: "a", 1: "b", 2: "c"})
    assert run[2:] == ["", "", ""] and taught[2:] == [
        "+1.50 to run",
        "-4.9 to +7.9",
        "+1.0 +2.0",
    ]
    assert own[2:] == ["-2.00 to own 0, small", "", "-2.0"]


def test_differences_to_fine_tuning_are_within_a_run():
    def run(value):
        return dict.fromkeys(task_incremental.FIGURES, value)

    found = {
        "finetune": {0: run(10.0), 1: run(30.0)},
        "ewc": {0: run(14.0), 1: run(36.0)},
        "si": {5: run(10.0)},
    }
    *_, ewc, _, _, si = task_incremental.csv_rows_of(found)
    assert ewc == [
        "ewc",
        "forgetting",
        2,
        25.0,
        round(22 / 2**0.5, 4),
        5.0,
        round(2**0.5, 4),
    ]
    assert si == ["si", "forgetting", 1, 10.0, "", "", ""], (
        "one run, without fine-tuning"
    )


def test_a_stream_may_be_shortened(clips, tmp_path):
    more = dict(
        benchmark="clip_folder",
        dataset_root=str(clips),
        classes_per_experience=1,
        strategy="finetune",
    )
    settings = RunSettings(
        **QUICK, **more, threads=1, progress=False, output=str(tmp_path)
    )
    with pytest.raises(
        ValueError,
        match="the stream has 1 experience, so nothing can be forgotten; give",
    ):
        task_incremental.measure(settings, experiences=1)
    task_incremental.measure(settings, experiences=2)
    found = json.loads(task_incremental.path_of(settings).read_text())
    learned, final = found["after_learning"], found["after_the_stream"]
    assert len(learned) == len(final) == 2, "of four"
    assert (
        found["task_incremental"] == statistics.fmean(final)
        and found["forgetting"] == learned[0] - final[0]
    )
    with pytest.raises(
        ValueError, match="made with other settings; use another --output"
    ):
        task_incremental.measure(settings, experiences=3)
