"""The paper's numbers are read as they are in the file, and a malformed line is named."""

import pytest
from made_runs import EXPERIMENTS
from support.paper_numbers import COLUMNS, PaperNumbers, PaperValue, read_paper_numbers


def line(**changes):
    plain = dict(zip(COLUMNS, ("table4", "core50", "class_iid", "Ours", "final_top1_percent", "79.93", "no")))
    return {**plain, **changes}


def test_numbers_of_every_table():
    paper = read_paper_numbers()
    assert paper.find("table1", "core50", "class_instance", "crumb") == PaperValue(78.5, None)
    assert paper.find("table2", "cifar100", "class_iid", "remind", "peak_ram_gb") == PaperValue(0.87)
    assert paper.find("table3", "core50", "class_iid", "image_replay@n_x=3200") == PaperValue(79.72, False)
    assert paper.find("table4", "core50", "class_instance", "Half capacity") == PaperValue(73.55, True)
    assert paper.find("s5", "imagenet", "", "crumb", "n_x") == PaperValue(278342)
    assert paper.find("table1", "imagenet", "class_iid", "gss") is None
    assert {key[0] for key in paper} == {"table1", "table2", "table3", "table4", "s5"}


def test_no_script_holds_a_number_of_the_paper():
    percents = {f"{value.value:.2f}" for key, value in read_paper_numbers().items() if key[0] in ("table3", "table4")}
    for script in EXPERIMENTS.rglob("*.py"):
        found = [number for number in percents if number in script.read_text()]
        assert not found, f"{script.name} has {found}"


@pytest.mark.parametrize(
    "lines, words",
    [
        ([line(), line()], "line 3 gives table4 core50 class_iid Ours final_top1_percent again"),
        ([line(value="many")], "line 2: could not convert string to float: 'many'"),
        ([line(differs_from_ours_p01="perhaps")], "line 2: 'perhaps' is no value, or neither yes, no nor empty"),
        ([{"table": "table4"}], "line 2 has not the columns table, dataset"),
        ([line(value=None)], "line 2 has not the columns"),
    ],
)
def test_a_wrong_line_is_named(lines, words):
    with pytest.raises(ValueError, match=words):
        PaperNumbers(lines)


def test_the_file_is_named(tmp_path):
    (tmp_path / "values.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"values\.csv: line 2 has not the columns"):
        read_paper_numbers(tmp_path / "values.csv")
