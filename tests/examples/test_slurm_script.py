"""``examples/slurm.py`` does its runs, here on processes.

See tests/runs/test_slurm.py for SLURM.
"""

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "slurm.py"


def test_a_line_for_each_method(tmp_path, capsys, monkeypatch):
    names = runpy.run_path(str(EXAMPLE))
    monkeypatch.setitem(names["main"].__globals__, "RUNS", range(1))
    names["main"](tmp_path, "processes")
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["rda", "ncm"]
    assert all(line.endswith("% in 1 runs") for line in lines)
