"""Compare the recommended preset with ablations of it, the paper's recipe and rivals at the same bytes.

    python experiments/recommended.py --benchmark eth80 --dataset-root ETH80 --weights FILE --feature-cache CACHE
    python experiments/recommended.py --benchmark cifar100 --protocol class_iid --dataset-root CIFAR100 --runs 0-2 ...

Each row is a change of settings. Difference: the row minus `recommended` in the same runs, with 95 % interval and
p-value by Student's t over runs, or over splits where runs share one; Holm: corrected over the rows. Oldest, newest:
final accuracy on the classes of the first and of the last experience. A row that exceeds the budget shows that in its
bytes. Writes `recommended.csv`, `.md`, `.png`, `.svg` and a folder for each run to --output.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from support.common_options import PROTOCOLS, CommonOptions, common_options, parser_for, rows_named, run_script
from support.finished_runs import FinishedRun, finished_runs
from support.paper_statistics import holm
from support.run_statistics import Paired, verdict
from support.saved_picture import COLOURS, STYLE, save_picture
from support.side_by_side import compared, interval_text, p_text
from support.sweep import exit_code, grid

from crumb_avalanche.runs.run_folder import write_csv, write_text
from crumb_avalanche.runs.tables import markdown, mean_text, table

TABLE, RECOMMENDED = "recommended", "recommended"
SMALL_BUDGET = 600_000
ANY_BUDGET = 1_000_000_000  # for a row that exceeds the others' bytes


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        name: name in the table.
        settings: settings of `crumb run` that differ from preset `recommended`.
        method: settings of the strategy that differ from its defaults.
    """

    name: str
    settings: dict
    method: dict

    @property
    def folder(self) -> str:
        """Name of the folder of its runs."""
        return "".join(letter if letter.isalnum() else "_" for letter in self.name)


# Of rivals that can have the features of `recommended`.
FEATURES = {"maps": True, "power": 0.7, "equal_lengths": True, "cells": 2}
HEADS_INPUT = {**FEATURES, "maps": False}  # what `recommended` keeps at small budgets
# Those of version 0.1, which shared the budget among all classes of the stream instead of those so far.
OLDER = {
    **{"deviations": True, "equal_lengths": False, "cells": 1, "own": 0.3, "diagonal": False, "span": True},
    **{"eight_bits": False, "head_share": 0.0, "drop_features": False},
}
ROWS = (
    Row(RECOMMENDED, {}, {}),
    Row("- head share", {}, {"head_share": 0.0}),
    Row("- own directions", {}, {"own": 0.0, "head_share": 0.0}),
    Row("- all features, but their span", {}, {"span": True, "own": 0.3, "head_share": 0.0}),
    Row("+ own images", {}, {"own_images": 5.0}),
    Row("- 8 bits", {}, {"eight_bits": False}),
    Row("- feature map", {}, {"maps": False}),
    Row("- cells", {}, {"cells": 1, "drop_features": False}),
    Row("+ deviations", {}, {"deviations": True}),
    Row("- equal lengths", {}, {"equal_lengths": False}),
    Row("- power", {}, {"power": 1.0}),
    Row("- diagonal", {}, {"diagonal": False}),
    Row("- shrinkage", {}, {"shrinkage": 1e-4}),
    Row("version 0.1", {}, OLDER),
    Row("0.60 MB", {"budget_bytes": SMALL_BUDGET}, {}),
    Row("slda", {"strategy": "slda"}, {}),
    Row("slda, same features", {"strategy": "slda", "budget_bytes": ANY_BUDGET}, FEATURES),
    Row("slda, a mean a map", {"strategy": "slda", "budget_bytes": ANY_BUDGET}, {**FEATURES, "cells": 1}),
    Row("ncm", {"strategy": "ncm"}, {}),
    Row("srda", {"strategy": "srda"}, FEATURES),
    Row("lr_rgda", {"strategy": "lr_rgda"}, FEATURES),
    Row("srda, head's input", {"strategy": "srda"}, HEADS_INPUT),
    Row("lr_rgda, head's input", {"strategy": "lr_rgda"}, HEADS_INPUT),
    Row("fecam", {"strategy": "fecam"}, {"maps": True, "cells": 2}),
    Row("klda", {"strategy": "klda"}, FEATURES),
    Row("acil", {"strategy": "acil"}, FEATURES),
    Row("foal", {"strategy": "foal"}, {}),
    Row("ranpac_gcv", {"strategy": "ranpac_gcv"}, FEATURES),
    Row("crumb, tuned", {"preset": "tuned", "strategy": "crumb"}, {}),
    Row("crumb, k-means codebook", {"strategy": "crumb"}, {}),
    Row("paper", {"preset": "paper", "strategy": "crumb"}, {}),
    Row("reference", {"preset": "reference", "strategy": "crumb"}, {}),
    Row("remind", {"preset": "paper", "strategy": "remind"}, {}),
    Row("remind, one image at a time", {"preset": "paper", "strategy": "remind"}, {"samples_at_a_time": True}),
    Row("map_replay", {"preset": "paper", "strategy": "map_replay", "mem_size": 417}, {}),
    Row("offline", {"preset": "paper", "strategy": "offline"}, {}),
)
# The tiny network has no SqueezeNet classifier, which the reference code changes.
QUICK = dict(relu_logits=False, head_kernel=1)
QUICK_BUDGET = dict(budget_images=60.0)


@dataclass(frozen=True)
class Line:
    """The finished runs of a row, compared with those of `recommended`; the p-value is corrected over the rows."""

    row: Row
    runs: tuple[FinishedRun, ...]
    paired: Paired | None = None
    p_holm: float | None = None

    def mean(self, place: int | None = None) -> float:
        """Mean final accuracy in percent, over all classes or over those of the experience ``place``."""
        if place is None:
            return statistics.fmean(run.final for run in self.runs)
        return statistics.fmean(run.result["final_accuracy_per_experience"][place] for run in self.runs)

    def ledger(self, name: str) -> float:
        """Mean of an entry of the ledger."""
        return statistics.fmean(run.ledger[name] for run in self.runs)


def changes_of(
    rows: Sequence[Row], options: CommonOptions, protocol: str, budget: int | None = None
) -> dict[str, dict]:
    """Settings of each row by its folder.

    Args:
        rows: rows of the table.
        options: common part of the command line.
        protocol: protocol of all rows.
        budget: bytes for the rows that set no budget; None takes the benchmark's.
    """
    changes = {}
    for row in rows:
        settings = {"preset": "recommended", "protocol": protocol, **row.settings}
        if options.quick:
            settings |= QUICK
        if not {"budget_bytes", "mem_size"} & set(row.settings):
            settings |= {"budget_bytes": budget} if budget is not None else QUICK_BUDGET if options.quick else {}
        if row.method:
            settings["method"] = row.method
        changes[f"{protocol}/{row.folder}"] = settings
    return changes


def lines_of(rows: Sequence[Row], folder: Path, numbers: Sequence[int]) -> list[Line]:
    """A line for each row that has finished runs."""
    ours = finished_runs(folder / RECOMMENDED, numbers)
    lines = []
    for row in rows:
        runs = finished_runs(folder / row.folder, numbers)
        if not runs:
            continue
        lines.append(Line(row, tuple(runs), None if row.name == RECOMMENDED else compared(ours, runs)))
    p_values = holm([None if line.paired is None else line.paired.p for line in lines])
    return [replace(line, p_holm=p) for line, p in zip(lines, p_values)]


HEADER = ["row", "accuracy", "difference", "95 % interval", "p Holm", "verdict"]
HEADER += ["oldest", "newest", "runs", "bytes", "images/s"]


def text_of(line: Line) -> list[str]:
    """Format a line as text."""
    found = line.paired
    joint = line.runs[0].joint
    return [
        line.row.name,
        mean_text([run.final for run in line.runs]),
        *([""] * 4 if found is None else decided(found, line.p_holm)),
        *(("", "") if joint else (f"{line.mean(0):.1f}", f"{line.mean(-1):.1f}")),
        str(len(line.runs)),
        f"{line.ledger('memory_bytes'):,.0f}",
        f"{line.ledger('images_per_second'):.0f}",
    ]


def decided(found: Paired, p_holm: float | None) -> list[str]:
    """Format a comparison as text: difference, interval, p-value and verdict."""
    return [f"{found.mean:+.1f}", interval_text(found), p_text(p_holm), verdict(found, p_holm)]


def picture(lines: Sequence[Line], title: str) -> Figure:
    """Plot a bar for each row and a dot for each run."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 1.2 + 0.32 * len(lines)), layout="constrained")
        axes = figure.subplots()
        for place, line in enumerate(lines):
            colour = COLOURS[0] if line.row.name == RECOMMENDED else COLOURS[5]
            axes.barh(place, line.mean(), height=0.65, color=colour)
            axes.plot([run.final for run in line.runs], [place] * len(line.runs), "o", ms=3, mfc="white", mec="0.2")
        axes.set_yticks(range(len(lines)), [line.row.name for line in lines])
        axes.set(xlim=(0, 100), title=title, xlabel="accuracy over all classes at the end (%)")
        axes.invert_yaxis()
    return figure


def write_lines(lines: Sequence[Line], output: Path) -> list[Path]:
    """Write the table as Markdown, and every run as a line of CSV."""
    marked = [HEADER, ["---"] * len(HEADER), *map(text_of, lines)]
    write_text(output / f"{TABLE}.md", markdown(marked))
    csv_rows = [["row", "run", "accuracy", "oldest", "newest", "memory_bytes", "images_per_second", "frame_table"]]
    for line in lines:
        for run in line.runs:
            per = run.result["final_accuracy_per_experience"]
            cells = [f"{value:.4f}" for value in (run.final, per[0], per[-1])]
            speed = f"{run.ledger['images_per_second']:.1f}"
            table_hash = run.result["frame_table_sha256"]
            csv_rows.append([line.row.name, run.number, *cells, run.ledger["memory_bytes"], speed, table_hash])
    write_csv(output / f"{TABLE}.csv", csv_rows)
    return [output / f"{TABLE}.csv", output / f"{TABLE}.md"]


def main() -> int:
    parser = parser_for(__doc__, "runs/recommended")
    parser.add_argument("--protocol", default=PROTOCOLS[0], choices=PROTOCOLS)
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="names of rows; default all")
    parser.add_argument(
        "--budget-bytes", type=int, help="budget of all rows but the small one; default the benchmark's"
    )
    chosen = parser.parse_args()
    options = common_options(chosen)
    rows = rows_named(ROWS, chosen.rows, always=ROWS[0])
    if chosen.preset != parser.get_default("preset"):
        raise ValueError(f"--preset {chosen.preset}: every row of this table has its own preset; leave it out")
    possible = options.protocols(options.benchmark, [chosen.protocol])
    if not possible:
        raise ValueError(f"{options.benchmark} has no videos, so no {chosen.protocol}: give --protocol class_iid")
    (protocol,) = possible
    changes = changes_of(rows, options, protocol, chosen.budget_bytes)
    failed = options.do(grid(options.settings(options.benchmark), options.output, options.runs, changes))
    lines = lines_of(rows, options.output / protocol, options.runs)
    if lines:
        title = f"{options.benchmark}, {protocol.replace('_', '-')}"
        print(f"\n{title}\n" + table(HEADER, [text_of(line) for line in lines]))
        written = write_lines(lines, options.output)
        written += save_picture(picture(lines, title), options.output, TABLE)
        print("\nwritten: " + ", ".join(map(str, written)))
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
