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
    flags = [flag for flag in action.option_strings if flag.startswith("--")]
    return flags or [action.metavar or action.dest]


def flag_row(action: Any) -> str:
    """Return the row of an argument: its flags and their meaning."""
    meaning = " ".join((action.help or "").split())
    meaning = meaning.replace("%%", "%").replace("|", "\\|")
    return f"| `{'`, `'.join(names_of(action))}` | {meaning} |"


def sentence(summary: str) -> str:
    """Return a summary with a capital letter."""
    return f"{summary[:1].upper()}{summary[1:]}"


def page(name: str) -> str:
    """Return the page of a command."""
    lines = [f"# crumb {name}", "", f"{sentence(COMMANDS[name].summary)}.", ""]
    lines += ["```bash", f"crumb {name} {usage(name)}[--OPTION VALUE ...]", "```", ""]
    for group in subparsers()[name]._action_groups:
        rows = []
        for action in group._group_actions:
            if action.dest.partition(".")[0] not in HIDDEN:
                rows.append(flag_row(action))
        if rows:
            title = group.title if name == "run" else "Options"
            lines += [f"## {GROUP_NAMES.get(group.title, title)}", ""]
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
        index.append(f"| [`crumb {name}`]({name}.md) | {sentence(command.summary)} |")
    texts = {f"cli/{name}.md": page(name) for name in COMMANDS}
    return {"cli/index.md": "\n".join([*index, ""]), **texts}
