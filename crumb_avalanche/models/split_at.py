"""Cut of a network at a module or operation.

Only the code around the cut and the head is traced; other modules are called as they
are. So networks can be cut whose blocks ``torch.fx`` cannot trace, and hooks on modules
work.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor, fx, nn

from crumb_avalanche.models.codebook import Codebook, check_codebook
from crumb_avalanche.models.layers import Layout, check_float32
from crumb_avalanche.models.split_model import SplitModel
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

    Example:
        >>> from torch import nn
        >>> from crumb_avalanche import Codebook, split_at
        >>> network = nn.Sequential(
        ...     nn.Conv2d(3, 8, 3, stride=2, padding=1),
        ...     nn.ReLU(),
        ...     nn.AdaptiveAvgPool2d(1),
        ...     nn.Flatten(),
        ...     nn.Linear(8, 1000),
        ... )
        >>> model = split_at(
        ...     network, "1", n_classes=5, codebook=Codebook(16, 4), image_size=32
        ... )
        >>> model.map_shape, model.n_classes
        ((8, 16, 16), 5)

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
                f"{name or 'network'} is a dynamic module of Avalanche, such as "
                "IncrementalClassifier or as_multitask(...), which grows with the "
                "classes or tasks and cannot be traced; give a network with an "
                "nn.Linear head, which split_at replaces by one of n_classes outputs: "
                "strategies mask the classes not seen yet"
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
            f"the network cannot be cut after {node!r}: {error}; choose a node that "
            "everything passes through, such as the end of a block"
        ) from error
    check_codebook(codebook, model.map_shape[0])
    model.codebook = codebook
    return model


@torch.no_grad()
def last_layer(network: nn.Module, image_size: int) -> str:
    """Return the name of the linear or convolutional layer that a network uses last.

    The network is set to evaluation mode.
    """
    used: list[str] = []
    handles = []
    for name, module in network.eval().named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            handle = module.register_forward_hook(
                lambda *call, name=name: used.append(name)
            )
            handles.append(handle)
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
    """Cut a network after a node.

    F has its operations up to the node, P all others, as ``body`` and ``head``. ``(B,
    N, C)`` tokens become a map. Without prefix tokens it is the grid of patches, ``(B,
    C, H, W)``. Class token and registers are further locations: the map is ``(B, C, N,
    1)`` then, they come first, P gets them as the network gave them, and
    ``SplitModel.places`` returns the grid without them.

    Args:
        network: a classifier of ``(B, 3, h, w)`` images.
        node: name of the last module or operation of F; ``None`` leaves F empty.
        head: name of the last linear or convolutional layer, which gets ``n_classes``
            outputs.
        image_size: side of the images in pixels.
        layout: of what modules return; default ``(B, C, H, W)``, or tokens of patches
            only.

    Raises:
        CutError: it cannot be traced, has no such node, or later layers need more than
            its output.
    """
    network = network.eval()
    names = [head] if node is None else [node, head]
    nodes = _traced(network, names)
    order = list(nodes)
    images = next(operation for operation in order if operation.op == "placeholder")
    cut = images if node is None else _last_of(node, nodes)
    head_call = _head_after(cut, head, order)
    result = order[-1].args[0]
    if not isinstance(result, fx.Node):
        raise CutError(f"it returns a {type(result).__name__}, not logits")
    extractor: nn.Module = nn.Sequential()
    laid_out = LaidOut()
    if cut is not images:
        unchanged = _part(network, nodes, images, cut)
        laid_out = _lay_out(unchanged, image_size, layout or Layout())
        extractor = _part(network, nodes, images, cut, output_calls=laid_out.to_map)
    body_end = head_call.all_input_nodes[0]
    body = _part(network, nodes, cut, body_end, input_calls=laid_out.from_map)
    layers = OrderedDict(body=body, head=network.get_submodule(head))
    if result is not head_call:
        layers["tail"] = _part(network, nodes, head_call, result)
    model = SplitModel(extractor, nn.Sequential(layers), "head", image_size=image_size)
    model.token_grid = laid_out.token_grid
    model.stages = () if node is None else (node,)
    model.reset_head(n_classes)
    return model


def _last_of(name: str, nodes: dict[fx.Node, str]) -> fx.Node:
    """Return the operation of a name; of a module that is traced, its last one."""
    matches = []
    names = []
    for operation, operation_name in nodes.items():
        if operation_name == name or operation_name.startswith(f"{name}."):
            matches.append(operation)
        if operation.op not in ("placeholder", "output"):
            names.append(operation_name)
    if not matches:
        raise CutError(f"it has no node {name!r}; around it are {', '.join(names)}")
    return matches[-1]


def _head_after(cut: fx.Node, head: str, order: list[fx.Node]) -> fx.Node:
    """Return the one call of the head; raise CutError if it does not follow the cut."""
    calls = []
    for operation in order:
        if operation.op == "call_module" and operation.target == head:
            calls.append(operation)
    if len(calls) != 1 or order.index(calls[0]) <= order.index(cut):
        raise CutError(
            "no linear or convolutional layer that is used once follows (the last one "
            f"is {head!r})"
        )
    return calls[0]


class _Network(nn.Module):
    """Calls a network with images only.

    Its optional arguments keep their defaults in the trace.
    """

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, images):
        return self.network(images)


def _traced(network: nn.Module, names: list[str]) -> dict[fx.Node, str]:
    """Return the operations of a network in order, with their names.

    Only the modules that contain the names are traced.
    """
    # Takes seconds to import.
    from torchvision.models.feature_extraction import NodePathTracer

    traced_modules = {""}
    for name in names:
        path = f"network.{name}"
        while "." in path:
            path, _, _ = path.rpartition(".")
            traced_modules.add(path)
    tracer = NodePathTracer()

    def is_leaf_module(module: nn.Module, path: str) -> bool:
        return path not in traced_modules

    tracer.is_leaf_module = is_leaf_module  # type: ignore[method-assign]
    try:
        graph = tracer.trace(_Network(network))
    except (fx.proxy.TraceError, RuntimeError, TypeError) as error:
        raise CutError(f"its forward pass cannot be traced ({error})") from error
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            node.target = node.target.removeprefix("network.")
            # Computed from buffers while tracing.
            if node.target.startswith("_tensor_constant"):
                network.register_buffer(node.target, getattr(tracer.root, node.target))
    names_of_nodes = {}
    for node in graph.nodes:
        name = tracer.node_to_qualname.get(node, node.name)
        names_of_nodes[node] = name.removeprefix("network.")
    return names_of_nodes


def _part(
    network: nn.Module,
    nodes: dict[fx.Node, str],
    start: fx.Node,
    end: fx.Node,
    input_calls: Iterable[tuple] = (),
    output_calls: Iterable[tuple] = (),
) -> fx.GraphModule:
    """Make a module of the operations between two of a network.

    Args:
        network: holds the modules that are called.
        nodes: operations in order, with their names.
        start: its value is the input.
        end: its value is returned.
        input_calls: methods of tensors, with arguments, that are called on the input.
        output_calls: such methods that are called on the result.

    Raises:
        CutError: an operation needs more than the input.
    """
    graph = fx.Graph()
    order = list(nodes)
    copies = {start: _called(graph, graph.placeholder("values"), input_calls)}
    constants = [node for node in order if node.op == "get_attr"]
    between = order[order.index(start) + 1 : order.index(end) + 1]
    for node in [*constants, *between]:
        missing = [source for source in node.all_input_nodes if source not in copies]
        if missing:
            raise CutError(
                f"{nodes[node]} also needs {nodes[missing[0]]} from before the cut"
            )
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(_called(graph, copies[end], output_calls))
    for node in list(graph.nodes):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)
    return fx.GraphModule(network, graph)


def _called(graph: fx.Graph, value: fx.Node, methods: Iterable[tuple]) -> fx.Node:
    """Add calls of methods, each on the result of the one before; return the last."""
    for name, *arguments in methods:
        value = graph.call_method(name, (value, *arguments))
    return value


Method: TypeAlias = tuple  # the name of a method of tensors, and its arguments


@dataclass(frozen=True)
class LaidOut:
    """How what F returns becomes a map, ``(B, C, H, W)``.

    Attributes:
        to_map: methods that make a map of it.
        from_map: methods that take it back, for P.
        token_grid: as for ``SplitModel``.
    """

    to_map: tuple[Method, ...] = ()
    from_map: tuple[Method, ...] = ()
    token_grid: tuple[int, int] | None = None


@torch.no_grad()
def _lay_out(extractor: fx.GraphModule, image_size: int, layout: Layout) -> LaidOut:
    """Find out how what F returns becomes a map.

    Args:
        extractor: F.
        image_size: side in pixels of the image that it is tried with.
        layout: of what the modules of the network return.

    Raises:
        CutError: F takes no such image, or returns neither a map nor tokens.
    """
    try:
        values = extractor(torch.zeros(1, 3, image_size, image_size))
    except (RuntimeError, AssertionError) as error:
        raise CutError(
            f"it cannot take images of {image_size} pixels ({error}); give another "
            "image_size"
        ) from error
    if not isinstance(values, Tensor):
        returned = f"a {type(values).__name__}"
    elif values.dim() == 4:
        return _lay_out_map(tuple(values.shape), layout)
    elif values.dim() == 3:
        return _lay_out_tokens(values.shape[1], layout)
    else:
        returned = f"a tensor of shape {tuple(values.shape)}"
    raise CutError(f"it returns {returned}, not a map (B, C, H, W) or tokens (B, N, C)")


def _lay_out_map(shape: tuple[int, ...], layout: Layout) -> LaidOut:
    """Lay out a map of a shape, with the channels in the second or the last axis."""
    if layout.channels_last:
        return LaidOut(
            to_map=(("permute", 0, 3, 1, 2),), from_map=(("permute", 0, 2, 3, 1),)
        )
    # Images are square, so the two equal sides of a map show where its channels are.
    if shape[1] == shape[2] != shape[3]:
        raise CutError(
            f"it gives {shape} for one image, with the channels last; a feature map is "
            "(B, C, H, W): cut after the operation that puts the channels second again "
            "(node 'permute' of torchvision's Swin)"
        )
    return LaidOut()


def _lay_out_tokens(n_tokens: int, layout: Layout) -> LaidOut:
    """Lay out ``(B, N, C)`` tokens."""
    is_square = math.isqrt(n_tokens) ** 2 == n_tokens
    if is_square and layout.grid(n_tokens)[1] == 1:
        # Only the patches are here; the other tokens are added after the cut.
        layout = replace(layout, prefix_tokens=0)
    grid = layout.grid(n_tokens)
    if layout.prefix_tokens:
        to_locations: Method = ("unsqueeze", 3)
    else:
        to_locations = ("unflatten", 2, grid)
    return LaidOut(
        to_map=(("transpose", 1, 2), to_locations),
        from_map=(("flatten", 2), ("transpose", 1, 2)),
        token_grid=grid if layout.prefix_tokens else None,
    )
