"""Settings whose types carry their range: ``rate: Positive``. A range is checked where a value is given, once.

@dataclass(frozen=True)
class ReplaySettings(InRange):
    compared: Count = 10
    momentum: Share = 0.9
    covariance: Literal["class", "common"] = "class"
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from numbers import Integral
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

HIGHEST_COUNT, HIGHEST_NUMBER = (
    10**6,
    1e9,
)  # where a type says nothing else: all settings are finite and bounded
HIGHEST_SHOWN = 999  # limits above concern nobody but who exceeds them


@dataclass(frozen=True)
class Range:
    """Range of a number, both limits included unless said.

    Attributes:
        least: lower limit; ``None`` for the negative of the upper one.
        most: upper limit; ``None`` for 10**6, of fractions 10**9.
        above: whether the lower limit is excluded.
        below: whether the upper limit is excluded.
    """

    least: float | None = None
    most: float | None = None
    above: bool = False
    below: bool = False

    def problem(self, value: float) -> str:
        """Return which values are accepted, if this one is not; else an empty text."""
        usual = HIGHEST_NUMBER if isinstance(value, float) else HIGHEST_COUNT
        most = usual if self.most is None else self.most
        least = -most if self.least is None else self.least
        if not math.isfinite(value):
            return "a finite number"
        high = value >= most if self.below else value > most
        low = value <= least if self.above else value < least
        if not low and not high:
            return ""
        upper = f"less than {most:,}" if self.below else f"{most:,} or less"
        if self.least is None:
            return upper if high else f"{least:,} or more"
        lower = f"more than {least:,}" if self.above else f"{least:,} or more"
        return (
            f"{lower}, but {upper}"
            if self.most is not None and most <= HIGHEST_SHOWN
            else upper
            if high
            else lower
        )

    def __repr__(self) -> str:
        """Say the range in the help of a command."""
        lower = (
            ""
            if self.least is None
            else f"{'>' if self.above else '>='} {self.least:g}"
        )
        upper = (
            "" if self.most is None else f"{'<' if self.below else '<='} {self.most:g}"
        )
        return ", ".join(filter(None, [lower, upper]))


Number = Annotated[int, Range(0)]
Count = Annotated[int, Range(1)]
NotNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, above=True)]
Probability = Annotated[float, Range(0, 1)]
Share = Annotated[float, Range(0, 1, below=True)]
PositiveShare = Annotated[float, Range(0, 1, above=True, below=True)]
Factor = Annotated[float, Range(0, 1, above=True)]
# Beyond these a run cannot end, fit into memory, or be computed in float32.
NEVER = 10**9  # a count that is never reached
Seed = Annotated[int, Range(0, 2**32 - 1)]  # up to NumPy's largest
Threads = Annotated[int, Range(0, 1024)]
Workers = Annotated[int, Range(0, 256)]
Seconds = Annotated[float, Range(0, 24 * 3600)]
ImageSize = Annotated[int, Range(1, 4096)]
Epochs = Annotated[int, Range(1, 10**5)]
Rate = Annotated[float, Range(0, 10**6)]
Decay = Annotated[float, Range(0, 1000)]
CodebookSize = Annotated[int, Range(1, 2**15)]
MOST_MEMORIES = 10**7
Memories = Annotated[int, Range(0, MOST_MEMORIES)]
Bytes = Annotated[int, Range(0, 10**12)]
Upper = Annotated[int, Range(0, NEVER)]  # of a count, such as images of each class
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def checked(name: str, value: Any, hint: Any) -> Any:
    """Return the value of a setting, a whole number for a fraction as ``float``; or raise ValueError.

    ``hint`` is its type: ``int``, ``float``, ``bool``, ``str``, a ``Literal``, one of
    these ``Annotated`` with a ``Range``, or a union of such. A value for any other type
    is returned as it is.
    """
    accepted = []
    for option in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        limits = Range()
        if get_origin(option) is Annotated:
            option, *notes = get_args(option)
            limits = next((note for note in notes if isinstance(note, Range)), limits)
        if option is NoneType:
            if value is None:
                return None
        elif get_origin(option) is Literal:
            if value in get_args(option):
                return value
            accepted.append(f"one of {', '.join(map(str, get_args(option)))}")
        elif option not in KINDS:
            return value
        elif (is_bool := isinstance(value, bool)) or option in (bool, str):
            if is_bool == (option is bool) and isinstance(value, option):
                return value
            accepted.append(KINDS[option])
        elif isinstance(value, Integral) or (
            option is float and isinstance(value, float)
        ):
            if problem := limits.problem(option(value)):
                raise ValueError(f"{name} is {value}; give {problem}")
            return option(value)
        else:
            accepted.append(KINDS[option])
    raise ValueError(
        f"{name} is {value!r}; give {' or '.join(dict.fromkeys(accepted))}"
    )


@cache
def hints_of(typed: Any) -> dict[str, Any]:
    """Return the types of a class's attributes or of a function's arguments, with their ranges."""
    return get_type_hints(typed, include_extras=True)


def declared(kind: type) -> dict[str, Any]:
    """Return the types of the settings that a class declares: of its public annotated attributes with a value."""
    hosts = {
        name
        for base in kind.__mro__
        if base.__module__.startswith("avalanche.")
        for name in vars(base)
    }
    return {
        name: hint
        for name, hint in hints_of(kind).items()
        if ClassVar not in (hint, get_origin(hint))
        and name[0] != "_"
        and hasattr(kind, name)
        and name not in hosts
    }


def check_arguments(function: Callable, given: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by name as ``checked`` returns them, each for the type that the function says."""
    hints = hints_of(function)
    return {
        name: checked(name, value, hints[name]) if name in hints else value
        for name, value in given.items()
    }


def check_count(name: str, value: Any, hint: Any = Count) -> None:
    """Raise TypeError if a value is not a whole number, ValueError if it is not in a range."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; give a whole number")
    checked(name, value, hint)


class InRange:
    """Base of dataclasses whose values are checked when they are made; see ``checked``."""

    def __post_init__(self) -> None:
        hints = hints_of(type(self))  # type: ignore[arg-type]
        for item in fields(self):  # type: ignore[arg-type]
            object.__setattr__(
                self,
                item.name,
                checked(item.name, getattr(self, item.name), hints[item.name]),
            )
