"""What the files hold that a run's settings name: other contents under the same name make another run."""

import hashlib
import json
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from benchmarks_toybox_ilab.catalog import get_benchmark
from crumb_avalanche.baselines.registry import get_strategy
from crumb_avalanche.runs.build import CLIPS, strategy_settings
from crumb_avalanche.runs.settings import RunSettings


def made_from(settings: RunSettings) -> dict:
    """The contents behind the settings that name files, by the name of the setting.

    Args:
        settings: resolved.

    Returns:
        ``weights`` and ``pretrained``: ``sha256:`` and the hash of the file's tensors (of its bytes, if it is no
        ``.safetensors`` file), where there is one; ``strategy_config``: all settings of the method, defaults too;
        ``dataset_root``: the hash of names and sizes of all images, where the folder is the benchmark. Plain values,
        as JSON keeps them.

    Raises:
        ValueError: a strategy config or a clip folder that cannot be read.
    """
    found = {"strategy_config": asdict(get_strategy(settings.strategy).method_settings(strategy_settings(settings)))}
    for name in ("weights", "pretrained"):
        value = getattr(settings, name)
        if value is not None and Path(value).is_file():
            state = Path(value).stat()
            found[name] = _file_hash(str(Path(value).resolve()), state.st_mtime_ns, state.st_size)
    if settings.benchmark == CLIPS:
        table = get_benchmark(CLIPS).table(settings.dataset_root, settings.run, fps=settings.fps)
        listed = "".join(f"{path}\n{(table.root / path).stat().st_size}\n" for path in table.path)
        found["dataset_root"] = f"sha256:{hashlib.sha256(listed.encode()).hexdigest()}"
    return json.loads(json.dumps(found))


@lru_cache(maxsize=64)
def _file_hash(path: str, changed: int, size: int) -> str:
    """Of a file's content; remembered as long as time and size stay, for a sweep asks once for each of its runs."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        if path.endswith(".safetensors"):  # its notes stand in a random order, and decide nothing
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            header.pop("__metadata__", None)
            digest.update(json.dumps(header, sort_keys=True).encode())
        while part := file.read(2**20):
            digest.update(part)
    return f"sha256:{digest.hexdigest()}"
