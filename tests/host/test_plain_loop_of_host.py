"""Facts of Avalanche's ``test_supervised_regression.py``.

Strategies train as a plain loop in PyTorch does; docstrings name the host's test.
"""

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from host_benchmarks import (
    N_CLASSES,
    host_benchmark,
    host_model,
    host_strategy,
    our_strategy,
    sgd,
)
from torch.nn.functional import cross_entropy

pytestmark = pytest.mark.filterwarnings("ignore")
KINDS = ("nc", "class_incremental", "from_datasets")
BATCH = 8


class Losses(SupervisedPlugin):
    """The loss of every step."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def before_update(self, strategy, **kwargs):
        self.losses.append(strategy.loss.item())


def batches(experience, earlier=()):
    """Images and labels of two epochs, in the order of the stream."""
    rows = [*earlier, *experience.dataset]
    for _ in range(2):
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            images = torch.stack([row[0] for row in batch])
            yield images, torch.tensor([int(row[1]) for row in batch])


def plain_loop(kind, masked=False, cumulative=False, quantized=True):
    """Losses of a plain loop, and its model."""
    model, losses, seen, earlier = host_model(), [], set(), []
    model.quantized_training = quantized
    optimizer = sgd(model)
    model.train()
    for experience in host_benchmark(kind).train_stream:
        seen |= set(experience.dataset.targets)
        unseen = torch.tensor(sorted(set(range(N_CLASSES)) - seen)).long()
        for images, labels in batches(experience, earlier):
            logits = model(images)
            if masked:
                logits = logits.index_fill(1, unseen, -1e4)
            loss = cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if cumulative:
            earlier += [*experience.dataset]
    return losses, model


def assert_same(strategy, watch, expected):
    losses, model = expected
    assert watch.losses == pytest.approx(losses, rel=1e-5)
    weights = model.state_dict()
    for name, value in strategy.model.state_dict().items():
        torch.testing.assert_close(value, weights[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("quantized", [True, False])
def test_fine_tuning_is_a_plain_loop(kind, quantized):
    """test_reproduce_old_base_strategy, over the classes seen."""
    model, watch = host_model(), Losses()
    model.quantized_training = quantized
    strategy = our_strategy("StreamStrategy", model, plugins=[watch])
    for experience in host_benchmark(kind).train_stream:
        strategy.train(experience)
    assert_same(strategy, watch, plain_loop(kind, masked=True, quantized=quantized))


@pytest.mark.parametrize("kind", KINDS)
def test_naive_is_a_plain_loop(kind):
    """test_reproduce_old_base_strategy."""
    watch = Losses()
    strategy = host_strategy("test_naive", plugins=[watch])
    for experience in host_benchmark(kind).train_stream:
        strategy.train(experience, shuffle=False)
    assert_same(strategy, watch, plain_loop(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_cumulative_is_a_plain_loop(kind):
    """test_reproduce_old_cumulative_strategy."""
    watch = Losses()
    strategy = host_strategy("test_cumulative", plugins=[watch])
    for experience in host_benchmark(kind).train_stream:
        strategy.train(experience, shuffle=False)
    assert_same(strategy, watch, plain_loop(kind, cumulative=True))


@pytest.mark.parametrize("name", ["CRUMBStrategy", "Naive+CRUMBPlugin"])
def test_the_first_experience_is_fine_tuning(name):
    """Without memories there is nothing to replay; storing changes nothing."""
    crumb_losses, losses = Losses(), Losses()
    crumb = our_strategy(name, plugins=[crumb_losses])
    plain = our_strategy("StreamStrategy", plugins=[losses])
    first = host_benchmark("nc").train_stream[0]
    crumb.train(first, shuffle=False)
    plain.train(first, shuffle=False)
    assert crumb_losses.losses == losses.losses
    weights = plain.model.state_dict()
    for key, value in crumb.model.state_dict().items():
        assert torch.equal(value, weights[key])
