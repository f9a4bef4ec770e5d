"""Measure the feature cache: the same runs without and with it, their seconds, and whether their bits are equal.

    python experiments/bench_feature_cache.py --benchmark eth80 --dataset-root ETH80

Each strategy and run is done twice: computing F for every image each time it is seen, and reading F(x) from a cache.
The cache starts empty, in a folder of this script. The time of the run that fills it counts. Weights, buffer, answers
on all test images and accuracies of both have to be equal to the bit; the exit code is 1 if they are not.
Writes `feature_cache.csv`, `feature_cache.md` and a folder for each run to --output. Finished runs are not repeated.
"""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from support.common_options import common_options, parser_for, run_script
from support.same_results import differences
from support.sweep import exit_code, grid

from crumb_avalanche.runs.run_folder import RESULT, write_csv, write_text
from crumb_avalanche.runs.tables import markdown, table

STRATEGIES = ("crumb", "image_replay", "finetune", "slda", "ncm", "rda")
HEADER = ["strategy", "runs", "seconds without", "seconds with", "times as fast", "the same bits"]


@dataclass
class Row:
    """Seconds of all runs of a strategy without and with the cache, and the differences between their results."""

    strategy: str
    runs: int
    without: float
    cached: float
    different: list[str]

    def cells(self) -> list[str]:
        """Format the row as text, in the order of ``HEADER``."""
        ratio = f"{self.without / self.cached:.1f}"
        same = "no: " + ", ".join(self.different) if self.different else "yes"
        return [self.strategy, str(self.runs), f"{self.without:.0f}", f"{self.cached:.0f}", ratio, same]


def compared(output: Path, strategy: str, runs: list[int]) -> Row | None:
    """Compare the runs of a strategy that are finished both ways; None without any."""
    seconds, different, count = [0.0, 0.0], set(), 0
    for run in runs:
        folders = [output / kind / strategy / f"run{run}" for kind in ("without", "with")]
        if all((folder / RESULT).exists() for folder in folders):
            for place, folder in enumerate(folders):
                seconds[place] += json.loads((folder / RESULT).read_text())["seconds"]
            different |= set(differences(*folders))
            count += 1
    return Row(strategy, count, *seconds, sorted(different)) if count else None


def with_total(rows: list[Row]) -> list[Row]:
    """Append a row of sums."""
    different = sorted({name for row in rows for name in row.different})
    sums = (sum(getattr(row, name) for row in rows) for name in ("runs", "without", "cached"))
    return [*rows, Row("all", *sums, different)]


def main() -> int:
    parser = parser_for(__doc__, "runs/bench_feature_cache")
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), metavar="NAME")
    parser.add_argument("--protocol", default="class_instance", choices=["class_instance", "class_iid"])
    chosen = parser.parse_args()
    if chosen.feature_cache:
        raise ValueError(
            "--feature-cache cannot be given: this script fills and measures a cache of its own; leave it out"
        )
    options = common_options(chosen)
    base = replace(
        options.settings(options.benchmark, protocol=chosen.protocol, keep_learner="full"),
        cache_precision="fp32",  # fp16 rounds the maps, so results would differ
    )
    kinds = {"without": None, "with": str(options.output / "feature_cache")}
    rows = {
        f"{kind}/{strategy}": dict(strategy=strategy, feature_cache=cache)
        for strategy in chosen.strategies
        for kind, cache in kinds.items()
    }
    failed = options.do(grid(base, options.output, options.runs, rows))
    found = [compared(options.output, strategy, options.runs) for strategy in chosen.strategies]
    found = [row for row in found if row]
    if not found:
        print("no run is finished both ways", file=sys.stderr)
        return 1
    lines = [row.cells() for row in with_total(found)]
    write_csv(options.output / "feature_cache.csv", [HEADER, *lines])
    write_text(options.output / "feature_cache.md", markdown([HEADER, ["---"] * len(HEADER), *lines]))
    print(table(HEADER, lines))
    return exit_code(failed) or int(any(row.different for row in found))


if __name__ == "__main__":
    run_script(main)
