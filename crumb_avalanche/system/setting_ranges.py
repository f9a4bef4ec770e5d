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
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

HIGHEST_COUNT, HIGHEST_NUMBER = 10**6, 1e9  # where a type says nothing else: all settings are finite and bounded
HIGHEST_SHOWN = 1000  # limits above concern nobody but who exceeds them


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
        return f"{lower}, but {upper}" if self.most is not None and most <= HIGHEST_SHOWN else upper if high else lower

    def __repr__(self) -> str:
        """Say the range in the help of a command."""
        lower = "" if self.least is None else f"{'>' if self.above else '>='} {self.least:g}"
        upper = "" if self.most is None else f"{'<' if self.below else '<='} {self.most:g}"
        return ", ".join(filter(None, [lower, upper]))


Number = Annotated[int, Range(0)]
Count = Annotated[int, Range(1)]
NotNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, above=True)]
Probability = Annotated[float, Range(0, 1)]
Share = Annotated[float, Range(0, 1, below=True)]
PositiveShare = Annotated[float, Range(0, 1, above=True, below=True)]
Factor = Annotated[float, Range(0, 1, above=True)]
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def checked(name: str, value: Any, hint: Any) -> Any:
    """Return the value of a setting, a whole number for a fraction as ``float``.

    Args:
        name: of the setting.
        value: the value given.
        hint: its type: ``int``, ``float``, ``bool``, ``str``, a ``Literal``, one of these ``Annotated`` with a
            ``Range``, or a union of such. A value for any other type is returned as it is.

    Raises:
        ValueError: names the setting, the value and the accepted ones.
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
        elif isinstance(value, Integral) or (option is float and isinstance(value, float)):
            value = option(value)
            if not (problem := limits.problem(value)):
                return value
            accepted.append(problem)
        else:
            accepted.append(KINDS[option])
    raise ValueError(f"{name} is {value!r}; give {' or '.join(dict.fromkeys(accepted))}")


@cache
def hints_of(typed: Any) -> dict[str, Any]:
    """Return the types of a class's attributes or of a function's arguments, with their ranges."""
    return get_type_hints(typed, include_extras=True)


def check_arguments(function: Callable, given: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by name as ``checked`` returns them, each for the type that the function says."""
    hints = hints_of(function)
    return {name: checked(name, value, hints[name]) if name in hints else value for name, value in given.items()}


NEVER = 10**9  # a count that is never reached
_ABOVE_ZERO = "batch_size classes_per_experience codebook_dim codebook_size epochs evaluate_every first_epochs"
_ABOVE_ZERO += " head_kernel image_size n_classes train_mb_size"
_NOT_NEGATIVE = "budget_bytes budget_images checkpoint_every clamp_gradients codebook_weight cut_layer direct_weight"
_NOT_NEGATIVE += " images_per_class learning_rate mem_size momentum port replay_steps replay_weight run seconds seed"
_NOT_NEGATIVE += " threads weight_decay workers"
LOWEST = dict.fromkeys(_ABOVE_ZERO.split(), 1) | dict.fromkeys(_NOT_NEGATIVE.split(), 0)
# Beyond these a run cannot end, fit into memory, or be computed in float32.
HIGHEST = {
    "budget": 10**15,  # bytes of the most images of the largest size
    "budget_bytes": 10**12,
    "budget_images": 10**7,
    "capacity": 10**7,
    "checkpoint_every": NEVER,
    "codebook_size": 2**15,
    "epochs": 10**5,
    "evaluate_every": NEVER,
    "first_epochs": 10**5,
    "fit_vectors": NEVER,
    "fps": 1000,
    "image_size": 4096,
    "images_per_class": NEVER,
    "learning_rate": 10**6,
    "mem_size": 10**7,
    "port": 2**16 - 1,
    "projection": 50_000,
    "rate_images": NEVER,
    "rate_step": NEVER,
    "replay_compute": 1000,
    "replay_steps": 10**4,
    "run": 2**32 - 1,  # NumPy's largest seed
    "seconds": 24 * 3600,
    "seed": 2**32 - 1,
    "threads": 1024,
    "weight_decay": 1000,
    "workers": 256,
}
HIGHEST_INT, HIGHEST_FLOAT = 10**6, 1e9  # of all others
COUNTED = {"evaluate_every": "experiences", "checkpoint_every": "steps", "batch_size": "images", "cut_layer": "layers"}


def check_range(name: str, value: Any) -> None:
    """Raise if a setting is a number out of the range of its name.

    Raises:
        ValueError: names the setting, the rule and the accepted values.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} is {value}; give a finite number")
    counted = f"it counts {COUNTED[name]}: " if name in COUNTED else ""
    if name in LOWEST and value < LOWEST[name]:
        raise ValueError(f"{name} is {value}; {counted}give {LOWEST[name]} or more")
    if name == "momentum" and value >= 1:
        raise ValueError(f"{name} is {value}; give 0 or more, but less than 1")
    highest = HIGHEST.get(name, HIGHEST_INT if isinstance(value, int) else HIGHEST_FLOAT)
    if abs(value) > highest:
        raise ValueError(f"{name} is {value}; {counted}give {highest:,} or less")


def check_count(name: str, value: Any) -> None:
    """Raise if a setting is not a whole number in the range of its name.

    Raises:
        TypeError: it is not a whole number.
        ValueError: see ``check_range``.
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; give a whole number")
    check_range(name, int(value))


def check_ranges(settings: Any) -> None:
    """Call ``check_range`` for each field of a dataclass."""
    for item in fields(settings):
        check_range(item.name, getattr(settings, item.name))


class InRange:
    """Base of dataclasses whose values are checked when they are made; see ``checked``."""

    def __post_init__(self) -> None:
        check_ranges(self)
        hints = hints_of(type(self))  # type: ignore[arg-type]
        for item in fields(self):  # type: ignore[arg-type]
            object.__setattr__(self, item.name, checked(item.name, getattr(self, item.name), hints[item.name]))
