"""Runtimes of the frozen feature extractor F: torch as it is, or an engine that is faster on this machine.

All compute the same maps up to rounding. A runtime is compared with torch on noise each time it is opened, and refused
where it differs by more than ``TOLERANCE``. ``auto`` stands for the fastest of a trial on this machine.
"""

import hashlib
import importlib.util
import io
import itertools
import json
import os
import platform
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from crumb_avalanche.system.allocator import return_freed_memory
from crumb_avalanche.system.atomic_file import atomic_write
from crumb_avalanche.system.threads import end_idle_threads

# Largest difference from torch's maps, relative to the largest value; bf16 has 8 significant bits.
TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2}
# Most images that F takes at a time on a CPU. They fit its caches: a third faster than batches of 24. Convolutions
# treat each image of a batch of 2 to 8 alike, so a map does not depend on its batch.
IMAGES_AT_A_TIME = 8
COUNTS = (8, 1, 2, 4)  # of images at a time, in a trial; those that must be measured first
TRIAL_SECONDS = 1.0  # for each runtime that is compared with torch
OPSET = 17  # of 2022, as for exported learners
STANDS_FOR_AUTO = "CRUMB_RUNTIME"  # environment variable: the runtime that auto takes, without a trial

Extract = Callable[[Tensor], Tensor]
Split = Any  # a SplitModel, whose module imports this one


class RuntimeRefusedError(ValueError):
    """A runtime is not installed, cannot run the network, or computes other maps than torch."""


@dataclass(frozen=True)
class Runtime:
    """What runs F.

    Attributes:
        name: one of ``RUNTIMES``.
        version: version of its library.
        images_at_a_time: most images that it takes at a time on a CPU.
        difference: largest difference from torch's maps on noise, relative to their largest value.
        run: function from normalised images ``(B, 3, h, w)`` to maps; ``None`` for F itself.
    """

    name: str = "torch"
    version: str = str(torch.__version__)
    images_at_a_time: int = IMAGES_AT_A_TIME
    difference: float = 0.0
    run: Extract | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def described(self) -> str:
        """Name, version, number of images at a time and difference from torch, in words."""
        parity = f", maps within {self.difference:.1e} of torch's (allowed {TOLERANCE['fp32']:.0e})"
        return f"runtime {self}, {self.images_at_a_time} images at a time{'' if self.name == 'torch' else parity}"


TORCH = Runtime()


def _channels_last(run: Extract) -> Extract:
    return lambda images: run(images.contiguous(memory_format=torch.channels_last))


def compiled(network: nn.Module, example: Tensor | None = None) -> Extract:
    """Compile F, with its weights as constants; torch does so at the first batch of each shape."""
    return _channels_last(torch.compile(network, options={"freezing": True}))


def _folded(network: nn.Module, example: Tensor) -> Extract:
    """Fold batch norms into the convolutions before them."""
    from torch.fx.experimental.optimization import fuse

    if not any(isinstance(layer, nn.BatchNorm2d) for layer in network.modules()):
        raise RuntimeRefusedError("F has no batch norm to fold")
    return _channels_last(fuse(network).eval().to(memory_format=torch.channels_last))


def _openvino(network: nn.Module, example: Tensor) -> Extract:
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "f32",  # by default bf16 where the CPU has it
        "PERFORMANCE_HINT": "LATENCY",
    }
    core = openvino.Core()
    request = core.compile_model(core.read_model(_onnx(network, example)), "CPU", settings).create_infer_request()
    # Without copies of images and maps; ``_on_arrays`` makes the one that outlives the next call.
    return _on_arrays(lambda images: request.infer({0: images}, share_inputs=True, share_outputs=True)[0])


def _onnxruntime(network: nn.Module, example: Tensor) -> Extract:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    # Threads that wait within F spin, as waking them takes longer than a layer for one image. After it they would take
    # the cores from torch's, which run P.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(_onnx(network, example), options, providers=["CPUExecutionProvider"])
    return _on_arrays(lambda images: session.run(None, {"images": images})[0])


def _on_arrays(run: Callable[[Any], Any]) -> Extract:
    """Wrap a function of numpy arrays, which are contiguous."""

    def extract(images: Tensor) -> Tensor:
        array = images.contiguous().numpy()
        end_idle_threads()
        return torch.from_numpy(run(array)).clone(memory_format=torch.channels_last)

    return extract


def _onnx(network: nn.Module, example: Tensor) -> bytes:
    """Return F as an ONNX graph for any number of images of the example's size."""
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter is deprecated, and traces shapes
        torch.onnx.export(
            network,
            (example,),
            stream,
            dynamo=False,
            opset_version=OPSET,
            input_names=["images"],
            output_names=["maps"],
            dynamic_axes={"images": {0: "batch"}, "maps": {0: "batch"}},
        )
    return stream.getvalue()


ENGINES = {"openvino": "openvino", "onnxruntime": "onnx"}  # extra that installs each
BUILDERS: dict[str, Callable[[nn.Module, Tensor], Extract]] = {
    "compiled": compiled,
    "folded": _folded,
    "openvino": _openvino,
    "onnxruntime": _onnxruntime,
}
RUNTIMES = ("torch", *BUILDERS)


def use_runtime(model: Split, name: str) -> Runtime:
    """Let a runtime run the F of a model from now on; a copy of the model runs torch again.

    Call it when F has its weights, the model its precision and device, and torch its threads.

    Args:
        model: the model.
        name: one of ``RUNTIMES``, or ``auto`` for the fastest of those that are installed; see ``fastest``.

    Raises:
        RuntimeRefusedError: the runtime is not installed, cannot run F or computes other maps.
        ValueError: the name is unknown.
    """
    model.runtime = TORCH
    model.runtime = fastest(model) if name == "auto" else open_runtime(model, name)
    return model.runtime


def open_runtime(model: Split, name: str) -> Runtime:
    """Open a runtime for the F of a model and compare it with torch; see ``use_runtime``."""
    if name not in RUNTIMES:
        raise ValueError(f"runtime is {name!r}; use one of auto, {', '.join(RUNTIMES)}")
    if name == "torch" or not len(model.stages):
        return TORCH
    images = _noise(model, 2)
    if name in ENGINES and (images.device.type != "cpu" or model.precision != "fp32"):
        raise RuntimeRefusedError(
            f"runtime {name} runs on a CPU in float32, not on {images.device.type} in {model.precision}: give "
            "--runtime torch or compiled"
        )
    try:
        run = BUILDERS[name](model.feature_extractor, images)
        expected, found = _maps(model, None, images), _maps(model, run, images)
    except RuntimeRefusedError:
        raise
    except ImportError as error:
        hint = f"pip install 'crumb-avalanche[{ENGINES[name]}]', or " if name in ENGINES else ""
        raise RuntimeRefusedError(f"runtime {name} is not installed ({error}): {hint}give --runtime torch") from error
    except Exception as error:  # each library has its own kinds
        reason = str(error).strip().partition("\n")[0]
        raise RuntimeRefusedError(f"runtime {name} cannot run F ({reason}): give --runtime torch") from error
    difference = float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
    if not difference <= TOLERANCE[model.precision]:
        raise RuntimeRefusedError(
            f"runtime {name} differs from torch by {difference:.1e} of the largest value, more than "
            f"{TOLERANCE[model.precision]:.0e}: give --runtime torch"
        )
    return_freed_memory()  # of the export and of an engine that was open before
    return Runtime(name, version(name) if name in ENGINES else str(torch.__version__), difference=difference, run=run)


@torch.no_grad()
def _maps(model: Split, run: Extract | None, images: Tensor) -> Tensor:
    with model.autocast():
        return (run or _channels_last(model.feature_extractor))(images).float()


def _noise(model: Split, count: int) -> Tensor:
    shape = (count, 3, model.image_size, model.image_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(model.pixel_mean.device)


def fastest(model: Split) -> Runtime:
    """Return the runtime that a trial of a few seconds finds fastest, with the best number of images at a time.

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
    """Measure all runtimes but ``compiled``, which takes half a minute to build.

    The best one gains most over torch where it gains least: on one image alone, or in batches.

    Returns:
        The best runtime, and images per second by runtime and number of images at a time.
    """
    speeds: dict[str, dict[int, float]] = {}
    gains = {"torch": 1.0}
    for name in ("folded", *ENGINES):  # one open at a time: memory of an engine is up to 100 MB
        with suppress(RuntimeRefusedError):
            speeds |= _speeds(model, TORCH, open_runtime(model, name))
            ours, torchs = speeds[name], speeds["torch"]  # of the same turns
            gains[name] = min(ours[1] / torchs[1], _best(ours)[0] / _best(torchs)[0])
    speeds = speeds or _speeds(model, TORCH)
    best = max(gains, key=gains.__getitem__)
    return replace(open_runtime(model, best), images_at_a_time=_best(speeds[best])[1]), speeds


def _speeds(model: Split, *candidates: Runtime) -> dict[str, dict[int, float]]:
    """Return images per second by runtime and number of images at a time; they take turns."""
    noise = _noise(model, max(COUNTS))
    seconds: dict[str, dict[int, float]] = {one.name: {} for one in candidates}
    expected: dict[str, Tensor] = {}
    end = time.perf_counter() + TRIAL_SECONDS
    turns = ((one, count) for _ in itertools.count() for count in COUNTS for one in candidates)
    for turn, (one, count) in enumerate(turns):
        if turn >= 2 * len(candidates) and time.perf_counter() > end:
            break
        start = time.perf_counter()
        maps = _maps(model, one.run, noise[:count])
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
    layers = hashlib.sha256(repr(model.feature_extractor).encode()).hexdigest()[:16]
    libraries = ["torch", *(name for name in ENGINES if importlib.util.find_spec(name))]
    parts = [_cpu(), f"{torch.get_num_threads()} threads", *(f"{name} {version(name)}" for name in libraries)]
    return ", ".join([*parts, f"F {layers} at {model.image_size} pixels"])


def _cpu() -> str:
    with suppress(OSError, IndexError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next((line for line in lines if line.startswith("model name")), "").partition(":")[2].strip()
    return platform.processor() or platform.machine()
