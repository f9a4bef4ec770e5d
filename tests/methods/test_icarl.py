"""iCaRL against slow loops, and a test for every mistake of the paper's port."""

import copy
from collections import OrderedDict

import pytest
import torch
from avalanche.models import NCMClassifier
from torch import nn
from watched import Losses, built, outputs_of, taught, unseen_in

from crumb_avalanche.methods.replay import draw_from, herd
from crumb_avalanche.models.split_model import SplitModel

SETTINGS = dict(first_epochs=3)


def slow_features(model, images):
    """Normalised penultimate features in evaluation mode, image by image."""
    model = copy.deepcopy(model).eval()
    rows = []
    for image in images:
        maps = model.plastic_layers.conv(model.features(image.unsqueeze(0))).relu()
        feature = maps.mean((0, 2, 3)).detach()
        rows.append(feature / feature.norm())
    return torch.stack(rows)


def frames_of(model, experience, label):
    """Pixels of the frames of a class."""
    frames = [image for image, target, *_ in experience.dataset if int(target) == label]
    return torch.cat([model.pixels(image.unsqueeze(0)) for image in frames])


def memories_drawn(strategy, old):
    """Maps and labels of the memories that the next step will draw."""
    buffer = strategy.storage_policy
    slots = [
        slot
        for label in buffer.classes
        if label in old
        for slot in buffer.slots.by_class[label]
    ]
    if not slots:
        return []
    random = copy.deepcopy(buffer.slots.random)
    return [
        (strategy.model.features(buffer.rows[[slot]]), int(buffer.labels[slot]))
        for slot in draw_from(random, slots, len(strategy.mb_y)).tolist()
    ]


def loss_of_image(strategy, feature_map, label, old):
    """Cross-entropies of the outputs of seen classes, one by one."""
    model = strategy.model
    logits = model.classify(feature_map)[0].detach().double()
    total = 0.0
    for seen in strategy.seen_classes.seen:
        target = float(seen == label)
        if seen in old:
            old_network = strategy.memory.old_network
            target = old_network.logits(model, feature_map)[0][seen].sigmoid()
        probability = logits[seen].sigmoid()
        total -= target * probability.log() + (1 - target) * (1 - probability).log()
    return float(total)


def slow_loss(strategy):
    """The loss of the next step; unseen outputs have no part in it."""
    present = set(map(int, strategy.experience.dataset.targets))
    old = sorted(set(strategy.seen_classes.seen) - present)
    maps = strategy.model.features(strategy.mb_x).split(1)
    images = list(zip(maps, strategy.mb_y.tolist()))
    images += memories_drawn(strategy, old)
    losses = [loss_of_image(strategy, *image, old) for image in images]
    return sum(losses) / len(losses)


def taught_each_class(experiences, *plugins):
    """A strategy after some experiences of a class each."""
    strategy, _ = taught(
        "icarl", experiences, per_experience=1, settings=SETTINGS, plugins=plugins
    )
    return strategy


def test_steps_have_the_loss_of_a_slow_loop():
    losses = Losses(slow_loss)
    taught_each_class(3, losses)
    assert losses.losses == pytest.approx(losses.expected, rel=1e-4)


@pytest.mark.parametrize("experiences", [1, 2, 3])
def test_the_old_network_is_the_latest(experiences):
    strategy = taught_each_class(experiences)
    weights = strategy.model.plastic_layers.state_dict()
    old = strategy.memory.old_network.state
    assert old.keys() == weights.keys()
    assert all(torch.equal(old[name], weights[name].half()) for name in old)


def trained():
    """A strategy after one experience of two classes, its buffer and experience."""
    strategy, stream = taught("icarl", 1, settings=SETTINGS)
    return strategy, strategy.storage_policy, stream.train_stream[0]


@pytest.fixture(scope="module")
def herded():
    return trained()


def test_exemplars_are_chosen_after_the_last_epoch():
    sizes = Losses(lambda strategy: len(strategy.storage_policy))
    taught("icarl", 1, settings=SETTINGS, plugins=[sizes])
    assert sizes.expected == [0] * 12  # the port chose after epoch 1


def test_exemplars_fill_the_buffer(herded):
    _, buffer, _ = herded
    assert list(map(buffer.slots.count, buffer.classes)) == [4, 3]


@pytest.mark.parametrize("number", [0, 1])
def test_exemplars_are_herded_by_features(herded, number):
    strategy, buffer, experience = herded
    label = list(buffer.classes)[number]
    frames = frames_of(strategy.model, experience, label)
    features = slow_features(strategy.model, frames)
    assert features.shape == (10, 8)  # the port took the logits, 4 numbers
    slots = buffer.slots.by_class[label]
    assert torch.equal(buffer.rows[slots], frames[herd(features, len(slots))])


@pytest.mark.parametrize("number", [0, 1])
def test_a_returning_class_is_herded_from_both(number):
    """From old exemplars and new frames."""
    strategy, buffer, experience = trained()
    label = list(buffer.classes)[number]
    old = buffer.rows[buffer.slots.by_class[label]].clone()
    strategy.train(experience)
    frames = frames_of(strategy.model, experience, label)
    candidates = torch.cat([old, frames])
    chosen = herd(slow_features(strategy.model, candidates), len(old))
    exemplars = buffer.rows[buffer.slots.by_class[label]]
    assert torch.equal(exemplars, candidates[chosen])


def test_the_nearest_mean_answers():
    strategy, stream = taught("icarl", 1, settings=SETTINGS)
    outputs, images = outputs_of(strategy, stream.test_stream)
    buffer = strategy.storage_policy
    means = {}
    for label in buffer.classes:
        exemplars = buffer.rows[buffer.slots.by_class[label]]
        mean = slow_features(strategy.model, exemplars).mean(0)
        means[label] = mean / mean.norm()
    classifier = NCMClassifier(normalize=True)
    classifier.replace_class_means_dict(means)
    expected = classifier(slow_features(strategy.model, images))
    classes = list(buffer.classes)
    assert outputs.shape == (len(images), 4)
    assert torch.allclose(outputs[:, classes], expected[:, classes], atol=1e-4)


def test_unseen_classes_are_masked():
    strategy, stream = taught("icarl", 1, settings=SETTINGS)
    outputs, _ = outputs_of(strategy, stream.test_stream)
    assert unseen_in(outputs) == {0, 1, 2, 3} - set(strategy.storage_policy.classes)


def model_with_relu_logits():
    layers = OrderedDict(
        head=nn.Conv2d(4, 3, 1),
        relu=nn.ReLU(),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
    return SplitModel(nn.Conv2d(3, 4, 3), nn.Sequential(layers), "head", image_size=16)


def test_a_relu_behind_the_head_is_warned_of():
    with pytest.warns(UserWarning, match="a ReLU follows the head of this model"):
        built("icarl", model_with_relu_logits(), 3)


def test_without_a_relu_there_is_no_warning(recwarn):
    model = model_with_relu_logits()
    del model.plastic_layers.relu
    built("icarl", model, 3)
    assert not [warning for warning in recwarn if "ReLU" in str(warning.message)]
