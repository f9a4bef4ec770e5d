"""``crumb strategies``: list the methods, with source, what each stores, and what a budget buys."""

from dataclasses import fields

from crumb_avalanche.methods.registry import STRATEGIES, Entry, get_strategy
from crumb_avalanche.runs.command_settings import StrategiesSettings


def main(settings: StrategiesSettings) -> None:
    """Print the description of one method, or of all."""
    if settings.name is not None:
        print(described(get_strategy(settings.name)))
        return
    print("\n\n".join(described(entry) for entry in STRATEGIES.values()))


def described(entry: Entry) -> str:
    """Format the description of a strategy."""
    lines = [
        f"{entry.name}: {entry.summary}",
        f"  from    {entry.source}",
        f"  stores  {entry.stores}",
        f"  budget  {budget_rule(entry)}",
    ]
    default = entry.settings()
    settings = ", ".join(f"{item.name} {getattr(default, item.name)!r}" for item in fields(default))
    if settings:
        lines.append(f"  own settings (--method.NAME VALUE)  {settings}")
    return "\n".join(lines)


def budget_rule(entry: Entry) -> str:
    """Describe how the number of memories follows from the budget."""
    if entry.joint:
        return "none: a bound that is trained on all images"
    if not entry.budgeted:
        return "none: its size does not depend on the budget; the ledger lists its bytes"
    rule = "(budget - fixed bytes) / bytes of one memory, rounded down"
    return rule + ("; rounded up if three quarters of a last memory fit" if entry.round_up else "")
