"""EWC, SI, MAS and LwF against numbers by hand and against a plain PyTorch loop."""

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset
from watched import built, make

from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.methods.replay import distillation_loss
from crumb_avalanche.models.map_store import MapStore
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.training.feature_cache import FeatureCache
from crumb_avalanche.training.stream_strategy import StreamStrategy

EWC, SI, MAS, LWF = (STRATEGIES[name] for name in ("ewc", "si", "mas", "lwf"))
RATE, MOMENTUM, BATCH, EPOCHS = 0.05, 0.9, 3, 3


class Brightness(nn.Module):
    """F of one number: the first pixel's red."""

    def forward(self, images):
        return images[:, :1, :1, :1]


def tiny_model(weights):
    """Logits ``weight * x`` of a number ``x``, for one weight a class."""
    plastic = nn.Sequential(nn.Flatten(), nn.Linear(1, len(weights), bias=False))
    model = SplitModel(Brightness(), plastic, "1", image_size=2)
    with torch.no_grad():
        plastic[1].weight.copy_(torch.tensor(weights).view(-1, 1))
    return model


def stream_of(*pairs):
    data = []
    for numbers, labels in pairs:
        images = torch.tensor(numbers).view(-1, 1, 1, 1).expand(-1, 3, 2, 2).clone()
        attributes = [DataAttribute(labels, "targets")]
        data.append(
            AvalancheDataset(
                [TensorDataset(images, torch.tensor(labels))],
                data_attributes=attributes,
            )
        )
    return benchmark_from_datasets(train=data).train_stream


def learn(model, stream, *plugins, rate=RATE, **arguments):
    optimizer = torch.optim.SGD(
        [w for w in model.parameters() if w.requires_grad], lr=rate, momentum=MOMENTUM
    )
    settings = (
        dict(
            train_mb_size=BATCH,
            first_epochs=EPOCHS,
            evaluator=EvaluationPlugin(loggers=[]),
        )
        | arguments
    )
    strategy = StreamStrategy(
        model=model, optimizer=optimizer, plugins=plugins, **settings
    )
    for experience in stream:
        strategy.train(experience)
    return strategy


def plugin_of(entry, **settings):
    return built(entry.name, tiny_model(START), 0, method=settings).plugins[
        2
    ]  # after the mask and the epochs


def weights_of(model):
    return torch.cat(
        [weight.detach().flatten() for weight in model.plastic_layers.parameters()]
    )


# Against a loop.

STREAM = (
    ([1.0, -0.5, 2.0, 0.3, -1.2, 0.8, 1.5], [0, 1, 0, 1, 1, 0, 0]),
    ([0.6, -2.0, 1.1, 0.9] * 6, [2, 3, 3, 2] * 6),
    ([0.5, 1.4, -0.7, -1.0] * 6, [5, 4, 4, 5] * 6),
)
START = [0.4, -0.2, 0.9, 0.1, -0.5, 0.3]


def fisher(weights, numbers, labels, seen):
    total = torch.zeros_like(weights)
    for x, label in zip(numbers, labels):
        loss = cross_entropy(
            (weights * x)[seen].unsqueeze(0), torch.tensor([seen.index(label)])
        )
        total += torch.autograd.grad(loss, weights)[0] ** 2
    return total / len(numbers)


def sensitivity(weights, numbers, labels, seen):
    total = torch.zeros_like(weights)
    for x in numbers:
        total += torch.autograd.grad((weights * x)[seen].square().sum(), weights)[
            0
        ].abs()
    return total / len(numbers)


def plain_loop(strength, measure=None, damping=None, summed=False):
    """EWC (one penalty an experience), MAS (``summed``) or SI (``damping``) without any of the library's code."""
    weights = torch.tensor(START, requires_grad=True)
    speed, total, seen, penalties = torch.zeros(6), torch.zeros(6), [], []
    for number, (numbers, labels) in enumerate(STREAM):
        seen = sorted(set(seen) | set(labels))
        path, start = torch.zeros(6), weights.detach().clone()
        for _ in range(EPOCHS if number == 0 else 1):
            for first in range(0, len(numbers), BATCH):
                x, y = (
                    torch.tensor(numbers[first : first + BATCH]),
                    labels[first : first + BATCH],
                )
                logits = x.unsqueeze(1) * weights.unsqueeze(0)
                loss = cross_entropy(
                    logits[:, seen], torch.tensor([seen.index(label) for label in y])
                )
                gradient = torch.autograd.grad(loss, weights)[0]
                with torch.no_grad():
                    pull = sum(
                        2 * strength * held * (weights - old) for held, old in penalties
                    )
                    speed = MOMENTUM * speed + gradient + pull
                    weights -= RATE * speed
                    path += gradient * RATE * speed
        now = weights.detach().clone()
        if damping is not None:
            total += path / ((now - start) ** 2 + damping)
            penalties = [(total.clamp(min=0), now)]
        elif summed:
            total = total + measure(weights, numbers, labels, seen)
            penalties = [(total, now)]
        else:
            penalties.append((measure(weights, numbers, labels, seen), now))
    return weights.detach()


CASES = {
    "ewc": (EWC, dict(weight=1.5), dict(strength=1.5, measure=fisher)),
    "mas": (
        MAS,
        dict(weight=0.1),
        dict(strength=0.1, measure=sensitivity, summed=True),
    ),
    "si": (SI, dict(weight=0.7, damping=0.05), dict(strength=0.7, damping=0.05)),
}


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_a_plain_loop(case):
    entry, settings, loop = CASES[case]
    model = tiny_model(START)
    plugin = plugin_of(entry, **settings)
    strategy = learn(model, stream_of(*STREAM), plugin)
    assert strategy.clock.train_iterations == EPOCHS * 3 + 8 + 8
    torch.testing.assert_close(
        weights_of(model), plain_loop(**loop), rtol=1e-5, atol=1e-6
    )
    # It matters: without a penalty they are others.
    assert (weights_of(model) - plain_loop(0.0, fisher)).abs().max() > 0.01


def test_importances_end_where_a_step_would_pass_the_old_weight():
    strategy = learn(tiny_model(START), (), rate=0.05)
    limit = plugin_of(MAS, weight=4.0).limit(strategy)
    shift = torch.tensor(3.0, requires_grad=True)
    slope = torch.autograd.grad(4.0 * limit * shift**2, shift)[0]
    assert (shift - 0.05 * slope).item() == pytest.approx(0)
    assert plugin_of(MAS, weight=0.0).limit(strategy) == float("inf")
    for entry in (EWC, SI, MAS):
        plugin = plugin_of(entry, weight=500.0)
        learn(tiny_model(START), stream_of(*STREAM), plugin)
        kept = torch.stack(
            [importance["plastic_layers.1.weight"] for importance, _ in plugin.held]
        )
        assert len(kept) == (3 if entry is EWC else 1) and kept.min() >= 0
        found = kept.sum(0)  # the penalties of EWC add up
        assert found.max().item() == pytest.approx(0.5 / (500 * RATE))


@pytest.mark.parametrize("name", ["ewc", "mas"])
def test_importances_are_measured_image_by_image_in_evaluation_mode(
    name, tmp_path, make_model, make_stream
):
    model, stream, passes = make_model(codebook=False), make_stream(), []
    cache = FeatureCache(MapStore(tmp_path, model, 200, "toy", progress=False))
    plugin = plugin_of(STRATEGIES[name])
    strategy = make(StreamStrategy, model, cache, plugin)
    images = len(stream.train_stream[0].dataset)
    model.register_forward_pre_hook(
        lambda module, given: passes.append((module.training, len(given[0])))
    )
    strategy.train(stream.train_stream[0])
    assert passes[-images:] == [(False, 1)] * images and cache.store.filled == images
    assert model.training and not model.feature_extractor.training
    (importance, _), *_ = plugin.held
    learned = {
        name: weight
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }
    assert importance.keys() == learned.keys() and all(
        weight.grad is None for weight in learned.values()
    )
    unseen = [
        label
        for label in range(4)
        if label not in stream.train_stream[0].classes_in_this_experience
    ]
    bias = importance["plastic_layers.head.bias"]
    assert bias[unseen].max() == 0 < bias.max()


def test_distillation_loss_is_a_loop_over_images_and_old_classes():
    generator = torch.Generator().manual_seed(1)
    new, old = (3 * torch.randn(5, 6, generator=generator) for _ in range(2))
    classes, temperature, wanted = [4, 0, 3], 2.0, 0.0
    for i in range(5):
        p = [float(torch.exp(new[i, c] / temperature)) for c in classes]
        q = [float(torch.exp(old[i, c] / temperature)) for c in classes]
        for a, b in zip(p, q):
            wanted += (
                b
                / sum(q)
                * float(torch.log(torch.tensor((b / sum(q)) / (a / sum(p)))))
                / 5
            )
    assert distillation_loss(new, old, classes, temperature).item() == pytest.approx(
        wanted, rel=1e-5
    )
    assert distillation_loss(old, old, classes, temperature).item() == 0


def test_lwf_adds_alpha_times_the_distillation_from_the_old_layers():
    plugin, found, expected = plugin_of(LWF, alpha=0.5, temperature=3.0), [], []

    class Watch(SupervisedPlugin):
        def __init__(self, after):
            super().__init__()
            self.after = after

        @torch.no_grad()
        def before_backward(self, strategy, **kwargs):
            found.append(strategy.loss.item() * (1 if self.after else -1))
            if self.after:
                old = strategy.mb_x[:, :1, 0, 0] * plugin.old_network.state.get(
                    "1.weight", torch.zeros(6)
                ).view(1, -1)
                loss = (
                    distillation_loss(strategy.mb_output, old, plugin.old_classes, 3.0)
                    if plugin.old_classes
                    else 0
                )
                expected.append(0.5 * float(loss))

    strategy = learn(
        tiny_model(START), stream_of(*STREAM)[:2], Watch(False), plugin, Watch(True)
    )
    added = [before + after for before, after in zip(found[::2], found[1::2])]
    assert added[:9] == [0.0] * 9, "nothing to distil in the first experience"
    assert added == pytest.approx(expected, abs=1e-6) and max(added) > 0
    assert plugin.old_classes == [0, 1, 2, 3] == sorted(strategy.seen_classes.seen)
