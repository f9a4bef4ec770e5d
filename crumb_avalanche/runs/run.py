"""``crumb run``: learn a stream, print accuracies, and write the run folder."""

import gc
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from benchmarks_toybox_ilab.tables.atomic_file import write_text
from crumb_avalanche.methods.run_header import LEARNER
from crumb_avalanche.runs import run_folder
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.recorder import Recorder, keep_learner, run_result
from crumb_avalanche.runs.resume import Progress, Resume
from crumb_avalanche.runs.session import PreparedRun, Session, trials_text
from crumb_avalanche.runs.settings import RuntimeName
from crumb_avalanche.runs.stream import Stream, describe_stream, open_stream
from crumb_avalanche.runs.tables import (
    ledger_table,
    matrix_table,
    mean_text,
    print_budget,
    print_left_out,
    usage_of,
)
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


def main(
    plan: RunPlan, finished: Finished | None = None, default_preset: bool = False
) -> None:
    """Do one run, or several with a summary.

    Args:
        plan: of the run, or of the several runs that ``plan.runs`` numbers.
        finished: called after each run.
        default_preset: whether the preset was chosen because none was given, which is
            printed for own clips.
    """
    for name in ("output", "feature_cache"):
        _check_is_folder(name, getattr(plan, name))  # raises for a file
    note = ""
    if default_preset and plan.preset == "recommended":
        note = " (default for your own clips)"
    print(
        f"{plan.benchmark}: preset {plan.preset}{note}, strategy {plan.strategy}",
        flush=True,
    )
    if plan.runs is None:
        _do_only_run(plan, finished)
    else:
        _do_several_runs(plan, finished)


def _check_is_folder(setting: str, path: str | None) -> None:
    """Raise ValueError if the path of a setting exists and is no folder."""
    if path and Path(path).exists() and not Path(path).is_dir():
        kind = "a file" if Path(path).is_file() else "a pipe or a device"
        raise ValueError(f"{setting} is {path}, which is {kind}; give a folder")


def _do_only_run(plan: RunPlan, finished: Finished | None) -> None:
    """Do the only run of a command and print where its results are."""
    output = Path(plan.output)
    with locked(output):
        result = run_once(plan, finished=finished)
    _print_results(plan, output)
    print(f"final accuracy {result['final_accuracy']:.2f} %")


def _do_several_runs(plan: RunPlan, finished: Finished | None) -> None:
    """Do the runs that are not finished yet; write and print a summary of all.

    Args:
        plan: of all runs, which ``plan.runs`` numbers; each has a folder ``runNUMBER``
            in ``plan.output``.
        finished: called after each run that is done now.
    """
    output = Path(plan.output)
    summary_mark = '"final_accuracy_mean"'  # by which the file of a summary is known
    run_folder.refuse_foreign_files(
        output, [run_folder.SUMMARY], {run_folder.SUMMARY: summary_mark}
    )
    numbers = plan.run_numbers()
    accuracies = []
    for number in numbers:
        result = _numbered_run(plan, number, finished)
        accuracies.append(result["final_accuracy"])
    has_deviation = len(numbers) > 1
    summary = {
        "benchmark": plan.benchmark,
        "protocol": plan.protocol,
        "strategy": plan.strategy,
        "preset": plan.preset,
        "runs": numbers,
        "final_accuracy": accuracies,
        "final_accuracy_mean": statistics.fmean(accuracies),
        "final_accuracy_std": statistics.stdev(accuracies) if has_deviation else None,
    }
    run_folder.write_json(output / run_folder.SUMMARY, summary)
    _print_results(plan, output / f"run{numbers[0]}")
    mean = mean_text(accuracies, ".2f")
    if has_deviation:
        runs = (
            f"{len(numbers)} runs: final accuracy {mean} % (mean, standard deviation)"
        )
    else:
        runs = f"1 run: final accuracy {mean} %"
    print(f"{plan.strategy}, {runs}")


def _print_results(plan: RunPlan, folder: Path) -> None:
    """Print where the results are, and how to use what the run of a folder learned."""
    print(f"\nresults in {plan.output}; see also: crumb report {plan.output}")
    for line in usage_of(folder, str(plan.strategy)):
        print(line)
    mistakes = folder / run_folder.MISTAKES
    if mistakes.exists():
        print(f"mistakes, and what would help: {mistakes}")


def _numbered_run(
    plan: RunPlan, number: int, finished: Finished | None = None
) -> dict[str, Any]:
    """Return the result of one of the several runs of a command, by its number.

    The run is done unless its folder ``runNUMBER`` holds a finished one.

    Args:
        plan: of all runs; the folder of the run lies in ``plan.output``.
        number: of the run, which seeds it.
        finished: called after the run if it is done now.

    Raises:
        FinishedRunError: the folder holds a finished run of other settings.
    """
    folder = Path(plan.output) / f"run{number}"
    own_plan = replace(plan, run=number, runs=None, output=str(folder))
    if (folder / run_folder.RESULT).exists() and not plan.overwrite:
        run_folder.check_finished(folder, own_plan)
        result = run_folder.read_result(folder)
        run_folder.remove_checkpoints(folder)
        accuracy = result["final_accuracy"]
        print(f"run {number}: already finished, final accuracy {accuracy:.2f} %")
        return result
    print(f"run {number}")
    with locked(folder):
        return run_once(own_plan, finished=finished)


def run_once(
    plan: RunPlan,
    verbose: bool = True,
    finished: Finished | None = None,
    count_divergence: bool = False,
) -> dict[str, Any]:
    """Do one run in this process and return the content of ``result.json``.

    Args:
        plan: plan of the run.
        verbose: whether to print the tables.
        finished: called with folder, plan and stream when all else is written.
        count_divergence: whether a run that diverges after the first experience ends
            there, with the accuracy of its last finite weights on all classes, instead
            of raising ``TrainingDivergedError``.
    """
    try:
        return _do_steps_of_run(plan, verbose, finished, count_divergence)
    finally:
        # Free strategy, plugins and evaluator, which refer to each other, before the
        # next run.
        gc.collect()


def _do_steps_of_run(
    plan: RunPlan, verbose: bool, finished: Finished | None, count_divergence: bool
) -> dict[str, Any]:
    """Do a run from its plan to its folder; return the content of ``result.json``.

    Args:
        plan: of the run; ``plan.output`` is its folder.
        verbose: whether to print the tables.
        finished: called with folder, plan and stream when all else is written.
        count_divergence: whether a run that diverges after the first experience ends
            there and counts, instead of raising ``TrainingDivergedError``.
    """
    start = time.perf_counter()
    folder = Path(plan.output)
    run_folder.claim(folder, plan.overwrite)  # raises if it is not to be written to
    check_device(plan.device)  # raises if this computer has none
    hashes = run_folder.provenance(plan)  # of the input files
    set_up_process(plan.threads, plan.run)
    stream = open_stream(plan)
    stream_values, description = describe_stream(stream)
    if verbose:
        print(description, flush=True)
    n_experiences = len(stream.benchmark.train_stream)
    recorder = Recorder(n_experiences, plan.progress)
    inputs = {**hashes, "frames": stream.table.content_hash()}
    # Reads the latest checkpoint of the same plan and inputs, if there is one.
    resume = Resume(folder, plan, inputs, start, n_experiences)
    with build_session(plan, stream, recorder, resume) as session:
        plan = replace(plan, runtime=session.plan.runtime)
        _begin_folder(folder, plan, session)
        try:
            learn_stream(session, recorder.ledger, resume, count_divergence)
        finally:
            recorder.bar.close()
        progress = resume.progress
        ledger = recorder.write(folder, session, progress)
        n_learned = len(progress.ledgers)
        if progress.diverged is not None:  # ledgers of what it left out follow
            n_learned = progress.diverged + 1
        keep_learner(folder, session, n_learned)
        result = run_result(plan, session, resume)
        result |= {**stream_values, "provenance": hashes}
        result = run_folder.with_digests(folder, result)  # of the files of the run
    if finished is not None:
        finished(folder, plan, stream)
    # Written last: its presence means that the run is done.
    run_folder.write_json(folder / run_folder.RESULT, result)
    run_folder.remove_checkpoints(folder)
    if verbose:
        joint = session.entry.joint
        print(matrix_table(progress.matrix, progress.accuracy_after, joint=joint))
        print(ledger_table(ledger))
        print_budget(ledger, result)
        print_left_out(result)
    return result


def _begin_folder(folder: Path, plan: RunPlan, session: Session) -> None:
    """Remove what an earlier run left, after all checks, and write ``config.yaml``.

    The plan has the learning rate as planned, not as tuned: repeating the run tunes it
    again. It overwrites nothing, so that an interrupted run goes on with it.
    """
    for name in (run_folder.RESULT, LEARNER, run_folder.MISTAKES):
        (folder / name).unlink(missing_ok=True)
    comments = f"{run_folder.PLAN}{plan.sha256}\n# {session.model.runtime.described}\n"
    repeated = replace(plan, overwrite=False)
    write_text(folder / run_folder.CONFIG, f"{comments}{repeated}")


def build_session(
    plan: RunPlan, stream: Stream, recorder: Recorder, resume: Resume
) -> Session:
    """Build the session of a run.

    It has the learning rate and the state of the checkpoint if there is one.

    Args:
        plan: of the run.
        stream: of the plan.
        recorder: its plugins and its evaluator are those of the strategy; its ledger
            gets the strategy's storage policy.
        resume: gets the strategy, and the trials of the learning rate, in place.
    """
    progress = resume.progress
    is_resuming = resume.checkpoint is not None
    # What ran F before, which ``auto`` might not choose again.
    runtime = plan.runtime
    if resume.runtime:
        runtime_name, _, _ = resume.runtime.partition(" ")  # and its version
        runtime = cast(RuntimeName, runtime_name)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No loggers specified")
        prepared = PreparedRun.of(replace(plan, runtime=runtime), stream)
        session = Session.of(
            prepared,
            plugins=recorder.plugins,
            evaluator=recorder.evaluator,
            trials=progress.trials if is_resuming else None,
        )
    if not is_resuming:
        progress.trials = session.trials
        progress.tuning_seconds = session.tuning_seconds
    if session.plan.runtime != "torch":
        print(session.model.runtime.described, flush=True)
    if progress.trials:
        print(trials_text(progress.trials))
    # The ledger counts the bytes of the memories in it.
    recorder.ledger.storage_policy = getattr(session.strategy, "storage_policy", None)
    if is_resuming:
        n_experiences = len(stream.benchmark.train_stream)
        print(f"resuming: {resume.position.described(n_experiences)}", flush=True)
    resume.attach(session.strategy)
    return session


def learn_stream(
    session: Session, ledger: LedgerMetric, resume: Resume, count_divergence: bool
) -> None:
    """Train on each remaining experience and evaluate on all classes seen so far.

    Adds the results to ``resume.progress`` and writes a checkpoint after each
    experience. The number of evaluations does not change what is learned. A run that
    diverges and counts is evaluated on the classes of all experiences.

    Args:
        session: with the strategy in the state that ``resume.position`` says.
        ledger: the metric of bytes and seconds that the strategy's evaluator holds.
        resume: of the run.
        count_divergence: whether a run that diverges after the first experience ends
            there and counts.

    Raises:
        TrainingDivergedError: training diverged, and the run does not count.
    """
    progress = resume.progress
    n_experiences = len(session.stream.benchmark.train_stream)
    for number in range(resume.position.experience, n_experiences):
        try:
            train_on(session, number)
        except TrainingDivergedError as error:
            if not count_divergence or number == 0:
                raise
            print(f"{error}; the run ends here and counts")
            progress.diverged = number
            finish_diverged(session, ledger, progress)
            return
        accuracy = SeenAccuracy()  # not tested
        if is_tested_after(number, n_experiences, session.plan.evaluate_every):
            accuracy = evaluate(session, number)
        note(accuracy, ledger, progress)
        resume.save(Position(number + 1))
        print_accuracy(accuracy, number, n_experiences)


def train_on(session: Session, number: int) -> None:
    """Train on an experience, whose number counts from 0."""
    session.strategy.train(
        session.stream.benchmark.train_stream[number],
        eval_streams=[],
        shuffle=session.entry.joint,  # a stream is learned in its order
        num_workers=session.plan.workers,
    )


def is_tested_after(number: int, n_experiences: int, evaluate_every: int) -> bool:
    """Whether a run is tested after an experience: the first, the last or an n-th."""
    if number in (0, n_experiences - 1):
        return True
    return (number + 1) % evaluate_every == 0


def finish_diverged(session: Session, ledger: LedgerMetric, progress: Progress) -> None:
    """Note the results of a run that diverged in ``progress.diverged``, and counts.

    That experience and the next ones are not tested, but the last one is, as if the run
    had come to it.
    """
    assert progress.diverged is not None, "it diverged"
    n_experiences = len(session.stream.benchmark.train_stream)
    last_number = n_experiences - 1
    for _ in range(progress.diverged, last_number):
        note(SeenAccuracy(), ledger, progress)  # not tested
    accuracy = evaluate(session, last_number)
    note(accuracy, ledger, progress)
    print_accuracy(accuracy, last_number, n_experiences)


def note(accuracy: "SeenAccuracy", ledger: LedgerMetric, progress: Progress) -> None:
    """Add the accuracy after an experience, and the ledger of then, to the progress."""
    progress.matrix.append(accuracy.of_each)
    progress.accuracy_after.append(accuracy.of_all)
    progress.ledgers.append(ledger.result())


def print_accuracy(accuracy: "SeenAccuracy", number: int, n_experiences: int) -> None:
    """Print the accuracy after an experience, whose number counts from 0."""
    print(f"after experience {number + 1}/{n_experiences}: {accuracy}", flush=True)


@dataclass(frozen=True)
class SeenAccuracy:
    """Accuracy on the classes seen so far, in percent.

    Attributes:
        of_each: on the test images of each experience; empty if it was not tested.
        of_all: on all of them; ``None`` if it was not tested.
    """

    of_each: list[float] = field(default_factory=list)
    of_all: float | None = None

    def __str__(self) -> str:
        if self.of_all is None:
            return "not tested"
        accuracies = " ".join(f"{value:.0f}" for value in self.of_each)
        over_all = f"{self.of_all:6.2f} % over all seen classes"
        return f"{over_all} (by experience: {accuracies})"


def evaluate(session: Session, number: int) -> SeenAccuracy:
    """Test on the classes of all experiences up to ``number``, which counts from 0.

    The RNG states do not change.

    Args:
        session: with the strategy, and the stream whose test images are shown.
        number: of the last experience that was learned.

    Returns:
        The accuracy in percent on the test images of each experience, and on all.
    """
    experiences = session.stream.benchmark.test_stream
    if not session.entry.joint:  # which has seen every class after its one experience
        experiences = experiences[: number + 1]
    with preserve_rng_state():
        metrics = session.strategy.eval(experiences, num_workers=session.plan.workers)
    accuracies = []
    for test in experiences:
        accuracies.append(100 * accuracy_on(metrics, test.current_experience))
    return SeenAccuracy(accuracies, 100 * accuracy_on(metrics))


def accuracy_on(metrics: dict[str, float], experience: int | None = None) -> float:
    """Return the accuracy on one test experience, or on the stream, from 0 to 1.

    Args:
        metrics: of an evaluation, by Avalanche's names, which hold a task label.
        experience: number of the experience; ``None`` for the stream.
    """
    if experience is None:
        start = "Top1_Acc_Stream/eval"
        end = ""
    else:
        start = "Top1_Acc_Exp/eval"
        end = f"/Exp{experience:03d}"
    for name, accuracy in metrics.items():
        if name.startswith(start) and name.endswith(end):
            return accuracy
    raise KeyError(f"no metric begins with {start} and ends with {end}")
