"""The command line of ``crumb``, built without importing torch."""

import argparse
import difflib
import io
import os
import re
import shutil
import textwrap
from dataclasses import fields
from typing import Any, NoReturn

from benchmarks_toybox_ilab.tables.text import printable
from crumb_avalanche.runs.command_settings import (
    BackbonesSettings,
    ConnectSettings,
    DemoSettings,
    ExportSettings,
    LearnerSettings,
    PredictSettings,
    PrepareSettings,
    PretrainSettings,
    ReportSettings,
    ServeSettings,
    StrategiesSettings,
    TeachSettings,
)
from crumb_avalanche.runs.settings import MOST_CHARACTERS, RunSettings, add_run_arguments, load_yaml, underscored
from crumb_avalanche.system.setting_ranges import KINDS as SETTING_KINDS

COMMANDS = {
    "teach": (TeachSettings, "teach a learner what images show"),
    "predict": (PredictSettings, "ask a learner what images show"),
    "serve": (ServeSettings, "teach and ask a learner in a browser, or from other programs"),
    "connect": (ConnectSettings, "answer for the snapshots of cameras over MQTT"),
    "learner": (LearnerSettings, "show a learner; take a lesson back, rename, move or forget a class, merge two"),
    "export": (ExportSettings, "convert a learner for other programs"),
    "run": (RunSettings, "learn a stream with one strategy"),
    "report": (ReportSettings, "show finished runs as tables and pictures"),
    "prepare": (PrepareSettings, "convert a downloaded data set to the layout that its benchmark reads"),
    "backbones": (BackbonesSettings, "list the networks: cut, map, size, and measured images per second"),
    "strategies": (StrategiesSettings, "list the methods: source, what each stores, what a budget buys"),
    "demo": (DemoSettings, "compare strategies on rendered shapes: a few minutes, no download"),
    "pretrain": (PretrainSettings, "pretrain plastic layers and codebook"),
}
FIRST_OF_GROUP = {"teach": "Teach and ask", "run": "Measure", "demo": "The paper"}  # of the list of commands
# What --help shows of commands with many flags; --help-all shows all.
FEW = {
    "run": "benchmark dataset_root output run runs preset strategy backbone weights budget_images feature_cache device",
    "teach": "label nothing camera seconds new_class keep_pictures method backbone weights runtime looks",
    "connect": "broker topic name images user password_file ca method backbone weights",
    "serve": "host port certificate key method backbone weights",
    "pretrain": "data output weights backbone images_per_class epochs batch_size learning_rate device",
}
ACTIONS = ("show", "lessons", "undo", "move", "forget", "rename", "merge")
NAMES = "core50, toybox, ilab, icub, ilab_core50, cifar100, imagenet, tiny_imagenet, eth80, stream51, "
NAMES += "openloris_clutter (and other factors), clear10, clear100 or orbit"
# The arguments of commands that have no flag: name, how many values as argparse says it, and help.
POSITIONAL: dict[str, list[tuple[str, str | None, str]]] = {
    "prepare": [("name", None, NAMES)],
    "report": [("folders", "+", "run folders, or folders of runs")],
    "strategies": [("name", "?", "show this method only")],
    "backbones": [("names", "*", "backbones; default the built-in ones")],
    "teach": [
        ("model", None, "the learner's file; made if absent"),
        ("source", "?", "an image, video, folder or glob pattern"),
    ],
    "predict": [("model", None, "a learner's file"), ("sources", "*", "images, videos, folders, glob patterns")],
    "serve": [("model", None, "the learner's file; made if absent")],
    "connect": [("service", None, "mqtt"), ("model", None, "the learner's file; made if absent")],
    "learner": [
        ("action", None, ", ".join(ACTIONS)),
        ("model", None, "a learner's file"),
        ("names", "*", "class names; for merge the other learner's file"),
    ],
    "export": [("model", None, "a learner's file")],
}
USAGE = {None: "{}", "?": "[{}]", "*": "[{} ...]", "+": "{0} [{0} ...]"}
BARE = (
    "--check",
    "--json",
    "--csv",
    "--without-weights",
    "--new-class",
    "--keep-pictures",
)  # flags that may stand alone
# Settings that are paths, in any command; --weights may be a word too.
PATHS = {
    "boxes",
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
}
PATHS |= {"ca", "password_file", "pictures", "pretrained", "source", "sources", "weights"}
KINDS = {kind.__name__: words for kind, words in SETTING_KINDS.items()} | {"dict": "names and values"}


def parser(only: str | None = None, every_flag: bool = False) -> Any:
    """Build the parser of all commands.

    Args:
        only: the command whose options are added, as adding them takes as long as parsing; all by default.
        every_flag: whether the help of a command with many flags shows all of them.
    """
    from jsonargparse import ActionConfigFile, ArgumentParser

    class Parser(ArgumentParser):
        """Print what is wrong with a value in one line, without the usage, and the flags that people need as help."""

        def format_help(self, *_: Any) -> str:
            return help_of(self, every_flag)

        def error(self, message: str, ex: Exception | None = None) -> NoReturn:
            if (line := one_line(message)) is None:
                super().error(" ".join(message.split()), ex)
            command = getattr(ex, "subcommand_parser", None) or self
            self.exit(2, f"{command.prog.replace(' [options]', '')}: {line}\n")

    class ConfigFile(ActionConfigFile):
        """Read a file only if its values can be counted."""

        def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
            try:
                with open(values, encoding="utf-8") if os.path.isfile(values) else io.StringIO(values) as file:
                    load_yaml(file.read(MOST_CHARACTERS + 1))
            except (OSError, ValueError) as error:
                line = f"{values[:200]} is no file of settings ({error}); give one, or leave --config out"
                parser.exit(2, f"{parser.prog.replace(' [options]', '')}: {printable(line)}\n")
            super().__call__(parser, cfg, values, option_string)

    from crumb_avalanche import __version__

    main_parser = Parser(
        prog="crumb",
        description="CRUMB learns new object classes from a stream seen once and does not forget the old ones.",
        version=__version__,
        allow_abbrev=False,
    )
    commands = main_parser.add_subcommands(required=True, dest="command")
    for name, (settings, summary) in COMMANDS.items():
        command = Parser(
            prog=f"crumb {name}",
            # argparse prints the usage before every error: a list of all options would fill a page.
            usage=f"crumb {name} {usage(name)}[--OPTION VALUE ...]",
            description=(settings.__doc__ or "").split("\n")[0],
            allow_abbrev=False,
        )
        command.add_argument("--config", action=ConfigFile, help="a YAML file of settings")
        if only in (None, name):
            _add_options(command, name, settings)
        commands.add_subcommand(name, command, help=summary)
    return main_parser


def help_of(shown: Any, every_flag: bool) -> str:
    """Return the help of a parser: of ``crumb`` the commands by group, of a command its flags."""
    width = min(shutil.get_terminal_size().columns, 100)

    def entry(left: str, text: str) -> str:
        column = 22
        lines = textwrap.wrap(text, max(width - column - 2, 20), break_on_hyphens=False) or [""]
        first, rest = (left, lines) if len(left) < column else (left + "\n", ["", *lines])
        start = f"  {first:<{column}}{rest[0]}" if rest[0] else f"  {first.rstrip()}"
        return "\n".join([start, *(" " * (column + 2) + line for line in rest[1:])])

    name = shown.prog.rpartition(" ")[2]
    if name not in COMMANDS:
        lines = ["usage: crumb COMMAND [...]", "", *textwrap.wrap(shown.description, width)]
        for command, (_, summary) in COMMANDS.items():
            if command in FIRST_OF_GROUP:
                lines += ["", f"{FIRST_OF_GROUP[command]}:"]
            lines.append(entry(command, summary))
        return "\n".join([*lines, "", "crumb COMMAND --help shows a command; crumb --version prints the version.", ""])
    flags = [action for action in shown._actions if action.option_strings and action.dest != "help"]
    few = flags if every_flag else [one for one in flags if one.dest in FEW.get(name, one.dest).split()]
    if not every_flag:
        few = [one for one in few if one.dest not in ("config", "print_config")]
    lines = [f"usage: crumb {name} {usage(name)}[--OPTION VALUE ...]", "", *textwrap.wrap(shown.description, width), ""]
    lines += [entry(one.metavar, one.help) for one in shown._actions if not one.option_strings]
    for one in few:
        flag, default = max(one.option_strings, key=len).replace("_", "-"), one.default
        values = one.metavar.strip("[]") if one.metavar and one.dest != "print_config" else one.dest.upper()
        kind = "" if flag in BARE or one.dest == "print_config" else f" {values}"
        said = " ".join((one.help or "").replace("%%", "%").split())
        if default not in (None, {}, [], False, argparse.SUPPRESS) and "default" not in said:
            said = f"{said.rstrip('.')} (default: {default})"
        lines.append(entry(flag + kind, said))
    if len(few) < len(flags):
        lines += ["", f"crumb {name} --help-all shows all {len(flags)} flags."]
    return "\n".join([*lines, ""])


def nearest(given: list[str]) -> str | None:
    """Return what to print if the arguments begin with a word that is no command; else ``None``."""
    if given[0].startswith("-") or given[0] in COMMANDS:
        return None
    near = difflib.get_close_matches(given[0].lower(), COMMANDS, n=1, cutoff=0.5)
    meant = f"did you mean crumb {near[0]}? " if near else ""
    return f"crumb: {printable(given[0])[:60]!r} is no command; {meant}crumb --help lists all of them"


def one_line(message: str) -> str | None:
    """Return the parser's error about a value in one line; ``None`` for an error of another kind."""
    found = re.match(r'Parser key "(.+?)":\s*(.*)', message, re.DOTALL)
    if not found:
        return None
    name, reason = found.groups()
    value = re.search(r"(?:Given value|Got value): (.*)", reason, re.DOTALL)
    kinds = re.findall(r"Expected an? (?:typing\.Literal\[(.*?)\]|<class '(\w+)'>)", reason)
    expected = [names.replace("'", "") or KINDS.get(kind, kind) for names, kind in kinds if kind != "NoneType"]
    if value and expected:
        return f"{name} is {value[1].strip()[:60]!r}; give {' or '.join(dict.fromkeys(expected))}"
    return f"{name}: {' '.join(reason.split())}"


def usable_paths(values: dict[str, Any]) -> dict[str, Any]:
    """Return settings with ``~`` in paths expanded; raise ValueError for an empty path."""
    out = dict(values)
    for name in PATHS & values.keys():
        if values[name] is None:
            continue
        given = values[name] if isinstance(values[name], list) else [values[name]]
        if not all(given):
            raise ValueError(f"{name} is empty; give a path, or '.' for the current folder")
        if any("\0" in path for path in given):
            raise ValueError(f"{name} is {values[name]!r}, but a path holds no zero byte; give another one")
        expanded = [os.path.expanduser(path) for path in given]
        out[name] = expanded if isinstance(values[name], list) else expanded[0]
    return out


def _add_options(command: Any, name: str, settings: type) -> None:
    """Add the arguments of a command."""
    if settings is RunSettings:
        add_run_arguments(command)
        return
    for place, count, text in POSITIONAL.get(name, ()):
        more: dict[str, Any] = {"nargs": count} if count else {}
        if place == "action":
            more["choices"] = ACTIONS
        command.add_argument(place, metavar=place.removesuffix("s").upper(), help=text, **more)
    if settings is PrepareSettings:  # crumb prepare toybox --check
        text = "list the missing files without changing anything"
        command.add_argument("--check", type=bool, nargs="?", const=True, default=False, metavar="BOOL", help=text)
    added = {action.dest for action in command._actions}
    command.add_class_arguments(settings, skip=added & {item.name for item in fields(settings)})


def usage(name: str) -> str:
    """Return the arguments of a command that have no flag, as its usage shows them."""
    shown = ""
    for place, count, _ in POSITIONAL.get(name, ()):
        metavar = f"{{{','.join(ACTIONS)}}}" if place == "action" else place.removesuffix("s").upper()
        shown += f"{USAGE[count].format(metavar)} "
    return shown


def present(arguments: list[str]) -> list[str]:
    """Translate arguments to flags that the parser accepts.

    Replaces dashes in flags by underscores. Turns ``--check X`` into ``--check=true X`` unless X is true or false: X
    may be a name without a flag.
    """
    following = [*arguments[1:], ""]
    return underscored(
        [
            f"{argument}=true" if argument in BARE and after.lower() not in ("true", "false") else argument
            for argument, after in zip(arguments, following)
        ]
    )
