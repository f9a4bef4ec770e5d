"""Measure accuracy against bytes: the recommended preset, its rivals, CRUMB and image replay, from 10 kB to 50 MB.

    python experiments/bytes_dial.py --benchmark eth80 --dataset-root ETH80 --weights FILE --feature-cache CACHE
    python experiments/bytes_dial.py --benchmark cifar100 --protocol class_iid --dataset-root CIFAR100 --rows rda slda

`rda` is the recommended preset. A method of fixed size (slda, ncm) is run once and counts at every budget from its
bytes on. A budget that is too small for a method is left out. Runs of other benchmarks in --output are shown, too, so
that several calls make one table and one picture. Writes `bytes_dial.csv`, `.md`, `.png` and `.svg` to --output.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from support.common_options import PROTOCOLS, common_options, parser_for, run_script
from support.finished_runs import FinishedRun, finished_runs
from support.saved_picture import COLOURS, MARKERS, STYLE, save_picture
from support.sweep import exit_code, grid

from crumb_avalanche.runs.run_folder import write_csv, write_text
from crumb_avalanche.runs.tables import markdown, mean_text, table

OURS = "rda"
BUDGETS = (10_000, 25_000, 100_000, 400_000, 2_257_920, 10_000_000, 50_000_000)
FIXED = 0  # budget of a method whose bytes do not depend on it
# Settings of each row that differ from preset `recommended`.
ROWS: dict[str, dict] = {
    OURS: {},
    "slda": {"strategy": "slda", "budget_bytes": BUDGETS[-1]},
    "ncm": {"strategy": "ncm", "budget_bytes": BUDGETS[-1]},
    "crumb": {"strategy": "crumb", "preset": "tuned"},
    "image_replay": {"strategy": "image_replay", "preset": "paper"},
}
TITLES = {OURS: "recommended", "crumb": "CRUMB, tuned", "image_replay": "image replay"}
TOO_SMALL = {"budget", "raise"}  # words of the error for a budget that is too small
HEADER = ["benchmark", "row", "budget", "accuracy", "runs", "bytes"]


@dataclass(frozen=True)
class Point:
    """The finished runs of a row at a budget."""

    benchmark: str
    row: str
    budget: int
    runs: tuple[FinishedRun, ...]

    @property
    def bytes(self) -> int:
        """Bytes that are kept at most."""
        return max(run.ledger["memory_bytes"] for run in self.runs)

    @property
    def mean(self) -> float:
        """Mean final accuracy in percent."""
        return statistics.fmean(run.final for run in self.runs)


def changes_of(rows: Sequence[str], budgets: Sequence[int], protocol: str) -> dict[str, dict]:
    """Settings of each row and budget by folder."""
    changes = {}
    for row in rows:
        settings = {"preset": "recommended", "protocol": protocol, **ROWS[row]}
        for budget in (FIXED,) if "budget_bytes" in settings else budgets:
            changes[f"{row}/{budget}"] = {"budget_bytes": budget, **settings}
    return changes


def points_of(folder: Path, numbers: Sequence[int]) -> list[Point]:
    """Points of all benchmarks with finished runs, by benchmark, row and budget."""
    order = {row: place for place, row in enumerate(ROWS)}
    places = sorted(
        (path.parent.parent.name, order[path.parent.name], int(path.name), path)
        for path in folder.glob("*/*/*")
        if path.parent.name in order and path.name.isdecimal()
    )
    found = [
        Point(benchmark, path.parent.name, budget, tuple(finished_runs(path, numbers)))
        for benchmark, _, budget, path in places
    ]
    return [point for point in found if point.runs]


def behind(points: Sequence[Point]) -> list[str]:
    """Say for each point of the other rows by how much it is above the best of ours with at most its bytes."""
    said = []
    for name, its in groupby(points, key=lambda point: point.benchmark):
        some = list(its)
        for other in some:
            if other.row == OURS:
                continue
            ours = [point for point in some if point.row == OURS and point.bytes <= max(other.bytes, other.budget)]
            best = max(ours, key=lambda point: point.mean, default=None)
            if best is None:
                said.append(
                    f"{name}: {other.row} has {other.mean:.1f} in {other.bytes:,} bytes, which is too few for us"
                )
                continue
            common = {run.number for run in other.runs} & {run.number for run in best.runs}
            means = [statistics.fmean(run.final for run in one.runs if run.number in common) for one in (other, best)]
            if means[0] > means[1]:
                said.append(f"{name}: {other.row} in {other.bytes:,} bytes is above by {means[0] - means[1]:.1f}")
    return said


def picture(points: Sequence[Point]) -> Figure:
    """Plot a panel for each benchmark, a line for each row and a dot for each run."""
    names = list(dict.fromkeys(point.benchmark for point in points))
    largest = max(max(point.bytes, point.budget) for point in points)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.2 * len(names) + 0.4, 3.4), layout="constrained")
        for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names):
            for place, row in enumerate(ROWS):
                its = sorted((p for p in points if (p.benchmark, p.row) == (name, row)), key=lambda point: point.bytes)
                if not its:
                    continue
                style = dict(color=COLOURS[place], marker=MARKERS[place])
                sizes, means = [point.bytes for point in its], [point.mean for point in its]
                if its[0].budget == FIXED:  # the same at every larger budget
                    axes.plot([sizes[0], largest], means * 2, color=COLOURS[place], ls=":", lw=1)
                axes.plot(sizes, means, label=TITLES.get(row, row), **style)
                for point in its:
                    axes.plot([point.bytes] * len(point.runs), [run.final for run in point.runs], ".", ms=2, c="0.3")
            axes.set(xscale="log", title=name, xlabel="bytes kept", ylim=(None, 101))
        figure.axes[0].set_ylabel("final accuracy (%)")
        # Not each panel has all rows.
        lines = {
            name: line for axes in figure.axes for line, name in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(lines), fontsize="small")
    return figure


def text_of(point: Point) -> list[str]:
    """Format a point as text."""
    budget = f"{point.budget:,}" if point.budget else ""
    accuracy = mean_text([run.final for run in point.runs])
    return [
        point.benchmark,
        TITLES.get(point.row, point.row),
        budget,
        accuracy,
        str(len(point.runs)),
        f"{point.bytes:,}",
    ]


def rows_of(points: Sequence[Point]) -> list[list[object]]:
    """Return a header and a row for every run."""
    rows = [["benchmark", "row", "budget", "run", "accuracy", "memory_bytes", "frame_table"]]
    for point in points:
        for run in point.runs:
            kept, split = run.ledger["memory_bytes"], run.result["frame_table_sha256"]
            rows.append([point.benchmark, point.row, point.budget, run.number, f"{run.final:.4f}", kept, split])
    return rows


def main() -> int:
    parser = parser_for(__doc__, "runs/bytes_dial", several=True)
    parser.add_argument("--protocol", default=PROTOCOLS[0], choices=PROTOCOLS)
    parser.add_argument("--rows", nargs="+", default=[OURS, "slda", "ncm"], choices=ROWS, help="default rda slda ncm")
    parser.add_argument(
        "--budgets", nargs="+", type=int, default=BUDGETS, metavar="BYTES", help="default 10 kB to 50 MB"
    )
    chosen = parser.parse_args()
    if chosen.preset != parser.get_default("preset"):
        raise ValueError(f"--preset {chosen.preset}: every row has its own preset; leave it out")
    options = common_options(chosen)
    cells = []
    for name in options.roots:
        (protocol,) = options.protocols(name, [chosen.protocol])
        changes = changes_of(chosen.rows, chosen.budgets, protocol)
        cells += grid(options.settings(name), options.output / name, options.runs, changes)
    failed = {
        folder: error for folder, error in options.do(cells).items() if not all(word in error for word in TOO_SMALL)
    }
    points = points_of(options.output, options.runs)
    if points:
        print("\n" + table(HEADER, list(map(text_of, points))))
        print("\nabove `recommended`:\n" + "\n".join(behind(points) or ["nothing"]))
        write_csv(options.output / "bytes_dial.csv", rows_of(points))
        write_text(options.output / "bytes_dial.md", markdown([HEADER, ["---"] * len(HEADER), *map(text_of, points)]))
        written = save_picture(picture(points), options.output, "bytes_dial")
        print("\nwritten: " + ", ".join(map(str, written)))
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
