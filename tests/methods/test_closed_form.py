"""What every classifier in closed form keeps: against a twin that keeps all images, and over additions and removals."""

import copy
import io
import pickle
import warnings

import numpy as np
import pytest
import torch
from closed_form_cases import (
    DENSITIES,
    HALF,
    MAKE,
    RANDOM,
    SCALED,
    D,
    Twin,
    feed,
    images,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crumb_avalanche.learner.export import OPSET, more_operators
from crumb_avalanche.methods.closed_form import LOWEST_SCORE, NO_DENSITY
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.slda import StreamingLDA
from crumb_avalanche.system.tensor_file import StateError

each_form = pytest.mark.parametrize("name", MAKE)
SEEDS, LABELS = st.integers(0, 10_000), st.integers(0, 6)
STEPS = st.one_of(
    st.tuples(st.just("teach"), SEEDS, st.integers(1, 20)),
    st.tuples(st.just("grow"), st.integers(0, 3)),
    st.tuples(st.just("forget"), LABELS),
    st.tuples(st.just("merge"), SEEDS, st.integers(1, 12), st.permutations(range(7))),
    st.tuples(st.just("reload")),
)


def held(statistics):
    return {name: tensor.clone() for name, tensor in statistics.named_tensors().items()}


def equal(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(one[name], other[name]) for name in one
    )


@each_form
def test_classes_added_one_by_one_are_as_if_there_from_the_start(name):
    features, labels = images(80, 20)
    ours, whole = MAKE[name](1), MAKE[name](20)
    for position in range(0, 80, 4):
        some, its_labels = (
            features[position : position + 4],
            labels[position : position + 4],
        )
        while ours.settings["n_classes"] <= its_labels.max():
            ours.grow(ours.settings["n_classes"] + 1)
        ours.update(some, its_labels)
        whole.update(some, its_labels)
        fresh = images(5, 20, seed=position)[0]
        found = ours.scores(fresh)
        assert torch.equal(found, whole.scores(fresh)[:, : found.shape[1]])
    ours.grow(20)
    assert ours.settings == whole.settings and equal(held(ours), held(whole))
    assert (
        ours.held_bytes
        >= whole.held_bytes
        == sum(tensor.nbytes for tensor in held(whole).values())
    )
    with pytest.raises(
        ValueError, match=r"n_classes is 19, but there are 20 classes .* forget"
    ):
        ours.grow(19)


@each_form
def test_a_removed_class_leaves_nothing_of_its_own(name):
    features, labels = images(120, 4)
    ours, never = MAKE[name](4), MAKE[name](4)
    for some, its_labels in zip(features.split(7), labels.split(7)):
        ours.update(some, its_labels)
        never.update(some[its_labels != 2], its_labels[its_labels != 2])
    fresh = images(30, 4, seed=1)[0]
    ours.scores(fresh)  # a solution that removing must drop
    ours.forget(2)
    scores = ours.scores(fresh)
    assert (scores[:, 2] == NO_DENSITY).all() and (
        scores[:, [0, 1, 3]] > NO_DENSITY
    ).all()
    shared = {
        key for key in held(ours) if key in ("covariance", "gram", "rows", "strip0")
    }
    assert bool(shared) == bool(ours.remains_after_forget)

    def compare():
        kept, expected = held(ours), held(never)
        for key in kept.keys() - {"sums"}:
            assert torch.equal(kept[key], expected[key]) == (key not in shared), key
        if name.startswith(
            RANDOM
        ):  # the other images of a batch may change the last bit of a product
            torch.testing.assert_close(
                kept["sums"], expected["sums"], rtol=1e-6, atol=0
            )
        if not shared:
            assert torch.equal(ours.scores(fresh), never.scores(fresh))

    compare()
    assert not any(
        tensor[2].any()
        for key, tensor in held(ours).items()
        if key not in {"directions", *shared}
    )
    for statistics in (ours, never):
        statistics.update(images(40, 4, seed=5)[0] + 20, torch.full((40,), 2))
    compare()
    for label in (3, 0, 1, 2, 1):  # nothing is left of all classes
        ours.forget(label)
    assert (
        equal(held(ours), held(MAKE[name](4)))
        and (ours.scores(fresh) == NO_DENSITY).all()
    )
    with pytest.raises(ValueError, match=r"no class 4 among 4 .* grow"):
        ours.forget(4)


@each_form
def test_a_copy_stays_as_it_is_whatever_happens_to_the_original(name):
    statistics = feed(MAKE[name](4), *images(60, 4))
    other = feed(MAKE[name](4), *images(30, 4, seed=3))
    fresh = images(20, 4, seed=1)[0]
    statistics.scores(fresh)
    steps = {
        "update": lambda: statistics.update(*images(30, 4, seed=2)),
        "merge": lambda: statistics.merge(other),
        "forget": lambda: statistics.forget(1),
        "grow": lambda: statistics.grow(9),
        "load": lambda: statistics.load_state_dict(
            {**feed(MAKE[name](9), *images(30, 4, seed=4)).state_dict()}
        ),
    }
    if name.startswith("rda"):
        steps["limit"] = lambda: statistics.limit(3)
    for step, take in steps.items():
        copied, twin = (
            copy.deepcopy(statistics),
            pickle.loads(pickle.dumps(statistics)),
        )  # the twin shares nothing
        before = statistics.scores(fresh)
        take()
        assert copied.settings == twin.settings and equal(held(copied), held(twin)), (
            step
        )
        assert torch.equal(copied.scores(fresh), before) and torch.equal(
            twin.scores(fresh), before
        ), step


@each_form
def test_states_that_do_not_fit(name):
    statistics = feed(MAKE[name](4), *images(60, 4))
    state, before = statistics.state_dict(), held(statistics)
    fewer = {**state, "settings": {**state["settings"], "n_classes": 3}}
    with pytest.raises(StateError, match="counts of 4 classes, not of 3"):
        type(statistics).from_state(fewer)
    for wrong in (
        {},
        {**state, "settings": {"odd": 1}},
        {**state, "settings": {**state["settings"], "odd": 1}},
    ):
        with pytest.raises(
            StateError, match=f"no state of {type(statistics).__name__} .*state_dict"
        ):
            type(statistics).from_state(wrong)
    with pytest.raises(
        StateError,
        match=r"n_classes=4 cannot be loaded into those with n_classes=5; build both",
    ):
        MAKE[name](5).load_state_dict(state)
    with pytest.raises(StateError, match=f"but {type(statistics).__name__} needs"):
        statistics.load_state_dict(
            {key: value for key, value in state.items() if key != "counts"}
        )
    for key in held(statistics):
        with pytest.raises(StateError, match="belong to"):
            statistics.load_state_dict({**state, key: state[key][:-1]})
    assert equal(held(statistics), before)


@each_form
def test_batches_that_do_not_fit_change_nothing(name):
    statistics = feed(MAKE[name](4), *images(60, 4))
    features, labels = images(9, 4, seed=1)
    fresh, before = images(20, 4, seed=2)[0], held(statistics)
    scores = statistics.scores(fresh)
    for value in (float("nan"), float("inf"), -1.1e12):
        bad = features.clone()
        bad[[8, 5], 2] = value
        with pytest.raises(
            ValueError, match=r"row 5 of the features holds .*finite and at most 1e\+12"
        ):
            statistics.update(bad, labels)
    for some, its_labels in (
        (features[:, :5], labels),
        (features, labels[:8]),
        (features[0], labels[:1]),
    ):
        with pytest.raises(ValueError, match=r"shape .* give \(B, 6\) and \(B,\)"):
            statistics.update(some, its_labels)
    for label in (4, -1):
        labels[5] = label
        with pytest.raises(ValueError, match=f"no class {label} among 4 .* grow"):
            statistics.update(features, labels)
    statistics.update(features[:0], labels[:0])
    assert equal(held(statistics), before) and torch.equal(
        statistics.scores(fresh), scores
    )


@each_form
def test_far_images_are_answered_by_a_class_with_images(name):
    statistics = MAKE[name](4)
    statistics.update(1e-3 * images(2, 1)[0], torch.tensor([1, 3]))
    scores = statistics.scores(torch.full((3, D), 1e12))
    assert scores.isfinite().all() and (scores[:, [1, 3]] >= LOWEST_SCORE).all()
    assert set(scores.float().argmax(1).tolist()) <= {1, 3}
    zeros = MAKE[name](3)
    zeros.update(torch.zeros(2, D), torch.tensor([1, 1]))
    assert zeros.scores(torch.zeros(1, D)).argmax(1).tolist() == [1]


@each_form
@pytest.mark.parametrize("scale", [1e-3, 1e6])
def test_features_of_any_scale(name, scale):
    features, labels = images(200, 4)
    fresh, truth = images(100, 4, seed=1)
    ours, usual = (
        feed(MAKE[name](4), scale * features, labels),
        feed(MAKE[name](4), features, labels),
    )
    assert all(tensor.isfinite().all() for tensor in ours.tensors())
    scores, expected = ours.scores(scale * fresh), usual.scores(fresh)
    assert scores.isfinite().all()
    if name not in SCALED or (name in ("slda", "plda") and scale >= 1):
        assert (scores.argmax(1) == truth).double().mean() > 0.9
    if name.startswith(DENSITIES):  # densities of another unit
        scores, expected = scores - scores[:, :1], expected - expected[:, :1]
    if name not in SCALED:
        torch.testing.assert_close(
            scores, expected, rtol=1e-2, atol=1e-3 * float(expected.abs().max())
        )


def take(step, statistics, twin, make):
    """Take one step; return the statistics, which are others after a reload."""
    match step:
        case "teach", seed, count:
            features, labels = images(count, 5, seed)
            statistics.grow(
                max(statistics.settings["n_classes"], int(labels.max()) + 1)
            )
            statistics.update(features, labels)
            twin.update(features, labels)
        case "grow", more:
            statistics.grow(statistics.settings["n_classes"] + more)
        case "forget", label if label < statistics.settings["n_classes"]:
            statistics.forget(label)
            twin.forget(label)
        case "merge", seed, count, order:
            features, labels = images(count, 5, seed)
            other, its_twin = make(5), Twin(twin.name)
            other.update(features, labels)
            its_twin.update(features, labels)
            numbers = dict(enumerate(order))
            statistics.merge(other, numbers)
            twin.merge(its_twin, numbers)
        case ("reload",):
            return type(statistics).from_state(statistics.state_dict())
    return statistics


@each_form
@settings(max_examples=40)
@given(steps=st.lists(STEPS, min_size=1, max_size=8))
# The means of three classes lie on one line.
@example(steps=[("teach", 0, 5), ("merge", 0, 5, [0, 1, 2, 4, 5, 3, 6])])
def test_statistics_and_answers_after_any_steps(name, steps):
    statistics, twin, make = MAKE[name](0), Twin(name), MAKE[name]
    for step in steps:
        statistics = take(step, statistics, twin, make)
    counts = {
        label: count
        for label, count in enumerate(statistics.image_counts.tolist())
        if count
    }
    assert counts == {label: len(group) for label, group in twin.images.items()}
    for label in counts if not name.startswith(RANDOM) else ():
        means = getattr(statistics, "classes", statistics).means
        torch.testing.assert_close(
            means[label].double(), twin.mean(label), rtol=1e-5, atol=1e-5
        )
    if name.startswith(HALF) and statistics.directions is not None:
        for label in counts:
            directions, scatter = (
                statistics.directions.of_class(label),
                twin.scatter(label),
            )
            assert len(directions) <= min(D, counts[label] - 1)
            size = float(scatter.abs().max())
            torch.testing.assert_close(
                directions.T @ directions, scatter, rtol=0, atol=5e-3 * size + 1e-6
            )
            assert statistics.directions.outside[label] <= 1e-6 * scatter.trace() + 1e-9
    fresh = images(20, 5, seed=1)[0]
    scores = statistics.scores(fresh)
    assert scores.shape == (20, statistics.settings["n_classes"])
    empty = torch.ones(scores.shape[1], dtype=torch.bool)
    empty[[*counts]] = False
    assert (scores[:, empty] == NO_DENSITY).all() and (
        scores[:, ~empty] > NO_DENSITY
    ).all()
    # Densities of equal means are equal, and the discriminant space of them is
    # arbitrary.
    apart = (
        len(counts) > 1
        and torch.pdist(torch.stack([twin.mean(label) for label in counts])).min()
        > 1e-3
    )
    if apart if name.startswith(DENSITIES) else counts:
        expected, scores = twin.scores(fresh), scores[:, ~empty]
        if name.startswith(DENSITIES):  # up to a constant
            expected, scores = expected - expected[:, :1], scores - scores[:, :1]
        error = (scores - expected).abs().max() / expected.abs().max()
        # A chosen ridge may be so small that it amplifies the rounding of the Gram
        # matrix.
        assert error < (2e-2 if name.startswith(HALF) or "chosen" in name else 1e-4)


@each_form
def test_the_solution_is_a_module_that_is_exported(name):
    runtime = pytest.importorskip("onnxruntime")
    statistics, fresh, stream = MAKE[name](4), images(7, 4, seed=1)[0], io.BytesIO()
    features, labels = images(40, 4)
    statistics.update(
        features[labels != 2], labels[labels != 2]
    )  # class 2 stays without images and has no column
    solution, expected = statistics.solution(), statistics.scores(fresh)[:, [0, 1, 3]]
    assert torch.equal(solution(fresh), expected)
    with warnings.catch_warnings(), more_operators():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            solution, (fresh[:2],), stream, dynamo=False, opset_version=OPSET, input_names=["features"],
            dynamic_axes={"features": {0: "batch"}},
        )  # fmt: skip
    session = runtime.InferenceSession(
        stream.getvalue(), providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {"features": fresh.numpy()})
    np.testing.assert_allclose(
        found, expected.numpy(), rtol=0, atol=1e-5 * expected.abs().max()
    )


@pytest.mark.parametrize(
    ("other", "facts"),
    [
        (StreamingLDA(4, D, shrinkage=0.5), r"shrinkage=0\.5 .* shrinkage=0\.0001"),
        (StreamingLDA(4, D + 1), "length=7 .* length=6"),
        (ClassMeans(4, D), "ClassMeans .* StreamingLDA; give the same kind"),
    ],
)
def test_others_are_refused(other, facts):
    one = feed(StreamingLDA(4, D), *images(60, 4))
    before = held(one)
    with pytest.raises(StateError, match=facts):
        one.merge(other)
    with pytest.raises(
        StateError,
        match=r"cannot be loaded into those with .*; build both with the same settings",
    ):
        one.load_state_dict(other.state_dict())
    for numbers, words in (
        ({0: 1, 1: 2}, "no number for class 2"),
        ({0: 1, 1: -2, 2: 0}, "holds -2; .* from 0"),
    ):
        with pytest.raises(ValueError, match=words):
            one.merge(feed(StreamingLDA(9, D), *images(60, 3)), numbers)
    assert equal(held(one), before)
