"""FeCAM, KLDA, ACIL, F-OAL, RanPAC's ridge, Deep SRDA and LR-RGDA as strategies: settings, features, budget."""

import pytest
import torch

from crumb_avalanche.methods.analytic_entry import ridge_bytes
from crumb_avalanche.methods.closed_form_budget import PAGE, features_of
from crumb_avalanche.methods.closed_form_settings import FeatureSettings
from crumb_avalanche.methods.features import pooled_features
from crumb_avalanche.methods.klda_entry import klda_bytes
from crumb_avalanche.methods.method_settings import LearningSettings, method_settings
from crumb_avalanche.methods.packed_scatter import PackedScatter
from crumb_avalanche.methods.registry import STRATEGIES, build_strategy
from crumb_avalanche.models.backbones import split_backbone

CLASSES, BUDGET = 8, 15 * 3 * 224**2
WITH_PROJECTION = {"klda": klda_bytes, "acil": ridge_bytes, "foal": ridge_bytes, "ranpac_gcv": ridge_bytes}


@pytest.fixture(scope="module")
def model():
    return split_backbone("squeezenet1_0", n_classes=CLASSES, weights=None, codebook=None)


def built(name, model, budget=BUDGET, **method):
    entry = STRATEGIES[name]
    count = entry.memories_in_budget(model, budget, CLASSES, entry.method_settings(method), exact=True)
    return build_strategy(name, model, LearningSettings(), count, seed=5, method=method)


def fill(statistics, images):
    """Teach images of every class, of which there are no more than the statistics hold directions for."""
    labels = torch.arange(CLASSES).repeat_interleave(images)
    generator = torch.Generator().manual_seed(0)
    statistics.update(torch.randn(len(labels), statistics.settings["length"], generator=generator), labels)


@pytest.mark.parametrize(
    ("name", "method", "settings"),
    [
        ("fecam", dict(shrink_diagonal=2.0, shrink_others=1.0, tukey=0.4), dict(power=0.4, shrink_diagonal=2.0)),
        ("klda", dict(gamma=0.2, shrinkage=0.3), dict(gamma=0.2, shrinkage=0.3, seed=5)),
        ("acil", dict(ridge=0.5), dict(ridge=0.5, seed=5)),
        ("foal", dict(ridge=0.5), dict(ridge=0.5, activation="sigmoid")),
        ("ranpac_gcv", dict(), dict(ridge=0.0, seed=5)),
        ("srda", dict(own=0.7, shrinkage=0.2), dict(own=0.7, shrinkage=0.2)),
        ("lr_rgda", dict(own=0.1, common=0.6, ridge=0.2), dict(own=0.1, common=0.6, ridge=0.2)),
    ],
)
def test_settings_reach_the_statistics(model, name, method, settings):
    held = built(name, model, **method).statistics.settings
    assert {key: held[key] for key in settings} == settings


@pytest.mark.parametrize("name", WITH_PROJECTION)
def test_random_features_fill_the_budget(model, name):
    bytes_of = WITH_PROJECTION[name]
    statistics = built(name, model).statistics
    number, pages = statistics.settings["projection"], BUDGET // PAGE
    assert bytes_of(number, CLASSES) <= pages * PAGE < bytes_of(number + 1, CLASSES)
    assert statistics.held_bytes == bytes_of(number, CLASSES)
    fixed = built(name, model, projection=50).statistics
    assert fixed.settings["projection"] == 50 and fixed.held_bytes == bytes_of(50, CLASSES)
    assert STRATEGIES[name].fixed_bytes(model, method_settings(name, {"projection": 50}), CLASSES) == fixed.held_bytes
    assert build_strategy(name, model).statistics.settings["projection"] == 640, "without a budget"


@pytest.mark.parametrize(
    ("name", "method", "directions", "scatter"),
    [
        ("fecam", {}, 273, False),  # (2,257,920 - 16,512) / 1,024 by eight classes
        ("fecam", {"covariance": "common"}, 0, True),
        ("srda", {}, 273, False),
        ("lr_rgda", {}, 64, True),  # 201 beside the common scatter; the paper's rank is less
        ("lr_rgda", {"rank": 250}, 201, True),
        ("lr_rgda", {"maps": True, "deviations": True, "rank": 250}, 66, False),  # 2,048 features
    ],
)
def test_what_a_budget_buys_of_covariances(model, name, method, directions, scatter):
    statistics = built(name, model, **method).statistics
    assert statistics.settings["directions"] == directions and (statistics.scatter is not None) == scatter
    fill(statistics, directions + 2)
    assert statistics.held_bytes <= BUDGET
    if directions:
        assert statistics.directions.counts.tolist() == [directions] * CLASSES
    if not scatter:
        assert BUDGET - statistics.held_bytes < CLASSES * 2 * statistics.settings["length"]


def test_a_large_budget_buys_full_covariances(model):
    for name in ("fecam", "srda"):
        statistics = built(name, model, budget=6_000_000).statistics
        assert statistics.settings["directions"] == 512


@pytest.mark.parametrize("name", ["fecam", "srda", "lr_rgda"])
def test_a_budget_without_a_direction_for_each_class(model, name):
    with pytest.raises(ValueError, match="the budget buys 7 principal directions, but the stream has 8 classes"):
        build_strategy(name, model, mem_size=7)


def test_a_common_covariance_needs_its_bytes(model):
    settings = method_settings("fecam", {"covariance": "common"})
    fixed = STRATEGIES["fecam"].fixed_bytes(model, settings, CLASSES)
    assert fixed == 4 * CLASSES * 513 + PackedScatter.bytes_of(512) == 606_240
    with pytest.raises(ValueError, match="fixed 606240 bytes"):
        STRATEGIES["fecam"].memories_in_budget(model, fixed, CLASSES, settings)
    assert built("fecam", model, fixed + 1024, covariance="common").statistics.held_bytes == fixed


def test_features_are_those_of_the_settings(model):
    images = torch.randint(0, 256, (2, 3, 224, 224), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pooled = pooled_features(model, images)
    torch.testing.assert_close(features_of(FeatureSettings())(model, images), pooled, rtol=1e-4, atol=1e-5)
    fused = built("foal", model).features(model, images)  # two layers, each image of each at a mean square of 1
    assert fused.shape == (2, 1024)
    torch.testing.assert_close(fused.view(2, 2, 512).square().mean(2), torch.ones(2, 2))
    torch.testing.assert_close(fused[:, 512:], pooled * (512**0.5 / pooled.norm(dim=1, keepdim=True)))
    raised = built("srda", model, power=0.5).features(model, images)
    torch.testing.assert_close(raised, pooled.sqrt(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "method", "facts"),
    [
        ("fecam", {"covariance": "all"}, "covariance is 'all'; use class or common"),
        ("fecam", {"shrink_others": 4.0}, "shrink_diagonal is 3.0 and shrink_others 4.0; .*from 0 to shrink_diagonal"),
        ("fecam", {"shrink_diagonal": 0.0, "shrink_others": 0.0}, "positive shrink_diagonal"),
        ("fecam", {"tukey": 0.0}, "tukey is 0.0; .* above 0 and at most 1"),
        ("klda", {"gamma": 0.0}, "gamma is 0.0; give a positive number"),
        ("klda", {"shrinkage": -1.0}, "shrinkage is -1.0; give a positive number"),
        ("klda", {"projection": -1}, "projection is -1; give at least 1 random feature"),
        ("acil", {"ridge": 0.0}, "ridge is 0.0; give a positive number"),
        ("foal", {"power": 1.5}, "power is 1.5; .* above 0 and at most 1"),
        ("srda", {"own": 1.0}, "own is 1.0; it is a share: at least 0 and below 1"),
        ("srda", {"shrinkage": 1.0}, "shrinkage is 1.0; it is a share: above 0 and below 1"),
        ("lr_rgda", {"own": -0.1}, "own is -0.1; give at least 0"),
        ("lr_rgda", {"ridge": 0.0}, "ridge is 0.0; give a positive number"),
        ("lr_rgda", {"rank": 0}, "rank is 0; give at least 1 direction"),
    ],
)
def test_wrong_settings_are_refused(name, method, facts):
    with pytest.raises(ValueError, match=facts):
        method_settings(name, method)
