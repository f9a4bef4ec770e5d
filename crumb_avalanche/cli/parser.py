"""The command line of ``crumb``: flags from the settings of each command, without importing torch."""

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
from crumb_avalanche.cli import settings as commands
from crumb_avalanche.report.settings import ReportSettings
from crumb_avalanche.runs.demo_settings import DemoSettings
from crumb_avalanche.runs.pretrain_settings import PretrainSettings
from crumb_avalanche.runs.settings import (
    GROUPS,
    RunSettings,
    Value,
    load_yaml,
    meanings,
)

COMMANDS: dict[str, tuple[type, str]] = {
    "teach": (commands.TeachSettings, "teach a learner what images show"),
    "predict": (commands.PredictSettings, "ask a learner what images show"),
    "serve": (
        commands.ServeSettings,
        "teach and ask a learner in a browser, or from other programs",
    ),
    "connect": (
        commands.ConnectSettings,
        "answer for the snapshots of cameras over MQTT",
    ),
    "learner": (
        commands.LearnerSettings,
        "show a learner; take a lesson back, rename, move or forget a class, merge two",
    ),
    "export": (commands.ExportSettings, "convert a learner for other programs"),
    "run": (RunSettings, "learn a stream with one strategy"),
    "report": (ReportSettings, "show finished runs as tables and pictures"),
    "prepare": (
        commands.PrepareSettings,
        "convert a downloaded data set to the layout that its benchmark reads",
    ),
    "backbones": (
        commands.BackbonesSettings,
        "list the networks: cut, map, size, and measured images per second",
    ),
    "strategies": (
        commands.StrategiesSettings,
        "list the methods: source, what each stores, what a budget buys",
    ),
    "demo": (
        DemoSettings,
        "compare strategies on rendered shapes: a few minutes, no download",
    ),
    "pretrain": (PretrainSettings, "pretrain plastic layers and codebook"),
}
FIRST_OF_GROUP = {
    "teach": "Teach and ask",
    "run": "Measure",
    "demo": "The paper",
}  # of the list of commands
# What --help shows of commands with many flags; --help-all shows all.
FEW = {
    "run": "benchmark dataset_root output run runs preset strategy backbone weights budget_images feature_cache device",
    "teach": "label nothing camera seconds new_class keep_pictures method backbone weights runtime looks",
    "connect": "broker topic name images user password_file ca method backbone weights",
    "serve": "host port certificate key method backbone weights",
    "pretrain": "data output weights backbone images_per_class epochs batch_size learning_rate device",
}
# The arguments of commands that have no flag: name, and how many values as argparse
# says it.
POSITIONAL: dict[str, dict[str, str | None]] = {
    "prepare": {"name": None},
    "report": {"folders": "+"},
    "strategies": {"name": "?"},
    "backbones": {"names": "*"},
    "teach": {"model": None, "sources": "*"},
    "predict": {"model": None, "sources": "*"},
    "serve": {"model": None},
    "connect": {"service": None, "model": None},
    "learner": {"action": None, "model": None, "names": "*"},
    "export": {"model": None},
}
USAGE = {None: "{}", "?": "[{}]", "*": "[{} ...]", "+": "{0} [{0} ...]"}
BARE = (
    "--check",
    "--json",
    "--csv",
    "--without-weights",
    "--new-class",
    "--keep-pictures",
)  # may stand alone
# Settings that are paths, in any command; --weights may be a word too.
PATHS = {
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
}
PATHS |= {
    "model",
    "output",
    "password_file",
    "pictures",
    "pretrained",
    "source",
    "sources",
    "weights",
}


class Parser(argparse.ArgumentParser):
    """Prints what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Print it and end."""
        self.exit(2, f"{self.prog}: {printable(message)}\n")


def parser(name: str, every_flag: bool = True) -> Parser:
    """Build the parser of a command, whose help shows every flag or those that people need.

    It parses every value as text, and leaves out what is not given.
    """
    settings, places = COMMANDS[name][0], POSITIONAL.get(name, {})
    flags = [item.name for item in fields(settings) if item.name not in places]
    few = FEW[name].split() if name in FEW else flags
    shown = {
        "config": "a YAML file of settings",
        "print_config": "print the settings as such a file, and do no more",
    }
    flags, shown = [*flags, *shown], shown | meanings(settings)
    made = Parser(
        prog=f"crumb {name}",
        usage=f"crumb {name} {usage(name)}[--OPTION VALUE ...]",
        description=(settings.__doc__ or "").split("\n")[0],
        epilog=None
        if every_flag
        else f"crumb {name} --help-all shows all {len(flags)} flags.",
        formatter_class=partial(argparse.HelpFormatter, max_help_position=24),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    for place, count in places.items():
        more = {"nargs": count} if count else {}
        made.add_argument(
            place, metavar=metavar(place), help=shown[place].replace("%", "%%"), **more
        )  # type: ignore
    groups = (
        {title: made.add_argument_group(title) for title in [*GROUPS, "expert"]}
        if name == "run"
        else {}
    )
    for flag in flags:
        title = next(
            (title for title, members in GROUPS.items() if flag in members), "expert"
        )
        more = (
            {"action": "store_true"}
            if flag == "print_config"
            else {"metavar": flag.upper()}
        )
        more |= {"nargs": "?"} if flag_of(flag) in BARE else {}
        text = (
            shown[flag].replace("%", "%%")
            if every_flag or flag in few
            else argparse.SUPPRESS
        )
        groups.get(title, made).add_argument(
            flag_of(flag), dest=flag, help=text, **more
        )  # type: ignore[arg-type]
    return made


def metavar(place: str) -> str:
    """Return the name of an argument without a flag as the usage shows it."""
    return (
        f"{{{','.join(get_args(commands.Action))}}}"
        if place == "action"
        else place.removesuffix("s").upper()
    )


def flag_of(name: str) -> str:
    """Return the flag of a setting: ``--dataset-root`` of ``dataset_root``."""
    return f"--{name.replace('_', '-')}"


def usage(name: str) -> str:
    """Return the arguments of a command that have no flag, as its usage shows them."""
    return "".join(
        f"{USAGE[count].format(metavar(place))} "
        for place, count in POSITIONAL.get(name, {}).items()
    )


def overview() -> str:
    """Return the help of ``crumb``: the commands by group."""
    width = min(shutil.get_terminal_size().columns, 100)
    text = "CRUMB learns new object classes from a stream seen once and does not forget the old ones."
    lines = ["usage: crumb COMMAND [...]", "", *textwrap.wrap(text, width)]
    for command, (_, summary) in COMMANDS.items():
        if command in FIRST_OF_GROUP:
            lines += ["", f"{FIRST_OF_GROUP[command]}:"]
        lines += textwrap.wrap(
            summary,
            width,
            initial_indent=f"  {command:<22}",
            subsequent_indent=" " * 24,
        )
    return "\n".join(
        [
            *lines,
            "",
            "crumb COMMAND --help shows a command; crumb --version prints the version.",
        ]
    )


def parsed(given: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the command that the arguments name, and the settings that they give.

    Raises:
        SystemExit: what ``--help``, ``--version``, ``--print-config`` or an unknown
            argument ask for was printed.
        ValueError: a file of settings cannot be read.
    """
    name, *rest = given or ["--help"]
    if name in ("--help", "-h", "--version"):
        from crumb_avalanche import __version__

        print(f"crumb {__version__}" if name == "--version" else overview())
        raise SystemExit(0)
    if name not in COMMANDS:
        near = difflib.get_close_matches(name.lower(), COMMANDS, n=1, cutoff=0.5)
        meant = f"did you mean crumb {near[0]}? " if near else ""
        print(
            f"crumb: {printable(name)[:60]!r} is no command; {meant}crumb --help lists all of them",
            file=sys.stderr,
        )
        raise SystemExit(2)
    arguments = [
        spelled(argument, after)
        for argument, after in zip(rest, [*rest[1:], ""], strict=False)
    ]
    made = parser(name, "--help-all" in arguments)
    own = {
        argument.partition("=")[0]
        for argument in arguments
        if argument.startswith("--method.")
    }
    for flag in own if name == "run" else ():
        made.add_argument(flag, type=partial(value_of, hint=Value))
    values = vars(
        made.parse_intermixed_args(
            ["--help" if one == "--help-all" else one for one in arguments]
        )
    )
    method = {
        key.removeprefix("method."): values.pop(key)
        for key in [*values]
        if key.startswith("method.")
    }
    prints, file = values.pop("print_config", False), values.pop("config", None)
    settings = COMMANDS[name][0]
    hints = get_type_hints(settings)
    items = [
        one for one in fields(settings) if one.name not in POSITIONAL.get(name, ())
    ]
    values = (
        {} if file is None else settings_in(file, [one.name for one in items])
    ) | values
    values = {key: value_of(value, hints[key]) for key, value in values.items()}
    if method and isinstance(values.setdefault("method", {}), dict):
        values["method"] = values["method"] | method
    needed = [
        one.name
        for one in items
        if one.default is MISSING and one.default_factory is MISSING
    ]
    if missing := [flag_of(key) for key in needed if key not in values]:
        made.error(f"give {' and '.join(missing)}")
    if prints:
        whole = vars(settings(**values))
        print(
            yaml.safe_dump(
                {one.name: whole[one.name] for one in items}, sort_keys=False
            ),
            end="",
        )
        raise SystemExit(0)
    return name, values


def spelled(argument: str, after: str) -> str:
    """Return an argument with dashes in its flag, and ``=true`` after one that stands alone.

    ``--check X`` becomes ``--check=true X`` unless X is true or false: X may be a name
    without a flag.
    """
    flag, equals, value = argument.partition("=")
    if not flag.startswith("--"):
        return argument
    alone = flag_of(argument[2:]) in BARE and after.lower() not in ("true", "false")
    return flag_of(flag[2:]) + ("=true" if alone else equals + value)


def value_of(given: Any, hint: Any) -> Any:
    """Return a text of the command line or of a file as the first type of a setting that takes it, else as it is."""
    kinds = get_args(hint) or (hint,)
    if not isinstance(given, str):
        return given
    if NoneType in kinds and given == "null":
        return None
    if bool in kinds and given.lower() in ("true", "false"):
        return given.lower() == "true"
    for kind in (int, float):
        if kind in kinds:
            with suppress(ValueError):
                return kind(given)
    return load_yaml(given) if get_origin(hint) is dict else given


def settings_in(path: str, known: list[str]) -> dict[str, Any]:
    """Return the settings in a YAML file; raise ValueError for a file that holds anything else."""
    try:
        found = load_yaml(Path(path).read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it holds no lines of the form name: value")
        if unknown := [str(name)[:60] for name in found if name not in known]:
            raise ValueError(f"it sets {', '.join(unknown)}, unknown to this command")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{path[:200]} is no file of settings ({reason}); give one, or leave --config out"
        ) from error
    return found


def usable_paths(values: dict[str, Any]) -> dict[str, Any]:
    """Return settings with ``~`` in paths expanded; raise ValueError for an empty path."""
    out = dict(values)
    for name in PATHS & values.keys():
        given = values[name] if isinstance(values[name], list) else [values[name]]
        if "" in given:
            raise ValueError(
                f"{name} is empty; give a path, or '.' for the current folder"
            )
        if any("\0" in str(path) for path in given):
            raise ValueError(
                f"{name} is {values[name]!r}, but a path holds no zero byte; give another one"
            )
        expanded = [
            os.path.expanduser(path) if isinstance(path, str) else path
            for path in given
        ]
        out[name] = expanded if isinstance(values[name], list) else expanded[0]
    return out
