"""Table 2 of the paper: peak memory and time of CRUMB against REMIND.

    python experiments/table2_cost.py --benchmark cifar100 --dataset-root CIFAR100
    python experiments/table2_cost.py --benchmark eth80 --dataset-root ETH80
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
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean

from support.common_options import PROTOCOLS, common_options, parser_for, run_script
from support.paper_numbers import PaperNumbers
from support.pictures import bars
from support.replay_cost import ALL_MAPS, COSTS, CRUMB, SINGLE, Part, measure
from support.tables import write_table

from crumb_avalanche.runs.run_folder import FinishedRunError, write_json
from crumb_avalanche.runs.settings import NON_RESULT_SETTINGS, RunSettings

TABLE, PAPER_DATASET, PROTOCOL = "table2", "cifar100", "class_iid"
QUICK = Part(experiences=3, stream_images=24, table_images=80, measured_images=8)
# The paper's quantities, each with its name here and the number of our units in one of
# the paper's.
QUANTITIES = {
    "peak_ram_gb": ("memory, GB", 1e9),
    "runtime_hours": ("time, hours", 3600),
}


def measured(path: Path) -> dict[str, tuple[float, float]] | None:
    """(CRUMB, REMIND) of each quantity, from a `cost_of_replay.csv`; None where there is none."""
    if not path.exists():
        return None
    with open(path, newline="") as file:
        values = {
            (line["quantity"], line["method"]): float(line["value"])
            for line in csv.DictReader(file)
        }
    memory, time = (
        tuple(
            sum(values[name, method] for name in names) / QUANTITIES[quantity][1]
            for method in (CRUMB, remind)
        )
        for quantity, remind, names in (
            ("peak_ram_gb", ALL_MAPS, ("peak_bytes", "held_bytes")),
            ("runtime_hours", SINGLE, ("seconds_whole_run",)),
        )
    )
    return {"peak_ram_gb": memory, "runtime_hours": time}


def part_of(file: Path) -> str:
    """Describe the part of a run that was measured; the first experience and the tables weigh more in a part."""
    notes = file.with_name("made_with.json")
    own = json.loads(notes.read_text()) if notes.exists() else {}
    words = {
        "stream_images": "{} images of each experience",
        "experiences": "the first {} experiences",
        "table_images": "REMIND's tables of {} maps",
    }
    return ", ".join(
        text.format(own[name]) for name, text in words.items() if own.get(name)
    )


def measure_once(settings: RunSettings, part: Part) -> None:
    """Measure a run, unless its folder holds the measurement."""
    folder = Path(settings.output)
    left_out = NON_RESULT_SETTINGS - {
        "feature_cache",
        "threads",
    }  # these change seconds and bytes
    made_with = {
        name: value
        for name, value in {**vars(settings), **asdict(part)}.items()
        if name not in left_out
    }
    made_with["feature_cache"] = settings.feature_cache is not None
    notes = folder / "made_with.json"
    if (folder / COSTS).exists():
        if notes.exists() and json.loads(notes.read_text()) != made_with:
            raise FinishedRunError(
                f"{folder} was measured with other settings; choose another --output"
            )
        return
    write_json(notes, made_with)
    measure(settings, part)


HEADER = [
    "benchmark",
    "quantity",
    "paper's data set",
    "CRUMB, paper",
    "CRUMB, ours",
    "REMIND, paper",
    "REMIND, ours",
]
HEADER += ["CRUMB by REMIND, paper", "ours", "difference", "runs"]
PART = "measured on a part only"


def lines_of(benchmark: str, files: Sequence[Path], paper: PaperNumbers) -> list[dict]:
    """The lines of a benchmark, beside the paper's CIFAR-100 where the paper does not have the benchmark.

    The difference of the ratios, in points, is empty on another benchmark, or of a part
    of the stream.
    """
    found = [values for values in map(measured, files) if values is not None]
    dataset = benchmark if paper.has(TABLE, benchmark) else PAPER_DATASET
    part = "; ".join(
        dict.fromkeys(filter(None, (part_of(file) for file in files if file.exists())))
    )
    lines = []
    for name, (words, _) in QUANTITIES.items():
        printed = tuple(
            paper.find(TABLE, dataset, PROTOCOL, method, name).value
            for method in ("crumb", "remind")
        )
        ours = tuple(map(fmean, zip(*(values[name] for values in found))))
        values = [
            f"{pair[place]:.3g}" if pair else ""
            for place in (0, 1)
            for pair in (printed, ours)
        ]
        ratios = [100 * pair[0] / pair[1] if pair else None for pair in (printed, ours)]
        shown = ["" if ratio is None else f"{ratio:.1f} %" for ratio in ratios]
        comparable = ours and benchmark == dataset and not part
        shown += [
            f"{ratios[1] - ratios[0]:+.1f}" if comparable else "",
            str(len(found) or ""),
        ]
        line = dict(zip(HEADER, [benchmark, words, dataset, *values, *shown]))
        lines.append({**line, PART: part, "ratios": ratios})
    return lines


def main() -> int:
    parser = parser_for(__doc__, "runs/table2", several=True)
    parser.set_defaults(runs="0")
    parser.add_argument(
        "--protocol", choices=PROTOCOLS, help="default the first of the benchmark"
    )
    parser.add_argument("--first-epochs", type=int, help="as for crumb run")
    parser.add_argument(
        "--stream-images",
        type=int,
        default=0,
        help="number of frames of each experience; 0: all",
    )
    parser.add_argument(
        "--table-images",
        type=int,
        default=0,
        help="maps for REMIND's tables; 0: experience 1",
    )
    parser.add_argument(
        "--experiences", type=int, default=0, help="number of experiences; 0: all"
    )
    chosen = parser.parse_args()
    options, part = (
        common_options(chosen),
        Part(chosen.experiences, chosen.stream_images, chosen.table_images),
    )
    if chosen.first_epochs is not None:
        options = replace(
            options, base=replace(options.base, first_epochs=chosen.first_epochs)
        )
    if options.quick:  # with the images themselves
        options, part = (
            replace(
                options,
                base=replace(options.base, budget_images=200, feature_cache=None),
            ),
            QUICK,
        )
    paper, lines = PaperNumbers(), []
    for benchmark in options.roots:
        folders = [options.output / benchmark / f"run{run}" for run in options.runs]
        protocol = chosen.protocol or options.protocols(benchmark)[0]
        for run, folder in zip(options.runs, () if options.table_only else folders):
            measure_once(
                options.settings(
                    benchmark, protocol=protocol, run=run, output=str(folder)
                ),
                part,
            )
        lines += lines_of(benchmark, [folder / COSTS for folder in folders], paper)
    header = [*HEADER, PART] if any(line[PART] for line in lines) else HEADER
    series: dict[str, dict[str, list[float]]] = {"of the paper": {}, "ours": {}}
    for line in lines:
        row = f"{line['quantity'].partition(',')[0]}, {line['benchmark']}\n(paper: {line[HEADER[2]]})"
        for values, ratio in zip(series.values(), line["ratios"]):
            values[row] = [] if ratio is None else [ratio]
    figure = bars(
        {"CRUMB by REMIND as its authors run it (%)": series},
        "Table 2, memory and time",
    )
    print("\nTable 2, memory and time", end="")
    write_table(
        options.output,
        TABLE,
        header,
        [[line[name] for name in header] for line in lines],
        figure=figure,
    )
    return 0


if __name__ == "__main__":
    run_script(main)
