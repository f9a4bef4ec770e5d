"""Streaming LDA and class means by hand, against Avalanche's, and far from the origin."""

import torch
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import StreamingLDA as HostLDA
from closed_form_cases import feed
from torch import nn

from crumb_avalanche.methods.closed_form import NO_DENSITY
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.slda import StreamingLDA

D, CLASSES = 6, 4


def toy(count=300, seed=0, spread=1.0):
    """Features around a centre for each class, shared and correlated spread, classes in blocks as in a stream."""
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(CLASSES, D, generator=torch.Generator().manual_seed(9))
    labels = torch.arange(CLASSES).repeat_interleave(count // CLASSES)
    mixing = torch.randn(D, D, generator=torch.Generator().manual_seed(8))
    noise = torch.randn(len(labels), D, generator=generator) @ mixing
    return centres[labels] + spread * noise + 5, labels


def within_class(features, labels):
    """Class means and the covariance within classes, by their definition in float64."""
    features = features.double()
    means = torch.stack([features[labels == c].mean(0) for c in range(CLASSES)])
    rest = features - means[labels]
    return means, rest.T @ rest / len(labels)


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


def test_nearest_mean_by_hand():
    ncm = ClassMeans(3, 2)
    ncm.update(torch.tensor([[1.0, 0], [3, 0]]), torch.tensor([0, 0]))
    ncm.update(torch.tensor([[0.0, 5], [5, 0]]), torch.tensor([1, 0]))
    assert ncm.means.tolist() == [[3, 0], [0, 5], [0, 0]] and ncm.counts.tolist() == [3, 1, 0]
    scores = ncm.scores(torch.tensor([[1.0, 1], [100, 1], [0, 0.1]]))
    assert torch.allclose(scores[0, :2], torch.full((2,), 0.5**0.5, dtype=torch.float64))
    # By the angle, not by the distance.
    assert scores.argmax(1).tolist()[1:] == [0, 1] and (scores[:, 2] == NO_DENSITY).all()


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
