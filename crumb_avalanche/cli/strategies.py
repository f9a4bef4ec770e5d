"""``crumb strategies`` lists the methods. A list of all does not import torch."""

import textwrap
from dataclasses import asdict

from crumb_avalanche.cli.labelled_lines import WIDTH, labelled
from crumb_avalanche.cli.settings import StrategiesSettings
from crumb_avalanche.methods.descriptions import Description, descriptions
from crumb_avalanche.methods.registry import get_strategy
from crumb_avalanche.system.named_values import attributes, field_names

LABELS = 10  # columns of "  stores  "


def main(settings: StrategiesSettings) -> None:
    """Print the description of one method with its settings, or of all without."""
    if settings.name is None:
        blocks = [describe_method(method) for method in descriptions().values()]
        print("\n\n".join(blocks))
        print("\ncrumb strategies NAME shows the settings of a method, too.")
        return
    print(describe_with_settings(settings.name))


def describe_method(method: Description) -> str:
    """Format the description of a method, in lines of at most 80 columns."""
    lines = textwrap.wrap(
        f"{method.name}: {method.summary}", WIDTH, subsequent_indent="  "
    )
    lines += labelled("from", method.source, LABELS)
    lines += labelled("stores", method.stores, LABELS)
    lines += labelled("budget", method.budget_rule, LABELS)
    return "\n".join(lines)


def describe_with_settings(name: str) -> str:
    """Format the description of a method, with the defaults of its settings.

    Args:
        name: of the method.

    Raises:
        ValueError: the name is unknown.
    """
    strategy_entry = get_strategy(name)
    method = Description(**attributes(strategy_entry, field_names(Description)))
    lines = [describe_method(method)]  # what it does, stores and costs
    setting_texts = []
    for setting, default in asdict(strategy_entry.settings()).items():
        setting_texts.append(f"{setting} {default!r}")
    if setting_texts:
        lines.append("  own settings, --method.NAME VALUE")
        lines += textwrap.wrap(
            ", ".join(setting_texts),
            WIDTH,
            initial_indent=" " * LABELS,
            subsequent_indent=" " * LABELS,
        )
    return "\n".join(lines)
