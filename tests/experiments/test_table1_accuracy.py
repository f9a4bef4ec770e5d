"""Table 1 has all methods of the paper, on the protocols of each benchmark."""

import csv

import pytest
from called_script import called
from made_runs import made_run
from support.common_options import common_options, parser_for
from support.paper_methods import METHODS, cells_of, folder_of
from support.paper_numbers import read_paper_numbers
from support.side_by_side import find
from table1_accuracy import assembled


def options(tmp_path, *more):
    return common_options(parser_for("Doc.", "runs", several=True).parse_args(["--output", str(tmp_path), *more]))


def test_every_number_of_the_paper_has_its_cell(tmp_path):
    paper = read_paper_numbers()
    names = list(dict.fromkeys(key[1] for key in paper if key[0] == "table1"))
    cells = assembled(options(tmp_path, "--benchmark", *names), list(METHODS), ["class_instance", "class_iid"])
    found = {(cell.benchmark, cell.protocol, METHODS[cell.folder.name]): cell.paper for cell in cells if cell.paper}
    assert found == {key[1:4]: value for key, value in paper.items() if key[0] == "table1"}


def test_an_offline_bound_runs_once_for_both_protocols(tmp_path):
    given = options(tmp_path, "--benchmark", "eth80", "cifar100", "--dataset-root", "A", "B", "--runs", "0-1")
    cells = cells_of(given, ["crumb", "offline"], ["class_instance", "class_iid"], "fair", 417)
    folders = [str(cell.folder.relative_to(tmp_path)) for cell in cells if cell.settings.run == 0]
    assert folders == [
        *("eth80/class_instance/crumb/run0", "eth80/class_iid/crumb/run0", "eth80/joint/offline/run0"),
        *("cifar100/class_iid/crumb/run0", "cifar100/joint/offline/run0"),
    ]
    assert [cell.settings.run for cell in cells] == [0] * 5 + [1] * 5, "run by run"
    assert {cell.settings.dataset_root for cell in cells} == {"A", "B"} and cells[0].settings.family == "fair"


def test_table_of_made_runs(tmp_path):
    for method, right in (("crumb", 150), ("finetune", 40)):
        made_run(folder_of(tmp_path, "eth80", "class_iid", method) / "run0", right)
    made_run(tmp_path / "eth80" / "joint" / "offline" / "run0", 180, joint=True)
    given = options(tmp_path, "--benchmark", "eth80")
    findings = find(assembled(given, ["crumb", "ewc", "finetune", "offline"], ["class_iid"]), [0])
    assert [finding.mean for finding in findings] == [75, None, 20, 90]
    assert findings[3].effect == 15 and findings[3].filter.cut is None


def test_nothing_is_tested_against_runs_of_another_call(tmp_path):
    made_run(folder_of(tmp_path, "eth80", "class_iid", "crumb") / "run0", 150)  # with settings that nobody looked at
    made_run(folder_of(tmp_path, "eth80", "class_iid", "cope") / "run0", 160)
    given = options(tmp_path, "--benchmark", "eth80")
    (cope,) = find(assembled(given, ["cope"], ["class_iid"]), [0])
    assert cope.mean == 80 and cope.effect is None and cope.s4 is None


def test_wrong_options(tmp_path):
    with pytest.raises(ValueError, match="give each benchmark once, and at most one folder for each"):
        options(tmp_path, "--benchmark", "eth80", "eth80")
    with pytest.raises(ValueError, match="at most one folder"):
        options(tmp_path, "--benchmark", "eth80", "--dataset-root", "A", "B")
    with pytest.raises(ValueError, match="strategy 'magic' is unknown"):
        folder_of(tmp_path, "eth80", "class_iid", "magic")


@pytest.mark.slow
def test_quick_table_and_the_curves_of_the_same_runs(tmp_path):
    for script, name in (("table1_accuracy", "table1"), ("fig3_curves", "fig3")):
        done = called(script, "--quick", "--output", tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / f"{name}.svg").stat().st_size > 5000
    with open(tmp_path / "table1.csv") as file:
        assert [row["runs"] for row in csv.DictReader(file)] == ["1"] * 4
    assert len(list(tmp_path.glob("toy_shapes_short/*/*/run0/result.json"))) == 4, "the curves needed no run more"
