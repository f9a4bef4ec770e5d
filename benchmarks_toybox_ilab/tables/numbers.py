"""Whole numbers: what counts as one, and the check of those that people give."""

import operator
from typing import Any


def is_whole_number(value: object) -> bool:
    """Whether a value is a whole number of Python, NumPy or another library.

    ``True`` and ``False`` are none.
    """
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def check_whole_number(
    name: str, value: Any, least: int, error: type[ValueError] = ValueError
) -> None:
    """Raise unless a value is a whole number of at least `least`.

    Args:
        name: what it is, for the message.
        value: what was given.
        least: the smallest number that is allowed.
        error: what is raised.
    """
    if not is_whole_number(value) or operator.index(value) < least:
        raise error(
            f"{name} is {value!r}, but must be a whole number of at least {least}."
        )


def whole_number(
    name: str, value: Any, least: int, error: type[ValueError] = ValueError
) -> int:
    """Return a whole number as int; the arguments are those of `check_whole_number`.

    Raises:
        ValueError: or another `error`, unless the value is a whole number of at least
            `least`.
    """
    check_whole_number(name, value, least, error)
    return operator.index(value)
