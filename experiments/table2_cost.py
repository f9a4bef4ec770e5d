"""Table 2 of the paper: peak memory and time of CRUMB against REMIND.

    python experiments/table2_cost.py --benchmark cifar100 --dataset-root CIFAR100
    python experiments/table2_cost.py --benchmark eth80 --dataset-root ETH80 --stream-images 100

`cost_of_replay.py` measures, and describes what counts: memory is the peak while codebook or tables are computed, with
the maps that they are computed from, plus what is kept; time is that of the whole run without evaluation. REMIND runs
as its authors run it (one image at a time, tables from all maps of the first experience), which is what the paper
compares with, and with the cheaper choices of this library. Seconds and bytes depend on the machine, ratios much less,
so compare the ratio to REMIND with the paper. `--runs` are measured one after the other; leave the cores otherwise
idle. A run with a `cost_of_replay.csv` is not measured again. Writes `table2.csv`, `table2.md`, `table2.png`,
`table2.svg` and a folder for each run to --output.
"""

import csv
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import matplotlib
import numpy as np
from cost_of_replay import CRUMB, QUICK, SINGLE, CostSettings
from cost_of_replay import main as measure
from matplotlib.figure import Figure
from support.common_options import common_options, parser_for, run_script
from support.paper_numbers import PaperNumbers, read_paper_numbers
from support.saved_picture import COLOURS, STYLE, save_picture
from support.table_memory import ALL_MAPS

from crumb_avalanche.runs.run_folder import FinishedRunError, write_csv, write_json, write_text
from crumb_avalanche.runs.settings import NON_RESULT_SETTINGS, RunSettings, as_dict
from crumb_avalanche.runs.tables import markdown, table

TABLE, PAPER_DATASET, PROTOCOL = "table2", "cifar100", "class_iid"
# The paper's quantities, each with its name here and the number of our units in one of the paper's.
QUANTITIES = {"peak_ram_gb": ("memory, GB", 1e9), "runtime_hours": ("time, hours", 3600)}
REMIND_MEMORY, REMIND_TIME = ALL_MAPS, SINGLE


@dataclass(frozen=True)
class Line:
    """One quantity of CRUMB and REMIND on one benchmark; None where it was not measured or not printed.

    Attributes:
        benchmark: benchmark of our runs.
        paper_dataset: data set of the paper's numbers.
        quantity: name with unit.
        paper: the paper's numbers, (CRUMB, REMIND).
        ours: means over runs, (CRUMB, REMIND).
        runs: number of measured runs.
        part: description of the part of the run that was measured; empty for a whole run.
    """

    benchmark: str
    paper_dataset: str
    quantity: str
    paper: tuple[float, float] | None
    ours: tuple[float, float] | None
    runs: int
    part: str = ""

    @property
    def paper_ratio(self) -> float | None:
        """CRUMB by REMIND, in percent."""
        return None if self.paper is None else 100 * self.paper[0] / self.paper[1]

    @property
    def ratio(self) -> float | None:
        """CRUMB by REMIND, in percent."""
        return None if self.ours is None else 100 * self.ours[0] / self.ours[1]

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's ratio, in points; None on another benchmark, or of a part of the stream."""
        if self.ours is None or self.paper is None or self.benchmark != self.paper_dataset or self.part:
            return None
        return self.ratio - self.paper_ratio


def measured(path: Path) -> dict[str, tuple[float, float]] | None:
    """(CRUMB, REMIND) of each quantity, from a `cost_of_replay.csv`; None where there is none."""
    if not path.exists():
        return None
    with open(path, newline="") as file:
        values = {(line["quantity"], line["method"]): float(line["value"]) for line in csv.DictReader(file)}

    def memory(method: str) -> float:
        return (values["peak_bytes", method] + values["held_bytes", method]) / QUANTITIES["peak_ram_gb"][1]

    hour = QUANTITIES["runtime_hours"][1]
    seconds = [values["seconds_whole_run", method] / hour for method in (CRUMB, REMIND_TIME)]
    return {"peak_ram_gb": (memory(CRUMB), memory(REMIND_MEMORY)), "runtime_hours": tuple(seconds)}


def part_of(file: Path) -> str:
    """Describe the part of a run that was measured; the first experience and the tables weigh more in a part."""
    notes = file.with_name("made_with.json")
    own = json.loads(notes.read_text()) if notes.exists() else {}
    words = {
        "stream_images": "{} images of each experience",
        "experiences": "the first {} experiences",
        "table_images": "REMIND's tables of {} maps",
    }
    return ", ".join(text.format(own[name]) for name, text in words.items() if own.get(name))


def measure_once(settings: RunSettings, own: CostSettings) -> None:
    """Measure a run, unless its folder holds the measurement.

    Raises:
        FinishedRunError: it was measured with other settings.
    """
    folder = Path(own.output)
    left_out = NON_RESULT_SETTINGS - {"feature_cache", "threads"}  # these change seconds and bytes
    made_with = {name: value for name, value in {**as_dict(settings), **asdict(own)}.items() if name not in left_out}
    made_with["feature_cache"] = settings.feature_cache is not None
    notes = folder / "made_with.json"
    if (folder / "cost_of_replay.csv").exists():
        if notes.exists() and json.loads(notes.read_text()) != made_with:
            raise FinishedRunError(f"{folder} was measured with other settings; choose another --output")
        return
    write_json(notes, made_with)
    measure(settings, own)


def lines_of(benchmark: str, files: Sequence[Path], paper: PaperNumbers) -> list[Line]:
    """The lines of a benchmark, beside the paper's CIFAR-100 where the paper does not have the benchmark."""
    found = [values for values in map(measured, files) if values is not None]
    own = any(key[:2] == (TABLE, benchmark) for key in paper)
    dataset = benchmark if own else PAPER_DATASET
    part = "; ".join(dict.fromkeys(filter(None, (part_of(file) for file in files if file.exists()))))
    lines = []
    for name, (words, _) in QUANTITIES.items():
        printed = [paper.find(TABLE, dataset, PROTOCOL, method, name) for method in ("crumb", "remind")]
        ours = tuple(map(statistics.fmean, zip(*(values[name] for values in found)))) or None
        lines.append(Line(benchmark, dataset, words, tuple(value.value for value in printed), ours, len(found), part))
    return lines


HEADER = ["benchmark", "quantity", "paper's data set", "CRUMB, paper", "CRUMB, ours", "REMIND, paper", "REMIND, ours"]
HEADER += ["CRUMB by REMIND, paper", "ours", "difference", "runs"]


def text_of(line: Line) -> list[str]:
    """Format a line as text, ratios in percent."""

    def shown(pair, place: int) -> str:
        return "" if pair is None else f"{pair[place]:.3g}"

    values = [shown(pair, place) for place in (0, 1) for pair in (line.paper, line.ours)]
    ratios = ["" if value is None else f"{value:.1f} %" for value in (line.paper_ratio, line.ratio)]
    difference = "" if line.difference is None else f"{line.difference:+.1f}"
    return [line.benchmark, line.quantity, line.paper_dataset, *values, *ratios, difference, str(line.runs or "")]


def picture(lines: Sequence[Line]) -> Figure:
    """Plot CRUMB / REMIND in percent, the paper's beside ours."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7, 1.6 + 0.6 * len(lines)), layout="constrained")
        axes = figure.subplots()
        places = np.arange(len(lines))
        for shift, label, values in (
            (-0.18, "the paper", [line.paper_ratio for line in lines]),
            (0.18, "ours", [line.ratio for line in lines]),
        ):
            known = [(place + shift, value) for place, value in zip(places, values) if value is not None]
            colour = COLOURS[1] if label == "the paper" else COLOURS[0]
            bars = axes.barh([y for y, _ in known], [value for _, value in known], 0.34, label=label, color=colour)
            axes.bar_label(bars, fmt="%.1f %%", padding=3)
        names = [f"{line.quantity.partition(',')[0]}, {line.benchmark}" for line in lines]
        axes.set_yticks(places, [f"{name}\n(paper: {line.paper_dataset})" for name, line in zip(names, lines)])
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.set_xlabel("CRUMB by REMIND as its authors run it (%)")
        axes.legend()
    return figure


def main() -> int:
    parser = parser_for(__doc__, "runs/table2", several=True)
    parser.set_defaults(runs="0")
    parser.add_argument("--stream-images", type=int, default=0, help="number of frames of each experience; 0: all")
    parser.add_argument(
        "--table-images", type=int, default=0, help="number of maps that REMIND's tables are fitted to; 0: experience 1"
    )
    parser.add_argument("--experiences", type=int, default=0, help="number of experiences; 0: all")
    chosen = parser.parse_args()
    options = common_options(chosen)
    own = CostSettings("", chosen.experiences, chosen.stream_images, table_images=chosen.table_images)
    if options.quick:
        own = replace(own, stream_images=24, table_images=80, measured_images=8, experiences=3)
    paper, lines = read_paper_numbers(), []
    for benchmark in options.roots:
        files = []
        for run in options.runs:
            folder = options.output / benchmark / f"run{run}"
            files.append(folder / "cost_of_replay.csv")
            if not options.table_only:
                protocol = options.protocols(benchmark)[-1 if options.quick else 0]
                settings = options.settings(benchmark, protocol=protocol, run=run)
                if options.quick:
                    settings = replace(settings, **QUICK)
                measure_once(settings, replace(own, output=str(folder)))
        lines += lines_of(benchmark, files, paper)
    header, rows = HEADER, [text_of(line) for line in lines]
    if any(line.part for line in lines):
        header, rows = [*HEADER, "measured on a part only"], [[*row, line.part] for row, line in zip(rows, lines)]
    print("\nTable 2, memory and time\n" + table(header, rows))
    write_csv(options.output / "table2.csv", [header, *rows])
    marked = [header, ["---"] * len(header), *rows]
    write_text(options.output / "table2.md", markdown(marked))
    written = ", ".join(path.name for path in save_picture(picture(lines), options.output, TABLE))
    print(f"\nwritten to {options.output}: table2.csv, table2.md, {written}")
    return 0


if __name__ == "__main__":
    run_script(main)
