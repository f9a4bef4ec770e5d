"""Pytest plugin: round the results of layers differently, as another CPU does.

``CRUMB_TEST_ROUNDING=SEED pytest -p other_rounding`` scales each output channel of
convolutions and linear layers by 1 - u, 1 or 1 + u, where u is the spacing of float32
at 1. The factors depend on the seed and the number of channels alone, so that equal
computations stay equal to the bit within a process and between processes.
"""

import os
from functools import cache

import torch
from torch.nn import functional

SEED = int(os.environ["CRUMB_TEST_ROUNDING"])


@cache
def _factors(channels: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(SEED * 1_000_003 + channels)
    return (
        1
        + torch.finfo(torch.float32).eps
        * torch.randint(-1, 2, (channels,), generator=generator).float()
    )


def _scaled(function, dim: int):
    def scaled(*args, **kwargs):
        output = function(*args, **kwargs)
        if (
            not isinstance(output, torch.Tensor)
            or output.dtype != torch.float32
            or output.device.type != "cpu"
        ):
            return output
        if torch.jit.is_tracing():  # sizes are tensors there, and a file is for any CPU
            return output
        shape = [1] * output.dim()
        shape[dim] = output.shape[dim]
        return output * _factors(output.shape[dim]).view(shape)

    return scaled


functional.conv2d = _scaled(functional.conv2d, -3)
functional.linear = _scaled(functional.linear, -1)
