"""The paper's numbers beside ours; cells without runs are empty."""

import csv

import pytest
from made_runs import made_run
from scipy.stats import ttest_rel
from support.paper_numbers import PaperValue
from support.paper_statistics import holm
from support.saved_picture import findings_picture, save_picture
from support.side_by_side import COLUMNS, Cell, find, line_of, print_findings, write_findings


@pytest.fixture
def cells(tmp_path):
    """Two runs of Ours, two of another row of which one fails its first task, and a row that was not run."""
    for run, right in ((0, 160), (1, 170)):
        made_run(tmp_path / "ours" / f"run{run}", right)
    made_run(tmp_path / "half" / "run0", 120)
    made_run(tmp_path / "half" / "run1", 110, first=55.0)
    ours, paper = tmp_path / "ours", PaperValue(78.22, False)
    common = dict(benchmark="core50", protocol="class_iid", paper_dataset="core50")
    return [
        Cell("Ours", folder=ours, paper=paper, reference=ours, paper_reference=paper, **common),
        Cell(
            "Half",
            folder=tmp_path / "half",
            paper=PaperValue(73.5, True),
            reference=ours,
            paper_reference=paper,
            **common,
        ),
        Cell(
            "Not run",
            folder=tmp_path / "none",
            paper=PaperValue(50, True),
            reference=ours,
            paper_reference=paper,
            **common,
        ),
        Cell("Needs", folder=None, reference=ours, note="needs ImageNet", **common),
    ]


def test_means_differences_and_filter(cells):
    ours, half, not_run, needs = find(cells, [0, 1, 2])
    assert (ours.mean, ours.spread) == (pytest.approx(82.5), pytest.approx(12.5**0.5))
    assert ours.paired is None and ours.s4 is None and ours.difference == pytest.approx(82.5 - 78.22)
    assert half.mean == pytest.approx(57.5) and half.effect == pytest.approx(-25)
    assert half.paper_effect == pytest.approx(73.5 - 78.22)
    assert half.paired.differences == pytest.approx({0: -20, 1: -30}) and half.verdict == "not decided"
    assert half.p_holm == half.paired.p == pytest.approx(ttest_rel([60, 55], [80, 85]).pvalue)
    assert half.s4.pairs == 4 and half.s4.difference == pytest.approx(-25) and half.s4.p < 0.05
    assert (half.filter.kept, half.mean_filtered, half.s4_filtered.pairs) == ((0,), 60, 2)
    assert half.s4_holm == half.s4.p, "one comparison is not corrected"
    assert not_run.mean is None and not_run.paired is None and not_run.s4 is None and not_run.difference is None
    assert needs.runs == ()


def test_lines_and_files(cells, tmp_path, capsys):
    findings = find(cells, [0, 1])
    assert line_of(findings[0], True)[:7] == ["Ours", "78.22", "82.5 +- 3.5", "+4.3", "2", "82.5", "2"]
    assert line_of(findings[1], True)[1:9] == ["73.5*", "57.5 +- 3.5", "-16.0", "2", "60.0", "1", "-4.7", "-25.0"]
    assert line_of(findings[2], True)[2:7] == ["", "", "", "", ""]
    write_findings(tmp_path / "out", "table", findings, "A heading")
    text = (tmp_path / "out" / "table.md").read_text()
    assert text.startswith("# A heading\n\n## core50, class-iid") and "| Needs |  |  |" in text
    assert "needs ImageNet |" in text
    with open(tmp_path / "out" / "table.csv") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert float(rows[1]["ours"]) == pytest.approx(57.5) and rows[1]["paper_differs_p01"] == "True"
    assert rows[1]["run_numbers"] == "0 1" and float(rows[1]["s4_p"]) == findings[1].s4.p
    assert float(rows[1]["p"]) == findings[1].paired.p and rows[1]["effect_of_runs"] == "-20.0000 -30.0000"
    assert all(rows[2][name] == "" for name in ("ours", "std", "runs", "difference", "p", "runs_filtered"))
    print_findings(findings)
    assert "needs ImageNet" in capsys.readouterr().out
    for path in save_picture(findings_picture(findings, "A title"), tmp_path / "out", "table"):
        assert path.stat().st_size > 5000


def test_no_difference_to_another_benchmark(cells):
    from dataclasses import replace

    (finding,) = find([replace(cells[0], benchmark="eth80")], [0])
    assert finding.difference is None and finding.mean == 80


def test_correction_counts_a_folder_once(cells, tmp_path):
    from dataclasses import replace

    for run, right in ((0, 150), (1, 152)):
        made_run(tmp_path / "third" / f"run{run}", right)
    third = replace(cells[1], row="Third", folder=tmp_path / "third")
    findings = find([*cells[:2], replace(cells[1], row="Half again"), third], [0, 1])
    for name, tests in (("p_holm", "paired"), ("s4_holm", "s4")):
        expected = holm([getattr(findings[place], tests).p for place in (1, 3)])
        found = [getattr(finding, name) for finding in findings[1:]]
        assert found == [expected[0], expected[0], expected[1]]


def test_an_offline_bound_has_no_first_task(tmp_path):
    made_run(tmp_path / "bound" / "run0", 30, joint=True)
    (finding,) = find([Cell("Bound", "eth80", "class_iid", tmp_path / "bound")], [0])
    assert finding.filter.kept == (0,) and finding.filter.cut is None


def test_runs_on_other_images_are_refused(cells, tmp_path):
    made_run(tmp_path / "other" / "run0", 100, shift=3)
    from dataclasses import replace

    with pytest.raises(ValueError, match="tested on different images"):
        find([replace(cells[1], folder=tmp_path / "other")], [0])


def test_a_damaged_result_is_named(cells, tmp_path):
    (tmp_path / "ours" / "run0" / "result.json").write_text("{")
    with pytest.raises(ValueError, match=r"ours/run0/result\.json is damaged"):
        find(cells, [0])
    (tmp_path / "ours" / "run0" / "result.json").write_text('{"final_accuracy": 3}')
    with pytest.raises(ValueError, match="has no accuracy_after, final_accuracy_per_experience"):
        find(cells, [0])


def test_a_run_without_predictions_has_no_test_of_the_paper(cells, tmp_path):
    for run in (0, 1):
        (tmp_path / "half" / f"run{run}" / "predictions.npz").unlink()
    findings = find(cells, [0, 1])
    assert findings[1].s4 is None and findings[1].s4_holm is None and findings[1].mean == pytest.approx(57.5)
    assert findings[1].effect == pytest.approx(-25)


def test_a_long_title_is_broken_into_lines_that_fit():
    from matplotlib.figure import Figure
    from support.saved_picture import set_title

    figure = Figure(figsize=(5, 3))
    set_title(figure, "all rows start from stock weights, without CRUMB pretraining, but where the row says otherwise")
    lines = figure.get_suptitle().splitlines()
    assert len(lines) == 2 and max(map(len, lines)) <= 50
    assert figure.get_tightbbox().width < figure.get_figwidth()
