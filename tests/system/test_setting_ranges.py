"""Ranges of settings as part of their types.

Every numeric setting is finite and has limits.
"""

import re
from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args

import pytest

from crumb_avalanche.cli.commands import COMMANDS
from crumb_avalanche.methods.registry import STRATEGIES, LearningSettings
from crumb_avalanche.system.setting_ranges import (
    Count,
    Factor,
    InRange,
    Number,
    Positive,
    Range,
    Share,
    check_count,
    checked_setting,
    hints_of,
)

TYPES = [command.settings for command in COMMANDS.values()] + [LearningSettings]
TYPES += [strategy.settings for strategy in STRATEGIES.values()]


def numbers_of(floats):
    """Annotations of settings that are floating-point numbers, or whole ones."""
    settings = {}
    for settings_type in TYPES:
        for name, hint in hints_of(settings_type).items():
            named = re.findall(r"\b(int|float)\b", str(hint))
            if name != "method" and named and ("float" in named) == floats:
                settings[f"{settings_type.__name__}.{name}"] = hint
    return settings


FLOATS = numbers_of(floats=True)
NUMBERS = {**FLOATS, **numbers_of(floats=False)}


@pytest.mark.parametrize("value", [10**18, -(10**18)])
@pytest.mark.parametrize("hint", NUMBERS.values(), ids=NUMBERS)
def test_every_number_has_limits(hint, value):
    with pytest.raises(ValueError, match=r"size is .*; give .*(less|more)"):
        checked_setting("size", value, hint)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("hint", FLOATS.values(), ids=FLOATS)
def test_every_number_is_finite(hint, value):
    with pytest.raises(ValueError, match=f"size is {value}; give a finite number"):
        checked_setting("size", value, hint)


@pytest.mark.parametrize(
    ("hint", "value", "words"),
    [
        (Count, 0, "give 1 or more"),
        (Number, -1, "give 0 or more"),
        (Number, 10**7, "give 1,000,000 or less"),
        (Positive, 0.0, "give more than 0"),
        (Share, 1, "give 0 or more, but less than 1"),
        (Factor, 1.5, "give more than 0, but 1 or less"),
        (Annotated[int, Range(2, 256)], 1, "give 2 or more, but 256 or less"),
        (float, 1e10, "give 1,000,000,000.0 or less"),
        (int, True, "give a whole number"),
        (int, 2.5, "give a whole number"),
        (float, "much", "give a number"),
        (bool, 1, "give true or false"),
        (str, 3, "give text"),
        (Literal["a", "b"], "c", "give one of a, b"),
        (Number | str | None, -1, "give 0 or more"),
        (Count | None, "x", "give a whole number"),
    ],
)
def test_what_is_refused_and_why(hint, value, words):
    with pytest.raises(ValueError, match=f"size is .*; {words}"):
        checked_setting("size", value, hint)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (1, Factor),
        (0, Share),
        (None, Count | None),
        ("last", Number | str | None),
        ([1], list[int]),  # other types are not checked here
    ],
)
def test_what_is_accepted(value, hint):
    assert checked_setting("size", value, hint) == value


def test_a_whole_number_becomes_a_float():
    assert type(checked_setting("size", 1, Factor)) is float


def test_a_count_is_a_whole_number():
    with pytest.raises(TypeError, match=r"size is 2.0; give a whole number"):
        check_count("size", 2.0)


@dataclass(frozen=True)
class Settings(InRange):
    rate: Positive = 1.0


def test_a_dataclass_converts_its_values():
    assert Settings(2) == Settings(2.0)
    assert type(Settings(2).rate) is float


def test_a_dataclass_is_checked_when_it_is_changed():
    with pytest.raises(ValueError, match=r"rate is 0; give more than 0"):
        replace(Settings(), rate=0)


def test_a_range_as_the_help_shows_it():
    assert repr(get_args(Positive)[1]) == "> 0"
