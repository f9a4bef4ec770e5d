"""The last layer of a network, whose outputs are the classes."""

from torch import nn

from crumb_avalanche.models.layers import AveragingConv2d


def head_outputs(layers: nn.Module, name: str) -> int:
    """Return the number of outputs of the head among layers.

    Args:
        layers: contain the head.
        name: qualified name of the head.

    Raises:
        TypeError: the head is neither linear nor convolutional.
    """
    head = layers.get_submodule(name)
    outputs = getattr(head, "out_channels" if isinstance(head, nn.Conv2d) else "out_features", None)
    if outputs is None:
        raise TypeError(
            f"the head {name!r} is a {type(head).__name__}; give an nn.Linear or nn.Conv2d with an output for "
            "each class of the whole stream: strategies mask the classes not seen yet, so no head has to grow"
        )
    return outputs


def head_like(head: nn.Module, n_classes: int) -> nn.Module:
    """Build a newly initialised head of the same kind; draws from torch's global RNG.

    Args:
        head: a linear or convolutional layer.
        n_classes: outputs of the new one.
    """
    if isinstance(head, AveragingConv2d):
        return AveragingConv2d(head.in_channels, n_classes)
    if isinstance(head, nn.Conv2d):
        return nn.Conv2d(head.in_channels, n_classes, head.kernel_size, padding=head.padding)
    return nn.Linear(head.in_features, n_classes)
