"""Guessing, training in one cycle, and Stable SGD against a plain loop."""

from collections import OrderedDict
from dataclasses import astuple

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from small_models import stacked_images
from torch import nn
from torch.nn.functional import cross_entropy
from watched import Answers, built, same_weights

from crumb_avalanche.methods.bounds import one_cycle
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.training.ledger import replay_memories


def guesses(make_model, make_stream, seed, evaluations):
    """Answers after an experience of three of four classes, and these classes."""
    classes = ("fish", "house", "key", "leaf")
    stream = make_stream(classes_per_experience=3, classes=classes)
    answers = Answers()
    model = make_model(codebook=False)
    strategy = built("chance", model, 0, seed=seed, plugins=[answers])
    strategy.train(stream.train_stream[0])
    for _ in range(evaluations):
        strategy.eval(stream.test_stream[:1])
    return answers.given, set(stream.original_classes_in_exp[0])


def test_seen_classes_are_guessed_equally_often(make_model, make_stream):
    answers_given, seen = guesses(make_model, make_stream, seed=0, evaluations=50)
    deviation = (len(answers_given) * 2 / 9) ** 0.5  # binomial with p = 1/3
    assert set(answers_given) == seen
    assert len(answers_given) >= 1500
    counts = torch.tensor(list(map(answers_given.count, seen)))
    assert ((counts - len(answers_given) / 3).abs() < 5 * deviation).all()


def test_the_seed_decides_the_guesses(make_model, make_stream):
    first, _ = guesses(make_model, make_stream, seed=0, evaluations=2)
    again, _ = guesses(make_model, make_stream, seed=0, evaluations=2)
    with_other_seed, _ = guesses(make_model, make_stream, seed=1, evaluations=2)
    assert first == again != with_other_seed


class TorchCycle:
    """Rates and momenta of torch's schedule."""

    def __init__(self, steps):
        weight = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.02, total_steps=steps
        )
        self.values = []
        for step in range(steps):
            group = optimizer.param_groups[0]
            self.values.append((group["lr"], group["momentum"]))
            optimizer.step()
            if step < steps - 1:
                schedule.step()


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 10, 37])
def test_the_cycle_is_torchs(steps):
    ours = [astuple(one_cycle(step, steps, 0.02)) for step in range(steps)]
    expected = torch.tensor(TorchCycle(steps).values, dtype=torch.float64)
    cycle = torch.tensor(ours, dtype=torch.float64)
    torch.testing.assert_close(cycle, expected, rtol=1e-9, atol=0)


class Rates(SupervisedPlugin):
    """The learning rate of every step."""

    def __init__(self):
        super().__init__()
        self.rates = []

    def before_update(self, strategy, **kwargs):
        self.rates.append(strategy.optimizer.param_groups[0]["lr"])


def rates_of_bound(make_model, make_stream, peak):
    """Rates of forty images in batches of eight, three times."""
    settings = dict(learning_rate=0.003, first_epochs=3, batch_size=8)
    method = {"peak_rate": peak}
    model = make_model(codebook=False)
    strategy = built("offline", model, 0, settings, method=method)
    rates = Rates()
    strategy.plugins.append(rates)
    stream = make_stream(4, protocol="offline")
    strategy.train(stream.train_stream[0], shuffle=True)
    return rates.rates


def test_the_bound_trains_in_one_cycle(make_model, make_stream):
    expected = [one_cycle(step, 15, 0.02).rate for step in range(15)]
    assert rates_of_bound(make_model, make_stream, 0.02) == pytest.approx(expected)


def test_without_a_peak_the_rate_stays(make_model, make_stream):
    rates = rates_of_bound(make_model, make_stream, 0.0)
    assert rates == pytest.approx([0.003] * 15)


def test_the_bound_keeps_every_image(make_model, make_stream):
    strategy = built("offline", make_model(codebook=False), 0)
    stream = make_stream(4, protocol="offline")
    strategy.train(stream.train_stream[0], shuffle=True)
    (sizes,) = replay_memories(strategy)
    images = stream.train_stream[0].dataset
    assert sizes.memories == len(images)
    assert sizes.memory_bytes == len(images) * images[0][0].nbytes


def test_the_bound_refuses_a_second_experience(make_model, make_stream):
    # Given the bound after the first of two experiences
    strategy = built("offline", make_model(codebook=False), 0)
    first, second = make_stream().train_stream
    strategy.train(first, shuffle=True)
    # When the second comes, then it says what to do, and has learned nothing
    words = "this is a second experience: make the stream with protocol='offline'"
    with pytest.raises(ValueError, match=words):
        strategy.train(second, shuffle=True)
    assert sorted(strategy.seen_classes.seen) == [0, 1]


def build(model, **method):
    settings = dict(weight_decay=1e-3, batch_size=7)
    return built("stable_sgd", model, 0, settings, method=method)


class PlainLoop:
    """Stable SGD without any of the library's training code."""

    def __init__(self, model):
        self.model = model
        self.seen = []

    def train(self, number, experience):
        """Train on an experience, in order, in batches of eight."""
        self.seen += sorted(set(experience.dataset.targets))
        optimizer = torch.optim.SGD(
            self.model.plastic_layers.parameters(),
            lr=0.02 * 0.5**number,
            momentum=0.6,
            weight_decay=1e-3,
        )
        images = stacked_images(experience.dataset).float()
        targets = experience.dataset.targets
        labels = torch.tensor(list(map(self.seen.index, targets)))
        epochs = 2 if number == 0 else 1
        for start in [*range(0, 20, 8)] * epochs:
            batch = slice(start, start + 8)
            loss = cross_entropy(self.logits(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def logits(self, images):
        model = self.model
        pixels = (images / 255 - model.pixel_mean) / model.pixel_std
        maps = model.feature_extractor(pixels)
        return model.plastic_layers(maps)[:, self.seen]


@pytest.mark.filterwarnings("ignore:the plastic layers have no dropout")
def test_stable_sgd_is_a_plain_loop(make_model, make_stream):
    model = make_model(codebook=False)
    loop = PlainLoop(make_model(codebook=False))
    strategy = build(model, gamma=0.5, momentum=0.6, batch_size=8)
    for number, experience in enumerate(make_stream().train_stream):
        strategy.train(experience)
        loop.train(number, experience)
    same_weights(model, loop.model, rtol=1e-5, atol=1e-6)


def model_with_dropout():
    layers = OrderedDict(
        first=nn.Dropout(),
        flat=nn.Flatten(),
        second=nn.Dropout(0.3),
        head=nn.Linear(36, 4),
    )
    extractor = nn.Conv2d(3, 4, 3, stride=6)
    return SplitModel(extractor, nn.Sequential(layers), "head", image_size=16)


def test_dropout_layers_get_the_probability(recwarn):
    model = model_with_dropout()
    build(model, dropout=0.25)
    assert model.plastic_layers.first.p == model.plastic_layers.second.p == 0.25
    assert not [warning for warning in recwarn if "dropout" in str(warning.message)]


def test_no_dropout_is_no_warning(make_model, recwarn):
    build(make_model(codebook=False), dropout=0.0)
    assert not [warning for warning in recwarn if "dropout" in str(warning.message)]


def test_missing_dropout_is_warned_of(make_model):
    words = r"the plastic layers have no dropout, so dropout=0\.1 of stable_sgd"
    with pytest.warns(UserWarning, match=words):
        build(make_model(codebook=False))


@pytest.mark.filterwarnings("ignore:the plastic layers have no dropout")
def test_no_dropout_is_put_in(make_model):
    model = make_model(codebook=False)
    build(model)
    assert not [module for module in model.modules() if isinstance(module, nn.Dropout)]
