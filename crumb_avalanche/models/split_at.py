"""Split of any network that ``torch.fx`` can trace."""

import torch
from torch import nn

from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.setting_ranges import ImageSize, check_count


class _MapOnly(nn.Module):
    """Wraps a torchvision feature extractor to return one map; tokens become locations of a map."""

    def __init__(self, layers: nn.Module):
        super().__init__()
        self.layers = layers

    def forward(self, images):
        found = self.layers(images)["map"]
        return found.mT.unsqueeze(3) if found.dim() == 3 else found


def _is_dynamic(module: nn.Module) -> bool:
    """Return whether a module is a ``DynamicModule`` of Avalanche, by name: this room does without Avalanche."""
    return any(kind.__name__ == "DynamicModule" for kind in type(module).__mro__)


def split_at(
    network: nn.Module, node: str, *, n_classes: int, codebook: Codebook | None = None, image_size: int = 224
) -> SplitModel:
    """Split any network that ``torch.fx`` can trace.

    ``(B, N, C)`` tokens of a transformer become a map of ``N x 1`` locations, ``(B, C, N, 1)``. Maps with four axes
    need their channels in the second axis.

    Args:
        network: a classifier of ``(B, 3, h, w)`` images, such as any of torchvision or timm.
        node: the last module or operation of F, by the names that
            ``torchvision.models.feature_extraction.get_graph_node_names(network)`` lists, for instance ``layer4.0``.
        n_classes: outputs of the new head, which replaces the network's last linear or convolutional layer.
        codebook: the codebook between F and P, such as ``Codebook()``; CRUMB needs one.
        image_size: side of the images in pixels.

    Raises:
        TypeError: the network has a dynamic module of Avalanche, such as an ``IncrementalClassifier``.
        ValueError: the node does not exist, its map has the channels last, or later layers need more than its output.
    """
    from torchvision.models.feature_extraction import NodePathTracer, create_feature_extractor, get_graph_node_names

    check_count("image_size", image_size, ImageSize)
    growing = [name or "network" for name, module in network.named_modules() if _is_dynamic(module)]
    if growing:
        raise TypeError(
            f"{growing[0]} is a dynamic module of Avalanche, such as IncrementalClassifier or as_multitask(...), which "
            "grows with the classes or tasks and cannot be traced; give a network with an nn.Linear head, which "
            "split_at replaces by one of n_classes outputs: strategies mask the classes not seen yet"
        )
    network = network.eval()
    # Subclasses of these (timm has some) would be traced through, and the head could not be replaced.
    leaves = {"leaf_modules": [nn.Linear, nn.Conv2d, nn.BatchNorm2d]}
    names = get_graph_node_names(network, tracer_kwargs=leaves)[1]
    # A module's name stands for the last of its operations.
    inside = [name for name in names if name == node or name.startswith(node + ".")]
    if not inside:
        raise ValueError(f"the network has no node {node!r}; it has {', '.join(names[:3])} ... {names[-1]}")
    cut = inside[-1]
    feature_extractor = create_feature_extractor(network, {cut: "map"}, tracer_kwargs=leaves)
    with torch.no_grad():
        shape = tuple(feature_extractor(torch.zeros(1, 3, image_size, image_size))["map"].shape)
    # Images are square, so the two equal sides of a map show where its channels are.
    if len(shape) == 4 and shape[1] == shape[2] != shape[3]:
        raise ValueError(
            f"node {node!r} gives {shape} for one image, with the channels last; a feature map is (B, C, H, W): cut "
            "after the operation that puts the channels second again (node 'permute' of torchvision's Swin)"
        )
    tokens = len(shape) == 3
    tracer = NodePathTracer(**leaves)
    graph = tracer.trace(network)
    cut_node = next(item for item, name in tracer.node_to_qualname.items() if name == cut)
    order = list(graph.nodes)
    early = set(order[: order.index(cut_node) + 1])
    with graph.inserting_before(order[0]):
        entry = feature_map = graph.placeholder("feature_map")
        if tokens:
            entry = graph.call_method("transpose", (graph.call_method("squeeze", (feature_map, 3)), 1, 2))
    cut_node.replace_all_uses_with(entry, delete_user_cb=lambda user: user not in early)
    for item in order[order.index(cut_node) + 1 :]:
        sources = [source for source in item.all_input_nodes if source in early and source.op != "get_attr"]
        # An optional argument of the network, such as an attention mask, stays an argument of the plastic layers.
        crossing = next((source for source in sources if source.op != "placeholder" or not source.args), None)
        if crossing is not None:
            raise ValueError(
                f"the network cannot be cut after {node!r}: {item.name} also needs {crossing.name} from before the "
                "cut; choose a node that everything passes through, such as the end of a block"
            )
    for item in reversed([item for item in order if item in early]):
        if not item.users:
            graph.erase_node(item)
    plastic_layers = torch.fx.GraphModule(network, graph)
    calls = [item.target for item in graph.nodes if item.op == "call_module"]  # in the order of the computation
    heads = [name for name in calls if isinstance(plastic_layers.get_submodule(name), nn.Linear | nn.Conv2d)]
    if not heads:
        raise ValueError(f"no linear or convolutional layer follows {node!r}; cut earlier, so that something can learn")

    model = SplitModel(_MapOnly(feature_extractor), plastic_layers, heads[-1], codebook=codebook, image_size=image_size)
    model.reset_head(n_classes)
    return model
