"""``crumb run``: learn a stream, print the accuracy after every experience, and write the run folder."""

import gc
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from crumb_avalanche.learner.run_file import LEARNER
from crumb_avalanche.runs import run_folder
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.recorder import Recorder, Resume, keep_learner, result_of
from crumb_avalanche.runs.session import (
    Session,
    Stream,
    describe,
    open_stream,
    trials_text,
)
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.tables import ledger_table, matrix_table, mean_text, usage_of
from crumb_avalanche.system.atomic_file import write_text
from crumb_avalanche.system.folder_lock import locked
from crumb_avalanche.system.process import (
    check_device,
    preserve_rng_state,
    set_up_process,
)
from crumb_avalanche.training.checkpoint import Position
from crumb_avalanche.training.ledger import LedgerMetric
from crumb_avalanche.training.plugins import TrainingDivergedError

Finished = Callable[[Path, RunPlan, Stream], object]


def main(settings: RunSettings, finished: Finished | None = None) -> None:
    """Do one run, or several with a summary.

    Args:
        settings: of the command.
        finished: called after each run.
    """
    plan = RunPlan.of(settings)
    for name in ("output", "feature_cache"):
        if (
            (value := getattr(plan, name))
            and Path(value).exists()
            and not Path(value).is_dir()
        ):
            kind = "a file" if Path(value).is_file() else "a pipe or a device"
            raise ValueError(f"{name} is {value}, which is {kind}; give a folder")
    numbers = plan.run_numbers()
    default = " (default for your own clips)" * (
        settings.preset is None and plan.preset == "recommended"
    )
    print(
        f"{plan.benchmark}: preset {plan.preset}{default}, strategy {plan.strategy}",
        flush=True,
    )
    if plan.runs is None:
        with locked(Path(plan.output)):
            result = run_once(plan, finished=finished)
        _print_results(plan, Path(plan.output))
        print(f"final accuracy {result['final_accuracy']:.2f} %")
        return
    run_folder.refuse_others(
        Path(plan.output),
        [run_folder.SUMMARY],
        {run_folder.SUMMARY: '"final_accuracy_mean"'},
    )
    accuracies = [
        _one_of_several(plan, number, finished)["final_accuracy"] for number in numbers
    ]
    spread = statistics.stdev(accuracies) if len(accuracies) > 1 else None
    summary = {
        "benchmark": plan.benchmark,
        "protocol": plan.protocol,
        "strategy": plan.strategy,
        "preset": plan.preset,
        "runs": numbers,
        "final_accuracy": accuracies,
        "final_accuracy_mean": statistics.fmean(accuracies),
        "final_accuracy_std": spread,
    }
    run_folder.write_json(Path(plan.output) / run_folder.SUMMARY, summary)
    count, kind = (
        ("1 run", "")
        if spread is None
        else (f"{len(numbers)} runs", " (mean, standard deviation)")
    )
    _print_results(plan, Path(plan.output) / f"run{numbers[0]}")
    print(
        f"{plan.strategy}, {count}: final accuracy {mean_text(accuracies, '.2f')} %{kind}"
    )


def _print_results(plan: RunPlan, folder: Path) -> None:
    """Print where the results are, and how to use what was learned in the folder of a run."""
    usage = usage_of(folder, str(plan.strategy))
    print(
        f"\nresults in {plan.output}; see also: crumb report {plan.output}",
        *usage,
        sep="\n",
    )
    if (folder / run_folder.MISTAKES).exists():
        print(f"mistakes, and what would help: {folder / run_folder.MISTAKES}")


def _one_of_several(
    plan: RunPlan, number: int, finished: Finished | None = None
) -> dict:
    """Return the result of one of several runs; do the run unless its folder holds a finished one."""
    folder = Path(plan.output) / f"run{number}"
    one = replace(plan, run=number, runs=None, output=str(folder))
    if (folder / run_folder.RESULT).exists() and not plan.overwrite:
        result = run_folder.finished_result(folder, one)
        run_folder.tidy_up(folder)
        print(
            f"run {number}: already finished, final accuracy {result['final_accuracy']:.2f} %"
        )
        return result
    print(f"run {number}")
    with locked(folder):
        return run_once(one, finished=finished)


def run_once(
    plan: RunPlan,
    verbose: bool = True,
    finished: Finished | None = None,
    count_divergence: bool = False,
) -> dict:
    """Do one run in this process and return the content of ``result.json``.

    Args:
        plan: plan of the run.
        verbose: whether to print the tables.
        finished: called with folder, plan and stream when all is written.
        count_divergence: whether a run that diverges after the first experience ends
            there, with the accuracy of its last finite weights on all classes, instead
            of raising ``TrainingDivergedError``.
    """
    try:
        return _run(plan, verbose, finished, count_divergence)
    finally:
        # free strategy, plugins and evaluator, which refer to each other, before the
        # next run
        gc.collect()


def _run(
    plan: RunPlan, verbose: bool, finished: Finished | None, count_divergence: bool
) -> dict:
    start, folder = time.perf_counter(), Path(plan.output)
    run_folder.claim(folder, plan.overwrite)
    check_device(plan.device)
    hashes = run_folder.provenance(plan)
    set_up_process(plan.threads, plan.run)
    stream = open_stream(plan)
    images, text = describe(stream)
    if verbose:
        print(text, flush=True)
    experiences = len(stream.benchmark.train_stream)
    recorder = Recorder(experiences, plan.progress)
    resume = Resume(
        folder,
        plan,
        {**hashes, "frames": stream.table.content_hash()},
        start,
        experiences,
    )
    with build_session(plan, stream, recorder, resume) as session:
        plan = replace(plan, runtime=session.plan.runtime)
        # Of an earlier run, after all checks have passed.
        for name in (run_folder.RESULT, LEARNER, run_folder.MISTAKES):
            (folder / name).unlink(missing_ok=True)
        # The learning rate as planned, not as tuned: repeating the run tunes it again.
        head = f"{run_folder.PLAN}{plan.sha256}\n# {session.model.runtime.described}\n"
        write_text(folder / "config.yaml", f"{head}{plan}")
        try:
            learn(session, recorder.ledger, resume, count_divergence)
        finally:
            recorder.bar.close()
        ledger = recorder.write(folder, session, resume.progress)
        learned = (
            len(resume.progress.ledgers)
            if resume.progress.diverged is None
            else resume.progress.diverged + 1
        )
        keep_learner(folder, session, learned)
        result = run_folder.with_digests(
            folder, result_of(plan, session, resume) | images | {"provenance": hashes}
        )
    run_folder.write_json(folder / run_folder.RESULT, result)
    run_folder.tidy_up(folder)
    if verbose:
        print(
            matrix_table(
                resume.progress.matrix,
                resume.progress.accuracy_after,
                joint=session.entry.joint,
            )
        )
        print(ledger_table(ledger))
    if finished is not None:
        finished(folder, plan, stream)
    return result


def build_session(
    plan: RunPlan, stream: Stream, recorder: Recorder, resume: Resume
) -> Session:
    """Build the session of a run, with the learning rate and state of a checkpoint if one is found."""
    progress = resume.progress
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No loggers specified")
        session = Session.build(
            # What ran F before, which ``auto`` might not choose again.
            replace(plan, runtime=resume.runtime.partition(" ")[0] or plan.runtime),
            stream,
            plugins=recorder.plugins,
            evaluator=recorder.evaluator,
            trials=progress.trials if resume.found else None,
        )
    if not resume.found:
        progress.trials, progress.tuning_seconds = (
            session.trials,
            session.tuning_seconds,
        )
    if session.plan.runtime != "torch":
        print(session.model.runtime.described, flush=True)
    if progress.trials:
        print(trials_text(progress.trials))
    recorder.ledger.storage_policy = getattr(session.strategy, "storage_policy", None)
    if resume.found:
        print(
            f"resuming: {resume.position.described(len(stream.benchmark.train_stream))}",
            flush=True,
        )
    resume.attach(session.strategy)
    return session


def learn(
    session: Session, ledger: LedgerMetric, resume: Resume, count_divergence: bool
) -> None:
    """Train on each remaining experience and evaluate on all classes seen so far.

    Adds the results to ``resume.progress`` and writes a checkpoint after each
    experience. The number of evaluations does not change what is learned. A run that
    diverges and counts is evaluated on the classes of all experiences.
    """
    plan, strategy, benchmark, joint = (
        session.plan,
        session.strategy,
        session.stream.benchmark,
        session.entry.joint,
    )
    loader = {"num_workers": plan.workers}
    progress = resume.progress
    count = len(benchmark.train_stream)
    for number in range(resume.position.experience, count):
        experience = benchmark.train_stream[number]
        try:
            strategy.train(experience, eval_streams=[], shuffle=joint, **loader)
        except TrainingDivergedError as error:
            if not count_divergence or number == 0:
                raise
            print(f"{error}; the run ends here and counts")
            progress.diverged = number
            progress.matrix += [[]] * (count - 1 - number)
            progress.accuracy_after += [None] * (count - 1 - number)
            progress.ledgers += [ledger.result()] * (count - 1 - number)
            number = count - 1
        of_each, of_all, found = [], None, "not tested"
        if number in (0, count - 1) or (number + 1) % plan.evaluate_every == 0:
            # The joint learner has seen every class after its one experience.
            seen = (
                benchmark.test_stream if joint else benchmark.test_stream[: number + 1]
            )
            with preserve_rng_state():
                metrics = strategy.eval(seen, **loader)
            of_each = [
                100 * accuracy_on(metrics, test.current_experience) for test in seen
            ]
            of_all = 100 * accuracy_on(metrics)
            each = " ".join(f"{value:.0f}" for value in of_each)
            found = f"{of_all:6.2f} % over all seen classes (by experience: {each})"
        progress.matrix.append(of_each)
        progress.accuracy_after.append(of_all)
        progress.ledgers.append(ledger.result())
        if progress.diverged is None:
            resume.save(Position(number + 1))
        print(f"after experience {number + 1}/{count}: {found}", flush=True)
        if progress.diverged is not None:
            return


def accuracy_on(metrics: dict, experience: int | None = None) -> float:
    """Return the accuracy on one test experience, or on the stream, for any task label in Avalanche's key."""
    start, end = (
        ("Top1_Acc_Stream/eval", "")
        if experience is None
        else ("Top1_Acc_Exp/eval", f"/Exp{experience:03d}")
    )
    return next(
        value
        for key, value in metrics.items()
        if key.startswith(start) and key.endswith(end)
    )
