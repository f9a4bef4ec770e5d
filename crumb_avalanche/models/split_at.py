"""Cut of a network at a module or operation.

Only the code around the cut and the head is traced; other modules are called as they
are. So networks can be cut whose blocks ``torch.fx`` cannot trace, and hooks on modules
work.
"""

import copy
import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor, fx, nn

from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.layers import Layout, check_float32
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.process import float32_by_default
from crumb_avalanche.system.setting_ranges import ImageSize, check_count

MethodCall: TypeAlias = tuple  # the name of a method of tensors, and its arguments


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
    fine_tuning: bool = False,
) -> SplitModel:
    """Split any network whose forward pass ``torch.fx`` can trace around the cut.

    Its operations up to a node become the frozen feature extractor F, the others the
    trained plastic layers P. The model has copies of the network's layers: the network
    stays as it is, and can be split again.

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
        fine_tuning: whether P is pretrained, with batch norms: these use their
            pretrained statistics in training, too (``fixed_statistics``), the head
            centres its inputs, and the layers below it learn a hundredth as fast (see
            ``CentredLinear``), as in ``split_backbone``. Otherwise batch norms train on
            the statistics of a batch, which may be of one clip.

    Raises:
        TypeError: the network has a dynamic module of Avalanche, such as an
            ``IncrementalClassifier``; or its weights are not float32.
        ValueError: the node does not exist, its map has the channels last, or later
            layers need more than its output.
    """
    check_count("image_size", image_size, ImageSize)
    check_float32(network)
    _check_not_dynamic(network)
    # Weights of F are frozen, and biases of P are scaled by ``calibrate``.
    network = copy.deepcopy(network)
    try:
        head_name = last_layer(network, image_size)  # of the layer to be replaced
        model = split_after(
            network, node, head_name, n_classes=n_classes, image_size=image_size
        )
    except CutError as error:
        raise ValueError(
            f"the network cannot be cut after {node!r}: {error}; choose a node that "
            "everything passes through, such as the end of a block"
        ) from error
    if fine_tuning:
        model.fixed_statistics = True
        model.centre_head()
    model.set_codebook(codebook)
    return model


def _check_not_dynamic(network: nn.Module) -> None:
    """Raise TypeError for a network that has a dynamic module of Avalanche."""
    for name, module in network.named_modules():
        # By name: this room does without Avalanche.
        class_names = [base.__name__ for base in type(module).__mro__]
        if "DynamicModule" in class_names:
            raise TypeError(
                f"{name or 'network'} is a dynamic module of Avalanche, such as "
                "IncrementalClassifier or as_multitask(...), which grows with the "
                "classes or tasks and cannot be traced; give a network with an "
                "nn.Linear head, which split_at replaces by one of n_classes outputs: "
                "strategies mask the classes not seen yet"
            )


@torch.no_grad()
def last_layer(network: nn.Module, image_size: int) -> str:
    """Return the name of the linear or convolutional layer that a network uses last.

    It is found by a pass of a black image, in which hooks note each call.

    Args:
        network: a classifier of ``(B, 3, h, w)`` images; set to evaluation mode.
        image_size: side of the image in pixels.

    Raises:
        CutError: it uses no such layer.
    """
    used_layers: list[str] = []  # in the order of the calls
    handles = []
    for name, module in network.eval().named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            handle = module.register_forward_hook(
                # A default binds the name of this module, not of the last one.
                lambda *call, name=name: used_layers.append(name)
            )
            handles.append(handle)
    try:
        network(_black_image(network, image_size))
    finally:
        for handle in handles:
            handle.remove()
    if not used_layers:
        raise CutError(
            "it uses no linear or convolutional layer, which could become the head"
        )
    return used_layers[-1]


def _black_image(network: nn.Module, image_size: int) -> Tensor:
    """Return a black image, ``(1, 3, h, w)``, on the device of a network's weights."""
    first_weight = next(network.parameters(), torch.empty(0))
    return torch.zeros(1, 3, image_size, image_size, device=first_weight.device)


def split_after(
    network: nn.Module,
    node: str | None,
    head: str,
    *,
    n_classes: int,
    image_size: int = 224,
    layout: Layout | None = None,
) -> SplitModel:
    """Cut a network after a node of its traced graph, and give it a new head.

    The feature extractor F has its operations up to the node, the plastic layers P all
    others, as ``body``, ``head`` and maybe ``tail``. What the network returns at the
    node becomes a map:

    - a map stays or becomes ``(B, C, H, W)``;
    - ``(B, N, C)`` tokens of patches alone become their grid, ``(B, C, H, W)``;
    - ``(B, N, C)`` tokens with prefix tokens (class token and registers) become a
      column of locations, ``(B, C, N, 1)``, with the prefix tokens first;
      ``SplitModel.patch_grid`` returns the grid without them.

    P begins with the inverse, so that its layers get what the network gave them.

    Args:
        network: a classifier of ``(B, 3, h, w)`` images.
        node: name of the last module or operation of F; ``None`` leaves F empty.
        head: name of the last linear or convolutional layer, which gets ``n_classes``
            outputs.
        n_classes: outputs of the new head.
        image_size: side of the images in pixels.
        layout: of the network's tensors, as the caller knows it; default ``(B, C, H,
            W)``, or tokens of patches only.

    Raises:
        CutError: it cannot be traced, has no such node, or later layers need more than
            its output.
    """
    network = network.eval()
    names_to_trace = [head] if node is None else [node, head]
    operations = _traced_operations(network, names_to_trace)  # with their names
    order = list(operations)
    # The parts of the network begin and end at these operations, fx nodes.
    images = next(operation for operation in order if operation.op == "placeholder")
    cut = images if node is None else _last_operation_of(node, operations)
    head_call = _head_call_after(cut, head, order)
    logits = order[-1].args[0]  # the last operation returns them
    if not isinstance(logits, fx.Node):
        raise CutError(f"it returns a {type(logits).__name__}, not logits")
    extractor: nn.Module = nn.Sequential()
    map_layout = MapLayout()  # the identity, for P that gets the images
    if cut is not images:
        # Made twice: what it returns is known only when it runs. The second one makes
        # maps (B, C, H, W) of that.
        unchanged_extractor = _part_between(network, operations, images, cut)
        black_image = _black_image(network, image_size)
        map_layout = _map_layout_of(
            unchanged_extractor, black_image, layout or Layout()
        )
        extractor = _part_between(
            network, operations, images, cut, output_calls=map_layout.to_map
        )
    head_input = head_call.all_input_nodes[0]
    # Raises CutError if an operation of P needs another value of F than the map.
    body = _part_between(
        network, operations, cut, head_input, input_calls=map_layout.from_map
    )
    layers = OrderedDict(body=body, head=network.get_submodule(head))
    if logits is not head_call:
        layers["tail"] = _part_between(network, operations, head_call, logits)
    model = SplitModel(
        extractor, nn.Sequential(layers), head="head", image_size=image_size
    )
    model.token_grid = map_layout.token_grid  # of patches beside other tokens, or None
    # The names by which a cut of F is given and shown, instead of those of the children
    # of the traced F, which SplitModel took. Without any F is empty.
    model.stages = () if node is None else (node,)
    model.reset_head(n_classes)
    return model


def _last_operation_of(name: str, operations: dict[fx.Node, str]) -> fx.Node:
    """Return the last operation of a node to cut after, of a network's traced graph.

    Args:
        name: of the operation, or of a module whose operations are traced.
        operations: of the network in order, with their names.

    Raises:
        CutError: there is none.
    """
    matching_operations = []
    cut_names = []  # of all nodes that could be cut after
    for operation, operation_name in operations.items():
        if operation_name == name or operation_name.startswith(f"{name}."):
            matching_operations.append(operation)
        if operation.op not in ("placeholder", "output"):
            cut_names.append(operation_name)
    if not matching_operations:
        raise CutError(f"it has no node {name!r}; around it are {', '.join(cut_names)}")
    return matching_operations[-1]


def _head_call_after(cut: fx.Node, head: str, order: list[fx.Node]) -> fx.Node:
    """Return the operation of a network's traced graph that calls the head.

    Args:
        cut: the last operation of the feature extractor.
        head: name of the layer.
        order: all operations of the network in order.

    Raises:
        CutError: the head is not called once, after the cut.
    """
    head_calls = []
    for operation in order:
        if operation.op == "call_module" and operation.target == head:
            head_calls.append(operation)
    is_called_once = len(head_calls) == 1
    if not is_called_once or order.index(head_calls[0]) <= order.index(cut):
        raise CutError(
            "no linear or convolutional layer that is used once follows (the last one "
            f"is {head!r})"
        )
    return head_calls[0]


class _Network(nn.Module):
    """Calls a network with images only.

    Its optional arguments keep their defaults in the trace.
    """

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, images):
        return self.network(images)


def _traced_operations(network: nn.Module, names: list[str]) -> dict[fx.Node, str]:
    """Trace a network, and return its operations in order, with their names.

    Only modules that contain others by given names are traced; a call of another module
    is one operation.

    Args:
        network: its graph is traced by ``torch.fx``; it gets tensors that the trace
            computed, constants of the graph, as buffers.
        names: of the module to cut after, and of the head.

    Returns:
        The name of each operation, such as ``layer4.0.relu``, in the order of the
        calls.

    Raises:
        CutError: the network cannot be traced.
    """
    # Takes seconds to import.
    from torchvision.models.feature_extraction import NodePathTracer

    traced_paths = {""}  # of modules in _Network, which calls the network "network"
    for name in names:
        path = f"network.{name}"
        while "." in path:  # every module that contains the named one
            path, _, _ = path.rpartition(".")
            traced_paths.add(path)
    tracer = NodePathTracer()

    def is_leaf_module(module: nn.Module, path: str) -> bool:
        """Whether a call of the module is one operation of the graph."""
        return path not in traced_paths

    tracer.is_leaf_module = is_leaf_module  # type: ignore[method-assign]
    try:
        graph = tracer.trace(_Network(network))
    except (fx.proxy.TraceError, RuntimeError, TypeError) as error:
        raise CutError(f"its forward pass cannot be traced ({error})") from error
    for operation in graph.nodes:
        if operation.op in ("call_module", "get_attr"):
            target = operation.target.removeprefix("network.")
            operation.target = target
            # Computed from buffers while tracing.
            if target.startswith("_tensor_constant"):
                network.register_buffer(target, getattr(tracer.root, target))
    name_of_operation = {}
    for operation in graph.nodes:
        name = tracer.node_to_qualname.get(operation, operation.name)
        name_of_operation[operation] = name.removeprefix("network.")
    return name_of_operation


def _part_between(
    network: nn.Module,
    operations: dict[fx.Node, str],
    start: fx.Node,
    end: fx.Node,
    input_calls: Iterable[MethodCall] = (),
    output_calls: Iterable[MethodCall] = (),
) -> fx.GraphModule:
    """Make a module of the operations of a network between two of them.

    Args:
        network: holds the modules that are called.
        operations: of the network's traced graph in order, with their names.
        start: the operation whose value is the module's input.
        end: the operation whose value the module returns.
        input_calls: methods of tensors that are called on the input, in order: names
            with arguments, such as ``("transpose", 1, 2)``.
        output_calls: methods of tensors that are called on the value of ``end``.

    Raises:
        CutError: an operation needs more than the input.
    """
    graph = fx.Graph()
    order = list(operations)
    part_input = graph.placeholder("values")
    # Operations of the new graph by those that they are copies of; the input, as its
    # methods change it, takes the place of the value of ``start``.
    copies = {start: _add_calls(graph, part_input, input_calls)}
    # Tensors of the network, which are read wherever they are needed.
    constants = [operation for operation in order if operation.op == "get_attr"]
    between = order[order.index(start) + 1 : order.index(end) + 1]
    for operation in [*constants, *between]:
        for argument in operation.all_input_nodes:
            if argument not in copies:
                raise CutError(
                    f"{operations[operation]} also needs {operations[argument]} from "
                    "before the cut"
                )
        if operation not in copies:
            # With the copies of its arguments in their place.
            copies[operation] = graph.node_copy(operation, copies.__getitem__)
    graph.output(_add_calls(graph, copies[end], output_calls))
    for copied in list(graph.nodes):
        is_unused_constant = copied.op == "get_attr" and not copied.users
        if is_unused_constant:
            graph.erase_node(copied)
    return fx.GraphModule(network, graph)


def _add_calls(
    graph: fx.Graph, tensor: fx.Node, calls: Iterable[MethodCall]
) -> fx.Node:
    """Add calls of methods to a graph, each on the result of the one before.

    Returns:
        The last call, or the tensor itself without calls.
    """
    for method, *arguments in calls:
        tensor = graph.call_method(method, (tensor, *arguments))
    return tensor


@dataclass(frozen=True)
class MapLayout:
    """How what F returns becomes a map, ``(B, C, H, W)``.

    A ``Layout`` is what the caller knows of the network's tensors; this is what follows
    from it and from the shape that F returned. The default is the identity.

    Attributes:
        to_map: methods that make a map of it, in order.
        from_map: methods that take the map back, for P.
        token_grid: as for ``SplitModel``.
    """

    to_map: tuple[MethodCall, ...] = ()
    from_map: tuple[MethodCall, ...] = ()
    token_grid: tuple[int, int] | None = None


@torch.no_grad()
def _map_layout_of(
    extractor: fx.GraphModule, black_image: Tensor, layout: Layout
) -> MapLayout:
    """Find out how what the feature extractor F returns becomes a map.

    Args:
        extractor: F as it was traced.
        black_image: that it is tried with, ``(1, 3, h, w)``, on its device.
        layout: what timm says of the network's tensors: number of prefix tokens, and
            whether channels are last.

    Returns:
        The methods of tensors that make a map ``(B, C, H, W)`` of it, and those that
        take it back.

    Raises:
        CutError: F takes no such image, or returns neither a map nor tokens.
    """
    try:
        values = extractor(black_image)
    except (RuntimeError, AssertionError) as error:
        raise CutError(
            f"it cannot take images of {black_image.shape[-1]} pixels ({error}); give "
            "another image_size"
        ) from error
    if not isinstance(values, Tensor):
        returned = f"a {type(values).__name__}"
    elif values.dim() == 4:
        return _layout_from_map(tuple(values.shape), layout)
    elif values.dim() == 3:
        return _layout_from_tokens(values.shape[1], layout)
    else:
        returned = f"a tensor of shape {tuple(values.shape)}"
    raise CutError(f"it returns {returned}, not a map (B, C, H, W) or tokens (B, N, C)")


def _layout_from_map(shape: tuple[int, ...], layout: Layout) -> MapLayout:
    """Return how a map that F returns gets its channels into the second axis.

    Args:
        shape: of the map of one image, four axes.
        layout: whether channels are last in the network's maps.

    Returns:
        The methods of tensors that make ``(B, C, H, W)`` of it, and those that take it
        back; none where it is that already.

    Raises:
        CutError: the channels are last, which the layout does not say.
    """
    if layout.channels_last:
        return MapLayout(
            to_map=(("permute", 0, 3, 1, 2),), from_map=(("permute", 0, 2, 3, 1),)
        )
    # Images are square, so the two equal sides of a map show where its channels are.
    if shape[1] == shape[2] != shape[3]:
        raise CutError(
            f"it gives {shape} for one image, with the channels last; a feature map is "
            "(B, C, H, W): cut after the operation that puts the channels second again "
            "(node 'permute' of torchvision's Swin)"
        )
    return MapLayout()


def _layout_from_tokens(n_tokens: int, layout: Layout) -> MapLayout:
    """Return how ``(B, N, C)`` tokens that F returns become a map.

    Args:
        n_tokens: number ``N`` of tokens.
        layout: how many of the network's tokens, the first ones, are no patches.

    Returns:
        The methods of tensors that make a map of tokens: the grid of patches ``(B, C,
        H, W)``, or ``(B, C, N, 1)`` beside other tokens; and those that take it back.
    """
    are_all_square = math.isqrt(n_tokens) ** 2 == n_tokens
    _, width = layout.grid(n_tokens)  # of the patches; 1 where they make no square
    if are_all_square and width == 1:
        # Only the patches are here; the other tokens are added after the cut.
        layout = replace(layout, prefix_tokens=0)
    grid = layout.grid(n_tokens)  # height and width of the patches
    to_locations: MethodCall = ("unflatten", 2, grid)
    token_grid = None
    if layout.prefix_tokens:
        to_locations = ("unsqueeze", 3)
        token_grid = grid
    return MapLayout(
        to_map=(("transpose", 1, 2), to_locations),
        from_map=(("flatten", 2), ("transpose", 1, 2)),
        token_grid=token_grid,
    )
