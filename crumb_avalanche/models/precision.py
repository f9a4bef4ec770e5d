"""Precisions of F and P, and whether a device is fast with them."""

import warnings

import torch

PRECISIONS = ("fp32", "bf16")


def is_quick_in_bf16(device: torch.device) -> bool:
    """Return whether a device has instructions for bf16; devices other than CPUs are assumed to."""
    if device.type != "cpu":
        return True
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def warn_where_bf16_is_slow(device: torch.device) -> None:
    """Warn on a CPU that is slower with bf16 (with AVX2 only, about ten times)."""
    if not is_quick_in_bf16(device):
        warnings.warn(
            "this CPU has no instructions for bf16 and takes about ten times as long as with fp32: use --precision "
            "fp32, set_precision('fp32') in a script, or a CPU with AVX-512 or AMX, or a GPU",
            stacklevel=3,
        )
