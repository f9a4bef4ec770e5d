"""Guessing: every class that was seen equally often, by the seed. Training on all classes: one cycle."""

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from watched import Answers, built

from crumb_avalanche.methods.bounds import one_cycle


def test_seen_classes_come_equally_often_and_the_seed_decides(make_model, make_stream):
    stream = make_stream(classes_per_experience=3, classes=("fish", "house", "key", "leaf"))
    given = []
    for seed, times in ((0, 50), (0, 2), (1, 2)):
        answers, model = Answers(), make_model(codebook=False)
        strategy = built("chance", model, 0, seed=seed, plugins=[answers])
        strategy.train(stream.train_stream[0])
        for _ in range(times):
            strategy.eval(stream.test_stream[:1])
        given.append(answers.given)
    many, again, other = given
    seen, deviation = stream.original_classes_in_exp[0], (len(many) * 2 / 9) ** 0.5  # binomial with p = 1/3
    assert set(many) == set(seen) and len(many) >= 1500
    assert all(abs(many.count(label) - len(many) / 3) < 5 * deviation for label in seen)
    assert again == many[: len(again)] != other


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 10, 37])
def test_the_cycle_is_torchs(steps):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0, momentum=0.5)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=steps)
    for step in range(steps):
        group = optimizer.param_groups[0]
        assert one_cycle(step, steps, 0.02) == pytest.approx((group["lr"], group["momentum"]), rel=1e-9)
        optimizer.step()
        if step < steps - 1:
            schedule.step()


@pytest.mark.parametrize("peak", [0.02, 0.0])
def test_the_bound_trains_in_one_cycle_over_all_epochs(make_model, make_stream, peak):
    rates = []

    class Rates(SupervisedPlugin):
        def before_update(self, strategy, **kwargs):
            rates.append(strategy.optimizer.param_groups[0]["lr"])

    settings = dict(learning_rate=0.003, first_epochs=3, batch_size=8)
    strategy = built("offline", make_model(codebook=False), 0, settings, method={"peak_rate": peak})
    strategy.plugins.append(Rates())
    strategy.train(make_stream(4, protocol="offline").train_stream[0], shuffle=True)
    expected = [one_cycle(step, 15, peak)[0] for step in range(15)] if peak else [0.003] * 15  # 40 images, three times
    assert rates == pytest.approx(expected)
