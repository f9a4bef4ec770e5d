"""Compare all methods of `crumb strategies` on one benchmark at the same bytes.

    python experiments/competitors.py --benchmark eth80 --dataset-root ETH80
    --feature-cache CACHE

With --family fair (default), all methods train on the same frozen features with the
same bytes, and each tunes its learning rate on the first experience. A run that
diverges counts with the accuracy of its last finite weights. With --family paper, each
has the network, resolution and learning rate of the paper's authors. Two rows have
other bytes: the offline bound, which trains on all classes at once, so that one run
serves both protocols; and raw-map replay, which stores as many maps as CRUMB. Writes
`competitors.csv`, `.md`, `.png`, `.svg` and a folder for each run to --output.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from support.common_options import PROTOCOLS, common_options, parser_for, run_script
from support.findings import Cell, Finding
from support.pictures import bars
from support.runs import FinishedRun
from support.sweep import exit_code
from support.tables import ACCURACY, write_table
from table1_accuracy import REMIND_SINGLE, settings_of, shared_settings

from crumb_avalanche.runs.tables import mean_text

TABLE = "competitors"
QUICK = dict(
    image_size=64, budget_images=150
)  # room for the statistics of every method


def label_of(name: str, runs: Sequence[FinishedRun]) -> str:
    """Name in the table; of ``ranpac`` with its number of projections, which decides its accuracy and bytes."""
    sizes = {
        run.result.get("strategy_settings", {}).get("projection") for run in runs
    } - {None}
    if name != "ranpac" or not sizes:
        return "remind, one image at a time" if name == REMIND_SINGLE else name
    return f"ranpac ({' '.join(f'{number:,}' for number in sorted(sizes))} projections)"


def line_of(
    name: str, finals: Mapping[str, Finding], protocols: Sequence[str]
) -> list[str]:
    """Format the findings of a method, by protocol, as text."""
    runs = [run for part in finals.values() for run in part.runs]
    counts = "/".join(dict.fromkeys(str(len(part.runs)) for part in finals.values()))
    diverged = sum(run.result.get("diverged_in_experience") is not None for run in runs)
    rates = sorted({run.result["learning_rate"] for run in runs} - {None})
    return [
        label_of(name, runs),
        *(mean_text(finals[one].finals if one in finals else []) for one in protocols),
        f"{counts} ({diverged} diverged)" if diverged else counts,
        f"{max(run.ledger['memory_bytes'] for run in runs):,}",
        f"{fmean(run.ledger['train_seconds'] for run in runs):.0f}",
        " ".join(f"{rate:g}" for rate in rates),
    ]


def main() -> int:
    from crumb_avalanche.methods.registry import STRATEGIES

    parser = parser_for(__doc__, f"runs/{TABLE}")
    parser.add_argument(
        "--family",
        choices=["fair", "paper"],
        default="fair",
        help="settings, as for crumb run",
    )
    parser.add_argument(
        "--strategies",
        nargs="+",
        metavar="NAME",
        default=list(STRATEGIES),
        help="default all",
    )
    parser.add_argument(
        "--protocols", nargs="+", default=list(PROTOCOLS), choices=PROTOCOLS
    )
    chosen = parser.parse_args()
    options = common_options(chosen)
    cells, methods, series = [], {}, {}
    for name in dict.fromkeys(chosen.strategies):
        for protocol in options.protocols(options.benchmark, chosen.protocols):
            settings = settings_of(name, protocol)
            folder = options.output / settings.get("protocol", "joint") / name
            cells.append(Cell(name, options.benchmark, protocol, folder, settings))
    shared = (
        {"family": "fair", **QUICK}
        if options.quick
        else shared_settings(options, chosen.family)
    )
    found, failed = options.found(cells, **shared)
    found = [item for item in found if item.runs]
    if not found:
        return exit_code(failed)
    csv_rows: list[list[object]] = [
        ["method", "protocol", "run", "final_accuracy", "memory_bytes", "train_seconds"]
    ]
    for item in found:
        name, protocol = item.cell.row, item.cell.protocol
        methods.setdefault(name, {})[protocol] = item
        series.setdefault(protocol.replace("_", "-"), {})[label_of(name, item.runs)] = (
            item.finals
        )
        for run in item.runs:
            memory, seconds = (
                run.ledger["memory_bytes"],
                f"{run.ledger['train_seconds']:.1f}",
            )
            csv_rows.append(
                [name, protocol, run.number, f"{run.final:.4f}", memory, seconds]
            )
    protocols = [
        name for name in PROTOCOLS if any(name in parts for parts in methods.values())
    ]
    header = [
        "method",
        *(one.replace("_", "-") for one in protocols),
        "runs",
        "bytes kept",
        "seconds",
        "learning rate",
    ]
    lines = [line_of(name, parts, protocols) for name, parts in methods.items()]
    title = f"{options.benchmark}, family {chosen.family}"
    write_table(
        options.output,
        TABLE,
        header,
        lines,
        csv_rows,
        bars({title: series}, title, ACCURACY, (0, 100)),
    )
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
