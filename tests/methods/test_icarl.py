"""iCaRL against slow loops, and a test for every mistake of the paper's port."""

import copy
import warnings
from collections import OrderedDict

import pytest
import torch
from avalanche.models import NCMClassifier
from avalanche.training.plugins import SupervisedPlugin
from torch import nn
from watched import built, plugin_of, unseen_in
from watched import learned as learned_by

from crumb_avalanche.methods.icarl import ICaRLPlugin
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.methods.replay import OldNetwork, draw_from, herd
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.training.ledger import LedgerMetric

pytestmark = pytest.mark.filterwarnings("ignore")
ICARL = STRATEGIES["icarl"]
SETTINGS = dict(first_epochs=3)


def build(model, mem_size, **more):
    return built("icarl", model, mem_size, SETTINGS, **more)


def learned(make_model, make_stream, mem_size=7, experiences=2, **more):
    torch.manual_seed(0)
    model, stream = make_model(codebook=False), make_stream()
    return learned_by("icarl", model, stream, mem_size, experiences, settings=SETTINGS, **more), stream


def the(strategy):
    return plugin_of(ICaRLPlugin, strategy)


def slow_features(model, images):
    """Normalised penultimate features in evaluation mode, image by image."""
    model = copy.deepcopy(model).eval()
    layers = model.plastic_layers
    rows = []
    for image in images:
        maps = layers.conv(model.features(image.unsqueeze(0))).relu()
        feature = maps.mean((0, 2, 3)).detach()
        rows.append(feature / feature.norm())
    return torch.stack(rows)


def frames_of(experience, label):
    return [image for image, target, *_ in experience.dataset if int(target) == label]


class Spy(SupervisedPlugin):
    """Works out each step's loss by itself, from what is known before the step."""

    def __init__(self):
        super().__init__()
        self.losses, self.expected, self.sizes = [], [], []

    def before_backward(self, strategy, **kwargs):
        # The host's plugins come before the method's: nothing is drawn yet.
        buffer, model = strategy.storage_policy, strategy.model
        self.sizes.append(len(buffer))
        logits, labels, maps = [strategy.mb_output.detach()], [strategy.mb_y], [model.features(strategy.mb_x)]
        old = sorted(set(strategy.seen_classes.seen) - set(map(int, strategy.experience.dataset.targets)))
        if set(old) & set(buffer.classes):
            random = copy.deepcopy(buffer.slots.random)
            held = [slot for label in buffer.classes if label in old for slot in buffer.slots.by_class[label]]
            for slot in draw_from(random, held, len(strategy.mb_y)).tolist():
                its_map = model.features(buffer.rows[slot : slot + 1])
                maps.append(its_map)
                logits.append(model.classify(its_map).detach())
                labels.append(buffer.labels[slot : slot + 1].long())
        logits, labels, maps = torch.cat(logits), torch.cat(labels), torch.cat(maps)
        total = 0.0
        for row, label, one_map in zip(logits, labels, maps):
            said = the(strategy).old_network.logits(model, one_map.unsqueeze(0))[0] if old else None
            for c in strategy.seen_classes.seen:
                target = float(torch.sigmoid(said[c])) if c in old else float(c == label)
                p = torch.sigmoid(row[c].double())
                total -= float(target * p.log() + (1 - target) * (1 - p).log())
        self.expected.append(total / len(labels))

    def before_update(self, strategy, **kwargs):
        self.losses.append(float(strategy.loss))
        unseen = [c for c in range(strategy.model.n_classes) if c not in strategy.seen_classes.seen]
        assert not strategy.model.plastic_layers.head.weight.grad[unseen].any()


def test_with_classes_still_to_come_too_and_the_old_network_is_always_the_latest(make_model, make_stream):
    torch.manual_seed(0)
    spy, stream = Spy(), make_stream(1)
    strategy = build(make_model(codebook=False), 7, plugins=[spy])
    for experience in stream.train_stream[:3]:
        strategy.train(experience)
        for name, value in the(strategy).old_network.state.items():
            assert torch.equal(value, strategy.model.plastic_layers.state_dict()[name].half())
    assert spy.losses == pytest.approx(spy.expected, rel=1e-4)


def test_exemplars_are_herded_by_penultimate_features_after_the_last_epoch(make_model, make_stream):
    spy = Spy()
    strategy, stream = learned(make_model, make_stream, experiences=1, plugins=[spy])
    assert spy.sizes == [0] * 12  # the port chose after epoch 1
    buffer = strategy.storage_policy
    assert [buffer.slots.count(label) for label in buffer.classes] == [4, 3]
    for label in buffer.classes:
        frames = frames_of(stream.train_stream[0], label)
        features = slow_features(strategy.model, frames)
        assert features.shape == (10, 8)  # the port took the logits, 4 numbers
        wanted = [
            strategy.model.pixels(frames[place].unsqueeze(0))[0] for place in herd(features, buffer.slots.count(label))
        ]
        assert torch.equal(buffer.rows[buffer.slots.by_class[label]], torch.stack(wanted))


def test_the_nearest_mean_answers_and_unseen_classes_are_masked(make_model, make_stream):
    class Watch(SupervisedPlugin):
        def after_eval_iteration(self, strategy, **kwargs):
            images, scores = strategy.mb_x, strategy.mb_output
            classifier = NCMClassifier(normalize=True)
            buffer = strategy.storage_policy
            means = {}
            for label in buffer.classes:
                mean = slow_features(strategy.model, buffer.rows[buffer.slots.by_class[label]]).mean(0)
                means[label] = mean / mean.norm()
            classifier.replace_class_means_dict(means)
            wanted = classifier(slow_features(strategy.model, images))
            assert scores.shape == (len(images), 4)
            assert torch.allclose(scores[:, buffer.classes], wanted[:, buffer.classes], atol=1e-4)
            assert unseen_in(scores) == {0, 1, 2, 3} - set(buffer.classes)
            self.looked = True

    watch = Watch()
    strategy, stream = learned(make_model, make_stream, experiences=1, plugins=[watch])
    strategy.eval(stream.test_stream)
    assert watch.looked


def test_bytes_are_images_and_the_old_network(make_model, make_stream):
    strategy, stream = learned(make_model, make_stream)
    copy_bytes = 2 * sum(weight.numel() for weight in strategy.model.plastic_layers.parameters())
    assert the(strategy).statistics_bytes == OldNetwork.bytes_of(strategy.model, half=True) == copy_bytes
    strategy.eval(stream.test_stream)
    entries = LedgerMetric().count(strategy)
    assert entries["memory_bytes"] == 7 * 3 * 16**2 + 7 * 2 + copy_bytes
    model = strategy.model
    assert ICARL.memories_in_budget(model, 7 * 768 + copy_bytes, 4) == 7
    assert ICARL.memories_in_budget(model, 7 * 768 + copy_bytes - 1, 4) == 6


def test_a_class_that_comes_again_is_herded_from_old_exemplars_and_new_frames(make_model, make_stream):
    strategy, stream = learned(make_model, make_stream, experiences=1)
    buffer = strategy.storage_policy
    old = {label: buffer.rows[buffer.slots.by_class[label]].clone() for label in buffer.classes}
    strategy.train(stream.train_stream[0])
    for label, rows in old.items():
        candidates = torch.cat(
            [rows, *(strategy.model.pixels(f.unsqueeze(0)) for f in frames_of(stream.train_stream[0], label))]
        )
        chosen = herd(slow_features(strategy.model, candidates), len(rows))
        held = buffer.rows[buffer.slots.by_class[label]]
        assert torch.equal(held, candidates[chosen])


def test_a_relu_behind_the_head_is_warned_of():
    layers = OrderedDict(head=nn.Conv2d(4, 3, 1), relu=nn.ReLU(), pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
    model = SplitModel(nn.Conv2d(3, 4, 3), nn.Sequential(layers), "head", image_size=16)
    with pytest.warns(UserWarning, match="a ReLU follows the head of this model"):
        build(model, 3)
    del model.plastic_layers.relu
    with warnings.catch_warnings(record=True) as caught:
        build(model, 3)
    assert not [warning for warning in caught if "ReLU" in str(warning.message)]
