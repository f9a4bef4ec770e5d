"""Numbers of things and of bytes in words."""


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, given in the singular: ``1 class``, ``2 classes``, ``1,000 images``."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("s"):
        return f"{count:,} {noun}es"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("y") else f"{count:,} {noun}s"


def bytes_text(count: float) -> str:
    """Bytes in decimal units: ``2.27 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return ""


def listed(names: list[str], most: int = 20) -> str:
    """Join names; of more than ``most`` the first."""
    more = f" and {len(names) - most} more" * (len(names) > most)
    return ", ".join(names[:most]) + more
