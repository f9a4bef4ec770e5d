"""Provenance of a run: hashes of its input files and frame table, and versions of the libraries."""

import hashlib
import json
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.tables.digests import add_rest, digest_of
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.presets import CLIPS

IMAGES = "images"  # entry of the content of all images of a clip folder
LIBRARIES = ("crumb-avalanche", "torch", "torchvision", "avalanche-lib", "numpy", "faiss-cpu", "timm")


def provenance(plan: RunPlan) -> dict[str, str]:
    """Hash the input files of a run.

    Returns:
        ``sha256:`` and a hash by the name of the setting. ``weights`` and ``pretrained``: tensors of the file (its
        bytes if it is not a ``.safetensors`` file), if the setting is a file. ``dataset_root``: names and sizes of all
        images of a clip folder, also those taken out of videos; ``images``: their content.

    Raises:
        ValueError: a clip folder cannot be read.
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


def frame_table_hash(plan: RunPlan, bad_frames: list[str]) -> str | None:
    """Hash the present frame table of a plan.

    Args:
        plan: plan of the run.
        bad_frames: messages of the frames that the run left out.

    Returns:
        The hash; ``None`` if the images are not on this machine, or if the run left frames out, since only reading all
        images again would find them.
    """
    benchmark = get_benchmark(plan.benchmark)
    if bad_frames or (benchmark.needs_root and not (plan.dataset_root and Path(plan.dataset_root).is_dir())):
        return None
    given = plan.dataset_root, plan.run, plan.reference_stream, plan.fps
    return _table_hash(plan.benchmark, *given, plan.on_bad_frame == "skip", plan.new_class)


@lru_cache(maxsize=256)
def _table_hash(
    benchmark: str, root: str | None, run: int, reference: bool, fps: float | None, skip: bool, new_class: bool
) -> str:
    """Hash a frame table; cached because a sweep asks once for each of its rows."""
    return get_benchmark(benchmark).table(root, run, reference, fps, [] if skip else None, new_class).content_hash()


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
