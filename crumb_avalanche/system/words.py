"""Numbers of things and lists of names in words."""


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, which is given in the singular.

    ``1 class``, ``2 classes``, ``2 memories``, ``1,000 images``.
    """
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("s"):
        return f"{count:,} {noun}es"
    if noun.endswith("y"):
        return f"{count:,} {noun[:-1]}ies"
    return f"{count:,} {noun}s"


def listed(names: list[str], most: int = 20) -> str:
    """Join names; of more than ``most`` the first, and how many more there are."""
    text = ", ".join(names[:most])
    if len(names) > most:
        return f"{text} and {len(names) - most} more"
    return text
