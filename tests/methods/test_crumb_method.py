"""CRUMB's readout in closed form: what it is fitted to, what it answers, what it keeps."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_models import make_model, make_stream
from watched import SIX, Losses, learned, outputs_of

from crumb_avalanche.methods.crumb_readout import LinearReadout
from crumb_avalanche.methods.crumb_replay import CrumbSettings
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.runs.session import rate_trials
from crumb_avalanche.system.tensor_file import tensor_bytes
from crumb_avalanche.training.ledger import LedgerMetric

CRUMB = STRATEGIES["crumb"]


def taught(readout, experiences=2, plugins=()):
    """A learner after some experiences, and its stream."""
    torch.manual_seed(0)
    np.random.seed(0)
    stream = make_stream(classes=SIX)
    model = calibrate(make_model(n_classes=6), stream.train_stream[0].dataset)
    return learned(
        "crumb",
        model,
        stream,
        12,
        experiences,
        method={"readout": readout},
        plugins=plugins,
    ), stream


def test_a_line_by_hand():
    # Means 1 and 5, variance (1 + 1 + 1 + 1) / 4 = 1, increased by min(1, D / N) = 1/4
    # of itself. The weights are (1 - 3) / 1.25 and (5 - 3) / 1.25, and both scores are
    # equal in the middle, at 3.
    readout = LinearReadout.fit(
        torch.tensor([[0.0], [2], [4], [6]]), torch.tensor([1, 1, 3, 3]), 5
    )
    assert readout.labels.tolist() == [1, 3]
    torch.testing.assert_close(readout.weights, torch.tensor([[-1.6, 1.6]]))
    torch.testing.assert_close(readout.offsets, torch.tensor([3.2, -6.4]))


def slow_features(model, codes):
    """Features of one memory, ``(D,)`` float64, location by location."""
    groups, height, width = codes.shape
    blocks = model.codebook.blocks.detach()
    decoded = torch.empty(groups * blocks.shape[1], height, width)
    for y, x in np.ndindex(height, width):
        decoded[:, y, x] = torch.cat(
            [blocks[int(codes[g, y, x])] for g in range(groups)]
        )
    layers = model.plastic_layers
    head = layers.flatten(
        layers.pool(layers.relu(layers.conv(decoded[None])))
    ).detach()[0]
    kinds = []
    for values in (
        decoded.flatten(1).mean(1),
        decoded.flatten(1).std(1, correction=0),
        head,
    ):
        raised = values.double().abs() ** 0.7 * values.sign()
        kinds.append(raised / max(float(raised.norm()), 1e-12) * len(raised) ** 0.5)
    return torch.cat(kinds).numpy()


@pytest.mark.parametrize("readout", ["closed_form", "closed_form_stock"])
def test_answers_of_a_slow_twin(readout):
    strategy, stream = taught(readout)
    model, storage = strategy.model.eval(), strategy.storage_policy
    outputs, images = outputs_of(strategy, stream.test_stream)
    memories, labels = [], []
    for label, slots in storage.slots.by_class.items():
        for slot in slots:
            maps = storage.to_maps(storage.rows[[slot]], model)
            codes = model.encode(maps)[0]
            assert torch.equal(model.codebook.decode(codes[None]), maps)
            memories.append(slow_features(model, codes))
            labels.append(label)
    features, labels = np.stack(memories), np.array(labels)
    seen = sorted(set(labels.tolist()))
    means = np.stack([features[labels == label].mean(0) for label in seen])
    apart = features - means[[seen.index(label) for label in labels]]
    covariance = apart.T @ apart / len(features)
    size = features.shape[1]
    covariance += (
        min(1, size / len(features)) * covariance.trace() / size * np.eye(size)
    )
    weights = np.linalg.solve(covariance, means.T)
    new = np.stack(
        [slow_features(model, codes) for codes in model.encode(model.features(images))]
    )
    scores = new @ weights - (means.T * weights).sum(0) / 2
    scores -= scores.max(1, keepdims=True)
    np.testing.assert_allclose(outputs[:, seen].numpy(), scores, rtol=1e-2, atol=1e-2)
    unseen = [label for label in range(6) if label not in seen]
    assert (
        len(seen) == 4
        and (outputs[:, unseen] < outputs[:, seen].amin(1, keepdim=True) + 20).all()
    )
    assert (outputs[:, unseen] < 0).all() and set(outputs.argmax(1).tolist()) <= set(
        seen
    )


def test_stock_layers_stay_and_each_image_is_seen_once():
    shown = Losses(lambda strategy: len(strategy.mb_x))
    strategy, stream = taught("closed_form_stock", experiences=0, plugins=[shown])
    before = {
        name: value.clone() for name, value in strategy.model.state_dict().items()
    }
    for experience in stream.train_stream[:2]:
        strategy.train(experience)
    assert all(
        torch.equal(value, before[name])
        for name, value in strategy.model.state_dict().items()
    )
    assert not strategy.optimizer.state and all(
        weight.grad is None for weight in strategy.model.parameters()
    )
    assert sum(shown.expected) == sum(
        len(one.dataset) for one in stream.train_stream[:2]
    )


def test_trained_layers_end_as_those_of_crumb():
    ours, plain = (taught(readout)[0] for readout in ("closed_form", "head"))
    expected = plain.model.state_dict()
    assert all(
        torch.equal(value, expected[name])
        for name, value in ours.model.state_dict().items()
    )
    assert torch.equal(ours.storage_policy.rows, plain.storage_policy.rows)


def test_bytes_are_those_of_crumb_and_the_readout_is_derived():
    strategy, stream = taught("closed_form_stock")
    ours, plain = (LedgerMetric().count(one) for one in (strategy, taught("head")[0]))
    for name in (
        "buffer_items",
        "buffer_bytes",
        "label_bytes",
        "codebook_bytes",
        "memory_bytes",
    ):
        assert ours[name] == plain[name] > 0
    assert plain["derived_bytes"] == 0
    # Four classes seen: 24 weights and an offset of float32 each, and an int64 label.
    assert ours["derived_bytes"] == 4 * (4 * (24 + 1) + 8)
    outputs_of(strategy, stream.test_stream)
    assert (
        ours["derived_bytes"]
        == tensor_bytes(strategy._fitted().state_dict().values())
        == strategy.derived_bytes
    )


def test_without_memories_there_is_no_answer_and_no_error():
    strategy, stream = taught("closed_form", experiences=0)
    assert (
        strategy.derived_bytes == 0
        and not outputs_of(strategy, stream.test_stream)[0].any()
    )


def test_a_rate_is_tuned_only_for_layers_that_are_trained_and_by_their_head():
    plan = SimpleNamespace(learning_rate=None, method={"readout": "closed_form_stock"})
    assert rate_trials(SimpleNamespace(plan=plan, entry=CRUMB)) == []  # needs no stream
    own = {
        name: CRUMB.own_rate(CrumbSettings(readout=name))
        for name in ("head", "closed_form", "closed_form_stock")
    }
    assert own == {"head": False, "closed_form": False, "closed_form_stock": True}
    assert CrumbSettings(**{"readout": "closed_form", **CRUMB.tuning}).readout == "head"
