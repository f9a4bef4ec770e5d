"""Evaluation with the experience known."""

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from torch.utils.data import TensorDataset
from watched import built, outputs_of

from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.training.plugins import TaskIncrementalPlugin

# Red and green; then two other reds, which call old and new answers into question.
COLOURS = torch.tensor([[200, 60, 60], [60, 200, 60], [220, 30, 120], [200, 140, 20]], dtype=torch.float)


def coloured(classes, count, seed, wrong=0.0):
    """``count`` noisy pictures of each class's colour, in turn; some labels are the other class's."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes).repeat(count)
    noise = 20 * torch.randn(len(labels), 3, 16, 16, generator=generator)
    tint = 30 * torch.randn(len(labels), 3, 1, 1, generator=generator)
    images = (COLOURS[labels][:, :, None, None] + noise + tint).clamp(0, 255).to(torch.uint8)
    swapped = torch.rand(len(labels), generator=generator) < wrong
    labels = torch.where(swapped, sum(classes) - labels, labels)
    return AvalancheDataset(
        [TensorDataset(images, labels)], data_attributes=[DataAttribute(labels.tolist(), "targets")]
    )


@pytest.fixture(scope="module")
def stream():
    """Wrong labels keep the loss of the first experience above zero: where it is zero, nothing is important."""
    train = [coloured([0, 1], 40, 0, wrong=0.1), coloured([2, 3], 80, 1, wrong=0.1)]
    return benchmark_from_datasets(train=train, test=[coloured([0, 1], 20, 2), coloured([2, 3], 20, 3)])


def learner(make_model, stream, *plugins):
    torch.manual_seed(0)
    model = calibrate(make_model(codebook=False), stream.train_stream[0].dataset)
    return built("finetune", model, 0, {"learning_rate": 0.01}, plugins=plugins)


def test_answers_are_classes_of_the_experience_under_test(make_model, stream):
    hinted, plain = learner(make_model, stream, TaskIncrementalPlugin()), learner(make_model, stream)
    for one in (hinted, plain):
        for experience in stream.train_stream:
            one.train(experience)
    # Training is untouched.
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(hinted.model.parameters(), plain.model.parameters()))
    for number, classes in enumerate([[0, 1], [2, 3]]):
        others = [label for label in range(4) if label not in classes]
        ours, theirs = (outputs_of(one, stream.test_stream[number : number + 1])[0] for one in (hinted, plain))
        assert torch.equal(ours[:, classes], theirs[:, classes]) and ours[:, others].max() < -1e4
        assert number or (theirs.argmax(1) > 1).any()  # without the hint there are others
