"""Resident memory of this process (Linux)."""

from pathlib import Path


def resident(field: str) -> int:
    """Read ``VmRSS``, the resident memory, or ``VmHWM``, its peak, in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def reset_peak() -> None:
    """Set ``VmHWM`` to the resident memory."""
    Path("/proc/self/clear_refs").write_text("5")
