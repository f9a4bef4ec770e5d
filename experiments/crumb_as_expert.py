"""Ask whether CRUMB helps the recommended learner as one more expert, at the same bytes.

    python experiments/crumb_as_expert.py --benchmark eth80 clip_folder toy_dots
    --dataset-root ETH80 DIGITS ...

Experts (`rows/crumb_as_expert.yaml`) are `--preset recommended`, and `--preset tuned`,
which answers by its readout in closed form; `untrained CRUMB` is that readout of
memories of stock layers. Together they answer by the sum of their log-probabilities, at
the temperatures that a learner starts from; nothing is fitted. Difference: the row
minus `recommended`, with 95 % interval by Student's t over runs, or over splits where
runs share one. Writes `crumb_as_expert.csv` and `.md` and a folder for each run to
--output.
"""

from collections.abc import Sequence

import torch
from support.common_options import common_options, own_presets, parser_for, run_script
from support.findings import Cell
from support.rows import rows_of
from support.runs import FinishedRun
from support.statistics import paired
from support.sweep import exit_code
from support.tables import interval_text, write_table

from crumb_avalanche.methods.run_file import LEARNER, load_learner
from crumb_avalanche.methods.slda import StreamingLDA
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.session import open_stream
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.tables import mean_text
from crumb_avalanche.training.plugins import OutputsPlugin

OURS = "recommended"  # row and expert that the others are compared with
EXPERTS, ROWS = rows_of("crumb_as_expert").values()
SHARED = {"protocol": "class_instance", "keep_learner": True}
HEADER = ["stream", "row", "accuracy", "difference", "95 % interval", "runs", "bytes"]


def together(experts: Sequence[FinishedRun], settings: RunSettings) -> float:
    """Accuracy in percent of the sum of the log-probabilities of runs on the test images of some settings."""
    tests, scores = open_stream(RunPlan.of(settings)).benchmark.test_stream, []
    for run in experts:
        strategy, outputs = (
            load_learner(run.folder / LEARNER, settings.device)[0],
            OutputsPlugin(),
        )
        strategy.plugins.append(outputs)
        strategy.eval(tests)
        form = getattr(
            strategy, "statistics", StreamingLDA
        )  # a readout is a linear discriminant
        scores.append(
            (torch.cat(outputs.outputs).double() / form.temperature).log_softmax(1)
        )
    labels = torch.tensor(
        [label for experience in tests for label in experience.dataset.targets]
    )
    return 100 * float((sum(scores).argmax(1) == labels).double().mean())


def main() -> int:
    chosen = parser_for(__doc__, "runs/crumb_as_expert", several=True).parse_args()
    own_presets(chosen, "every expert")
    options, cells = common_options(chosen), []
    for stream in options.roots:
        budget = int(RunPlan.of(options.settings(stream, preset=OURS)).budget)
        for name, own in EXPERTS.items():
            settings = {
                **own,
                **SHARED,
                "budget_bytes": budget if name == OURS else budget // 2,
            }
            cells.append(
                Cell(
                    name,
                    stream,
                    SHARED["protocol"],
                    options.output / stream / name,
                    settings,
                )
            )
    found, failed = options.found(cells)
    runs = {
        (item.cell.benchmark, item.cell.row): {run.number: run for run in item.runs}
        for item in found
    }
    lines, csv_rows = (
        [],
        [["stream", "row", "run", "accuracy", "memory_bytes", "frame_table"]],
    )
    for stream in options.roots:
        ours = {number: run.final for number, run in runs[stream, OURS].items()}
        splits = {number: run.split for number, run in runs[stream, OURS].items()}
        for row, names in ROWS.items():
            reached, kept = {}, 0
            for number, split in splits.items():
                if all(number in runs[stream, name] for name in names):
                    experts = [runs[stream, name][number] for name in names]
                    settings = options.settings(stream, **SHARED, run=number)
                    reached[number] = (
                        experts[0].final
                        if len(experts) == 1
                        else together(experts, settings)
                    )
                    kept = sum(run.ledger["memory_bytes"] for run in experts)
                    csv_rows.append(
                        [stream, row, number, f"{reached[number]:.4f}", kept, split]
                    )
            compared = None if row == OURS else paired(ours, reached, splits)
            difference = "" if compared is None else f"{compared.mean:+.1f}"
            line = [
                stream,
                row,
                mean_text(list(reached.values())),
                difference,
                interval_text(compared),
            ]
            lines.append([*line, str(len(reached)), f"{kept:,}"])
    if len(csv_rows) > 1:
        write_table(options.output, "crumb_as_expert", HEADER, lines, csv_rows)
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
