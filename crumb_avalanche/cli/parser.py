"""The command line of ``crumb``, built without importing torch."""

from typing import Any

from crumb_avalanche.runs.arguments import add_run_arguments, run_arguments, underscored
from crumb_avalanche.runs.command_settings import (
    DemoSettings,
    PrepareSettings,
    PretrainSettings,
    ReportSettings,
    StrategiesSettings,
)
from crumb_avalanche.runs.settings import RunSettings

COMMANDS = {
    "demo": (DemoSettings, "rendered shapes, a few minutes, nothing to download"),
    "prepare": (PrepareSettings, "from a data set's download to what its benchmark reads"),
    "run": (RunSettings, "learn a stream with one strategy"),
    "strategies": (StrategiesSettings, "every method: where it comes from, what it stores, what a budget buys"),
    "pretrain": (PretrainSettings, "CRUMB pretraining of plastic layers and codebook"),
    "report": (ReportSettings, "tables and pictures of finished runs"),
}
POSITIONAL = {"prepare": "NAME ", "report": "FOLDER [FOLDER ...] ", "strategies": "[NAME] "}


def parser() -> Any:
    """The parser of all commands."""
    from jsonargparse import ActionConfigFile, ArgumentParser

    from crumb_avalanche import __version__

    main_parser = ArgumentParser(
        prog="crumb",
        description="CRUMB learns new object classes from a stream seen once and does not forget the old ones.",
        version=__version__,
        allow_abbrev=False,
    )
    commands = main_parser.add_subcommands(required=True, dest="command")
    for name, (settings, summary) in COMMANDS.items():
        command = ArgumentParser(
            prog=f"crumb {name}",
            # A list of all options would put a page before every error.
            usage=f"crumb {name} {POSITIONAL.get(name, '')}[--OPTION VALUE ...]",
            description=(settings.__doc__ or "").split("\n")[0],
            allow_abbrev=False,
        )
        command.add_argument("--config", action=ActionConfigFile, help="a YAML file of settings")
        if settings is RunSettings:
            add_run_arguments(command)
        else:
            _add_positional(command, settings)
            command.add_class_arguments(settings, skip={"folders", "name", "check"})
        commands.add_subcommand(name, command, help=summary)
    return main_parser


def _add_positional(command: Any, settings: type) -> None:
    """Add the arguments that have no flag."""
    if settings is ReportSettings:  # crumb report A B
        command.add_argument("folders", nargs="+", metavar="FOLDER", help="run folders, or folders of runs")
    if settings is StrategiesSettings:  # crumb strategies remind
        command.add_argument("name", nargs="?", metavar="NAME", help="only this one")
    if settings is PrepareSettings:  # crumb prepare toybox --check
        command.add_argument("name", metavar="NAME", help="core50, toybox, ilab, icub, ilab_core50, cifar100, imagenet")
        command.add_argument(
            "--check",
            type=bool,
            nargs="?",
            const=True,
            default=False,
            metavar="BOOL",
            help="change nothing, and list what is missing of all that the paper uses",
        )


def present(arguments: list[str]) -> list[str]:
    """Arguments as the parser knows them.

    Flags may be spelled with dashes, and ``crumb run`` takes those of earlier versions. ``--check X`` becomes
    ``--check=true X`` unless X is true or false, so that it may stand before the data set's name.

    Raises:
        ValueError: a file of settings that cannot be read.
    """
    if arguments[:1] == ["run"]:
        return run_arguments(arguments)
    following = [*arguments[1:], ""]
    return underscored(
        [
            "--check=true" if argument == "--check" and after.lower() not in ("true", "false") else argument
            for argument, after in zip(arguments, following)
        ]
    )
