"""What F and P may compute in, and whether a device is quick in it."""

import warnings

import torch

PRECISIONS = ("fp32", "bf16")


def is_quick_in_bf16(device: torch.device) -> bool:
    """Whether a device has instructions for bf16; all but CPUs are taken to have them."""
    if device.type != "cpu":
        return True
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def warn_where_bf16_is_slow(device: torch.device) -> None:
    """Tell whoever asks for bf16 on a CPU that is slower with it (one with AVX2 alone takes some ten times as long)."""
    if not is_quick_in_bf16(device):
        warnings.warn(
            "this CPU has no instructions for bf16 and takes about ten times as long as with fp32: use --precision "
            "fp32, set_precision('fp32') in a script, or a CPU with AVX-512 or AMX, or a GPU",
            stacklevel=3,
        )
