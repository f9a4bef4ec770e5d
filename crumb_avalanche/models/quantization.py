"""Quantise the ONNX graph of F to 8-bit integers, so that its maps stay near those in float32.

ONNX Runtime quantises: weights by channel, maps by their smallest and largest value. Three steps before it change the
graph so that this loses less. In float32 the maps stay the same.

1. ``_take_pixels``: the first convolution takes pixels from 0 to 255, which are integers of 8 bits already.
2. ``_equalize``: a channel of large values would decide the range of all channels of a map. Where only ReLU, pooling
   and concatenation are between two convolutions, each channel is divided by its range in the first and multiplied by
   it in the second (Nagel et al. 2019, https://arxiv.org/abs/1906.04721).
3. ``rounded``: the weights of a convolution are rounded so that their errors make up for each other.
"""

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

LARGEST = 127  # of a weight in 8 bits
# Of a weight in 7 bits: a CPU without VNNI adds two products in 16 bits, which 255 * 127 * 2 do not fit.
LARGEST_WITHOUT_VNNI = 64
DAMPING = 0.01  # of the mean diagonal, added to second moments, which may be singular
PATCHES = 64  # of each image that a convolution's inputs are measured on
# Inputs, as of 3 x 3 of 64 channels, whose second moments are kept and whose weights are rounded together.
LARGEST_BLOCK = 576
SMALLEST_RANGE = 1e-3  # of a channel, relative to the largest of its map: dead channels have none
SCALABLE = ("Relu", "MaxPool", "AveragePool", "GlobalAveragePool", "Concat")  # a scaled channel is scaled after it


@dataclass
class _Conv:
    """A convolution with constant weights, and what it takes in.

    Attributes:
        node: of the graph.
        groups: of channels.
        blocks: that its inputs are parted in, so that ``moments`` stay small.
        largest: ``(C,)`` largest absolute value of each channel of its input.
        moments: ``(groups * blocks, K, K)`` second moments of the K inputs of each block, in float64.
    """

    node: Any
    groups: int
    blocks: int
    largest: Tensor = field(default_factory=lambda: torch.zeros(()))
    moments: Tensor = field(default_factory=lambda: torch.zeros(()))


def quantized(graph: bytes, images: Tensor, mean: Tensor, std: Tensor, largest: int = LARGEST) -> bytes:
    """Quantise an ONNX graph of F, from ``images`` to ``maps``, with weights up to ``largest``.

    It measures on ``(B, 3, h, w)`` images, normalised by ``(1, 3, 1, 1)`` mean and deviation where white is 1.
    """
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        left = iter(images)

        def get_next(self) -> dict[str, Any] | None:
            image = next(self.left, None)
            return None if image is None else {"images": image[None].numpy()}

    with tempfile.TemporaryDirectory() as folder:
        given, prepared, written = (os.path.join(folder, name) for name in ("given", "prepared", "written"))
        Path(given).write_bytes(graph)
        quant_pre_process(given, prepared, skip_symbolic_shape=True)
        model = onnx.load(prepared)
        overrides, excluded = _prepare(model, images, mean, std, largest)
        onnx.save(model, prepared)
        quantize_static(
            prepared,
            written,
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            weight_type=QuantType.QInt8,
            activation_type=QuantType.QUInt8,
            nodes_to_exclude=excluded,
            extra_options={"TensorQuantOverrides": overrides},
        )
        return Path(written).read_bytes()


def _prepare(
    model: Any, images: Tensor, mean: Tensor, std: Tensor, largest: int
) -> tuple[dict[str, list[dict]], list[str]]:
    """Change a graph in the three steps, and return scales that are known and the nodes to leave in float32."""
    weights = _Weights(model)
    overrides: dict[str, list[dict]] = {}
    excluded = _take_pixels(model, weights, mean, std)
    if excluded:
        overrides["pixels"] = [{"scale": np.array(1, np.float32), "zero_point": np.array(0, np.uint8)}]
    convs = []
    for node in model.graph.node:
        if node.op_type == "Conv" and node.input[1] in weights and weights[node.input[1]].ndim == 4:
            convs.append(_Conv(node, _attribute(node, "group", 1), _blocks(weights[node.input[1]].shape)))
    _measure(model, convs, weights, images)
    _equalize(model, convs, weights)
    zero = np.array(0, np.int8)
    for conv in convs:
        name = conv.node.input[1]
        weights[name], scales = rounded(weights[name], conv.moments, conv.groups, largest)
        overrides[name] = [{"axis": 0, "scale": scale, "zero_point": zero} for scale in scales.numpy()]
    return overrides, excluded


class _Weights:
    """The constants of a graph's convolutions by name, as tensors; each convolution gets its own."""

    def __init__(self, model: Any) -> None:
        shared = {one.name: one for one in model.graph.initializer}
        self._protos = {}
        for node in model.graph.node:
            for place, name in enumerate(node.input):
                if node.op_type == "Conv" and name in shared:
                    own = model.graph.initializer.add()
                    own.CopyFrom(shared[name])
                    own.name = node.input[place] = f"{node.output[0]}_{place}"
                    self._protos[own.name] = own
        used = {name for node in model.graph.node for name in node.input}
        for proto in shared.values():
            if proto.name not in used:
                model.graph.initializer.remove(proto)

    def __contains__(self, name: str) -> bool:
        return name in self._protos

    def __getitem__(self, name: str) -> Tensor:
        from onnx import numpy_helper

        return torch.from_numpy(numpy_helper.to_array(self._protos[name]).copy())

    def __setitem__(self, name: str, values: Tensor) -> None:
        from onnx import numpy_helper

        self._protos[name].CopyFrom(numpy_helper.from_array(values.numpy(), name))


def _attribute(node: Any, name: str, default: Any) -> Any:
    from onnx import helper

    return next((helper.get_attribute_value(one) for one in node.attribute if one.name == name), default)


def _has_bias(node: Any, weights: _Weights) -> bool:
    return len(node.input) == 3 and node.input[2] in weights


def _take_pixels(model: Any, weights: _Weights, mean: Tensor, std: Tensor) -> list[str]:
    """Let the first convolution take pixels; return the names of the nodes that compute them, none if it cannot."""
    from onnx import helper, numpy_helper

    users = [node for node in model.graph.node if "images" in node.input]
    first = users[0]
    known = first.op_type == "Conv" and first.input[1] in weights and _has_bias(first, weights)
    if len(users) > 1 or not known or weights[first.input[1]].shape[1] != 3:
        return []
    scale, shift = 255 * std, 255 * mean
    weight = weights[first.input[1]]
    weights[first.input[1]] = weight / scale
    weights[first.input[2]] -= (weight * mean / std).sum((1, 2, 3))
    constants = {"pixels_std": scale.float().numpy(), "pixels_mean": shift.float().numpy()}
    nodes = [
        helper.make_node("Mul", ["images", "pixels_std"], ["pixels_scaled"], name="pixels_scale"),
        helper.make_node("Add", ["pixels_scaled", "pixels_mean"], ["pixels"], name="pixels_shift"),
    ]
    pads = _attribute(first, "pads", [0, 0, 0, 0])
    if any(pads):  # before, with the mean, within half a pixel's value; the convolution would pad with black
        constants["pixels_pads"] = np.array([0, 0, *pads[:2], 0, 0, *pads[2:]], np.int64)
        nodes.insert(0, helper.make_node("Pad", ["images", "pixels_pads"], ["pixels_padded"], name="pixels_pad"))
        nodes[1].input[0] = "pixels_padded"
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    for place, node in enumerate(nodes):
        model.graph.node.insert(place, node)
    first.input[0] = "pixels"
    for one in [one for one in first.attribute if one.name == "pads"]:
        first.attribute.remove(one)
    return [node.name for node in nodes]


def _measure(model: Any, convs: list[_Conv], weights: _Weights, images: Tensor) -> None:
    """Measure the inputs of convolutions on images, one at a time.

    Sums in float64 do not depend on their order in what is rounded by them, so not on the number of threads.
    """
    import onnxruntime
    from onnx import ModelProto, helper

    observed, names = ModelProto(), sorted({conv.node.input[0] for conv in convs})
    observed.CopyFrom(model)
    del observed.graph.output[:]
    observed.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(observed.SerializeToString(), options, ["CPUExecutionProvider"])
    chosen = torch.Generator().manual_seed(0)
    for image in images:
        inputs = dict(zip(names, session.run(names, {"images": image[None].numpy()}), strict=True))
        for conv in convs:
            taken = torch.from_numpy(inputs[conv.node.input[0]])
            conv.largest = torch.maximum(conv.largest, taken.abs().amax((0, 2, 3)))
            patches = _patches(conv, weights[conv.node.input[1]].shape[2:], taken)
            some = torch.randperm(len(patches), generator=chosen)[:PATCHES]
            grouped = patches[some].double().unflatten(1, (conv.groups * conv.blocks, -1)).transpose(0, 1)
            conv.moments = conv.moments + grouped.mT @ grouped


def _blocks(shape: torch.Size) -> int:
    """Return the fewest blocks of equally many channels that have ``LARGEST_BLOCK`` inputs or fewer."""
    channels, area = shape[1], shape[2:].numel()
    counts = (count for count in range(1, channels) if channels % count == 0)
    return next((count for count in counts if channels // count * area <= LARGEST_BLOCK), channels)


def _patches(conv: _Conv, kernel: torch.Size, taken: Tensor) -> Tensor:
    """Return ``(L, C * kernel)``: what each output of a convolution is computed from."""
    top, left, bottom, right = _attribute(conv.node, "pads", [0, 0, 0, 0])
    padded = torch.nn.functional.pad(taken, (left, right, top, bottom))
    dilation, stride = (_attribute(conv.node, name, [1, 1]) for name in ("dilations", "strides"))
    return torch.nn.functional.unfold(padded, tuple(kernel), tuple(dilation), stride=tuple(stride))[0].T


def _equalize(model: Any, convs: list[_Conv], weights: _Weights) -> None:
    """Give the channels between convolutions the same range."""
    ends, by_output = _Ends(model), {conv.node.output[0]: conv for conv in convs}
    for conv in convs:
        readers = [(by_output.get(name), start) for name, start in ends.of(conv.node.output[0])]
        found = [(one, start) for one, start in readers if one is not None and one.groups == 1]
        if not found or len(found) < len(readers) or not _has_bias(conv.node, weights):
            continue
        _, name, bias = conv.node.input
        count = len(weights[bias])
        first, start = found[0]
        ranges = first.largest[start : start + count].clamp_min(SMALLEST_RANGE * float(first.largest.max()))
        if not ranges.min() > 0:
            continue  # a map of zeros
        weights[name] = weights[name] / ranges.view(-1, 1, 1, 1)
        weights[bias] = weights[bias] / ranges
        for one, start in found:
            weight = weights[one.node.input[1]]
            scales = torch.ones(weight.shape[1])
            scales[start : start + count] = ranges
            weights[one.node.input[1]] = weight * scales.view(1, -1, 1, 1)
            inputs = scales.double().repeat_interleave(weight[0, 0].numel()).view(one.blocks, -1)
            one.moments = one.moments / inputs[:, None] / inputs[..., None]


class _Ends:
    """Which nodes take in the channels of a map."""

    def __init__(self, model: Any) -> None:
        self._users: dict[str, list[tuple[Any, int]]] = defaultdict(list)
        for node in model.graph.node:
            for place, name in enumerate(node.input):
                self._users[name].append((node, place))
        self._outputs = {one.name for one in model.graph.output}
        shapes = {one.name: one.type.tensor_type.shape.dim for one in model.graph.value_info}
        self._channels = {name: dims[1].dim_value for name, dims in shapes.items() if len(dims) == 4}

    def of(self, name: str, start: int = 0) -> Iterator[tuple[str, int]]:
        """Yield the output's name of each node, "" for the graph's end, and its channel where the map starts."""
        if name in self._outputs:
            yield "", start
        for node, place in self._users[name]:
            before = [self._channels.get(one, 0) for one in node.input[:place]]
            of_channels = node.op_type != "Concat" or _attribute(node, "axis", 1) == 1
            if node.op_type in SCALABLE and of_channels and all(before):
                yield from self.of(node.output[0], start + sum(before))
            else:
                yield node.output[0], start


@torch.no_grad()
def rounded(weight: Tensor, moments: Tensor, groups: int = 1, largest: int = LARGEST) -> tuple[Tensor, Tensor]:
    """Round ``(O, C / groups, ...)`` weights to multiples of a scale of each output, up to ``largest``; return both.

    They are rounded one after the other, and those that follow make up for the error on what the layer takes in (GPTQ,
    Frantar et al. 2023, https://arxiv.org/abs/2210.17323), by ``(groups * blocks, K, K)`` second moments of that.
    """
    count = moments.shape[1]
    scale = weight.flatten(1).abs().amax(1).div(largest).clamp_min(torch.finfo(torch.float32).tiny)
    mean = moments.diagonal(dim1=1, dim2=2).mean(1)
    damping = DAMPING * torch.where(mean > 0, mean, 1.0)
    damped = moments + damping.view(-1, 1, 1) * torch.eye(count, dtype=moments.dtype)
    # Row j of the factor says how an error of weight j is made up for by those that follow.
    factor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(damped)), upper=True)
    factor = factor.unflatten(0, (groups, -1))  # groups, blocks, K, K
    left = (weight.double().flatten(1) / scale[:, None]).view(groups, len(weight) // groups, -1, count).transpose(1, 2)
    found = torch.empty_like(left)  # groups, blocks, outputs, K
    for place in range(count):
        found[..., place] = left[..., place].round().clamp(-largest, largest)
        error = (left[..., place] - found[..., place]) / factor[..., place, place, None]
        left[..., place:] -= error[..., None] * factor[..., place, None, place:]
    whole = found.transpose(1, 2).reshape(len(weight), -1).float() * scale[:, None]
    return whole.view_as(weight), scale
