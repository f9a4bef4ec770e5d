"""A warning where a network stays near chance on the first experience."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from watched import train

from crumb_avalanche.memory.buffers import CodeBuffer, ImageBuffer, StreamBatch
from crumb_avalanche.training.first_experience import IMAGES, FirstExperience

WORDS = r"after the first experience the network names \d+ % of its own images"


class Names(nn.Module):
    """A network that names what its map says, after some mistakes.

    A map ``(1, 2, 1)`` has a label, and whether it is mistaken.
    """

    codes_error: float | None = None
    was_training: bool | None = None  # when it was asked

    def classify(self, maps):
        self.was_training = self.training
        label, is_wrong = maps.flatten(1).unbind(1)
        named = (label + is_wrong).long() % 4
        return nn.functional.one_hot(named, 4).float()


def finish(right, wrong, classes=2, codes_error=None):
    """Test a network on so many images that it names right and wrong, and return it."""
    labels = torch.arange(right + wrong) % classes
    is_wrong = torch.arange(right + wrong) >= right
    maps = torch.stack([labels, is_wrong], 1).float().view(-1, 1, 2, 1)
    batch = StreamBatch(labels=labels, feature_map=maps, codes=None, pixels=None)
    first = FirstExperience()
    first.observe(batch, 0, len(labels))
    model = Names()
    model.codes_error = codes_error
    first.finish(model, classes, mask=lambda logits: logits)
    return model


def test_the_network_is_asked_without_dropout():
    model = finish(20, 0)
    assert model.was_training is False
    assert model.training


@pytest.mark.parametrize(("right", "wrong"), [(10, 10), (12, 8), (0, 20)])
def test_near_chance_there_is_a_warning(right, wrong):
    with pytest.warns(UserWarning, match=WORDS):
        finish(right, wrong)


@pytest.mark.parametrize(
    ("right", "wrong", "classes"),
    [(20, 0, 2), (14, 6, 2), (10, 10, 4), (0, 20, 1), (0, 0, 1)],
    ids=["all right", "most right", "twice chance", "one class", "no image"],
)
def test_else_there_is_none(right, wrong, classes):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        finish(right, wrong, classes)


@pytest.mark.parametrize(
    ("codes_error", "words"),
    [(None, "other learning rates"), (0.8, "codes that keep more .* than 20 %")],
)
def test_it_says_what_to_do(codes_error, words):
    with pytest.warns(UserWarning, match=words):
        finish(0, 20, codes_error=codes_error)


def test_good_codes_are_not_blamed():
    with pytest.warns(UserWarning) as caught:
        finish(0, 20, codes_error=0.2)
    assert "codes that" not in str(caught[0].message)


@pytest.mark.parametrize("images", [1, 31, 32, 33, 400])
def test_images_are_spread_over_the_experience(images):
    first = FirstExperience()
    size = 7
    for start in range(0, images, size):
        count = min(size, images - start)
        numbers = torch.arange(start, start + count)
        maps = numbers.float().view(-1, 1, 1, 1)
        batch = StreamBatch(numbers, feature_map=maps, codes=None, pixels=None)
        first.observe(batch, start, images)
    numbers = list(map(int, first._maps))
    assert len(numbers) == min(images, IMAGES)
    assert numbers[0] == 0
    gaps = np.diff([*numbers, images])  # the last one to the end of the experience
    assert gaps.max() <= math.ceil(images / IMAGES)


def trained_with(rate, make_model, make_stream, buffer):
    """Train on the small stream, whose first experience has two classes."""
    model = make_model()
    return train(
        model,
        make_stream(),
        buffer,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
    )


@pytest.mark.parametrize("buffer", [CodeBuffer, ImageBuffer])
def test_a_rate_of_nothing_is_warned_of(make_model, make_stream, buffer):
    with pytest.warns(UserWarning, match=WORDS):
        trained_with(1e-12, make_model, make_stream, buffer(8))


def test_maps_are_not_held_longer(make_model, make_stream):
    strategy = trained_with(1e-2, make_model, make_stream, CodeBuffer(8))
    assert strategy.memory._first_experience._maps == []
