"""The table of the recommended preset: rows, paired figures, and the whole script on rendered shapes."""

import csv

import pytest
from called_script import called
from made_runs import made_run
from recommended import ROWS, changes_of, lines_of, text_of
from scipy.stats import ttest_rel
from support.common_options import common_options, parser_for, rows_named

from benchmarks_toybox_ilab.tables.text import from_spreadsheet_cell
from crumb_avalanche.methods.registry import get_strategy


def test_figures_by_hand(tmp_path):
    rows = rows_named(ROWS, ["slda", "ncm"], always=ROWS[0])
    assert [row.name for row in rows] == ["recommended", "slda", "ncm"]
    for run, (own, other) in enumerate([(180, 150), (170, 150), (190, 140)]):
        for name, right in (("recommended", own), ("slda", other)):
            folder = made_run(tmp_path / name / f"run{run}", right)
            (folder / "ledger.json").write_text('{"memory_bytes": 1000, "images_per_second": 50.0}')
    lines = lines_of(rows, tmp_path, [0, 1, 2])
    assert [line.row.name for line in lines] == ["recommended", "slda"]
    finals = [[run.final for run in line.runs] for line in lines]
    assert lines[1].paired.units == tuple(other - own for own, other in zip(*finals))
    assert lines[1].p_holm == pytest.approx(ttest_rel(*finals).pvalue), "one comparison is not corrected"
    assert text_of(lines[0])[2:6] == [""] * 4
    assert text_of(lines[1])[2] == "-16.7" and text_of(lines[1])[5] == "not decided"
    assert text_of(lines[1])[-3:] == ["3", "1,000", "50"]


def test_rows_are_existing_settings():
    assert len({row.folder for row in ROWS}) == len(ROWS)
    for row in ROWS:
        get_strategy(row.settings.get("strategy", "rda")).method_settings(row.method)
    with pytest.raises(ValueError, match="there is no row 'nothing'; the rows are recommended, - head share"):
        rows_named(ROWS, ["nothing"], always=ROWS[0])


def test_impossible_options_are_refused(tmp_path):
    done = called("recommended", "--output", tmp_path, "--benchmark", "cifar100")
    assert done.returncode == 1 and "cifar100 has no videos, so no class_instance: give --protocol" in done.stderr
    done = called("recommended", "--output", tmp_path, "--preset", "reference")
    assert done.returncode == 1 and "every row of this table has its own preset; leave it out" in done.stderr


def test_budgets(tmp_path):
    def budgets(*given, bytes_wanted=None):
        options = common_options(parser_for("Doc.", "runs").parse_args(["--output", str(tmp_path), *given]))
        rows = changes_of(rows_named(ROWS, ["0.60 MB", "slda", "map_replay"], ROWS[0]), options, "x", bytes_wanted)
        names = ("budget_images", "budget_bytes", "mem_size")
        return [{name: row[name] for name in names if name in row} for row in rows.values()]

    own = [{"budget_bytes": 600_000}, {"mem_size": 417}]
    assert budgets() == [{}, own[0], {}, own[1]]
    assert (
        budgets(bytes_wanted=7)
        == budgets("--quick", bytes_wanted=7)
        == [{"budget_bytes": 7}, own[0], {"budget_bytes": 7}, own[1]]
    )
    assert budgets("--quick") == [{"budget_images": 60.0}, own[0], {"budget_images": 60.0}, own[1]]


# All rows take minutes; these are of each kind: a part taken away, another budget, another strategy.
SOME = ("recommended", "- feature map", "0.60 MB", "slda", "offline")


@pytest.mark.parametrize("rows", [SOME, pytest.param((), marks=pytest.mark.slow)], ids=["some", "all"])
def test_quick(tmp_path, rows):
    done = called("recommended", "--quick", "--output", tmp_path, *(["--rows", *rows] if rows else []))
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "recommended.csv") as file:
        found = {from_spreadsheet_cell(row["row"]): row for row in csv.DictReader(file)}
    assert list(found) == [row.name for row in ROWS if not rows or row.name in rows]
    assert f"recommended  {float(found['recommended']['accuracy']):.1f}"[:12] in done.stdout
    assert found["recommended"]["accuracy"] != found["slda"]["accuracy"]
    assert (tmp_path / "recommended.png").stat().st_size > 10_000
