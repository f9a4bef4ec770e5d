"""Layers that are faster on a CPU than torch's: a head that averages first, dropout from single random bits."""

import torch
from torch import Tensor, nn

_BITS = 8  # values that one random number decides on


class AveragingConv2d(nn.Conv2d):
    """1x1 convolution of the average over locations: ``(B, C, H, W)`` -> ``(B, classes, 1, 1)``.

    Both are linear, so it equals the average over locations of the convolution, up to rounding, with ``H * W`` times
    fewer multiplications: 169 for SqueezeNet, where the head had a fifth of those of the plastic layers at 100 classes.

    Args:
        in_channels: ``C``.
        out_channels: classes.
    """

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__(in_channels, out_channels, kernel_size=1)

    def forward(self, maps: Tensor) -> Tensor:
        """Return ``(B, classes, 1, 1)`` of ``(B, C, H, W)``."""
        # Not mean(): its gradient would be a whole map in memory, and with the axes in another order.
        return super().forward(maps.sum((2, 3), keepdim=True) / (maps.shape[2] * maps.shape[3]))


class CoinDropout(nn.Dropout):
    """``nn.Dropout`` that draws one random number for 8 values, if ``p`` is one half and the device a CPU.

    Torch draws one for every value, which on a CPU takes longer than the convolutions around it (SqueezeNet drops half
    of a 512x13x13 map). The distribution is the same, the draws differ. In all other cases it is torch's dropout.
    """

    def forward(self, values: Tensor) -> Tensor:
        """Return the values, in training mode zero or doubled with equal chances."""
        if not self.training or self.inplace or self.p != 0.5 or values.device.type != "cpu" or not _is_dense(values):
            return super().forward(values)
        return values * coin_mask(values)


def coin_mask(values: Tensor) -> Tensor:
    """Draw zeros and twos with equal chances, in the shape and strides of ``values``, from the global RNG."""
    draws = torch.empty(-(-values.numel() // _BITS), dtype=torch.int32).random_(0, 2**_BITS)
    numbers = torch.arange(2**_BITS).unsqueeze(1)
    factors = ((numbers >> torch.arange(_BITS) & 1) * 2).to(values.dtype)  # (256, 8): of each number
    return factors.index_select(0, draws).view(-1).as_strided(values.shape, values.stride())


def _is_dense(values: Tensor) -> bool:
    """Return whether the values fill their memory without gaps and overlaps, in any order of axes."""
    order = sorted(range(values.dim()), key=lambda axis: (values.stride(axis), values.shape[axis]))
    return values.permute(order[::-1]).is_contiguous()


def replace_dropout(module: nn.Module) -> nn.Module:
    """Replace every ``nn.Dropout`` of a module by a ``CoinDropout``, in place."""
    for name, child in module.named_children():
        if type(child) is nn.Dropout:
            setattr(module, name, CoinDropout(child.p, child.inplace))
        else:
            replace_dropout(child)
    return module
