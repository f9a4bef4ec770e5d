"""Command-line flags of ``RunSettings``: groups, and both spellings."""

from collections.abc import Collection
from dataclasses import fields

from crumb_avalanche.runs.settings import GROUPS, RunSettings

EXPERT = "expert"


def add_run_arguments(parser, skip: Collection[str] = ()) -> None:
    """Add a flag for each field of ``RunSettings``, the most used ones first.

    Args:
        parser: a ``jsonargparse`` parser.
        skip: fields that get no flag.

    Raises:
        ValueError: a name in ``skip`` is none of a field.
    """
    names = [item.name for item in fields(RunSettings)]
    if unknown := set(skip) - set(names):
        raise ValueError(f"settings have no field {', '.join(sorted(unknown))}; skip fields that there are")
    grouped = [name for group in GROUPS.values() for name in group]
    groups = {**GROUPS, EXPERT: [name for name in names if name not in grouped]}
    for title, members in groups.items():
        left_out = {name for name in names if name not in members} | set(skip)
        if left_out < set(names):
            parser.add_argument_group(title).add_class_arguments(RunSettings, as_group=False, skip=left_out)


def underscored(arguments: list[str]) -> list[str]:
    """Replace dashes in flags by underscores: ``--dataset-root X`` becomes ``--dataset_root X``."""
    out = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if flag.startswith("--"):
            flag = "--" + flag[2:].replace("-", "_")
        out.append(flag + equals + value)
    return out
