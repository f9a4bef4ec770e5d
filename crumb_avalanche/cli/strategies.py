"""``crumb strategies`` lists the methods. A list of all does not import torch."""

import textwrap
from dataclasses import asdict

from crumb_avalanche.cli.settings import StrategiesSettings
from crumb_avalanche.methods.descriptions import Description, descriptions
from crumb_avalanche.methods.registry import get_strategy
from crumb_avalanche.system.named_values import attributes, field_names

WIDTH = 80
LABELS = 10  # columns of "  stores  "


def main(settings: StrategiesSettings) -> None:
    """Print the description of one method with its settings, or of all without."""
    if settings.name is None:
        blocks = [described(method) for method in descriptions().values()]
        print("\n\n".join(blocks))
        print("\ncrumb strategies NAME shows the settings of a method, too.")
        return
    print(with_settings(settings.name))


def described(method: Description) -> str:
    """Format the description of a method, in lines of at most 80 columns."""
    lines = textwrap.wrap(
        f"{method.name}: {method.summary}", WIDTH, subsequent_indent="  "
    )
    lines += labelled("from", method.source)
    lines += labelled("stores", method.stores)
    lines += labelled("budget", method.budget_rule)
    return "\n".join(lines)


def labelled(label: str, text: str) -> list[str]:
    """Wrap a text behind a label."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"  {label}".ljust(LABELS),
        subsequent_indent=" " * LABELS,
    )


def with_settings(name: str) -> str:
    """Format the description of a method, with the defaults of its settings.

    Raises:
        ValueError: the name is unknown.
    """
    entry = get_strategy(name)
    method = Description(**attributes(entry, field_names(Description)))
    lines = [described(method)]
    settings = []
    for setting, default in asdict(entry.settings()).items():
        settings.append(f"{setting} {default!r}")
    if settings:
        lines.append("  own settings, --method.NAME VALUE")
        lines += textwrap.wrap(
            ", ".join(settings),
            WIDTH,
            initial_indent=" " * LABELS,
            subsequent_indent=" " * LABELS,
        )
    return "\n".join(lines)
