r"""Compare all methods of `crumb strategies` on one benchmark at the same bytes.

    python experiments/competitors.py --benchmark eth80 --dataset-root ETH80 \
        --feature-cache CACHE

With --family fair (default), all methods train on the same frozen features with the
same bytes, and each tunes its learning rate on the first experience. A run that
diverges counts with the accuracy of its last finite weights. With --family paper, each
has the network, resolution and learning rate of the paper's authors. Two rows have
other bytes: the offline bound, which trains on all classes at once, so that one run
serves both protocols; and raw-map replay, which stores as many maps as CRUMB. Writes
`competitors.csv`, `.md`, `.png`, `.svg` and a folder for each run to --output.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from statistics import fmean

from support.common_options import (
    PROTOCOLS,
    CommonOptions,
    common_options,
    parser_for,
    run_script,
)
from support.findings import Cell, Finding, Run
from support.pictures import bars
from support.runs import FinishedRun
from support.sweep import exit_code
from support.tables import ACCURACY, write_table
from table1_accuracy import REMIND_SINGLE, folder_of, settings_of, shared_settings

from crumb_avalanche.runs.tables import mean_text

TABLE = "competitors"
# Room for the statistics of every method.
QUICK = dict(image_size=64, budget_images=150)
CSV_HEADER = [
    "method",
    "protocol",
    "run",
    "final_accuracy",
    "memory_bytes",
    "train_seconds",
]


def label_of(name: str, runs: Sequence[FinishedRun]) -> str:
    """Name of a method in the table.

    The number of projections of ``ranpac`` stands beside it, since it decides accuracy
    and bytes.
    """
    if name == REMIND_SINGLE:
        return "remind, one image at a time"
    if name != "ranpac":
        return name
    sizes = set()
    for run in runs:
        settings = run.result.get("strategy_settings", {})
        sizes.add(settings.get("projection") or 0)
    sizes.discard(0)
    if not sizes:
        return name
    sizes_text = " ".join(map("{:,}".format, sorted(sizes)))
    return f"ranpac ({sizes_text} projections)"


def line_of(
    name: str, by_protocol: Mapping[str, Finding], protocols: Sequence[str]
) -> list[str]:
    """Format the findings of a method as text.

    Args:
        name: of the method.
        by_protocol: its findings.
        protocols: of the table; the cell of a protocol without a finding is empty.
    """
    runs: list[Run] = []
    for finding in by_protocol.values():
        runs += finding.runs
    line = [label_of(name, runs)]
    for protocol in protocols:
        finals = []
        if protocol in by_protocol:
            finals = by_protocol[protocol].finals
        line.append(mean_text(finals))
    memory_bytes = max(run.ledger["memory_bytes"] for run in runs)
    train_seconds = fmean(run.ledger["train_seconds"] for run in runs)
    rates = {run.result["learning_rate"] for run in runs} - {None}
    return [
        *line,
        counts_text(by_protocol.values()),
        f"{memory_bytes:,}",
        f"{train_seconds:.0f}",
        " ".join(map("{:g}".format, sorted(rates))),
    ]


def counts_text(findings: Iterable[Finding]) -> str:
    """Format the numbers of runs of each protocol, and how many diverged."""
    counts = []
    diverged = 0
    for finding in findings:
        counts.append(str(len(finding.runs)))
        for run in finding.runs:
            diverged += run.result.get("diverged_in_experience") is not None
    text = "/".join(dict.fromkeys(counts))
    return f"{text} ({diverged} diverged)" if diverged else text


def csv_rows_of(findings: Sequence[Finding]) -> list[list[object]]:
    """Header, and a row for every run."""
    rows: list[list[object]] = [list(CSV_HEADER)]
    for finding in findings:
        for run in finding.runs:
            rows.append(
                [
                    finding.cell.row,
                    finding.cell.protocol,
                    run.number,
                    f"{run.final:.4f}",
                    run.ledger["memory_bytes"],
                    f"{run.ledger['train_seconds']:.1f}",
                ]
            )
    return rows


def cells_of(
    options: CommonOptions, strategies: Sequence[str], protocols: Sequence[str]
) -> list[Cell]:
    """Cells of all methods in all protocols that the benchmark has."""
    cells = []
    for name in dict.fromkeys(strategies):
        for protocol in options.protocols(options.benchmark, protocols):
            settings = settings_of(name, protocol)
            folder = folder_of(options.output, settings, name)
            cells.append(Cell(name, options.benchmark, protocol, folder, settings))
    return cells


def publish(findings: Sequence[Finding], title: str, output: Path) -> None:
    """Print the table; write it, its runs and its picture."""
    methods: dict[str, dict[str, Finding]] = {}
    series: dict[str, dict[str, list[float]]] = {}
    for finding in findings:
        cell = finding.cell
        label = label_of(cell.row, finding.runs)
        methods.setdefault(cell.row, {})[cell.protocol] = finding
        series.setdefault(cell.protocol.replace("_", "-"), {})[label] = finding.units
    present = {finding.cell.protocol for finding in findings}
    protocols = [name for name in PROTOCOLS if name in present]
    header = ["method"]
    for protocol in protocols:
        header.append(protocol.replace("_", "-"))
    header += ["runs", "bytes kept", "seconds", "learning rate"]
    lines = []
    for name, by_protocol in methods.items():
        lines.append(line_of(name, by_protocol, protocols))
    write_table(
        output,
        TABLE,
        header,
        lines,
        csv_rows_of(findings),
        bars({title: series}, title, ACCURACY, (0, 100)),
    )


def main() -> int:
    from crumb_avalanche.methods.registry import STRATEGIES

    parser = parser_for(__doc__, f"runs/{TABLE}", recorded=False)
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
    cells = cells_of(options, chosen.strategies, chosen.protocols)
    shared = shared_settings(options, chosen.family)
    if options.quick:
        shared = {"family": "fair", **QUICK}
    findings, failed = options.run_cells(cells, **shared)
    finished = list(filter(attrgetter("runs"), findings))
    if finished:
        title = f"{options.benchmark}, family {chosen.family}"
        publish(finished, title, options.output)
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
