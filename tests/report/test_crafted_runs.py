"""A run folder written by hand, with right digests, is a run that can be reported, or one line says what is wrong."""

import csv
import io

import yaml
from crafted import crafted, json_of
from fake_runs import CLASSES, CONFIG, LEDGER
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from crumb_avalanche.report.html_report import report_page
from crumb_avalanche.report.run_tables import runs_table, summary_table
from crumb_avalanche.report.runs import groups_of, read_run
from crumb_avalanche.runs.run_folder import DamagedRunError

PARTS = {
    "config": {**CONFIG, "run": 0, "output": "runs/a", "method": {"own": 0.5}},
    "ledger": LEDGER,
    "result": {
        **{"run": 0, "final_accuracy": 70.0, "accuracy_after": [100.0, 70.0], "classes_order": CLASSES},
        **{"classes_per_experience": [2, 2], "frame_table_sha256": "abc", "provenance": {"weights": "sha256:1"}},
    },
    "matrix": [["after", "experience_0", "experience_1"], ["0", "100.0000", ""], ["1", "60.0000", "80.0000"]],
}


def write(folder, parts):
    """Write the parts of a run as far as a file can hold them; text of JSON is YAML, too."""
    table = io.StringIO()
    csv.writer(table).writerows([[str(cell) for cell in row] for row in parts.get("matrix", [])])
    texts = {"config.yaml": "config", "ledger.json": "ledger", "result.json": "result"}
    for name, part in texts.items():
        if part in parts:
            plain = name == "config.yaml" and parts[part] is PARTS[part]
            (folder / name).write_text(yaml.safe_dump(parts[part]) if plain else json_of(parts[part]))
    (folder / "accuracy_matrix.csv").write_text(table.getvalue())


def check_run(folder, data):
    try:
        write(folder, crafted(data.draw, PARTS))
    except (ValueError, RecursionError, TypeError):
        return  # no file can hold it
    try:
        run = read_run(folder)
    except DamagedRunError as error:
        text = str(error)
        assert str(folder) in text and "\n" not in text and len(text) < 2000
        return
    groups = groups_of([run])
    assert report_page(groups, summary_table(groups), runs_table(groups, folder), [])


@settings(max_examples=100, phases=[Phase.generate])
@given(data=st.data())
def test_100_crafted_run_folders(tmp_path_factory, data):
    check_run(tmp_path_factory.mktemp("run"), data)
