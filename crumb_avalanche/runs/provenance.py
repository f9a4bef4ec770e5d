"""What a run was made from: hashes of its input files and of its frame table, versions of the libraries."""

import hashlib
import json
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks_toybox_ilab.catalog import get_benchmark
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.presets import CLIPS

LIBRARIES = ("crumb-avalanche", "torch", "torchvision", "avalanche-lib", "numpy", "faiss-cpu")


def provenance(plan: RunPlan) -> dict[str, str]:
    """Content hashes of a run's input files, by the name of the setting that names them.

    Returns:
        ``weights`` and ``pretrained``: ``sha256:`` and the hash of the file's tensors (of its bytes, if it is no
        ``.safetensors`` file), where there is one; ``dataset_root``: the hash of names and sizes of all images, where
        the folder is the benchmark.

    Raises:
        ValueError: a clip folder that cannot be read.
    """
    found = {}
    for name in ("weights", "pretrained"):
        value = getattr(plan, name)
        if value is not None and Path(value).is_file():
            state = Path(value).stat()
            found[name] = _file_hash(str(Path(value).resolve()), state.st_mtime_ns, state.st_size)
    if plan.benchmark == CLIPS:
        table = get_benchmark(CLIPS).table(plan.dataset_root, plan.run, fps=plan.fps)
        listed = "".join(f"{path}\n{(table.root / path).stat().st_size}\n" for path in table.path)
        found["dataset_root"] = f"sha256:{hashlib.sha256(listed.encode()).hexdigest()}"
    return found


def recorded_provenance(result: dict) -> dict:
    """The content hashes in a ``result.json`` of any version."""
    found = result.get("provenance", result.get("made_from", {}))
    return {name: value for name, value in found.items() if name != "strategy_config"}


def frame_table_hash(plan: RunPlan, bad_frames: list[str]) -> str | None:
    """Hash of the frame table that a run of today has, without frames that could not be read.

    Args:
        plan: of the run.
        bad_frames: messages of the frames that the run left out.

    Returns:
        The hash; ``None`` where the images are not on this machine, or where frames were left out, which only reading
        all of them again could find.
    """
    benchmark = get_benchmark(plan.benchmark)
    if bad_frames or (benchmark.needs_root and not (plan.dataset_root and Path(plan.dataset_root).is_dir())):
        return None
    return _table_hash(plan.benchmark, plan.dataset_root, plan.run, plan.reference_stream, plan.fps)


@lru_cache(maxsize=256)
def _table_hash(benchmark: str, root: str | None, run: int, reference: bool, fps: float | None) -> str:
    """Cached, since a sweep asks once for each of its rows."""
    return get_benchmark(benchmark).table(root, run, reference, fps).content_hash()


def versions() -> dict[str, str]:
    """Versions of the libraries that decide the numbers."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


@lru_cache(maxsize=64)
def _file_hash(path: str, changed: int, size: int) -> str:
    """Hash of a file's content, cached while its time and size stay: a sweep asks once for each of its runs."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        if path.endswith(".safetensors"):  # the order of its metadata is random, and decides nothing
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            header.pop("__metadata__", None)
            digest.update(json.dumps(header, sort_keys=True).encode())
        while part := file.read(2**20):
            digest.update(part)
    return f"sha256:{digest.hexdigest()}"
