"""Which parts of an image may be looked at, as numbers and as text; without torch."""

MOST_LOOKS = 3
LEAST_SHARE = 0.1  # of the sides of an image
WHOLE_IMAGE = "1"
# What a learner and the preset ``recommended`` look at: the whole image, and its
# middle.
RECOMMENDED_LOOKS = "1,0.6"


def check_shares(shares: tuple[float, ...]) -> None:
    """Raise ValueError unless shares are those of one to three looks."""
    in_range = all(LEAST_SHARE <= share <= 1 for share in shares)
    if not (1 <= len(shares) <= MOST_LOOKS and in_range):
        raise ValueError(
            f"looks are {shares}; give one to three shares of the image's side, from "
            f"{LEAST_SHARE} to 1"
        )
    if len(set(shares)) < len(shares):
        raise ValueError(f"looks are {shares}; give each share once")


def shares_of(text: str) -> tuple[float, ...]:
    """Parse which middle parts of an image a method looks at, such as ``1,0.6``.

    Args:
        text: sides of the parts, in units of the image's side, separated by commas.

    Raises:
        ValueError: the text is of other than one to three different shares.
    """
    try:
        shares = tuple(float(number) for number in text.split(","))
        check_shares(shares)
    except ValueError as error:
        raise ValueError(
            f"looks is {text!r}; give one to three shares of the image's side, such as "
            "1,0.6"
        ) from error
    return shares


def check_looks(text: str) -> None:
    """Raise ValueError for a text that names no looks."""
    shares_of(text)


def text_of(shares: tuple[float, ...]) -> str:
    """Return the text of the shares of looks, which ``shares_of`` reads."""
    return ",".join(f"{share:g}" for share in shares)
