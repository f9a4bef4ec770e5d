"""Measure the feature cache: the same runs without and with it, their seconds, and whether their bits are equal.

    python experiments/bench_feature_cache.py --benchmark eth80 --dataset-root ETH80

Each strategy and run is done twice: computing F for every image each time it is seen,
and reading F(x) from a cache, which starts empty. Weights, buffer, answers on all test
images and accuracies of both have to be equal to the bit; the exit code is 1 if they
are not. Writes `feature_cache.csv`, `.md` and a folder for each run to --output.
"""

import json
import sys
from collections.abc import Sequence
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


def line_of(
    output: Path, name: str, strategies: Sequence[str], runs: Sequence[int]
) -> list[str]:
    """Seconds and differences of the runs of strategies that are finished both ways; empty without any."""
    seconds, different, count = [0.0, 0.0], set(), 0
    for strategy in strategies:
        for run in runs:
            folders = [
                output / kind / strategy / f"run{run}" for kind in ("without", "with")
            ]
            if all((folder / RESULT).exists() for folder in folders):
                for place, folder in enumerate(folders):
                    seconds[place] += json.loads((folder / RESULT).read_text())[
                        "seconds"
                    ]
                different |= set(differences(*folders))
                count += 1
    same = "no: " + ", ".join(sorted(different)) if different else "yes"
    shown = (
        *(f"{some:.0f}" for some in seconds),
        f"{seconds[0] / seconds[1]:.1f}" if count else "",
    )
    return [name, str(count), *shown, same] if count else []


def main() -> int:
    parser = parser_for(__doc__, "runs/bench_feature_cache")
    parser.add_argument(
        "--strategies", nargs="+", default=list(STRATEGIES), metavar="NAME"
    )
    parser.add_argument(
        "--protocol", default="class_instance", choices=["class_instance", "class_iid"]
    )
    chosen = parser.parse_args()
    if chosen.feature_cache:
        raise ValueError(
            "--feature-cache cannot be given: this script fills a cache of its own; leave it out"
        )
    options = common_options(chosen)
    # fp16 rounds the maps, so results would differ.
    shared = dict(protocol=chosen.protocol, keep_learner=True, cache_precision="fp32")
    rows = {
        f"{kind}/{strategy}": dict(strategy=strategy, feature_cache=cache)
        for strategy in chosen.strategies
        for kind, cache in (
            ("without", None),
            ("with", str(options.output / "feature_cache")),
        )
    }
    failed = options.do(
        grid(
            options.settings(options.benchmark, **shared),
            options.output,
            options.runs,
            rows,
        )
    )
    groups = {name: [name] for name in chosen.strategies} | {"all": chosen.strategies}
    lines = [
        line_of(options.output, name, some, options.runs)
        for name, some in groups.items()
    ]
    if not lines[-1]:
        print("no run is finished both ways", file=sys.stderr)
        return 1
    write_table(
        options.output, "feature_cache", HEADER, [line for line in lines if line]
    )
    return exit_code(failed) or int(lines[-1][-1] != "yes")


if __name__ == "__main__":
    run_script(main)
