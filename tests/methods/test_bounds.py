"""Guessing, training on all classes in one cycle, and Stable SGD against a plain loop."""

from collections import OrderedDict
from dataclasses import astuple

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from torch import nn
from torch.nn.functional import cross_entropy
from watched import Answers, built

from crumb_avalanche.methods.bounds import one_cycle
from crumb_avalanche.models.split_model import SplitModel


def test_seen_classes_come_equally_often_and_the_seed_decides(make_model, make_stream):
    stream = make_stream(
        classes_per_experience=3, classes=("fish", "house", "key", "leaf")
    )
    given = []
    for seed, times in ((0, 50), (0, 2), (1, 2)):
        answers, model = Answers(), make_model(codebook=False)
        strategy = built("chance", model, 0, seed=seed, plugins=[answers])
        strategy.train(stream.train_stream[0])
        for _ in range(times):
            strategy.eval(stream.test_stream[:1])
        given.append(answers.given)
    many, again, other = given
    seen, deviation = (
        stream.original_classes_in_exp[0],
        (len(many) * 2 / 9) ** 0.5,
    )  # binomial with p = 1/3
    assert set(many) == set(seen) and len(many) >= 1500
    assert all(abs(many.count(label) - len(many) / 3) < 5 * deviation for label in seen)
    assert again == many[: len(again)] != other


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 10, 37])
def test_the_cycle_is_torchs(steps):
    optimizer = torch.optim.SGD(
        [torch.zeros(1, requires_grad=True)], lr=1.0, momentum=0.5
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.02, total_steps=steps
    )
    for step in range(steps):
        group = optimizer.param_groups[0]
        assert astuple(one_cycle(step, steps, 0.02)) == pytest.approx(
            (group["lr"], group["momentum"]), rel=1e-9
        )
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
    strategy = built(
        "offline", make_model(codebook=False), 0, settings, method={"peak_rate": peak}
    )
    strategy.plugins.append(Rates())
    strategy.train(make_stream(4, protocol="offline").train_stream[0], shuffle=True)
    expected = (
        [one_cycle(step, 15, peak).rate for step in range(15)] if peak else [0.003] * 15
    )  # 40 images, three times
    assert rates == pytest.approx(expected)


def build(model, **method):
    return built(
        "stable_sgd", model, 0, dict(weight_decay=1e-3, batch_size=7), method=method
    )


@pytest.mark.filterwarnings("ignore:the plastic layers have no dropout")
def test_two_experiences_equal_a_plain_loop(make_model, make_stream):
    model, plain, seen = make_model(codebook=False), make_model(codebook=False), []
    strategy = build(model, gamma=0.5, momentum=0.6, batch_size=8)
    for number, experience in enumerate(make_stream().train_stream):
        strategy.train(experience)
        seen += sorted(set(experience.dataset.targets))
        optimizer = torch.optim.SGD(
            plain.plastic_layers.parameters(),
            lr=0.02 * 0.5**number,
            momentum=0.6,
            weight_decay=1e-3,
        )
        images = torch.stack([item[0] for item in experience.dataset]).float()
        labels = torch.tensor(
            [seen.index(label) for label in experience.dataset.targets]
        )
        for start in [*range(0, 20, 8)] * (
            2 if number == 0 else 1
        ):  # in order, in batches of its own size
            batch = (
                images[start : start + 8] / 255 - plain.pixel_mean
            ) / plain.pixel_std
            logits = plain.plastic_layers(plain.feature_extractor(batch))[:, seen]
            optimizer.zero_grad()
            cross_entropy(logits, labels[start : start + 8]).backward()
            optimizer.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(
            value, plain.state_dict()[name], rtol=1e-5, atol=1e-6, msg=name
        )


def test_dropout_layers_get_the_probability_and_none_is_put_in(make_model, recwarn):
    layers = OrderedDict(
        first=nn.Dropout(),
        flat=nn.Flatten(),
        second=nn.Dropout(0.3),
        head=nn.Linear(36, 4),
    )
    model = SplitModel(
        nn.Conv2d(3, 4, 3, stride=6), nn.Sequential(layers), "head", image_size=16
    )
    build(model, dropout=0.25)
    build(make_model(codebook=False), dropout=0.0)
    assert [model.plastic_layers.first.p, model.plastic_layers.second.p] == [0.25, 0.25]
    assert not [warning for warning in recwarn if "dropout" in str(warning.message)]
    model = make_model(codebook=False)
    with pytest.warns(
        UserWarning,
        match=r"the plastic layers have no dropout, so dropout=0\.1 of stable_sgd",
    ):
        build(model)
    assert not [module for module in model.modules() if isinstance(module, nn.Dropout)]
