"""The command line of ``crumb``: flags from the settings of each command.

Imports neither torch nor Avalanche, so that help and errors come at once.
"""

import argparse
import difflib
import os
import shutil
import sys
import textwrap
from contextlib import suppress
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

import yaml

from benchmarks_toybox_ilab.tables.text import printable
from crumb_avalanche.cli.commands import COMMANDS
from crumb_avalanche.cli.settings import Action
from crumb_avalanche.runs.settings import GROUPS, Value, load_yaml, meanings
from crumb_avalanche.system.named_values import attributes

EXPERT = "expert"  # the group of flags of crumb run that are in no other
# Flags of every command beside its settings.
COMMON = {
    "config": "a YAML file of settings",
    "print_config": "print the settings as such a file, and do no more",
}
# How the usage shows an argument without a flag, by its number of values.
USAGE = {None: "{}", "?": "[{}]", "*": "[{} ...]", "+": "{0} [{0} ...]"}
# Flags that may stand alone, which means true.
BARE = (
    "--check",
    "--json",
    "--csv",
    "--without-weights",
    "--new-class",
    "--keep-pictures",
    "--measure",
)
# Settings that are paths, in any command; --weights may be a word too.
PATHS = frozenset(
    [
        "boxes",
        "ca",
        "certificate",
        "data",
        "dataset_root",
        "feature_cache",
        "folders",
        "html",
        "images",
        "key",
        "model",
        "output",
        "password_file",
        "pictures",
        "pretrained",
        "resources",
        "source",
        "sources",
        "weights",
    ]
)
UNRECOGNIZED = "unrecognized arguments: "  # begins an error of argparse
TERMINAL_WIDTH = 100  # at most, of the list of commands


class Parser(argparse.ArgumentParser):
    """Parses arguments; prints what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong with the arguments and end with exit code 2."""
        near_flags = []
        if message.startswith(UNRECOGNIZED):
            near_flags = self._near_flags(message.removeprefix(UNRECOGNIZED).split())
        if near_flags:
            message += f"; did you mean {' and '.join(near_flags)}?"
        self.exit(2, f"{self.prog}: {printable(message)}\n")

    def _near_flags(self, words: list[str]) -> list[str]:
        """Return the flags of this command that are spelled like unknown ones."""
        known = list(self._option_string_actions)
        near_flags = []
        for word in words:
            flag, _, _ = word.partition("=")
            if flag.startswith("--"):
                near_flags += difflib.get_close_matches(flag, known, n=1, cutoff=0.7)
        return near_flags


def parser(name: str, every_flag: bool = True) -> Parser:
    """Build the parser of a command.

    It parses every value as text, and leaves out what is not given.

    Args:
        name: of the command.
        every_flag: whether its help shows every flag, or those that people need.
    """
    command = COMMANDS[name]
    flags = [*command.flagged(), *COMMON]
    short_help = command.usual.split() or command.flagged()
    help_texts = COMMON | meanings(command.settings)
    epilog = None
    if not every_flag:
        epilog = f"crumb {name} --help-all shows all {len(flags)} flags."
    command_parser = Parser(
        prog=f"crumb {name}",
        usage=f"crumb {name} {usage(name)}[--OPTION VALUE ...]",
        description=(command.settings.__doc__ or "").split("\n")[0],
        epilog=epilog,
        formatter_class=partial(argparse.HelpFormatter, max_help_position=24),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    for argument, nargs in command.positional.items():
        command_parser.add_argument(
            argument,
            metavar=metavar(argument),
            help=_escaped(help_texts[argument]),
            nargs=nargs,
            # Else argparse takes an argument that may be left out for a required one.
            default=argparse.SUPPRESS,
        )
    groups = _flag_groups(name, command_parser)
    for flag in flags:
        help_text = argparse.SUPPRESS
        if every_flag or flag in short_help:
            help_text = _escaped(help_texts[flag])
        # A command without groups has its flags in the parser itself.
        group = groups.get(_group_title(flag), command_parser)
        group.add_argument(
            flag_of(flag),
            dest=flag,
            help=help_text,
            **_value_keywords(flag),  # how argparse takes its value
        )
    return command_parser


def _escaped(help_text: str) -> str:
    """Return a help text for argparse, which formats it with ``%``."""
    return help_text.replace("%", "%%")


def _flag_groups(name: str, command_parser: Parser) -> dict[str, Any]:
    """Add the groups of flags of a command to its parser, and return them by title.

    Only ``crumb run`` has groups.
    """
    if name != "run":
        return {}
    titles = [*GROUPS, EXPERT]
    return {title: command_parser.add_argument_group(title) for title in titles}


def _group_title(flag: str) -> str:
    """Return the title of the group of flags that a flag of ``crumb run`` is in."""
    for title, flags in GROUPS.items():
        if flag in flags:
            return title
    return EXPERT


def _value_keywords(flag: str) -> dict[str, Any]:
    """Return the keywords of ``add_argument`` for the value of a flag."""
    if flag == "print_config":
        return {"action": "store_true"}
    if flag_of(flag) in BARE:
        return {"metavar": flag.upper(), "nargs": "?"}
    return {"metavar": flag.upper()}


def metavar(argument: str) -> str:
    """Return the name of an argument without a flag as the usage shows it."""
    if argument == "action":
        return f"{{{','.join(get_args(Action))}}}"
    return argument.removesuffix("s").upper()


def flag_of(name: str) -> str:
    """Return the flag of a setting: ``--dataset-root`` of ``dataset_root``."""
    return f"--{name.replace('_', '-')}"


def usage(name: str) -> str:
    """Return the arguments of a command that have no flag, as its usage shows them."""
    text = ""
    for argument, nargs in COMMANDS[name].positional.items():
        text += USAGE[nargs].format(metavar(argument)) + " "
    return text


def overview() -> str:
    """Return the help of ``crumb``: the commands by group."""
    width = min(shutil.get_terminal_size().columns, TERMINAL_WIDTH)
    about = (
        "CRUMB learns new object classes from a stream seen once and does not forget "
        "the old ones."
    )
    lines = ["usage: crumb COMMAND [...]", "", *textwrap.wrap(about, width)]
    for name, command in COMMANDS.items():
        if command.heading:
            lines += ["", f"{command.heading}:"]
        lines += textwrap.wrap(
            command.summary,
            width,
            initial_indent=f"  {name:<22}",
            subsequent_indent=" " * 24,
        )
    end = "crumb COMMAND --help shows a command; crumb --version prints the version."
    return "\n".join([*lines, "", end])


def command_and_settings(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the command that arguments name, and the settings that they give, by name.

    Raises:
        SystemExit: what ``--help``, ``--version``, ``--print-config`` or an unknown
            argument ask for was printed.
        ValueError: a file of settings cannot be read.
    """
    name, *options = arguments or ["--help"]
    if name in ("--help", "-h", "--version"):
        _print_help_or_version(name)
        raise SystemExit(0)
    if name not in COMMANDS:
        _print_unknown_command(name)
        raise SystemExit(2)
    words = spelled_arguments(options)  # flags with dashes, each with a value
    every_flag = "--help-all" in words
    command_parser = parser(name, every_flag)
    if every_flag:
        words = ["--help"]
    if name == "run":
        _add_flags_of_method(command_parser, words)
    values = vars(command_parser.parse_intermixed_args(words))
    prints_config = values.pop("print_config", False)
    values = _settings_of_command(name, values)
    missing_flags = []
    for setting in _required_flags(name):
        if setting not in values:
            missing_flags.append(flag_of(setting))
    if missing_flags:
        command_parser.error(f"give {' and '.join(missing_flags)}")
    if prints_config:
        _print_config(name, values)
        raise SystemExit(0)
    return name, values


def _print_help_or_version(flag: str) -> None:
    """Print the help of ``crumb``, or its version for ``--version``."""
    from crumb_avalanche import __version__

    if flag == "--version":
        print(f"crumb {__version__}")
    else:
        print(overview())


def _print_unknown_command(name: str) -> None:
    """Print that there is no such command, and which may be meant."""
    suggestion = ""
    for near in difflib.get_close_matches(name.lower(), COMMANDS, n=1, cutoff=0.5):
        suggestion = f"did you mean crumb {near}? "
    quoted_name = repr(printable(name)[:60])
    print(
        f"crumb: {quoted_name} is no command; {suggestion}crumb --help lists all of "
        "them",
        file=sys.stderr,
    )


def _add_flags_of_method(command_parser: Parser, words: list[str]) -> None:
    """Let a parser take the flags ``--method.NAME`` that are among its arguments."""
    flags = {word.partition("=")[0] for word in words if word.startswith("--method.")}
    for flag in flags:
        command_parser.add_argument(flag, type=partial(value_of, hint=Value))


def _settings_of_command(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that a command line and the file of its ``--config`` give.

    Args:
        name: of the command.
        values: texts of the command line by setting, those of a method as
            ``method.NAME``.
    """
    path = values.pop("config", None)
    method_settings = {}
    for setting in [*values]:
        if setting.startswith("method."):
            method_settings[setting.removeprefix("method.")] = values.pop(setting)
    command = COMMANDS[name]
    if path is not None:
        values = settings_in(path, command.flagged()) | values
    hints = get_type_hints(command.settings)
    settings = {}
    for setting, value in values.items():
        settings[setting] = value_of(value, hints[setting])
    # A method that is no mapping is refused by RunSettings, which says what to give.
    if method_settings and isinstance(settings.setdefault("method", {}), dict):
        settings["method"] = settings["method"] | method_settings
    return settings


def _required_flags(name: str) -> list[str]:
    """Return the settings with a flag that a command cannot do without."""
    flagged = COMMANDS[name].flagged()
    required = []
    for setting in fields(COMMANDS[name].settings):
        has_default = (
            setting.default is not MISSING or setting.default_factory is not MISSING
        )
        if setting.name in flagged and not has_default:
            required.append(setting.name)
    return required


def _print_config(name: str, values: dict[str, Any]) -> None:
    """Print the settings of a command as a file for ``--config``."""
    command = COMMANDS[name]
    settings = attributes(command.settings(**values), command.flagged())
    print(yaml.safe_dump(settings, sort_keys=False), end="")


def spelled_arguments(arguments: list[str]) -> list[str]:
    """Return a command line with dashes in flags, and ``=true`` after bare ones.

    ``--dataset_root`` becomes ``--dataset-root``, and ``--check X`` becomes
    ``--check=true X`` unless X is true or false: X may be a name without a flag. What
    comes after ``--`` has no flags, and stays as it is.
    """
    if "--" in arguments:
        end = arguments.index("--")
        return [*spelled_arguments(arguments[:end]), *arguments[end:]]
    words = []
    for argument, next_argument in zip(arguments, [*arguments[1:], ""], strict=False):
        flag, equals, value = argument.partition("=")
        if not flag.startswith("--"):
            words.append(argument)
            continue
        needs_no_value = flag_of(argument[2:]) in BARE
        if needs_no_value and next_argument.lower() not in ("true", "false"):
            equals = "=true"
        words.append(flag_of(flag[2:]) + equals + value)
    return words


def value_of(text: Any, hint: Any) -> Any:
    """Return a text of the command line as the first type of a setting that takes it.

    The order is None, bool, int, float, a mapping in YAML, and text. ``null`` is
    ``None`` for a setting that takes no text; ``--label null`` names a class. A value
    that is no text, from a file, and a text that no type takes are returned as they
    are: the settings say what is wrong with them.

    Args:
        text: of the command line, or any value of a file.
        hint: type of the setting, such as ``int | None``.
    """
    if not isinstance(text, str):
        return text
    types = get_args(hint) or (hint,)
    if text == "null" and NoneType in types and str not in types:
        return None
    if bool in types and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number_type in (int, float):
        if number_type in types:
            with suppress(ValueError):
                return number_type(text)
    return load_yaml(text) if get_origin(hint) is dict else text


def settings_in(path: str, known: list[str]) -> dict[str, Any]:
    """Return the settings in a YAML file, by name.

    Args:
        path: of the file.
        known: names of the settings that the command has.

    Raises:
        ValueError: the file cannot be read, or holds anything else.
    """
    try:
        settings = load_yaml(Path(path).read_text(encoding="utf-8"))
        if not isinstance(settings, dict):
            raise ValueError("it holds no lines of the form name: value")
        unknown = [str(name)[:60] for name in settings if name not in known]
        if unknown:
            raise ValueError(f"it sets {', '.join(unknown)}, unknown to this command")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{path[:200]} is no file of settings ({reason}); give one, or leave "
            "--config out"
        ) from error
    return settings


def usable_paths(values: dict[str, Any]) -> dict[str, Any]:
    """Return settings with ``~`` in paths expanded.

    Raises:
        ValueError: a path is empty, or holds a zero byte.
    """
    settings = dict(values)
    for name in PATHS & values.keys():
        value = values[name]
        if isinstance(value, list):
            settings[name] = [_usable_path(name, path) for path in value]
        else:
            settings[name] = _usable_path(name, value)
    return settings


def _usable_path(setting: str, path: Any) -> Any:
    """Return the path of a setting with ``~`` expanded.

    A value that is no text is returned as it is: the settings say what is wrong.

    Args:
        setting: its name, for the error.
        path: its value.

    Raises:
        ValueError: the path is empty or holds a zero byte.
    """
    if path == "":
        raise ValueError(
            f"{setting} is empty; give a path, or '.' for the current folder"
        )
    if "\0" in str(path):
        raise ValueError(
            f"{setting} is {path!r}, but a path holds no zero byte; give another one"
        )
    if isinstance(path, str):
        return os.path.expanduser(path)
    return path
