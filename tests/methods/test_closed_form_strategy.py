"""The strategy of the closed forms: settings, features, budget, bytes, classes."""

from types import SimpleNamespace

import pytest
import small_models
import torch
from avalanche.training.plugins import EvaluationPlugin
from small_models import stacked_images
from torch.nn import functional
from watched import outputs_of

from crumb_avalanche.methods.features import (
    FeatureMoments,
    cell_means,
    feature_length,
    pooled_features,
)
from crumb_avalanche.methods.ranpac import MOST_PROJECTION, PAGE
from crumb_avalanche.methods.registry import (
    STRATEGIES,
    LearningSettings,
    build_strategy,
)
from crumb_avalanche.models.split_backbone import split_backbone
from crumb_avalanche.system.value_types import StateError
from crumb_avalanche.training.ledger import LedgerMetric, statistics_bytes

FORMS = [name for name, entry in STRATEGIES.items() if entry.form is not None]
FILLING = ["acil", "foal", "klda", "ranpac_gcv"]
CLASSES = 8
BUDGET = 15 * 3 * 224**2  # bytes
LENGTH = 4 * 512 + 512  # of rda: cells of the map, and the head's input
QUIET = dict(evaluator=EvaluationPlugin(loggers=[]))


@pytest.fixture(scope="module")
def model():
    return split_backbone(
        "squeezenet1_0", n_classes=CLASSES, weights=None, codebook=None
    )


def built(name, model, budget=BUDGET, classes=CLASSES, **method):
    """A strategy with what a budget buys."""
    entry = STRATEGIES[name]
    settings = entry.method_settings(method)
    count = entry.memories_in_budget(model, budget, classes, settings, exact=True)
    learning = LearningSettings(batch_size=6)
    return build_strategy(name, model, learning, count, 5, method=method, **QUIET)


def fill(strategy, images):
    """Teach so many images of every class."""
    labels = torch.arange(CLASSES).repeat_interleave(images)
    shape = (len(labels), strategy.features.length(strategy.model))
    features = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    strategy._learn(features, labels)


def learn_in_batches(strategy, features, labels, size):
    for start in range(0, len(labels), size):
        batch = slice(start, start + size)
        strategy._learn(features[batch], labels[batch])


class Streamed:
    """A strategy after a stream, and one that learned its features in one pass."""

    def __init__(self, name):
        self.learner = self.built(name)
        self.learner.train_epochs = 3
        self.expected = self.built(name)
        self.before = self.weights()
        for experience in small_models.make_stream().train_stream:
            self.learner.train(experience)
            self.learn_features(experience)

    @staticmethod
    def built(name):
        return built(name, small_models.make_model(codebook=False), 20_000, 4)

    def learn_features(self, experience):
        images = stacked_images(experience.dataset)
        labels = torch.tensor([label for _, label, *_ in experience.dataset])
        features = self.learner.features(self.learner.model, [images], [0])
        learn_in_batches(self.expected, features, labels, size=6)

    def weights(self):
        state = self.learner.model.state_dict()
        return {key: value.clone() for key, value in state.items()}


@pytest.fixture(params=FORMS, scope="module")
def streamed(request):
    return Streamed(request.param)


def assert_alike(tensor, expected):
    if tensor.dtype == torch.int8:
        # Directions, whose signs are arbitrary and whose last step is a rounding.
        difference = tensor.double().abs() - expected.double().abs()
        assert difference.abs().amax() <= 1
    else:
        torch.testing.assert_close(
            tensor.double(), expected.double(), rtol=1e-3, atol=1e-3
        )


def test_statistics_are_of_one_pass(streamed):
    ours = streamed.learner.statistics
    assert ours.image_counts.tolist() == [10] * 4
    theirs = streamed.expected.statistics
    for tensor, expected in zip(ours.tensors(), theirs.tensors(), strict=True):
        assert_alike(tensor, expected)


def test_weights_stay_as_they_are(streamed):
    after = streamed.weights()
    assert all(torch.equal(after[key], value) for key, value in streamed.before.items())


def test_the_ledger_counts_what_is_held(streamed):
    learner = streamed.learner
    held = learner.statistics.held_bytes
    assert LedgerMetric().count(learner)["memory_bytes"] == held
    assert statistics_bytes(learner) == held


def derived_bytes(learner):
    return LedgerMetric().count(learner)["derived_bytes"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ncm", 2 * 8),  # unit means of two classes
        ("slda", 2 * (8 + 1)),  # weights and offsets
        ("ranpac", 640 * (2 + 8)),  # weights; and the projection, drawn from its seed
    ],
)
def test_what_is_derived_is_counted_apart(make_model, make_stream, name, values):
    learner = build_strategy(name, make_model(codebook=False), None, 8, **QUIET)
    assert derived_bytes(learner) == 0
    learner.train(make_stream().train_stream[0])  # two classes
    assert derived_bytes(learner) == 8 * values


def test_huge_scores_leave_no_room_for_unseen_classes(make_model, make_stream):
    learner = built("slda", make_model(codebook=False), shrinkage=1e-9)
    stream = make_stream()
    learner.train(stream.train_stream[0])
    learner.statistics.means *= 1e4  # scores far below the -10,000 of an unseen class
    outputs, _ = outputs_of(learner, stream.test_stream[:1])
    assert set(outputs.argmax(1).tolist()) <= set(learner.seen_classes.seen)
    assert outputs.max(1).values.eq(0).all()


@pytest.mark.parametrize(
    ("name", "method", "facts"),
    [
        ("slda", {"shrinkage": 0.0}, "shrinkage is 0.0; give more than 0, but 1 or"),
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


def fixed_bytes(name, model, classes):
    entry = STRATEGIES[name]
    return entry.fixed_bytes(model, entry.settings(), classes)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("ncm", 20_520),
        ("slda", 1_048_576 + 20_520),
        ("ranpac", 640 * 640 * 4 + 640 * 10 * 4 + 10 * 4),
    ],
)
def test_bytes_at_the_papers_cut(model, name, size):
    assert fixed_bytes(name, model, 10) == size


def test_the_budget_holds_ranpac_of_240_classes(model):
    assert fixed_bytes("ranpac", model, 240) < BUDGET


def bytes_by_hand(name, projection):
    """Of random features."""
    if name != "klda":  # Gram matrix, sums and counts
        return 4 * (projection * (projection + CLASSES) + CLASSES)
    strips = 0  # of 64 rows
    for start in range(0, projection, 64):
        strips += min(64, projection - start) * min(start + 64, projection)
    return 4 * (strips + CLASSES * (projection + 1))  # means and counts


@pytest.mark.parametrize("name", FILLING)
def test_random_features_fill_the_budget(model, name):
    statistics = built(name, model).statistics
    projection = statistics.settings["projection"]
    size = bytes_by_hand(name, projection)
    pages = BUDGET // PAGE
    assert size <= pages * PAGE < bytes_by_hand(name, projection + 1)
    assert statistics.held_bytes == size


@pytest.mark.parametrize("name", FILLING)
def test_a_number_of_random_features_is_taken(model, name):
    size = bytes_by_hand(name, 50)
    assert built(name, model, projection=50).statistics.held_bytes == size
    settings = STRATEGIES[name].method_settings({"projection": 50})
    assert STRATEGIES[name].fixed_bytes(model, settings, CLASSES) == size


@pytest.mark.parametrize("name", FILLING)
def test_without_a_budget_there_are_640(model, name):
    statistics = build_strategy(name, model).statistics
    assert statistics.held_bytes == bytes_by_hand(name, 640)


@pytest.mark.parametrize("name", [*FILLING, "loranpac", "randumb"])
def test_a_large_budget_buys_the_most_random_features(name):
    form = STRATEGIES[name].form
    pages = 10**12 // PAGE
    bought = form.bought(1000, 512, pages, {"projection": 0})
    assert bought == {"projection": MOST_PROJECTION}


MORE_FEATURES = {"maps": True, "deviations": True, "rank": 250}  # 2,048
BOUGHT = [
    ("fecam", {}, 273, False),  # (2,257,920 - 16,512) / 1,024 by eight classes
    ("srda", {}, 273, False),
    # 201 beside the common scatter; the paper's rank is less.
    ("lr_rgda", {}, 64, True),
    ("lr_rgda", {"rank": 250}, 201, True),
    ("lr_rgda", MORE_FEATURES, 66, False),
]
each_bought = pytest.mark.parametrize(
    ("name", "method", "directions", "scatter"), BOUGHT
)


@each_bought
def test_what_a_budget_buys(model, name, method, directions, scatter):
    statistics = built(name, model, **method).statistics
    assert statistics.directions.per_class == directions
    assert (statistics.scatter is not None) == scatter


@each_bought
def test_what_is_bought_is_used(model, name, method, directions, scatter):
    strategy = built(name, model, **method)
    fill(strategy, directions + 2)
    statistics = strategy.statistics
    assert statistics.held_bytes <= BUDGET
    assert statistics.directions.counts.tolist() == [directions] * CLASSES


@pytest.mark.parametrize(
    ("name", "method", "directions"),
    [(name, method, directions) for name, method, directions, has in BOUGHT if not has],
)
def test_no_more_could_be_bought(model, name, method, directions):
    strategy = built(name, model, **method)
    fill(strategy, directions + 2)
    statistics = strategy.statistics
    a_direction_each = CLASSES * 2 * statistics.settings["length"]
    assert BUDGET - statistics.held_bytes < a_direction_each


each_change = pytest.mark.parametrize(
    "changes", [{}, {"drop_features": False}, {"maps": False}]
)


@each_change
def test_the_budget_of_rda_is_that_of_the_run(model, changes):
    strategy = built("rda", model, **changes)
    entry = STRATEGIES["rda"]
    item_bytes = entry.bytes_of_item(model, entry.method_settings(changes))
    assert BUDGET - item_bytes < strategy.budget <= BUDGET


@each_change
def test_rda_uses_its_budget(model, changes):
    """But for a direction, or where no class needs more."""
    strategy = built("rda", model, **changes)
    fill(strategy, 70)
    left = strategy.budget - statistics_bytes(strategy)
    unused = BUDGET - strategy.budget + 2 * LENGTH
    complete = strategy.statistics.directions.counts.tolist() == [64] * CLASSES
    assert 0 <= left < unused or complete


# Within its budget rda drops features of the map on the way


def rda(n_classes, **method):
    """A strategy of the small model with 24,000 bytes."""
    entry = STRATEGIES["rda"]
    small = small_models.make_model(n_classes=n_classes, codebook=False)
    settings = entry.method_settings(method)
    count = entry.memories_in_budget(small, 24_000, n_classes, settings)
    learner = build_strategy("rda", small, LearningSettings(), count, 0, method=method)
    # Without what is too little for a direction, which depends on the number of
    # classes.
    learner.budget = 24_000
    return learner


def taught(learner, features, labels):
    learn_in_batches(learner, features, labels, size=16)
    assert learner.statistics_bytes <= learner.budget
    return learner


def sixty_classes():
    """Six images of each."""
    generator = torch.Generator().manual_seed(7)
    labels = torch.arange(60).repeat_interleave(6)
    centres = torch.randn(60, 40, generator=generator)
    return centres[labels] + torch.randn(360, 40, generator=generator), labels


class Resumed:
    """A strategy that learned some classes, and one that loaded its state."""

    def __init__(self, classes):
        self.features, self.labels = sixty_classes()
        rows = slice(6 * classes)
        self.first = taught(rda(60), self.features[rows], self.labels[rows])
        self.loaded = rda(60)
        self.loaded.load_state_dict(self.first.state_dict())


@pytest.mark.parametrize(("classes", "drops"), [(3, False), (60, True)])
def test_features_are_dropped_for_many_classes(classes, drops):
    assert bool(Resumed(classes).loaded.decided_settings) == drops


@pytest.mark.parametrize("classes", [3, 60])
def test_a_state_is_loaded_and_learning_resumes(classes):
    resumed = Resumed(classes)
    features, labels = resumed.features.flip(0), resumed.labels.flip(0)
    first = taught(resumed.first, features, labels).statistics
    loaded = taught(resumed.loaded, features, labels).statistics
    pairs = zip(first.tensors(), loaded.tensors(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_a_state_of_other_features_is_refused():
    state = rda(3, drop_features=False).state_dict()
    words = r"the state has .* features, but this strategy 8"
    with pytest.raises(StateError, match=words):
        rda(60, maps=False).load_state_dict(state)


# Features


def test_pooled_features_are_the_input_of_the_head(make_model, pixels):
    model = make_model(codebook=False).train()
    layers = model.plastic_layers
    by_hand = layers.conv(model.features(pixels)).relu().mean((2, 3))
    assert torch.allclose(pooled_features(model, pixels), by_hand, atol=1e-5)
    assert model.training
    assert feature_length(model) == 8


def test_pooled_features_before_a_convolution():
    """A convolutional head behind a dropout, with a pool after it."""
    model = split_backbone(
        "squeezenet1_0", None, n_classes=3, image_size=64, codebook=None
    ).train()
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    maps = model.plastic_layers.features(model.features(images))
    assert feature_length(model) == 512
    features = pooled_features(model, images)
    assert torch.allclose(features, maps.mean((2, 3)), atol=1e-5)


class SmallCNN:
    """A network, two images, and moments of their maps by hand."""

    def __init__(self):
        self.model = split_backbone(
            "small_cnn", n_classes=3, weights=None, image_size=32, codebook=None
        )
        generator = torch.Generator().manual_seed(0)
        shape = (2, 3, 32, 32)
        self.images = torch.randint(
            0, 256, shape, dtype=torch.uint8, generator=generator
        )
        self.maps = self.model.features(self.images)
        before_head = self.model.eval().plastic_layers.features(self.maps)
        self.head = before_head.mean((2, 3))
        self.means = self.maps.mean((2, 3))
        self.deviations = self.maps.std((2, 3), correction=0)
        self.model.train()


MOMENTS = dict(maps=True, deviations=True, power=0.7)
each_moments = pytest.mark.parametrize(
    ("changes", "power", "names"),
    [
        ({}, 0.7, ["means", "deviations", "head"]),
        ({"power": 0.5}, 0.5, ["means", "deviations", "head"]),
        ({"power": 1.0, "deviations": False}, 1.0, ["means", "head"]),
        ({"maps": False}, 0.7, ["head"]),
    ],
)


@each_moments
def test_moments_by_hand(changes, power, names):
    small = SmallCNN()
    features = FeatureMoments(**{**MOMENTS, **changes})(small.model, small.images)
    expected = torch.cat([getattr(small, name) ** power for name in names], 1)
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)
    assert small.model.training


@each_moments
def test_moments_of_maps_are_those_of_images(changes, power, names):
    small = SmallCNN()
    moments = FeatureMoments(**{**MOMENTS, **changes})
    of_images = moments(small.model, small.images)
    torch.testing.assert_close(moments.of_maps(small.model, small.maps), of_images)
    assert moments.length(small.model) == of_images.shape[1]


def test_kinds_of_moments_have_equal_lengths():
    small = SmallCNN()
    plain = FeatureMoments(**MOMENTS).of_maps(small.model, small.maps)
    equal = FeatureMoments(**MOMENTS, equal_lengths=True).of_maps(
        small.model, small.maps
    )
    channels = small.model.map_shape[0]
    sizes = [channels, channels, plain.shape[1] - 2 * channels]
    expected = []
    for kind in plain.split(sizes, 1):
        expected.append(functional.normalize(kind) * kind.shape[1] ** 0.5)
    torch.testing.assert_close(equal, torch.cat(expected, 1))


@pytest.mark.parametrize(
    ("height", "width", "cells"), [(13, 13, 2), (5, 8, 3), (1, 7, 2), (4, 4, 4)]
)
def test_cells_are_those_of_adaptive_pooling(height, width, cells):
    maps = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(0))
    expected = functional.adaptive_avg_pool2d(maps, cells).flatten(1)
    torch.testing.assert_close(cell_means(maps, cells), expected)


@pytest.mark.parametrize("deviations", [False, True])
def test_cells_take_the_place_of_the_means(deviations, make_model):
    model = make_model()
    channels = model.map_shape[0]
    maps = torch.rand(2, *model.map_shape, generator=torch.Generator().manual_seed(0))
    moments = dict(maps=True, deviations=deviations)
    cells = FeatureMoments(**moments, cells=2).of_maps(model, maps)
    usual = FeatureMoments(**moments).of_maps(model, maps)
    torch.testing.assert_close(cells[:, : 4 * channels], cell_means(maps, 2))
    torch.testing.assert_close(cells[:, 4 * channels :], usual[:, channels:])


# Clips, which are predicted before they are learned


def of_batch(number, clips, in_order=True):
    """A strategy at a batch of three images of an experience, and its clips."""
    learner = built("rda", small_models.make_model(codebook=False), 20_000, 4)
    learner.train_mb_size = 3
    learner.frames_in_order = in_order
    learner.adapted_dataset = SimpleNamespace(clip=clips)
    learner.clock.train_exp_iterations = number
    return list(learner._new_clips(3))


@pytest.mark.parametrize(
    ("number", "clips", "expected"),
    [
        (0, [5, 5, 5, 5, 7, 7], [[0, 1, 2]]),
        (1, [5, 5, 5, 5, 7, 7], [[1, 2]]),
        (1, [5, 7, 5, 7, 5, 8], [[2]]),
    ],
    ids=["begins", "goes on", "shuffled"],
)
def test_clips_that_begin_in_a_batch(number, clips, expected):
    assert of_batch(number, clips) == expected


def test_each_image_is_a_clip_where_their_order_is_not_known():
    assert of_batch(0, [5, 5, 5], in_order=False) == [[0], [1], [2]]
