"""The list of strategies, made from their registry."""

from dataclasses import fields


def methods() -> str:
    """Return a section for each strategy: source, what it stores, how the budget counts, and its own settings."""
    from crumb_avalanche.baselines.registry import STRATEGIES
    from crumb_avalanche.cli.strategies import budget_rule

    lines = []
    for name, entry in STRATEGIES.items():
        default = entry.method()
        own = [f"`--method.{item.name} {getattr(default, item.name)}`" for item in fields(default)]
        lines += [f"### `{name}`", "", f"{entry.summary[:1].upper()}{entry.summary[1:]}.", ""]
        lines += [f"- Source: {entry.source}", f"- Stores: {entry.stores}", f"- Budget: {budget_rule(entry)}"]
        if own:
            lines.append(f"- Own settings with their defaults: {', '.join(own)}")
        lines.append("")
    return "\n".join(lines)
