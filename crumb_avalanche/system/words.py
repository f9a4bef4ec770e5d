"""Numbers of things, and shares, in words."""


def counted(count: int, noun: str) -> str:
    """Return a number of things in words, from their noun in the singular.

    ``1 class``, ``2 classes``, ``2 memories``, ``1,000 images``.
    """
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("s"):
        return f"{count:,} {noun}es"
    if noun.endswith("y"):
        return f"{count:,} {noun[:-1]}ies"
    return f"{count:,} {noun}s"


def frequency(share: float) -> str:
    """Return a share from 0 to 1 as people say it: ``about 1 in 4``, ``about 7 in 10``.

    The page has the same rule, in ``often``. Halves are rounded up.
    """
    if share < 0.02:
        return "1 in 50 at most"
    if share >= 0.95:
        return "nearly all"
    if share > 0.5:
        return f"about {int(10 * share + 0.5)} in 10"
    return f"about 1 in {int(1 / share + 0.5)}"


def unknown_needs(missing_clips: int) -> str:
    """Say what a learner needs to tell unknown things; empty if nothing.

    Args:
        missing_clips: number of clips of known classes that it has yet to be asked.
    """
    if not missing_clips:
        return ""
    return (
        "it cannot tell unknown things yet, however strict it is: "
        f"{counted(missing_clips, 'more clip')} of known classes must be asked before "
        "learning"
    )


def error_rates(refused: float, named: float, named_alike: float) -> str:
    """Say how often a learner errs about what it knows.

    Args:
        refused: share of the images of classes taught that are called unknown.
        named: share of the images of other things that are called by a name.
        named_alike: the same at most, of things that look very much like those taught.
    """
    return (
        f"of things that were taught it would not know {frequency(refused)}, and of "
        f"others it would name {frequency(named)}, of those that look very alike at "
        f"worst {frequency(named_alike)}"
    )
