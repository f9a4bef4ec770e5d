"""The tables of a report as CSV and LaTeX: numbers, what is empty, what is escaped; and deviations from the paper."""

import csv

from fake_runs import fake_run, report, sweep

from crumb_avalanche.report.page import Cell, Table, setting, tex_escaped
from crumb_avalanche.report.run_tables import deviations_table
from crumb_avalanche.report.runs import find_runs, groups_of, read_run


def groups_in(folder):
    return groups_of([read_run(path) for path in find_runs([str(folder)])[0]])


def lines_of(path) -> list[dict]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_one_line_for_each_run(tmp_path):
    report(sweep(tmp_path / "runs"), output=tmp_path / "out")
    lines = lines_of(tmp_path / "out" / "report.csv")
    assert [line["run"] for line in lines] == ["0", "1", "2", "0"]
    assert [line["final_accuracy"] for line in lines] == ["60.00", "70.00", "80.00", "25.00"]
    first, last = lines[0], lines[-1]
    assert (first["accuracy_after_1"], first["accuracy_after_2"]) == ("100.00", "60.00")
    assert (first["memory_bytes"], first["train_seconds"]) == ("1000", "10.0")  # no thousands separator
    assert (last["strategy"], last["group"], last["folder"]) == ("finetune", "finetune", "../runs/finetune")
    assert "threads" not in first and "replay_weight" not in first  # no part of the result; the same in all


def test_what_was_not_run_is_empty(tmp_path):
    """Of 3, 2 and 1 experiences; the joint learner stands where a stream of two ends."""
    long = fake_run(tmp_path / "long", result=dict(accuracy_after=[100.0, 80.0, 70.0]))
    (long / "accuracy_matrix.csv").write_text("after,a,b,c\n0,9,,\n1,9,9,\n2,9,9,9\n")
    fake_run(tmp_path / "short", strategy="finetune")
    fake_run(tmp_path / "joint", strategy="offline")
    report(tmp_path)
    names = [f"accuracy_after_{number}" for number in (1, 2, 3)]
    after = {line["strategy"]: [line[name] for name in names] for line in lines_of(tmp_path / "report.csv")}
    assert after["crumb"] == ["100.00", "80.00", "70.00"]
    assert after["finetune"] == ["100.00", "70.00", ""] and after["offline"] == ["", "70.00", ""]


def test_tex_has_the_summary(tmp_path):
    report(sweep(tmp_path))
    lines = (tmp_path / "report.tex").read_text().splitlines()
    assert lines[0] == r"\begin{tabular}{lrrrrrr}" and lines[-1] == r"\end{tabular}"
    assert r"crumb & 3 & 70.00 $\pm$ 10.00 & 1,001 & 11 & 60.0 & 10.0 \\" in lines
    assert r"group & runs & final accuracy, \% & memory, bytes & memories & images/s & training, s \\" in lines


def test_tex_escapes():
    assert tex_escaped("{50 %} & 3_4 #1 $5\n\n") == r"\{50 \%\} \& 3\_4 \#1 \$5 "
    assert tex_escaped("C:\\a~b^") == r"C:\textbackslash{}a\textasciitilde{}b\textasciicircum{}"
    # A row that began with [ or * would be read as an argument of the line break before it.
    assert tex_escaped("[x]*<a>|") == r"{[}x]{*}\textless{}a\textgreater{}\textbar{}"


def test_csv_gives_back_what_went_in(tmp_path):
    nasty = 'a\\b{c}$d&e#f|m"n[o*p, q\nr'
    rows = [[Cell(nasty), setting([1, 2])], [Cell("1,234", "1234"), Cell("")]]
    Table({"a": "A", "b": "B"}, rows).write(tmp_path / "a.csv")
    with open(tmp_path / "a.csv", newline="") as file:
        assert list(csv.reader(file)) == [["a", "b"], [nasty, "1, 2"], ["1234", ""]]


def deviations(folder) -> dict[str, list[str]]:
    """Of the runs in a folder, by setting its text in preset paper, their own, and the groups."""
    return {row[0].text: [cell.text for cell in row[1:]] for row in deviations_table(groups_in(folder)).rows}


def differences(folder, **settings) -> dict[str, tuple[str, ...]]:
    """Of a run, by setting its text in preset paper, and its own."""
    return {name: tuple(found[:2]) for name, found in deviations(fake_run(folder, **settings)).items()}


def test_deviations(tmp_path):
    found = differences(
        tmp_path / "a", replay_weight=3.0, method=dict(freeze_codebook=True), budget_images=30, weights="/w/x.npz"
    )
    assert found["replay_weight"] == ("5.0", "3.0")
    assert found["method.freeze_codebook"] == ("False", "True")
    assert found["budget_images"] == ("default", "30")
    assert found["weights"] == ("torchvision", "/w/x.npz")
    assert found["benchmark"][1] == "toy_shapes" and "core50" in found["benchmark"][0]
    assert found["pretrained"] == ("with CRUMB on ImageNet", "none")
    names = ["benchmark", "weights", "budget_images", "replay_weight", "pretrained", "method.freeze_codebook"]
    assert list(found) == names  # in the order of the settings
    pretrained = differences(tmp_path / "b", strategy="slda", pretrained="a.safetensors")["pretrained"]
    assert pretrained == ("with CRUMB on ImageNet", "a.safetensors")
    assert "pretrained" not in differences(tmp_path / "c", strategy="slda")


def test_a_tuned_learning_rate_and_an_unknown_setting(tmp_path):
    for run, rate in enumerate((0.0003, 0.001)):
        found = dict(learning_rate=rate)
        fake_run(tmp_path / str(run), run=run, result=found, learning_rate=None, family="fair", odd=3)
    found = deviations(tmp_path)
    assert found["learning_rate"][:2] == ["0.001", "tuned: 0.0003, 0.001"]
    assert found["odd"][:2] == ["unknown setting", "3"]
    closed = fake_run(tmp_path / "x", result=dict(learning_rate=None), learning_rate=None, strategy="slda")
    assert "learning_rate" not in deviations(closed)  # there are no gradients
