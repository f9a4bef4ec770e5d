"""Compare all methods of `crumb strategies` on one benchmark at the same bytes.

    python experiments/competitors.py --benchmark eth80 --dataset-root ETH80 --feature-cache CACHE

Skips finished runs; the same command resumes. Writes `competitors.csv`, `.md`, `.png`, `.svg` and a folder for each
run to --output.

With --family fair (default), all methods train on the same frozen features with the same bytes, and each tunes its
learning rate on the first experience, whose classes or objects arrive in turn. A run that diverges counts with the
accuracy of its last finite weights. `--strategies remind_single` is REMIND one image at a time, as its authors run it.
With --family paper, each has the network, resolution and learning rate of the paper's authors. Two rows have other
bytes: the offline bound, which trains on all classes at once, so that one run serves both protocols; and raw-map
replay, which stores as many maps as CRUMB (CRUMB's bytes hold six).
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from support.common_options import PROTOCOLS, CommonOptions, common_options, parser_for, run_script
from support.finished_runs import FinishedRun, finished_runs
from support.saved_picture import COLOURS, STYLE, save_picture, set_title
from support.sweep import exit_code, grid

from crumb_avalanche.runs.run_folder import write_csv, write_text
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.tables import markdown, mean_text, table

TABLE, JOINT = "competitors", "joint"
# One step for each new image, with 50 replays, as REMIND's authors run it: ten times the time of `remind`.
REMIND_SINGLE = "remind_single"
VARIANTS: dict[str, dict] = {REMIND_SINGLE: dict(strategy="remind", method={"samples_at_a_time": True})}
QUICK = dict(image_size=64, budget_images=150)  # room for the statistics of every method


@dataclass
class Row:
    """The finished runs of a method.

    Attributes:
        name: name of the method.
        finished: finished runs by protocol.
    """

    name: str
    finished: dict[str, list[FinishedRun]]

    @property
    def accuracies(self) -> dict[str, list[float]]:
        """Final accuracy in percent of each run, by protocol."""
        return {protocol: [run.final for run in runs] for protocol, runs in self.finished.items()}

    @property
    def memory(self) -> int:
        """Bytes kept at the end besides the network, with labels and statistics: the maximum over runs."""
        return max(run.ledger["memory_bytes"] for run in self._all)

    @property
    def seconds(self) -> float:
        """Seconds of training, mean over runs."""
        return statistics.fmean(run.ledger["train_seconds"] for run in self._all)

    @property
    def rates(self) -> list[float]:
        """The chosen learning rates, sorted."""
        return sorted({run.result["learning_rate"] for run in self._all} - {None})

    @property
    def _all(self) -> list[FinishedRun]:
        return [run for runs in self.finished.values() for run in runs]

    @property
    def runs(self) -> str:
        """Number of runs, both numbers where the protocols differ; with the number of those that diverged."""
        counts = "/".join(dict.fromkeys(str(len(values)) for values in self.accuracies.values()))
        diverged = sum(run.diverged for run in self._all)
        return f"{counts} ({diverged} diverged)" if diverged else counts

    @property
    def label(self) -> str:
        """Name in the table; of ``ranpac`` with its number of projections, which decides its accuracy and bytes."""
        if self.name != "ranpac":
            return {REMIND_SINGLE: "remind, one image at a time"}.get(self.name, self.name)
        found = sorted(
            {run.result["strategy_settings"]["projection"] for run in self._all if "strategy_settings" in run.result}
        )
        return f"ranpac ({' '.join(f'{number:,}' for number in found)} projections)" if found else self.name


def settings_of_row(name: str) -> dict:
    """Settings of a row: those of a strategy, or of REMIND as its authors run it."""
    return VARIANTS.get(name) or dict(strategy=name)


def rows_of(rows: Sequence[str], protocols: Sequence[str], maps: int) -> dict[str, dict]:
    """Settings of each row of the sweep, by its folder."""
    from crumb_avalanche.methods.registry import get_strategy

    cells = {}
    for name in rows:
        for protocol in [JOINT] if get_strategy(settings_of_row(name)["strategy"]).joint else protocols:
            cells[f"{protocol}/{name}"] = dict(settings_of_row(name))
            if protocol != JOINT:
                cells[f"{protocol}/{name}"]["protocol"] = protocol
            if name == "map_replay":
                cells[f"{protocol}/{name}"] |= dict(mem_size=maps, budget_images=None)
    return cells


def collect(output: Path, names: Sequence[str], protocols: Sequence[str], numbers: Sequence[int]) -> list[Row]:
    """Read the finished runs of each method; methods without any are left out."""
    rows = []
    for name in names:
        runs = {
            protocol: finished_runs(output / JOINT / name, numbers) or finished_runs(output / protocol / name, numbers)
            for protocol in protocols
        }
        if any(runs.values()):
            rows.append(Row(name, runs))
    return rows


def lines_of(rows: Sequence[Row]) -> list[list[str]]:
    """The table as text, header first, with a column for each protocol that has runs."""
    protocols = protocols_of(rows)
    names = [protocol.replace("_", "-") for protocol in protocols]
    header = ["method", *names, "runs", "bytes kept", "seconds", "learning rate"]
    return [header, *(cells(row, protocols) for row in rows)]


def protocols_of(rows: Sequence[Row]) -> list[str]:
    """The protocols that have runs."""
    return [name for name in PROTOCOLS if any(row.accuracies.get(name) for row in rows)]


def cells(row: Row, protocols: list[str]) -> list[str]:
    """Format a row as text."""
    accuracies = [mean_text(row.accuracies.get(protocol, [])) for protocol in protocols]
    rates = " ".join(f"{rate:g}" for rate in row.rates)
    return [row.label, *accuracies, row.runs, f"{row.memory:,}", f"{row.seconds:.0f}", rates]


def write_tables(output: Path, rows: Sequence[Row]) -> list[Path]:
    """Write the table as Markdown, and every run as a line of CSV."""
    header, *lines = lines_of(rows)
    write_text(output / f"{TABLE}.md", markdown([header, ["---"] * len(header), *lines]))
    csv_rows = [["method", "protocol", "run", "final_accuracy", "memory_bytes", "train_seconds"]]
    for row in rows:
        for protocol, runs in row.finished.items():
            for run in runs:
                memory, seconds = run.ledger["memory_bytes"], f"{run.ledger['train_seconds']:.1f}"
                csv_rows.append([row.name, protocol, run.number, f"{run.final:.4f}", memory, seconds])
    write_csv(output / f"{TABLE}.csv", csv_rows)
    return [output / f"{TABLE}.csv", output / f"{TABLE}.md"]


def picture(rows: Sequence[Row], title: str) -> Figure:
    """Plot mean accuracies and standard deviations, best method on top."""

    def mean(row: Row) -> float:
        return max(statistics.fmean(values) for values in row.accuracies.values() if values)

    rows = sorted(rows, key=mean)
    looks = {"class_instance": ("o", COLOURS[0], 0.12), "class_iid": ("s", COLOURS[1], -0.12)}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7, 1.2 + 0.3 * len(rows)), layout="constrained")
        axes = figure.subplots()
        set_title(figure, title)
        for protocol in protocols_of(rows):
            marker, colour, shift = looks[protocol]
            shown = [
                (place, row.accuracies[protocol]) for place, row in enumerate(rows) if row.accuracies.get(protocol)
            ]
            axes.errorbar(
                [statistics.fmean(values) for _, values in shown],
                [place + shift for place, _ in shown],
                xerr=[statistics.stdev(values) if len(values) > 1 else 0 for _, values in shown],
                fmt=marker,
                color=colour,
                capsize=2,
                label=protocol.replace("_", "-"),
            )
        axes.set(yticks=range(len(rows)), yticklabels=[row.label for row in rows], xlim=(0, 100))
        axes.set_xlabel("accuracy over all classes at the end (%): mean, standard deviation of runs")
        axes.grid(axis="x", color="0.9", lw=0.6)
        axes.legend(loc="lower right")
    return figure


def settings_of(options: CommonOptions, family: str) -> RunSettings:
    """Settings shared by all runs."""
    settings = options.settings(options.benchmark, family=family)
    if options.quick:
        return replace(settings, **QUICK)
    # The authors' own networks do not start from the stock weights, unless a file is given.
    return replace(settings, weights=None) if family == "paper" and settings.weights == "torchvision" else settings


def main() -> int:
    from crumb_avalanche.methods.registry import STRATEGIES

    parser = parser_for(__doc__, f"runs/{TABLE}")
    parser.add_argument("--family", choices=["fair", "paper"], default="fair", help="settings, as for crumb run")
    parser.add_argument(
        "--strategies",
        nargs="+",
        metavar="NAME",
        default=list(STRATEGIES),
        help=f"methods; default all; {REMIND_SINGLE} is REMIND one image at a time",
    )
    parser.add_argument("--protocols", nargs="+", default=list(PROTOCOLS), choices=PROTOCOLS)
    parser.add_argument(
        "--maps", type=int, default=417, help="raw maps that map_replay stores; default as many as CRUMB"
    )
    chosen = parser.parse_args()
    options = common_options(chosen)
    protocols = options.protocols(options.benchmark, chosen.protocols)
    rows = rows_of(chosen.strategies, protocols, chosen.maps)
    failed = options.do(grid(settings_of(options, chosen.family), options.output, options.runs, rows))
    found = collect(options.output, list(dict.fromkeys(chosen.strategies)), protocols, options.runs)
    if found:
        header, *lines = lines_of(found)
        print(table(header, lines))
        written = write_tables(options.output, found)
        title = f"{options.benchmark}, family {chosen.family}"
        written += save_picture(picture(found, title), options.output, TABLE)
        print("\nwritten: " + ", ".join(map(str, written)))
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
