"""Measure accuracy against bytes: the recommended preset, its rivals, CRUMB and image replay, from 10 kB to 50 MB.

    python experiments/bytes_dial.py --benchmark eth80 --dataset-root ETH80 --weights FILE --feature-cache CACHE
    python experiments/bytes_dial.py --benchmark cifar100 --protocol class_iid --dataset-root CIFAR100 --rows rda slda

`rda` is the recommended preset. A method of fixed size (slda, ncm) is run once and counts at every budget from its
bytes on. A budget that is too small for a method is left out. Runs of other benchmarks in --output are shown, too, so
that several calls make one table and one picture. Writes `bytes_dial.csv`, `.md`, `.png` and `.svg` to --output.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import matplotlib
from matplotlib.figure import Figure
from support.common_options import PROTOCOLS, common_options, own_presets, parser_for, run_script
from support.sweep import exit_code, grid
from support.tables import Cell, Finding, find, rows_of, write_table

from crumb_avalanche.report.palette import COLOURS, MARKERS
from crumb_avalanche.report.pictures import STYLE
from crumb_avalanche.runs.tables import mean_text

OURS = "rda"
BUDGETS = (10_000, 25_000, 100_000, 400_000, 2_257_920, 10_000_000, 50_000_000)
FIXED = 0  # budget of a method whose bytes do not depend on it
ROWS = rows_of("bytes_dial")
TOO_SMALL = {"budget", "raise"}  # words of the error for a budget that is too small
HEADER = ["benchmark", "row", "budget", "accuracy", "runs", "bytes"]


def settings_of(rows: Sequence[str], budgets: Sequence[int], protocol: str) -> dict[str, dict]:
    """Settings of each row and budget by folder."""
    changes = {}
    for row in rows:
        for budget in (FIXED,) if ROWS[row].get("fixed") else budgets:
            changes[f"{row}/{budget}"] = {
                **{"budget_bytes": budget or BUDGETS[-1], "preset": "recommended", "protocol": protocol},
                **ROWS[row].get("settings", {}),
            }
    return changes


def points_of(folder: Path, numbers: Sequence[int]) -> dict[tuple[str, str, int], Finding]:
    """Finished runs of all benchmarks by benchmark, row and budget."""
    order = list(ROWS)
    places = sorted(
        (path.parent.parent.name, order.index(path.parent.name), int(path.name), path)
        for path in folder.glob("*/*/*")
        if path.parent.name in ROWS and path.name.isdecimal()
    )
    found = find([Cell(order[row], benchmark, "", path) for benchmark, row, _, path in places], numbers)
    return {(place[0], order[place[1]], place[2]): item for place, item in zip(places, found) if item.runs}


def kept(point: Finding) -> int:
    """Bytes that are kept at most."""
    return int(max(point.ledger("memory_bytes")))


def behind(points: dict[tuple[str, str, int], Finding]) -> list[str]:
    """Say for each point of the other rows by how much it is above the best of ours with at most its bytes."""
    said = []
    for (name, row, budget), other in points.items():
        its = [point for (of, one, _), point in points.items() if (of, one) == (name, OURS)]
        ours = [point for point in its if kept(point) <= max(kept(other), budget)]
        if row == OURS:
            continue
        if not ours:
            said.append(f"{name}: {row} has {other.mean:.1f} in {kept(other):,} bytes, which is too few for us")
            continue
        best = {run.number: run.final for run in max(ours, key=lambda point: point.mean).runs}
        both = [(run.final, best[run.number]) for run in other.runs if run.number in best]
        above = fmean(one for one, _ in both) - fmean(two for _, two in both)
        if above > 0:
            said.append(f"{name}: {row} in {kept(other):,} bytes is above by {above:.1f}")
    return said


def title_of(row: str) -> str:
    """Title of a row."""
    return ROWS[row].get("title", row)


def picture(points: dict[tuple[str, str, int], Finding]) -> Figure:
    """Plot a panel for each benchmark, a line for each row and a dot for each run."""
    names = list(dict.fromkeys(benchmark for benchmark, *_ in points))
    largest = max(max(kept(point), budget) for (*_, budget), point in points.items())
    handles = {}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.2 * len(names) + 0.4, 3.4), layout="constrained")
        for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names):
            for colour, marker, row in zip(COLOURS, MARKERS, ROWS):
                its = {key[2]: point for key, point in points.items() if key[:2] == (name, row)}
                line = sorted((kept(point), point.mean) for point in its.values())
                if FIXED in its:  # the same at every larger budget
                    axes.plot([line[0][0], largest], [line[0][1]] * 2, color=colour, ls=":", lw=1)
                if line:
                    (handles[title_of(row)],) = axes.plot(*zip(*line), color=colour, marker=marker)
                for point in its.values():
                    axes.plot([kept(point)] * len(point.runs), point.finals, ".", ms=2, c="0.3")
            axes.set(xscale="log", title=name, xlabel="bytes kept", ylim=(None, 101))
        figure.axes[0].set_ylabel("final accuracy (%)")
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), fontsize="small"
        )
    return figure


def main() -> int:
    parser = parser_for(__doc__, "runs/bytes_dial", several=True)
    parser.add_argument("--protocol", default=PROTOCOLS[0], choices=PROTOCOLS)
    parser.add_argument("--rows", nargs="+", default=[OURS, "slda", "ncm"], choices=ROWS, help="default rda slda ncm")
    parser.add_argument("--budgets", nargs="+", type=int, default=BUDGETS, metavar="BYTES")
    chosen = parser.parse_args()
    own_presets(chosen, "every row")
    options = common_options(chosen)
    todo = []
    for name in options.roots:
        (protocol,) = options.protocols(name, [chosen.protocol])
        changes = settings_of(chosen.rows, chosen.budgets, protocol)
        todo += grid(options.settings(name), options.output / name, options.runs, changes)
    failed = {path: said for path, said in options.do(todo).items() if not all(word in said for word in TOO_SMALL)}
    if points := points_of(options.output, options.runs):
        lines, csv_rows = [], [["benchmark", "row", "budget", "run", "accuracy", "memory_bytes", "frame_table"]]
        for (name, row, budget), point in points.items():
            text = f"{budget:,}" if budget else "", mean_text(point.finals), str(len(point.runs)), f"{kept(point):,}"
            lines.append([name, title_of(row), *text])
            for run in point.runs:
                memory = run.ledger["memory_bytes"]
                csv_rows.append([name, row, budget, run.number, f"{run.final:.4f}", memory, run.split])
        print("\nabove `recommended`:\n" + "\n".join(behind(points) or ["nothing"]))
        write_table(options.output, "bytes_dial", HEADER, lines, csv_rows, picture(points))
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
