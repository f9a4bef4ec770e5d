"""The methods of the paper's Table 1, and their runs; shared by Table 1 and the curves.

Runs are in `OUTPUT/BENCHMARK/PROTOCOL/METHOD/runN`, the layout of `competitors.py` below a folder for each benchmark;
the offline bound, which has no protocol, is in `joint/`.
"""

from collections.abc import Sequence
from pathlib import Path

from competitors import REMIND_SINGLE, rows_of, settings_of_row
from support.cells import Cell
from support.common_options import CommonOptions
from support.sweep import grid

# Name of the strategy -> the paper's row in paper_values.csv, in the order of the paper's table.
_SAME = ("crumb", "remind", "icarl", "gem", "rainbow_memory", "aanets", "gss", "bic", "cope")
_SAME += ("ewc", "mas", "si", "stable_sgd", "lwf")
METHODS = {name: name for name in _SAME}
METHODS |= {"finetune": "lower_bound", "offline": "upper_bound"}
TITLES = {"crumb": "Ours", "remind": "REMIND", "icarl": "iCaRL", "gem": "GEM", "rainbow_memory": "RM", "aanets": "AAN"}
TITLES |= {"gss": "GSS", "bic": "BiC", "cope": "CoPE", "ewc": "EWC", "mas": "MAS", "si": "SI", "lwf": "LwF"}
TITLES |= {
    REMIND_SINGLE: "REMIND, one image at a time",
    "stable_sgd": "Stable SGD",
    "finetune": "Lower bound",
    "offline": "Upper bound",
}
QUICK_METHODS = ("crumb", "ewc", "finetune", "offline")


def title_of(method: str) -> str:
    """The paper's name of a method; without one, the name of the strategy."""
    return TITLES.get(method, method)


def is_joint(method: str) -> bool:
    """Whether a method trains on all classes at once; raises ValueError for an unknown method."""
    from crumb_avalanche.methods.registry import get_strategy

    return get_strategy(settings_of_row(method)["strategy"]).joint


def folder_of(output: Path, benchmark: str, protocol: str, method: str) -> Path:
    """Folder of the runs of a method on a benchmark."""
    return output / benchmark / ("joint" if is_joint(method) else protocol) / method


def cells_of(
    options: CommonOptions,
    methods: Sequence[str],
    protocols: Sequence[str],
    family: str,
    maps: int,
    mem_sizes: dict[str, int] | None = None,
) -> list[Cell]:
    """The runs of all methods on all benchmarks, run by run.

    Args:
        options: common part of the command line.
        methods: names of strategies.
        protocols: wanted protocols, of which each benchmark takes those it has.
        family: fair or paper, as for `crumb run`.
        maps: memories of raw-map replay.
        mem_sizes: memories by benchmark, instead of the budget of the benchmark.
    """
    cells = []
    for benchmark in options.roots:
        rows = rows_of(list(methods), options.protocols(benchmark, protocols), maps)
        if mem_sizes is not None:
            rows = {name: {**changes, "mem_size": mem_sizes[benchmark]} for name, changes in rows.items()}
        settings = options.settings(benchmark, family=family)
        if family == "paper" and settings.weights == "torchvision":
            settings.weights = None  # the family decides which methods start untrained
        cells += grid(settings, options.output / benchmark, options.runs, rows)
    return sorted(cells, key=lambda cell: options.runs.index(cell.settings.run))
