"""Features of images: the input of the head, moments over locations, means over cells."""

import pytest
import torch
from torch.nn import functional

from crumb_avalanche.methods.features import FeatureMoments, cell_means, feature_length, pooled_features
from crumb_avalanche.models.backbones import split_backbone

MOMENTS = dict(maps=True, deviations=True, power=0.7)


def test_pooled_features_are_the_input_of_the_head(make_model, pixels):
    model = make_model(codebook=False).train()
    layers = model.plastic_layers
    by_hand = layers.conv(model.features(pixels)).relu().mean((2, 3))
    assert torch.allclose(pooled_features(model, pixels), by_hand, atol=1e-5)
    assert model.training and feature_length(model) == 8
    # A convolutional head behind a dropout, with a pool after it.
    squeezenet = split_backbone("squeezenet1_0", None, n_classes=3, image_size=64, codebook=None).train()
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    by_hand = squeezenet.plastic_layers.features(squeezenet.features(images)).mean((2, 3))
    assert feature_length(squeezenet) == 512
    assert torch.allclose(pooled_features(squeezenet, images), by_hand, atol=1e-5)


def test_moments_by_hand():
    model = split_backbone("small_cnn", n_classes=3, weights=None, image_size=32, codebook=None)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    maps = model.features(images)
    head = model.eval().plastic_layers.features(maps).mean((2, 3))
    means, deviations = maps.mean((2, 3)), maps.std((2, 3), correction=0)
    model.train()
    for changes, parts in (
        ({}, [means**0.7, deviations**0.7, head**0.7]),
        ({"power": 0.5}, [means.sqrt(), deviations.sqrt(), head.sqrt()]),
        ({"power": 1.0, "deviations": False}, [means, head]),
        ({"maps": False}, [head**0.7]),
    ):
        features = FeatureMoments(**{**MOMENTS, **changes})
        torch.testing.assert_close(features(model, images), torch.cat(parts, 1), rtol=1e-4, atol=1e-5)
        assert features.length(model) == features(model, images).shape[1]
        torch.testing.assert_close(features.of_maps(model, maps), features(model, images))
    assert model.training
    # Of equal lengths.
    plain, equal = (FeatureMoments(**MOMENTS, equal_lengths=equal).of_maps(model, maps) for equal in (False, True))
    sizes = [model.map_shape[0], model.map_shape[0], plain.shape[1] - 2 * model.map_shape[0]]
    for before, after, size in zip(plain.split(sizes, 1), equal.split(sizes, 1), sizes):
        lengths = before.norm(dim=1, keepdim=True)
        torch.testing.assert_close(after, before / lengths * size**0.5)


@pytest.mark.parametrize(("height", "width", "cells"), [(13, 13, 2), (5, 8, 3), (1, 7, 2), (4, 4, 4)])
def test_cells_are_those_of_adaptive_pooling(height, width, cells):
    maps = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(cell_means(maps, cells), functional.adaptive_avg_pool2d(maps, cells).flatten(1))


@pytest.mark.parametrize("deviations", [False, True])
def test_cells_take_the_place_of_the_means(deviations, model):
    maps, channels = torch.rand(2, *model.map_shape), model.map_shape[0]
    cells = FeatureMoments(maps=True, deviations=deviations, cells=2).of_maps(model, maps)
    usual = FeatureMoments(maps=True, deviations=deviations).of_maps(model, maps)
    torch.testing.assert_close(cells[:, : 4 * channels], cell_means(maps, 2))
    torch.testing.assert_close(cells[:, 4 * channels :], usual[:, channels:])
