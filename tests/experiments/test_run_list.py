"""The list of runs holds what is needed to repeat them, without paths of this machine."""

import csv
import json
from dataclasses import replace

import yaml
from made_runs import made_run
from support.finished_runs import finished_runs
from support.run_list import COLUMNS, Listed, write_run_list

from crumb_avalanche.runs.settings import RunSettings, as_dict


def test_runs_are_listed_with_seed_settings_and_table_of_frames(tmp_path):
    settings = RunSettings(
        strategy="image_replay",
        weights="/somewhere/squeezenet.npz",
        mem_size=200,
        dataset_root="/home/me/eth80",
        output="/tmp/out",
        feature_cache="/tmp/cache",
        threads=1,
        run=1,
    )
    for run, right in enumerate([160, 170]):
        folder = made_run(tmp_path / "rows" / f"run{run}", right)
        (folder / "config.yaml").write_text(yaml.safe_dump(as_dict(replace(settings, run=run))))
        result = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(
            json.dumps(
                result
                | {
                    "seconds": 12.3456,
                    "frame_table_sha256": "abc",
                    "provenance": {"weights": "sha256:0123456789abcdef"},
                }
                if run
                else result
            )
        )
    rows = [
        Listed("Im. replay", "eth80", "class_iid", finished_runs(tmp_path / "rows", [0, 1, 2])),
        Listed("Not run", "eth80", "class_iid", finished_runs(tmp_path / "none", [0, 1, 2])),
    ]
    path = write_run_list(tmp_path / "table_runs.csv", rows)
    with open(path) as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS and len(rows) == 2
    assert [row["run"] for row in rows] == ["0", "1"] and [row["final_accuracy"] for row in rows] == ["80.0", "85.0"]
    assert (rows[0]["seconds"], rows[0]["frame_table_sha256"]) == ("", "")
    assert (rows[1]["seconds"], rows[1]["frame_table_sha256"]) == ("12.3", "abc")
    for row, weights in zip(rows, ("squeezenet.npz", "squeezenet.npz@01234567")):
        assert set(row["settings"].split()) == {"strategy=image_replay", f"weights={weights}", "mem_size=200"}


def test_a_run_without_settings(tmp_path):
    made_run(tmp_path / "rows" / "run0", 160)
    listed = Listed("Ours", "eth80", "class_iid", finished_runs(tmp_path / "rows", [0]))
    text = write_run_list(tmp_path / "runs.csv", [listed]).read_text()
    assert text.splitlines()[1] == "Ours,eth80,class_iid,0,80.0,,,"
