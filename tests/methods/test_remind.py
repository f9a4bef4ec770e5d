"""REMIND against a plain loop, its memory under the cap, and the traps of the paper's port."""

import copy

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset
from watched import learned, outputs_of

from crumb_avalanche.memory.packing import unpack
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.methods.remind import RemindSettings
from crumb_avalanche.methods.remind_memory import PQCodeBuffer, make_quantizer
from crumb_avalanche.models.backbones import split_backbone

REMIND = STRATEGIES["remind"]
BATCH, RATE = 5, 0.002
PLAIN = dict(crop_scale=1.0, mixup_alpha=0.0)


def easy_stream(sizes=(20,) * 6):
    """Three experiences of two classes, each a pattern with noise, one class after the other; and their tests."""
    centres = torch.randint(0, 256, (6, 3, 4, 4), generator=torch.Generator().manual_seed(7)).float()
    centres = nn.functional.interpolate(centres, 16)

    def experiences(sizes, seed):
        generator, parts = torch.Generator().manual_seed(seed), []
        for first in (0, 2, 4):
            labels = torch.tensor([label for label in (first, first + 1) for _ in range(sizes[label])])
            images = centres[labels] + 25 * torch.randn(len(labels), 3, 16, 16, generator=generator)
            images = images.clamp(0, 255).to(torch.uint8)
            targets = DataAttribute(labels.tolist(), "targets")
            parts.append(AvalancheDataset([TensorDataset(images, labels)], data_attributes=[targets]))
        return parts

    return benchmark_from_datasets(train=experiences(sizes, 0), test=experiences((20,) * 6, 1))


def learn(make_model, experiences=3, stream=None, mem_size=24, **method):
    """A strategy of six classes after some experiences, and the stream."""
    torch.manual_seed(0)
    stream = easy_stream() if stream is None else stream
    settings = dict(learning_rate=RATE, eval_batch_size=128, first_epochs=3)
    model = make_model(n_classes=6, codebook=False)
    return learned("remind", model, stream, mem_size, experiences, settings=settings, method=method), stream


def images_of(experience):
    return torch.stack([item[0] for item in experience.dataset])


def test_the_first_memories_are_balanced_where_the_classes_are_not(make_model):
    strategy, _ = learn(make_model, experiences=1, stream=easy_stream((4, 20, 20, 20, 20, 20)), mem_size=10)
    assert [strategy.storage_policy.slots.count(label) for label in (0, 1)] == [4, 6]


def test_every_memory_is_the_code_of_an_image_of_its_label(make_model):
    strategy, stream = learn(make_model, mem_size=30)
    buffer, model = strategy.storage_policy, strategy.model
    images = torch.cat([images_of(experience) for experience in stream.train_stream])
    labels = torch.cat([torch.tensor(list(experience.dataset.targets)) for experience in stream.train_stream])
    codes = buffer.quantizer.encode(model.features(images)).permute(0, 2, 3, 1).flatten(1)
    stored = unpack(buffer.rows, buffer.quantizer.bits, codes.shape[1])
    same = (stored[:, None] == codes[None]).all(2)  # (memories, images)
    assert (same.sum(1) == 1).all() and same.sum(0).max() == 1  # one image each, none twice
    assert torch.equal(labels[same.long().argmax(1)], buffer.labels.long())


class LoggedBuffer(PQCodeBuffer):
    """Keeps the drawn memories."""

    def draw(self, count):
        slots = super().draw(count)
        self.drawn.append((self.rows[slots].clone(), self.labels[slots].long(), count))
        return slots


@pytest.mark.parametrize("replays", [1, 3])
def test_steps_are_those_of_a_plain_loop(replays, make_model):
    strategy, stream = learn(make_model, experiences=1, batch_replays=replays, mem_size=24, **PLAIN)
    buffer = strategy.storage_policy
    buffer.__class__, buffer.drawn = LoggedBuffer, []
    plastic = copy.deepcopy(strategy.model.plastic_layers).train()
    strategy.train(stream.train_stream[1])

    optimizer = torch.optim.SGD(plastic.parameters(), lr=RATE, momentum=0.9, weight_decay=1e-5)
    images, labels = images_of(stream.train_stream[1]), list(stream.train_stream[1].dataset.targets)
    centroids = buffer.quantizer.centroids
    for start, (rows, old_labels, count) in zip(range(0, len(images), BATCH), buffer.drawn):
        assert count == replays * BATCH and len(rows) == min(count, 24)
        maps = strategy.model.features(images[start : start + BATCH])
        slices = maps.permute(0, 2, 3, 1).unflatten(3, (centroids.shape[0], -1)).unsqueeze(4)  # (B, H, W, m, 1, d)
        codes = (slices - centroids).square().sum(5).argmin(4)
        old = unpack(rows, buffer.quantizer.bits, 4 * 4 * 8).view(-1, 4, 4, 8)
        every = torch.cat([codes, old.long()])
        rebuilt = torch.stack([centroids[group][every[..., group]] for group in range(8)], 3).flatten(3)
        targets = torch.cat([torch.tensor(labels[start : start + BATCH]), old_labels])
        loss = cross_entropy(plastic(rebuilt.permute(0, 3, 1, 2))[:, :4], targets)  # classes 0 to 3 were seen
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert len(buffer.drawn) == 8
    for ours, theirs in zip(strategy.model.plastic_layers.parameters(), plastic.parameters()):
        assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(("held", "new", "rows"), [(24, 5, 10), (7, 5, 3), (2, 5, 1), (1, 5, 0)])
def test_replayed_rows_are_mixtures_of_different_memories_however_few_there_are(held, new, rows, make_model):
    strategy, _ = learn(make_model, experiences=1, mem_size=held if held > 1 else 2, batch_replays=2, crop_scale=1.0)
    buffer = strategy.storage_policy
    if held == 1:
        buffer.labels[buffer.slots.release(1)] = -1
    buffer.__class__, buffer.drawn = LoggedBuffer, []
    maps, targets = strategy._mixed_memories(new)
    drawn, labels, _ = buffer.drawn[0]
    assert maps.shape == (rows, 8, 4, 4) and targets.shape == (rows, 6)
    assert len(drawn) == 2 * rows == len(drawn.unique(dim=0))
    assert torch.allclose(targets.sum(1), torch.ones(rows)) and not targets[:, 2:].any()
    decoded = buffer.to_maps(drawn, strategy.model)
    for number, (map_, target) in enumerate(zip(maps, targets)):
        first, second = decoded[number], decoded[number + rows]
        share = float(((map_ - second) * (first - second)).sum() / (first - second).square().sum())
        assert -1e-5 <= share <= 1 + 1e-5
        assert torch.allclose(map_, share * first + (1 - share) * second, atol=1e-4)
        mixed = torch.zeros(6)
        mixed[labels[number]] += share
        mixed[labels[number + rows]] += 1 - share
        assert torch.allclose(target, mixed, atol=1e-4)


def test_new_and_replayed_maps_are_cropped(make_model, monkeypatch):
    strategy, stream = learn(make_model, experiences=1, batch_replays=2)
    sizes = []

    def crops(maps, scale, random):
        sizes.append(len(maps))
        assert scale == 4 / 13
        return torch.zeros_like(maps)

    monkeypatch.setattr("crumb_avalanche.methods.remind.random_resized_crops", crops)
    inputs = []
    classify = strategy.model.classify
    strategy.model.classify = lambda maps: inputs.append(maps) or classify(maps)
    strategy.train(stream.train_stream[1], eval_streams=[])
    assert sizes == [BATCH, 20] + [BATCH, 4 * BATCH] * 7  # 2 memories are mixed for each of the 10 replayed maps
    assert len(inputs) == 8 and not any(maps.any() for maps in inputs) and len(inputs[-1]) == BATCH + 10


def test_inference_is_on_decoded_maps(make_model):
    strategy, stream = learn(make_model)
    outputs, images = outputs_of(strategy, stream.test_stream)
    model, quantizer = strategy.model.eval(), strategy.storage_policy.quantizer
    maps = model.features(images)
    with torch.no_grad():
        assert torch.allclose(outputs, model.classify(quantizer.decode(quantizer.encode(maps))), atol=1e-4)
        assert not torch.allclose(outputs, model.classify(maps), atol=1e-2)


def test_bytes_at_the_papers_cut():
    model = split_backbone("squeezenet1_0", None, n_classes=10, codebook=None)
    settings = RemindSettings()
    assert PQCodeBuffer.item_bytes(model) == REMIND.bytes_of_item(model, settings) == 5_408
    assert REMIND.fixed_bytes(model, settings, 10) == 524_288
    assert REMIND.memories_in_budget(model, 15 * 3 * 224**2, 10) == 320  # 417, the table not counted
    assert make_quantizer(8).centroids.shape == (8, 16, 1) and make_quantizer(64).centroids.shape == (32, 256, 2)
