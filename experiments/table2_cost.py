r"""Table 2 of the paper: peak memory and time of CRUMB against REMIND.

    python experiments/table2_cost.py --benchmark cifar100 --dataset-root CIFAR100
    python experiments/table2_cost.py --benchmark eth80 --dataset-root ETH80 \
        --stream-images 100

Three learners take turns, experience by experience, on one thread: CRUMB; REMIND as its
authors run it, with one new image and 50 mixtures of memories in each step, which is
what the paper compares with; REMIND with one step for each batch. Time is that of the
whole run without evaluation, and with --feature-cache without F, which is the same for
all. Memory is what is kept (codes, labels, tables) plus the peak while codebook or
tables are computed, with the maps that they are computed from, each in a process of its
own: CRUMB's codebook; REMIND's tables by faiss from all maps of the first experience at
once, as in its authors' code; and from a sample of locations, as in this library.
Seconds and bytes depend on the machine, ratios much less, so compare the ratio to
REMIND with the paper; leave the cores otherwise idle. A run with a
`cost_of_replay.csv`, which has all that was measured, is not measured again. Writes
`table2.csv`, `.md`, `.png`, `.svg` and a folder for each run to --output.
"""

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure
from support.common_options import (
    PROTOCOLS,
    CommonOptions,
    common_options,
    parser_for,
    run_script,
)
from support.paper_numbers import PaperNumbers
from support.pictures import bars
from support.replay_cost import ALL_MAPS, COSTS, CRUMB, SINGLE, Part, measure
from support.tables import write_table

from crumb_avalanche.runs.run_folder import FinishedRunError, write_json
from crumb_avalanche.runs.settings import NON_RESULT_SETTINGS, RunSettings
from crumb_avalanche.runs.tables import number

TABLE = "table2"
PAPER_DATASET = "cifar100"
PROTOCOL = "class_iid"  # of the paper's numbers
QUICK = Part(experiences=3, stream_images=24, table_images=80, measured_images=8)
# Settings that change seconds and bytes, though not results.
COST_SETTINGS = {"feature_cache", "threads"}
HEADER = [
    "benchmark",
    "quantity",
    "paper's data set",
    "CRUMB, paper",
    "CRUMB, ours",
    "REMIND, paper",
    "REMIND, ours",
    "CRUMB by REMIND, paper",
    "ours",
    "difference",
    "runs",
]
PART = "measured on a part only"


@dataclass(frozen=True)
class Unit:
    """A quantity of the paper.

    Attributes:
        name: of the quantity in `paper_values.csv`.
        label: of the quantity in the table.
        size: number of our units in one of the paper's.
        remind: name of the measured REMIND that the paper compares with.
        entries: quantities of `cost_of_replay.csv` whose sum it is.
    """

    name: str
    label: str
    size: float
    remind: str
    entries: tuple[str, ...]


UNITS = (
    Unit("peak_ram_gb", "memory, GB", 1e9, ALL_MAPS, ("peak_bytes", "held_bytes")),
    Unit("runtime_hours", "time, hours", 3600, SINGLE, ("seconds_whole_run",)),
)


@dataclass(frozen=True)
class Pair:
    """A quantity of CRUMB and of REMIND, in the paper's unit."""

    crumb: float
    remind: float

    @property
    def ratio(self) -> float:
        """CRUMB's part of REMIND's, in percent."""
        return 100 * self.crumb / self.remind


@dataclass(frozen=True)
class Quantity:
    """A quantity of a benchmark beside the paper's.

    Attributes:
        benchmark: what was measured.
        dataset: what the paper's numbers are of.
        unit: which quantity.
        paper: the paper's numbers.
        ours: means over runs; None without any.
        runs: number of measured runs.
        part: the part of a run that was measured; empty if all of it was.
    """

    benchmark: str
    dataset: str
    unit: Unit
    paper: Pair
    ours: Pair | None
    runs: int
    part: str

    @property
    def difference(self) -> float | None:
        """Our ratio minus the paper's, in points; None where they do not compare."""
        if self.ours is None or self.part or self.benchmark != self.dataset:
            return None
        return self.ours.ratio - self.paper.ratio

    @property
    def line(self) -> list[str]:
        """Values of `HEADER`."""
        ours = ["", "", ""]
        if self.ours is not None:
            ours = _pair_cells(self.ours)
        cells = [self.benchmark, self.unit.label, self.dataset]
        for paper_cell, our_cell in zip(_pair_cells(self.paper), ours):
            cells += [paper_cell, our_cell]
        return [*cells, number(self.difference, "+.1f"), str(self.runs or "")]

    def cell(self, column: str) -> str:
        """The value of a column of `HEADER`."""
        return self.line[HEADER.index(column)]


def _pair_cells(pair: Pair) -> list[str]:
    """Cells of CRUMB, REMIND and their ratio."""
    return [f"{pair.crumb:.3g}", f"{pair.remind:.3g}", f"{pair.ratio:.1f} %"]


def measured(path: Path) -> list[Pair] | None:
    """Read the quantities of `UNITS` from a `cost_of_replay.csv`, if there is one."""
    if not path.exists():
        return None
    values = {}
    with open(path, newline="") as file:
        for line in csv.DictReader(file):
            values[line["quantity"], line["method"]] = float(line["value"])

    def total(unit: Unit, method: str) -> float:
        return sum(values[entry, method] for entry in unit.entries) / unit.size

    return [Pair(total(unit, CRUMB), total(unit, unit.remind)) for unit in UNITS]


def part_of(file: Path) -> str:
    """Describe the part of a run that was measured; empty for a whole run.

    The first experience and the tables weigh more in a part.
    """
    notes = file.with_name("made_with.json")
    if not notes.exists():
        return ""
    made_with = json.loads(notes.read_text())
    texts = {
        "stream_images": "{} images of each experience",
        "experiences": "the first {} experiences",
        "table_images": "REMIND's tables of {} maps",
    }
    phrases = []
    for name, text in texts.items():
        if made_with.get(name):
            phrases.append(text.format(made_with[name]))
    return ", ".join(phrases)


def measure_once(settings: RunSettings, part: Part) -> None:
    """Measure a run, unless its folder holds the measurement.

    Raises:
        FinishedRunError: the folder holds a measurement with other settings.
    """
    folder = Path(settings.output)
    made_with = {**vars(settings), **asdict(part)}
    for name in NON_RESULT_SETTINGS - COST_SETTINGS:
        made_with.pop(name, None)
    made_with["feature_cache"] = settings.feature_cache is not None
    notes = folder / "made_with.json"
    if not (folder / COSTS).exists():
        write_json(notes, made_with)
        measure(settings, part)
    elif notes.exists() and json.loads(notes.read_text()) != made_with:
        raise FinishedRunError(
            f"{folder} was measured with other settings; choose another --output"
        )


def quantities_of(
    benchmark: str, files: Sequence[Path], paper: PaperNumbers
) -> list[Quantity]:
    """The quantities of a benchmark, beside the paper's.

    The paper's are of CIFAR-100 where it does not have the benchmark.

    Args:
        benchmark: what was measured.
        files: `cost_of_replay.csv` of each run, which need not exist.
        paper: all numbers of the paper.
    """
    dataset = benchmark if paper.has(TABLE, benchmark) else PAPER_DATASET
    runs = []
    notes: dict[str, None] = {}  # of the parts measured, each once
    for file in files:
        pairs = measured(file)
        if pairs is not None:
            runs.append(pairs)
            notes[part_of(file)] = None
    quantities = []
    for index, unit in enumerate(UNITS):
        quantities.append(
            Quantity(
                benchmark=benchmark,
                dataset=dataset,
                unit=unit,
                paper=_paper_pair(paper, dataset, unit),
                ours=mean_of([pairs[index] for pairs in runs]),
                runs=len(runs),
                part="; ".join(filter(None, notes)),
            )
        )
    return quantities


def _paper_pair(paper: PaperNumbers, dataset: str, unit: Unit) -> Pair:
    """The paper's numbers of CRUMB and REMIND."""
    crumb = paper.find(TABLE, dataset, PROTOCOL, "crumb", unit.name).value
    remind = paper.find(TABLE, dataset, PROTOCOL, "remind", unit.name).value
    return Pair(crumb, remind)


def mean_of(pairs: Sequence[Pair]) -> Pair | None:
    """Mean of pairs; None without any."""
    if not pairs:
        return None
    crumb = fmean(pair.crumb for pair in pairs)
    remind = fmean(pair.remind for pair in pairs)
    return Pair(crumb, remind)


def picture(quantities: Sequence[Quantity]) -> Figure:
    """Plot CRUMB's part of REMIND's memory and time, the paper's beside ours."""
    paper: dict[str, list[float]] = {}
    ours: dict[str, list[float]] = {}
    for quantity in quantities:
        name = quantity.unit.label.partition(",")[0]
        row = f"{name}, {quantity.benchmark}\n(paper: {quantity.dataset})"
        paper[row] = [quantity.paper.ratio]
        ours[row] = [] if quantity.ours is None else [quantity.ours.ratio]
    panel = "CRUMB by REMIND as its authors run it (%)"
    series = {"of the paper": paper, "ours": ours}
    return bars({panel: series}, "Table 2, memory and time")


def publish(quantities: Sequence[Quantity], output: Path) -> None:
    """Print the table; write it and its picture."""
    header = list(HEADER)
    lines = [quantity.line for quantity in quantities]
    if any(quantity.part for quantity in quantities):
        header.append(PART)
        for line, quantity in zip(lines, quantities):
            line.append(quantity.part)
    print("\nTable 2, memory and time", end="")
    write_table(output, TABLE, header, lines, figure=picture(quantities))


def measure_all(
    options: CommonOptions, protocol: str | None, part: Part
) -> list[Quantity]:
    """Measure the runs of all benchmarks, and read what was measured.

    Args:
        options: shared by all scripts; with --table-only, nothing is measured.
        protocol: of all runs; default the first of each benchmark.
        part: of a run that is measured.
    """
    paper = PaperNumbers()
    quantities = []
    for benchmark in options.roots:
        files = []
        protocol_of_runs = protocol or options.protocols(benchmark)[0]
        for run in options.runs:
            folder = options.output / benchmark / f"run{run}"
            files.append(folder / COSTS)
            settings = options.settings(
                benchmark, protocol=protocol_of_runs, run=run, output=str(folder)
            )
            if not options.table_only:
                measure_once(settings, part)
        quantities += quantities_of(benchmark, files, paper)
    return quantities


def main() -> int:
    parser = parser_for(__doc__, "runs/table2", several=True, recorded=False)
    parser.set_defaults(runs="0")
    add = parser.add_argument
    add("--protocol", choices=PROTOCOLS, help="default the first of the benchmark")
    add("--first-epochs", type=int, help="as for crumb run")
    add(
        "--stream-images",
        type=int,
        default=0,
        help="number of frames of each experience; 0: all",
    )
    add(
        "--table-images",
        type=int,
        default=0,
        help="maps for REMIND's tables; 0: experience 1",
    )
    add("--experiences", type=int, default=0, help="number of experiences; 0: all")
    chosen = parser.parse_args()
    options = common_options(chosen)
    base = options.base
    part = Part(chosen.experiences, chosen.stream_images, chosen.table_images)
    if chosen.first_epochs is not None:
        base = replace(base, first_epochs=chosen.first_epochs)
    if options.quick:  # with the images themselves
        base = replace(base, budget_images=200, feature_cache=None)
        part = QUICK
    options = replace(options, base=base)
    publish(measure_all(options, chosen.protocol, part), options.output)
    return 0


if __name__ == "__main__":
    run_script(main)
