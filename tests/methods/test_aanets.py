"""AANets: two branches and one head by hand, what learns and what does not."""

import copy
import pickle
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from small_models import CLASSES, make_model, make_stream
from torch import nn
from torch.nn.functional import cross_entropy
from torchvision.models import resnet18
from watched import SIX, Losses, built, learned

from crumb_avalanche.methods.aanets import AggregatedLayers
from crumb_avalanche.methods.features import pooled_features
from crumb_avalanche.methods.replay import distillation_loss, draw_from, held_slots
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.layers import trainable
from crumb_avalanche.models.split_at import split_at
from crumb_avalanche.models.split_backbone import split_backbone


def ready(classes=CLASSES):
    """The small model, prepared for its stream, and the stream."""
    stream = make_stream(classes=classes)
    model = make_model(n_classes=len(classes), codebook=False)
    return calibrate(model, stream.train_stream[0].dataset), stream


def train(model, stream, experiences=None, plugins=(), mem_size=9, **method):
    settings = dict(learning_rate=0.002, eval_batch_size=4)
    return learned(
        "aanets",
        model,
        stream,
        mem_size,
        experiences,
        settings=settings,
        plugins=plugins,
        method=method,
    )


def copied(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def share_of(model):
    return float(model.plastic_layers.blended.share.detach())


class Watch(SupervisedPlugin):
    """Weights before each experience, and the share before each step."""

    def __init__(self):
        super().__init__()
        self.before = []
        self.shares = []

    def before_training_exp(self, strategy, **kwargs):
        self.before.append(copied(strategy.model))
        self.shares.append([])

    def before_training_iteration(self, strategy, **kwargs):
        self.shares[-1].append(share_of(strategy.model))


PREFIX = "plastic_layers."
PLASTIC = {
    f"{PREFIX}plastic.conv.weight",
    f"{PREFIX}plastic.conv.bias",
    f"{PREFIX}plastic.head.layer.weight",
    f"{PREFIX}plastic.head.layer.bias",
}
STABLE = {f"{PREFIX}stable.conv.conv.weight", f"{PREFIX}stable.conv.conv.bias"}
FACTORS = {f"{PREFIX}stable.conv.scale", f"{PREFIX}stable.conv.shift"}


def changed(before, after):
    return {name for name in before if not torch.equal(before[name], after[name])}


class Followed:
    """Weights before each of three experiences, and after the last."""

    def __init__(self):
        model, stream = ready(SIX)
        watch = Watch()
        self.strategy = train(model, stream, plugins=[watch], mem_size=12)
        self.states = [*watch.before, copied(model)]


@pytest.fixture(scope="module")
def followed():
    return Followed()


def test_the_first_experience_trains_one_network(followed):
    first, second, *_ = followed.states
    assert changed(first, second) == PLASTIC | STABLE | {f"{PREFIX}aggregating"}


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_then_it_is_in_both_branches(followed, name):
    second = followed.states[1]
    stable = second[f"{PREFIX}stable.conv.conv.{name}"]
    assert torch.equal(stable, second[f"{PREFIX}plastic.conv.{name}"])


def test_factors_begin_as_one(followed):
    second = followed.states[1]
    assert (second[f"{PREFIX}stable.conv.scale"] == 1).all()
    assert not second[f"{PREFIX}stable.conv.shift"].any()


@pytest.mark.parametrize("number", [1, 2])
def test_the_stable_branch_never_changes(followed, number):
    """But for its factors."""
    names = changed(followed.states[number], followed.states[number + 1])
    assert names == PLASTIC | FACTORS | {f"{PREFIX}plastic.head.share"}


def test_all_that_learns_is_optimised(followed):
    strategy = followed.strategy
    groups = strategy.optimizer.param_groups
    optimised = {id(weight) for group in groups for weight in group["params"]}
    weights = list(trainable(strategy.model).values())
    assert set(map(id, weights)) <= optimised


@cache
def shares(outer_every, **method):
    """The share before each step of two experiences, and at the end."""
    model, stream = ready()
    watch = Watch()
    train(model, stream, plugins=[watch], outer_every=outer_every, **method)
    first, second = watch.shares
    return first, [*second, share_of(model)]


@pytest.mark.parametrize(
    ("outer_every", "moved"),
    [(1, [1, 2, 3, 4]), (2, [2, 4]), (3, [3]), (50, [4])],
)
def test_the_share_moves_every_so_many_steps(outer_every, moved):
    """And once at least."""
    _, second = shares(outer_every)
    steps = range(1, len(second))
    assert [step for step in steps if second[step] != second[step - 1]] == moved


@pytest.mark.parametrize("outer_every", [1, 2, 3, 50])
def test_the_share_rests_in_the_first_experience(outer_every):
    first, _ = shares(outer_every)
    assert first == [0.5] * 8


@pytest.mark.parametrize("outer_every", [1, 2, 3, 50])
def test_the_share_stays_a_share(outer_every):
    first, second = shares(outer_every, a_learning_rate=1e4)
    assert min(first + second) >= 0
    assert max(first + second) <= 1


@dataclass
class OuterStep:
    """What an outer step used, and where the share went."""

    maps: torch.Tensor
    memory_labels: torch.Tensor
    share: float


class OuterSteps:
    """A trained strategy whose outer steps are followed."""

    def __init__(self, monkeypatch):
        self.model, stream = ready()
        self.model.plastic_layers.relu = nn.Sequential(
            nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5)
        )
        strategy = train(self.model, stream, mem_size=4, outer_every=50)
        self.strategy = strategy
        self.share = self.model.plastic_layers.blended.share
        self.before = copied(self.model)
        generator = torch.Generator().manual_seed(0)
        maps = torch.randn(3, *self.model.map_shape, generator=generator)
        self.maps = maps.abs()
        self.labels = torch.tensor([0, 0, 2])
        self.sampled = []
        self.classified = []
        self._note(monkeypatch)

    def _note(self, monkeypatch):
        buffer = self.strategy.storage_policy
        sample = buffer.sample
        classify = self.model.classify

        def noted_sample(**arguments):
            self.sampled.append(sample(**arguments))
            return self.sampled[-1]

        def noted_classify(maps):
            self.classified.append(maps)
            return classify(maps)

        monkeypatch.setattr(buffer, "sample", noted_sample)
        monkeypatch.setattr(self.model, "classify", noted_classify)

    def step(self, images):
        """Take a step on a batch of so many images."""
        self.share.data.fill_(0.5)
        self.model.train()
        plugin = self.strategy.memory
        plugin._outer_step(self.strategy, self.maps[:images], self.labels[:images])
        slots = self.sampled[-1]
        return OuterStep(
            maps=self.classified[-1],
            memory_labels=self.strategy.storage_policy.labels[slots].long(),
            share=self.share.item(),
        )

    def labels_used(self, step, images):
        """Two for each class of the batch, after the memories' labels."""
        in_batch = self.labels[:images].unique()
        return torch.cat([step.memory_labels, in_batch.repeat_interleave(2)])

    @torch.no_grad()
    def loss_at(self, share, maps, labels):
        self.share.fill_(share)
        self.model.eval()
        return cross_entropy(self.model.classify(maps), labels).item()


@pytest.fixture
def outer_steps(monkeypatch):
    return OuterSteps(monkeypatch)


# With a batch of two classes, and with exemplars alone.
each_batch = pytest.mark.parametrize("images", [3, 0])


@each_batch
def test_an_outer_step_is_balanced(outer_steps, images):
    """Batches of five over four classes: two of each."""
    step = outer_steps.step(images)
    labels = outer_steps.labels_used(step, images).tolist()
    assert sorted(labels) == [0, 0, 1, 1, 2, 2, 3, 3]


@each_batch
def test_memories_are_of_other_classes(outer_steps, images):
    step = outer_steps.step(images)
    in_batch = set(outer_steps.labels[:images].tolist())
    assert not set(step.memory_labels.tolist()) & in_batch


def test_classes_of_the_batch_are_its_own_images(outer_steps):
    step = outer_steps.step(3)
    labels = outer_steps.labels_used(step, 3)
    in_batch = range(len(step.memory_labels), len(labels))
    for index in in_batch:
        candidates = outer_steps.maps[outer_steps.labels == labels[index]]
        assert any(torch.equal(step.maps[index], maps) for maps in candidates)


@each_batch
def test_an_outer_step_by_hand(outer_steps, images):
    """The slope of the loss of the balanced batch, in evaluation mode."""
    step = outer_steps.step(images)
    labels = outer_steps.labels_used(step, images)
    above = outer_steps.loss_at(0.505, step.maps, labels)
    below = outer_steps.loss_at(0.495, step.maps, labels)
    slope = (above - below) / 0.01
    assert step.share == pytest.approx(0.5 - 0.01 * slope, rel=1e-3, abs=1e-5)
    assert step.share != 0.5


@each_batch
def test_an_outer_step_changes_the_share_alone(outer_steps, images):
    outer_steps.step(images)
    after = copied(outer_steps.model)
    assert changed(outer_steps.before, after) <= {f"{PREFIX}plastic.head.share"}
    assert outer_steps.model.training


def share_after_a_step(model, maps, labels):
    """The share after an outer step of a strategy whose exemplars are the maps."""
    strategy = built("aanets", model, method={"a_learning_rate": 0.01})
    model.plastic_layers.aggregate()
    with torch.no_grad():
        model.plastic_layers.plastic.conv.weight.add_(0.3)  # apart from the stable one
    strategy.memory._outer_step(strategy, maps, labels)
    return share_of(model)


def test_a_head_that_damps_moves_the_share_as_far():
    plain = make_model(codebook=False)
    damped = make_model(codebook=False)
    damped.centre_head()  # which damps the gradient below the head, and centres nothing
    maps = torch.rand(5, *plain.map_shape)
    labels = torch.tensor([0, 1, 2, 3, 0])
    share = share_after_a_step(plain, maps, labels)
    assert share != 0.5
    assert share_after_a_step(damped, maps, labels) == share


class FirstLoss:
    """The loss of the first step of the second experience.

    The old network is moved before it, so that it is not the present one.
    """

    def __init__(self, model, stream, distillation):
        self.model = model
        self.old_classes = sorted(set(stream.train_stream[0].dataset.targets))
        generator = torch.Generator().manual_seed(0)
        self.moved = torch.randn(4, 8, generator=generator) / 3
        self.distillation = distillation
        self.done = False

    def __call__(self, strategy):
        if strategy.clock.train_exp_counter == 0 or self.done:
            return 0
        self.done = True
        old_weights = strategy.memory.old_network.state
        old_weights["plastic.head.layer.weight"] += self.moved
        old_model = copy.deepcopy(self.model).eval()
        old_model.plastic_layers.load_state_dict(old_weights, strict=False)
        return self.expected(strategy, old_model)

    @torch.no_grad()
    def expected(self, strategy, old_model):
        buffer = strategy.storage_policy
        random = copy.deepcopy(buffer.slots.random)
        slots = draw_from(random, held_slots(buffer), 5)
        new_maps = self.model.features(strategy.mb_x)
        maps = torch.cat([new_maps, self.model.features(buffer.rows[slots])])
        logits = self.model.classify(maps)
        new_loss = cross_entropy(logits[:5], strategy.mb_y)
        memory_loss = cross_entropy(logits[5:], buffer.labels[slots].long())
        old_logits = old_model.classify(maps)
        # Times the squared temperature.
        distilled = 4 * distillation_loss(logits, old_logits, self.old_classes, 2.0)
        assert distilled > 1e-3
        return (new_loss + memory_loss) / 2 + self.distillation * distilled


@pytest.mark.parametrize("distillation", [0.25, 3.0])
def test_the_first_loss_of_a_later_experience(distillation):
    model, stream = ready()
    losses = Losses(FirstLoss(model, stream, distillation))
    train(model, stream, plugins=[losses], distillation=distillation)
    assert losses.losses[8] == pytest.approx(losses.expected[8], rel=1e-4)


class TwoBranches:
    """Layers whose plastic branch went on, and outputs of both branches by hand."""

    def __init__(self):
        model = make_model(codebook=False)
        self.layers = AggregatedLayers(model.plastic_layers, model.head)
        self.old = copied(model.plastic_layers.conv)
        self.layers.aggregate()
        self.conv = self.layers.plastic.conv
        with torch.no_grad():
            self.conv.weight.add_(0.3)
            self.conv.bias.sub_(0.2)
        generator = torch.Generator().manual_seed(0)
        self.maps = torch.randn(3, *model.map_shape, generator=generator)

    def branch(self, weight, bias):
        maps = nn.functional.conv2d(self.maps, weight, bias, padding=1)
        return maps.relu().mean((2, 3))

    def stable(self):
        return self.branch(self.old["weight"], self.old["bias"])

    def plastic(self):
        return self.branch(self.conv.weight, self.conv.bias)

    def head(self, values):
        return self.layers.blended.layer(values)


def test_logits_are_of_the_average_at_first():
    two = TwoBranches()
    assert two.layers.blended.share.item() == 0.5
    average = (two.stable() + two.plastic()) / 2
    torch.testing.assert_close(two.layers(two.maps), two.head(average))


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_logits_are_of_the_blend(share):
    two = TwoBranches()
    two.layers.blended.share.data.fill_(share)
    blend = share * two.stable() + (1 - share) * two.plastic()
    torch.testing.assert_close(two.layers(two.maps), two.head(blend))


def test_factors_and_summands_by_hand():
    """Factors of each pair of channels, and summands of each output channel."""
    two = TwoBranches()
    generator = torch.Generator().manual_seed(0)
    scale = torch.rand(8, 8, 1, 1, generator=generator)
    shift = torch.rand(8, generator=generator)
    two.layers.blended.share.data.fill_(1.0)
    two.layers.stable.conv.scale.data.copy_(scale)
    two.layers.stable.conv.shift.data.copy_(shift)
    stable = two.branch(two.old["weight"] * scale, two.old["bias"] + shift)
    torch.testing.assert_close(two.layers(two.maps), two.head(stable))


def traced_model():
    network = resnet18(weights=None, num_classes=4)
    return split_at(network, "layer4.0", n_classes=4, image_size=64)


def registered_model():
    return split_backbone(
        "squeezenet1_0", None, n_classes=4, image_size=64, codebook=None
    )


class Aggregated:
    """A real network before and after its branches were made."""

    def __init__(self, build):
        torch.manual_seed(0)
        self.model = build().eval()
        self.images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
        self.logits = self.model(self.images)
        self.features = pooled_features(self.model, self.images)
        self.strategy = built("aanets", self.model)
        self.layers = self.model.plastic_layers
        self.layers.aggregate()


@cache
def aggregated(build):
    """For tests that only read it."""
    return Aggregated(build)


each_network = pytest.mark.parametrize("build", [traced_model, registered_model])


@each_network
def test_a_real_network_answers_as_before(build):
    network = aggregated(build)
    logits = network.model.eval()(network.images)
    torch.testing.assert_close(logits, network.logits, rtol=1e-4, atol=1e-5)


@each_network
def test_a_real_network_has_the_same_features(build):
    network = aggregated(build)
    features = pooled_features(network.model, network.images)
    torch.testing.assert_close(features, network.features, rtol=1e-4, atol=1e-5)


@each_network
def test_statistics_of_the_stable_branch_rest(build):
    network = Aggregated(build)
    before = copied(network.layers)
    network.model.train()(network.images)
    moved = changed(before, copied(network.layers))
    assert all(name.startswith("plastic.") and "bn" in name for name in moved)
    norms = [m for m in network.layers.modules() if isinstance(m, nn.BatchNorm2d)]
    assert bool(moved) == bool(norms)


@each_network
def test_a_pickled_network_is_the_same(build):
    network = aggregated(build)
    again = pickle.loads(pickle.dumps(network.strategy)).model
    logits = network.model.eval()(network.images)
    assert torch.equal(again.eval()(network.images), logits)


@each_network
def test_a_real_network_gets_a_new_head(build):
    network = Aggregated(build)
    network.model.reset_head(7)
    assert network.model.n_classes == 7
    assert network.model(network.images).shape == (2, 7)
