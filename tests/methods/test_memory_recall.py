"""Memory Recall: class Gaussians against the definition, draws from them, bytes."""

import pytest
import torch
from watched import built

from crumb_avalanche.memory.buffers import StreamBatch
from crumb_avalanche.methods.memory_recall import GaussianBuffer, MemoryRecallSettings
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.methods.remind import refuse_pixels
from crumb_avalanche.models.split_backbone import split_backbone

MEMORY_RECALL = STRATEGIES["memory_recall"]
PER_CHANNEL = MemoryRecallSettings()
PER_VALUE = MemoryRecallSettings(per_channel=False)
each_kind = pytest.mark.parametrize(
    "settings", [PER_CHANNEL, PER_VALUE], ids=["per channel", "per value"]
)


def maps_of(labels, seed=0, lowest=0.0):
    """``(N, 8, 4, 4)``, each channel and location with its own mean and spread."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(labels), 8, 4, 4, generator=generator)
    ramp = torch.arange(8 * 16.0).view(8, 4, 4) / 40
    of_labels = torch.tensor(labels).view(-1, 1, 1, 1)
    return (noise * (1 + ramp) + ramp + of_labels).clamp_min(lowest)


def feed(buffer, model, maps, labels, sizes):
    """Store maps in batches of some sizes."""
    assert sum(sizes) == len(labels)
    buffer.begin_experience(labels, 4)
    of_batches = torch.tensor(labels).split(sizes)
    for batch_maps, batch_labels in zip(maps.split(sizes), of_batches):
        batch = StreamBatch(batch_labels, batch_maps, None, refuse_pixels)
        buffer.store(batch, model)


class Fed:
    """A buffer after maps of classes 0 and 2, which come back."""

    def __init__(self, settings, model):
        self.settings = settings
        self.labels = [0] * 7 + [2, 0, 2, 2] * 5 + [2] * 3
        self.maps = maps_of(self.labels)
        self.buffer = GaussianBuffer(4, settings=settings)
        feed(self.buffer, model, self.maps, self.labels, [1, 5, 9, 2, 13])

    def row(self, label):
        return self.buffer.rows[self.buffer.slots.by_class[label][0]]

    def own(self, label):
        return self.maps[torch.tensor(self.labels) == label].double()

    def in_order(self, values):
        """Values of a map location by location, as channels-last maps are."""
        if self.settings.per_channel:
            return values.float()
        return values.permute(1, 2, 0).reshape(-1).float()

    @property
    def axes(self):
        return (0, 2, 3) if self.settings.per_channel else 0


@each_kind
def test_a_row_is_a_class(settings, model):
    buffer = Fed(settings, model).buffer
    assert buffer.classes == [0, 2]
    assert len(buffer) == 2


@pytest.mark.parametrize("label", [0, 2])
@each_kind
def test_running_means_are_those_of_all_maps(settings, model, label):
    fed = Fed(settings, model)
    means, _ = fed.row(label)[:-2].view(2, -1)
    expected = fed.in_order(fed.own(label).mean(fed.axes))
    assert torch.allclose(means, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("label", [0, 2])
@each_kind
def test_running_deviations_are_those_of_all_maps(settings, model, label):
    fed = Fed(settings, model)
    _, deviations = fed.row(label)[:-2].view(2, -1)
    expected = fed.in_order(fed.own(label).std(fed.axes, correction=0))
    assert torch.allclose(deviations, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("label", [0, 2])
@each_kind
def test_a_row_has_count_and_lowest_value(settings, model, label):
    fed = Fed(settings, model)
    lowest, count = fed.row(label)[-2:].tolist()
    assert count == fed.labels.count(label)
    assert lowest == float(fed.own(label).min())


def test_a_class_of_a_large_number(model):
    """More than int16 holds; the class before it keeps its label."""
    labels = [3, 40_000]
    buffer = GaussianBuffer(2)
    feed(buffer, model, maps_of(labels), labels, [1, 1])
    assert buffer.labels.tolist() == labels


class Drawn:
    """3,000 maps drawn of class 1, which had negative values, too."""

    def __init__(self, settings, model):
        labels = [0, 1] * 60
        maps = maps_of(labels, lowest=-torch.inf)
        buffer = GaussianBuffer(2, settings=settings)
        feed(buffer, model, maps, labels, [40] * 3)
        slots = torch.tensor([buffer.slots.by_class[1][0]]).repeat(3000)
        self.maps, self.labels = buffer.replay(slots, model)
        self.own = maps[1::2]
        self.axes = (0, 2, 3) if settings.per_channel else 0


@each_kind
def test_drawn_maps_are_of_the_class(settings, model):
    drawn = Drawn(settings, model)
    assert drawn.maps.shape == (3000, 8, 4, 4)
    assert set(drawn.labels.tolist()) == {1}
    assert drawn.maps.is_contiguous(memory_format=torch.channels_last)


@each_kind
def test_drawn_maps_have_the_mean(settings, model):
    drawn = Drawn(settings, model)
    difference = drawn.maps.mean(drawn.axes) - drawn.own.mean(drawn.axes)
    assert difference.abs().max() < 0.4


@each_kind
def test_drawn_maps_have_the_deviation(settings, model):
    drawn = Drawn(settings, model)
    ratio = drawn.maps.std(drawn.axes) / drawn.own.std(drawn.axes)
    assert (ratio - 1).abs().max() < 0.1


@each_kind
def test_drawn_maps_are_different(settings, model):
    drawn = Drawn(settings, model)
    assert drawn.maps.min() < 0
    assert not torch.equal(drawn.maps[0], drawn.maps[1])


def lowest_draws(settings, model):
    """Of a class without negative values, and of one with some."""
    labels = [0, 1] * 8
    maps = maps_of(labels)
    maps[1::2] -= 1
    buffer = GaussianBuffer(2, settings=settings)
    feed(buffer, model, maps, labels, [16])
    drawn = [buffer.replay(torch.full((50,), slot), model)[0] for slot in (0, 1)]
    return [float(maps.min()) for maps in drawn]


def test_draws_are_clamped_by_default(model):
    """Where no value was negative."""
    without, with_negative = lowest_draws(None, model)
    assert without == 0
    assert with_negative < -1


def test_draws_are_not_clamped_on_request(model):
    lowest = lowest_draws(MemoryRecallSettings(clamp=False), model)
    assert max(lowest) < 0


def test_a_row_is_no_image():
    words = "a row of this buffer is a class, not an image"
    with pytest.raises(NotImplementedError, match=words):
        GaussianBuffer(2).to_rows(None, [0], None)


@pytest.fixture(scope="module")
def squeezenet():
    return split_backbone("squeezenet1_0", None, n_classes=10, codebook=None)


@pytest.mark.parametrize(
    ("settings", "size", "classes"),
    [(PER_CHANNEL, 4_104, 550), (PER_VALUE, 692_232, 3)],
    ids=["per channel", "per value"],
)
def test_bytes_at_the_papers_cut(squeezenet, settings, size, classes):
    assert MEMORY_RECALL.bytes_of_item(squeezenet, settings) == size
    budget = 15 * 3 * 224**2
    bought = MEMORY_RECALL.memories_in_budget(squeezenet, budget, 10, settings)
    assert bought == classes


def test_bytes_of_the_default(squeezenet):
    assert GaussianBuffer.item_bytes(squeezenet) == 4_104


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({}, "raise the budget$"),
        ({"per_channel": False}, "raise the budget, or leave per_channel on$"),
    ],
)
def test_a_small_budget_is_told(make_model, settings, advice):
    with pytest.raises(ValueError, match=f"buys 2 .* has 4 classes; {advice}"):
        built("memory_recall", make_model(codebook=False), 2, method=settings)


def test_an_unknown_selection_rule_is_told(make_model):
    settings = {"selection_rule": "typo"}
    with pytest.raises(ValueError, match="selection rule 'typo' is unknown; known are"):
        built("memory_recall", make_model(codebook=False), settings=settings)
