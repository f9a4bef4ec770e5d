"""Plastic layers with a stable and a plastic branch before one head, blended by a trainable share.

Liu et al., Adaptive Aggregation Networks for Class-Incremental Learning, CVPR 2021, section 3.2, with one level:
everything before the head.
"""

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call

from crumb_avalanche.system.tensor_bytes import tensor_bytes


def put(network: nn.Module, name: str, module: nn.Module) -> None:
    """Replace the submodule with a qualified name."""
    parent, _, last = name.rpartition(".")
    setattr(network.get_submodule(parent), last, module)


class ScaledConv(nn.Module):
    """A frozen convolution with trainable factors of its weights and trainable shifts of its biases, if any.

    Args:
        conv: with ``(O, I, h, w)`` weights; frozen here.

    Attributes:
        scale: ``(O, I, 1, 1)``, initially one.
        shift: ``(O,)``, initially zero; or ``None``.
    """

    def __init__(self, conv: nn.Conv2d):
        super().__init__()
        self.conv = conv.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones_like(conv.weight[:, :, :1, :1]))
        self.shift = None if conv.bias is None else nn.Parameter(torch.zeros_like(conv.bias))

    def forward(self, maps: Tensor) -> Tensor:
        weights = {"weight": self.conv.weight * self.scale}
        if self.shift is not None:
            weights["bias"] = self.conv.bias + self.shift
        return functional_call(self.conv, weights, (maps,))


class Catch(nn.Module):
    """Replaces the head: returns its input, and keeps it until ``release``."""

    caught: Tensor | None = None

    def forward(self, values: Tensor) -> Tensor:
        self.caught = values
        return values

    def release(self) -> Tensor:
        caught, self.caught = self.caught, None
        return caught


class BlendedHead(nn.Module):
    """The head after ``a * stable + (1 - a) * plastic``.

    Args:
        layer: the head.

    Attributes:
        share: ``a``, initially one half; the caller keeps it within [0, 1].
        stable: output of the stable branch in this pass; ``None`` for the plastic branch alone.
    """

    stable: Tensor | None = None

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer
        self.share = nn.Parameter(torch.full((), 0.5, device=layer.weight.device))

    def forward(self, plastic: Tensor) -> Tensor:
        if self.stable is not None:
            plastic = self.share * self.stable + (1 - self.share) * plastic
        return self.layer(plastic)


class AggregatedLayers(nn.Module):
    """Plastic layers with two branches before one head; the stable branch is used after ``aggregate``.

    The stable branch is frozen except for the factors of its convolutions (``ScaledConv``); its batch norms stay in
    evaluation mode. It is a copy whose head only returns its input, so the layers may be any module, also a traced one.

    Args:
        layers: ``(B, C, H, W)`` -> ``(B, classes)``; they become the plastic branch and the head.
        head: qualified name of the head in ``layers``.

    Attributes:
        head: qualified name of the head in this module.
    """

    def __init__(self, layers: nn.Module, head: str):
        super().__init__()
        self._place = head
        self.head = f"plastic.{head}.layer"
        self.stable = copy.deepcopy(layers).requires_grad_(False)
        put(self.stable, head, Catch())
        convolutions = [name for name, module in self.stable.named_modules() if isinstance(module, nn.Conv2d)]
        for name in convolutions:
            put(self.stable, name, ScaledConv(self.stable.get_submodule(name)))
        self.plastic = layers
        put(layers, head, BlendedHead(layers.get_submodule(head)))
        self.register_buffer("aggregating", torch.zeros((), dtype=torch.bool))

    @property
    def blended(self) -> BlendedHead:
        """The head, with the share of the stable branch."""
        return self.plastic.get_submodule(self._place)

    @property
    def stable_bytes(self) -> int:
        """Bytes of the stable branch: frozen weights, factors and summands, statistics of batch norms."""
        return tensor_bytes([*self.stable.parameters(), *self.stable.buffers()])

    def forward(self, maps: Tensor) -> Tensor:
        """Compute logits ``(B, classes)`` of ``(B, C, H, W)`` maps."""
        head = self.blended
        if self.aggregating:
            self.stable(maps)
            head.stable = self.stable.get_submodule(self._place).release()
        try:
            return self.plastic(maps)
        finally:
            head.stable = None

    def train(self, mode: bool = True) -> "AggregatedLayers":
        """Set the mode as ``nn.Module.train`` does; batch norms of the stable branch stay in evaluation mode."""
        super().train(mode)
        for module in self.stable.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    @torch.no_grad()
    def aggregate(self) -> None:
        """Use both branches from now on; the stable one gets the current weights of the plastic one."""
        for name, module in self.plastic.named_modules():
            if f"{name}.".startswith(f"{self._place}."):
                continue
            twin = self.stable.get_submodule(name)
            twin = twin.conv if isinstance(twin, ScaledConv) else twin
            for source, target in ((module._parameters, twin._parameters), (module._buffers, twin._buffers)):
                for key, tensor in source.items():
                    if tensor is not None:
                        target[key].copy_(tensor)
        self.aggregating.fill_(True)

    def changing(self) -> set[str]:
        """Return the names in the state dict that training changes: all but the stable branch's own weights."""
        learned = {name for name, parameter in self.named_parameters() if parameter.requires_grad}
        return learned | {f"plastic.{name}" for name, _ in self.plastic.named_buffers()}
