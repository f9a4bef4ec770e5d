"""Regularised discriminant analysis as a strategy: settings, budget, preset."""

import math
from dataclasses import asdict, replace

import pytest
import torch

from crumb_avalanche.methods.closed_form_settings import RdaSettings
from crumb_avalanche.methods.method_settings import LearningSettings
from crumb_avalanche.methods.rda_entry import RDA
from crumb_avalanche.methods.registry import STRATEGIES, build_strategy
from crumb_avalanche.models.backbones import split_backbone

LENGTH = 4 * 512 + 512  # cells of the map, and the head's input


def squeezenet(n_classes):
    return split_backbone("squeezenet1_0", n_classes=n_classes, weights=None, codebook=None)


def test_its_settings_reach_it():
    changes = {"own": 0.0, "shrinkage": 1e-4, "own_images": 2.0, "diagonal": False}
    kept = build_strategy("rda", squeezenet(4), LearningSettings(), 8, 0, method=changes).statistics
    assert {name: kept.settings[name] for name in changes} == changes
    assert (kept.own, kept.shrinkage, kept.own_images, kept.diagonal) == (0.0, 1e-4, 2.0, False)


@pytest.mark.parametrize(("images", "whole", "directions"), [(12, False, 79), (4, False, 23), (120, True, 32)])
def test_what_a_budget_buys_of_a_known_number_of_classes(images, whole, directions):
    model, method = squeezenet(8), {"known_classes": True}
    budget = images * 3 * 224**2
    count = RDA.memories_in_budget(model, budget, 8, RDA.method_settings(method))
    strategy = build_strategy("rda", model, LearningSettings(), count, 0, method=method)
    kept = strategy.statistics
    assert (kept.scatter is not None, kept.settings["directions"]) == (whole, directions)
    labels = torch.arange(8).repeat_interleave(directions + 2)
    kept.update(torch.randn(len(labels), LENGTH, generator=torch.Generator().manual_seed(0)), labels)
    assert kept.directions.counts.tolist() == [directions] * 8
    row = 8 * (LENGTH + 2 * LENGTH // 32)
    assert budget - row < strategy.statistics_bytes <= budget or whole
    assert strategy.statistics_bytes <= budget


def test_a_small_budget_of_a_known_number_of_classes_has_the_features_of_the_head_alone():
    model, usual = squeezenet(8), RdaSettings(known_classes=True)
    least = 8 * (4 * (LENGTH + 3) + 8 * (LENGTH + LENGTH // 16))  # means, and 8 directions of each class
    assert RDA.fit(model, usual, 8, least) == RDA.fit(model, usual, 8, None) == replace(usual, cells=2)
    small = RDA.fit(model, usual, 8, least - 1)
    assert (small.maps, small.cells) == (False, 1) and RDA.fit(model, small, 8, 10 * least) == small
    assert RDA.memories_in_budget(model, least - 1, 8, small) == (least - 1 - 8 * 4 * (512 + 3)) // (512 + 32)
    given = RdaSettings(cells=3)
    assert RDA.fit(model, given, 8, 1) == given


@pytest.mark.parametrize("known", [True, False])
def test_a_budget_without_a_direction_for_each_class(known):
    with pytest.raises(ValueError, match="the budget buys 7 principal directions, but the stream has 8 classes"):
        build_strategy("rda", squeezenet(8), LearningSettings(), 7, 0, method={"known_classes": known})


@pytest.mark.parametrize("changes", [{}, {"cells": 2}, {"maps": False}])
def test_the_budget_is_that_of_the_run(changes):
    model, budget, method = squeezenet(8), 2_257_920, RDA.method_settings(changes)
    memories = RDA.memories_in_budget(model, budget, 8, method)
    strategy = build_strategy("rda", model, LearningSettings(), memories, 0, method=changes)
    assert budget - RDA.bytes_of_item(model, method) < strategy.budget <= budget


@pytest.mark.parametrize("value", [-0.1, 1.0, math.nan])
def test_a_wrong_share_is_refused(value):
    rule = "give a finite number" if math.isnan(value) else "it is a share: at least 0 and below 1"
    with pytest.raises(ValueError, match=rule):
        RdaSettings(own=value)
    with pytest.raises(ValueError, match=r"shrinkage is 0.0; give a positive number"):
        RdaSettings(shrinkage=0.0)
    for power in (0.0, 1.1):
        with pytest.raises(ValueError, match=f"power is {power}; .* above 0 and at most 1"):
            RdaSettings(power=power)


def test_it_is_the_recommended_preset():
    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.settings import RunSettings

    chosen = RunPlan.of(RunSettings(preset="recommended"))
    assert (chosen.strategy, chosen.codebook_init) == ("rda", "kmeans")
    assert RunPlan.of(RunSettings()).strategy == "crumb" and RunPlan.of(RunSettings()).codebook_init == "matched"
    assert RunPlan.of(RunSettings(preset="recommended", strategy="crumb")).strategy == "crumb"
    paper, recommended = (asdict(RunPlan.of(RunSettings(preset=name))) for name in ("paper", "recommended"))
    changed = {name for name in paper if paper[name] != recommended[name]}
    assert changed == {"preset", "strategy", "codebook_init", "method"} and "rda" in STRATEGIES
