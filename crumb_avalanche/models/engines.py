"""What runs the frozen feature extractor F: torch, or an engine made for inference."""

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from crumb_avalanche.system.process import end_idle_threads

# Largest difference from torch's maps, relative to the largest value; bf16 has 8 significant bits. That of int8 is the
# root mean square on the images of its ranges, relative to that of the maps.
TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2, "int8": 0.2}
# Most images that F takes at a time on a CPU. They fit its caches: a third faster than batches of 24. Convolutions
# treat each image of a batch of 2 to 8 alike, so a map does not depend on its batch.
IMAGES_AT_A_TIME = 8
OPSET = 17  # of 2022, as for exported learners

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
        difference: largest difference from torch's maps on noise, relative to their largest value; of int8, see there.
        run: function from normalised images ``(B, 3, h, w)`` to maps; ``None`` for F itself.
        calibration: of int8, an ``int8.Calibration``.
    """

    name: str = "torch"
    version: str = str(torch.__version__)
    images_at_a_time: int = IMAGES_AT_A_TIME
    difference: float = 0.0
    run: Extract | None = field(default=None, repr=False, compare=False)
    calibration: Any = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def described(self) -> str:
        """Name, version, number of images at a time and difference from torch, in words."""
        parity = f", maps within {self.difference:.1e} of torch's (allowed {TOLERANCE['fp32']:.0e})"
        if self.calibration is not None:
            parity = f", rms difference {self.difference:.3f} from torch's maps (allowed {TOLERANCE['int8']})"
        return f"runtime {self}, {self.images_at_a_time} images at a time{'' if self.name == 'torch' else parity}"


TORCH = Runtime()


def _channels_last(run: Extract) -> Extract:
    return lambda images: run(images.contiguous(memory_format=torch.channels_last))


def compiled(network: nn.Module, example: Tensor | None = None) -> Extract:
    """Compile F, with its weights as constants; torch does so at the first batch of each shape."""
    return _channels_last(torch.compile(network, options={"freezing": True}))


def _onnxruntime(network: nn.Module, example: Tensor) -> Extract:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    # Threads that wait within F spin, as waking them takes longer than a layer for one image. After it they would take
    # the cores from torch's, which run P.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(onnx_of(network, example), options, providers=["CPUExecutionProvider"])
    return on_arrays(lambda images: session.run(None, {"images": images})[0])


def on_arrays(run: Callable[[Any], Any]) -> Extract:
    """Wrap a function of numpy arrays, which are contiguous."""

    def extract(images: Tensor) -> Tensor:
        array = images.contiguous().numpy()
        end_idle_threads()
        return torch.from_numpy(run(array)).clone(memory_format=torch.channels_last)

    return extract


def onnx_of(network: nn.Module, example: Tensor) -> bytes:
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


BUILDERS: dict[str, Callable[[nn.Module, Tensor], Extract]] = {"compiled": compiled, "onnxruntime": _onnxruntime}


def refuse_elsewhere(model: Split, name: str) -> None:
    """Raise RuntimeRefusedError for a runtime in float32 on a CPU if the model runs elsewhere."""
    device = model.pixel_mean.device.type
    if device != "cpu" or model.precision != "fp32":
        raise RuntimeRefusedError(
            f"runtime {name} runs on a CPU in float32, not on {device} in {model.precision}: give --runtime torch or "
            "compiled"
        )


@torch.no_grad()
def maps_of(model: Split, run: Extract | None, images: Tensor) -> Tensor:
    """Compute maps of normalised images, in torch if ``run`` is ``None``."""
    with model.autocast():
        return (run or _channels_last(model.feature_extractor))(images).float()


def noise(model: Split, count: int) -> Tensor:
    """Return normalised images of noise, always the same."""
    shape = (count, 3, model.image_size, model.image_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(model.pixel_mean.device)
