"""The plan of a run: settings with all defaults filled in.

Imports neither torch nor Avalanche.
"""

import hashlib
import json
from collections.abc import Mapping
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
    has_convolutional_head,
    is_timm,
    preprocessing_of,
    published_by,
)
from crumb_avalanche.runs.settings import (
    CLIPS,
    Grouping,
    Preset,
    RunSettings,
    Search,
    flat,
    part_for,
    result_settings,
)
from crumb_avalanche.system import setting_ranges as ranges
from crumb_avalanche.system.named_values import attributes, field_names
from crumb_avalanche.training.replay_settings import Replay

# Defaults that each benchmark has its own of.
BENCHMARK_SETTINGS = ("classes_per_experience", "batch_size")
PAPER_SIDE = 224  # side in pixels of the images that the paper counts a budget in


@cache
def presets_file() -> dict[str, dict[str, Any]]:
    """Return the sections of ``presets.yaml``: ``presets``, ``usual`` and ``paper``."""
    path = Path(__file__).with_name("presets.yaml")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def preset_settings(preset: str) -> dict[str, Any]:
    """Return the settings of a preset, and the defaults of those that it leaves out.

    ``method`` has settings of methods, by the name of the method.
    """
    return {**DEFAULTS, "method": {}, **presets_file()["presets"][preset]}


def paper_settings(strategy: str, benchmark: str) -> dict[str, Any]:
    """Return the settings of the paper's authors for a method on a benchmark, by name.

    ``method`` has the settings of the method itself, by their name.

    Args:
        strategy: name of the method.
        benchmark: name of the benchmark.

    Raises:
        ValueError: the paper's authors did not run the method.
    """
    by_method = presets_file()["paper"]  # a section of the file of presets
    if strategy not in by_method:
        raise ValueError(
            f"the paper's authors did not run {strategy}, so the family 'paper' has no "
            "settings for it; they ran "
            f"{', '.join(by_method)}. Use --family fair"
        )
    settings = {"method": {}, **presets_file()["usual"], **by_method[strategy]}
    by_benchmark = settings.pop("where", {})  # what differs on a benchmark
    return settings | by_benchmark.get(benchmark, {})


@dataclass(frozen=True)
class RunPlan(RunSettings):
    """``RunSettings`` with all defaults filled in; create one with ``RunPlan.of``.

    Three values may stay ``None``: ``learning_rate`` in the family *fair*, which is
    tuned on the first experience, ``classes_per_experience`` of a benchmark with all
    classes in each experience, and ``capacity``, which depends on the shape of the
    network's feature maps. ``method`` holds all settings of the chosen strategy.
    ``str(plan)`` is YAML of the settings alone, which repeats the run as ``--config``.

    The values of fields here are the defaults of settings that are ``None`` in
    ``RunSettings``.

    Attributes:
        budget: memory budget in bytes.
        capacity: number of memories that the budget buys; set by ``Session.of``.
    """

    preset: Preset = "paper"
    strategy: str = "crumb"
    backbone: str = "squeezenet1_0"
    weights: str = "torchvision"
    first_epochs: ranges.Epochs = LearningSettings.first_epochs
    learning_rate: ranges.Rate | None = LearningSettings.learning_rate
    momentum: ranges.Share = LearningSettings.momentum
    weight_decay: ranges.Decay = LearningSettings.weight_decay
    clamp_gradients: ranges.NotNegative = 0.0
    selection_rule: str = Replay.selection_rule
    image_size: ranges.ImageSize = 224
    relu_logits: bool = False
    head_kernel: ranges.Count = 1
    fine_tuning: bool = False
    codebook_dim: ranges.Count = 16
    codebook_init: str = "matched"
    codebook_search: Search = "direction"
    codebook_tables: ranges.Tables = 1
    codebook_grouping: Grouping = "consecutive"
    codebook_filter: bool = False
    evaluate_quantized: bool = False
    # The upper bound is that of the most images of the largest size.
    budget: Annotated[int, ranges.Range(0, 10**15)] = 0
    capacity: ranges.Memories | None = None

    @classmethod
    def of(cls, settings: RunSettings) -> "RunPlan":
        """Return the plan of a run: its settings, with defaults in place of ``None``.

        Values come from the family, else the preset, the benchmark or the method.

        Args:
            settings: as a user gave them.

        Raises:
            ValueError: benchmark, strategy or backbone is unknown, settings of the
                method are out of range, settings of SqueezeNet's head come with
                another backbone, or the method has its own momentum or weight decay
                and another one is given for all methods.
        """
        preset = settings.preset or _default_preset(settings)
        defaults = preset_settings(preset)  # by name, for what the user left out
        strategy = settings.strategy or defaults["strategy"]
        method_defaults = defaults.pop("method").get(strategy, {})
        if settings.family == "paper":
            paper_defaults = paper_settings(strategy, settings.benchmark)
            method_defaults = paper_defaults.pop("method")
            defaults |= paper_defaults
        elif settings.family == "fair":
            del defaults["learning_rate"]  # which is tuned
        defaults["preset"] = preset
        defaults["strategy"] = strategy
        benchmark = get_benchmark(settings.benchmark)
        for name in BENCHMARK_SETTINGS:
            defaults.setdefault(name, getattr(benchmark, name))
        values = _with_defaults(settings, defaults)
        replay = Replay(
            values["replay_weight"], replay_compute=values["replay_compute"]
        )
        values["replay_weight"] = replay.factor  # its default if none is given
        # Only layers with published weights are fine-tuned.
        if values["weights"] == "none" or values["pretrained"] is not None:
            values["fine_tuning"] = False
        _check_head(settings, values)
        strategy_entry = get_strategy(strategy)
        values |= settings_of_backbone(settings, values, strategy_entry.codebook)
        method = strategy_entry.method_settings({**method_defaults, **settings.method})
        values["method"] = asdict(method)
        for name in ("momentum", "weight_decay"):
            _check_has_effect(name, settings, defaults, values)
        budget_bytes = _budget_bytes(settings, values["image_size"])
        return cls(**values, budget=budget_bytes)

    @property
    def learning(self) -> LearningSettings:
        """Settings of training that all strategies share, taken from the plan."""
        values = part_for(LearningSettings, self)
        values["clamp_gradients"] = self.clamp_gradients or None
        # A method that takes no gradient steps, in a family that tunes the rate.
        if self.learning_rate is None:
            del values["learning_rate"]
        return LearningSettings(**values)

    @property
    def budget_given(self) -> bool:
        """Whether the settings give a memory budget; else it is the benchmark's."""
        return self.budget_images is not None or self.budget_bytes is not None

    @property
    def sha256(self) -> str:
        """SHA-256 of all settings that can change a result."""
        text = json.dumps(result_settings(vars(self)), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        settings = attributes(self, field_names(RunSettings))
        return yaml.safe_dump(settings, sort_keys=False)


def _defaults() -> dict[str, Any]:
    """Return the defaults of the settings that are ``None`` in ``RunSettings``.

    They are the values of ``RunPlan``. The preset and ``BENCHMARK_SETTINGS`` are not
    among them: their defaults depend on the benchmark.
    """
    defaults = {}
    for setting in fields(RunSettings):
        if setting.default is None and setting.name != "preset":
            default = getattr(RunPlan, setting.name)
            if default is not None:
                defaults[setting.name] = default
    return defaults


DEFAULTS = _defaults()


def _default_preset(settings: RunSettings) -> Preset:
    """Return the preset of settings that give none, the most accurate for own clips."""
    if settings.benchmark == CLIPS and settings.family is None:
        return "recommended"
    return "paper"


def _with_defaults(settings: RunSettings, defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run by name, those that are ``None`` with a default."""
    values = {}
    for name in field_names(RunSettings):
        value = getattr(settings, name)
        values[name] = defaults.get(name) if value is None else value
    return values


def _check_head(settings: RunSettings, values: dict[str, Any]) -> None:
    """Raise ValueError for settings of SqueezeNet's head beside another network.

    Args:
        settings: as the user gave them.
        values: of all settings, with their defaults.
    """
    is_usual_head = not values["relu_logits"] and values["head_kernel"] == 1
    if is_usual_head or has_convolutional_head(values["backbone"]):
        return
    source = "preset " + values["preset"]
    if values["family"] == "paper":
        source = "family paper"
    if settings.relu_logits is not None and settings.head_kernel is not None:
        source = "these settings"
    raise ValueError(
        f"relu_logits={values['relu_logits']} and head_kernel={values['head_kernel']} "
        f"of {source} are for the last convolution of SqueezeNet, and "
        f"{values['backbone']} ends in a linear layer: give --relu-logits false "
        "--head-kernel 1"
    )


def _check_has_effect(
    name: str,
    settings: RunSettings,
    defaults: Mapping[str, Any],
    values: Mapping[str, Any],
) -> None:
    """Raise ValueError for a setting of all methods that a method has of its own.

    Args:
        name: of the setting.
        settings: as the user gave them.
        defaults: of what the user left out.
        values: of all settings; ``method`` has those of the method.
    """
    value = getattr(settings, name)
    if name not in values["method"] or value in (None, defaults.get(name)):
        return
    flag = name.replace("_", "-")
    raise ValueError(
        f"--{flag} {value} has no effect on {values['strategy']}, which has its own: "
        f"give --method.{name} {value}"
    )


def _budget_bytes(settings: RunSettings, image_size: int) -> int:
    """Return the memory budget of a run in bytes: as given, or of raw images.

    ``image_size`` is the side in pixels of the images that the network takes.
    """
    if settings.budget_bytes is not None:
        return settings.budget_bytes
    n_images: float = get_benchmark(settings.benchmark).budget_images
    if settings.budget_images is not None:
        n_images = settings.budget_images
    # The paper counts a budget in images of 224 pixels, also for methods whose network
    # takes small images.
    side = PAPER_SIDE if settings.family == "paper" else image_size
    return int(n_images * 3 * side**2)


def default_settings(
    benchmark: str, preset: str, strategy: str | None = None
) -> dict[str, Any]:
    """Return the settings of a run that is given these alone, by name.

    Reports leave settings out that have these values. Those of the method are named
    ``method.NAME``.

    Defaults of the method stand in its file, whose libraries may be missing where runs
    are only reported: then they are left out.

    Args:
        benchmark: name of the benchmark; an unknown one has no defaults of its own.
        preset: name of the preset; an unknown one has no defaults of its own.
        strategy: name of the method; ``None`` for no settings of a method.
    """
    of_preset = presets_file()["presets"].get(preset, {})
    defaults = {**vars(RunSettings()), **DEFAULTS, **of_preset}
    defaults["preset"] = preset
    defaults["method"] = {}
    defaults["replay_weight"] = Replay(replay_compute=defaults["replay_compute"]).factor
    with suppress(ImportError):
        if strategy is not None and strategy in STRATEGIES:
            defaults["method"] = asdict(STRATEGIES[strategy].settings())
    if benchmark in BENCHMARKS:
        for name in BENCHMARK_SETTINGS:
            defaults[name] = getattr(BENCHMARKS[benchmark], name)
    return flat(defaults)


def settings_of_backbone(
    settings: Any, values: dict[str, Any], codebook: bool
) -> dict[str, Any]:
    """Return the settings that follow from the backbone, to be put into ``values``.

    They are ``backbone``, ``image_size`` and ``weights`` of a network that is not
    torchvision's, and ``codebook_dim`` where it depends on the shape of the maps.

    Args:
        settings: as the user gave them; ``None`` for those that may follow.
        values: all settings with their defaults: ``backbone``, ``cut_layer``,
            ``image_size``, and the longest ``codebook_dim``, which must divide the
            channels of the map if a codebook is trained; and, where they are given,
            ``memories_per_image``, from which it follows, and ``fine_tuning``, which
            enlarges small images.
        codebook: whether a codebook is trained.

    Raises:
        ImportError: timm is needed and missing.
        ValueError: timm has no network of that name, or one that cannot be cut.
    """
    backbone = values["backbone"]
    side = values["image_size"]
    derived: dict[str, Any] = {}
    has_own_preprocessing = is_timm(backbone) or backbone in PREPROCESSING
    if has_own_preprocessing:
        backbone = full_name(backbone)
        side = settings.image_size or preprocessing_of(backbone).size
        derived = {
            "backbone": backbone,
            "image_size": side,
            "weights": settings.weights or published_by(backbone),
        }
    has_codes = codebook and values["cut_layer"] != 0
    gives_density = values.get("memories_per_image") is not None
    dim_follows = has_own_preprocessing or gives_density
    if has_codes and dim_follows and settings.codebook_dim is None:
        fine_tuning = values.get("fine_tuning", False)
        map_shape = _map_shape(backbone, values["cut_layer"], side, fine_tuning)
        derived["codebook_dim"] = _codebook_dim(map_shape, side, values)
    return derived


def _map_shape(
    backbone: str, cut_layer: int | str | None, side: int, fine_tuning: bool
) -> tuple[int, int, int]:
    """Return channels, height and width of the map at the cut of a backbone.

    torch is imported only here.
    """
    from crumb_avalanche.models.split_backbone import map_shape_of

    return map_shape_of(backbone, cut_layer, side, fine_tuning)


def _codebook_dim(
    map_shape: tuple[int, int, int], side: int, values: dict[str, Any]
) -> int:
    """Return the length of memory blocks for maps of a shape.

    It follows from the setting ``memories_per_image``, else it is the largest divisor
    of the channels up to the setting ``codebook_dim``.

    Args:
        map_shape: channels, height and width.
        side: of the images, in pixels.
        values: the settings.
    """
    from crumb_avalanche.models.row_length import largest_divisor, row_length

    memories_per_image = values.get("memories_per_image")
    if memories_per_image is None:
        channels, _, _ = map_shape
        return largest_divisor(channels, values["codebook_dim"])
    return row_length(map_shape, side, memories_per_image)
