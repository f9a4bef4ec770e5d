"""Cut of a network at a module or operation.

Only the code around the cut and the head is traced; other modules are called as they
are. So networks can be cut whose blocks ``torch.fx`` cannot trace, and hooks on modules
work.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, fx, nn

from crumb_avalanche.models.codebook import Codebook, check_codebook
from crumb_avalanche.models.layers import Layout
from crumb_avalanche.models.split_model import SplitModel, check_float32
from crumb_avalanche.system.process import float32_by_default
from crumb_avalanche.system.setting_ranges import ImageSize, check_count


class CutError(ValueError):
    """A network cannot be cut where it should be."""


@float32_by_default()
def split_at(
    network: nn.Module,
    node: str,
    *,
    n_classes: int,
    codebook: Codebook | None = None,
    image_size: int = 224,
) -> SplitModel:
    """Split any network whose forward pass ``torch.fx`` can trace around the cut.

    ``(B, N, C)`` tokens of a transformer become a map, the grid of patches if ``N`` is
    a square, else ``(B, C, N, 1)``. Maps with four axes need their channels in the
    second axis.

    Args:
        network: a classifier of ``(B, 3, h, w)`` images, such as any of torchvision or
            timm.
        node: the last module or operation of F, by the names that
            ``torchvision.models.feature_extraction.get_graph_node_names(network)``
            lists, for instance ``layer4.0``.
        n_classes: outputs of the new head, which replaces the linear or convolutional
            layer that is used last.
        codebook: the codebook between F and P, such as ``Codebook()``; CRUMB needs one.
        image_size: side of the images in pixels.

    Raises:
        TypeError: the network has a dynamic module of Avalanche, such as an
            ``IncrementalClassifier``; or its weights are not float32.
        ValueError: the node does not exist, its map has the channels last, or later
            layers need more than its output.
    """
    check_count("image_size", image_size, ImageSize)
    check_float32(network)
    for name, module in network.named_modules():
        # By name: this room does without Avalanche.
        if any(kind.__name__ == "DynamicModule" for kind in type(module).__mro__):
            raise TypeError(
                f"{name or 'network'} is a dynamic module of Avalanche, such as IncrementalClassifier or "
                "as_multitask(...), which grows with the classes or tasks and cannot be traced; give a network with an "
                "nn.Linear head, which split_at replaces by one of n_classes outputs: strategies mask the classes not "
                "seen yet"
            )
    try:
        model = split_after(
            network,
            node,
            last_layer(network, image_size),
            n_classes=n_classes,
            image_size=image_size,
        )
    except CutError as error:
        raise ValueError(
            f"the network cannot be cut after {node!r}: {error}; choose a node that everything passes through, such as "
            "the end of a block"
        ) from error
    check_codebook(codebook, model.map_shape[0])
    model.codebook = codebook
    return model


@torch.no_grad()
def last_layer(network: nn.Module, image_size: int) -> str:
    """Return the name of the linear or convolutional layer that a network uses last; it is set to evaluation mode."""
    used: list[str] = []
    handles = [
        module.register_forward_hook(lambda *call, name=name: used.append(name))
        for name, module in network.eval().named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d)
    ]
    try:
        network(torch.zeros(1, 3, image_size, image_size))
    finally:
        for handle in handles:
            handle.remove()
    if not used:
        raise CutError(
            "it uses no linear or convolutional layer, which could become the head"
        )
    return used[-1]


def split_after(
    network: nn.Module,
    node: str | None,
    head: str,
    *,
    n_classes: int,
    image_size: int = 224,
    layout: Layout | None = None,
) -> SplitModel:
    """Cut a network after a node. F has its operations up to the node, P all others, with ``body`` and ``head``.

    ``(B, N, C)`` tokens become a map. Without prefix tokens it is the grid of patches,
    ``(B, C, H, W)``. Class token and registers are further locations: the map is ``(B,
    C, N, 1)`` then, they come first, P gets them as the network gave them, and
    ``SplitModel.places`` returns the grid without them.

    Args:
        network: a classifier of ``(B, 3, h, w)`` images.
        node: name of the last module or operation of F; ``None`` leaves F empty.
        head: name of the last linear or convolutional layer, which gets ``n_classes``
            outputs.
        image_size: side of the images in pixels.
        layout: of what modules return; default ``(B, C, H, W)``, or tokens of patches
            only.

    Raises CutError if it cannot be traced, has no such node, or later layers need more
    than its output.
    """
    network = network.eval()
    nodes = _traced(network, [head] if node is None else [node, head])
    order = list(nodes)
    images = next(one for one in order if one.op == "placeholder")
    # The name of a module that is traced stands for the last of its operations.
    found = [
        one
        for one, name in nodes.items()
        if node and (name == node or name.startswith(f"{node}."))
    ]
    if node is not None and not found:
        known = [
            name
            for one, name in nodes.items()
            if one.op not in ("placeholder", "output")
        ]
        raise CutError(f"it has no node {node!r}; around it are {', '.join(known)}")
    cut = found[-1] if found else images
    calls = [one for one in order if one.op == "call_module" and one.target == head]
    if len(calls) != 1 or order.index(calls[0]) <= order.index(cut):
        raise CutError(
            f"no linear or convolutional layer that is used once follows (the last one is {head!r})"
        )
    (last,), result = calls, order[-1].args[0]
    if not isinstance(result, fx.Node):
        raise CutError(f"it returns a {type(result).__name__}, not logits")
    extractor: nn.Module = nn.Sequential()
    from_map: list[tuple] = []
    grid = None
    if cut is not images:
        to_map, from_map, grid = _lay_out(
            _part(network, nodes, images, cut), image_size, layout or Layout()
        )
        extractor = _part(network, nodes, images, cut, last=to_map)
    body = _part(network, nodes, cut, last.all_input_nodes[0], first=from_map)
    layers = OrderedDict(body=body, head=network.get_submodule(head))
    if result is not last:
        layers["tail"] = _part(network, nodes, last, result)
    model = SplitModel(extractor, nn.Sequential(layers), "head", image_size=image_size)
    model.token_grid = grid
    model.stages = () if node is None else (node,)
    model.reset_head(n_classes)
    return model


class _Network(nn.Module):
    """Calls a network with images only: its optional arguments keep their defaults in the trace."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, images):
        return self.network(images)


def _traced(network: nn.Module, names: list[str]) -> dict[fx.Node, str]:
    """Return the operations of a network in order, with their names; only what contains the names is traced."""
    from torchvision.models.feature_extraction import (
        NodePathTracer,
    )  # takes seconds to import

    paths = [f"network.{name}".split(".") for name in names]
    opened = {
        "",
        *(".".join(path[:length]) for path in paths for length in range(1, len(path))),
    }
    tracer = NodePathTracer()
    tracer.is_leaf_module = lambda module, path: path not in opened  # type: ignore[method-assign]
    try:
        graph = tracer.trace(_Network(network))
    except (fx.proxy.TraceError, RuntimeError, TypeError) as error:
        raise CutError(f"its forward pass cannot be traced ({error})") from error
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            node.target = node.target.removeprefix("network.")
            if node.target.startswith(
                "_tensor_constant"
            ):  # computed from buffers while tracing
                network.register_buffer(node.target, getattr(tracer.root, node.target))
    names_of = tracer.node_to_qualname
    return {
        node: names_of.get(node, node.name).removeprefix("network.")
        for node in graph.nodes
    }


def _part(
    network: nn.Module,
    nodes: dict[fx.Node, str],
    start: fx.Node,
    end: fx.Node,
    first: Iterable[tuple] = (),
    last: Iterable[tuple] = (),
) -> fx.GraphModule:
    """Make a module of the operations between ``start``, whose value is its input, and ``end``, which it returns.

    ``first`` are methods of tensors, with arguments, that are called on the input, and
    ``last`` on the result.
    """
    graph, order = fx.Graph(), list(nodes)
    copies = {start: _called(graph, graph.placeholder("values"), first)}
    inside = order[order.index(start) + 1 : order.index(end) + 1]
    for node in [*(node for node in order if node.op == "get_attr"), *inside]:
        missing = [source for source in node.all_input_nodes if source not in copies]
        if missing:
            raise CutError(
                f"{nodes[node]} also needs {nodes[missing[0]]} from before the cut"
            )
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(_called(graph, copies[end], last))
    for node in [
        node for node in graph.nodes if node.op == "get_attr" and not node.users
    ]:
        graph.erase_node(node)
    return fx.GraphModule(network, graph)


def _called(graph: fx.Graph, value: fx.Node, methods: Iterable[tuple]) -> fx.Node:
    for name, *arguments in methods:
        value = graph.call_method(name, (value, *arguments))
    return value


@torch.no_grad()
def _lay_out(
    extractor: fx.GraphModule, image_size: int, layout: Layout
) -> tuple[list[tuple], list[tuple], tuple[int, int] | None]:
    """Return methods that make a map of what F returns, methods that take it back, and ``token_grid``."""
    try:
        values = extractor(torch.zeros(1, 3, image_size, image_size))
    except (RuntimeError, AssertionError) as error:
        raise CutError(
            f"it cannot take images of {image_size} pixels ({error}); give another image_size"
        ) from error
    shape = tuple(values.shape) if isinstance(values, Tensor) else ()
    if len(shape) not in (3, 4):
        kind = (
            f"a tensor of shape {shape}"
            if isinstance(values, Tensor)
            else f"a {type(values).__name__}"
        )
        raise CutError(f"it returns {kind}, not a map (B, C, H, W) or tokens (B, N, C)")
    if len(shape) == 4:
        if layout.channels_last:
            return [("permute", 0, 3, 1, 2)], [("permute", 0, 2, 3, 1)], None
        # Images are square, so the two equal sides of a map show where its channels
        # are.
        if shape[1] == shape[2] != shape[3]:
            raise CutError(
                f"it gives {shape} for one image, with the channels last; a feature map is (B, C, H, W): cut after the "
                "operation that puts the channels second again (node 'permute' of torchvision's Swin)"
            )
        return [], [], None
    if math.isqrt(shape[1]) ** 2 == shape[1] and layout.grid(shape[1])[1] == 1:
        layout = replace(
            layout, prefix_tokens=0
        )  # the other tokens are added after the cut
    grid = layout.grid(shape[1])
    places = ("unsqueeze", 3) if layout.prefix_tokens else ("unflatten", 2, grid)
    to_map, from_map = (
        [("transpose", 1, 2), places],
        [("flatten", 2), ("transpose", 1, 2)],
    )
    return to_map, from_map, grid if layout.prefix_tokens else None
