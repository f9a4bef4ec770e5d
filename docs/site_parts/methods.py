"""The list of strategies, made from their registry."""

from dataclasses import fields

from site_parts.csv_tables import DOCS, floats, grouped, mean_text, read

RENAMED = {"recommended": "rda"}  # rows of recommended_eth80.csv whose name is not that of a strategy


def accuracies() -> dict[str, str]:
    """Return what each strategy reaches on ETH-80, class-instance."""
    found = {}
    for (row,), lines in grouped(read(DOCS / "recommended_eth80.csv"), "row").items():
        found[RENAMED.get(row, row)] = (floats(lines, "accuracy"), "recommended.md")
    for (name, protocol), lines in grouped(read(DOCS / "competitors_eth80.csv"), "method", "protocol").items():
        if protocol == "class_instance" and name != "rda":  # its row there is of an earlier version
            found[name] = (floats(lines, "final_accuracy"), "comparison.md")
    return {
        name: f"{mean_text(values)} %, mean ± standard deviation of {len(values)} runs ([table]({page}))"
        for name, (values, page) in found.items()
    }


def methods() -> str:
    """Return a section for each strategy: source, what it stores, how the budget counts, its own settings, accuracy."""
    from crumb_avalanche.cli.strategies import budget_rule
    from crumb_avalanche.methods.registry import STRATEGIES

    lines, reached = [], accuracies()
    for name, entry in STRATEGIES.items():
        default = entry.settings()
        own = [f"`--method.{item.name} {getattr(default, item.name)}`" for item in fields(default)]
        lines += [f"### `{name}`", "", f"{entry.summary[:1].upper()}{entry.summary[1:]}.", ""]
        lines += [f"- Source: {entry.source}", f"- Stores: {entry.stores}", f"- Budget: {budget_rule(entry)}"]
        if own:
            lines.append(f"- Own settings with their defaults: {', '.join(own)}")
        if name in reached:
            lines.append(f"- ETH-80, class-instance, the bytes of 15 images: {reached[name]}")
        lines.append("")
    return "\n".join(lines)
