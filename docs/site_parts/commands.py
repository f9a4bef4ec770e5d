"""Pages of the command line, made from its parsers: one page a command, every flag with its meaning and its default."""

import functools
from typing import Any

from crumb_avalanche.cli.commands import COMMANDS
from crumb_avalanche.cli.parser import parser, usage

HIDDEN = ("help", "config", "print_config")
GROUP_NAMES = {
    "positional arguments": "Arguments",
    "your data": "Your data",
    "how good": "How good",
    "how fast": "How fast",
    "expert": "All other settings",
}


@functools.cache
def subparsers() -> dict[str, Any]:
    """Return the parser of each command."""
    return {name: parser(name) for name in COMMANDS}


def names_of(action: Any) -> list[str]:
    """Return the flags of an argument in the spelling of the documentation, or its name if it has no flag."""
    return [flag for flag in action.option_strings if flag.startswith("--")] or [
        action.metavar or action.dest
    ]


def page(name: str) -> str:
    """Return the page of a command."""
    summary = COMMANDS[name].summary
    lines = [f"# crumb {name}", "", f"{summary[:1].upper()}{summary[1:]}.", ""]
    lines += ["```bash", f"crumb {name} {usage(name)}[--OPTION VALUE ...]", "```", ""]
    for group in subparsers()[name]._action_groups:
        rows = []
        for action in group._group_actions:
            if action.dest.partition(".")[0] not in HIDDEN:
                meaning = (
                    " ".join((action.help or "").split())
                    .replace("%%", "%")
                    .replace("|", "\\|")
                )
                rows.append(f"| `{'`, `'.join(names_of(action))}` | {meaning} |")
        if rows:
            lines += [
                f"## {GROUP_NAMES.get(group.title, group.title if name == 'run' else 'Options')}",
                "",
            ]
            lines += ["| flag | meaning |", "| :-- | :-- |", *rows, ""]
    text = "`--config FILE` reads settings from a YAML file, and `--print-config` prints the present ones as such a file."
    return "\n".join([*lines, "## Settings from a file", "", text, ""])


def pages() -> dict[str, str]:
    """Return the text of each page, by its path in the site."""
    text = "These pages are made from the parsers of `crumb`, so they list every flag. Flags take dashes or underscores."
    index = [
        "# Command line",
        "",
        text,
        "",
        "| command | what it does |",
        "| :-- | :-- |",
    ]
    for name, command in COMMANDS.items():
        summary = command.summary
        index.append(
            f"| [`crumb {name}`]({name}.md) | {summary[:1].upper()}{summary[1:]} |"
        )
    return {
        "cli/index.md": "\n".join([*index, ""]),
        **{f"cli/{name}.md": page(name) for name in COMMANDS},
    }
