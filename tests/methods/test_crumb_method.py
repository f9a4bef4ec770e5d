"""CRUMB's readout in closed form: what it is fitted to, what it answers and keeps."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_models import make_model, make_stream, same_tensors, weights_of
from watched import SIX, Losses, learned, outputs_of

from crumb_avalanche.methods.crumb_replay import CrumbSettings
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.runs.session import rate_trials
from crumb_avalanche.training.ledger import LedgerMetric

CRUMB = STRATEGIES["crumb"]
each_readout = pytest.mark.parametrize("readout", ["closed_form", "closed_form_stock"])


@dataclass
class Learned:
    """A strategy after some experiences, and its stream."""

    strategy: object
    stream: object


def taught(readout, experiences=2, plugins=()):
    torch.manual_seed(0)
    np.random.seed(0)
    stream = make_stream(classes=SIX)
    model = calibrate(make_model(n_classes=6), stream.train_stream[0].dataset)
    method = {"readout": readout}
    strategy = learned(
        "crumb", model, stream, 12, experiences, method=method, plugins=plugins
    )
    return Learned(strategy, stream)


def decoded(model, codes):
    """``(C, H, W)`` of ``(G, H, W)`` codes, location by location."""
    groups, height, width = codes.shape
    blocks = model.codebook.blocks.detach()
    maps = torch.empty(groups * blocks.shape[1], height, width)
    for y, x in np.ndindex(height, width):
        of_groups = [blocks[int(codes[group, y, x])] for group in range(groups)]
        maps[:, y, x] = torch.cat(of_groups)
    return maps


def slow_features(model, codes):
    """Features of one memory, ``(D,)`` float64."""
    maps = decoded(model, codes)
    layers = model.plastic_layers
    pooled = layers.pool(layers.relu(layers.conv(maps[None])))
    head = layers.flatten(pooled).detach()[0]
    means = maps.flatten(1).mean(1)
    deviations = maps.flatten(1).std(1, correction=0)
    features = []
    for values in (means, deviations, head):
        raised = values.double().abs() ** 0.7 * values.sign()
        length = max(float(raised.norm()), 1e-12)
        features.append(raised / length * len(raised) ** 0.5)
    return torch.cat(features)


class SlowReadout:
    """A discriminant of features of all memories, which are computed one by one."""

    def __init__(self, strategy):
        self.model = strategy.model.eval()
        self.buffer = strategy.storage_policy
        self.features = []
        self.labels = []
        for label, slots in self.buffer.slots.by_class.items():
            self.labels += [label] * len(slots)
            self.features += [
                slow_features(self.model, self.codes_of(s)) for s in slots
            ]
        self.seen = sorted(set(self.labels))

    def codes_of(self, slot):
        maps = self.buffer.to_maps(self.buffer.rows[[slot]], self.model)
        codes = self.model.encode(maps)[0]
        assert torch.equal(self.model.codebook.decode(codes[None]), maps)
        return codes

    def scores(self, images):
        discriminant = RegularizedDiscriminant(
            n_classes=self.model.n_classes,
            length=24,
            part=8,  # channels of the head's input, which answer alone, too
            directions=8,
            whole=True,
            own=0.1,
            own_images=20.0,
            diagonal=False,
        )
        features = torch.stack(self.features)
        discriminant.update(features, torch.tensor(self.labels))
        codes = self.model.encode(self.model.features(images))
        new = torch.stack([slow_features(self.model, of_image) for of_image in codes])
        scores = discriminant.scores(new)[:, self.seen]
        return scores - scores.amax(1, keepdim=True)


@each_readout
def test_answers_are_those_of_a_slow_twin(readout):
    result = taught(readout)
    slow = SlowReadout(result.strategy)
    outputs, images = outputs_of(result.strategy, result.stream.test_stream)
    assert len(slow.seen) == 4
    expected = slow.scores(images).float()
    torch.testing.assert_close(outputs[:, slow.seen], expected, rtol=1e-2, atol=1e-2)


@each_readout
def test_unseen_classes_are_never_answered(readout):
    result = taught(readout)
    outputs, _ = outputs_of(result.strategy, result.stream.test_stream)
    seen = sorted(result.strategy.storage_policy.classes)
    unseen = [label for label in range(6) if label not in seen]
    worst = outputs[:, seen].amin(1, keepdim=True)
    assert (outputs[:, unseen] < worst + 20).all()
    assert (outputs[:, unseen] < 0).all()
    assert set(outputs.argmax(1).tolist()) <= set(seen)


def test_stock_layers_stay():
    result = taught("closed_form_stock", experiences=0)
    before = weights_of(result.strategy.model)
    for experience in result.stream.train_stream[:2]:
        result.strategy.train(experience)
    after = weights_of(result.strategy.model)
    assert same_tensors(before, after)
    assert not result.strategy.optimizer.state
    weights = result.strategy.model.parameters()
    assert all(weight.grad is None for weight in weights)


def test_stock_layers_see_each_image_once():
    sizes = Losses(lambda strategy: len(strategy.mb_x))
    stream = taught("closed_form_stock", plugins=[sizes]).stream
    images = [len(experience.dataset) for experience in stream.train_stream[:2]]
    assert sum(sizes.expected) == sum(images)


def test_trained_layers_end_as_those_of_crumb():
    ours = taught("closed_form").strategy
    plain = taught("head").strategy
    weights = weights_of(ours.model)
    expected = weights_of(plain.model)
    assert same_tensors(weights, expected)
    assert torch.equal(ours.storage_policy.rows, plain.storage_policy.rows)


SAME_BYTES = [
    "buffer_items",
    "buffer_bytes",
    "label_bytes",
    "codebook_bytes",
    "memory_bytes",
]


@pytest.mark.parametrize("name", SAME_BYTES)
def test_bytes_are_those_of_crumb(name):
    ours = LedgerMetric().count(taught("closed_form_stock").strategy)
    plain = LedgerMetric().count(taught("head").strategy)
    assert ours[name] == plain[name] > 0


def test_crumb_derives_nothing():
    assert LedgerMetric().count(taught("head").strategy)["derived_bytes"] == 0


def test_the_readout_is_derived():
    result = taught("closed_form_stock")
    strategy = result.strategy
    # Of 24 features: the scatter, and for each of four classes a mean, three numbers of
    # four bytes, and at most eight directions of a byte a feature and two of a scale.
    most = 4 * (24 * 24 + 4 * (24 + 3)) + 4 * 8 * (24 + 2)
    assert LedgerMetric().count(strategy)["derived_bytes"] == most
    outputs_of(strategy, result.stream.test_stream)
    assert strategy.derived_bytes == most
    unseen_classes = 2 * 4 * (24 + 3)
    assert strategy._fitted().held_bytes <= most + unseen_classes


def test_without_memories_there_is_no_answer():
    result = taught("closed_form", experiences=0)
    outputs, _ = outputs_of(result.strategy, result.stream.test_stream)
    assert result.strategy.derived_bytes == 0
    assert not outputs.any()


def test_no_rate_is_tuned_where_nothing_is_trained():
    plan = SimpleNamespace(learning_rate=None, method={"readout": "closed_form_stock"})
    prepared = SimpleNamespace(plan=plan, entry=CRUMB)
    assert rate_trials(prepared, cache=None) == []  # needs no stream


@pytest.mark.parametrize(
    ("readout", "own"),
    [("head", False), ("closed_form", False), ("closed_form_stock", True)],
)
def test_a_rate_is_needed_by_trained_layers(readout, own):
    assert CRUMB.own_rate(CrumbSettings(readout=readout)) == own


def test_a_rate_is_tuned_by_the_head():
    settings = CrumbSettings(**{"readout": "closed_form", **CRUMB.tuning})
    assert settings.readout == "head"
