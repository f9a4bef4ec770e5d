"""Numbers of bytes as text."""


def bytes_text(count: float) -> str:
    """Bytes in decimal units: ``2.27 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return ""
