"""AANets: two branches and one head by hand, what learns and what does not, the share of the stable branch."""

import copy
import pickle

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from torch import nn
from torch.nn.functional import cross_entropy
from watched import built, plugin_of

from crumb_avalanche.methods.aanets import AANetsPlugin, AggregatedLayers, OldBranches
from crumb_avalanche.methods.features import pooled_features
from crumb_avalanche.methods.registry import STRATEGIES, LearningSettings, Recipe
from crumb_avalanche.methods.replay import distillation_loss
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.split_at import split_at
from crumb_avalanche.training.ledger import LedgerMetric

pytestmark = [
    pytest.mark.filterwarnings("ignore:No loggers specified"),
    pytest.mark.filterwarnings("ignore:Plugin .* implements incompatible callbacks"),
]
AANETS = STRATEGIES["aanets"]
CLASSES = ("fish", "house", "key", "leaf", "ring", "star")
SETTINGS = dict(learning_rate=0.002, eval_batch_size=4)


def build(model, plugins=(), mem_size=9, **method):
    return built("aanets", model, mem_size, SETTINGS, plugins=plugins, method=method)


def train(model, stream, **arguments):
    strategy = build(model, **arguments)
    for experience in stream.train_stream:
        strategy.train(experience)
    return strategy


@pytest.fixture
def ready(make_model, make_stream):
    """The small model, prepared for its stream, and the stream."""

    def made(classes=None, **arguments):
        stream = make_stream() if classes is None else make_stream(classes=classes)
        n_classes = 4 if classes is None else len(classes)
        return calibrate(make_model(n_classes=n_classes, codebook=False), stream.train_stream[0].dataset), stream

    return made


class Watch(SupervisedPlugin):
    """Weights before each experience, and the share after each step."""

    def __init__(self):
        super().__init__()
        self.before, self.shares, self.optimised = [], [], None

    def before_training_exp(self, strategy, **kwargs):
        self.before.append({name: value.clone() for name, value in strategy.model.state_dict().items()})
        self.shares.append([])

    def before_training_iteration(self, strategy, **kwargs):
        self.shares[-1].append(float(strategy.model.plastic_layers.blended.share.detach()))


def test_what_learns_when(ready):
    model, stream = ready(CLASSES)
    watch = Watch()
    strategy = train(model, stream, plugins=[watch], mem_size=12)
    final = {name: value.clone() for name, value in model.state_dict().items()}
    first, second, third = watch.before

    def changed(one, two):
        return {name for name in one if not torch.equal(one[name], two[name])}

    prefix = "plastic_layers."
    plastic = {
        f"{prefix}plastic.{name}" for name in ("conv.weight", "conv.bias", "head.layer.weight", "head.layer.bias")
    }
    stable = {f"{prefix}stable.conv.conv.weight", f"{prefix}stable.conv.conv.bias"}
    scales = {f"{prefix}stable.conv.scale", f"{prefix}stable.conv.shift"}
    share = f"{prefix}plastic.head.share"
    # The first experience trains one network, which then is in both branches.
    assert changed(first, second) == plastic | stable | {f"{prefix}aggregating"}
    for name in ("weight", "bias"):
        assert torch.equal(second[f"{prefix}stable.conv.conv.{name}"], second[f"{prefix}plastic.conv.{name}"])
    assert (second[f"{prefix}stable.conv.scale"] == 1).all() and not second[f"{prefix}stable.conv.shift"].any()
    # Later the stable branch's own weights never change.
    assert changed(second, third) == plastic | scales | {share}
    assert changed(third, final) == plastic | scales | {share}
    optimised = {id(p) for group in strategy.optimizer.param_groups for p in group["params"]}
    assert all(id(p) in optimised for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("outer_every, moved", [(1, [1, 2, 3, 4]), (2, [2, 4]), (3, [3]), (50, [4])])
def test_the_share_moves_every_so_many_steps_and_once_at_least(ready, outer_every, moved):
    model, stream = ready()
    watch = Watch()
    train(model, stream, plugins=[watch], outer_every=outer_every)
    assert watch.shares[0] == [0.5] * 8  # untouched in the first experience
    shares = [*watch.shares[1], float(model.plastic_layers.blended.share.detach())]
    assert [number for number in range(1, len(shares)) if shares[number] != shares[number - 1]] == moved
    model, stream = ready()
    watch = Watch()
    train(model, stream, plugins=[watch], outer_every=outer_every, a_learning_rate=1e4)
    assert all(0 <= share <= 1 for shares in watch.shares for share in shares)


def test_an_outer_step_by_hand(ready):
    """On the balanced exemplars, in evaluation mode: the slope of their loss, and nothing else changes."""
    model, stream = ready()
    model.plastic_layers.relu = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5))
    strategy = train(model, stream, mem_size=4, outer_every=50)
    plugin = plugin_of(AANetsPlugin, strategy)
    buffer, share = strategy.storage_policy, model.plastic_layers.blended.share
    drawn, sample = [], buffer.sample
    buffer.sample = lambda *arguments: drawn.append(sample(*arguments)) or drawn[-1]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    maps = torch.randn(3, *model.map_shape).abs()
    labels = torch.tensor([0, 0, 2])

    def loss_at(value, maps, labels):
        with torch.no_grad():
            share.fill_(value)
            model.eval()
            return cross_entropy(model.classify(maps), labels).item()

    for batch in ((maps, labels), (torch.empty(0, *model.map_shape), torch.empty(0, dtype=torch.int64))):
        drawn.clear()
        share.data.fill_(0.5)
        model.train()
        classified = []
        classify = model.classify
        model.classify = lambda maps, classify=classify, log=classified: log.append(maps) or classify(maps)
        plugin._outer_step(strategy, *batch)
        del model.classify
        assert model.training
        after, used = share.item(), classified[0]
        replayed = buffer.labels[drawn[0]].long()
        in_batch = sorted(set(batch[1].tolist()))
        used_labels = torch.cat([replayed, torch.tensor([label for label in in_batch for _ in range(2)]).long()])
        # Batches of five over four classes: two of each.
        assert sorted(used_labels.tolist()) == [0, 0, 1, 1, 2, 2, 3, 3] and not set(replayed.tolist()) & set(in_batch)
        for image, label in zip(used, used_labels.tolist()):
            if label in in_batch:
                assert any(torch.equal(image, maps[i]) for i in range(3) if labels[i] == label)
        slope = (loss_at(0.505, used, used_labels) - loss_at(0.495, used, used_labels)) / 0.01
        assert after == pytest.approx(0.5 - 0.01 * slope, rel=1e-3, abs=1e-5) and after != 0.5
        share.data.fill_(float(before["plastic_layers.plastic.head.share"]))
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Losses(SupervisedPlugin):
    """What the first loss of the second experience was made of."""

    found = None

    def after_backward(self, strategy, **kwargs):
        if strategy.clock.train_exp_counter == 1 and self.found is None:
            self.found = (strategy.loss.item(), strategy.mb_x.clone(), strategy.mb_y.clone())


@pytest.mark.parametrize("distillation", [0.25, 3.0])
def test_the_first_loss_of_a_later_experience(ready, monkeypatch, distillation):
    from crumb_avalanche.methods import aanets

    drawn, real_draw = [], aanets.draw
    monkeypatch.setattr(aanets, "draw", lambda *arguments: drawn.append(real_draw(*arguments)) or drawn[-1])
    model, stream = ready()
    losses = Losses()
    strategy = build(model, plugins=[losses], distillation=distillation)
    strategy.train(stream.train_stream[0])
    now = copy.deepcopy(model).eval()
    before = copy.deepcopy(now)
    # Another old network than the present one, for there to be something to distil.
    old_network = plugin_of(AANetsPlugin, strategy).old_network
    moved = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)) / 3
    old_network.state["plastic.head.layer.weight"] += moved
    before.plastic_layers.load_state_dict(old_network.state, strict=False)
    buffer, old = copy.deepcopy(strategy.storage_policy), sorted(set(stream.train_stream[0].dataset.targets))
    strategy.train(stream.train_stream[1])
    loss, images, labels = losses.found
    slots = drawn[0]
    assert len(slots) == len(labels) == 5
    with torch.no_grad():
        maps = torch.cat([now.features(images), now.features(buffer.rows[slots])])
        logits = now.classify(maps)  # there is no dropout, and no step was made yet
        expected = (cross_entropy(logits[:5], labels) + cross_entropy(logits[5:], buffer.labels[slots].long())) / 2
        extra = 4 * distillation_loss(logits, before.classify(maps), old, 2.0)  # times the squared temperature
    assert extra.item() > 1e-3
    assert loss == pytest.approx((expected + distillation * extra).item(), rel=1e-4)


def test_bytes(ready):
    model, stream = ready()
    # conv and head of P, the share, scales and shifts: 584 + 36 + 1 + 64 + 8 numbers
    assert OldBranches.bytes_of(model) == 2 * 693
    branch = 4 * (584 + 64 + 8)
    count = AANETS.memories_in_budget(model, 12 * 768, 4)
    assert count == (12 * 768 - 2 * 693 - branch) // 768
    counted = LedgerMetric().count(train(model, stream, mem_size=count))
    assert counted["statistics_bytes"] == 2 * 693 + branch and counted["buffer_bytes"] == count * 768


def small_squeezenet():
    torch.manual_seed(0)
    return split_backbone("squeezenet1_0", None, n_classes=4, image_size=64, codebook=None)


def small_traced():
    from torchvision.models import resnet18

    torch.manual_seed(0)
    return split_at(resnet18(weights=None, num_classes=4), "layer4.0", n_classes=4, image_size=64)


def test_logits_are_the_head_of_the_average_of_both_branches(make_model):
    model = make_model(codebook=False)
    layers = AggregatedLayers(model.plastic_layers, model.head)
    old = {name: value.clone() for name, value in model.plastic_layers.conv.state_dict().items()}
    layers.aggregate()
    with torch.no_grad():
        layers.plastic.conv.weight.add_(0.3)  # the plastic branch goes on
        layers.plastic.conv.bias.sub_(0.2)
    maps, head = torch.randn(3, *model.map_shape), layers.blended.layer

    def branch(weight, bias):
        return nn.functional.conv2d(maps, weight, bias, padding=1).relu().mean((2, 3))

    stable, plastic = branch(old["weight"], old["bias"]), branch(layers.plastic.conv.weight, layers.plastic.conv.bias)
    assert layers.blended.share.item() == 0.5
    torch.testing.assert_close(layers(maps), head((stable + plastic) / 2))
    for share in (0.0, 0.25, 1.0):
        layers.blended.share.data.fill_(share)
        torch.testing.assert_close(layers(maps), head(share * stable + (1 - share) * plastic))
    # Factors of each pair of channels, and summands of each output channel.
    scale, shift = torch.rand(8, 8), torch.rand(8)
    layers.stable.conv.scale.data.copy_(scale[:, :, None, None])
    layers.stable.conv.shift.data.copy_(shift)
    scaled = old["weight"].clone()
    for out in range(8):
        for into in range(8):
            scaled[out, into] *= scale[out, into]
    torch.testing.assert_close(layers(maps), head(branch(scaled, old["bias"] + shift)))


@pytest.mark.parametrize("make", [small_squeezenet, small_traced])
def test_real_networks_keep_working(make):
    model = make()
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    model.eval()
    before, features = model(images), pooled_features(model, images)
    strategy = AANETS.build(Recipe(model, LearningSettings(), AANETS.settings(), 4, 4, 0, "cpu", {"evaluator": None}))
    layers = model.plastic_layers
    layers.aggregate()
    torch.testing.assert_close(model.eval()(images), before, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pooled_features(model, images), features, rtol=1e-4, atol=1e-5)
    # Statistics of the stable branch are at rest, those of the plastic one are not.
    state = {name: value.clone() for name, value in layers.state_dict().items()}
    model.train()(images)
    moved = {name for name, value in layers.state_dict().items() if not torch.equal(value, state[name])}
    assert all(name.startswith("plastic.") and "bn" in name for name in moved)
    assert bool(moved) == any(isinstance(module, nn.BatchNorm2d) for module in layers.modules())
    again = pickle.loads(pickle.dumps(strategy)).model
    assert torch.equal(again.eval()(images), model.eval()(images))
    again.reset_head(7)
    assert again.n_classes == 7 and again(images).shape == (2, 7)
