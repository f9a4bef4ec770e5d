"""Evaluation with the experience known, and what methods made for it gain there."""

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from torch.utils.data import TensorDataset

from crumb_avalanche.methods.registry import STRATEGIES, LearningSettings, Recipe
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.training.plugins import TaskIncrementalPlugin

GEM, EWC, SI, MAS, LWF, FINETUNE = (STRATEGIES[name] for name in ("gem", "ewc", "si", "mas", "lwf", "finetune"))

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


def learner(entry, make_model, stream, *plugins, **method):
    torch.manual_seed(0)
    model = calibrate(make_model(codebook=False), stream.train_stream[0].dataset)
    evaluator = EvaluationPlugin(accuracy_metrics(experience=True), loss_metrics(experience=True), loggers=[])
    settings = LearningSettings(learning_rate=0.01, batch_size=5, first_epochs=2)
    host = dict(plugins=plugins, evaluator=evaluator)
    return entry.build(Recipe(model, settings, entry.method_settings(method), 12, 4, 0, "cpu", host))


class Answers(SupervisedPlugin):
    """Logits of evaluation."""

    def __init__(self):
        super().__init__()
        self.logits = []

    def after_eval_iteration(self, strategy, **kwargs):
        self.logits.append(strategy.mb_output)


def test_answers_are_classes_of_the_experience_under_test(make_model, stream):
    answers = Answers()
    strategy = learner(FINETUNE, make_model, stream, TaskIncrementalPlugin(), answers)
    free = Answers()
    plain = learner(FINETUNE, make_model, stream, free)
    for one in (strategy, plain):
        for experience in stream.train_stream:
            one.train(experience)
        one.eval(stream.test_stream)
    # Training is untouched.
    pairs = zip(strategy.model.parameters(), plain.model.parameters())
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    for number, classes in enumerate([[0, 1], [2, 3]]):
        others = [label for label in range(4) if label not in classes]
        ours, theirs = answers.logits[number], free.logits[number]
        assert torch.equal(ours[:, classes], theirs[:, classes]) and ours[:, others].max() < -1e4
    assert (free.logits[0].argmax(1) > 1).any()  # without the hint there are others


def test_an_unseen_class_of_the_experience_costs_a_constant_and_is_not_answered(make_model, stream):
    answers, strategy = Answers(), learner(FINETUNE, make_model, stream, TaskIncrementalPlugin())
    strategy.plugins.insert(2, answers)
    strategy.train(stream.train_stream[1])
    with torch.no_grad():
        strategy.model.plastic_layers.head.bias[2:] += 100  # of the other experience
    strategy.seen_classes.seen.append(0)
    strategy.seen_classes._unseen = None
    strategy.eval(stream.test_stream[:1])
    (logits,) = answers.logits
    assert set(logits.argmax(1).tolist()) == {0}
    torch.testing.assert_close(logits[:, 0] - logits[:, 1], torch.full((len(logits),), 13.8155), rtol=0, atol=0.001)
