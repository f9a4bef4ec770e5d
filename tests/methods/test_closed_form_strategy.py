"""The strategy of the closed forms: settings, features, budget, bytes, classes over time."""

import pytest
import small_models
import torch
from avalanche.training.plugins import EvaluationPlugin
from torch.nn import functional
from watched import outputs_of

from crumb_avalanche.methods.features import (
    FeatureMoments,
    cell_means,
    feature_length,
    pooled_features,
)
from crumb_avalanche.methods.ranpac import PAGE
from crumb_avalanche.methods.registry import (
    STRATEGIES,
    LearningSettings,
    build_strategy,
)
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.system.tensor_file import StateError
from crumb_avalanche.training.ledger import LedgerMetric, statistics_bytes

FORMS = [name for name, entry in STRATEGIES.items() if entry.form is not None]
FILLING = ["acil", "foal", "klda", "ranpac_gcv"]
FIXED = ["ncm", "slda", "ranpac"]
CLASSES, BUDGET = 8, 15 * 3 * 224**2
LENGTH = 4 * 512 + 512  # of rda: cells of the map, and the head's input


@pytest.fixture(scope="module")
def model():
    return split_backbone(
        "squeezenet1_0", n_classes=CLASSES, weights=None, codebook=None
    )


def built(name, model, budget=BUDGET, classes=CLASSES, **method):
    entry = STRATEGIES[name]
    count = entry.memories_in_budget(
        model, budget, classes, entry.method_settings(method), exact=True
    )
    return build_strategy(
        name,
        model,
        LearningSettings(batch_size=6),
        count,
        5,
        method=method,
        evaluator=EvaluationPlugin(loggers=[]),
    )


def fill(strategy, images):
    """Teach so many images of every class."""
    labels = torch.arange(CLASSES).repeat_interleave(images)
    length = strategy.features.length(strategy.model)
    strategy._learn(
        torch.randn(len(labels), length, generator=torch.Generator().manual_seed(0)),
        labels,
    )


@pytest.mark.parametrize("name", FORMS)
def test_statistics_of_a_stream_are_those_of_its_features_in_one_pass(
    name, make_model, make_stream
):
    strategies = [built(name, make_model(codebook=False), 20_000, 4) for _ in range(2)]
    learner, expected = strategies
    learner.train_epochs, stream = 3, make_stream()
    weights = {key: value.clone() for key, value in learner.model.state_dict().items()}
    for experience in stream.train_stream:
        learner.train(experience)
        images, labels = zip(*((item[0], item[1]) for item in experience.dataset))
        features = learner.features(learner.model, torch.stack(images))
        for some, its_labels in zip(features.split(6), torch.tensor(labels).split(6)):
            expected._learn(some, its_labels)
    assert learner.statistics.image_counts.tolist() == [10] * 4
    for ours, theirs in zip(
        learner.statistics.tensors(), expected.statistics.tensors(), strict=True
    ):
        values = [part.double() for part in (ours, theirs)]
        if (
            ours.dtype == torch.int8
        ):  # directions, whose signs are arbitrary and whose last step is a rounding
            torch.testing.assert_close(values[0].abs(), values[1].abs(), rtol=0, atol=1)
        else:
            torch.testing.assert_close(*values, rtol=1e-3, atol=1e-3)
    assert all(
        torch.equal(value, weights[key])
        for key, value in learner.model.state_dict().items()
    )
    assert (
        LedgerMetric().count(learner)["memory_bytes"]
        == statistics_bytes(learner)
        == learner.statistics.held_bytes
    )


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ncm", 2 * 8),  # unit means of two classes
        ("slda", 2 * (8 + 1)),  # weights and offsets
        ("ranpac", 640 * (2 + 8)),  # weights; and the projection, drawn from its seed
    ],
)
def test_the_ledger_counts_what_is_derived_from_the_statistics_apart(
    make_model, make_stream, name, values
):
    learner = build_strategy(
        name,
        make_model(codebook=False),
        None,
        8,
        evaluator=EvaluationPlugin(loggers=[]),
    )
    assert LedgerMetric().count(learner)["derived_bytes"] == 0
    learner.train(make_stream().train_stream[0])  # two classes
    assert LedgerMetric().count(learner)["derived_bytes"] == 8 * values


def test_huge_scores_leave_no_room_for_unseen_classes(make_model, make_stream):
    learner, stream = (
        built("slda", make_model(codebook=False), shrinkage=1e-9),
        make_stream(),
    )
    learner.train(stream.train_stream[0])
    learner.statistics.means *= 1e4  # scores far below the -10,000 of an unseen class
    outputs, seen = (
        outputs_of(learner, stream.test_stream[:1])[0],
        learner.seen_classes.seen,
    )
    assert (
        set(outputs.argmax(1).tolist()) <= set(seen)
        and outputs.max(1).values.eq(0).all()
    )


@pytest.mark.parametrize(
    ("name", "method", "facts"),
    [
        (
            "slda",
            {"shrinkage": 0.0},
            "shrinkage is 0.0; give more than 0, but 1 or less",
        ),
        (
            "fecam",
            {"shrink_others": 4.0},
            "shrink_diagonal is 3.0 and shrink_others 4.0; .*from 0 to shrink_diagonal",
        ),
        ("rda", {"span": 1}, "span is 1; give true or false"),
        ("rda", {"least": 1}, "rda has no setting 'least'; it has maps, .*own"),
    ],
)
def test_wrong_settings_are_refused(model, name, method, facts):
    with pytest.raises(ValueError, match=facts):
        built(name, model, **method)


def test_bytes_at_the_papers_cut(model):
    sizes = [
        STRATEGIES[name].fixed_bytes(model, STRATEGIES[name].settings(), 10)
        for name in FIXED
    ]
    assert sizes == [20_520, 1_048_576 + 20_520, 640 * 640 * 4 + 640 * 10 * 4 + 10 * 4]
    assert (
        STRATEGIES["ranpac"].fixed_bytes(model, STRATEGIES["ranpac"].settings(), 240)
        < BUDGET
    )


@pytest.mark.parametrize("name", FILLING)
def test_random_features_fill_the_budget(model, name):
    statistics = built(name, model).statistics
    number, pages = statistics.settings["projection"], BUDGET // PAGE

    def by_hand(projection):
        if name == "klda":  # strips of 64 rows, means and counts
            strips = sum(
                min(64, projection - at) * min(at + 64, projection)
                for at in range(0, projection, 64)
            )
            return 4 * (strips + CLASSES * (projection + 1))
        return 4 * (
            projection * (projection + CLASSES) + CLASSES
        )  # Gram matrix, sums and counts

    assert by_hand(number) <= pages * PAGE < by_hand(
        number + 1
    ) and statistics.held_bytes == by_hand(number)
    assert built(name, model, projection=50).statistics.held_bytes == by_hand(50)
    given = STRATEGIES[name].method_settings({"projection": 50})
    assert STRATEGIES[name].fixed_bytes(model, given, CLASSES) == by_hand(50)
    without_budget = build_strategy(name, model).statistics
    assert without_budget.held_bytes == by_hand(640)


@pytest.mark.parametrize(
    ("name", "method", "directions", "scatter"),
    [
        ("fecam", {}, 273, False),  # (2,257,920 - 16,512) / 1,024 by eight classes
        ("srda", {}, 273, False),
        (
            "lr_rgda",
            {},
            64,
            True,
        ),  # 201 beside the common scatter; the paper's rank is less
        ("lr_rgda", {"rank": 250}, 201, True),
        (
            "lr_rgda",
            {"maps": True, "deviations": True, "rank": 250},
            66,
            False,
        ),  # 2,048 features
    ],
)
def test_what_a_budget_buys_of_covariances(model, name, method, directions, scatter):
    strategy = built(name, model, **method)
    statistics = strategy.statistics
    held = 0 if statistics.directions is None else statistics.directions.per_class
    assert held == directions and (statistics.scatter is not None) == scatter
    fill(strategy, directions + 2)
    assert statistics.held_bytes <= BUDGET
    if directions:
        assert statistics.directions.counts.tolist() == [directions] * CLASSES
    if not scatter:
        assert (
            BUDGET - statistics.held_bytes < CLASSES * 2 * statistics.settings["length"]
        )


@pytest.mark.parametrize("changes", [{}, {"drop_features": False}, {"maps": False}])
def test_the_budget_of_rda_is_that_of_the_run(model, changes):
    strategy, entry = built("rda", model, **changes), STRATEGIES["rda"]
    assert (
        BUDGET - entry.bytes_of_item(model, entry.method_settings(changes))
        < strategy.budget
        <= BUDGET
    )
    fill(strategy, 70)
    assert BUDGET - strategy.budget + 2 * LENGTH > strategy.budget - statistics_bytes(
        strategy
    ) >= 0 or (strategy.statistics.directions.counts.tolist() == [64] * CLASSES)


# Within its budget rda drops features of the map on the way.


def rda(n_classes, **method):
    entry, model = (
        STRATEGIES["rda"],
        small_models.make_model(n_classes=n_classes, codebook=False),
    )
    memories = entry.memories_in_budget(
        model, 24_000, n_classes, entry.method_settings(method)
    )
    learner = build_strategy(
        "rda", model, LearningSettings(), memories, 0, method=method
    )
    # without what is too little for a direction, which depends on the number of classes
    learner.budget = 24_000
    return learner


def taught(learner, features, labels):
    for some, its_labels in zip(features.split(16), labels.split(16)):
        learner._learn(some, its_labels)
    assert learner.statistics_bytes <= learner.budget
    return learner


@pytest.mark.parametrize("classes", [3, 60])
def test_a_state_can_be_loaded_and_learning_resumes(classes):
    labels, generator = (
        torch.arange(60).repeat_interleave(6),
        torch.Generator().manual_seed(7),
    )
    features = torch.randn(60, 40, generator=generator)[labels] + torch.randn(
        360, 40, generator=generator
    )
    rows = 6 * classes
    whole, half = (taught(rda(60), features[:rows], labels[:rows]) for _ in range(2))
    fresh = rda(60)
    fresh.load_state_dict(half.state_dict())
    assert (fresh.decided_settings == {}) == (classes == 3)
    for learner in (whole, fresh):
        taught(learner, features.flip(0), labels.flip(0))
    pairs = zip(whole.statistics.tensors(), fresh.statistics.tensors(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)
    with pytest.raises(
        StateError, match=r"the state has .* features, but this strategy 8"
    ):
        rda(60, maps=False).load_state_dict(rda(3, drop_features=False).state_dict())


MOMENTS = dict(maps=True, deviations=True, power=0.7)


def test_pooled_features_are_the_input_of_the_head(make_model, pixels):
    model = make_model(codebook=False).train()
    layers = model.plastic_layers
    by_hand = layers.conv(model.features(pixels)).relu().mean((2, 3))
    assert torch.allclose(pooled_features(model, pixels), by_hand, atol=1e-5)
    assert model.training and feature_length(model) == 8
    # A convolutional head behind a dropout, with a pool after it.
    squeezenet = split_backbone(
        "squeezenet1_0", None, n_classes=3, image_size=64, codebook=None
    ).train()
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    by_hand = squeezenet.plastic_layers.features(squeezenet.features(images)).mean(
        (2, 3)
    )
    assert feature_length(squeezenet) == 512
    assert torch.allclose(pooled_features(squeezenet, images), by_hand, atol=1e-5)


def test_moments_by_hand():
    model = split_backbone(
        "small_cnn", n_classes=3, weights=None, image_size=32, codebook=None
    )
    images = torch.randint(
        0,
        256,
        (2, 3, 32, 32),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(0),
    )
    maps = model.features(images)
    head = model.eval().plastic_layers.features(maps).mean((2, 3))
    means, deviations = maps.mean((2, 3)), maps.std((2, 3), correction=0)
    model.train()
    for changes, parts in (
        ({}, [means**0.7, deviations**0.7, head**0.7]),
        ({"power": 0.5}, [means.sqrt(), deviations.sqrt(), head.sqrt()]),
        ({"power": 1.0, "deviations": False}, [means, head]),
        ({"maps": False}, [head**0.7]),
    ):
        features = FeatureMoments(**{**MOMENTS, **changes})
        torch.testing.assert_close(
            features(model, images), torch.cat(parts, 1), rtol=1e-4, atol=1e-5
        )
        assert features.length(model) == features(model, images).shape[1]
        torch.testing.assert_close(
            features.of_maps(model, maps), features(model, images)
        )
    assert model.training
    # Of equal lengths.
    plain, equal = (
        FeatureMoments(**MOMENTS, equal_lengths=equal).of_maps(model, maps)
        for equal in (False, True)
    )
    sizes = [
        model.map_shape[0],
        model.map_shape[0],
        plain.shape[1] - 2 * model.map_shape[0],
    ]
    for before, after, size in zip(plain.split(sizes, 1), equal.split(sizes, 1), sizes):
        lengths = before.norm(dim=1, keepdim=True)
        torch.testing.assert_close(after, before / lengths * size**0.5)


@pytest.mark.parametrize(
    ("height", "width", "cells"), [(13, 13, 2), (5, 8, 3), (1, 7, 2), (4, 4, 4)]
)
def test_cells_are_those_of_adaptive_pooling(height, width, cells):
    maps = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        cell_means(maps, cells), functional.adaptive_avg_pool2d(maps, cells).flatten(1)
    )


@pytest.mark.parametrize("deviations", [False, True])
def test_cells_take_the_place_of_the_means(deviations, make_model):
    model = make_model()
    maps, channels = torch.rand(2, *model.map_shape), model.map_shape[0]
    cells = FeatureMoments(maps=True, deviations=deviations, cells=2).of_maps(
        model, maps
    )
    usual = FeatureMoments(maps=True, deviations=deviations).of_maps(model, maps)
    torch.testing.assert_close(cells[:, : 4 * channels], cell_means(maps, 2))
    torch.testing.assert_close(cells[:, 4 * channels :], usual[:, channels:])
