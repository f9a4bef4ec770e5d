"""The command ``crumb`` and its parts: the one place that knows the method and the streams."""

import os
import sys
from importlib import import_module

from crumb_avalanche.runs.command_settings import (
    DemoSettings,
    PrepareSettings,
    PretrainSettings,
    ReportSettings,
    StrategiesSettings,
)
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.system.atomic_file import DISK_FULL

COMMANDS = {
    "demo": (DemoSettings, "rendered shapes, a few minutes, nothing to download"),
    "prepare": (PrepareSettings, "from a data set's download to what its benchmark reads"),
    "run": (RunSettings, "learn a stream with one strategy"),
    "strategies": (StrategiesSettings, "every method: where it comes from, what it stores, what a budget buys"),
    "pretrain": (PretrainSettings, "CRUMB pretraining of plastic layers and codebook"),
    "report": (ReportSettings, "tables and pictures of finished runs"),
}


def parser():
    """The command line, built without importing torch."""
    from jsonargparse import ActionConfigFile, ArgumentParser

    from crumb_avalanche import __version__

    main_parser = ArgumentParser(
        prog="crumb",
        description="CRUMB learns new object classes from a stream seen once and does not forget the old ones.",
        version=__version__,
        allow_abbrev=False,
    )
    commands = main_parser.add_subcommands(required=True, dest="command")
    positional = {"prepare": "NAME ", "report": "FOLDER [FOLDER ...] ", "strategies": "[NAME] "}
    for name, (settings, summary) in COMMANDS.items():
        command = ArgumentParser(
            prog=f"crumb {name}",
            # Of all options it would be a page before every error.
            usage=f"crumb {name} {positional.get(name, '')}[--OPTION VALUE ...]",
            description=(settings.__doc__ or "").split("\n")[0],
            allow_abbrev=False,
        )
        command.add_argument("--config", action=ActionConfigFile, help="a YAML file of settings")
        if settings is ReportSettings:  # folders stand without a flag:  crumb report A B
            command.add_argument("folders", nargs="+", metavar="FOLDER", help="run folders, or folders of runs")
        if settings is StrategiesSettings:  # crumb strategies remind
            command.add_argument("name", nargs="?", metavar="NAME", help="only this one")
        if settings is PrepareSettings:  # crumb prepare toybox --check
            command.add_argument(
                "name", metavar="NAME", help="core50, toybox, ilab, icub, ilab_core50, cifar100, imagenet"
            )
            command.add_argument(
                "--check",
                type=bool,
                nargs="?",
                const=True,
                default=False,
                metavar="BOOL",
                help="change nothing, and list what is missing of all that the paper uses",
            )
        command.add_class_arguments(settings, skip={"folders", "name", "check"})
        commands.add_subcommand(name, command, help=summary)
    return main_parser


def underscored(arguments: list[str]) -> list[str]:
    """``--dataset-root X`` as ``--dataset_root X``: both spellings of a flag are accepted.

    And ``--check X`` as ``--check=true X`` unless X is true or false, so that it may stand before the data set's name.
    """
    out = []
    for argument, following in zip(arguments, [*arguments[1:], ""]):
        flag, equals, value = argument.partition("=")
        if flag.startswith("--"):
            flag = "--" + flag[2:].replace("-", "_")
        if argument == "--check" and following.lower() not in ("true", "false"):
            equals, value = "=", "true"
        out.append(flag + equals + value)
    return out


def give_way_to_others() -> None:
    """Let threads of torch that wait for each other sleep sooner than libgomp's rule says, before torch is imported.

    By that rule they spin for milliseconds. Where other programs keep the cores busy, the thread that is waited for
    does not get its turn, and two threads are several times slower than one. Nothing is changed where the environment
    says something of it already.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "2000"


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, and turn the errors that a user can cure into one line."""
    give_way_to_others()
    command_line = parser()
    chosen = command_line.parse_args(underscored(sys.argv[1:] if arguments is None else arguments))
    settings_type = COMMANDS[chosen.command][0]
    values = chosen[chosen.command].as_dict()
    values.pop("config", None)
    command = import_module(f"crumb_avalanche.cli.{chosen.command}")
    try:
        command.main(settings_type(**values))
    except KeyboardInterrupt:
        kept = "what was finished is kept, and the same command goes on from there"
        if chosen.command == "run":
            kept = "the same command goes on from the last experience that was learned, or the last --checkpoint-every"
            kept = kept if values["checkpoint"] else "what was learned so far is in interrupted/ in the output folder"
        print(f"crumb {chosen.command}: stopped; {kept}", file=sys.stderr)
        return 130  # as shells have it
    except (ValueError, OSError, ImportError, TypeError, RuntimeError) as error:
        full = getattr(error, "errno", None) in DISK_FULL
        told = isinstance(error, ValueError | ImportError | FileExistsError | PermissionError) or full
        if type(error).__module__ == "builtins" and not told:
            raise  # a defect, not bad input: show where
        cure = "; make room on that disk and give the same command again" * full
        print(f"crumb {chosen.command}: {error}{cure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
