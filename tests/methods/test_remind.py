"""REMIND against a plain loop, its memory, and the traps of the paper's port."""

import copy
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from small_models import stacked_images
from torch.nn.functional import cross_entropy, interpolate
from watched import SIX, outputs_of, taught

from crumb_avalanche.memory.packing import unpack
from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.methods import remind
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.methods.remind import EvictLargest, PQCodeBuffer, draw_locations
from crumb_avalanche.models.split_backbone import split_backbone

REMIND = STRATEGIES["remind"]
BATCH = 5
RATE = 0.002
PLAIN = dict(crop_scale=1.0, mixup_alpha=0.0)
BUDGET = 15 * 3 * 224**2  # bytes


def learn(experiences=3, mem_size=24, epochs=1, **method):
    """A strategy after some experiences of 20 images of two classes, and the stream."""
    settings = dict(
        learning_rate=RATE, eval_batch_size=128, first_epochs=3, epochs=epochs
    )
    return taught(
        "remind", experiences, SIX, mem_size=mem_size, settings=settings, method=method
    )


def images_of(experience):
    return stacked_images(experience.dataset)


def labels_of(experience):
    return torch.tensor(list(experience.dataset.targets))


def codes_of(buffer, model, images):
    """``(B, H * W * groups)``, in the order of a row of the buffer."""
    codes = buffer.quantizer.encode(model.features(images))
    return codes.permute(0, 2, 3, 1).flatten(1)


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_memory_is_the_code_of_an_image(epochs):
    strategy, stream = learn(mem_size=30, epochs=epochs)
    buffer = strategy.storage_policy
    images = torch.cat(list(map(images_of, stream.train_stream)))
    labels = torch.cat(list(map(labels_of, stream.train_stream)))
    codes = codes_of(buffer, strategy.model, images)
    stored = unpack(buffer.rows, buffer.quantizer.bits, codes.shape[1])
    same = (stored[:, None] == codes[None]).all(2)  # (memories, images)
    assert (same.sum(1) == 1).all()
    assert same.sum(0).max() == 1  # none twice
    assert torch.equal(labels[same.long().argmax(1)], buffer.labels.long())


def test_answers_are_of_decoded_maps():
    strategy, stream = learn(mem_size=30)
    quantizer = strategy.storage_policy.quantizer
    outputs, images = outputs_of(strategy, stream.test_stream)
    model = strategy.model.eval()
    maps = model.features(images)
    with torch.no_grad():
        decoded = quantizer.decode(quantizer.encode(maps))
        assert torch.allclose(outputs, model.classify(decoded), atol=1e-4)
        assert not torch.allclose(outputs, model.classify(maps), atol=1e-2)


@dataclass
class Draw:
    """What was drawn from a buffer: rows and labels, and how many were asked for."""

    rows: torch.Tensor
    labels: torch.Tensor
    count: int


class LoggedBuffer(PQCodeBuffer):
    """Keeps the drawn memories."""

    def draw(self, count):
        slots = super().draw(count)
        labels = self.labels[slots].long()
        self.drawn.append(Draw(self.rows[slots].clone(), labels, count))
        return slots


def logged(strategy):
    """The buffer of a strategy, which keeps what is drawn from now on."""
    buffer = strategy.storage_policy
    buffer.__class__ = LoggedBuffer
    buffer.drawn = []
    return buffer


def nearest_codes(maps, centroids):
    """``(B, H, W, groups)``, by distances to all centroids ``(groups, rows, d)``."""
    groups = maps.permute(0, 2, 3, 1).unflatten(3, (centroids.shape[0], -1))
    return (groups.unsqueeze(4) - centroids).square().sum(5).argmin(4)


def decoded_maps(codes, centroids):
    """``(B, C, H, W)`` of ``(B, H, W, groups)`` codes."""
    of_groups = [centroids[group][codes[..., group]] for group in range(8)]
    return torch.stack(of_groups, 3).flatten(3).permute(0, 3, 1, 2)


@pytest.mark.parametrize("replays", [1, 3])
def test_steps_are_those_of_a_plain_loop(replays):
    strategy, stream = learn(experiences=1, batch_replays=replays, **PLAIN)
    buffer = logged(strategy)
    plastic = copy.deepcopy(strategy.model.plastic_layers).train()
    strategy.train(stream.train_stream[1])

    optimizer = torch.optim.SGD(
        plastic.parameters(), lr=RATE, momentum=0.9, weight_decay=1e-5
    )
    images = images_of(stream.train_stream[1])
    labels = labels_of(stream.train_stream[1])
    centroids = buffer.quantizer.centroids
    seen = sorted({*labels_of(stream.train_stream[0]).tolist(), *labels.tolist()})
    assert len(buffer.drawn) == 4
    for step, draw in enumerate(buffer.drawn):
        assert draw.count == replays * BATCH == len(draw.rows)
        batch = slice(step * BATCH, (step + 1) * BATCH)
        new = nearest_codes(strategy.model.features(images[batch]), centroids)
        old = unpack(draw.rows, buffer.quantizer.bits, 4 * 4 * 8).view(-1, 4, 4, 8)
        maps = decoded_maps(torch.cat([new, old.long()]), centroids)
        targets = torch.cat([labels[batch], draw.labels]).tolist()
        columns = torch.tensor(list(map(seen.index, targets)))
        loss = cross_entropy(plastic(maps)[:, seen], columns)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for ours, theirs in zip(
        strategy.model.plastic_layers.parameters(), plastic.parameters(), strict=True
    ):
        assert torch.allclose(ours, theirs, atol=1e-5)


def release_all_but(buffer, count):
    """Give up memories until so many are left."""
    while len(buffer) > count:
        label = max(buffer.slots.by_class, key=buffer.slots.count)
        buffer.labels[buffer.slots.release(label)] = -1


FEW = [(20, 5, 10), (7, 5, 3), (2, 5, 1), (1, 5, 0)]


@pytest.mark.parametrize(("stored", "new", "rows"), FEW)
def test_mixtures_are_of_different_memories(stored, new, rows):
    strategy, _ = learn(experiences=1, batch_replays=2, crop_scale=1.0)
    buffer = logged(strategy)
    release_all_but(buffer, stored)
    memories = strategy._mixed_memories(new)
    (draw,) = buffer.drawn
    assert memories.maps.shape == (rows, 8, 4, 4)
    assert memories.targets.shape == (rows, 6)
    assert len(draw.rows) == 2 * rows == len(draw.rows.unique(dim=0))


@pytest.mark.parametrize(("stored", "new", "rows"), FEW)
def test_targets_are_shares_of_seen_classes(stored, new, rows):
    strategy, stream = learn(experiences=1, batch_replays=2, crop_scale=1.0)
    release_all_but(strategy.storage_policy, stored)
    targets = strategy._mixed_memories(new).targets
    seen = sorted(set(labels_of(stream.train_stream[0]).tolist()))
    assert torch.allclose(targets.sum(1), torch.ones(rows))
    assert torch.allclose(targets[:, seen].sum(1), torch.ones(rows))


@pytest.mark.parametrize(("stored", "new", "rows"), FEW)
def test_maps_and_targets_are_mixed_alike(stored, new, rows):
    strategy, _ = learn(experiences=1, batch_replays=2, crop_scale=1.0)
    buffer = logged(strategy)
    release_all_but(buffer, stored)
    memories = strategy._mixed_memories(new)
    (draw,) = buffer.drawn
    decoded = buffer.to_maps(draw.rows, strategy.model)
    first, second = decoded[:rows], decoded[rows:]
    difference = first - second
    along = ((memories.maps - second) * difference).sum((1, 2, 3))
    shares = along / difference.square().sum((1, 2, 3))
    assert ((shares >= -1e-5) & (shares <= 1 + 1e-5)).all()
    of_maps = shares.view(-1, 1, 1, 1)
    mixed = of_maps * first + (1 - of_maps) * second
    assert torch.allclose(memories.maps, mixed, atol=1e-4)
    one_hot = torch.eye(6)[draw.labels]
    targets = (
        shares.view(-1, 1) * one_hot[:rows]
        + (1 - shares).view(-1, 1) * (one_hot[rows:])
    )
    assert torch.allclose(memories.targets, targets, atol=1e-4)


def test_new_and_replayed_maps_are_cropped(monkeypatch):
    strategy, stream = learn(experiences=1, batch_replays=2)
    sizes = []
    inputs = []
    classify = strategy.model.classify

    def crops(maps, scale, random):
        assert scale == 4 / 13
        sizes.append(len(maps))
        return torch.zeros_like(maps)

    def noted(maps):
        inputs.append(maps)
        return classify(maps)

    monkeypatch.setattr(remind, "random_resized_crops", crops)
    strategy.model.classify = noted
    strategy.train(stream.train_stream[1], eval_streams=[])
    # Two memories are mixed for each of the ten replayed maps.
    assert sizes == [BATCH, 20] + [BATCH, 4 * BATCH] * 3
    assert not any(maps.any() for maps in inputs)
    assert list(map(len, inputs)) == [BATCH + 10] * 4


@pytest.fixture(scope="module")
def squeezenet():
    return split_backbone("squeezenet1_0", None, n_classes=10, codebook=None)


def test_bytes_of_a_memory_at_the_papers_cut(squeezenet):
    assert PQCodeBuffer.item_bytes(squeezenet) == 5_408
    assert REMIND.bytes_of_item(squeezenet, REMIND.settings()) == 5_408


def test_the_table_is_charged_to_the_budget(squeezenet):
    assert REMIND.fixed_bytes(squeezenet, REMIND.settings(), 10) == 524_288
    # 417, the table not counted.
    assert REMIND.memories_in_budget(squeezenet, BUDGET, 10) == 320


@pytest.mark.parametrize(("channels", "shape"), [(8, (8, 16, 1)), (64, (32, 256, 2))])
def test_tables_by_the_number_of_channels(channels, shape):
    assert remind.make_quantizer(channels).centroids.shape == shape


def chosen(labels, count, seed=0):
    return remind.balanced_choice(labels, count, np.random.default_rng(seed))


def test_a_balanced_choice_by_hand():
    labels = [0] * 3 + [1] * 50 + [2] * 50
    positions = chosen(labels, 23)
    assert Counter(labels[position] for position in positions) == {0: 3, 1: 10, 2: 10}
    assert positions == sorted(set(positions))
    assert positions != chosen(labels, 23, seed=1)


def test_a_choice_of_more_than_there_are():
    assert chosen([3, 3], 9) == [0, 1]


def test_no_position_of_a_class_is_preferred():
    drawn = Counter()
    for seed in range(300):
        drawn.update(chosen([0] * 6, 2, seed))
    assert min(drawn.values()) > 60


def test_eviction_has_equal_chances():
    """The memories of the largest class, and the new image of it."""
    gone = Counter()
    for seed in range(2000):
        rule = EvictLargest()
        slots = Slots(4, seed)
        rule.choose(slots, [0, 0, 0, 1])
        stored = rule.choose(slots, [0])
        gone[stored[0][1] if stored else "new"] += 1
    assert set(gone) == {0, 1, 2, "new"}
    assert min(gone.values()) > 400


@pytest.mark.parametrize("seed", range(20))
def test_eviction_is_from_the_largest_class(seed):
    rule = EvictLargest()
    slots = Slots(4, seed)
    assert rule.choose(slots, [0, 0, 0, 1]) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    rule.choose(slots, [0])
    assert len(slots) == 4
    assert slots.count(1) == 1
    assert slots.count(0) == 3


def test_eviction_balances_the_classes():
    slots = Slots(3, 0)
    stored = EvictLargest().choose(slots, [0, 0, 0, 1, 2, 2, 2, 2])
    assert len(stored) >= 6
    assert sorted(map(slots.count, (0, 1, 2))) == [1, 1, 1]


@pytest.mark.parametrize(("most", "rows"), [(10, 10), (25, 30), (1000, 90)])
def test_locations_are_of_all_images(most, rows):
    """Each vector names its image and its location; its channels stay together."""
    numbers = torch.arange(90.0).view(10, 1, 3, 3)
    maps = torch.cat([numbers, -numbers], 1)
    vectors = draw_locations(maps.split(3), 10, most, np.random.default_rng(0))
    assert vectors.shape == (rows, 2)
    assert torch.equal(vectors[:, 0], -vectors[:, 1])
    assert len(vectors.unique(dim=0)) == rows
    of_image = Counter((vectors[:, 0] // 9).int().tolist())
    assert of_image == dict.fromkeys(range(10), rows // 10)
    locations = Counter((vectors[:, 0] % 9).int().tolist())
    assert len(locations) > 2  # at random inside an image


@pytest.mark.parametrize(
    ("most", "images"), [(5, [0, 4, 8, 12, 16]), (40, list(range(20)))]
)
def test_tables_are_fitted_to_spread_images(most, images, monkeypatch):
    fitted_to = []

    def watched(maps, **keywords):
        fitted_to.append(torch.cat([*maps]))
        return draw_locations(fitted_to[0].split(3), **keywords)

    monkeypatch.setattr(remind, "draw_locations", watched)
    strategy, stream = learn(experiences=1, fit_vectors=most, centroids=4)
    expected = images_of(stream.train_stream[0])[images]
    assert torch.equal(fitted_to[0], strategy.model.features(expected))


def crops_and_boxes(height, width):
    random = np.random.default_rng(0)
    maps = torch.randn(40, 3, height, width, generator=torch.Generator().manual_seed(0))
    boxes = remind.random_boxes(40, height, width, 0.1, random)
    boxes[0] = [0, 0, height, width]
    boxes[1] = [1, 2, 1, 1]
    boxes[2] = [0, 0, 1, width]
    return maps, boxes


@pytest.mark.parametrize("number", range(40))
@pytest.mark.parametrize(("height", "width"), [(13, 13), (4, 6)])
def test_a_crop_is_that_of_interpolate(height, width, number):
    maps, boxes = crops_and_boxes(height, width)
    crop = remind.crop_and_resize(maps, boxes)[number]
    top, left, rows, columns = boxes[number]
    box = maps[[number], :, top : top + rows, left : left + columns]
    expected = interpolate(box, (height, width), mode="bilinear")[0]
    assert torch.allclose(crop, expected, atol=1e-5)


@pytest.mark.parametrize(("height", "width"), [(13, 13), (4, 6)])
def test_the_whole_map_stays_as_it_is(height, width):
    maps, boxes = crops_and_boxes(height, width)
    crops = remind.crop_and_resize(maps, boxes)
    assert torch.equal(crops[0], maps[0])
    assert crops.shape == maps.shape
    assert crops.is_contiguous(memory_format=torch.channels_last)


@pytest.fixture(scope="module")
def boxes():
    """Top, left, rows and columns of 4,000 boxes."""
    return remind.random_boxes(4000, 13, 13, 4 / 13, np.random.default_rng(1)).T


def test_boxes_lie_inside(boxes):
    top, left, rows, columns = boxes
    assert top.min() == left.min() == 0
    assert (top + rows).max() == (left + columns).max() == 13
    assert min(rows.min(), columns.min()) >= 6


def test_boxes_have_the_areas(boxes):
    _, _, rows, columns = boxes
    area = rows * columns / 169
    assert area.min() > 4 / 13 - 0.08  # rows and columns are rounded
    assert area.max() == 1
    # Uniform over the area but for boxes that do not fit.
    assert abs(np.median(area) - 0.6) < 0.1


def test_boxes_have_the_ratios(boxes):
    _, _, rows, columns = boxes
    ratio = columns / rows
    assert 0.6 < ratio.min() < ratio.max() < 1.6


def test_boxes_are_different(boxes):
    assert len(np.unique(boxes, axis=1).T) > 300


def test_a_box_that_never_fits_is_the_map():
    boxes_drawn = remind.random_boxes(3, 2, 20, 1.0, np.random.default_rng(0))
    assert boxes_drawn.tolist() == [[0, 0, 2, 20]] * 3
