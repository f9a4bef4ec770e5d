"""The plan of a run: settings with all defaults filled in. Imports neither torch nor Avalanche."""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import yaml

from benchmarks_toybox_ilab.catalog import BENCHMARKS, get_benchmark
from crumb_avalanche.methods.registry import STRATEGIES, LearningSettings, get_strategy
from crumb_avalanche.models.backbone_names import (
    PREPROCESSING,
    full_name,
    is_timm,
    preprocessing_of,
    published_by,
)
from crumb_avalanche.runs.settings import (
    CLIPS,
    NON_RESULT_SETTINGS,
    RunSettings,
    flat,
    part_for,
)
from crumb_avalanche.system.setting_ranges import Memories, Range
from crumb_avalanche.training.replay_settings import Replay

# Of the settings that are None in RunSettings.
DEFAULTS = dict(
    strategy="crumb",
    codebook_init="matched",
    codebook_dim=16,
    weights="torchvision",
    backbone="squeezenet1_0",
    image_size=224,
    first_epochs=LearningSettings.first_epochs,
    learning_rate=LearningSettings.learning_rate,
    momentum=LearningSettings.momentum,
    weight_decay=LearningSettings.weight_decay,
    selection_rule=Replay.selection_rule,
    clamp_gradients=0.0,
    relu_logits=False,
    head_kernel=1,
    evaluate_quantized=False,
)
BENCHMARK_SETTINGS = (
    "classes_per_experience",
    "batch_size",
)  # defaults that each benchmark has its own of
PAPER_SIDE = 224  # side in pixels of the images that the paper counts a budget in


@cache
def rows() -> dict[str, dict[str, Any]]:
    """Return what ``presets.yaml`` holds."""
    return yaml.safe_load(
        Path(__file__).with_name("presets.yaml").read_text(encoding="utf-8")
    )


def preset_settings(preset: str) -> dict[str, Any]:
    """Return the settings of a preset where none are given; ``method`` by the name of a method."""
    return {**DEFAULTS, "method": {}, **rows()["presets"][preset]}


def paper_settings(strategy: str, benchmark: str) -> dict[str, Any]:
    """Return the settings that the paper's authors used for a method on a benchmark; ``method`` are its own."""
    if strategy not in rows()["paper"]:
        raise ValueError(
            f"the paper's authors did not run {strategy}, so the family 'paper' has no settings for it; they ran "
            f"{', '.join(rows()['paper'])}. Use --family fair"
        )
    row = {"method": {}, "where": {}, **rows()["usual"], **rows()["paper"][strategy]}
    return row | row.pop("where").get(benchmark, {})


@dataclass(frozen=True)
class RunPlan(RunSettings):
    """``RunSettings`` with all defaults filled in; create one with ``RunPlan.of``.

    Three values may stay ``None``: ``learning_rate`` in the family *fair*, which is
    tuned on the first experience, ``classes_per_experience`` of a benchmark with all
    classes in each experience, and ``capacity``, which depends on the shape of the
    network's feature maps. ``method`` holds all settings of the chosen strategy.
    ``str(plan)`` is YAML of the settings alone, which repeats the run as ``--config``.

    Attributes:
        budget: memory budget in bytes.
        capacity: number of memories that the budget buys; set by ``Session.build``.
    """

    budget: Annotated[int, Range(0, 10**15)] = (
        0  # of the most images of the largest size
    )
    capacity: Memories | None = None

    @classmethod
    def of(cls, settings: RunSettings) -> "RunPlan":
        """Fill in settings that are ``None``, from the family, the preset, the benchmark and the method's defaults."""
        benchmark = get_benchmark(settings.benchmark)
        own_clips = settings.benchmark == CLIPS and settings.family is None
        preset = settings.preset or ("recommended" if own_clips else "paper")
        values = preset_settings(preset)
        strategy = settings.strategy or values["strategy"]
        method = values.pop("method").get(strategy, {})
        if settings.family == "paper":
            row = paper_settings(strategy, settings.benchmark)
            method = row.pop("method")
            values |= row
        elif settings.family == "fair":
            del values["learning_rate"]
        values |= dict(preset=preset, strategy=strategy)
        for name in BENCHMARK_SETTINGS:
            values.setdefault(name, getattr(benchmark, name))
        given = {
            item.name: getattr(settings, item.name) for item in fields(RunSettings)
        }
        given |= {name: value for name, value in values.items() if given[name] is None}
        given["replay_weight"] = Replay(
            given["replay_weight"], replay_compute=given["replay_compute"]
        ).factor
        given |= settings_of_backbone(settings, given, get_strategy(strategy).codebook)
        given["method"] = asdict(
            get_strategy(strategy).method_settings({**method, **settings.method})
        )
        images = (
            benchmark.budget_images
            if settings.budget_images is None
            else settings.budget_images
        )
        # The paper counts a budget in images of 224 pixels, also for methods whose
        # network takes small images.
        side = PAPER_SIDE if settings.family == "paper" else given["image_size"]
        budget = (
            int(images * 3 * side**2)
            if settings.budget_bytes is None
            else settings.budget_bytes
        )
        return cls(**given, budget=budget)

    @property
    def learning(self) -> LearningSettings:
        """Settings that all strategies share."""
        values = part_for(LearningSettings, self)
        if (
            self.learning_rate is None
        ):  # a method that takes no gradient steps, in a family that tunes the rate
            del values["learning_rate"]
        return LearningSettings(
            **{**values, "clamp_gradients": self.clamp_gradients or None}
        )

    @property
    def budget_given(self) -> bool:
        """Whether the settings give a memory budget; else it is the benchmark's."""
        return self.budget_images is not None or self.budget_bytes is not None

    @property
    def sha256(self) -> str:
        """SHA-256 of all settings that can change a result."""
        decides = {
            name: value
            for name, value in vars(self).items()
            if name not in NON_RESULT_SETTINGS
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    def __str__(self) -> str:
        return yaml.safe_dump(
            {item.name: getattr(self, item.name) for item in fields(RunSettings)},
            sort_keys=False,
        )


def usual_settings(
    benchmark: str, preset: str, strategy: str | None = None
) -> dict[str, Any]:
    """Return the settings of a run that sets these only; those of the method are named ``method.NAME``.

    Defaults of the method stand in its file, whose libraries may be missing where runs
    are only reported: then they are left out.
    """
    usual = (
        vars(RunSettings())
        | DEFAULTS
        | rows()["presets"].get(preset, {})
        | {"preset": preset, "method": {}}
    )
    usual["replay_weight"] = Replay(replay_compute=usual["replay_compute"]).factor
    with suppress(ImportError):
        if strategy in STRATEGIES:
            usual["method"] = asdict(STRATEGIES[strategy].settings())
    if benchmark in BENCHMARKS:
        usual |= {
            name: getattr(BENCHMARKS[benchmark], name) for name in BENCHMARK_SETTINGS
        }
    return flat(usual)


def settings_of_backbone(
    settings: Any, given: dict[str, Any], codebook: bool
) -> dict[str, Any]:
    """Return the settings that follow from a backbone that is not torchvision's, where ``settings`` has ``None``.

    ``given`` are values of ``backbone`` and ``cut_layer``, and the longest
    ``codebook_dim``, which must divide the channels of the map if a ``codebook`` is
    trained. ``ImportError`` if timm is needed and missing; ``ValueError`` if it has no
    network of that name, or one that cannot be cut.
    """
    if not is_timm(given["backbone"]) and given["backbone"] not in PREPROCESSING:
        return {}
    name = full_name(given["backbone"])
    side = settings.image_size or preprocessing_of(name).size
    found: dict[str, Any] = {
        "backbone": name,
        "image_size": side,
        "weights": settings.weights or published_by(name),
    }
    if settings.codebook_dim is None and codebook and given["cut_layer"] != 0:
        from crumb_avalanche.models.backbones import map_channels
        from crumb_avalanche.models.codebook import largest_divisor

        channels = map_channels(name, given["cut_layer"], side)
        found["codebook_dim"] = largest_divisor(channels, given["codebook_dim"])
    return found
