"""``crumb strategies``: every method by name, where it comes from, what it stores, and what a budget buys."""

from dataclasses import fields

from crumb_avalanche.baselines.entry import Entry
from crumb_avalanche.baselines.registry import STRATEGIES, get_strategy
from crumb_avalanche.runs.command_settings import StrategiesSettings


def main(settings: StrategiesSettings) -> None:
    """Print the list, or all about one."""
    if settings.name is not None:
        print(described(get_strategy(settings.name)))
        return
    print("\n\n".join(described(entry) for entry in STRATEGIES.values()))


def described(entry: Entry) -> str:
    """A few lines about a strategy."""
    lines = [
        f"{entry.name}: {entry.summary}",
        f"  from    {entry.source}",
        f"  stores  {entry.stores}",
        f"  budget  {budget_rule(entry)}",
    ]
    default = entry.method()
    settings = ", ".join(f"{item.name} {getattr(default, item.name)!r}" for item in fields(default))
    if settings:
        lines.append(f"  own settings (--method.NAME VALUE)  {settings}")
    return "\n".join(lines)


def budget_rule(entry: Entry) -> str:
    """How its number of memories follows from the budget, in words."""
    if entry.joint:
        return "none: a bound that sees everything"
    if not entry.budgeted:
        return "none: nothing of it grows with the budget; the ledger tells what it keeps"
    rule = "(budget - fixed bytes) / bytes of one memory, rounded down"
    return rule + ("; a last one is granted if three quarters of it fit" if entry.round_up else "")
