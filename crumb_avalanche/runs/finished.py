"""Results of finished runs, read again if settings, files and frames are the same."""

import json
from pathlib import Path

from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.provenance import IMAGES, frame_table_hash, provenance
from crumb_avalanche.runs.run_folder import RESULT, DamagedRunError, FinishedRunError, check_digests
from crumb_avalanche.runs.settings import NON_RESULT_SETTINGS, as_dict, flat, load_yaml


def finished_result(folder: Path, plan: RunPlan) -> dict:
    """Read the result of a finished run with the same settings, input files and frames.

    Raises:
        FinishedRunError: the settings, files or frames differ, or are not recorded.
        DamagedRunError: a file of the run cannot be read, or was changed.
    """
    if not (folder / "config.yaml").exists():
        raise FinishedRunError(f"{folder} holds a {RESULT} without a config.yaml; restore it, or remove {RESULT} too")
    result = read_mapping(folder / RESULT, json.loads)
    check_digests(folder, result)
    then = read_mapping(folder / "config.yaml", load_yaml)
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
    frames_then = result.get("frame_table_sha256")
    frames_now = frame_table_hash(plan, result.get("bad_frames", []))
    if None not in (frames_then, frames_now) and frames_then != frames_now:
        raise FinishedRunError(
            f"{folder} holds a finished run on other frames: the SHA-256 of its frame table was {frames_then[:16]} and "
            f"is now {frames_now[:16]}; {start_over}"
        )
    return result


def check_run(folder: Path) -> None:
    """Compare the files of a run with the digests in its result; an unfinished run has none.

    Raises:
        DamagedRunError: a file cannot be read, or was changed.
    """
    if (folder / RESULT).exists():
        check_digests(folder, read_mapping(folder / RESULT, json.loads))


def read_mapping(path: Path, parse) -> dict:
    """Read a mapping from a JSON or YAML file of a finished run.

    Raises:
        DamagedRunError: the file cannot be parsed, or holds something else.
    """
    try:
        found = parse(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        found, reason = None, " ".join(str(error).split())
    else:
        reason = f"it holds a {type(found).__name__}, not names and values"
    if not isinstance(found, dict):
        raise DamagedRunError(f"{path} is damaged ({reason}); restore it, or run it again with --overwrite true")
    return found
