"""Guessing: every class that was seen equally often, by the seed."""

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from watched import Answers

from crumb_avalanche.baselines.method_settings import LearningSettings
from crumb_avalanche.baselines.registry import build_strategy

pytestmark = pytest.mark.filterwarnings("ignore")


def guesses(make_model, make_stream, seed, times=50):
    answers, stream = Answers(), make_stream(classes_per_experience=3, classes=("fish", "house", "key", "leaf"))
    model = make_model(codebook=False)
    strategy = build_strategy(
        *("chance", model, LearningSettings(first_epochs=1), 0, seed),
        plugins=[answers],
        evaluator=EvaluationPlugin(loggers=[]),
    )
    before = [weight.clone() for weight in model.parameters()]
    strategy.train(stream.train_stream[0])
    assert all(torch.equal(now, then) for now, then in zip(model.parameters(), before)), "nothing is learned"
    for _ in range(times):
        strategy.eval(stream.test_stream[:1])
    return answers.given, stream.original_classes_in_exp[0]


def test_seen_classes_come_equally_often_and_the_seed_decides(make_model, make_stream):
    given, seen = guesses(make_model, make_stream, 0)
    expected = len(given) / 3
    deviation = (len(given) * 2 / 9) ** 0.5  # of a binomial count with p = 1/3
    assert set(given) == set(seen) and len(given) >= 1500
    assert all(abs(given.count(label) - expected) < 5 * deviation for label in seen)
    assert guesses(make_model, make_stream, 0, 2)[0] == given[: 2 * len(given) // 50]
    assert guesses(make_model, make_stream, 1, 2)[0] != given[: 2 * len(given) // 50]
