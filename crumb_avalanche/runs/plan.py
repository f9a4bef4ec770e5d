"""A run with everything decided. Imports neither torch nor Avalanche."""

import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import yaml

from benchmarks_toybox_ilab.catalog import get_benchmark
from crumb_avalanche.baselines.families import paper_method_settings, paper_settings
from crumb_avalanche.baselines.method_settings import LearningSettings, method_settings
from crumb_avalanche.runs.presets import DEFAULTS, PRESETS, preset_for
from crumb_avalanche.runs.settings import NON_RESULT_SETTINGS, RunSettings, as_dict, part_for

PAPER_SIDE = 224  # pixels of an image of the paper's budget


@dataclass(frozen=True)
class RunPlan(RunSettings):
    """``RunSettings`` with nothing left open; made by ``RunPlan.of``.

    Two values stay ``None`` that nothing decides before the images are seen: ``learning_rate`` in the family *fair*,
    which is tuned on the first experience, and ``capacity``, which needs the shape of the network's feature maps.
    ``method`` holds every setting of the chosen strategy. ``str(plan)`` is YAML.

    Attributes:
        budget: memory in bytes.
        capacity: number of memories that the budget buys; ``Session.build`` fills it in.
    """

    budget: int = 0
    capacity: int | None = None

    @classmethod
    def of(cls, settings: RunSettings) -> "RunPlan":
        """Decide what the settings leave open: preset, family, the benchmark's own values, the method's settings.

        Raises:
            ValueError: settings that exclude each other, a number out of its range, or an unknown name.
        """
        settings.check()
        benchmark = get_benchmark(settings.benchmark)
        preset = settings.preset or preset_for(settings.benchmark, settings.family)
        values = {**DEFAULTS, **PRESETS[preset]}
        strategy = settings.strategy or values["strategy"]
        method: dict[str, Any] = {}
        if settings.family == "paper":
            row = paper_settings(strategy, settings.benchmark)
            values.update({name: value for name, value in row.items() if value is not None})
            method = paper_method_settings(strategy, settings.benchmark)
        elif settings.family == "fair":
            del values["learning_rate"]
        values |= dict(preset=preset, strategy=strategy)
        for name in ("classes_per_experience", "batch_size"):
            values.setdefault(name, getattr(benchmark, name))
        given = {item.name: getattr(settings, item.name) for item in fields(RunSettings)}
        given |= {name: value for name, value in values.items() if given[name] is None}
        given["method"] = asdict(method_settings(strategy, {**method, **settings.method}))
        images = benchmark.budget_images if settings.budget_images is None else settings.budget_images
        # An image of the budget is the paper's, even where its authors gave a method a network for small images.
        side = PAPER_SIDE if settings.family == "paper" else given["image_size"]
        budget = int(images * 3 * side**2) if settings.budget_bytes is None else settings.budget_bytes
        return cls(**given, budget=budget)

    def with_capacity(self, capacity: int) -> "RunPlan":
        """The plan with the number of memories that its budget buys."""
        return replace(self, capacity=capacity)

    @property
    def learning(self) -> LearningSettings:
        """What every strategy reads."""
        values = part_for(LearningSettings, self)
        if self.learning_rate is None:  # a method that takes no gradient steps, in a family that tunes the rate
            del values["learning_rate"]
        return LearningSettings(**{**values, "clamp_gradients": self.clamp_gradients or None})

    @property
    def budget_given(self) -> bool:
        """Whether the memory budget is the user's, not the benchmark's."""
        return self.budget_images is not None or self.budget_bytes is not None

    @property
    def sha256(self) -> str:
        """Hash of all settings that may change a result."""
        decides = {name: value for name, value in as_dict(self).items() if name not in NON_RESULT_SETTINGS}
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    def __str__(self) -> str:
        return yaml.safe_dump(as_dict(self), sort_keys=False)
