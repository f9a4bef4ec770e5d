"""Every numeric setting of every command and method is finite and has an upper bound."""

from dataclasses import fields, replace
from typing import get_args, get_type_hints

import pytest

from crumb_avalanche.cli.parser import COMMANDS
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.system.setting_ranges import HIGHEST, check_range, check_ranges

NUMBERS = {
    name: float if float in types else int
    for settings, _ in COMMANDS.values()
    for name, hint in get_type_hints(settings).items()
    if {int, float} & set(types := get_args(hint) or (hint,)) and name != "method"
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_commands_have_an_upper_bound(name):
    with pytest.raises(ValueError, match=f"{name} is .*; .*give .* less"):
        check_range(name, NUMBERS[name](10**18))
    if NUMBERS[name] is float:
        for value in (float("nan"), float("inf"), -float("inf")):
            with pytest.raises(ValueError, match=f"{name} is .*; give a finite number"):
                check_range(name, value)


@pytest.mark.parametrize("method", STRATEGIES)
def test_numbers_of_methods_have_an_upper_bound(method):
    default = STRATEGIES[method].settings()
    for item in fields(default):
        usual = getattr(default, item.name)
        if isinstance(usual, bool) or not isinstance(usual, int | float):
            continue
        with pytest.raises(ValueError, match=f"{item.name} is .*give .* less"):
            STRATEGIES[method].method_settings({item.name: type(usual)(10**18)})
        if isinstance(usual, float):
            for value in (float("nan"), float("inf")):
                with pytest.raises(ValueError, match=f"{item.name} is {value}; give a finite number"):
                    replace(default, **{item.name: value})


def test_defaults_are_in_range():
    check_ranges(RunSettings())
    for name, highest in HIGHEST.items():
        check_range(name, highest)
