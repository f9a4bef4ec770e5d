"""Runtimes of the frozen F: torch as it is, or a library made for inference.

They compute the same maps up to rounding. A runtime is compared with torch on noise
each time it is opened, and refused where it differs by more than ``TOLERANCE``.
"""

import io
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks_toybox_ilab.tables.forks import never_freed_in_forks
from crumb_avalanche.system.process import return_freed_memory

# Largest difference from torch's maps, relative to the largest value; bf16 has 8
# significant bits.
TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2}
OPSET = 17  # of ONNX, of 2022, which every runtime has; nothing newer is needed
STANDS_FOR_AUTO = "CRUMB_RUNTIME"  # environment variable: the runtime that auto takes

Extract = Callable[[Tensor], Tensor]
Split = Any  # a SplitModel, whose module imports this one


class RuntimeRefusedError(ValueError):
    """A runtime is not installed, cannot run F, or computes other maps than torch."""


@dataclass(frozen=True)
class Runtime:
    """What runs F.

    Attributes:
        name: one of ``RUNTIMES``.
        version: version of its library.
        difference: largest difference from torch's maps on noise, relative to their
            largest value.
        run: function from normalised images ``(B, 3, h, w)`` to maps; ``None`` for F
            itself.
    """

    name: str = "torch"
    version: str = str(torch.__version__)
    difference: float = 0.0
    run: Extract | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def described(self) -> str:
        """Name, version and difference from torch, in words."""
        if self.name == "torch":
            return f"runtime {self}"
        return (
            f"runtime {self}, maps within {self.difference:.1e} of torch's (allowed "
            f"{TOLERANCE['fp32']:.0e})"
        )


TORCH = Runtime()


def _with_channels_last(run: Extract) -> Extract:
    """Return a function that lays images out with channels last, and runs F."""
    return lambda images: run(images.contiguous(memory_format=torch.channels_last))


def onnx_bytes(
    network: nn.Module, example: Tensor, axes: dict[str, dict[int, str]]
) -> bytes:
    """Trace a network as an ONNX graph.

    torch's TorchScript exporter is used: unlike the newer one, it works in every
    version of torch from 2.4 on, needs no onnxscript, and takes a second instead of
    ten.

    Args:
        network: in evaluation mode.
        example: an input of it, whose pass is traced.
        axes: by the names of input and outputs, in order, the axes that may have any
            size, with their names, as in ``{"images": {0: "batch"}, ...}``.

    Returns:
        The content of an ONNX file.
    """
    input_name, *output_names = axes
    graph = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter is deprecated, and traces shapes
        torch.onnx.export(
            network,
            (example,),
            graph,  # type: ignore[arg-type]
            dynamo=False,
            opset_version=OPSET,
            input_names=[input_name],
            output_names=output_names,
            dynamic_axes=axes,
        )
    return graph.getvalue()


def _onnxruntime(network: nn.Module, example: Tensor) -> Extract:
    """Build a function of images to feature maps that runs in ONNX Runtime.

    Args:
        network: the feature extractor F.
        example: images, ``(B, 3, h, w)`` float32 on the CPU, whose pass is traced; the
            function takes any number of them.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    # Threads that wait within F spin, as waking them takes longer than a layer for one
    # image. After it they would take the cores from torch's, which run P.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    graph = onnx_bytes(network, example, {"images": {0: "batch"}, "maps": {0: "batch"}})
    session = onnxruntime.InferenceSession(
        graph, options, providers=["CPUExecutionProvider"]
    )
    never_freed_in_forks(session)  # which would wait for threads of the parent

    def extract(images: Tensor) -> Tensor:
        """Compute maps ``(B, C, H, W)`` of ``(B, 3, h, w)`` images."""
        (maps,) = session.run(None, {"images": images.contiguous().numpy()})
        # In the memory format that convolutions of P compute fastest in.
        return torch.from_numpy(maps).clone(memory_format=torch.channels_last)

    return extract


BUILDERS: dict[str, Callable[[nn.Module, Tensor], Extract]] = {
    # With the weights as constants; torch compiles at the first batch of each shape.
    "compiled": lambda network, example: _with_channels_last(
        torch.compile(network, options={"freezing": True})
    ),
    "onnxruntime": _onnxruntime,
}
RUNTIMES = ("torch", *BUILDERS)


def use_runtime(model: Split, name: str) -> Runtime:
    """Let a runtime compute a model's feature maps from now on, and return it.

    It runs the feature extractor F. A copy of the model runs torch again. Call it when
    F has its weights, the model its precision and device, and torch its threads.

    Args:
        model: its ``runtime`` is set.
        name: one of ``RUNTIMES``; or ``auto``: what the environment names in
            ``CRUMB_RUNTIME``, else ONNX Runtime where it is installed and can run F,
            else torch.

    Raises:
        RuntimeRefusedError: it is not installed, cannot run F or computes other maps.
        ValueError: the name is unknown.
    """
    model.runtime = TORCH
    if name == "auto":
        name = os.environ.get(STANDS_FOR_AUTO) or "auto"  # CRUMB_RUNTIME
    if name == "auto":
        with suppress(RuntimeRefusedError):
            model.runtime = open_runtime(model, "onnxruntime")
    else:
        model.runtime = open_runtime(model, name)
    return model.runtime


@torch.no_grad()
def open_runtime(model: Split, name: str) -> Runtime:
    """Open a runtime for a model's feature extractor, and compare it with torch.

    Both compute the maps of two images of noise.

    Args:
        model: stays as it is.
        name: one of ``RUNTIMES``.

    Returns:
        The runtime, whose ``run`` computes maps ``(B, C, H, W)`` of images; torch where
        the extractor is empty.

    Raises:
        RuntimeRefusedError: it is not installed, cannot run F or computes other maps.
        ValueError: the name is unknown.
    """
    if name not in RUNTIMES:
        raise ValueError(f"runtime is {name!r}; use one of auto, {', '.join(RUNTIMES)}")
    device = model.pixel_mean.device
    if name == "torch" or model.extractor_is_empty:
        return TORCH
    is_float_on_cpu = device.type == "cpu" and model.precision == "fp32"
    if name == "onnxruntime" and not is_float_on_cpu:
        raise RuntimeRefusedError(
            f"runtime {name} runs on a CPU in float32, not on {device.type} in "
            f"{model.precision}: give --runtime torch or compiled"
        )
    shape = (2, 3, model.input_side, model.input_side)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(shape, generator=generator, dtype=torch.float32).to(device)
    try:
        with model.autocast():
            # Functions of images that compute maps.
            run = BUILDERS[name](model.feature_extractor, noise)
            maps = run(noise).float()
            run_in_torch = _with_channels_last(model.feature_extractor)
            torch_maps = run_in_torch(noise).float()
    except ImportError as error:
        raise RuntimeRefusedError(
            f"runtime {name} is not installed ({error}): "
            'pip install -e ".[onnx]", or give --runtime torch'
        ) from error
    except Exception as error:  # each library has its own kinds
        reason = str(error).strip().partition("\n")[0]
        raise RuntimeRefusedError(
            f"runtime {name} cannot run F ({reason}): give --runtime torch"
        ) from error
    largest_value = torch_maps.abs().max().clamp_min(1e-30)  # no division by 0
    difference = float((maps - torch_maps).abs().max() / largest_value)
    if not difference <= TOLERANCE[model.precision]:
        raise RuntimeRefusedError(
            f"runtime {name} differs from torch by {difference:.1e} of the largest "
            f"value, more than {TOLERANCE[model.precision]:.0e}: give --runtime torch"
        )
    return_freed_memory()  # of the export and of an engine that was open before
    library_version = str(torch.__version__)
    if name == "onnxruntime":
        library_version = version(name)
    return Runtime(
        name=name,
        version=library_version,
        difference=difference,
        run=run,
    )
