r"""Test regularisers with and without task labels, on the same weights.

    python experiments/task_incremental.py --benchmark cifar100 \
        --dataset-root CIFAR100 --protocol class_iid --experiences 4 \
        --strengths si=10000 lwf=10

EWC, SI, MAS, LwF and Stable SGD were designed for streams in which the task of a test
image is known. A low class-incremental accuracy can be that of the method or a mistake
in its implementation; the task-incremental accuracy tells which. Each method trains as
in `crumb run`, with the loss over all classes seen so far, and the same network is
tested twice: over all classes, and over those of the image's experience only (mean over
experiences). Forgetting is task-incremental accuracy directly after an experience minus
that after the stream, the mean over all but the last. Writes `task_incremental.csv`,
`.md`, `.png`, `.svg` and a folder for each run to --output.
"""

import json
import statistics
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from support.common_options import (
    PROTOCOLS,
    CommonOptions,
    common_options,
    parser_for,
    run_script,
)
from support.pictures import bars
from support.rows import rows_of
from support.sweep import exit_code, grid
from support.tables import write_table

from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.run_folder import write_json
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.tables import mean_text

TABLE = "task_incremental"
PLAIN = "finetune"  # the method that the others are compared with
METHODS: dict[str, dict] = rows_of(TABLE)
# Label of each figure of a run, in percent.
FIGURES = {
    "class_incremental": "class-incremental",
    "task_incremental": "task-incremental",
    "forgetting": "forgetting",
}
CSV_HEADER = [
    "method",
    "figure",
    "runs",
    "mean",
    "std",
    "minus_finetune",
    "minus_finetune_std",
]
STREAM_ACCURACY = "Top1_Acc_Stream/eval"  # begins the name of Avalanche's metric
# Figures by method and number of the run.
Results = Mapping[str, Mapping[int, Mapping[str, float]]]


def strength(text: str) -> tuple[str, float]:
    """Parse `NAME=NUMBER`, the strength of a method."""
    name, _, value = text.partition("=")
    if not METHODS.get(name):
        raise ValueError(f"{name!r} has no strength")
    return name, float(value)


def path_of(settings: RunSettings) -> Path:
    """The file of the figures of a run."""
    return Path(settings.output) / "figures.json"


def is_measured(path: Path, expected: dict) -> bool:
    """Whether the figures of a run are there.

    Raises:
        ValueError: they were made with other settings.
    """
    if not path.exists():
        return False
    if json.loads(path.read_text())["made_with"] != expected:
        raise ValueError(
            f"{path} was made with other settings; use another --output, or remove it"
        )
    return True


def made_with(plan: RunPlan, experiences: int | None) -> dict:
    """What the figures of a run follow from."""
    return {"plan": plan.sha256, "experiences": experiences}


def has_figures(settings: RunSettings, experiences: int | None = None) -> bool:
    """Whether the figures of a run are there; see `measure` and `is_measured`."""
    plan = RunPlan.of(settings)
    return is_measured(path_of(settings), made_with(plan, experiences))


def with_task_labels(strategy: Any, stream: Sequence[Any]) -> list[float]:
    """Test on each experience with answers among its classes only, in percent."""
    from crumb_avalanche.runs.run import accuracy_on
    from crumb_avalanche.training.plugins import TaskIncrementalPlugin

    plugin = TaskIncrementalPlugin()
    strategy.plugins.append(plugin)
    metrics = strategy.eval(stream)
    strategy.plugins.remove(plugin)
    accuracies = []
    for experience in stream:
        share = accuracy_on(metrics, experience.current_experience)
        accuracies.append(100 * share)
    return accuracies


def without_task_labels(strategy: Any, stream: Sequence[Any]) -> float:
    """Test on a stream with answers among all classes, in percent."""
    metrics = strategy.eval(stream)
    accuracies = [
        value for name, value in metrics.items() if name.startswith(STREAM_ACCURACY)
    ]
    return 100 * accuracies[0]


def measure(settings: RunSettings, experiences: int | None = None) -> None:
    """Do a run and write its figures; do nothing where they are.

    Args:
        settings: of the run.
        experiences: number of experiences; None for all.

    Raises:
        ValueError: the figures were made with other settings, or the stream has a
            single experience.
    """
    from avalanche.evaluation.metrics import accuracy_metrics
    from avalanche.training.plugins import EvaluationPlugin

    from crumb_avalanche.runs.session import PreparedRun, Session
    from crumb_avalanche.runs.stream import open_stream
    from crumb_avalanche.system.process import set_up_process

    plan = RunPlan.of(settings)
    path = path_of(settings)
    if is_measured(path, made_with(plan, experiences)):
        return
    set_up_process(plan.threads, plan.run)  # the same first weights for all methods
    stream = open_stream(plan, joint=False)
    train = stream.benchmark.train_stream[:experiences]
    test = stream.benchmark.test_stream[:experiences]
    if len(train) < 2:
        raise ValueError(
            f"the stream has {len(train)} experience, so nothing can be forgotten; "
            "give --experiences 2"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No loggers specified")
        metrics = accuracy_metrics(experience=True, stream=True)
        evaluator = EvaluationPlugin(metrics, loggers=[])
    prepared = PreparedRun.of(plan, stream)
    strategy = Session.of(prepared, evaluator=evaluator).strategy
    after_learning = []
    for number, experience in enumerate(train):
        strategy.train(experience, eval_streams=[])
        after_learning += with_task_labels(strategy, test[number : number + 1])
    after_stream = with_task_labels(strategy, test)
    losses = np.subtract(after_learning, after_stream)[:-1].tolist()
    figures = {
        "class_incremental": without_task_labels(strategy, test),
        "task_incremental": statistics.fmean(after_stream),
        "forgetting": statistics.fmean(losses),
        "after_learning": after_learning,
        "after_the_stream": after_stream,
        "made_with": made_with(plan, experiences),
    }
    write_json(path, figures)


def values_of(results: Results, method: str, figure: str) -> list[float]:
    """A figure of each run of a method."""
    return [figures[figure] for figures in results[method].values()]


def gains(results: Results, method: str, figure: str) -> list[float]:
    """Differences of a method to fine-tuning in the same runs."""
    plain = results.get(PLAIN, {})
    differences = []
    for run, figures in results[method].items():
        if run in plain:
            differences.append(figures[figure] - plain[run][figure])
    return differences


def csv_rows_of(results: Results) -> list[list[object]]:
    """Header, and a row for each method and figure."""
    rows: list[list[object]] = [list(CSV_HEADER)]
    for method, runs in results.items():
        for figure in FIGURES:
            values = values_of(results, method, figure)
            differences = gains(results, method, figure)
            cells = [*_mean_and_deviation(values), *_mean_and_deviation(differences)]
            rows.append([method, figure, len(runs), *cells])
    return rows


def _mean_and_deviation(values: Sequence[float]) -> list[object]:
    """Mean and standard deviation, empty where there are too few values."""
    return [
        round(statistics.fmean(values), 4) if values else "",
        round(statistics.stdev(values), 4) if len(values) > 1 else "",
    ]


def line_of(results: Results, method: str) -> list[str]:
    """A line of the table: each figure and its difference to fine-tuning."""
    line = [method]
    for figure in FIGURES:
        line.append(mean_text(values_of(results, method, figure)))
        if method == PLAIN:
            line.append("")
        else:
            line.append(mean_text(gains(results, method, figure), "+.1f"))
    return line


def picture(results: Results, title: str) -> Figure:
    """Plot a panel for each figure."""
    panels = {}
    for figure, label in FIGURES.items():
        by_method = {method: values_of(results, method, figure) for method in results}
        panels[f"{label} (%)"] = {"": by_method}
    return bars(panels, title)


def cells_of(
    options: CommonOptions,
    methods: Sequence[str],
    strengths: Mapping[str, float],
    protocol: str,
) -> list[RunSettings]:
    """Settings of all runs of all methods, fine-tuning first."""
    rows = {}
    for name in dict.fromkeys([PLAIN, *methods]):
        method = {
            key: strengths.get(name, value) for key, value in METHODS[name].items()
        }
        rows[name] = {"strategy": name, "method": method, "protocol": protocol}
    base = options.settings(options.benchmark)
    if options.quick:
        base = options.settings(options.benchmark, classes_per_experience=5)
    return grid(base, options.output, options.runs, rows)


def read_results(cells: Sequence[RunSettings]) -> dict[str, dict[int, dict]]:
    """Read the figures of all runs that are finished."""
    results: dict[str, dict[int, dict]] = {}
    for cell in cells:
        path = path_of(cell)
        if path.exists():
            runs = results.setdefault(str(cell.strategy), {})
            runs[cell.run] = json.loads(path.read_text())
    return results


def main() -> int:
    parser = parser_for(__doc__, f"runs/{TABLE}", recorded=False)
    parser.set_defaults(runs="0-2")
    add = parser.add_argument
    add("--protocol", default=PROTOCOLS[0], choices=PROTOCOLS)
    add(
        "--methods",
        nargs="+",
        default=list(METHODS),
        choices=METHODS,
        help="besides fine-tuning",
    )
    add(
        "--strengths",
        nargs="+",
        type=strength,
        default=[],
        metavar="NAME=NUMBER",
        help="instead",
    )
    add("--experiences", type=int, help="number of experiences; default all")
    chosen = parser.parse_args()
    options = common_options(chosen)
    protocol = chosen.protocol
    cells = cells_of(options, chosen.methods, dict(chosen.strengths), protocol)
    work = partial(measure, experiences=chosen.experiences)
    is_done = partial(has_figures, experiences=chosen.experiences)
    failed = {}
    if not options.table_only:
        failed = options.do(cells, work=work, is_done=is_done)
    results = read_results(cells)
    if results:
        header = ["method"]
        for label in FIGURES.values():
            header += [label, f"- {PLAIN}"]
        lines = [line_of(results, method) for method in results]
        title = f"{options.benchmark}, {protocol.replace('_', '-')}"
        figure = picture(results, title)
        write_table(options.output, TABLE, header, lines, csv_rows_of(results), figure)
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
