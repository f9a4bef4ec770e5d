"""The subcommands of ``crumb``: settings, one line each, and what their help shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from crumb_avalanche.cli import settings as of_commands
from crumb_avalanche.report.settings import ReportSettings
from crumb_avalanche.runs.demo_settings import DemoSettings
from crumb_avalanche.runs.pretrain_settings import PretrainSettings
from crumb_avalanche.system.named_values import field_names


@dataclass(frozen=True)
class Command:
    """A subcommand.

    Attributes:
        settings: dataclass of its settings.
        summary: what it does, for the list of commands.
        positional: names of the settings that are arguments without a flag, each with
            the number of its values as argparse has it (``nargs``).
        usual: names of the flags that ``--help`` shows, with spaces between them; empty
            for all. ``--help-all`` shows all.
        heading: of the list of commands, if the command is the first below it.
    """

    settings: type
    summary: str
    positional: Mapping[str, str | None] = field(default_factory=dict)
    usual: str = ""
    heading: str = ""

    def flagged(self) -> list[str]:
        """Return the names of the settings that have a flag."""
        return [
            name for name in field_names(self.settings) if name not in self.positional
        ]


COMMANDS: dict[str, Command] = {
    "teach": Command(
        of_commands.TeachSettings,
        "teach a learner what images show",
        positional={"model": None, "sources": "*"},
        usual=(
            "label nothing camera seconds new_class keep_pictures method backbone "
            "weights runtime looks engine processes"
        ),
        heading="Teach and ask",
    ),
    "predict": Command(
        of_commands.PredictSettings,
        "ask a learner what images show",
        positional={"model": None, "sources": "*"},
    ),
    "serve": Command(
        of_commands.ServeSettings,
        "teach and ask a learner in a browser, or from other programs",
        positional={"model": None},
        usual="host port certificate key method backbone weights",
    ),
    "connect": Command(
        of_commands.ConnectSettings,
        "answer for the snapshots of cameras over MQTT",
        positional={"service": None, "model": None},
        usual="broker topic name images user password_file ca method backbone weights",
    ),
    "learner": Command(
        of_commands.LearnerSettings,
        "show a learner; take a lesson back, rename, move or forget a class, merge two",
        positional={"action": None, "model": None, "names": "*"},
    ),
    "export": Command(
        of_commands.ExportSettings,
        "convert a learner for other programs",
        positional={"model": None},
    ),
    "run": Command(
        of_commands.RunCommandSettings,
        "learn a stream with one strategy",
        usual=(
            "benchmark dataset_root output run runs preset strategy backbone weights "
            "budget_images feature_cache device engine"
        ),
        heading="Measure",
    ),
    "report": Command(
        ReportSettings,
        "show finished runs as tables and pictures",
        positional={"folders": "+"},
    ),
    "prepare": Command(
        of_commands.PrepareSettings,
        "convert a downloaded data set to the layout that its benchmark reads",
        positional={"name": None},
    ),
    "backbones": Command(
        of_commands.BackbonesSettings,
        "list the networks: cut, map, codes, size, speed and accuracy",
        positional={"names": "*"},
    ),
    "strategies": Command(
        of_commands.StrategiesSettings,
        "list the methods: source, what each stores, what a budget buys",
        positional={"name": "?"},
    ),
    "demo": Command(
        DemoSettings,
        "compare strategies on rendered shapes: a few minutes, no download",
        heading="The paper",
    ),
    "pretrain": Command(
        PretrainSettings,
        "pretrain plastic layers and codebook",
        usual=(
            "data output weights backbone images_per_class epochs batch_size "
            "learning_rate device"
        ),
    ),
}
