"""Settings whose types carry their range, which is checked where a value is given.

::

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

from benchmarks_toybox_ilab.tables.numbers import is_whole_number

# Where a type says nothing else: all settings are finite and bounded.
HIGHEST_COUNT = 10**6
HIGHEST_NUMBER = 1e9
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
        """Say which values are accepted if a number is out of range; else ``""``.

        The range goes from ``least`` to ``most``, of which ``above`` excludes the first
        and ``below`` the second.
        """
        if not math.isfinite(value):
            return "a finite number"
        highest = self._highest(value)
        lowest = -highest if self.least is None else self.least
        is_too_high = value > highest or (self.below and value == highest)
        is_too_low = value < lowest or (self.above and value == lowest)
        if not is_too_low and not is_too_high:
            return ""
        upper_words = f"{highest:,} or less"
        if self.below:
            upper_words = f"less than {highest:,}"
        lower_words = f"{lowest:,} or more"
        if self.above:
            lower_words = f"more than {lowest:,}"
        has_both_limits = self.least is not None and self.most is not None
        if has_both_limits and highest <= HIGHEST_SHOWN:
            return f"{lower_words}, but {upper_words}"
        return upper_words if is_too_high else lower_words

    def _highest(self, value: float) -> float:
        """Return the upper limit of a setting; without one, that of its type."""
        if self.most is not None:
            return self.most
        if isinstance(value, float):
            return HIGHEST_NUMBER
        return HIGHEST_COUNT

    def __repr__(self) -> str:
        """Say the range of a setting as a command's help shows it: ``>= 0, < 1``."""
        limits = []
        if self.least is not None:
            sign = ">" if self.above else ">="
            limits.append(f"{sign} {self.least:g}")
        if self.most is not None:
            sign = "<" if self.below else "<="
            limits.append(f"{sign} {self.most:g}")
        return ", ".join(limits)


Number = Annotated[int, Range(0)]
EvalEvery = Annotated[int, Range(-1)]  # epochs; Avalanche's -1 is never
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
Tables = Annotated[int, Range(1, 2**8)]
MOST_MEMORIES = 10**7
Memories = Annotated[int, Range(0, MOST_MEMORIES)]
Bytes = Annotated[int, Range(0, 10**12)]
Upper = Annotated[int, Range(0, NEVER)]  # of a count, such as images of each class
# A confidence from which on a learner names a class.
LEAST_STRICT = 0.01
MOST_STRICT = 0.99
Strict = Annotated[float, Range(LEAST_STRICT, MOST_STRICT)]
KIND_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
}


class _OtherKindError(Exception):
    """A value is not of the kind that a type accepts; says which kind that is."""


def checked_setting(name: str, value: Any, hint: Any) -> Any:
    """Return the value of a setting after a check of its type and range.

    A whole number that stands for a fraction becomes a ``float``.

    Args:
        name: of the setting, for the error.
        value: to check.
        hint: its type: ``int``, ``float``, ``bool``, ``str``, a ``Literal``, one of the
            ``Annotated`` with a ``Range`` above, or a union of such. A value for any
            other type is returned as it is.

    Raises:
        ValueError: the value is of another kind, or outside its range.
    """
    is_union = get_origin(hint) in (Union, UnionType)
    options = get_args(hint) if is_union else (hint,)
    accepted_kinds = []
    for option in options:
        if option is NoneType:
            if value is None:
                return None
            continue
        try:
            return _checked_for_option(name, value, option)
        except _OtherKindError as error:
            accepted_kinds.append(str(error))
    kinds = " or ".join(dict.fromkeys(accepted_kinds))  # each kind once
    raise ValueError(f"{name} is {value!r}; give {kinds}")


def _checked_for_option(name: str, value: Any, option: Any) -> Any:
    """Return the value of a setting, checked for one option of its type.

    Args:
        name: of the setting, for the error.
        value: to check.
        option: a type, a ``Literal``, or one of the ``Annotated`` with a ``Range``.

    Raises:
        _OtherKindError: the value is of another kind; another option may take it.
        ValueError: it is of this kind, but outside its range.
    """
    option, number_range = _without_range(option)
    if get_origin(option) is Literal:
        if value in get_args(option):
            return value
        raise _OtherKindError(f"one of {', '.join(map(str, get_args(option)))}")
    if option not in KIND_NAMES:
        return value
    if option in (bool, str):
        if isinstance(value, option):
            return value
        raise _OtherKindError(KIND_NAMES[option])
    is_number = is_whole_number(value)
    if option is float:
        is_number = is_number or isinstance(value, float)
    if not is_number:
        raise _OtherKindError(KIND_NAMES[option])
    number = option(value)
    accepted_values = number_range.problem(number)  # in words; empty if it is in range
    if accepted_values:
        raise ValueError(f"{name} is {value}; give {accepted_values}")
    return number


def _without_range(option: Any) -> tuple[Any, Range]:
    """Split the range off a type, which without one has the widest."""
    if get_origin(option) is not Annotated:
        return option, Range()
    plain_type, *annotations = get_args(option)
    for annotation in annotations:
        if isinstance(annotation, Range):
            return plain_type, annotation
    return plain_type, Range()


@cache
def hints_of(typed: Any) -> dict[str, Any]:
    """Return the types of a class's attributes, or a function's arguments, by name.

    Types of settings keep their ranges.
    """
    return get_type_hints(typed, include_extras=True)


def setting_types(owner: type) -> dict[str, Any]:
    """Return the types of the settings that a class declares, by name.

    They are its public annotated attributes with a value, without those of Avalanche.
    """
    host_names: set[str] = set()
    for base in owner.__mro__:
        if base.__module__.startswith("avalanche."):
            host_names.update(vars(base))
    settings = {}
    for name, hint in hints_of(owner).items():
        is_class_variable = ClassVar in (hint, get_origin(hint))
        is_own_public = not name.startswith("_") and name not in host_names
        has_value = hasattr(owner, name)
        if is_own_public and has_value and not is_class_variable:
            settings[name] = hint
    return settings


def checked_arguments(function: Callable, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by name, each checked as a setting of the type in a function."""
    hints = hints_of(function)
    values = {}
    for name, value in arguments.items():
        if name in hints:
            value = checked_setting(name, value, hints[name])
        values[name] = value
    return values


def check_count(name: str, value: Any, hint: Any = Count) -> None:
    """Raise unless a value is a whole number in a range.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is outside the range.
    """
    if not is_whole_number(value):
        raise TypeError(f"{name} is {value!r}; give a whole number")
    checked_setting(name, value, hint)


class InRange:
    """Base of dataclasses of settings, whose values are checked when they are made."""

    def __post_init__(self) -> None:
        """Replace each value by the checked one; see ``checked_setting``."""
        hints = hints_of(type(self))  # type: ignore[arg-type]
        for field in fields(self):  # type: ignore[arg-type]
            value = checked_setting(
                field.name, getattr(self, field.name), hints[field.name]
            )
            object.__setattr__(self, field.name, value)
