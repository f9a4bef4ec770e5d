"""Layers of plastic networks that are cheaper on a CPU than torch's."""

import torch
from torch import Tensor, nn

_BITS = 8  # values whose fate one random number decides


class AveragingConv2d(nn.Conv2d):
    """A 1x1 convolution of the average over locations: ``(B, C, H, W)`` -> ``(B, classes, 1, 1)``.

    Equal, but for rounding, to the average of the convolution over locations, because both are linear, at ``H * W``
    times fewer multiplications: 169 for SqueezeNet, where with 100 classes they were a fifth of the plastic layers'.

    Args:
        in_channels: ``C``.
        out_channels: classes.
    """

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__(in_channels, out_channels, kernel_size=1)

    def forward(self, maps: Tensor) -> Tensor:
        # Not mean(): its gradient would be a whole map in memory, and with the axes in another order.
        return super().forward(maps.sum((2, 3), keepdim=True) / (maps.shape[2] * maps.shape[3]))


class CoinDropout(nn.Dropout):
    """``nn.Dropout`` with the same distribution, but other random draws where ``p`` is one half and the device a CPU.

    Torch draws a random number for every value, which on a CPU takes longer than the convolutions around it (SqueezeNet
    drops half of a 512x13x13 map). Here a number decides over 8 values, each of its bits over one. Everywhere else it
    is torch's own.
    """

    def forward(self, values: Tensor) -> Tensor:
        if not self.training or self.inplace or self.p != 0.5 or values.device.type != "cpu" or not _is_dense(values):
            return super().forward(values)
        return values * coin_mask(values)


def coin_mask(values: Tensor) -> Tensor:
    """Zeros and twos with equal chances, one for each value and with its strides; from the global random state."""
    draws = torch.empty(-(-values.numel() // _BITS), dtype=torch.int32).random_(0, 2**_BITS)
    numbers = torch.arange(2**_BITS).unsqueeze(1)
    fates = ((numbers >> torch.arange(_BITS) & 1) * 2).to(values.dtype)  # (256, 8): what each number means
    return fates.index_select(0, draws).view(-1).as_strided(values.shape, values.stride())


def _is_dense(values: Tensor) -> bool:
    """Whether the values fill their memory without gaps and overlaps, in whatever order of axes."""
    order = sorted(range(values.dim()), key=lambda axis: (values.stride(axis), values.shape[axis]))
    return values.permute(order[::-1]).is_contiguous()


def replace_dropout(module: nn.Module) -> nn.Module:
    """Put a ``CoinDropout`` in the place of every ``nn.Dropout`` in a module, in place."""
    for name, child in module.named_children():
        if type(child) is nn.Dropout:
            setattr(module, name, CoinDropout(child.p, child.inplace))
        else:
            replace_dropout(child)
    return module
