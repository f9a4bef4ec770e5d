"""Test regularisers both class-incrementally and task-incrementally, on the same weights.

    python experiments/task_incremental.py --benchmark cifar100 --dataset-root CIFAR100
    --protocol class_iid \
        --experiences 4 --strengths si=10000 lwf=10

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
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from support.common_options import PROTOCOLS, common_options, parser_for, run_script
from support.pictures import bars
from support.rows import rows_of
from support.sweep import exit_code, grid, sweep
from support.tables import write_table

from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.run_folder import write_json
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.tables import mean_text

TABLE, PLAIN = "task_incremental", "finetune"
METHODS: dict[str, dict] = rows_of(TABLE)
FIGURES = {
    "class_incremental": "class-incremental",
    "task_incremental": "task-incremental",
    "forgetting": "forgetting",
}
Found = Mapping[str, Mapping[int, Mapping[str, float]]]  # figures by method and run


def strength(text: str) -> tuple[str, float]:
    """Parse `NAME=NUMBER`, the strength of a method."""
    name, _, value = text.partition("=")
    if not METHODS.get(name):
        raise ValueError(f"{name!r} has no strength")
    return name, float(value)


def path_of(settings: RunSettings) -> Path:
    """The file of the figures of a run."""
    return Path(settings.output) / "figures.json"


def measure(settings: RunSettings, experiences: int | None = None) -> None:
    """Do a run and write its figures; does nothing where they are."""
    from avalanche.evaluation.metrics import accuracy_metrics
    from avalanche.training.plugins import EvaluationPlugin

    from crumb_avalanche.runs.run import accuracy_on
    from crumb_avalanche.runs.session import Session, open_stream
    from crumb_avalanche.system.process import set_up_process
    from crumb_avalanche.training.plugins import TaskIncrementalPlugin

    plan, path = RunPlan.of(settings), path_of(settings)
    made_with = {"plan": plan.sha256, "experiences": experiences}
    if path.exists():
        if json.loads(path.read_text())["made_with"] != made_with:
            raise ValueError(
                f"{path} was made with other settings; use another --output, or remove it"
            )
        return
    set_up_process(plan.threads, plan.run)  # the same first weights for all methods
    stream = open_stream(plan, joint=False)
    train, test = (
        stream.benchmark.train_stream[:experiences],
        stream.benchmark.test_stream[:experiences],
    )
    if len(train) < 2:
        raise ValueError(
            f"the stream has {len(train)} experience, so nothing can be forgotten; give --experiences 2"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No loggers specified")
        evaluator = EvaluationPlugin(
            accuracy_metrics(experience=True, stream=True), loggers=[]
        )
    strategy, hint = (
        Session.build(plan, stream, evaluator=evaluator).strategy,
        TaskIncrementalPlugin(),
    )

    def with_hint(some) -> list[float]:
        strategy.plugins.append(hint)
        metrics = strategy.eval(some)
        strategy.plugins.remove(hint)
        return [
            100 * accuracy_on(metrics, experience.current_experience)
            for experience in some
        ]

    learned = []
    for number, experience in enumerate(train):
        strategy.train(experience, eval_streams=[])
        learned += with_hint(test[number : number + 1])
    final, free = with_hint(test), strategy.eval(test)
    found = {
        "class_incremental": 100
        * next(v for k, v in free.items() if k.startswith("Top1_Acc_Stream/eval")),
        "task_incremental": statistics.fmean(final),
        "forgetting": statistics.fmean(
            before - after for before, after in zip(learned[:-1], final[:-1])
        ),
    }
    write_json(
        path,
        {
            **found,
            "after_learning": learned,
            "after_the_stream": final,
            "made_with": made_with,
        },
    )


def gains(found: Found, method: str, figure: str) -> list[float]:
    """Differences of a method to fine-tuning in the same runs."""
    plain = found.get(PLAIN, {})
    return [
        one[figure] - plain[run][figure]
        for run, one in found[method].items()
        if run in plain
    ]


def csv_rows_of(found: Found) -> list[list[object]]:
    """Header, and a row for each method and figure."""
    rows: list[list[object]] = [
        [
            "method",
            "figure",
            "runs",
            "mean",
            "std",
            "minus_finetune",
            "minus_finetune_std",
        ]
    ]
    for name, runs in found.items():
        for figure in FIGURES:
            row: list[object] = [name, figure, len(runs)]
            for values in (
                [one[figure] for one in runs.values()],
                gains(found, name, figure),
            ):
                row.append(round(statistics.fmean(values), 4) if values else "")
                row.append(
                    round(statistics.stdev(values), 4) if len(values) > 1 else ""
                )
            rows.append(row)
    return rows


def main() -> int:
    parser = parser_for(__doc__, f"runs/{TABLE}")
    parser.set_defaults(runs="0-2")
    parser.add_argument("--protocol", default=PROTOCOLS[0], choices=PROTOCOLS)
    parser.add_argument(
        "--methods",
        nargs="+",
        default=list(METHODS),
        choices=METHODS,
        help="besides fine-tuning",
    )
    parser.add_argument(
        "--strengths",
        nargs="+",
        type=strength,
        default=[],
        metavar="NAME=NUMBER",
        help="instead",
    )
    parser.add_argument(
        "--experiences", type=int, help="number of experiences; default all"
    )
    chosen = parser.parse_args()
    options, strengths = common_options(chosen), dict(chosen.strengths)
    rows = {}
    for name in dict.fromkeys([PLAIN, *chosen.methods]):
        method = {
            key: strengths.get(name, value) for key, value in METHODS[name].items()
        }
        rows[name] = {"strategy": name, "method": method, "protocol": chosen.protocol}
    size = {"classes_per_experience": 5} if options.quick else {}
    cells = grid(
        options.settings(options.benchmark, **size), options.output, options.runs, rows
    )
    work = partial(measure, experiences=chosen.experiences)
    failed = {} if options.table_only else sweep(cells, options.processes, work=work)
    found: dict[str, dict[int, dict]] = {}
    for cell in cells:
        if path_of(cell).exists():
            found.setdefault(cell.strategy, {})[cell.run] = json.loads(
                path_of(cell).read_text()
            )
    if found:
        header, lines = ["method"], []
        for label in FIGURES.values():
            header += [label, f"- {PLAIN}"]
        for name, runs in found.items():
            line = [name]
            for figure in FIGURES:
                difference = (
                    ""
                    if name == PLAIN
                    else mean_text(gains(found, name, figure), "+.1f")
                )
                line += [mean_text([one[figure] for one in runs.values()]), difference]
            lines.append(line)
        panels = {
            f"{label} (%)": {
                "": {
                    name: [one[figure] for one in runs.values()]
                    for name, runs in found.items()
                }
            }
            for figure, label in FIGURES.items()
        }
        figure = bars(
            panels, f"{options.benchmark}, {chosen.protocol.replace('_', '-')}"
        )
        write_table(options.output, TABLE, header, lines, csv_rows_of(found), figure)
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
