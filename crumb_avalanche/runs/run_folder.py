"""Files of a run folder, written atomically; where a run came from, and whether a finished one is what is asked for."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.tables.atomic_file import write_text
from benchmarks_toybox_ilab.tables.csv import csv_text
from benchmarks_toybox_ilab.tables.disk import add_rest, files_digest
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import CLIPS, NON_RESULT_SETTINGS, flat, load_yaml
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
_FILES, _RESULT_SHA256 = "files", "result_sha256"  # entries of a result
DIGESTS = (_FILES, _RESULT_SHA256)
PLAN = "# sha256 of the plan: "  # begins a config.yaml
MARKS = {
    CONFIG: PLAN,
    RESULT: f'"{_RESULT_SHA256}"',
}  # texts by which a run's files are known
FRAMES = "frame_table_sha256"  # entry of a result
PERCENT = real(0, 100)
# What is read of a result, and of the settings.
RESULT_READ = record(
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
    },
)
NAMES = dict.fromkeys(("benchmark", "protocol", "strategy", "preset"), text())
SETTINGS_READ = record(further=True, **NAMES, **{"method?": maybe(PLAIN_VALUES)})


class FinishedRunError(ValueError):
    """The output folder already holds a finished run."""


class DamagedRunError(ValueError):
    """A file of a finished run is missing, or was changed."""


def write_json(path: Path, value) -> None:
    """Write JSON atomically."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_csv(path: Path, rows: Iterable[Iterable]) -> None:
    """Write rows as CSV atomically; texts that spreadsheets would take for formulas begin with an apostrophe."""
    write_text(path, csv_text(rows))


def with_digests(folder: Path, result: dict) -> dict:
    """Return a result with the SHA-256 of the other files of the run and of itself.

    The learner file is not among them: it has checksums of its own, and may be taught
    on.
    """
    result = {
        **result,
        _FILES: {
            name: _sha256(folder / name)
            for name in RECORDS
            if (folder / name).is_file()
        },
    }
    return {**result, _RESULT_SHA256: _result_sha256(result)}


def read_result(folder: Path) -> dict:
    """Read the result of a finished run.

    Raises:
        DamagedRunError: a file of the run is missing, or not what the run wrote; says
            which.
    """
    path, changed = folder / RESULT, f"its SHA-256 is not the one in {RESULT}"
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(result, dict) or result.get(_RESULT_SHA256) != _result_sha256(
            result
        ):
            raise ValueError(changed)
        for name, digest in result[_FILES].items():
            path = folder / name
            if _sha256(path) != digest:
                raise ValueError(changed)
        path = folder / RESULT
        check(RESULT_READ, result)
        after, last = result["accuracy_after"], result["final_accuracy_per_experience"]
        classes = result.get("classes_per_experience", [1] * len(last))
        fits = (
            0 < len(last) == len(classes)
            and classes[0] > 0
            and len(after) in (1, len(last))
        )
        if not fits or after[-1] != result["final_accuracy"]:
            raise ValueError("its accuracies and numbers of classes do not agree")
    except (
        AttributeError,
        KeyError,
        OSError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        reason = (
            "it is missing"
            if isinstance(error, FileNotFoundError)
            else " ".join(str(error).split())[:300]
        )
        raise DamagedRunError(
            f"{path} is not what the run wrote: {reason}. It was damaged or changed later; restore it, repeat the run "
            f"with --overwrite true, or move {folder} elsewhere"
        ) from error
    return result


def read_settings(folder: Path) -> dict:
    """Read the settings of a run, those of the method as ``method.NAME``; ValueError if no run has such ones."""
    check(
        SETTINGS_READ,
        settings := load_yaml((folder / CONFIG).read_text(encoding="utf-8")),
        "config",
    )
    return flat(settings)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _result_sha256(result: dict) -> str:
    """SHA-256 of all entries but itself, in any order."""
    rest = {name: value for name, value in result.items() if name != _RESULT_SHA256}
    return hashlib.sha256(
        json.dumps(json.loads(json.dumps(rest)), sort_keys=True).encode()
    ).hexdigest()


def claim(folder: Path, overwrite: bool) -> None:
    """Create a folder for a run, unless it holds a finished one or files of others."""
    refuse_others(folder, (*RECORDS, RESULT, MISTAKES), MARKS)
    if (folder / RESULT).exists() and not overwrite:
        tidy_up(folder)
        raise FinishedRunError(
            f"{folder} already holds a finished run; choose another --output, or start over with --overwrite true"
        )
    folder.mkdir(parents=True, exist_ok=True)


def refuse_others(folder: Path, names: Iterable[str], marks: dict[str, str]) -> None:
    """Raise ValueError if a folder has one of these files, and none of the ``marks``, text by name of a file."""
    there = [folder / name for name in names if (folder / name).exists()]
    if there and not any(text in _text(folder / name) for name, text in marks.items()):
        raise ValueError(
            f"{there[0]} exists and is of another program, so it stays as it is: choose another --output"
        )


def _text(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def tidy_up(folder: Path) -> None:
    """Remove the checkpoints of a finished run, such as one killed after writing its result."""
    shutil.rmtree(folder / RESUME, ignore_errors=True)


IMAGES = "images"  # entry of the content of all images of a clip folder
LIBRARIES = (
    "crumb-avalanche",
    "torch",
    "torchvision",
    "avalanche-lib",
    "numpy",
    "faiss-cpu",
    "timm",
)


def provenance(plan: RunPlan) -> dict[str, str]:
    """Hash the input files of a run.

    Returns:
        ``sha256:`` and a hash by the name of the setting. ``weights`` and
        ``pretrained``: tensors of the file (its bytes if it is not a ``.safetensors``
        file), if the setting is a file. ``dataset_root``: names and sizes of all images
        of a clip folder, also those taken out of videos; ``images``: their content.
    """
    found = {}
    for name in ("weights", "pretrained"):
        value = getattr(plan, name)
        if value is not None and Path(value).is_file():
            state = Path(value).stat()
            found[name] = _file_hash(
                str(Path(value).resolve()), state.st_mtime_ns, state.st_size
            )
    if plan.benchmark == CLIPS:
        bad_videos = [] if plan.on_bad_frame == "skip" else None
        table = get_benchmark(CLIPS).table(
            plan.dataset_root, plan.run, False, plan.fps, bad_videos, plan.new_class
        )
        paths = [table.root / path for path in table.path]
        listed = "".join(
            f"{path}\n{file.stat().st_size}\n" for path, file in zip(table.path, paths)
        )
        found["dataset_root"] = f"sha256:{hashlib.sha256(listed.encode()).hexdigest()}"
        found[IMAGES] = f"sha256:{files_digest(paths)}"
    return found


@lru_cache(maxsize=256)
def _table_hash(
    benchmark: str,
    root: str | None,
    run: int,
    reference: bool,
    fps: float | None,
    skip: bool,
    new_class: bool,
) -> str | None:
    """Hash a frame table, cached for sweeps; ``None`` if the images are not on this machine."""
    entry = get_benchmark(benchmark)
    if entry.needs_root and not (root and Path(root).is_dir()):
        return None
    return entry.table(
        root, run, reference, fps, [] if skip else None, new_class
    ).content_hash()


def versions() -> dict[str, str]:
    """Return what influences the last digits of a result: versions of libraries, the commit of a checkout, the CPU."""
    installed = {}
    for library in LIBRARIES:
        try:
            installed[library] = version(library)
        except PackageNotFoundError:
            installed[library] = "not installed"
    return {**installed, "commit": commit_of_checkout(), "cpu": cpu_name()}


@lru_cache(maxsize=1)
def commit_of_checkout() -> str:
    """Return the first 8 digits of the commit that the package runs from, ``-dirty`` behind them where files differ.

    Empty if the package does not lie in a git checkout of its own, or git is not
    installed.
    """
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():
        return ""
    command = [
        "git",
        "-C",
        str(checkout),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=8",
        "--exclude=*",
    ]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip()


@lru_cache(maxsize=64)
def _file_hash(path: str, changed: int, size: int) -> str:
    """Hash a file; cached by modification time and size because a sweep asks once for each of its runs."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        if path.endswith(
            ".safetensors"
        ):  # leave out the metadata, whose order is random
            length = int.from_bytes(file.read(8), "little")
            try:
                header = json.loads(file.read(length) if length < size else b"")
                header.pop("__metadata__", None)
                digest.update(json.dumps(header, sort_keys=True).encode())
            except (ValueError, TypeError, AttributeError, RecursionError):
                file.seek(0)  # what reads the file says that it is damaged
        add_rest(digest, file)
    return f"sha256:{digest.hexdigest()}"


def finished_result(folder: Path, plan: RunPlan) -> dict:
    """Read the result of a finished run; ``FinishedRunError`` if its settings, input files or frames are others."""
    result = read_result(folder)
    now = {
        name: value
        for name, value in flat(vars(plan)).items()
        if name not in NON_RESULT_SETTINGS
    }
    hashes = provenance(plan)
    # A file is compared by its content, which may be at another path.
    now |= {
        name: value for name, value in hashes.items() if name in result["provenance"]
    }
    then = read_settings(folder)
    then |= {
        name: value for name, value in result["provenance"].items() if name in hashes
    }
    if plan.runtime == "auto":
        now["runtime"] = then.get("runtime")  # whichever it chose
    if not result[
        "bad_frames"
    ]:  # only reading all images again would find those left out
        given = (
            plan.benchmark,
            plan.dataset_root,
            plan.run,
            plan.reference_stream,
            plan.fps,
        )
        then[FRAMES] = result[FRAMES]
        now[FRAMES] = (
            _table_hash(*given, plan.on_bad_frame == "skip", plan.new_class)
            or then[FRAMES]
        )
    for name, new in now.items():
        if (old := then.get(name)) == new:
            continue
        what = (
            f"with {name}={old!r}, not {new!r}"
            + " (contents are compared, not paths)" * (name in hashes)
        )
        if name in ("dataset_root", IMAGES):
            what = f"of other clips: some in {plan.dataset_root} were added, removed or changed since"
        elif name == FRAMES:
            what = f"on other frames: the SHA-256 of its frame table was {old[:16]} and is now {new[:16]}"
        raise FinishedRunError(
            f"{folder} holds a finished run {what}; use another --output, or start over with crumb run --overwrite true"
        )
    return result
