"""REMIND against a plain loop, its memory under the cap, and the traps of the paper's port."""

import copy
from collections import Counter

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, interpolate
from watched import SIX, outputs_of, taught

from crumb_avalanche.memory.packing import unpack
from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.methods import remind
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.methods.remind import EvictLargest, PQCodeBuffer, some_locations
from crumb_avalanche.models.backbones import split_backbone

REMIND = STRATEGIES["remind"]
BATCH, RATE = 5, 0.002
PLAIN = dict(crop_scale=1.0, mixup_alpha=0.0)


def learn(experiences=3, mem_size=24, **method):
    """A strategy of six classes after some experiences of 20 images, and the stream."""
    settings = dict(learning_rate=RATE, eval_batch_size=128, first_epochs=3)
    return taught(
        "remind", experiences, SIX, mem_size=mem_size, settings=settings, method=method
    )


def images_of(experience):
    return torch.stack([item[0] for item in experience.dataset])


def test_every_memory_is_the_code_of_an_image_of_its_label_and_inference_is_on_decoded_maps():
    strategy, stream = learn(mem_size=30)
    buffer, model = strategy.storage_policy, strategy.model
    images = torch.cat([images_of(experience) for experience in stream.train_stream])
    labels = torch.cat(
        [
            torch.tensor(list(experience.dataset.targets))
            for experience in stream.train_stream
        ]
    )
    codes = (
        buffer.quantizer.encode(model.features(images)).permute(0, 2, 3, 1).flatten(1)
    )
    stored = unpack(buffer.rows, buffer.quantizer.bits, codes.shape[1])
    same = (stored[:, None] == codes[None]).all(2)  # (memories, images)
    assert (same.sum(1) == 1).all() and same.sum(
        0
    ).max() == 1  # one image each, none twice
    assert torch.equal(labels[same.long().argmax(1)], buffer.labels.long())
    outputs, images = outputs_of(strategy, stream.test_stream)
    maps = model.eval().features(images)
    with torch.no_grad():
        decoded = buffer.quantizer.decode(buffer.quantizer.encode(maps))
        assert torch.allclose(outputs, model.classify(decoded), atol=1e-4)
        assert not torch.allclose(outputs, model.classify(maps), atol=1e-2)


class LoggedBuffer(PQCodeBuffer):
    """Keeps the drawn memories."""

    def draw(self, count):
        slots = super().draw(count)
        self.drawn.append((self.rows[slots].clone(), self.labels[slots].long(), count))
        return slots


@pytest.mark.parametrize("replays", [1, 3])
def test_steps_are_those_of_a_plain_loop(replays):
    strategy, stream = learn(experiences=1, batch_replays=replays, mem_size=24, **PLAIN)
    buffer = strategy.storage_policy
    buffer.__class__, buffer.drawn = LoggedBuffer, []
    plastic = copy.deepcopy(strategy.model.plastic_layers).train()
    strategy.train(stream.train_stream[1])

    optimizer = torch.optim.SGD(
        plastic.parameters(), lr=RATE, momentum=0.9, weight_decay=1e-5
    )
    images, labels = (
        images_of(stream.train_stream[1]),
        list(stream.train_stream[1].dataset.targets),
    )
    centroids = buffer.quantizer.centroids
    seen = sorted(
        {
            label
            for experience in stream.train_stream[:2]
            for label in experience.dataset.targets
        }
    )
    for start, (rows, old_labels, count) in zip(
        range(0, len(images), BATCH), buffer.drawn
    ):
        assert count == replays * BATCH and len(rows) == count
        maps = strategy.model.features(images[start : start + BATCH])
        slices = (
            maps.permute(0, 2, 3, 1).unflatten(3, (centroids.shape[0], -1)).unsqueeze(4)
        )  # (B, H, W, m, 1, d)
        codes = (slices - centroids).square().sum(5).argmin(4)
        old = unpack(rows, buffer.quantizer.bits, 4 * 4 * 8).view(-1, 4, 4, 8)
        every = torch.cat([codes, old.long()])
        rebuilt = torch.stack(
            [centroids[group][every[..., group]] for group in range(8)], 3
        ).flatten(3)
        targets = torch.cat([torch.tensor(labels[start : start + BATCH]), old_labels])
        places = torch.tensor([seen.index(label) for label in targets.tolist()])
        loss = cross_entropy(plastic(rebuilt.permute(0, 3, 1, 2))[:, seen], places)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert len(buffer.drawn) == 4
    for ours, theirs in zip(
        strategy.model.plastic_layers.parameters(), plastic.parameters()
    ):
        assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("held", "new", "rows"), [(20, 5, 10), (7, 5, 3), (2, 5, 1), (1, 5, 0)]
)
def test_replayed_rows_are_mixtures_of_different_memories_however_few_there_are(
    held, new, rows
):
    strategy, stream = learn(
        experiences=1, mem_size=held if held > 1 else 2, batch_replays=2, crop_scale=1.0
    )
    buffer = strategy.storage_policy
    if held == 1:
        buffer.labels[buffer.slots.release(min(buffer.slots.by_class))] = -1
    buffer.__class__, buffer.drawn = LoggedBuffer, []
    memories = strategy._mixed_memories(new)
    maps, targets = memories.maps, memories.targets
    drawn, labels, _ = buffer.drawn[0]
    assert maps.shape == (rows, 8, 4, 4) and targets.shape == (rows, 6)
    assert len(drawn) == 2 * rows == len(drawn.unique(dim=0))
    seen = sorted(set(stream.train_stream[0].dataset.targets))
    assert all(
        torch.allclose(one.sum(1), torch.ones(rows))
        for one in (targets, targets[:, seen])
    )
    decoded = buffer.to_maps(drawn, strategy.model)
    for number, (map_, target) in enumerate(zip(maps, targets)):
        first, second = decoded[number], decoded[number + rows]
        share = float(
            ((map_ - second) * (first - second)).sum() / (first - second).square().sum()
        )
        assert -1e-5 <= share <= 1 + 1e-5
        assert torch.allclose(map_, share * first + (1 - share) * second, atol=1e-4)
        mixed = torch.zeros(6)
        mixed[labels[number]] += share
        mixed[labels[number + rows]] += 1 - share
        assert torch.allclose(target, mixed, atol=1e-4)


def test_new_and_replayed_maps_are_cropped(monkeypatch):
    strategy, stream = learn(experiences=1, batch_replays=2)
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
    assert (
        sizes == [BATCH, 20] + [BATCH, 4 * BATCH] * 3
    )  # 2 memories are mixed for each of the 10 replayed maps
    assert (
        len(inputs) == 4
        and not any(maps.any() for maps in inputs)
        and len(inputs[-1]) == BATCH + 10
    )


def test_bytes_at_the_papers_cut():
    model = split_backbone("squeezenet1_0", None, n_classes=10, codebook=None)
    settings = REMIND.settings()
    assert (
        PQCodeBuffer.item_bytes(model) == REMIND.bytes_of_item(model, settings) == 5_408
    )
    assert REMIND.fixed_bytes(model, settings, 10) == 524_288
    assert (
        REMIND.memories_in_budget(model, 15 * 3 * 224**2, 10) == 320
    )  # 417, the table not counted
    assert remind.make_quantizer(8).centroids.shape == (
        8,
        16,
        1,
    ) and remind.make_quantizer(64).centroids.shape == (
        32,
        256,
        2,
    )


def test_a_balanced_choice_by_hand():
    labels = [0] * 3 + [1] * 50 + [2] * 50
    chosen = remind.balanced_choice(labels, 23, np.random.default_rng(0))
    assert Counter(labels[place] for place in chosen) == {0: 3, 1: 10, 2: 10}
    assert chosen == sorted(set(chosen))
    assert chosen != remind.balanced_choice(labels, 23, np.random.default_rng(1))
    assert remind.balanced_choice([3, 3], 9, np.random.default_rng(0)) == [0, 1]
    # No place of a class is preferred.
    often = Counter(
        place
        for seed in range(300)
        for place in remind.balanced_choice([0] * 6, 2, np.random.default_rng(seed))
    )
    assert min(often.values()) > 60


def test_eviction_is_from_the_largest_class_with_equal_chances_for_the_new_image():
    gone = Counter()
    for seed in range(2000):
        rule, slots = EvictLargest(), Slots(4, seed)
        assert rule.choose(slots, [0, 0, 0, 1]) == [(0, 0), (1, 1), (2, 2), (3, 3)]
        chosen = rule.choose(slots, [0])
        gone[chosen[0][1] if chosen else "new"] += 1
        assert len(slots) == 4 and slots.count(1) == 1 and slots.count(0) == 3
    assert set(gone) == {0, 1, 2, "new"} and min(gone.values()) > 400
    slots = Slots(3, 0)
    assert len(EvictLargest().choose(slots, [0, 0, 0, 1, 2, 2, 2, 2])) >= 6
    assert sorted(slots.count(label) for label in (0, 1, 2)) == [1, 1, 1]


@pytest.mark.parametrize(("most", "rows"), [(10, 10), (25, 30), (1000, 90)])
def test_locations_are_of_all_images_and_no_more_than_asked_for(most, rows):
    """Each vector names its image and its place, and all channels of a location stay together."""
    numbers = torch.arange(90.0).view(10, 1, 3, 3)
    maps = torch.cat([numbers, -numbers], 1)
    held = some_locations(maps.split(3), 10, most, np.random.default_rng(0))
    assert held.shape == (rows, 2)
    assert torch.equal(held[:, 0], -held[:, 1]) and len(held.unique(dim=0)) == rows
    of_image = Counter((held[:, 0] // 9).int().tolist())
    assert set(of_image.values()) == {rows // 10} and len(of_image) == 10
    places = Counter((held[:, 0] % 9).int().tolist())
    assert len(places) > 2  # at random inside an image


@pytest.mark.parametrize(
    ("most", "images"), [(5, [0, 4, 8, 12, 16]), (40, list(range(20)))]
)
def test_the_tables_are_fitted_to_images_that_are_spread_over_the_first_experience(
    most, images, monkeypatch
):
    shown = []

    def watched(maps, *arguments):
        shown.append(torch.cat([*maps]))
        return some_locations(shown[0].split(3), *arguments)

    monkeypatch.setattr("crumb_avalanche.methods.remind.some_locations", watched)
    strategy, stream = learn(experiences=1, fit_vectors=most, centroids=4)
    assert torch.equal(
        shown[0], strategy.model.features(images_of(stream.train_stream[0])[images])
    )


@pytest.mark.parametrize(("height", "width"), [(13, 13), (4, 6)])
def test_crops_are_those_of_interpolate(height, width):
    random = np.random.default_rng(0)
    maps = torch.randn(40, 3, height, width)
    boxes = remind.random_boxes(40, height, width, 0.1, random)
    boxes[0] = [0, 0, height, width]
    boxes[1] = [1, 2, 1, 1]
    boxes[2] = [0, 0, 1, width]
    ours = remind.crop_and_resize(maps, boxes)
    for map_, (top, left, rows, columns), crop in zip(maps, boxes, ours):
        part = map_[None, :, top : top + rows, left : left + columns]
        assert torch.allclose(
            crop, interpolate(part, (height, width), mode="bilinear")[0], atol=1e-5
        )
    assert torch.equal(ours[0], maps[0])
    assert ours.shape == maps.shape and ours.is_contiguous(
        memory_format=torch.channels_last
    )


def test_boxes_lie_inside_and_have_the_areas_and_ratios_asked_for():
    boxes = remind.random_boxes(4000, 13, 13, 4 / 13, np.random.default_rng(1))
    top, left, rows, columns = boxes.T
    assert min(top.min(), left.min()) == 0
    assert (
        (top + rows).max() == 13
        and (left + columns).max() == 13
        and boxes.min(axis=0)[2:].min() >= 6
    )
    area = rows * columns / 169
    assert (
        area.min() > 4 / 13 - 0.08 and area.max() == 1
    )  # rows and columns are rounded
    assert (columns / rows).min() > 0.6 and (columns / rows).max() < 1.6
    # Uniform over the area but for boxes that do not fit.
    assert abs(np.median(area) - 0.6) < 0.1
    assert len(np.unique(boxes, axis=0)) > 300
    never_fits = remind.random_boxes(3, 2, 20, 1.0, np.random.default_rng(0))
    assert never_fits.tolist() == [[0, 0, 2, 20]] * 3
