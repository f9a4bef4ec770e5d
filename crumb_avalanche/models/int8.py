"""Runtime ``int8`` of F: its layers in 8-bit integers, by ranges of values that were measured on images.

``quantization`` quantises F by ranges that it measures on images, OpenVINO runs it. The ranges decide every map. So
the quantised graph is kept with what is learned, and a model, its copies and what is loaded from a file have the same
graph for good.
"""

import functools
import hashlib
import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.models.engines import (
    TOLERANCE,
    Extract,
    Runtime,
    RuntimeRefusedError,
    Split,
    maps_of,
    noise,
    on_arrays,
    onnx_of,
    refuse_elsewhere,
)
from crumb_avalanche.models.quantization import LARGEST, LARGEST_WITHOUT_VNNI, quantized
from crumb_avalanche.system.process import return_freed_memory

IMAGES = 64  # that ranges are measured on
SAME = 1e-2  # largest relative rms difference of ``Calibration.means`` from those where the ranges were measured


@dataclass(frozen=True)
class Calibration:
    """F in 8-bit integers.

    Attributes:
        graph: ONNX.
        means: ``(C,)``, means of its maps of noise, which a machine that computes otherwise does not reach.
        difference: from torch's maps on the images of the ranges; see ``TOLERANCE``.
    """

    graph: bytes
    means: Tensor
    difference: float

    @property
    def key(self) -> str:
        """The first 12 hexadecimal digits of the graph's SHA-256."""
        return hashlib.sha256(self.graph).hexdigest()[:12]

    def state_dict(self) -> dict[str, Any]:
        """Return plain values and tensors."""
        return {**vars(self), "graph": torch.frombuffer(bytearray(self.graph), dtype=torch.uint8)}

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> "Calibration":
        """Return the calibration of ``state_dict``."""
        return cls(**{**state, "graph": state["graph"].numpy().tobytes()})


def open_int8(model: Split, calibration: Calibration | None, images: Iterable[Tensor] | None = None) -> Runtime:
    """Open the runtime for the F of a model, with the ``calibration`` of before or ranges measured on ``images``.

    These are batches as for ``SplitModel.extract``, of which the first 64 images count. RuntimeRefusedError: a package
    is missing, the model is not on a CPU in float32, there are no images, or the maps differ from torch's, or from
    those of the machine that measured the ranges.
    """
    refuse_elsewhere(model, "int8")
    measured = torch.empty(0) if calibration is not None else _measured(model, images)
    with refused("int8", "openvino,onnx"):
        if calibration is None:
            calibration, run = _calibrated(model, measured)
        else:
            run = openvino_engine(calibration.graph)
            if not _difference(_means(model, run), calibration.means) <= SAME:
                raise RuntimeRefusedError(
                    "this machine computes other maps in int8 than the one that measured the ranges: use that one, or "
                    "learn anew with another --runtime"
                )
        named = f"{version('openvino')}-{calibration.key}"
    return_freed_memory()  # of the quantisation
    return Runtime("int8", named, difference=calibration.difference, run=run, calibration=calibration)


@contextmanager
def refused(name: str, extras: str) -> Iterator[None]:
    """Raise RuntimeRefusedError for the errors of a runtime's libraries, each of which has its own kinds."""
    try:
        yield
    except RuntimeRefusedError:
        raise
    except ImportError as error:
        raise RuntimeRefusedError(
            f'runtime {name} is not installed ({error}): pip install -e ".[{extras}]", or give --runtime torch'
        ) from error
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise RuntimeRefusedError(f"runtime {name} cannot run F ({reason}): give --runtime torch") from error


def _measured(model: Split, images: Iterable[Tensor] | None) -> Tensor:
    """Return the normalised images to measure ranges on."""
    batches = iter(() if images is None else images)
    first = next(batches, None)
    if first is None:
        raise RuntimeRefusedError(
            "runtime int8 measures ranges on images, and there are none: give them (crumb teach MODEL SOURCE --runtime "
            "int8, use_runtime('int8', images)), or another --runtime"
        )
    return torch.cat([model.normalized(some) for some in chain([first], batches)])[:IMAGES]


def _calibrated(model: Split, measured: Tensor) -> tuple[Calibration, Extract]:
    """Measure ranges, and compare the maps of the same images with torch's."""
    flags = Path("/proc/cpuinfo")
    vnni = "vnni" in flags.read_text(encoding="utf-8") if flags.exists() else platform.machine() == "arm64"
    largest = LARGEST if vnni else LARGEST_WITHOUT_VNNI
    given = onnx_of(model.feature_extractor, measured[:2])
    graph = quantized(given, measured, model.pixel_mean, model.pixel_std, largest)
    run = openvino_engine(graph)
    maps = [torch.cat([maps_of(model, one, some) for some in measured.split(8)]) for one in (run, None)]
    difference = _difference(*maps)
    if not difference <= TOLERANCE["int8"]:
        raise RuntimeRefusedError(
            f"runtime int8 differs from torch by {difference:.2f} of the maps (root mean square, on {len(measured)} "
            f"images), more than {TOLERANCE['int8']}: give another --runtime"
        )
    return Calibration(graph, _means(model, run), difference), run


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm().clamp_min(1e-30))


def _means(model: Split, run: Extract) -> Tensor:
    return maps_of(model, run, noise(model, 2)).mean((0, 2, 3))


@functools.cache
def _openvino_core(process: int):
    """Return the ``openvino.Core`` of a process; a forked process has none of its threads and opens its own.

    Never close it. When a Core is closed, it restores the previous stack of signal handlers (``sigaltstack``), which
    is unmapped if it belonged to a Core that was closed before. The next signal then crashes the process.
    """
    import openvino

    return openvino.Core()


def openvino_engine(graph: bytes) -> Extract:
    """Open an ONNX graph of F."""
    settings = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "f32",  # by default bf16 where the CPU has it
        "PERFORMANCE_HINT": "LATENCY",
    }
    core = _openvino_core(os.getpid())
    request = core.compile_model(core.read_model(graph), "CPU", settings).create_infer_request()
    # Without copies of images and maps; ``on_arrays`` makes the one that outlives the next call.
    return on_arrays(lambda images: request.infer({0: images}, share_inputs=True, share_outputs=True)[0])


def restore(model: Split, state: dict[str, Any] | None, recorded: Iterable[str]) -> None:
    """Let int8 run the F of a loaded model if it learned so.

    ``state`` is that of the calibration in the file, or ``None``; ``recorded`` are names and versions of the runtimes
    that it learned with. RuntimeRefusedError: int8 cannot be opened, or the calibration is absent or another.
    """
    calibration = None if state is None else Calibration.of_state(state)
    for one in recorded:
        if one.startswith("int8 ") and (calibration is None or not one.endswith(f"-{calibration.key}")):
            what = "the file holds no calibration" if calibration is None else f"it holds that of {calibration.key}"
            raise RuntimeRefusedError(
                f"this was learned with runtime {one}, but {what}: take the file from where it was written, or learn "
                "anew"
            )
    if calibration is not None:
        model.runtime = open_int8(model, calibration)
