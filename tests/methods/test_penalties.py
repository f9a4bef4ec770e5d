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

from crumb_avalanche.methods.replay import distillation_loss
from crumb_avalanche.models.layers import trainable
from crumb_avalanche.models.map_store import MapStore
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.training.feature_cache import FeatureCache
from crumb_avalanche.training.replay_step import memory_step
from crumb_avalanche.training.stream_strategy import StreamStrategy

RATE = 0.05
MOMENTUM = 0.9
BATCH = 3
EPOCHS = 3  # on the first experience


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


def dataset_of(numbers, labels):
    images = torch.tensor(numbers).view(-1, 1, 1, 1).expand(-1, 3, 2, 2).clone()
    data = TensorDataset(images, torch.tensor(labels))
    targets = DataAttribute(labels, "targets")
    return AvalancheDataset([data], data_attributes=[targets])


def stream_of(*pairs):
    """Experiences of numbers and labels."""
    datasets = [dataset_of(numbers, labels) for numbers, labels in pairs]
    return benchmark_from_datasets(train=datasets).train_stream


def learn(model, stream, *plugins, rate=RATE, **arguments):
    weights = list(trainable(model).values())
    optimizer = torch.optim.SGD(weights, lr=rate, momentum=MOMENTUM)
    settings = dict(
        train_mb_size=BATCH,
        first_epochs=EPOCHS,
        evaluator=EvaluationPlugin(loggers=[]),
    )
    strategy = StreamStrategy(
        model=model, optimizer=optimizer, plugins=plugins, **settings | arguments
    )
    for experience in stream:
        strategy.train(experience)
    return strategy


def plugin_of(name, **settings):
    strategy = built(name, tiny_model(START), 0, method=settings)
    return strategy.plugins[2]  # after the mask and the epochs


def weights_of(model):
    weights = model.plastic_layers.parameters()
    return torch.cat([weight.detach().flatten() for weight in weights])


# Against a loop

STREAM = (
    ([1.0, -0.5, 2.0, 0.3, -1.2, 0.8, 1.5], [0, 1, 0, 1, 1, 0, 0]),
    ([0.6, -2.0, 1.1, 0.9] * 6, [2, 3, 3, 2] * 6),
    ([0.5, 1.4, -0.7, -1.0] * 6, [5, 4, 4, 5] * 6),
)
START = [0.4, -0.2, 0.9, 0.1, -0.5, 0.3]
WEIGHT = "plastic_layers.1.weight"


def loss_of(weights, numbers, labels, seen):
    """Cross-entropy over the classes seen."""
    logits = torch.tensor(numbers).unsqueeze(1) * weights
    columns = torch.tensor(list(map(seen.index, labels)))
    return cross_entropy(logits[:, seen], columns)


def gradient_of(loss, weights):
    return torch.autograd.grad(loss, weights)[0]


def fisher(weights, numbers, labels, seen):
    total = torch.zeros_like(weights)
    for number, label in zip(numbers, labels):
        loss = loss_of(weights, [number], [label], seen)
        total += gradient_of(loss, weights) ** 2
    return total / len(numbers)


def sensitivity(weights, numbers, labels, seen):
    total = torch.zeros_like(weights)
    for number in numbers:
        squared_length = (weights * number)[seen].square().sum()
        total += gradient_of(squared_length, weights).abs()
    return total / len(numbers)


class PlainLoop:
    """SGD with penalties, without any of the library's code.

    Attributes:
        penalties: pairs of importances and old weights.
    """

    def __init__(self, strength):
        self.strength = strength
        self.weights = torch.tensor(START, requires_grad=True)
        self.speed = torch.zeros(6)
        self.seen = []
        self.penalties = []

    def pull(self):
        total = torch.zeros(6)
        for importance, old in self.penalties:
            total = total + 2 * self.strength * importance * (self.weights - old)
        return total

    def step(self, numbers, labels):
        loss = loss_of(self.weights, numbers, labels, self.seen)
        gradient = gradient_of(loss, self.weights)
        with torch.no_grad():
            self.speed = MOMENTUM * self.speed + gradient + self.pull()
            self.weights -= RATE * self.speed
            self.follow(gradient, RATE * self.speed)

    def follow(self, gradient, step):
        """See a step and the gradient of the loss alone."""

    def begin(self):
        """Begin an experience."""

    def end(self, numbers, labels):
        """Measure importances after an experience."""

    def run(self):
        for number, (numbers, labels) in enumerate(STREAM):
            self.seen = sorted({*self.seen, *labels})
            self.begin()
            epochs = EPOCHS if number == 0 else 1
            for first in [*range(0, len(numbers), BATCH)] * epochs:
                batch = slice(first, first + BATCH)
                self.step(numbers[batch], labels[batch])
            self.end(numbers, labels)
        return self.weights.detach()


class EWCLoop(PlainLoop):
    """One penalty for each experience."""

    def end(self, numbers, labels):
        importance = fisher(self.weights, numbers, labels, self.seen)
        self.penalties.append((importance, self.weights.detach().clone()))


class MASLoop(PlainLoop):
    """One penalty of summed importances."""

    total = torch.zeros(6)

    def end(self, numbers, labels):
        latest = sensitivity(self.weights, numbers, labels, self.seen)
        self.total = self.total + latest
        self.penalties = [(self.total, self.weights.detach().clone())]


class SILoop(PlainLoop):
    """One penalty of path integrals."""

    def __init__(self, strength, damping):
        super().__init__(strength)
        self.damping = damping
        self.total = torch.zeros(6)

    def begin(self):
        self.path = torch.zeros(6)
        self.start = self.weights.detach().clone()

    def follow(self, gradient, step):
        self.path += gradient * step

    def end(self, numbers, labels):
        now = self.weights.detach().clone()
        self.total += self.path / ((now - self.start) ** 2 + self.damping)
        self.penalties = [(self.total.clamp(min=0), now)]


CASES = {
    "ewc": (dict(weight=1.5), lambda: EWCLoop(1.5)),
    "mas": (dict(weight=0.1), lambda: MASLoop(0.1)),
    "si": (dict(weight=0.7, damping=0.05), lambda: SILoop(0.7, damping=0.05)),
}
each_penalty = pytest.mark.parametrize("name", CASES)


def learned_weights(name):
    settings, _ = CASES[name]
    model = tiny_model(START)
    learn(model, stream_of(*STREAM), plugin_of(name, **settings))
    return weights_of(model)


@each_penalty
def test_weights_are_those_of_a_plain_loop(name):
    _, loop = CASES[name]
    expected = loop().run()
    torch.testing.assert_close(learned_weights(name), expected, rtol=1e-5, atol=1e-6)


@each_penalty
def test_a_penalty_matters(name):
    without = PlainLoop(0.0).run()
    assert (learned_weights(name) - without).abs().max() > 0.01


def test_a_step_at_the_limit_returns():
    """Importances end where a step would pass the old weight."""
    strategy = learn(tiny_model(START), (), rate=0.05)
    limit = plugin_of("mas", weight=4.0).limit(strategy)
    shift = torch.tensor(3.0, requires_grad=True)
    slope = gradient_of(4.0 * limit * shift**2, shift)
    assert (shift - 0.05 * slope).item() == pytest.approx(0)


def test_without_a_weight_there_is_no_limit():
    strategy = learn(tiny_model(START), (), rate=0.05)
    assert plugin_of("mas", weight=0.0).limit(strategy) == float("inf")


@pytest.mark.parametrize(("name", "penalties"), [("ewc", 3), ("si", 1), ("mas", 1)])
def test_importances_end_at_the_limit(name, penalties):
    plugin = plugin_of(name, weight=500.0)
    learn(tiny_model(START), stream_of(*STREAM), plugin)
    importances = torch.stack([anchor.importance[WEIGHT] for anchor in plugin.anchors])
    assert len(importances) == penalties
    assert importances.min() >= 0
    largest = importances.sum(0).max().item()  # the penalties of EWC add up
    assert largest == pytest.approx(0.5 / (500 * RATE))


class StepsOfItsOwn(SupervisedPlugin):
    """Takes a step on memories that changes no weight after each new batch."""

    def after_update(self, strategy, **kwargs):
        if not getattr(strategy, "replaying", False):
            memory_step(strategy, 0 * strategy.model(strategy.mb_x).sum(), **kwargs)


def test_si_follows_new_batches_alone():
    """The gradient of a step on memories is not that of the loss."""
    plugin = plugin_of("si", weight=0.7, damping=0.05)
    model = tiny_model(START)
    weights = list(model.plastic_layers.parameters())
    optimizer = torch.optim.SGD(weights, lr=RATE)
    watched = plugin_of("si", weight=0.7, damping=0.05)
    watched_model = tiny_model(START)
    same_optimizer = torch.optim.SGD(
        list(watched_model.plastic_layers.parameters()), lr=RATE
    )
    experience = stream_of(STREAM[0])[0]
    make_plain(model, optimizer, plugin).train(experience)
    make_plain(watched_model, same_optimizer, watched, StepsOfItsOwn()).train(
        experience
    )
    torch.testing.assert_close(plugin.total[WEIGHT], watched.total[WEIGHT])


def make_plain(model, optimizer, *plugins):
    return StreamStrategy(
        model=model,
        optimizer=optimizer,
        train_mb_size=BATCH,
        plugins=plugins,
        evaluator=EvaluationPlugin(loggers=[]),
    )


class Measured:
    """A strategy of the small model that measured importances, and its passes."""

    def __init__(self, name, tmp_path, make_model, make_stream):
        self.model = make_model(codebook=False)
        self.experience = make_stream().train_stream[0]
        self.passes = []
        store = MapStore(tmp_path, self.model, 200, "toy", progress=False)
        self.cache = FeatureCache(store)
        self.plugin = plugin_of(name)
        strategy = make(StreamStrategy, self.model, self.cache, self.plugin)
        self.model.register_forward_pre_hook(self.note)
        strategy.train(self.experience)

    def note(self, module, arguments):
        self.passes.append((module.training, len(arguments[0])))


@pytest.fixture(params=["ewc", "mas"])
def measured(request, tmp_path, make_model, make_stream):
    return Measured(request.param, tmp_path, make_model, make_stream)


def test_importances_are_measured_image_by_image(measured):
    """In evaluation mode."""
    images = len(measured.experience.dataset)
    assert measured.passes[-images:] == [(False, 1)] * images
    assert measured.cache.store.filled == images


def test_measuring_leaves_the_model_as_it_was(measured):
    model = measured.model
    assert model.training
    assert not model.feature_extractor.training
    assert all(weight.grad is None for weight in model.parameters())


def test_importances_are_of_what_learns(measured):
    importance = measured.plugin.anchors[0].importance
    weights = measured.model.named_parameters()
    assert importance.keys() == {name for name, w in weights if w.requires_grad}


def test_unseen_classes_have_no_importance(measured):
    bias = measured.plugin.anchors[0].importance["plastic_layers.head.bias"]
    seen = set(measured.experience.classes_in_this_experience)
    unseen = [label for label in range(4) if label not in seen]
    assert bias[unseen].max() == 0 < bias.max()


def damped(model):
    """The model with a head that damps the gradient below it, and centres nothing."""
    model.centre_head()
    return model


def learned_once(name, model, experience, rate):
    """The plugin after a batch of the whole experience."""
    plugin = plugin_of(name)
    settings = dict(rate=rate, train_mb_size=100, first_epochs=1)
    learn(model, [experience], plugin, **settings)
    return plugin


@pytest.mark.parametrize("name", ["ewc", "mas"])
def test_a_head_that_damps_lessens_no_importance(name, make_model, make_stream):
    experience = make_stream().train_stream[0]
    plain_model = make_model(codebook=False)
    damped_model = damped(make_model(codebook=False))
    plain = learned_once(name, plain_model, experience, rate=0.0)
    behind_damping = learned_once(name, damped_model, experience, rate=0.0)
    torch.testing.assert_close(
        behind_damping.anchors[0].importance, plain.anchors[0].importance
    )


def test_a_path_integral_is_of_the_whole_gradient(make_model, make_stream):
    """Steps below a head that damps are a hundredth, and so is their integral."""
    experience = make_stream().train_stream[0]
    damped_model = damped(make_model(codebook=False))
    plain = learned_once("si", make_model(codebook=False), experience, rate=1e-3)
    behind_damping = learned_once("si", damped_model, experience, rate=1e-3)
    below = "plastic_layers.conv.weight"
    head = "plastic_layers.head.weight"
    torch.testing.assert_close(
        behind_damping.path[below], 0.01 * plain.path[below], rtol=0.01, atol=1e-9
    )
    torch.testing.assert_close(behind_damping.path[head], plain.path[head])


# Distillation


def slow_distillation(new, old, classes, temperature):
    """A loop over images and old classes."""
    total = 0.0
    for new_logits, old_logits in zip(new[:, classes], old[:, classes]):
        p = (new_logits / temperature).softmax(0)
        q = (old_logits / temperature).softmax(0)
        for c in range(len(classes)):
            total += float(q[c] * (q[c] / p[c]).log()) / len(new)
    return total


def test_distillation_is_a_loop():
    generator = torch.Generator().manual_seed(1)
    new = 3 * torch.randn(5, 6, generator=generator)
    old = 3 * torch.randn(5, 6, generator=generator)
    loss = distillation_loss(new, old, [4, 0, 3], 2.0).item()
    expected = slow_distillation(new, old, [4, 0, 3], 2.0)
    assert loss == pytest.approx(expected, rel=1e-5)


def test_nothing_forgotten_is_no_loss():
    logits = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    assert distillation_loss(logits, logits, [4, 0, 3], 2.0).item() == 0


class Watch(SupervisedPlugin):
    """The loss of every step, and what LwF is to add to it."""

    def __init__(self, lwf):
        super().__init__()
        self.lwf = lwf
        self.losses = []
        self.added = []

    @torch.no_grad()
    def before_backward(self, strategy, **kwargs):
        self.losses.append(strategy.loss.item())
        self.added.append(0.5 * self.distillation(strategy))

    def distillation(self, strategy):
        if not self.lwf.old_classes:
            return 0.0
        numbers = strategy.mb_x[:, :1, 0, 0]
        old = numbers * self.lwf.old_network.state["1.weight"].view(1, -1)
        classes = self.lwf.old_classes
        return float(distillation_loss(strategy.mb_output, old, classes, 3.0))


class Distilled:
    """LwF after two experiences, watched before and after it adds to the loss."""

    def __init__(self):
        self.plugin = plugin_of("lwf", alpha=0.5, temperature=3.0)
        before = Watch(self.plugin)
        after = Watch(self.plugin)
        stream = stream_of(*STREAM)[:2]
        model = tiny_model(START)
        self.strategy = learn(model, stream, before, self.plugin, after)
        self.expected = after.added
        pairs = zip(before.losses, after.losses)
        self.added = [loss - old_loss for old_loss, loss in pairs]


def test_lwf_adds_alpha_times_the_distillation():
    distilled = Distilled()
    assert distilled.added == pytest.approx(distilled.expected, abs=1e-6)
    assert max(distilled.added) > 0


def test_lwf_distils_nothing_at_first():
    assert Distilled().added[:9] == [0.0] * 9


def test_lwf_knows_its_old_classes():
    distilled = Distilled()
    seen = sorted(distilled.strategy.seen_classes.seen)
    assert distilled.plugin.old_classes == [0, 1, 2, 3] == seen
