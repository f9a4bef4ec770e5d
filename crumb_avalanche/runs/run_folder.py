"""Files of a run folder, written atomically; where a run came from, and whether a finished one is what is asked for."""

import csv
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.tables.csv import csv_text
from benchmarks_toybox_ilab.tables.disk import add_rest, digest_of
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import CLIPS, NON_RESULT_SETTINGS, as_dict, flat, load_yaml
from crumb_avalanche.system.atomic_file import write_text

Part = TypeVar("Part")
RESULT = "result.json"
SUMMARY = "summary.json"  # of several runs
RESUME = "resume"  # subfolder of checkpoints
INTERRUPTED = "interrupted"
MISTAKES = "mistakes.html"
RECORDS = ("config.yaml", "metrics.csv", "accuracy_matrix.csv", "ledger.json", "predictions.npz")
_FILES, _RESULT_SHA256 = "files", "result_sha256"  # entries of a result
DIGESTS = (_FILES, _RESULT_SHA256)
PLAN = "# sha256 of the plan: "  # begins a config.yaml
MARKS = {"config.yaml": PLAN, RESULT: f'"{_RESULT_SHA256}"'}  # texts by which a run's files are known


class FinishedRunError(ValueError):
    """The output folder already holds a finished run."""


class DamagedRunError(ValueError):
    """A file of a finished run cannot be read, or was changed."""


def write_json(path: Path, value) -> None:
    """Write JSON atomically."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_csv(path: Path, rows: Iterable[Iterable]) -> None:
    """Write rows as CSV atomically; texts that spreadsheets would take for formulas begin with an apostrophe."""
    write_text(path, csv_text(rows))


def with_digests(folder: Path, result: dict) -> dict:
    """Return a result with the SHA-256 of the other files of the run and of itself.

    The learner file is not among them: it has checksums of its own, and may be taught on.
    """
    result = {**result, _FILES: {name: _sha256(folder / name) for name in RECORDS if (folder / name).is_file()}}
    return {**result, _RESULT_SHA256: _result_sha256(result)}


def check_digests(folder: Path, result: dict) -> None:
    """Compare a finished run with the digests in its result; a folder made by hand has none.

    Raises:
        DamagedRunError: a file was changed since the run; says which.
    """
    if DIGESTS[0] not in result and DIGESTS[1] not in result:
        return
    files = result.get(_FILES)
    changed = [RESULT] if result.get(_RESULT_SHA256) != _result_sha256(result) or not isinstance(files, dict) else []
    if not changed:  # else the other digests cannot be relied on
        there = [name for name in RECORDS if (folder / name).is_file()]
        changed = [name for name in there if files.get(name) != _sha256(folder / name)]
    if changed:
        raise DamagedRunError(
            f"{folder / changed[0]} is not what the run wrote: its SHA-256 is not the one in {RESULT}, so one of them "
            f"was damaged or changed later; restore it, repeat the run with --overwrite true, or move {folder} "
            "elsewhere"
        )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _result_sha256(result: dict) -> str:
    """SHA-256 of all entries but itself, in any order."""
    rest = {name: value for name, value in result.items() if name != _RESULT_SHA256}
    return hashlib.sha256(json.dumps(json.loads(json.dumps(rest)), sort_keys=True).encode()).hexdigest()


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
        raise ValueError(f"{there[0]} exists and is of another program, so it stays as it is: choose another --output")


def _text(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def tidy_up(folder: Path) -> None:
    """Remove the checkpoints and interrupted state of a finished run, such as one killed after writing its result."""
    for name in (RESUME, INTERRUPTED):
        shutil.rmtree(folder / name, ignore_errors=True)


IMAGES = "images"  # entry of the content of all images of a clip folder
LIBRARIES = ("crumb-avalanche", "torch", "torchvision", "avalanche-lib", "numpy", "faiss-cpu", "timm")


def provenance(plan: RunPlan) -> dict[str, str]:
    """Hash the input files of a run.

    Returns:
        ``sha256:`` and a hash by the name of the setting. ``weights`` and ``pretrained``: tensors of the file (its
        bytes if it is not a ``.safetensors`` file), if the setting is a file. ``dataset_root``: names and sizes of all
        images of a clip folder, also those taken out of videos; ``images``: their content.
    """
    found = {}
    for name in ("weights", "pretrained"):
        value = getattr(plan, name)
        if value is not None and Path(value).is_file():
            state = Path(value).stat()
            found[name] = _file_hash(str(Path(value).resolve()), state.st_mtime_ns, state.st_size)
    if plan.benchmark == CLIPS:
        bad_videos = [] if plan.on_bad_frame == "skip" else None
        table = get_benchmark(CLIPS).table(plan.dataset_root, plan.run, False, plan.fps, bad_videos, plan.new_class)
        paths = [table.root / path for path in table.path]
        listed = "".join(f"{path}\n{file.stat().st_size}\n" for path, file in zip(table.path, paths))
        found["dataset_root"] = f"sha256:{hashlib.sha256(listed.encode()).hexdigest()}"
        found[IMAGES] = f"sha256:{digest_of(paths)}"
    return found


@lru_cache(maxsize=256)
def _table_hash(
    benchmark: str, root: str | None, run: int, reference: bool, fps: float | None, skip: bool, new_class: bool
) -> str | None:
    """Hash a frame table, cached for sweeps; ``None`` if the images are not on this machine."""
    entry = get_benchmark(benchmark)
    if entry.needs_root and not (root and Path(root).is_dir()):
        return None
    return entry.table(root, run, reference, fps, [] if skip else None, new_class).content_hash()


def versions() -> dict[str, str]:
    """Return the versions of the libraries that influence results."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


@lru_cache(maxsize=64)
def _file_hash(path: str, changed: int, size: int) -> str:
    """Hash a file; cached by modification time and size because a sweep asks once for each of its runs."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        if path.endswith(".safetensors"):  # leave out the metadata, whose order is random
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
    if not (folder / "config.yaml").exists():
        raise FinishedRunError(f"{folder} holds a {RESULT} without a config.yaml; restore it, or remove {RESULT} too")
    result = read_part(folder / RESULT, lambda text: mapping(json.loads(text)))
    check_digests(folder, result)
    then = read_part(folder / "config.yaml", lambda text: mapping(load_yaml(text)))
    start_over = "use another --output, or start over with crumb run --overwrite true"
    hashes_then, hashes_now = result.get("provenance", {}), provenance(plan)
    for name in hashes_then.keys() & hashes_now.keys():
        if hashes_then[name] == hashes_now[name]:
            if name != IMAGES:
                then[name] = getattr(plan, name)  # the same content, perhaps at another path
        elif name in ("dataset_root", IMAGES):
            raise FinishedRunError(
                f"{folder} holds a finished run of other clips: some in {plan.dataset_root} were added, removed or "
                f"changed since; {start_over}"
            )
        else:
            raise FinishedRunError(
                f"{folder} holds a finished run with {name}={hashes_then[name]!r}, not {hashes_now[name]!r} (contents "
                f"are compared, not paths); {start_over}"
            )
    if plan.runtime == "auto":
        then["runtime"] = "auto"  # whichever it chose
    for name, new in flat(as_dict(plan)).items():
        old = flat(then).get(name)
        if name not in NON_RESULT_SETTINGS and old != new:
            raise FinishedRunError(f"{folder} holds a finished run with {name}={old!r}, not {new!r}; {start_over}")
    frames_then = str(result.get("frame_table_sha256"))
    if result.get("bad_frames"):  # only reading all images again would find those left out
        return result
    given = plan.benchmark, plan.dataset_root, plan.run, plan.reference_stream, plan.fps
    frames_now = _table_hash(*given, plan.on_bad_frame == "skip", plan.new_class)
    if frames_now is not None and frames_then != frames_now:
        raise FinishedRunError(
            f"{folder} holds a finished run on other frames: the SHA-256 of its frame table was {frames_then[:16]} and "
            f"is now {frames_now[:16]}; {start_over}"
        )
    return result


def check_run(folder: Path) -> None:
    """Compare the files of a run with the digests in its result; an unfinished run has none."""
    if (folder / RESULT).exists():
        check_digests(folder, read_part(folder / RESULT, lambda text: mapping(json.loads(text))))


def read_part(path: Path, parse: Callable[[str], Part]) -> Part:
    """Return what ``parse`` makes of a finished run's file; ``DamagedRunError`` if it is missing or ``parse`` fails."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, RecursionError, csv.Error) as error:
        reason = "it is missing" if isinstance(error, FileNotFoundError) else " ".join(str(error).split())[:300]
        raise DamagedRunError(
            f"{path} cannot be used: {reason}. Finished runs have this file complete, so it was changed or lost later; "
            f"restore it, repeat the run with --overwrite true, or move {path.parent} elsewhere"
        ) from error


def mapping(value: Any, keys: Iterable[str] = (), kind: Any = object) -> dict:
    """Return a dictionary with values of a kind for some keys; ``ValueError`` for anything else."""
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}, not names and values")
    if wrong := [key for key in keys if key not in value or not isinstance(value[key], kind)]:
        raise ValueError(f"it has no usable {', '.join(wrong)}")
    json.dumps(value, ensure_ascii=False, default=str).encode()  # raises ValueError
    return value
