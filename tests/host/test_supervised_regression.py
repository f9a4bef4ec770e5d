"""Facts of Avalanche's ``tests/training/test_supervised_regression.py``: strategies train as a plain loop does."""

import pytest
import torch
from host_benchmarks import N_CLASSES, Trace, host_benchmark, host_model, quiet, sgd
from host_strategies import our_strategy
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")
KINDS = ("nc", "class_incremental", "from_datasets")


def plain_loop(kind, masked=False, cumulative=False, quantized=True):
    """Losses and weights of a loop in plain PyTorch, two epochs, in the order of the stream."""
    model, losses, seen, rows = host_model(), [], [], []
    model.quantized_training = quantized
    optimizer = sgd(model)
    for experience in host_benchmark(kind).train_stream:
        rows = [*rows, *experience.dataset] if cumulative else [*experience.dataset]
        seen += {int(row[1]) for row in rows} - set(seen)
        unseen = torch.tensor([label for label in range(N_CLASSES) if label not in seen]).long()
        model.train()
        for _ in range(2):
            for start in range(0, len(rows), 8):
                part = rows[start : start + 8]
                logits = model(torch.stack([row[0] for row in part]))
                if masked:
                    logits = logits.index_fill(1, unseen, -1e4)
                loss = nn.functional.cross_entropy(logits, torch.tensor([int(row[1]) for row in part]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(float(loss.detach()))
    return losses, model.state_dict()


def assert_same(strategy, trace, expected):
    losses, state = expected
    assert trace.losses == pytest.approx(losses, rel=1e-5)
    for name, value in strategy.model.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("quantized", [True, False])
def test_fine_tuning_is_a_loop_over_the_classes_seen(kind, quantized):
    """test_reproduce_old_base_strategy, for ``StreamStrategy``."""
    model, trace = host_model(), Trace()
    model.quantized_training = quantized
    strategy = our_strategy("StreamStrategy", model, plugins=[trace])
    strategy.train(host_benchmark(kind).train_stream)
    assert_same(strategy, trace, plain_loop(kind, masked=True, quantized=quantized))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_first_experience_of_crumb_is_fine_tuning(seed):
    """test_reproduce_old_base_strategy: without memories there is nothing to replay; storing changes nothing."""
    ends = []
    for name in ("StreamStrategy", "CRUMBStrategy", "Naive+CRUMBPlugin"):
        trace = Trace()
        strategy = our_strategy(name, host_model(seed), plugins=[trace], evaluator=quiet())
        strategy.train(host_benchmark("nc").train_stream[0], shuffle=False)
        ends.append(trace.losses)
    assert ends[0] == ends[1] == ends[2]
