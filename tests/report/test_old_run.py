"""``crumb report`` reads a run folder of version 0.1."""

import shutil
from pathlib import Path

OLD = Path(__file__).parents[1] / "data" / "old" / "run"


def test_a_run_folder_of_version_0_1_is_reported(crumb, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(OLD, folder)
    code, out, err = crumb("report", folder)
    assert code == 0, err
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "strategy crumb" in lines and "benchmark clip_folder" in lines and "budget_images 2.0" in lines
    assert "exp 1 50.0 50.00" in lines and "exp 2 50.0 0.0 25.00" in lines
    assert any(line.startswith("exp 1 box, apple 2 50.00") for line in lines)
    assert "memories stored 16" in lines and "memory in all 18,464 B" in lines
    assert {"report.html", "report.png", "report.svg", "report.csv"} <= {path.name for path in folder.iterdir()}
