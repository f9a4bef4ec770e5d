"""Classifiers in closed form against the formulas over all images at once, and against Avalanche's streaming LDA."""

import io
import pickle
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import StreamingLDA as HostLDA
from closed_form_cases import MAKE, images
from crumb_avalanche.learner.run_learner import probabilities
from torch import nn

from crumb_avalanche.learner.export import OPSET, more_operators
from crumb_avalanche.methods.closed_form import NO_DENSITY
from crumb_avalanche.methods.features import feature_length, pooled_features
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.ranpac import RandomProjection
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.methods.slda import StreamingLDA
from crumb_avalanche.models.backbones import split_backbone

D, CLASSES = 6, 4


def toy(count=300, seed=0, spread=1.0):
    """Features around a centre for each class, shared and correlated spread, classes in blocks as in a stream."""
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(CLASSES, D, generator=torch.Generator().manual_seed(9))
    labels = torch.arange(CLASSES).repeat_interleave(count // CLASSES)
    mixing = torch.randn(D, D, generator=torch.Generator().manual_seed(8))
    noise = torch.randn(len(labels), D, generator=generator) @ mixing
    return centres[labels] + spread * noise + 5, labels


def feed(statistics, features, labels, size=7):
    for start in range(0, len(labels), size):
        statistics.update(features[start : start + size], labels[start : start + size])
    return statistics


def within_class(features, labels):
    """Class means and the covariance within classes, by their definition in float64."""
    features = features.double()
    means = torch.stack([features[labels == c].mean(0) for c in range(CLASSES)])
    rest = features - means[labels]
    return means, rest.T @ rest / len(labels)


@pytest.mark.parametrize("size", [1, 7, 300])
@pytest.mark.parametrize("shuffled", [False, True])
def test_running_means_and_covariance_are_those_of_all_images_at_once(size, shuffled):
    features, labels = toy()
    if shuffled:
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
        features, labels = features[order], labels[order]
    lda = feed(StreamingLDA(CLASSES, D), features, labels, size)
    means, covariance = within_class(features, labels)
    assert torch.allclose(lda.classes.means.double(), means, rtol=1e-5, atol=1e-5)
    assert torch.allclose(lda.covariance.double(), covariance, rtol=1e-5, atol=1e-5)
    assert lda.classes.counts.tolist() == [75] * 4
    assert {tensor.dtype for tensor in lda.tensors()} == {torch.float32, torch.int32}


def test_lda_scores_are_those_of_the_formula():
    features, labels = toy()
    lda = feed(StreamingLDA(CLASSES, D, shrinkage=0.01), features, labels)
    means, covariance = within_class(features, labels)
    inverse = torch.linalg.inv(0.99 * covariance + 0.01 * torch.eye(D, dtype=torch.float64))
    fresh, truth = toy(seed=1)
    expected = fresh.double() @ inverse @ means.T - ((means @ inverse) * means).sum(1) / 2
    assert torch.allclose(lda.scores(fresh), expected, rtol=1e-3, atol=1e-3)
    assert (lda.scores(fresh).argmax(1) == truth).double().mean() > 0.9


def test_the_first_image_of_a_class_adds_nothing_to_the_covariance():
    lda = StreamingLDA(CLASSES, D)
    lda.update(torch.full((1, D), 100.0), torch.tensor([2]))
    assert not lda.covariance.any()
    lda.update(torch.full((1, D), 102.0), torch.tensor([2]))
    assert torch.allclose(lda.covariance, torch.ones(D, D))  # deviations of one to both sides


def test_answers_of_avalanches_streaming_lda():
    features, labels = toy(count=800)
    host = HostLDA(
        slda_model=nn.Identity(), criterion=nn.CrossEntropyLoss(), input_size=D, num_classes=CLASSES,
        evaluator=EvaluationPlugin(loggers=[]),
    )  # fmt: skip
    for feature, label in zip(features, labels):
        host.fit(feature[None], label[None])
    ours = feed(StreamingLDA(CLASSES, D), features, labels)
    fresh, truth = toy(seed=1)
    same = ours.scores(fresh).argmax(1) == host.predict(fresh).argmax(1)
    assert same.double().mean() > 0.98
    assert (ours.scores(fresh).argmax(1) == truth).double().mean() > 0.9


def test_lda_is_solved_anew_after_learning_only():
    features, labels = toy()
    lda = feed(StreamingLDA(CLASSES, D), features, labels)
    before, solution = lda.scores(features), lda._solution
    assert lda.scores(features) is not before and lda._solution is solution
    lda.update(features[:5] + 10, labels[:5])
    assert not torch.allclose(lda.scores(features), before)


def test_lda_with_fewer_images_than_features():
    features = torch.randn(8, 64) * 20
    labels = torch.arange(8) % 4
    lda = feed(StreamingLDA(4, 64), features, labels)
    assert lda.scores(features).isfinite().all()
    assert (lda.scores(features).argmax(1) == labels).all()


def test_nearest_mean_by_hand():
    ncm = ClassMeans(3, 2)
    ncm.update(torch.tensor([[1.0, 0], [3, 0]]), torch.tensor([0, 0]))
    ncm.update(torch.tensor([[0.0, 5], [5, 0]]), torch.tensor([1, 0]))
    assert ncm.means.tolist() == [[3, 0], [0, 5], [0, 0]] and ncm.counts.tolist() == [3, 1, 0]
    scores = ncm.scores(torch.tensor([[1.0, 1], [100, 1], [0, 0.1]]))
    assert torch.allclose(scores[0, :2], torch.full((2,), 0.5**0.5, dtype=torch.float64))
    # By the angle, not by the distance.
    assert scores.argmax(1).tolist()[1:] == [0, 1] and (scores[:, 2] == NO_DENSITY).all()


def test_ridge_read_out_is_that_of_all_images_at_once():
    features, labels = toy()
    ridge = feed(RandomProjection(CLASSES, D, projection=20, ridge=0.01, seed=3), features, labels)
    hidden = ridge.project(features)
    assert hidden.shape == (300, 20) and (hidden >= 0).all() and 0.2 < (hidden == 0).double().mean() < 0.8
    gram = hidden.T @ hidden
    gram += 0.01 * gram.diagonal().mean() * torch.eye(20, dtype=torch.float64)
    targets = torch.eye(CLASSES, dtype=torch.float64)[labels]
    expected = hidden @ torch.linalg.inv(gram) @ hidden.T @ targets
    assert torch.allclose(ridge.scores(features), expected, rtol=1e-3, atol=1e-4)
    fresh, truth = toy(seed=1)
    assert (ridge.scores(fresh).argmax(1) == truth).double().mean() > 0.9


def test_the_projection_comes_from_its_seed_alone():
    features, labels = toy()
    one, other, third = (
        feed(RandomProjection(CLASSES, D, projection=20, seed=seed), features, labels) for seed in (3, 3, 4)
    )
    assert torch.equal(one.gram, other.gram) and not torch.equal(one.gram, third.gram)
    again = pickle.loads(pickle.dumps(one))
    assert again._weights is None and torch.equal(again.scores(features), one.scores(features))


def test_pooled_features_are_the_input_of_the_head(make_model, pixels):
    model = make_model(codebook=False).train()
    layers = model.plastic_layers
    by_hand = layers.conv(model.features(pixels)).relu().mean((2, 3))
    assert torch.allclose(pooled_features(model, pixels), by_hand, atol=1e-5)
    assert model.training and feature_length(model) == 8
    # A convolutional head behind a dropout, with a pool after it.
    squeezenet = split_backbone("squeezenet1_0", None, n_classes=3, image_size=64, codebook=None).train()
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    by_hand = squeezenet.plastic_layers.features(squeezenet.features(images)).mean((2, 3))
    assert feature_length(squeezenet) == 512
    assert torch.allclose(pooled_features(squeezenet, images), by_hand, atol=1e-5)


def test_random_states_are_left_alone():
    torch.manual_seed(0)
    np.random.seed(0)
    states = torch.get_rng_state(), np.random.get_state()[1].copy()
    features, labels = toy()
    for statistics in (ClassMeans(CLASSES, D), StreamingLDA(CLASSES, D), RandomProjection(CLASSES, D, projection=8)):
        feed(statistics, features, labels).scores(features)
    assert torch.equal(states[0], torch.get_rng_state()) and (states[1] == np.random.get_state()[1]).all()


def test_one_image_at_a_time_far_from_the_origin_and_many_of_them():
    """float32 sums of products would have lost the covariance: the mean is 1,000 times the deviations."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.randint(CLASSES, (3000,), generator=generator)
    features = 1000 + torch.randn(3000, 16, generator=generator) @ torch.randn(16, 16, generator=generator)
    lda = feed(StreamingLDA(CLASSES, 16), features, labels, size=1)
    means, covariance = within_class(features, labels)
    assert (lda.classes.means.double() - means).abs().max() < 1e-5 * 1000
    assert (lda.covariance.double() - covariance).abs().max() < 1e-4 * covariance.abs().max()
    # Of the largest entry, not of each: small ones are differences of products, whose rounding differs between CPUs.
    many = feed(StreamingLDA(CLASSES, 16), features, labels, 300).covariance.double()
    assert (many - covariance).abs().max() < 2e-6 * covariance.abs().max()


@pytest.mark.parametrize("size", [1, 21])
def test_ridge_against_numpy(size):
    """At the scale of SqueezeNet's pooled features, image by image and in batches, solved by numpy in float64."""
    generator = np.random.default_rng(2)
    labels = generator.integers(5, size=600)
    features = (20 * np.abs(generator.normal(size=(600, 32)) + generator.normal(size=(5, 32))[labels])).astype("f")
    ridge = feed(
        RandomProjection(5, 32, seed=7, projection=48), torch.from_numpy(features), torch.from_numpy(labels), size
    )
    drawn = torch.randn(32, 48, generator=torch.Generator().manual_seed(7), dtype=torch.float64).numpy()
    hidden = np.maximum(features.astype(np.float64) @ drawn, 0)
    gram = hidden.T @ hidden
    weights = np.linalg.solve(gram + 1e-3 * np.trace(gram) / 48 * np.eye(48), hidden.T @ np.eye(5)[labels])
    expected = hidden @ weights
    ours = ridge.scores(torch.from_numpy(features)).numpy()
    assert np.abs(ours - expected).max() < 1e-3 * np.abs(expected).max()
    assert (ours.argmax(1) == expected.argmax(1)).mean() > 0.995


@pytest.fixture(
    params=[ClassMeans, StreamingLDA, lambda classes, length: RandomProjection(classes, length, projection=20)]
)
def learned_and_fresh(request):
    """Statistics that have learned the toy classes and were asked once, and others that have learned nothing."""
    statistics = feed(request.param(CLASSES, D), *toy())
    statistics.scores(toy()[0])
    return statistics, request.param(CLASSES, D)


def test_what_is_told_is_all_that_has_to_be_kept(learned_and_fresh):
    features, labels = toy()
    statistics, fresh = learned_and_fresh
    expected = statistics.scores(features)
    for kept, other in zip(statistics.tensors(), fresh.tensors()):
        assert kept.dtype in (torch.float32, torch.int32)
        other.copy_(kept)
    assert torch.equal(fresh.scores(features), expected)
    for one in (statistics, fresh):  # and all that is needed to go on
        one.update(features[:9] + 1, labels[:9])
    assert torch.equal(fresh.scores(features), statistics.scores(features))


def test_the_state_holds_the_statistics_and_nothing_else(learned_and_fresh):
    statistics, fresh = learned_and_fresh
    features, labels = toy()
    expected = statistics.scores(features)
    state = statistics.state_dict()
    tensors = [value for value in state.values() if isinstance(value, torch.Tensor)]
    assert sum(tensor.nbytes for tensor in tensors) == sum(tensor.nbytes for tensor in statistics.tensors())
    feed(fresh, *toy(seed=1)).scores(features)  # a solution that loading must drop
    fresh.load_state_dict(state)
    assert torch.equal(fresh.scores(features), expected)
    fresh.update(features[:9] + 1, labels[:9])
    assert torch.equal(statistics.scores(features), expected), "the two share no tensor"


@pytest.mark.parametrize("name", MAKE)
def test_the_solution_is_a_module_that_is_exported(name):
    runtime = pytest.importorskip("onnxruntime")
    statistics, fresh, stream = MAKE[name](4), images(7, 4, seed=1)[0], io.BytesIO()
    features, labels = images(40, 4)
    statistics.update(features[labels != 2], labels[labels != 2])  # class 2 stays without images and has no column
    solution, expected = statistics.solution(), statistics.scores(fresh)[:, [0, 1, 3]]
    assert torch.equal(solution(fresh), expected)
    with warnings.catch_warnings(), more_operators():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            solution, (fresh[:2],), stream, dynamo=False, opset_version=OPSET, input_names=["features"],
            dynamic_axes={"features": {0: "batch"}},
        )  # fmt: skip
    session = runtime.InferenceSession(stream.getvalue(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"features": fresh.numpy()})
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-5 * expected.abs().max())


@pytest.mark.parametrize("name", ["ranpac", "ranpac_gcv", "acil", "foal"])
def test_forms_of_one_base_have_its_temperature(name):
    strategy = SimpleNamespace(statistics=STRATEGIES[name].form(2, 3, projection=4))
    outputs = torch.tensor([[0.06, 0.0]])
    torch.testing.assert_close(probabilities(strategy, outputs), (outputs.double() / 0.06).softmax(1))
