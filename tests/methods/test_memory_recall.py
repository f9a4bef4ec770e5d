"""Memory Recall: class Gaussians against the definition over all maps, what is drawn from them, and their bytes."""

import pytest
import torch

from crumb_avalanche.memory.buffers import StreamBatch
from crumb_avalanche.methods.memory_recall import GaussianBuffer, MemoryRecallSettings
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.models.backbones import split_backbone

MEMORY_RECALL = STRATEGIES["memory_recall"]
BOTH = [MemoryRecallSettings(), MemoryRecallSettings(per_channel=False)]


def maps_of(labels, seed=0, lowest=0.0):
    """``(N, 8, 4, 4)`` maps whose channels and locations have means and spreads of their own."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(labels), 8, 4, 4, generator=generator)
    place = torch.arange(8 * 16.0).view(8, 4, 4) / 40
    return (
        noise * (1 + place) + place + torch.tensor(labels).view(-1, 1, 1, 1)
    ).clamp_min(lowest)


def feed(buffer, model, maps, labels, sizes):
    buffer.begin_experience(labels, 4)
    start = 0
    for size in sizes:
        part = slice(start, start + size)
        buffer.store(
            StreamBatch(torch.tensor(labels[part]), maps[part], None, None), model
        )
        start += size
    assert start == len(labels)


@pytest.mark.parametrize("settings", BOTH, ids=["per channel", "per value"])
def test_running_statistics_are_those_of_all_maps_at_once(settings, model):
    labels = [0] * 7 + [2, 0, 2, 2] * 5 + [2] * 3
    maps = maps_of(labels)
    buffer = GaussianBuffer(4, settings=settings)
    feed(buffer, model, maps, labels, [1, 5, 9, 2, 13])
    assert buffer.classes == [0, 2] and len(buffer) == 2
    for label in (0, 2):
        own = maps[torch.tensor(labels) == label].double()
        axes = (0, 2, 3) if settings.per_channel else 0
        row = buffer.rows[buffer.slots.by_class[label][0]]
        means, deviations = row[:-2].view(2, -1)
        # Kept location by location, as channels-last maps are.
        expected = [
            value if settings.per_channel else value.permute(1, 2, 0).reshape(-1)
            for value in (own.mean(axes), own.std(axes, correction=0))
        ]
        assert torch.allclose(means, expected[0].float(), rtol=1e-5, atol=1e-6)
        assert torch.allclose(deviations, expected[1].float(), rtol=1e-4, atol=1e-5)
        assert row[-1] == labels.count(label) and row[-2] == own.min()


@pytest.mark.parametrize("settings", BOTH, ids=["per channel", "per value"])
def test_drawn_maps_have_the_mean_and_the_deviation_of_their_class(settings, model):
    labels = [0, 1] * 60
    maps = maps_of(labels, lowest=-torch.inf)
    buffer = GaussianBuffer(2, settings=settings)
    feed(buffer, model, maps, labels, [40] * 3)
    slots = torch.tensor([buffer.slots.by_class[1][0]]).repeat(3000)
    drawn, drawn_labels = buffer.replay(slots, model)
    assert drawn.shape == (3000, 8, 4, 4) and set(drawn_labels.tolist()) == {1}
    own = maps[1::2]
    axes = (0, 2, 3) if settings.per_channel else 0
    assert (drawn.mean(axes) - own.mean(axes)).abs().max() < 0.4
    assert (drawn.std(axes) / own.std(axes) - 1).abs().max() < 0.1
    assert drawn.min() < 0  # the class had negative values too
    assert drawn.is_contiguous(memory_format=torch.channels_last)
    assert not torch.equal(drawn[0], drawn[1])


def test_draws_are_clamped_where_no_value_was_negative_and_a_row_is_no_image(model):
    labels = [0, 1] * 8
    maps = maps_of(labels)
    maps[1::2] -= 1
    for clamp in (True, False):
        buffer = GaussianBuffer(
            2, settings=None if clamp else MemoryRecallSettings(clamp=False)
        )  # clamped by default
        feed(buffer, model, maps, labels, [16])
        lowest = [
            float(buffer.replay(torch.full((50,), slot), model)[0].min())
            for slot in (0, 1)
        ]
        assert lowest[1] < -1 and (lowest[0] == 0) == clamp and lowest[0] <= 0
    with pytest.raises(
        NotImplementedError, match="a row of this buffer is a class, not an image"
    ):
        buffer.to_rows(None, [0], model)


def test_bytes():
    model = split_backbone("squeezenet1_0", None, n_classes=10, codebook=None)
    assert [MEMORY_RECALL.bytes_of_item(model, settings) for settings in BOTH] == [
        4_104,
        692_232,
    ]
    budget = 15 * 3 * 224**2
    assert [
        MEMORY_RECALL.memories_in_budget(model, budget, 10, settings)
        for settings in BOTH
    ] == [550, 3]
    assert GaussianBuffer.item_bytes(model) == 4_104
