"""Ranges of settings as part of their types: every numeric setting is finite and has limits."""

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
    checked,
    hints_of,
)

TYPES = [command.settings for command in COMMANDS.values()] + [LearningSettings]
TYPES += [strategy.settings for strategy in STRATEGIES.values()]


@pytest.mark.parametrize("settings", dict.fromkeys(TYPES))
def test_every_number_is_finite_and_has_limits(settings):
    for name, hint in hints_of(settings).items():
        kinds = re.findall(r"\b(int|float)\b", str(hint))
        if name == "method" or not kinds:
            continue
        kind = float if "float" in kinds else int
        for value in (kind(10**18), -kind(10**18)):
            with pytest.raises(ValueError, match=rf"{name} is .*; give .*(less|more)"):
                checked(name, value, hint)
        for value in (float("nan"), float("inf")) if kind is float else ():
            with pytest.raises(
                ValueError, match=f"{name} is {value}; give a finite number"
            ):
                checked(name, value, hint)


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
    with pytest.raises(
        ValueError, match=f"size is {value!r}; {words}|size is .*; {words}"
    ):
        checked("size", value, hint)


def test_what_is_accepted():
    given = ((1, Factor), (0, Share), (None, Count | None))
    assert [checked("x", value, hint) for value, hint in given] == [1, 0, None]
    assert (
        type(checked("x", 1, Factor)) is float
        and checked("x", "last", Number | str | None) == "last"
    )
    assert checked("x", [1], list[int]) == [1], "other types are not checked here"
    with pytest.raises(TypeError, match=r"size is 2.0; give a whole number"):
        check_count("size", 2.0)


def test_a_dataclass_is_checked_when_it_is_made_and_changed():
    @dataclass(frozen=True)
    class Settings(InRange):
        rate: Positive = 1.0

    assert Settings(2) == Settings(2.0) and type(Settings(2).rate) is float
    with pytest.raises(ValueError, match=r"rate is 0; give more than 0"):
        replace(Settings(), rate=0)
    assert get_args(Positive)[1].__repr__() == "> 0", (
        "as the help of a command shows it"
    )
