"""Measure the feature cache: seconds without and with it, and whether bits are equal.

    python experiments/bench_feature_cache.py --benchmark eth80 --dataset-root ETH80

Each strategy and run is done twice: computing F for every image each time it is seen,
and reading F(x) from a cache, which starts empty. Weights, buffer, answers on all test
images and accuracies of both have to be equal to the bit; the exit code is 1 if they
are not. Writes `feature_cache.csv`, `.md` and a folder for each run to --output.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.common_options import common_options, parser_for, run_script
from support.runs import differences
from support.sweep import exit_code, grid
from support.tables import write_table

from crumb_avalanche.runs.run_folder import RESULT

STRATEGIES = ("crumb", "image_replay", "finetune", "slda", "ncm", "rda")
HEADER = [
    "strategy",
    "runs",
    "seconds without",
    "seconds with",
    "times as fast",
    "the same bits",
]


@dataclass
class Measured:
    """The runs of some strategies that are finished without and with the cache.

    Attributes:
        runs: number of pairs of runs.
        without: seconds of the runs without the cache.
        with_cache: seconds of the runs with it.
        different: what differs within a pair.
    """

    runs: int = 0
    without: float = 0.0
    with_cache: float = 0.0
    different: set[str] = field(default_factory=set)

    @classmethod
    def of(
        cls, output: Path, strategies: Sequence[str], runs: Sequence[int]
    ) -> "Measured":
        """Read the finished pairs of runs of strategies."""
        measured = cls()
        for strategy in strategies:
            for run in runs:
                without = output / "without" / strategy / f"run{run}"
                with_cache = output / "with" / strategy / f"run{run}"
                measured.add(without, with_cache)
        return measured

    def add(self, without: Path, with_cache: Path) -> None:
        """Add a pair of runs, if both are finished."""
        if not all((folder / RESULT).exists() for folder in (without, with_cache)):
            return
        self.runs += 1
        self.without += seconds_of(without)
        self.with_cache += seconds_of(with_cache)
        self.different |= set(differences(without, with_cache))

    def line(self, name: str) -> list[str]:
        """Values of `HEADER`."""
        same = "yes"
        if self.different:
            same = "no: " + ", ".join(sorted(self.different))
        return [
            name,
            str(self.runs),
            f"{self.without:.0f}",
            f"{self.with_cache:.0f}",
            f"{self.without / self.with_cache:.1f}",
            same,
        ]


def seconds_of(folder: Path) -> float:
    """Seconds of a finished run."""
    return json.loads((folder / RESULT).read_text())["seconds"]


def rows_of(strategies: Sequence[str], cache: Path) -> dict[str, dict]:
    """Settings of each strategy without and with the cache, by its folder."""
    rows: dict[str, dict] = {}
    for strategy in strategies:
        rows[f"without/{strategy}"] = dict(strategy=strategy, feature_cache=None)
        rows[f"with/{strategy}"] = dict(strategy=strategy, feature_cache=str(cache))
    return rows


def main() -> int:
    parser = parser_for(__doc__, "runs/bench_feature_cache", recorded=False)
    parser.add_argument(
        "--strategies", nargs="+", default=list(STRATEGIES), metavar="NAME"
    )
    parser.add_argument(
        "--protocol", default="class_instance", choices=["class_instance", "class_iid"]
    )
    chosen = parser.parse_args()
    if chosen.feature_cache:
        raise ValueError(
            "--feature-cache cannot be given: this script fills a cache of its own; "
            "leave it out"
        )
    options = common_options(chosen)
    # fp16 rounds the maps, so results would differ.
    shared = dict(protocol=chosen.protocol, keep_learner=True, cache_precision="fp32")
    base = options.settings(options.benchmark, **shared)
    rows = rows_of(chosen.strategies, options.output / "feature_cache")
    failed = options.do(grid(base, options.output, options.runs, rows))
    measured = {}
    for name in chosen.strategies:
        measured[name] = Measured.of(options.output, [name], options.runs)
    measured["all"] = Measured.of(options.output, chosen.strategies, options.runs)
    if not measured["all"].runs:
        print("no run is finished both ways", file=sys.stderr)
        return 1
    lines = [pair.line(name) for name, pair in measured.items() if pair.runs]
    write_table(options.output, "feature_cache", HEADER, lines)
    return exit_code(failed) or int(bool(measured["all"].different))


if __name__ == "__main__":
    run_script(main)
