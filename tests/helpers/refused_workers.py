"""A sweep whose workers have another version of the package."""

import pytest
from support.sweep import grid

from crumb_avalanche.runs.cells import sweep
from crumb_avalanche.runs.worker_check import EngineError


def check_refused_workers(base, engine, folder):
    """Check that workers of another version are named, and no run is begun."""
    cells = grid(base, folder, [0], {"row": {}})
    with pytest.raises(EngineError, match=r"the worker on .* has crumb-avalanche"):
        sweep(cells, engine, folder)
    assert not (folder / "row").exists()
