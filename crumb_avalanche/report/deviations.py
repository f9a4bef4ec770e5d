"""Where runs are not as in the paper: settings that differ from preset ``paper``, in words."""

import re
from typing import NamedTuple

from crumb_avalanche.report.runs import NOT_COMPARED, Group
from crumb_avalanche.runs.presets import DEFAULTS, PRESETS
from crumb_avalanche.runs.settings import RunSettings, as_dict
from crumb_avalanche.runs.tables import cell

PAPER = as_dict(RunSettings()) | DEFAULTS | PRESETS["paper"]
BENCHMARKS = ("core50", "toybox", "ilab", "icub", "ilab_core50", "cifar100", "imagenet")

# What is compared, not how it is done; the preset's and the family's settings are looked at one by one.
NO_DEVIATION = {*NOT_COMPARED, "benchmark", "protocol", "strategy", "preset", "family", "device", "on_bad_frame", "fps"}

NOUNS = {
    "strategy_config": "file of the method's own settings",
    "weights": "origin of the first weights",
    "backbone": "network",
    "cut_layer": "number of frozen layers",
    "image_size": "side of an image in pixels",
    "budget_images": "memory in raw images",
    "budget_bytes": "memory in bytes",
    "mem_size": "number of memories",
    "cache_precision": "precision of the kept feature maps",
    "classes_per_experience": "number of classes an experience",
    "batch_size": "number of images a batch",
    "first_epochs": "number of epochs on the first experience",
    "epochs": "number of epochs on each later experience",
    "learning_rate": "learning rate",
    "momentum": "momentum",
    "weight_decay": "weight decay",
    "codebook_size": "number of memory blocks",
    "codebook_dim": "length of a memory block",
    "codebook_init": "way in which memory blocks are filled",
    "direct_weight": "weight of the direct loss",
    "codebook_weight": "weight of the codebook-out loss",
    "replay_weight": "factor of the replay loss",
    "replay_steps": "number of replay batches after each new one",
    "storing_rule": "rule by which images are stored",
    "clamp_gradients": "largest absolute gradient element (0 clamps nothing)",
    "head_kernel": "kernel of the last convolution",
    "precision": "precision of the arithmetic",
}
SENTENCES = {
    ("reference_stream", True): "Frames, orders and labels are made as the published code makes them.",
    ("freeze_codebook", True): "The memory blocks stay as they were filled; in preset paper they learn on.",
    ("fused", True): "New and replayed images share one optimiser step; in preset paper each has its own.",
    ("relu_logits", True): "The logits pass a ReLU before they are pooled; in preset paper they do not.",
    ("evaluate_quantized", True): "Test images pass through the memory blocks; in preset paper they do not.",
    ("compile", True): "The frozen layers are compiled, which may round otherwise.",
}
UNSET = {
    "cut_layer": "the paper's",
    "budget_images": "the benchmark's",
    "budget_bytes": "the benchmark's",
    "mem_size": "what the budget buys",
    "classes_per_experience": "the benchmark's",
    "batch_size": "the benchmark's",
}


class Deviation(NamedTuple):
    """One difference from the paper, and the groups that have it."""

    setting: str
    sentence: str
    groups: list[str]


def deviations_of(groups: list[Group]) -> list[Deviation]:
    """Every difference once, in the order of the settings."""
    found: dict[tuple[str, str], list[str]] = {}
    for group in groups:
        for name, sentence in _of_group(group):
            found.setdefault((name, sentence), []).append(group.label)
    order = {name: number for number, name in enumerate(["benchmark", *PAPER])}
    names = sorted(found, key=lambda key: order.get(key[0], len(order)))
    return [Deviation(*key, found[key]) for key in names]


def _of_group(group: Group) -> list[tuple[str, str]]:
    settings, said = group.settings, []
    if settings["benchmark"] not in BENCHMARKS:
        said.append(("benchmark", f"{cell(settings['benchmark'])} is not a benchmark of the paper."))
    for name, value in settings.items():
        known = name in PAPER or name not in ("experiences", "classes", "dataset_root")
        if name == "pretrained":
            said += _pretraining(settings)
        elif known and name not in NO_DEVIATION and value != PAPER.get(name) and not _idle(name, value, group):
            said.append((str(name), _sentence(str(name), value, group)))
    return said


def _idle(name: str, value, group: Group) -> bool:
    """Whether it is a learning rate that was left to tuning by a method that takes no gradient step."""
    rates = [run.result.get("learning_rate") for run in group.runs]
    return name == "learning_rate" and value is None and rates == [None] * len(rates)


def _pretraining(settings: dict) -> list[tuple[str, str]]:
    """The paper's main results come after CRUMB pretraining on ImageNet, which preset ``paper`` cannot download."""
    if settings["pretrained"] is not None:
        source = cell(settings["pretrained"])
        return [("pretrained", f"Starts from {source}; the paper pretrains with CRUMB on ImageNet.")]
    if settings["strategy"] == "crumb":
        return [("pretrained", "Starts without CRUMB pretraining; the paper pretrains with CRUMB on ImageNet.")]
    return []


def _sentence(name: str, value, group: Group) -> str:
    if (name, value if isinstance(value, bool) else None) in SENTENCES:
        return SENTENCES[name, value]
    if name not in PAPER:
        return f"The setting {name} is {cell(value)}; preset paper does not know it."
    noun = NOUNS.get(name, name.replace("_", " "))
    here, there = _value(name, value), _value(name, PAPER[name])
    if name == "learning_rate" and value is None:
        tuned = dict.fromkeys(cell(run.result.get("learning_rate")) for run in group.runs)
        rates = ", ".join(rate for rate in tuned if rate != "none")
        here = "tuned on the first experience" + f" ({rates})" * bool(rates)
    return f"The {noun} is {here}; in preset paper it is {there}."


def _value(name: str, value) -> str:
    return UNSET.get(name, "none") if value is None else cell(value)


def meanings() -> dict[str, str]:
    """What each setting of ``crumb run`` means, as its documentation says; empty where Python strips docstrings."""
    lines = re.sub(r"\n {12,}", " ", RunSettings.__doc__ or "")
    return dict(re.findall(r"^ {8}(\w+): (.+)$", lines, re.MULTILINE))
