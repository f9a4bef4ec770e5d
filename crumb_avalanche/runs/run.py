"""``crumb run``: learn a stream, write the run folder, print the accuracy after every experience."""

import json
import statistics
import sys
import time
import traceback
import warnings
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import yaml
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.training.plugins import EvaluationPlugin
from torch import nn

from crumb_avalanche.baselines.registry import build_strategy, get_strategy
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.weights import save_safetensors
from crumb_avalanche.runs import build, tuning
from crumb_avalanche.runs.predictions import PredictionsPlugin
from crumb_avalanche.runs.progress import ProgressPlugin
from crumb_avalanche.runs.provenance import made_from
from crumb_avalanche.runs.resume import Resume
from crumb_avalanche.runs.run_folder import (
    INTERRUPTED,
    RESULT,
    DamagedRunError,
    FinishedRunError,
    claim,
    metrics_csv,
    tidy_up,
    write_json,
    write_matrix,
    write_text,
    write_yaml,
)
from crumb_avalanche.runs.settings import NO_PART_OF_THE_RESULT, RunSettings, as_dict
from crumb_avalanche.runs.tables import ledger_table, matrix_table, mean_text
from crumb_avalanche.system.folder_lock import locked
from crumb_avalanche.system.rng_state import preserve_rng_state
from crumb_avalanche.system.tensor_file import write_state
from crumb_avalanche.training.checkpoint_plugin import Position
from crumb_avalanche.training.feature_cache import FeatureCache
from crumb_avalanche.training.ledger import LedgerMetric
from crumb_avalanche.training.stream_strategy import StreamStrategy


def main(settings: RunSettings) -> None:
    """Do one run, or several with a summary."""
    settings = settings.resolved()
    for name in ("output", "feature_cache"):
        if (value := getattr(settings, name)) and Path(value).is_file():
            raise ValueError(f"{name} is {value}, which is a file; give a folder")
    numbers = settings.run_numbers()
    if settings.runs is None:
        with locked(Path(settings.output)):
            result = run_once(settings)
        print(f"\nresults in {settings.output}; see also: crumb report {settings.output}")
        print(f"final accuracy {result['final_accuracy']:.2f} %")
        return
    accuracies = []
    for number in numbers:
        folder = Path(settings.output) / f"run{number}"
        if (folder / RESULT).exists() and not settings.overwrite:
            result = finished_result(folder, replace(settings, run=number, runs=None, output=str(folder)))
            tidy_up(folder)
            print(f"run {number}: already finished, final accuracy {result['final_accuracy']:.2f} %")
        else:
            print(f"run {number}")
            with locked(folder):
                result = run_once(replace(settings, run=number, runs=None, output=str(folder)))
        accuracies.append(result["final_accuracy"])
    spread = statistics.stdev(accuracies) if len(accuracies) > 1 else None
    summary = {
        "benchmark": settings.benchmark,
        "protocol": settings.protocol,
        "strategy": settings.strategy,
        "preset": settings.preset,
        "runs": numbers,
        "final_accuracy": accuracies,
        "final_accuracy_mean": statistics.fmean(accuracies),
        "final_accuracy_std": spread,
    }
    write_json(Path(settings.output) / "summary.json", summary)
    count, kind = ("1 run", "") if spread is None else (f"{len(numbers)} runs", " (mean, standard deviation)")
    print(f"\n{settings.strategy}, {count}: final accuracy {mean_text(accuracies, '.2f')} %{kind}")


def finished_result(folder: Path, settings: RunSettings) -> dict:
    """The result of a finished run, if it was made with the same settings and from the same files.

    Raises:
        FinishedRunError: it was made with others, or does not say with which.
        DamagedRunError: a file of it cannot be read.
    """
    if not (folder / "config.yaml").exists():
        raise FinishedRunError(f"{folder} holds a {RESULT} without its config.yaml; restore it, or take both away")
    result = read_mapping(folder / RESULT, json.loads)
    config = read_mapping(folder / "config.yaml", yaml.safe_load)
    then = {"strategy_config": result.get("strategy_settings"), **result.get("made_from", {})}
    now = made_from(settings)
    for name, value in as_dict(settings).items():
        by_content = then.get(name) is not None and name in now
        if name in NO_PART_OF_THE_RESULT and not by_content:
            continue
        old, new = (then[name], now[name]) if by_content else (config.get(name), value)
        if old != new and by_content and name == "dataset_root":
            raise FinishedRunError(
                f"{folder} holds a finished run of other clips: below {value} some were added, removed or changed "
                "since; use another --output, or start over with crumb run --overwrite true"
            )
        if old != new:
            raise FinishedRunError(
                f"{folder} holds a finished run with {name}={old!r}, not {new!r}"
                f"{' (what decides is what is in it, not where it lies)' * by_content}; use another --output, or start "
                "over with crumb run --overwrite true"
            )
    return result


def read_mapping(path: Path, parse) -> dict:
    """Names and values out of a file of a finished run."""
    try:
        found = parse(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        found, reason = None, " ".join(str(error).split())
    else:
        reason = f"it holds a {type(found).__name__}, not names and values"
    if not isinstance(found, dict):
        raise DamagedRunError(f"{path} is damaged ({reason}); restore it, or run it again with --overwrite true")
    return found


def run_once(settings: RunSettings, verbose: bool = True) -> dict:
    """One run in this process; returns what ``result.json`` holds, and prints the tables if ``verbose``.

    Raises:
        ValueError: settings, images or weights that cannot be used; says what to change.
    """
    folder = Path(settings.output)
    start = time.perf_counter()
    entry = get_strategy(settings.strategy)
    claim(folder, settings.overwrite)
    build.check_device(settings.device)
    given, files = settings, made_from(settings)
    build.set_up_process(settings.threads, settings.run)
    stream = build.build_stream(settings, settings.run, entry.joint)
    benchmark = stream.benchmark
    images, told = build.frames_of(stream)
    if verbose:
        print(told, flush=True)
    model = build.build_model(settings, benchmark.n_classes, entry.codebook).to(settings.device)
    model.set_precision(settings.precision)
    if not settings.pretrained:
        calibrate(model, benchmark.train_stream[0].dataset, settings.codebook_init, settings.run)
    if settings.compile:
        model.compile()
    mem_size = build.memory_size(settings, entry, model, stream.entry, benchmark.n_classes)

    plugins = []
    cache = None
    if settings.feature_cache:
        cache = FeatureCache(
            settings.feature_cache,
            model,
            len(stream.table),
            stream.images_key,
            settings.workers,
            settings.progress,
            settings.cache_precision == "fp16",
            mem_size,
        )
        plugins.append(cache)
    resume = Resume(folder, settings, {**files, "frames": stream.table.content_hash()}, start)
    progress = resume.progress
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No loggers specified")  # metrics.csv is written at the end
        if not resume.found:
            tuning_start = time.perf_counter()
            progress.trials = tuning.trials(settings, stream, model, mem_size, plugins)
            progress.tuning_seconds = time.perf_counter() - tuning_start if progress.trials else 0.0
        if progress.trials:
            print(tuning.described(progress.trials))
            settings = replace(settings, learning_rate=progress.trials[0].learning_rate)
        predictions = PredictionsPlugin()
        bar = ProgressPlugin(len(benchmark.train_stream), settings.progress)
        ledger = LedgerMetric()
        evaluator = EvaluationPlugin(
            accuracy_metrics(experience=True, stream=True), loss_metrics(experience=True), ledger, loggers=[]
        )
    strategy = build_strategy(
        settings.strategy,
        model,
        build.learning_settings(settings, stream.entry),
        mem_size,
        settings.run,
        settings.device,
        build.strategy_settings(settings),
        plugins=[*plugins, bar, predictions],
        evaluator=evaluator,
    )
    ledger.storage_policy = getattr(strategy, "storage_policy", None)
    model.quantized_evaluation = settings.evaluate_quantized
    resume.attach(strategy)
    # All that can be refused has been looked at: from here on it is this run that the folder is of.
    (folder / RESULT).unlink(missing_ok=True)
    write_yaml(folder / "config.yaml", as_dict(given))
    try:
        learn(strategy, benchmark, entry.joint, settings, folder, ledger, resume)
    except BaseException:
        # Whatever goes wrong, what was learned so far is kept.
        bar.close()
        keep_interrupted(folder / INTERRUPTED, strategy)
        raise
    metrics_csv(folder / "metrics.csv", evaluator)
    predictions.write(folder, np.concatenate([list(test.dataset.frame_row) for test in benchmark.test_stream]))
    matrix, accuracy_after, ledgers = progress.matrix, progress.accuracy_after, progress.ledgers
    write_matrix(folder / "accuracy_matrix.csv", matrix)
    ledgers[-1]["feature_cache_seconds"] = cache.seconds if cache else 0.0
    ledgers[-1]["feature_cache_images_filled"] = cache.filled if cache else 0
    write_json(folder / "ledger.json", {**ledgers[-1], "after_experience": ledgers})
    result = {
        "benchmark": settings.benchmark,
        "protocol": settings.protocol,
        "strategy": settings.strategy,
        "strategy_settings": files["strategy_config"],
        "made_from": files,
        "family": settings.family,
        "preset": settings.preset,
        "learning_rate": settings.learning_rate,
        "learning_rate_trials": [asdict(trial) for trial in progress.trials],
        "tuning_seconds": progress.tuning_seconds,
        "run": settings.run,
        "final_accuracy": accuracy_after[-1],
        "accuracy_after": accuracy_after,
        "final_accuracy_per_experience": matrix[-1],
        "classes_order": [benchmark.class_names[label] for label in benchmark.classes_order],
        "classes_per_experience": [len(test.classes_in_this_experience) for test in benchmark.test_stream],
        **images,
        "mem_size": mem_size,
        "feature_scale": float(model.feature_scale),
        "bad_frames_skipped": len(stream.bad_frames),
        "bad_frames": stream.bad_frames,
        "frame_table_sha256": stream.table.content_hash(),
        "seconds": resume.seconds,
        "versions": build.versions(),
    }
    write_json(folder / RESULT, result)
    tidy_up(folder)  # no checkpoint is needed any more, nor what an earlier attempt left
    if verbose:
        print(matrix_table(matrix, accuracy_after, joint=entry.joint))
        print(ledger_table(ledgers[-1]))
    return result


def learn(
    strategy: StreamStrategy,
    benchmark,
    joint: bool,
    settings: RunSettings,
    folder: Path,
    ledger: LedgerMetric,
    resume: Resume,
) -> None:
    """Train on each experience from where the run is, and evaluate on all classes seen so far.

    The findings go into ``resume.progress``, and a checkpoint is written after each experience. What is learned does
    not depend on how often it is tested.
    """
    loader = {"num_workers": settings.workers}
    progress = resume.progress
    count = len(benchmark.train_stream)
    for number in range(resume.position.experience, count):
        experience = benchmark.train_stream[number]
        strategy.train(experience, eval_streams=[], shuffle=joint, **loader)
        of_each, of_all, found = [], None, "not tested"
        if number in (0, count - 1) or (number + 1) % settings.evaluate_every == 0:
            # The joint learner has seen every class after its one experience.
            seen = benchmark.test_stream if joint else benchmark.test_stream[: number + 1]
            with preserve_rng_state():
                metrics = strategy.eval(seen, **loader)
            of_each = [100 * accuracy_on(metrics, test.current_experience) for test in seen]
            of_all = 100 * next(value for key, value in metrics.items() if key.startswith("Top1_Acc_Stream/eval"))
            found = f"{of_all:6.2f} % of all seen classes ({' '.join(f'{value:.0f}' for value in of_each)})"
        progress.matrix.append(of_each)
        progress.accuracy_after.append(of_all)
        progress.ledgers.append(ledger.result())
        if settings.checkpoint:
            save_state(folder / "checkpoint", strategy)
        resume.save(Position(number + 1))
        print(f"after experience {number + 1}/{count}: {found}", flush=True)


def accuracy_on(metrics: dict, experience: int) -> float:
    """Accuracy on one test experience; the task label in the middle of Avalanche's key does not matter."""
    return next(
        value
        for key, value in metrics.items()
        if key.startswith("Top1_Acc_Exp/eval") and key.endswith(f"/Exp{experience:03d}")
    )


def keep_interrupted(folder: Path, strategy) -> None:
    """Weights, buffer and the error that is being handled; a disk that takes no more does not hide that error."""
    reason = traceback.format_exc()
    try:
        write_text(folder / "error.txt", reason)
        save_state(folder, strategy)
    except OSError as error:
        print(f"what was learned so far could not be kept in {folder}: {error}", file=sys.stderr)


def save_state(folder: Path, strategy) -> None:
    """Weights and buffer as they are now."""
    model: nn.Module = strategy.model
    save_safetensors(folder / "model.safetensors", model.state_dict(), {"format": "crumb-state-1"})
    policy = getattr(strategy, "storage_policy", None)
    if policy is not None:
        write_state(folder / "buffer.safetensors", policy.state_dict(), {"format": "crumb-buffer-2"})
