"""Files of a run folder, and whether a finished run is what is asked for.

They are written atomically, and say where a run came from.
"""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.tables.atomic_file import write_text
from benchmarks_toybox_ilab.tables.csv import csv_text
from benchmarks_toybox_ilab.tables.disk import add_rest, files_digest
from crumb_avalanche.runs.frames import FrameSource, open_frames
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import CLIPS, flat, load_yaml, result_settings
from crumb_avalanche.system.named_values import without
from crumb_avalanche.system.process import cpu_name
from crumb_avalanche.system.value_types import (
    PLAIN_VALUES,
    check,
    each,
    maybe,
    real,
    record,
    table,
    text,
    whole,
)

RESULT = "result.json"
CONFIG = "config.yaml"
SUMMARY = "summary.json"  # of several runs
RESUME = "resume"  # subfolder of checkpoints
MISTAKES = "mistakes.html"
RECORDS = (
    CONFIG,
    "metrics.csv",
    "accuracy_matrix.csv",
    "ledger.json",
    "predictions.npz",
)
_FILES = "files"  # entry of a result: SHA-256 of the other files
_RESULT_SHA256 = "result_sha256"  # entry of a result: of all others
DIGESTS = (_FILES, _RESULT_SHA256)
PLAN = "# sha256 of the plan: "  # begins a config.yaml
# Texts by which a run's files are known.
MARKS = {CONFIG: PLAN, RESULT: f'"{_RESULT_SHA256}"'}
FRAMES = "frame_table_sha256"  # entry of a result
IMAGES = "images"  # entry of a provenance: content of all images of a clip folder
PERCENT = real(0, 100)
# What is read of a result, and of the settings.
RESULT_SCHEMA = record(
    further=True,
    run=whole(),
    final_accuracy=PERCENT,
    accuracy_after=each(maybe(PERCENT)),
    final_accuracy_per_experience=each(PERCENT),
    provenance=table(text(), text()),
    bad_frames=each(str),
    **{
        FRAMES: text(),
        "classes_order?": each(str),
        "classes_per_experience?": each(whole()),
        "mem_size?": maybe(whole()),
        "budget_bytes?": maybe(whole()),
        "images?": table(text(), whole()),
        "bad_videos_skipped?": whole(),
        "emptied_classes?": each(str),
    },
)
SETTINGS_SCHEMA = record(
    further=True,
    benchmark=text(),
    protocol=text(),
    strategy=text(),
    preset=text(),
    **{"method?": maybe(PLAIN_VALUES)},
)
LIBRARIES = (
    "crumb-avalanche",
    "torch",
    "torchvision",
    "avalanche-lib",
    "numpy",
    "faiss-cpu",
    "timm",
)


class FinishedRunError(ValueError):
    """The output folder already holds a finished run."""


class DamagedRunError(ValueError):
    """A file of a finished run is missing, or was changed."""


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_csv(path: Path, rows: Iterable[Iterable]) -> None:
    """Write rows as CSV atomically.

    Texts that spreadsheets would take for formulas begin with an apostrophe.
    """
    write_text(path, csv_text(rows))


def with_digests(folder: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with the SHA-256 of the other files of the run and of itself.

    The learner file is not among them: it has checksums of its own, and may be taught
    on.
    """
    names = [name for name in RECORDS if (folder / name).is_file()]
    digests = {name: _file_sha256(folder / name) for name in names}
    result = {**result, _FILES: digests}
    return {**result, _RESULT_SHA256: _result_sha256(result)}


def read_result(folder: Path) -> dict[str, Any]:
    """Read the result of a finished run.

    Raises:
        DamagedRunError: a file of the run is missing, or not what the run wrote; says
            which.
    """
    path = folder / RESULT  # the file that is checked, for the error
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(result, dict):
            raise ValueError("it holds no JSON object")
        # The result holds a SHA-256 of itself, and one of each other file of the run.
        _check_digest(result.get(_RESULT_SHA256), _result_sha256(result))
        for name, digest in result[_FILES].items():
            path = folder / name
            _check_digest(digest, _file_sha256(path))
        path = folder / RESULT
        check(RESULT_SCHEMA, result)  # raises for missing values and wrong types
        _check_accuracies(result)
    except (
        AttributeError,
        KeyError,
        OSError,
        RecursionError,  # JSON that is nested too deeply
        TypeError,
        ValueError,
    ) as error:
        reason = " ".join(str(error).split())[:300]
        if isinstance(error, FileNotFoundError):
            reason = "it is missing"
        raise DamagedRunError(
            f"{path} is not what the run wrote: {reason}. It was damaged or changed "
            "later; restore it, repeat the run "
            f"with --overwrite true, or move {folder} elsewhere"
        ) from error
    return result


def _check_digest(recorded: object, computed: str) -> None:
    """Raise ValueError if the SHA-256 of a file is not the one in the result."""
    if recorded != computed:
        raise ValueError(f"its SHA-256 is not the one in {RESULT}")


def _check_accuracies(result: dict[str, Any]) -> None:
    """Raise ValueError if a result's accuracies and numbers of classes do not agree."""
    accuracy_after = result["accuracy_after"]
    n_experiences = len(result["final_accuracy_per_experience"])
    class_counts = result.get("classes_per_experience", [1] * n_experiences)
    has_count_of_each = 0 < n_experiences == len(class_counts)
    # A joint learner has one accuracy, after all classes.
    is_joint_or_streamed = len(accuracy_after) in (1, n_experiences)
    is_consistent = has_count_of_each and class_counts[0] > 0 and is_joint_or_streamed
    if not is_consistent or accuracy_after[-1] != result["final_accuracy"]:
        raise ValueError("its accuracies and numbers of classes do not agree")


def read_settings(folder: Path) -> dict[str, Any]:
    """Read the settings of a run, those of the method as ``method.NAME``.

    Raises:
        ValueError: no run has such settings.
    """
    settings = load_yaml((folder / CONFIG).read_text(encoding="utf-8"))
    check(SETTINGS_SCHEMA, settings, "config")
    return flat(settings)


def _file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file of the run folder."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _result_sha256(result: dict[str, Any]) -> str:
    """Return the SHA-256 of all entries of a result but this one, in any order."""
    entries = without(result, _RESULT_SHA256)
    as_read = json.loads(json.dumps(entries))  # keys are texts then, tuples are lists
    return hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()


def claim(folder: Path, overwrite: bool) -> None:
    """Create a folder for a run; the files of an earlier run in it stay for now.

    A finished run needs no checkpoints, which an interruption may have left.

    Args:
        folder: of the run.
        overwrite: whether a finished run in it is to be replaced.

    Raises:
        FinishedRunError: it holds a finished run, which is not to be replaced.
        ValueError: it holds files of another program.
    """
    refuse_foreign_files(folder, names=(*RECORDS, RESULT, MISTAKES), marks=MARKS)
    if (folder / RESULT).exists() and not overwrite:
        remove_checkpoints(folder)
        raise FinishedRunError(
            f"{folder} already holds a finished run; choose another --output, or start "
            "over with --overwrite true"
        )
    folder.mkdir(parents=True, exist_ok=True)


def refuse_foreign_files(
    folder: Path, names: Sequence[str], marks: Mapping[str, str]
) -> None:
    """Refuse to replace the files of another program.

    Args:
        folder: that is to be written to.
        names: of the files that may be replaced.
        marks: a text by which each of some files is known, by its name.

    Raises:
        ValueError: the folder has one of the files, and none with its mark.
    """
    existing = [folder / name for name in names if (folder / name).exists()]
    is_ours = any(mark in _text_or_empty(folder / name) for name, mark in marks.items())
    if existing and not is_ours:
        raise ValueError(
            f"{existing[0]} exists and is of another program, so it stays as it is: "
            "choose another --output"
        )


def _text_or_empty(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a finished run, such as one killed at its end."""
    shutil.rmtree(folder / RESUME, ignore_errors=True)


def provenance(plan: RunPlan) -> dict[str, str]:
    """Hash the input files of a run.

    Returns:
        ``sha256:`` and a hash by the name of the setting. ``weights`` and
        ``pretrained``: tensors of the file (its bytes if it is not a ``.safetensors``
        file), if the setting is a file. ``dataset_root``: names and sizes of all images
        of a clip folder, also those taken out of videos; ``images``: their content.
    """
    hashes = {}
    for setting in ("weights", "pretrained"):
        value = getattr(plan, setting)
        if value is not None and Path(value).is_file():
            path = Path(value).resolve()
            status = path.stat()
            # Time and size are part of the cache's key: a changed file is read again.
            hashes[setting] = _cached_weights_hash(
                str(path), changed_ns=status.st_mtime_ns, size=status.st_size
            )
    if plan.benchmark == CLIPS:
        hashes |= _clip_hashes(plan)
    return hashes


def _clip_hashes(plan: RunPlan) -> dict[str, str]:
    """Hash the images of a run's clip folder: names and sizes, and contents.

    Args:
        plan: of the run: folder, number of the run, and how videos are read.

    Returns:
        ``sha256:`` and the hash of names and sizes as ``dataset_root``, and that of the
        contents as ``images``.
    """
    frames = open_frames(FrameSource.of(plan)).table
    assert frames.root is not None, "a clip folder has a root"
    names_and_sizes = hashlib.sha256()
    paths = []
    for name in frames.path:
        path = frames.root / name
        names_and_sizes.update(f"{name}\n{path.stat().st_size}\n".encode())
        paths.append(path)
    return {
        "dataset_root": f"sha256:{names_and_sizes.hexdigest()}",
        IMAGES: f"sha256:{files_digest(paths)}",
    }


@lru_cache(maxsize=256)
def _table_hash(source: FrameSource) -> str | None:
    """Hash the frame table of a run; ``None`` if its images are not on this machine.

    Cached for sweeps.
    """
    needs_root = get_benchmark(source.benchmark).needs_root
    if needs_root and not (source.root and Path(source.root).is_dir()):
        return None
    return open_frames(source).table.content_hash()


def versions() -> dict[str, str]:
    """Return what influences the last digits of a result.

    These are versions of libraries, the commit of a checkout, and the CPU.
    """
    installed = {}
    for library in LIBRARIES:
        try:
            installed[library] = version(library)
        except PackageNotFoundError:
            installed[library] = "not installed"
    return {**installed, "commit": commit_of_checkout(), "cpu": cpu_name()}


@lru_cache(maxsize=1)
def commit_of_checkout() -> str:
    """Return the first 8 digits of the commit that the package runs from.

    ``-dirty`` stands behind them where files differ.

    Empty if the package does not lie in a git checkout of its own, or git is not
    installed.
    """
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():
        return ""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    command += ["--abbrev=8", "--exclude=*"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout.strip()


@lru_cache(maxsize=64)
def _cached_weights_hash(path: str, changed_ns: int, size: int) -> str:
    """Hash a file of weights: ``sha256:`` and the hash of its tensors or bytes.

    Cached, because a sweep asks once for each of its runs.

    Args:
        path: of the file.
        changed_ns: its time of modification, so that a changed file is read again.
        size: its size in bytes, for the same reason.
    """
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        # Of a safetensors file, the metadata, whose order is random, are left out. Its
        # first 8 bytes are the length of the header.
        if path.endswith(".safetensors"):
            header_length = int.from_bytes(file.read(8), "little")
            try:
                is_damaged = header_length >= size
                header = json.loads(b"" if is_damaged else file.read(header_length))
                header.pop("__metadata__", None)
                digest.update(json.dumps(header, sort_keys=True).encode())
            except (ValueError, TypeError, AttributeError, RecursionError):
                file.seek(0)  # what reads the file says that it is damaged
        add_rest(digest, file)
    return f"sha256:{digest.hexdigest()}"


def check_finished(folder: Path, plan: RunPlan) -> None:
    """Raise unless a folder holds the finished run of a plan.

    Raises:
        DamagedRunError: a file of the run is missing, or not what the run wrote.
        FinishedRunError: its settings, input files or frames are not those of the plan.
    """
    result = read_result(folder)
    hashes = provenance(plan)
    # Settings that decide the result, by name.
    planned = result_settings(flat(vars(plan)))
    recorded = read_settings(folder)
    # A file is compared by its content, which may be at another path.
    for name in hashes.keys() & result["provenance"].keys():
        planned[name] = hashes[name]
        recorded[name] = result["provenance"][name]
    if plan.runtime == "auto":
        planned["runtime"] = recorded.get("runtime")  # whichever it chose
    # Only reading all images again would find those that were left out.
    if not result["bad_frames"]:
        frames_hash = _table_hash(FrameSource.of(plan))
        # None where the images are absent.
        planned[FRAMES] = frames_hash or result[FRAMES]
        recorded[FRAMES] = result[FRAMES]
    for name, planned_value in planned.items():
        recorded_value = recorded.get(name)
        if recorded_value != planned_value:
            difference = _difference(
                plan, name, recorded_value, planned_value, is_hash=name in hashes
            )
            raise FinishedRunError(
                f"{folder} holds a finished run {difference}; use another --output, or "
                "start over with crumb run --overwrite true"
            )


def _difference(
    plan: RunPlan, name: str, recorded: Any, planned: Any, is_hash: bool
) -> str:
    """Say in what a finished run differs from a plan.

    Args:
        plan: of the run that is asked for.
        name: of the setting or input that differs.
        recorded: its value in the finished run.
        planned: its value in the plan.
        is_hash: whether the values are hashes of a file.
    """
    if name in ("dataset_root", IMAGES):
        return (
            f"of other clips: some in {plan.dataset_root} were added, removed or "
            "changed since"
        )
    if name == FRAMES:
        return (
            "on other frames: the SHA-256 of its frame table was "
            f"{recorded[:16]} and is now {planned[:16]}"
        )
    difference = f"with {name}={recorded!r}, not {planned!r}"
    if is_hash:
        difference += " (contents are compared, not paths)"
    return difference
