"""Dropout of one half at one random bit a value, for CPUs."""

import torch
from torch import Tensor, nn

_BITS = 8  # values whose fate one random number decides


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
