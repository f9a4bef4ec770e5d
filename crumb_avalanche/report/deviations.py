"""Settings of runs that differ from preset ``paper``."""

import inspect
import re
from typing import NamedTuple

from crumb_avalanche.report.runs import NOT_COMPARED, Group
from crumb_avalanche.report.summary import setting
from crumb_avalanche.report.table import Cell
from crumb_avalanche.runs.plan import usual_settings
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.tables import cell

BENCHMARKS = ("core50", "toybox", "ilab", "icub", "ilab_core50", "cifar100", "imagenet")
PRETRAINED = "with CRUMB on ImageNet"  # for the paper's main results; preset paper has no such file to download
PAPER = usual_settings("", "paper")
# Not settings but facts about a run, or what is compared: methods, presets and protocols.
IGNORED = {*NOT_COMPARED, "benchmark", "protocol", "strategy", "preset", "family", "device", "on_bad_frame", "fps"}
IGNORED |= {"new_class", "pretrained", "experiences", "classes", "dataset_root"}


class Deviation(NamedTuple):
    """One difference from the paper, and the labels of the groups that have it."""

    setting: str
    paper: Cell
    run: Cell
    groups: list[str]


def deviations_of(groups: list[Group]) -> list[Deviation]:
    """List every difference once, in the order of the settings."""
    found: dict[tuple[str, Cell, Cell], list[str]] = {}
    for group in groups:
        for difference in _of_group(group):
            found.setdefault(difference, []).append(group.label)
    order = {name: number for number, name in enumerate(["benchmark", *PAPER])}
    return [Deviation(*key, found[key]) for key in sorted(found, key=lambda key: order.get(key[0], len(order)))]


def _of_group(group: Group) -> list[tuple[str, Cell, Cell]]:
    settings, found = group.settings, []
    usual = PAPER | usual_settings(settings["benchmark"], "paper", settings["strategy"])
    if settings["benchmark"] not in BENCHMARKS:
        found.append(("benchmark", Cell("one of " + ", ".join(BENCHMARKS)), setting(settings["benchmark"])))
    if "pretrained" in settings and (settings["strategy"] == "crumb" or settings["pretrained"] is not None):
        found.append(("pretrained", Cell(PRETRAINED), setting(settings["pretrained"])))
    for name, value in settings.items():
        if name in IGNORED or value in (usual.get(name), PAPER.get(name)):
            continue
        run, paper = _cell(value), _cell(usual[name]) if name in usual else Cell("unknown setting")
        if name == "learning_rate" and value is None:
            rates = dict.fromkeys(run.result.get("learning_rate") for run in group.runs)
            if list(rates) == [None]:
                continue  # a method without gradient steps
            run = Cell("tuned: " + ", ".join(cell(rate) for rate in rates if rate is not None))
        found.append((str(name), paper, run))
    return found


def _cell(value) -> Cell:
    return Cell("default") if value is None else setting(value)


def meanings() -> dict[str, str]:
    """What each setting of ``crumb run`` means, as its documentation says; empty where Python strips docstrings."""
    text = inspect.cleandoc(RunSettings.__doc__ or "")  # from Python 3.13 on, docstrings come without indentation
    lines = re.sub(r"\n {8,}", " ", text)
    return dict(re.findall(r"^ {4}(\w+): (.+)$", lines, re.MULTILINE))
