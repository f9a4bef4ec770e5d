"""Cut of a network after one of its stages, and the maps of earlier stages.

Only the code around the stages is traced; the stages themselves are called as they are. So networks can be cut whose
blocks ``torch.fx`` cannot trace, and hooks on stages work.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, fx, nn

from crumb_avalanche.models.engines import TORCH
from crumb_avalanche.models.layers import Layout
from crumb_avalanche.models.split_model import SplitModel


class CutError(ValueError):
    """A network cannot be cut where it should be."""


class _Network(nn.Module):
    """Calls a network with images only: its optional arguments keep their defaults in the trace."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, images):
        return self.network(images)


class _StageTracer(fx.Tracer):
    """Traces the modules that contain one of the given modules, and calls all others."""

    def __init__(self, names: Iterable[str]):
        super().__init__()
        paths = [f"network.{name}".split(".") for name in names]
        self.opened = {".".join(path[:length]) for path in paths for length in range(1, len(path))}

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return name not in self.opened


def _traced(network: nn.Module, names: list[str]) -> list[fx.Node]:
    """Return the operations of a network in order, with each of the named modules as one operation."""
    tracer = _StageTracer(names)
    try:
        graph = tracer.trace(_Network(network))
    except (fx.proxy.TraceError, RuntimeError, TypeError) as error:
        raise CutError(f"its forward pass cannot be traced ({error})") from error
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            node.target = node.target.removeprefix("network.")
            if node.target.startswith("_tensor_constant"):  # computed from buffers while tracing
                network.register_buffer(node.target, getattr(tracer.root, node.target))
    return list(graph.nodes)


def _part(network: nn.Module, nodes: list[fx.Node], start: fx.Node, end: fx.Node) -> fx.GraphModule:
    """Make a module of the operations between ``start``, whose value is its input, and ``end``, which it returns."""
    graph = fx.Graph()
    copies = {start: graph.placeholder("values")}

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:
            raise CutError(f"{nodes[-1].name} also needs {node.name} from before the cut")
        return copies[node]

    inside = slice(nodes.index(start) + 1, nodes.index(end) + 1)
    for node in [*(node for node in nodes if node.op == "get_attr"), *nodes[inside]]:
        if node not in copies:
            copies[node] = graph.node_copy(node, copied)
    graph.output(copies[end])
    for node in [node for node in graph.nodes if node.op == "get_attr" and not node.users]:
        graph.erase_node(node)
    return fx.GraphModule(network, graph)


def split_after(
    network: nn.Module,
    stage: str | None,
    head: str,
    *,
    n_classes: int,
    image_size: int = 224,
    layout: Layout | None = None,
) -> SplitModel:
    """Cut a network after a stage. F has its operations up to the stage, P all others, with ``body`` and ``head``.

    ``(B, N, C)`` tokens become a map. Without prefix tokens it is the grid of patches, ``(B, C, H, W)``. Class token
    and registers are further locations: the map is ``(B, C, N, 1)`` then, they come first, P gets them as the network
    gave them, and ``SplitModel.places`` returns the grid without them.

    Args:
        network: a classifier of ``(B, 3, h, w)`` images.
        stage: name of the last module of F; ``None`` leaves F empty.
        head: name of the last linear or convolutional layer, which gets ``n_classes`` outputs.
        image_size: side of the images in pixels.
        layout: of what stages return; default ``(B, C, H, W)``, or tokens of patches only.

    Raises:
        CutError: the network cannot be traced, does not call the stage or head exactly once, or later layers need more
            than the stage's output.
    """
    network = network.eval()
    nodes = _traced(network, [head] if stage is None else [stage, head])
    images = next(node for node in nodes if node.op == "placeholder")
    cut = images if stage is None else _call(nodes, stage)
    last = _call(nodes, head)
    result = nodes[-1].args[0]
    if not isinstance(result, fx.Node) or nodes.index(last) < nodes.index(cut):
        raise CutError(f"the head {head!r} does not follow it")
    layout = layout or Layout()
    extractor: nn.Module = nn.Sequential()
    body = _part(network, nodes, cut, last.all_input_nodes[0])
    grid = None
    if cut is not images:
        extractor = _part(network, nodes, images, cut)
        layout, grid = _lay_out(extractor, body, image_size, layout)
    layers = OrderedDict(body=body, head=network.get_submodule(head))
    if result is not last:
        layers["tail"] = _part(network, nodes, last, result)
    model = SplitModel(extractor, nn.Sequential(layers), "head", image_size=image_size)
    model.layout, model.token_grid = layout, grid
    model.reset_head(n_classes)
    return model


def _call(nodes: list[fx.Node], name: str) -> fx.Node:
    calls = [node for node in nodes if node.op == "call_module" and node.target == name]
    if len(calls) != 1:
        called = [node.target for node in nodes if node.op == "call_module"]
        raise CutError(f"it calls {name!r} {len(calls)} times, not once; it calls {', '.join(called)}")
    return calls[0]


@torch.no_grad()
def _lay_out(
    extractor: fx.GraphModule, body: fx.GraphModule, image_size: int, layout: Layout
) -> tuple[Layout, tuple[int, int] | None]:
    """Make F return maps, and P take them, if the stage returns tokens or has the channels last.

    Returns:
        The layout, and height and width of the grid of patches if other tokens precede it.
    """
    try:
        values = extractor(torch.zeros(1, 3, image_size, image_size))
    except (RuntimeError, AssertionError) as error:
        raise CutError(f"it cannot take images of {image_size} pixels ({error}); give another image_size") from error
    if not isinstance(values, Tensor) or values.dim() not in (3, 4):
        kind = (
            f"a tensor of shape {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
        )
        raise CutError(f"it returns {kind}, not a map (B, C, H, W) or tokens (B, N, C)")
    if values.dim() == 4:
        if layout.channels_last:
            _append(extractor, [("permute", 0, 3, 1, 2)])
            _prepend(body, [("permute", 0, 2, 3, 1)])
        return layout, None
    tokens = values.shape[1]
    if math.isqrt(tokens) ** 2 == tokens and layout.grid(tokens)[1] == 1:
        layout = replace(layout, prefix_tokens=0)  # the other tokens are added after the cut
    grid = layout.grid(tokens)
    _append(extractor, [("transpose", 1, 2), ("unsqueeze", 3) if layout.prefix_tokens else ("unflatten", 2, grid)])
    _prepend(body, [("flatten", 2), ("transpose", 1, 2)])
    return layout, grid if layout.prefix_tokens else None


def _append(module: fx.GraphModule, methods: list[tuple]) -> None:
    """Call methods of a tensor on the result of a module."""
    output = next(node for node in module.graph.nodes if node.op == "output")
    value = output.args[0]
    with module.graph.inserting_before(output):
        for name, *arguments in methods:
            value = module.graph.call_method(name, (value, *arguments))
    output.args = (value,)
    module.recompile()


def _prepend(module: fx.GraphModule, methods: list[tuple]) -> None:
    """Call methods of a tensor on the input of a module."""
    start = next(node for node in module.graph.nodes if node.op == "placeholder")
    users, value = list(start.users), start
    for name, *arguments in methods:
        with module.graph.inserting_after(value):
            value = module.graph.call_method(name, (value, *arguments))
    for user in users:
        user.replace_input_with(start, value)
    module.recompile()


@torch.no_grad()
def stage_maps(model: SplitModel, images: Tensor, names: Iterable[str]) -> list[Tensor]:
    """Compute what stages of F return, each as ``(B, C, H, W)`` float32 without class token, registers and scale.

    Args:
        model: the model.
        images: as for ``SplitModel.extract``; all pass F at once, in torch whatever the model's runtime is.
        names: of ``model.stages``, or other modules of F.

    Raises:
        ValueError: F has no such module, or it returns neither maps nor tokens.
    """
    found: dict[str, Tensor] = {}
    names = list(names)
    modules = dict(model.feature_extractor.named_modules())
    if unknown := [name for name in names if name not in modules]:
        raise ValueError(f"F has no module {unknown[0]!r}; its stages are {', '.join(model.stages)}")

    def record(name: str):
        # A later layer may change the values in place.
        return modules[name].register_forward_hook(lambda *call: found.update({name: call[2].clone()}))

    handles = [record(name) for name in names]
    runtime, model.runtime = model.runtime, TORCH  # others have no modules to hook
    try:
        model._extract(images)
    finally:
        model.runtime = runtime
        for handle in handles:
            handle.remove()
    return [_as_map(found[name].float(), model.layout, name) for name in names]


def _as_map(values: Tensor, layout: Layout, name: str) -> Tensor:
    if values.dim() == 4:
        return values.permute(0, 3, 1, 2) if layout.channels_last else values
    if values.dim() != 3:
        raise ValueError(f"{name} returns values of shape {tuple(values.shape)}, neither a map nor tokens")
    return values[:, layout.prefix_tokens :].mT.unflatten(2, layout.grid(values.shape[1]))
