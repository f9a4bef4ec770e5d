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


def slow_loss(strategy):
    """The loss of the next step, output by output; unseen outputs have no part in it."""
    buffer, model, seen = (
        strategy.storage_policy,
        strategy.model,
        strategy.seen_classes.seen,
    )
    old = sorted(set(seen) - set(map(int, strategy.experience.dataset.targets)))
    items = list(zip(model.features(strategy.mb_x).split(1), strategy.mb_y.tolist()))
    if set(old) & set(buffer.classes):
        held = [
            slot
            for label in buffer.classes
            if label in old
            for slot in buffer.slots.by_class[label]
        ]
        for slot in draw_from(
            copy.deepcopy(buffer.slots.random), held, len(strategy.mb_y)
        ).tolist():
            items.append(
                (model.features(buffer.rows[slot : slot + 1]), int(buffer.labels[slot]))
            )
    total = 0.0
    for one_map, label in items:
        said = strategy.memory.old_network.logits(model, one_map)[0] if old else None
        logits = model.classify(one_map)[0].detach().double()
        for c in seen:
            target, p = (
                torch.sigmoid(said[c]) if c in old else float(c == label),
                torch.sigmoid(logits[c]),
            )
            total -= float(target * p.log() + (1 - target) * (1 - p).log())
    return total / len(items)


def test_every_step_has_the_loss_of_a_slow_loop_with_the_latest_old_network():
    losses = Losses(slow_loss)
    strategy, stream = taught(
        "icarl", 0, per_experience=1, settings=SETTINGS, plugins=[losses]
    )
    for experience in stream.train_stream[:3]:  # with classes still to come
        strategy.train(experience)
        for name, value in strategy.memory.old_network.state.items():
            assert torch.equal(
                value, strategy.model.plastic_layers.state_dict()[name].half()
            )
    assert losses.losses == pytest.approx(losses.expected, rel=1e-4)


def test_exemplars_are_herded_by_penultimate_features_after_the_last_epoch():
    sizes = Losses(lambda strategy: len(strategy.storage_policy))
    strategy, stream = taught("icarl", 1, settings=SETTINGS, plugins=[sizes])
    assert sizes.expected == [0] * 12  # the port chose after epoch 1
    buffer, experience = strategy.storage_policy, stream.train_stream[0]
    assert [buffer.slots.count(label) for label in buffer.classes] == [4, 3]
    old = {
        label: buffer.rows[buffer.slots.by_class[label]].clone()
        for label in buffer.classes
    }
    for label, rows in old.items():
        frames = frames_of(strategy.model, experience, label)
        features = slow_features(strategy.model, frames)
        assert features.shape == (10, 8)  # the port took the logits, 4 numbers
        assert torch.equal(rows, frames[herd(features, len(rows))])
    # A class that comes again is herded from old exemplars and new frames.
    strategy.train(experience)
    for label, rows in old.items():
        candidates = torch.cat([rows, frames_of(strategy.model, experience, label)])
        chosen = herd(slow_features(strategy.model, candidates), len(rows))
        assert torch.equal(
            buffer.rows[buffer.slots.by_class[label]], candidates[chosen]
        )


def test_the_nearest_mean_answers_and_unseen_classes_are_masked():
    strategy, stream = taught("icarl", 1, settings=SETTINGS)
    outputs, images = outputs_of(strategy, stream.test_stream)
    buffer, classifier = strategy.storage_policy, NCMClassifier(normalize=True)
    exemplars = {
        label: buffer.rows[buffer.slots.by_class[label]] for label in buffer.classes
    }
    means = {
        label: slow_features(strategy.model, rows).mean(0)
        for label, rows in exemplars.items()
    }
    classifier.replace_class_means_dict(
        {label: mean / mean.norm() for label, mean in means.items()}
    )
    wanted = classifier(slow_features(strategy.model, images))
    assert outputs.shape == (len(images), 4) and unseen_in(outputs) == {
        0,
        1,
        2,
        3,
    } - set(buffer.classes)
    assert torch.allclose(
        outputs[:, buffer.classes], wanted[:, buffer.classes], atol=1e-4
    )


def test_a_relu_behind_the_head_is_warned_of(recwarn):
    layers = OrderedDict(
        head=nn.Conv2d(4, 3, 1),
        relu=nn.ReLU(),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
    model = SplitModel(nn.Conv2d(3, 4, 3), nn.Sequential(layers), "head", image_size=16)
    with pytest.warns(UserWarning, match="a ReLU follows the head of this model"):
        built("icarl", model, 3)
    del model.plastic_layers.relu
    built("icarl", model, 3)
    assert not [warning for warning in recwarn if "ReLU" in str(warning.message)]
