"""What every registered classifier in closed form keeps.

Each is compared with a reference that keeps all images, over additions and removals.
"""

import copy
import io
import pickle
import warnings
from contextlib import contextmanager
from itertools import product

import numpy as np
import pytest
import torch
from closed_form_cases import CASES, D, feed, images
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_models import same_tensors

from crumb_avalanche.learner.export import OPSET, more_operators
from crumb_avalanche.methods.closed_form import LOWEST_SCORE, NO_DENSITY
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.methods.slda import StreamingLDA
from crumb_avalanche.system.value_types import StateError

each_form = pytest.mark.parametrize("name", CASES)
each_step = pytest.mark.parametrize(
    "step", ["update", "merge", "forget", "grow", "load"]
)
FORMS = [name for name, entry in STRATEGIES.items() if entry.form is not None]
# What all classes share, which ``forget`` leaves.
SHARED = {"covariance", "gram", "rows", "strip0"}
SEEDS = st.integers(0, 10_000)
LABELS = st.integers(0, 6)
STEPS = st.one_of(
    st.tuples(st.just("teach"), SEEDS, st.integers(1, 20)),
    st.tuples(st.just("grow"), st.integers(0, 3)),
    st.tuples(st.just("forget"), LABELS),
    st.tuples(st.just("merge"), SEEDS, st.integers(1, 12), st.permutations(range(7))),
    st.tuples(st.just("reload")),
)


def made(name, n_classes=4):
    return CASES[name].make(n_classes)


def taught(name, count=60, n_classes=4, seed=0):
    """A form of some classes after some images."""
    return feed(made(name, n_classes), *images(count, n_classes, seed))


def held(statistics):
    return {name: tensor.clone() for name, tensor in statistics.named_tensors().items()}


def equal(tensors, others):
    """Whether two dictionaries hold the same tensors."""
    if tensors.keys() != others.keys():
        return False
    return same_tensors(tensors, others)


def fresh(count=20, n_classes=4, seed=1):
    """Features of other images."""
    return images(count, n_classes, seed)[0]


def case_of(name):
    """The cases of a registered form."""
    return [case for case in CASES.values() if case.strategy == name]


@pytest.mark.parametrize("name", FORMS)
def test_registered_forms_have_a_case(name):
    assert case_of(name), (
        f"{name} is registered, but no test compares it: add a Case to CASES in "
        "tests/helpers/closed_form_cases.py, with a small instance and a Reference "
        "that computes its scores from all images"
    )
    forms = {type(case.make(1)) for case in case_of(name)}
    assert forms == {STRATEGIES[name].form}


@each_form
def test_growing_changes_no_answer(name):
    features, labels = images(80, 20)
    growing = made(name, 1)
    complete = made(name, 20)
    for start in range(0, 80, 4):
        batch = slice(start, start + 4)
        growing.grow(max(growing.settings["n_classes"], int(labels[batch].max()) + 1))
        growing.update(features[batch], labels[batch])
        complete.update(features[batch], labels[batch])
        scores = growing.scores(fresh(5, 20, seed=start))
        expected = complete.scores(fresh(5, 20, seed=start))
        assert torch.equal(scores, expected[:, : scores.shape[1]])
    growing.grow(20)
    assert growing.settings == complete.settings
    assert equal(held(growing), held(complete))


@each_form
def test_held_bytes_are_of_tensors(name):
    complete = taught(name, 80, 20)
    growing = made(name, 1)
    growing.grow(20)
    feed(growing, *images(80, 20))
    in_tensors = sum(tensor.nbytes for tensor in held(complete).values())
    assert complete.held_bytes == in_tensors
    assert growing.held_bytes >= in_tensors


@each_form
def test_fewer_classes_are_refused(name):
    words = r"n_classes is 19, but there are 20 classes .* forget"
    with pytest.raises(ValueError, match=words):
        made(name, 20).grow(19)


def with_and_without_class_2(name):
    """Two forms: one that learned class 2 and forgot it, one that never saw it."""
    features, labels = images(120, 4)
    forgetful = made(name)
    never = made(name)
    for start in range(0, 120, 7):
        batch = slice(start, start + 7)
        not_class_2 = labels[batch] != 2
        forgetful.update(features[batch], labels[batch])
        never.update(features[batch][not_class_2], labels[batch][not_class_2])
    forgetful.scores(fresh())  # a solution that removing must drop
    forgetful.forget(2)
    return forgetful, never


def assert_alike_but_for_the_shared(name, forgetful, never):
    tensors = held(forgetful)
    expected = held(never)
    for key in tensors.keys() - {"sums"}:
        assert torch.equal(tensors[key], expected[key]) == (key not in SHARED), key
    if CASES[name].random:
        # The other images of a batch may change the last bit of a product.
        torch.testing.assert_close(tensors["sums"], expected["sums"], rtol=1e-6, atol=0)


@each_form
def test_a_forgotten_class_is_not_answered(name):
    forgetful, _ = with_and_without_class_2(name)
    scores = forgetful.scores(fresh())
    assert (scores[:, 2] == NO_DENSITY).all()
    assert (scores[:, [0, 1, 3]] > NO_DENSITY).all()


@each_form
def test_forgetting_leaves_nothing_of_a_class(name):
    forgetful, never = with_and_without_class_2(name)
    assert_alike_but_for_the_shared(name, forgetful, never)
    of_classes = held(forgetful).keys() - {"directions", *SHARED}
    assert not any(held(forgetful)[key][2].any() for key in of_classes)


@each_form
def test_what_forgetting_leaves_is_said(name):
    forgetful, never = with_and_without_class_2(name)
    shares = bool(SHARED & held(forgetful).keys())
    assert shares == bool(forgetful.remains_after_forget)
    same = torch.equal(forgetful.scores(fresh()), never.scores(fresh()))
    assert same or shares


@each_form
def test_a_forgotten_class_is_taught_again(name):
    forgetful, never = with_and_without_class_2(name)
    again = images(40, 4, seed=5)[0] + 20
    forgetful.update(again, torch.full((40,), 2))
    never.update(again, torch.full((40,), 2))
    assert_alike_but_for_the_shared(name, forgetful, never)


@each_form
def test_nothing_is_left_of_all_classes(name):
    statistics = taught(name)
    for label in (2, 3, 0, 1, 2, 1):
        statistics.forget(label)
    assert equal(held(statistics), held(made(name)))
    assert (statistics.scores(fresh()) == NO_DENSITY).all()


@each_form
def test_unknown_classes_are_not_forgotten(name):
    with pytest.raises(ValueError, match=r"no class 4 among 4 .* grow"):
        made(name).forget(4)


def change(name, statistics, step):
    """Take a step that changes statistics."""
    if step == "update":
        statistics.update(*images(30, 4, seed=2))
    elif step == "merge":
        statistics.merge(taught(name, 30, seed=3))
    elif step == "forget":
        statistics.forget(1)
    elif step == "grow":
        statistics.grow(9)
    elif step == "limit":
        statistics.limit(3)
    else:
        statistics.load_state_dict(taught(name, 30, seed=4).state_dict())


def assert_copies_stay(name, step):
    statistics = taught(name)
    before = statistics.scores(fresh())
    copied = copy.deepcopy(statistics)
    pickled = pickle.loads(pickle.dumps(statistics))  # shares nothing
    change(name, statistics, step)
    assert copied.settings == pickled.settings
    assert equal(held(copied), held(pickled))
    assert torch.equal(copied.scores(fresh()), before)
    assert torch.equal(pickled.scores(fresh()), before)


@each_step
@each_form
def test_copies_stay_as_they_are(name, step):
    assert_copies_stay(name, step)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("rda")])
def test_copies_stay_without_a_limit(name):
    assert_copies_stay(name, "limit")


@each_form
def test_a_state_of_more_classes_is_refused(name):
    state = taught(name).state_dict()
    fewer = {**state, "settings": {**state["settings"], "n_classes": 3}}
    with pytest.raises(StateError, match="counts of 4 classes, not of 3"):
        type(made(name)).from_state(fewer)


@pytest.mark.parametrize("settings_of_state", [None, {"odd": 1}, "one more"])
@each_form
def test_what_is_no_state_is_refused(name, settings_of_state):
    state = taught(name).state_dict()
    if settings_of_state is None:
        state = {}
    elif settings_of_state == "one more":
        state["settings"] = {**state["settings"], "odd": 1}
    else:
        state["settings"] = settings_of_state
    form = type(made(name))
    with pytest.raises(StateError, match=f"no state of {form.__name__} .*state_dict"):
        form.from_state(state)


@each_form
def test_a_state_of_other_settings_is_refused(name):
    words = r"n_classes=4 cannot be loaded into those with n_classes=5; build both"
    with pytest.raises(StateError, match=words):
        made(name, 5).load_state_dict(taught(name).state_dict())


@each_form
def test_a_state_without_counts_is_refused(name):
    statistics = taught(name)
    state = statistics.state_dict()
    del state["counts"]
    words = f"but {type(statistics).__name__} needs"
    with pytest.raises(StateError, match=words):
        statistics.load_state_dict(state)


@each_form
def test_a_shorter_tensor_is_refused(name):
    statistics = taught(name)
    before = held(statistics)
    state = statistics.state_dict()
    for key in before:
        with pytest.raises(StateError, match="belong to"):
            statistics.load_state_dict({**state, key: state[key][:-1]})
    assert equal(held(statistics), before)


def damaged(statistics, value):
    """States of which one floating tensor, or the counts, hold an odd value."""
    state = statistics.state_dict()
    for key, tensor in held(statistics).items():
        if tensor.is_floating_point() or (key == "counts" and value == -1):
            odd = tensor.clone()
            odd.view(-1)[0] = value
            yield key, {**state, key: odd}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@each_form
def test_a_state_with_odd_values_is_refused(name, value):
    statistics = taught(name)
    before = held(statistics)
    for key, state in damaged(statistics, value):
        with pytest.raises(StateError, match=f"{key} of the state holds .* not finite"):
            statistics.load_state_dict(state)
    assert equal(held(statistics), before)


NEVER_NEGATIVE = ["counts", "covariance", "gram", "outside", "direction_scales"]


@pytest.mark.parametrize("key", NEVER_NEGATIVE)
@each_form
def test_a_state_with_a_negative_value_is_refused(name, key):
    statistics = taught(name)
    state = statistics.state_dict()
    if key not in state:
        pytest.skip(f"{name} has no {key}")
    negative = state[key].clone()
    negative.view(-1)[0] = -1
    words = f"{key} of the state holds -1, where no images give a negative value"
    with pytest.raises(StateError, match=words):
        statistics.load_state_dict({**state, key: negative})


@each_form
def test_a_state_with_far_means_is_refused(name):
    statistics = taught(name)
    state = statistics.state_dict()
    if "means" not in state:
        pytest.skip(f"{name} has no means")
    far = state["means"].clone()
    far[0, 0] = 1e25
    with pytest.raises(StateError, match=r"means of the state holds 1e\+25, more than"):
        statistics.load_state_dict({**state, "means": far})


def assert_refused(statistics, features, labels, words):
    """A batch is refused, and nothing has changed."""
    before = held(statistics)
    scores = statistics.scores(fresh())
    with pytest.raises(ValueError, match=words):
        statistics.update(features, labels)
    assert equal(held(statistics), before)
    assert torch.equal(statistics.scores(fresh()), scores)


BAD_VALUES = [float("nan"), float("inf"), -1.1e12]
BAD_ROW = r"row 5 of the features holds .*finite and at most 1e\+12"


@pytest.mark.parametrize("value", BAD_VALUES)
@each_form
def test_bad_features_change_nothing(name, value):
    features, labels = images(9, 4, seed=1)
    features[[8, 5], 2] = value
    assert_refused(taught(name), features, labels, BAD_ROW)


@pytest.mark.parametrize("value", BAD_VALUES)
@each_form
def test_bad_features_are_not_answered(name, value):
    features = fresh(9)
    features[[8, 5], 2] = value
    with pytest.raises(ValueError, match=BAD_ROW):
        taught(name).scores(features)


@pytest.mark.parametrize("length", [1, 5, 7])
@each_form
def test_other_lengths_are_not_answered(name, length):
    with pytest.raises(ValueError, match=rf"\(3, {length}\); give \(B, 6\)"):
        taught(name).scores(torch.ones(3, length))


@pytest.mark.parametrize(
    ("rows", "columns", "n_labels"), [(9, 5, 9), (9, 6, 8), (None, 6, 1)]
)
@each_form
def test_odd_shapes_change_nothing(name, rows, columns, n_labels):
    shape = (columns,) if rows is None else (rows, columns)
    labels = torch.zeros(n_labels, dtype=torch.int64)
    words = r"shape .* give \(B, 6\) and \(B,\)"
    assert_refused(taught(name), torch.ones(shape), labels, words)


@pytest.mark.parametrize("label", [4, -1])
@each_form
def test_unknown_labels_change_nothing(name, label):
    features, labels = images(9, 4, seed=1)
    labels[5] = label
    words = f"no class {label} among 4 .* grow"
    assert_refused(taught(name), features, labels, words)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
@each_form
def test_labels_are_whole_numbers(name, dtype):
    features, labels = images(9, 4, seed=1)
    words = f"labels are {dtype}; give whole numbers"
    assert_refused(taught(name), features, labels.to(dtype), words)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
@each_form
def test_labels_of_any_whole_number_type(name, dtype):
    features, labels = images(60, 4)
    short = feed(made(name), features, labels.to(dtype))
    assert equal(held(short), held(taught(name)))


@each_form
def test_an_empty_batch_changes_nothing(name):
    statistics = taught(name)
    before = held(statistics)
    statistics.update(torch.ones(0, D), torch.zeros(0, dtype=torch.int64))
    assert equal(held(statistics), before)


@contextmanager
def float64_by_default():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


SURROUNDINGS = {
    "float64 by default": float64_by_default,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference": torch.inference_mode,
    "no grad": torch.no_grad,
}


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
@each_form
def test_surroundings_change_nothing(name, surroundings):
    features, labels = images(60, 4)
    to_merge = images(30, 4, seed=3)
    points = fresh()
    with SURROUNDINGS[surroundings]():
        statistics = feed(made(name), features, labels)
        statistics.merge(feed(made(name), *to_merge))
        scores = statistics.scores(points)
    usual = taught(name)
    usual.merge(feed(made(name), *to_merge))
    assert equal(held(statistics), held(usual))
    assert torch.equal(scores, usual.scores(points))


@each_form
def test_learning_goes_on_after_inference_mode(name):
    with torch.inference_mode():
        statistics = taught(name)
        statistics.scores(fresh())
    points = fresh().requires_grad_()
    statistics.scores(points).amax(1).sum().backward()
    statistics.update(*images(30, 4, seed=2))
    statistics.forget(1)
    assert statistics.image_counts[1] == 0
    assert points.grad.isfinite().all()


@each_form
def test_statistics_keep_no_graph(name):
    features, labels = images(60, 4)
    statistics = feed(made(name), features.requires_grad_(), labels)
    assert not any(tensor.requires_grad for tensor in statistics.tensors())
    assert equal(held(statistics), held(taught(name)))


@each_form
def test_merging_with_itself_renumbered(name):
    statistics = taught(name)
    expected = taught(name)
    numbers = {0: 1, 1: 2, 2: 3, 3: 0}
    statistics.merge(statistics, numbers)
    expected.merge(taught(name), numbers)
    assert equal(held(statistics), held(expected))


@each_form
def test_far_images_are_answered_by_a_class_with_images(name):
    statistics = made(name)
    statistics.update(1e-3 * images(2, 1)[0], torch.tensor([1, 3]))
    scores = statistics.scores(torch.full((3, D), 1e12))
    assert scores.isfinite().all()
    assert (scores[:, [1, 3]] >= LOWEST_SCORE).all()
    assert set(scores.float().argmax(1).tolist()) <= {1, 3}


@each_form
def test_features_of_zeros_are_answered(name):
    statistics = made(name, 3)
    statistics.update(torch.zeros(2, D), torch.tensor([1, 1]))
    assert statistics.scores(torch.zeros(1, D)).argmax(1).tolist() == [1]


SCALES = [1e-3, 1e6]
UNSCALED = [name for name in CASES if not CASES[name].scaled]


@pytest.mark.parametrize("scale", SCALES)
@each_form
def test_statistics_of_any_scale_stay_finite(name, scale):
    features, labels = images(200, 4)
    statistics = feed(made(name), scale * features, labels)
    assert all(tensor.isfinite().all() for tensor in statistics.tensors())
    assert statistics.scores(scale * fresh(100)).isfinite().all()


@pytest.mark.parametrize(
    ("name", "scale"), [*product(UNSCALED, SCALES), ("slda", 1e6), ("plda", 1e6)]
)
def test_features_of_any_scale_are_learned(name, scale):
    features, labels = images(200, 4)
    points, truth = images(100, 4, seed=1)
    scores = feed(made(name), scale * features, labels).scores(scale * points)
    assert (scores.argmax(1) == truth).double().mean() > 0.9


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", UNSCALED)
def test_the_scale_of_features_does_not_matter(name, scale):
    features, labels = images(200, 4)
    points = fresh(100)
    scores = feed(made(name), scale * features, labels).scores(scale * points)
    expected = feed(made(name), features, labels).scores(points)
    if CASES[name].densities:  # densities of another unit
        scores = scores - scores[:, :1]
        expected = expected - expected[:, :1]
    size = float(expected.abs().max())
    torch.testing.assert_close(scores, expected, rtol=1e-2, atol=1e-3 * size)


class Twins:
    """Statistics and the reference that learn the same."""

    def __init__(self, name):
        self.case = CASES[name]
        self.statistics = self.case.make(0)
        self.reference = self.case.reference()

    def take(self, step):
        """Take a step, by its name and arguments."""
        name, *arguments = step
        getattr(self, name)(*arguments)

    def teach(self, seed, count):
        features, labels = images(count, 5, seed)
        present = self.statistics.settings["n_classes"]
        self.statistics.grow(max(present, int(labels.max()) + 1))
        self.statistics.update(features, labels)
        self.reference.update(features, labels)

    def grow(self, number):
        self.statistics.grow(self.statistics.settings["n_classes"] + number)

    def forget(self, label):
        if label < self.statistics.settings["n_classes"]:
            self.statistics.forget(label)
            self.reference.forget(label)

    def merge(self, seed, count, order):
        features, labels = images(count, 5, seed)
        statistics = self.case.make(5)
        reference = self.case.reference()
        statistics.update(features, labels)
        reference.update(features, labels)
        numbers = dict(enumerate(order))
        self.statistics.merge(statistics, numbers)
        self.reference.merge(reference, numbers)

    def reload(self):
        form = type(self.statistics)
        self.statistics = form.from_state(self.statistics.state_dict())

    @property
    def counts(self):
        """Images of the classes that have some, by the statistics."""
        counts = enumerate(self.statistics.image_counts.tolist())
        return {label: count for label, count in counts if count}

    def comparable(self):
        """Whether scores are defined.

        Densities of equal means are equal, and the space of the discriminant is
        arbitrary there.
        """
        if not self.case.densities:
            return bool(self.counts)
        if len(self.counts) < 2:
            return False
        return bool(torch.pdist(self.reference.means()).min() > 1e-3)


def assert_same_means(twins):
    means = getattr(twins.statistics, "classes", twins.statistics).means
    for label in twins.counts:
        torch.testing.assert_close(
            means[label].double(), twins.reference.mean(label), rtol=1e-5, atol=1e-5
        )


def assert_same_directions(twins):
    directions = twins.statistics.directions
    for label, count in twins.counts.items():
        rows = directions.of_class(label)
        scatter = twins.reference.scatter(label)
        assert len(rows) <= min(D, count - 1)
        size = float(scatter.abs().max())
        torch.testing.assert_close(
            rows.T @ rows, scatter, rtol=0, atol=5e-3 * size + 1e-6
        )
        assert directions.outside[label] <= 1e-6 * scatter.trace() + 1e-9


def assert_same_scores(twins):
    scores = twins.statistics.scores(fresh(n_classes=5))
    assert scores.shape == (20, twins.statistics.settings["n_classes"])
    empty = torch.ones(scores.shape[1], dtype=torch.bool)
    empty[list(twins.counts)] = False
    assert (scores[:, empty] == NO_DENSITY).all()
    assert (scores[:, ~empty] > NO_DENSITY).all()
    if not twins.comparable():
        return
    scores = scores[:, ~empty]
    expected = twins.reference.scores(fresh(n_classes=5))
    if twins.case.densities:  # up to a constant
        scores = scores - scores[:, :1]
        expected = expected - expected[:, :1]
    error = (scores - expected).abs().max() / expected.abs().max()
    assert error < twins.case.tolerance


@each_form
@settings(max_examples=40)
@given(steps=st.lists(STEPS, min_size=1, max_size=8))
# The means of three classes lie on one line.
@example(steps=[("teach", 0, 5), ("merge", 0, 5, [0, 1, 2, 4, 5, 3, 6])])
def test_any_steps_are_those_of_the_reference(name, steps):
    twins = Twins(name)
    for step in steps:
        twins.take(step)
    assert twins.counts == {
        label: len(group) for label, group in twins.reference.images.items()
    }
    if not twins.case.random:
        assert_same_means(twins)
    if twins.case.half:
        assert_same_directions(twins)
    assert_same_scores(twins)


def exported(classifier, features):
    """An ONNX session of a classifier."""
    runtime = pytest.importorskip("onnxruntime")
    stream = io.BytesIO()
    with warnings.catch_warnings(), more_operators():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            classifier,
            (features,),
            stream,
            dynamo=False,
            opset_version=OPSET,
            input_names=["features"],
            dynamic_axes={"features": {0: "batch"}},
        )
    return runtime.InferenceSession(
        stream.getvalue(), providers=["CPUExecutionProvider"]
    )


@each_form
def test_the_classifier_is_exported(name):
    features, labels = images(40, 4)
    statistics = made(name)
    with_images = labels != 2  # class 2 has no column
    statistics.update(features[with_images], labels[with_images])
    points = fresh(7)
    expected = statistics.scores(points)[:, [0, 1, 3]]
    classifier = statistics.classifier()
    assert torch.equal(classifier(points), expected)
    session = exported(classifier, points[:2])
    (answers,) = session.run(None, {"features": points.numpy()})
    atol = 1e-5 * float(expected.abs().max())
    np.testing.assert_allclose(answers, expected.numpy(), rtol=0, atol=atol)


OTHERS = [
    (
        StreamingLDA(4, D, shrinkage=0.5),
        r"shrinkage=0\.5 .* shrinkage=0\.0001",
    ),
    (StreamingLDA(4, D + 1), "length=7 .* length=6"),
    (ClassMeans(4, D), "ClassMeans .* StreamingLDA; give the same kind"),
]


@pytest.mark.parametrize(("other", "facts"), OTHERS)
def test_others_are_not_merged(other, facts):
    statistics = feed(StreamingLDA(4, D), *images(60, 4))
    before = held(statistics)
    with pytest.raises(StateError, match=facts):
        statistics.merge(other)
    assert equal(held(statistics), before)


@pytest.mark.parametrize("other", [method for method, _ in OTHERS])
def test_states_of_others_are_not_loaded(other):
    statistics = feed(StreamingLDA(4, D), *images(60, 4))
    before = held(statistics)
    words = r"cannot be loaded into those with .*; build both with the same settings"
    with pytest.raises(StateError, match=words):
        statistics.load_state_dict(other.state_dict())
    assert equal(held(statistics), before)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({0: 1, 1: 2}, "no number for class 2"),
        ({0: 1, 1: -2, 2: 0}, "holds -2; .* from 0"),
    ],
)
def test_odd_numbers_are_not_merged(numbers, words):
    statistics = feed(StreamingLDA(4, D), *images(60, 4))
    before = held(statistics)
    with pytest.raises(ValueError, match=words):
        statistics.merge(feed(StreamingLDA(9, D), *images(60, 3)), numbers)
    assert equal(held(statistics), before)
