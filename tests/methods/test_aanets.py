"""AANets: two branches and one head by hand, what learns and what does not, the share of the stable branch."""

import copy
import pickle

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
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.split_at import split_at


def ready(classes=CLASSES):
    """The small model, prepared for its stream, and the stream."""
    stream = make_stream(classes=classes)
    return calibrate(
        make_model(n_classes=len(classes), codebook=False),
        stream.train_stream[0].dataset,
    ), stream


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


class Watch(SupervisedPlugin):
    """Weights before each experience, and the share before each step."""

    def __init__(self):
        super().__init__()
        self.before, self.shares = [], []

    def before_training_exp(self, strategy, **kwargs):
        self.before.append(
            {name: value.clone() for name, value in strategy.model.state_dict().items()}
        )
        self.shares.append([])

    def before_training_iteration(self, strategy, **kwargs):
        self.shares[-1].append(
            float(strategy.model.plastic_layers.blended.share.detach())
        )


def test_what_learns_when():
    model, stream = ready(SIX)
    watch = Watch()
    strategy = train(model, stream, plugins=[watch], mem_size=12)
    first, second, third = watch.before

    def changed(one, two):
        return {name for name in one if not torch.equal(one[name], two[name])}

    prefix = "plastic_layers."
    plastic = {
        f"{prefix}plastic.{part}.{kind}"
        for part in ("conv", "head.layer")
        for kind in ("weight", "bias")
    }
    stable = {f"{prefix}stable.conv.conv.weight", f"{prefix}stable.conv.conv.bias"}
    scales = {f"{prefix}stable.conv.scale", f"{prefix}stable.conv.shift"}
    # The first experience trains one network, which then is in both branches.
    assert changed(first, second) == plastic | stable | {f"{prefix}aggregating"}
    for name in ("weight", "bias"):
        assert torch.equal(
            second[f"{prefix}stable.conv.conv.{name}"],
            second[f"{prefix}plastic.conv.{name}"],
        )
    assert (second[f"{prefix}stable.conv.scale"] == 1).all() and not second[
        f"{prefix}stable.conv.shift"
    ].any()
    # Later the stable branch's own weights never change.
    for one, two in ((second, third), (third, model.state_dict())):
        assert changed(one, two) == plastic | scales | {f"{prefix}plastic.head.share"}
    optimised = {
        id(p) for group in strategy.optimizer.param_groups for p in group["params"]
    }
    assert all(id(p) in optimised for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    "outer_every, moved", [(1, [1, 2, 3, 4]), (2, [2, 4]), (3, [3]), (50, [4])]
)
def test_the_share_moves_every_so_many_steps_and_once_at_least(outer_every, moved):
    model, stream = ready()
    watch = Watch()
    train(model, stream, plugins=[watch], outer_every=outer_every)
    assert watch.shares[0] == [0.5] * 8  # untouched in the first experience
    shares = [*watch.shares[1], float(model.plastic_layers.blended.share.detach())]
    assert [
        number
        for number in range(1, len(shares))
        if shares[number] != shares[number - 1]
    ] == moved
    model, stream = ready()
    train(model, stream, plugins=[watch], outer_every=outer_every, a_learning_rate=1e4)
    assert all(0 <= share <= 1 for shares in watch.shares for share in shares)


def test_an_outer_step_by_hand(monkeypatch):
    """On the balanced exemplars, in evaluation mode: the slope of their loss, and nothing else changes."""
    model, stream = ready()
    model.plastic_layers.relu = nn.Sequential(
        nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5)
    )
    strategy = train(model, stream, mem_size=4, outer_every=50)
    plugin, buffer, share = (
        strategy.memory,
        strategy.storage_policy,
        model.plastic_layers.blended.share,
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    maps, labels = torch.randn(3, *model.map_shape).abs(), torch.tensor([0, 0, 2])

    def loss_at(value, maps, labels):
        with torch.no_grad():
            share.fill_(value)
            model.eval()
            return cross_entropy(model.classify(maps), labels).item()

    for batch in ((maps, labels), (maps[:0], labels[:0])):
        drawn, classified, sample, classify = [], [], buffer.sample, model.classify
        with monkeypatch.context() as patch:

            def sample_and_note(*args, sample=sample, drawn=drawn):
                drawn.append(sample(*args))
                return drawn[-1]

            def classify_and_note(maps, classify=classify, classified=classified):
                classified.append(maps)
                return classify(maps)

            patch.setattr(buffer, "sample", sample_and_note)
            patch.setattr(model, "classify", classify_and_note)
            share.data.fill_(0.5)
            model.train()
            plugin._outer_step(strategy, *batch)
        assert model.training
        after, used, replayed = (
            share.item(),
            classified[0],
            buffer.labels[drawn[0]].long(),
        )
        in_batch = sorted(set(batch[1].tolist()))
        used_labels = torch.cat(
            [
                replayed,
                torch.tensor([label for label in in_batch for _ in range(2)]).long(),
            ]
        )
        # Batches of five over four classes: two of each.
        assert sorted(used_labels.tolist()) == [0, 0, 1, 1, 2, 2, 3, 3] and not set(
            replayed.tolist()
        ) & set(in_batch)
        for image, label in zip(used, used_labels.tolist()):
            assert label not in in_batch or any(
                torch.equal(image, one) for one in maps[labels == label]
            )
        slope = (
            loss_at(0.505, used, used_labels) - loss_at(0.495, used, used_labels)
        ) / 0.01
        assert (
            after == pytest.approx(0.5 - 0.01 * slope, rel=1e-3, abs=1e-5)
            and after != 0.5
        )
        share.data.fill_(float(before["plastic_layers.plastic.head.share"]))
        assert all(
            torch.equal(value, before[name])
            for name, value in model.state_dict().items()
        )


@pytest.mark.parametrize("distillation", [0.25, 3.0])
def test_the_first_loss_of_a_later_experience(distillation):
    model, stream = ready()
    old = sorted(set(stream.train_stream[0].dataset.targets))
    moved = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)) / 3

    def expect(strategy):
        """The loss, where the old network is not the present one."""
        buffer = strategy.storage_policy
        if strategy.clock.train_exp_counter == 0 or losses.losses[8:]:
            return 0
        weights = strategy.memory.old_network.state
        weights["plastic.head.layer.weight"] += moved
        before = copy.deepcopy(model).eval()
        before.plastic_layers.load_state_dict(weights, strict=False)
        slots = draw_from(copy.deepcopy(buffer.slots.random), held_slots(buffer), 5)
        with torch.no_grad():
            maps = torch.cat(
                [model.features(strategy.mb_x), model.features(buffer.rows[slots])]
            )
            logits = model.classify(maps)
            parts = zip(logits.split(5), (strategy.mb_y, buffer.labels[slots].long()))
            extra = 4 * distillation_loss(
                logits, before.classify(maps), old, 2.0
            )  # times the squared temperature
            assert extra > 1e-3
            return (
                sum(cross_entropy(part, labels) for part, labels in parts) / 2
                + distillation * extra
            )

    losses = Losses(expect)
    train(model, stream, plugins=[losses], distillation=distillation)
    assert losses.losses[8] == pytest.approx(losses.expected[8], rel=1e-4)


def test_logits_are_the_head_of_the_average_of_both_branches():
    model = make_model(codebook=False)
    layers = AggregatedLayers(model.plastic_layers, model.head)
    old = {
        name: value.clone()
        for name, value in model.plastic_layers.conv.state_dict().items()
    }
    layers.aggregate()
    with torch.no_grad():
        layers.plastic.conv.weight.add_(0.3)  # the plastic branch goes on
        layers.plastic.conv.bias.sub_(0.2)
    maps, head = torch.randn(3, *model.map_shape), layers.blended.layer

    def branch(weight, bias):
        return nn.functional.conv2d(maps, weight, bias, padding=1).relu().mean((2, 3))

    stable, plastic = (
        branch(old["weight"], old["bias"]),
        branch(layers.plastic.conv.weight, layers.plastic.conv.bias),
    )
    assert layers.blended.share.item() == 0.5
    torch.testing.assert_close(layers(maps), head((stable + plastic) / 2))
    for share in (0.0, 0.25, 1.0):
        layers.blended.share.data.fill_(share)
        torch.testing.assert_close(
            layers(maps), head(share * stable + (1 - share) * plastic)
        )
    # Factors of each pair of channels, and summands of each output channel.
    scale, shift = torch.rand(8, 8), torch.rand(8)
    layers.stable.conv.scale.data.copy_(scale[:, :, None, None])
    layers.stable.conv.shift.data.copy_(shift)
    scaled = torch.stack(
        [
            torch.stack([old["weight"][o, i] * scale[o, i] for i in range(8)])
            for o in range(8)
        ]
    )
    torch.testing.assert_close(layers(maps), head(branch(scaled, old["bias"] + shift)))


@pytest.mark.parametrize("traced", [False, True])
def test_real_networks_keep_working(traced):
    if traced:
        model = split_at(
            resnet18(weights=None, num_classes=4),
            "layer4.0",
            n_classes=4,
            image_size=64,
        )
    else:
        model = split_backbone(
            "squeezenet1_0", None, n_classes=4, image_size=64, codebook=None
        )
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    model.eval()
    before, features = model(images), pooled_features(model, images)
    strategy = built("aanets", model)
    layers = model.plastic_layers
    layers.aggregate()
    torch.testing.assert_close(model.eval()(images), before, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        pooled_features(model, images), features, rtol=1e-4, atol=1e-5
    )
    # Statistics of the stable branch are at rest, those of the plastic one are not.
    state = {name: value.clone() for name, value in layers.state_dict().items()}
    model.train()(images)
    moved = {
        name
        for name, value in layers.state_dict().items()
        if not torch.equal(value, state[name])
    }
    assert all(name.startswith("plastic.") and "bn" in name for name in moved)
    assert bool(moved) == any(
        isinstance(module, nn.BatchNorm2d) for module in layers.modules()
    )
    again = pickle.loads(pickle.dumps(strategy)).model
    assert torch.equal(again.eval()(images), model.eval()(images))
    again.reset_head(7)
    assert again.n_classes == 7 and again(images).shape == (2, 7)
