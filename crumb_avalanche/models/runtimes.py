"""Runtimes of the frozen feature extractor F: torch as it is, or an engine that is faster on this machine.

All but ``int8`` (see there) compute the same maps up to rounding. A runtime is compared with torch on noise each time
it is opened, and refused where it differs by more than ``TOLERANCE``. ``auto`` stands for the faster one of torch and
ONNX Runtime in a trial on this machine.
"""

import hashlib
import importlib.util
import itertools
import json
import os
import platform
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.models.engines import (
    BUILDERS,
    TOLERANCE,
    TORCH,
    Runtime,
    RuntimeRefusedError,
    Split,
    maps_of,
    noise,
    refuse_elsewhere,
)
from crumb_avalanche.models.int8 import open_int8, refused
from crumb_avalanche.system.atomic_file import atomic_write
from crumb_avalanche.system.process import return_freed_memory

COUNTS = (8, 1, 2, 4)  # of images at a time, in a trial; those that must be measured first
TRIAL_SECONDS = 1.0
STANDS_FOR_AUTO = "CRUMB_RUNTIME"  # environment variable: the runtime that auto takes, without a trial

RUNTIMES = ("torch", *BUILDERS, "int8")


def use_runtime(model: Split, name: str, images: Iterable[Tensor] | None = None) -> Runtime:
    """Let a runtime run the F of a model from now on; a copy of the model runs torch again, or int8 if this one does.

    Call it when F has its weights, the model its precision and device, and torch its threads.

    Args:
        model: the model.
        name: one of ``RUNTIMES``, or ``auto``; see ``fastest``.
        images: for int8, batches as for ``SplitModel.extract`` to measure ranges on, at most 64 images.

    Raises:
        RuntimeRefusedError: it is not installed, cannot run F or computes other maps; or int8 runs F.
        ValueError: the name is unknown.
    """
    if model.runtime.calibration is not None:
        if name in ("auto", "int8"):
            return model.runtime
        raise RuntimeRefusedError(
            f"this was learned with runtime {model.runtime}, whose maps differ by percents from those of {name}: give "
            f"--runtime int8 or auto, or learn anew with {name}"
        )
    model.runtime = TORCH
    model.runtime = fastest(model) if name == "auto" else open_runtime(model, name, images=images)
    return model.runtime


def open_runtime(model: Split, name: str, calibration: Any = None, images: Iterable[Tensor] | None = None) -> Runtime:
    """Open a runtime for the F of a model and compare it with torch; see ``use_runtime`` and ``int8.open_int8``."""
    if name not in RUNTIMES:
        raise ValueError(f"runtime is {name!r}; use one of auto, {', '.join(RUNTIMES)}")
    if name == "torch" or not len(model.stages):
        return TORCH
    if name == "int8":
        return open_int8(model, calibration, images)
    if name == "onnxruntime":
        refuse_elsewhere(model, name)
    example = noise(model, 2)
    with refused(name, "onnx"):
        run = BUILDERS[name](model.feature_extractor, example)
        expected, found = maps_of(model, None, example), maps_of(model, run, example)
    difference = float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
    if not difference <= TOLERANCE[model.precision]:
        raise RuntimeRefusedError(
            f"runtime {name} differs from torch by {difference:.1e} of the largest value, more than "
            f"{TOLERANCE[model.precision]:.0e}: give --runtime torch"
        )
    return_freed_memory()  # of the export and of an engine that was open before
    number = version(name) if name == "onnxruntime" else str(torch.__version__)
    return Runtime(name, number, difference=difference, run=run)


def fastest(model: Split) -> Runtime:
    """Return the runtime that a trial of a second finds faster, with the best number of images at a time.

    The trial is done once for a network, CPU, number of threads and versions; its results are kept in ``trials_file``.
    Elsewhere than on a CPU in float32 it is torch, and where the environment names another in ``CRUMB_RUNTIME``, that.
    """
    if named := os.environ.get(STANDS_FOR_AUTO):
        return open_runtime(model, named)
    if model.pixel_mean.device.type != "cpu" or model.precision != "fp32" or not len(model.stages):
        return TORCH
    key, trials = _key(model), _read_trials()
    if (found := trials.get(key)) is not None:
        with suppress(ValueError, KeyError, TypeError):  # the file was changed by hand, or the runtime is refused now
            return replace(open_runtime(model, found["runtime"]), images_at_a_time=found["images_at_a_time"])
    chosen, speeds = trial(model)
    known = {"runtime": chosen.name, "images_at_a_time": chosen.images_at_a_time, "images_per_second": speeds}
    with suppress(OSError), atomic_write(trials_file()) as temporary:  # elsewhere each process has its own trial
        temporary.write_text(json.dumps({**_read_trials(), key: known}, indent=1), encoding="utf-8")
    return chosen


def trial(model: Split) -> tuple[Runtime, dict[str, dict[int, float]]]:
    """Measure torch and, if it is installed, ONNX Runtime, which is chosen if it gains on one image and in batches.

    Returns the better one, and images per second by runtime and number of images at a time. ``compiled`` takes half a
    minute to build and is left out.
    """
    candidates = [TORCH]
    with suppress(RuntimeRefusedError):
        candidates.append(open_runtime(model, "onnxruntime"))
    speeds = _speeds(model, *candidates)
    usual, other = speeds["torch"], speeds[candidates[-1].name]
    gains = other[1] > usual[1] and _best(other)[0] > _best(usual)[0]
    chosen = candidates[-1] if gains else TORCH
    return replace(chosen, images_at_a_time=_best(speeds[chosen.name])[1]), speeds


def _speeds(model: Split, *candidates: Runtime) -> dict[str, dict[int, float]]:
    """Return images per second by runtime and number of images at a time; they take turns."""
    images = noise(model, max(COUNTS))
    seconds: dict[str, dict[int, float]] = {one.name: {} for one in candidates}
    expected: dict[str, Tensor] = {}
    end = time.perf_counter() + TRIAL_SECONDS
    turns = ((one, count) for _ in itertools.count() for count in COUNTS for one in candidates)
    for turn, (one, count) in enumerate(turns):
        if turn >= 2 * len(candidates) and time.perf_counter() > end:
            break
        start = time.perf_counter()
        maps = maps_of(model, one.run, images[:count])
        taken = time.perf_counter() - start
        # A number of images at a time that changes bits is left out.
        if count == 1 or torch.equal(maps, expected.setdefault(one.name, maps)[:count]):
            seconds[one.name][count] = min(taken, seconds[one.name].get(count, taken))
    return {name: {count: count / taken for count, taken in times.items()} for name, times in seconds.items()}


def _best(speeds: dict[int, float]) -> tuple[float, int]:
    """Return the highest speed in batches, and its number of images at a time."""
    return max((speed, count) for count, speed in speeds.items() if count > 1)


def trials_file() -> Path:
    """Return the file that keeps the results of trials; remove it to repeat them."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "crumb_avalanche" / "runtimes.json"


def _read_trials() -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads(trials_file().read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def _key(model: Split) -> str:
    """Describe all that the speed depends on."""
    cpu = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    layers = hashlib.sha256(repr(model.feature_extractor).encode()).hexdigest()[:16]
    libraries = ["torch", *(["onnxruntime"] if importlib.util.find_spec("onnxruntime") else [])]
    parts = [cpu, f"{torch.get_num_threads()} threads", *(f"{name} {version(name)}" for name in libraries)]
    return ", ".join([*parts, f"F {layers} at {model.image_size} pixels"])
