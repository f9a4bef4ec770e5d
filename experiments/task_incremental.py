"""Test regularisers both class-incrementally and task-incrementally, on the same weights.

    python experiments/task_incremental.py --quick
    python experiments/task_incremental.py --benchmark cifar100 --dataset-root CIFAR100 --protocol class_iid \
        --experiences 4 --runs 0-2 --strengths si=10000,lwf=10

EWC, SI, MAS, LwF and Stable SGD were designed for streams in which the task of a test image is known. A low
class-incremental accuracy can be that of the method or a mistake in its implementation; the task-incremental accuracy
tells which. Each method trains on a stream as in `crumb run`, with the loss over all classes seen so far. Fine-tuning
starts from the same weights. Then the same network is tested twice: over all classes, and over those of the image's
experience only.

Prints, and writes to the output folder (table.csv, report.png, report.svg, a JSON file for each method and run), in
percent:
  class-incremental  accuracy on all test images, over all classes, after the stream
  task-incremental   accuracy on the test images of an experience over its classes, after the stream; mean over
                     experiences
  forgetting         task-incremental accuracy directly after an experience minus that after the stream; mean over all
                     experiences but the last
Each is a mean +- standard deviation over runs, as is the difference to fine-tuning in the same run. Most settings are
those of `crumb run`. Results that the output folder holds are not computed again.
"""

import json
import statistics
import sys
import warnings
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from support import common_options
from support.pictures import bars
from support.tables import rows_of as table_rows

from benchmarks_toybox_ilab.tables.text import safe_output
from crumb_avalanche.report.pictures import save
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.run_folder import FinishedRunError, write_csv, write_json
from crumb_avalanche.runs.settings import NON_RESULT_SETTINGS, RunSettings, add_run_arguments, as_dict, underscored
from crumb_avalanche.runs.tables import mean_text, table


@dataclass(frozen=True)
class Method:
    """A strategy, with its settings that differ from the defaults."""

    strategy: str
    settings: dict = field(default_factory=dict)


METHODS = tuple(Method(name, settings) for name, settings in table_rows("task_incremental").items())
QUICK = common_options.QUICK | dict(benchmark=common_options.QUICK_BENCHMARK, classes_per_experience=5, progress=False)
FIGURES = {
    "class_incremental": "class-incremental accuracy",
    "task_incremental": "task-incremental accuracy",
    "forgetting": "task-incremental forgetting",
}
# Settings of `crumb run` that no method here reads, or that this script sets.
LEFT_OUT = {
    *("strategy", "method", "family", "run", "checkpoint", "evaluate_quantized"),
    *("budget_images", "budget_bytes", "mem_size", "replay_weight", "replay_steps", "replay_compute"),
    *("fused", "selection_rule"),
    *("codebook_size", "codebook_dim", "codebook_init"),
}


def parser():
    """The command line."""
    from jsonargparse import ActionConfigFile, ArgumentParser

    command = ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    command.add_argument("--config", action=ActionConfigFile, help="a YAML file of settings")
    trial = "rendered shapes and a tiny network, half a minute"
    command.add_argument("--quick", type=bool, nargs="?", const=True, default=False, metavar="BOOL", help=trial)
    command.add_argument("--methods", type=str, help="names, such as ewc,lwf; fine-tuning is always added")
    command.add_argument("--strengths", type=str, help="other strengths than in METHODS, such as si=10000,lwf=10")
    command.add_argument("--experiences", type=int, help="number of experiences; default all")
    add_run_arguments(command, LEFT_OUT)
    command.set_defaults(output="runs/task_incremental")
    return command


def chosen_methods(names: str | None) -> list[Method]:
    """Fine-tuning, and the named methods.

    Raises:
        ValueError: a name that is not in ``METHODS``.
    """
    known = {method.strategy: method for method in METHODS}
    wanted = list(known) if names is None else ["finetune", *(name.strip() for name in names.split(","))]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"no method {', '.join(unknown)} here; known are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(wanted)]


def with_strengths(methods: list[Method], text: str | None) -> list[Method]:
    """Replace strengths of methods by those of a text such as ``si=10000,lwf=10``.

    Raises:
        ValueError: a name that is no method with a strength, or a value that is no number.
    """
    known = [method.strategy for method in METHODS if method.settings]
    strengths = {}
    for part in text.split(",") if text else ():
        name, _, value = (piece.strip() for piece in part.partition("="))
        try:
            strengths[name] = float(value)
        except ValueError:
            raise ValueError(f"--strengths has {part!r}, but needs NAME=NUMBER, such as si=10000") from None
        if name not in known:
            raise ValueError(f"--strengths has {name!r}, but those with a strength are {', '.join(known)}")
    return [
        Method(method.strategy, {key: strengths.get(method.strategy, value) for key, value in method.settings.items()})
        for method in methods
    ]


def planned(settings: RunSettings, method: Method) -> RunPlan:
    """The plan of one method."""
    return RunPlan.of(replace(settings, strategy=method.strategy, method=method.settings))


def measure(settings: RunSettings, method: Method, experiences: int | None = None) -> dict[str, float]:
    """The figures of one method in one run.

    Args:
        settings: settings with ``run`` set.
        method: method to train.
        experiences: number of experiences; default all.

    Raises:
        ValueError: fewer than two experiences.
    """
    from avalanche.evaluation.metrics import accuracy_metrics
    from avalanche.training.plugins import EvaluationPlugin

    from crumb_avalanche.runs.recorder import ProgressPlugin
    from crumb_avalanche.runs.run import accuracy_on
    from crumb_avalanche.runs.session import Session
    from crumb_avalanche.runs.stream import open_stream
    from crumb_avalanche.system.process import set_up_process
    from crumb_avalanche.training.plugins import TaskIncrementalPlugin

    plan = planned(settings, method)
    set_up_process(plan.threads, plan.run)  # the same first weights for all methods
    stream = open_stream(plan, joint=False)
    train, test = stream.benchmark.train_stream[:experiences], stream.benchmark.test_stream[:experiences]
    if len(train) < 2:
        raise ValueError(
            f"the stream has {len(train)} experience, so nothing can be forgotten; give --experiences 2 or more, and "
            "--classes-per-experience low enough"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No loggers specified")
        evaluator = EvaluationPlugin(accuracy_metrics(experience=True, stream=True), loggers=[])
    bar = ProgressPlugin(len(train), plan.progress)
    strategy = Session.build(plan, stream, plugins=[bar], evaluator=evaluator).strategy
    hint, loader = TaskIncrementalPlugin(), {"num_workers": plan.workers}

    def with_hint(experiences) -> list[float]:
        strategy.plugins.append(hint)
        metrics = strategy.eval(experiences, **loader)
        strategy.plugins.remove(hint)
        return [100 * accuracy_on(metrics, experience.current_experience) for experience in experiences]

    learned = []
    for number, experience in enumerate(train):
        strategy.train(experience, eval_streams=[], **loader)
        learned += with_hint(test[number : number + 1])
    final = with_hint(test)
    free = strategy.eval(test, **loader)
    return {
        "class_incremental": 100 * next(v for k, v in free.items() if k.startswith("Top1_Acc_Stream/eval")),
        "task_incremental": statistics.fmean(final),
        "forgetting": statistics.fmean(before - after for before, after in zip(learned[:-1], final[:-1])),
        "after_learning": learned,
        "after_the_stream": final,
    }


def measured(settings: RunSettings, method: Method, experiences: int | None = None) -> dict[str, float]:
    """Read the figures from the output folder, or measure and write them.

    Raises:
        FinishedRunError: they were measured with other settings.
    """
    path = Path(settings.output) / f"{method.strategy}_run{settings.run}.json"
    compared = {
        name: value
        for name, value in as_dict(planned(settings, method)).items()
        if name not in NON_RESULT_SETTINGS | LEFT_OUT
    } | asdict(method)
    if experiences is not None:
        compared["experiences"] = experiences
    if path.exists() and not settings.overwrite:
        kept = json.loads(path.read_text())
        then = kept["made_with"]
        if {name: value for name, value in then.items() if name not in LEFT_OUT - {"strategy"}} != compared:
            raise FinishedRunError(
                f"{path} was made with other settings; choose another --output, or start over with --overwrite true"
            )
        return kept["figures"]
    figures = measure(settings, method, experiences)
    write_json(path, {"figures": figures, "made_with": compared})
    return figures


def rows_of(figures: dict[str, list[dict]]) -> list[dict]:
    """A row for each method and figure: mean, deviation, paired difference to fine-tuning and its deviation."""
    rows = []
    for name, runs in figures.items():
        for figure in FIGURES:
            values = [run[figure] for run in runs]
            gains = [value - plain[figure] for value, plain in zip(values, figures["finetune"])]
            deviations = [statistics.stdev(numbers) if len(runs) > 1 else None for numbers in (values, gains)]
            numbers = statistics.fmean(values), deviations[0], statistics.fmean(gains), deviations[1]
            names = ("mean", "std", "minus_finetune", "minus_finetune_std")
            rows.append({"method": name, "figure": figure, "runs": len(runs), **dict(zip(names, numbers))})
    return rows


def report(settings: RunSettings, figures: dict[str, list[dict]]) -> None:
    """Print the table; write it and its picture."""
    folder = Path(settings.output)
    rows = rows_of(figures)
    rounded = ([round(v, 4) if isinstance(v, float) else v for v in row.values()] for row in rows)
    write_csv(folder / "table.csv", [list(rows[0]), *rounded])
    lines = []
    for name, runs in figures.items():
        line = [name]
        for figure in FIGURES:
            gains = [run[figure] - plain[figure] for run, plain in zip(runs, figures["finetune"])]
            text = "" if name == "finetune" else mean_text(gains, "+.1f")
            line += [mean_text([run[figure] for run in runs]), text]
        lines.append(line)
    header = ["method"]
    for label in ("class-incremental", "task-incremental", "forgetting"):
        header += [label, "- finetune"]
    count = len(figures["finetune"])
    title = f"{settings.benchmark} ({settings.protocol}), {count} run{'s' * (count > 1)}"
    print(f"\n{title}, percent, mean +- standard deviation\n{table(header, lines)}")
    panels = {
        f"{label} (%)": {"": {name: [run[figure] for run in runs] for name, runs in figures.items()}}
        for figure, label in FIGURES.items()
    }
    save(bars(panels, title), folder)
    print(f"\ntable.csv and report.png are in {folder}")


def main(arguments: list[str] | None = None) -> None:
    """Measure what the output folder lacks, then report."""
    command = parser()
    values = command.parse_args(underscored(sys.argv[1:] if arguments is None else arguments)).as_dict()
    methods = with_strengths(chosen_methods(values.pop("methods")), values.pop("strengths"))
    quick, experiences = values.pop("quick"), values.pop("experiences")
    names = {item.name for item in fields(RunSettings)}
    settings = RunSettings(**{name: value for name, value in values.items() if name in names})
    settings = replace(settings, runs=settings.runs or ("0" if quick else "0-2"))
    if quick:  # shapes take longer to draw than to learn
        settings = replace(settings, **QUICK, feature_cache=f"{settings.output}/feature_cache")
    figures: dict[str, list[dict]] = {method.strategy: [] for method in methods}
    for run in settings.run_numbers():
        for method in methods:
            one = replace(settings, run=run, runs=None)
            found = measured(one, method, experiences)
            figures[method.strategy].append(found)
            print(
                f"run {run}, {method.strategy}: {found['class_incremental']:.1f} % class-incremental, "
                f"{found['task_incremental']:.1f} % task-incremental, forgetting {found['forgetting']:.1f} %",
                flush=True,
            )
    report(settings, figures)


if __name__ == "__main__":
    with safe_output():
        main()
