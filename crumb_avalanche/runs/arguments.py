"""``RunSettings`` on a command line: grouped flags, both spellings, flags of earlier versions."""

from collections.abc import Collection
from dataclasses import fields

from crumb_avalanche.runs.older_settings import present_arguments
from crumb_avalanche.runs.settings import GROUPS, RunSettings

EXPERT = "expert"


def add_run_arguments(parser, skip: Collection[str] = ()) -> None:
    """Add a flag for each field of ``RunSettings``, those that most people need first.

    Args:
        parser: of ``jsonargparse``.
        skip: fields without a flag.
    """
    names = [item.name for item in fields(RunSettings)]
    grouped = [name for group in GROUPS.values() for name in group]
    groups = {**GROUPS, EXPERT: [name for name in names if name not in grouped]}
    for title, members in groups.items():
        left_out = {name for name in names if name not in members} | set(skip)
        if left_out < set(names):
            parser.add_argument_group(title).add_class_arguments(RunSettings, as_group=False, skip=left_out)


def underscored(arguments: list[str]) -> list[str]:
    """``--dataset-root X`` as ``--dataset_root X``: both spellings of a flag are accepted."""
    out = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if flag.startswith("--"):
            flag = "--" + flag[2:].replace("-", "_")
        out.append(flag + equals + value)
    return out


def run_arguments(arguments: list[str]) -> list[str]:
    """Arguments of a command that takes ``RunSettings``, as its parser knows them.

    Raises:
        ValueError: a file of settings that cannot be read.
    """
    return present_arguments(underscored(arguments))
