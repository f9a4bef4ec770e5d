"""Precisions of F and P, whether a device is fast with them, and what autocast must not change."""

import contextlib
import warnings

import torch

PRECISIONS = ("fp32", "bf16")


def is_quick_in_bf16(device: torch.device) -> bool:
    """Return whether a device has instructions for bf16; devices other than CPUs are assumed to."""
    if device.type != "cpu":
        return True
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager:
    """Return a context without ``torch.autocast``, for sums and searches that need float32 whatever surrounds them."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def warn_where_bf16_is_slow(device: torch.device) -> None:
    """Warn on a CPU that is slower with bf16 (with AVX2 only, about ten times)."""
    if not is_quick_in_bf16(device):
        warnings.warn(
            "this CPU has no instructions for bf16 and takes about ten times as long as with fp32: use --precision "
            "fp32, set_precision('fp32') in a script, or a CPU with AVX-512 or AMX, or a GPU",
            stacklevel=3,
        )
