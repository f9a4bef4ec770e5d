"""Regularised discriminant analysis against Gaussians written down over all images at once."""

import pytest
import torch
from closed_form_cases import discriminant
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal
from torch.nn import functional

from crumb_avalanche.methods.features import FeatureMoments, cell_means, mean_and_deviation
from crumb_avalanche.methods.gaussians import PackedScatter
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.split_at import split_at
from crumb_avalanche.system.tensor_bytes import tensor_bytes

D, CLASSES = 6, 4


def toy(count=400, seed=0):
    """Classes with centres and covariances of their own, in blocks as in a stream."""
    generator = torch.Generator().manual_seed(seed)
    fixed = torch.Generator().manual_seed(9)
    centres, mixing = 2 * torch.randn(CLASSES, D, generator=fixed), torch.randn(CLASSES, D, D, generator=fixed)
    labels = torch.arange(CLASSES).repeat_interleave(count // CLASSES)
    noise = torch.randn(len(labels), D, generator=generator)
    return centres[labels] + torch.einsum("nd,nde->ne", noise, mixing[labels]), labels


def feed(statistics, features, labels, size=7):
    for start in range(0, len(labels), size):
        statistics.update(features[start : start + size], labels[start : start + size])
    return statistics


def log_densities(features, labels, fresh, own, shrinkage):
    """The method by its definition: covariances as matrices, one class at a time, everything known."""
    features, fresh = features.double(), fresh.double()
    means = torch.stack([features[labels == c].mean(0) for c in range(CLASSES)])
    rest = features - means[labels]
    common = rest.T @ rest / len(labels)
    common += min(1, shrinkage * D / len(labels)) * common.diagonal().mean() * torch.eye(D)
    whitening = torch.linalg.inv(torch.linalg.cholesky(common)).T
    centre = means.mean(0)
    space = torch.linalg.svd((means - centre) @ whitening, full_matrices=False)[2][: CLASSES - 1].T
    placed = [(values - centre) @ whitening @ space for values in (features, fresh, means)]
    scores = []
    for label in range(CLASSES):
        around = placed[0][labels == label] - placed[2][label]
        covariance = (1 - own) * torch.eye(CLASSES - 1) + own * around.T @ around / len(around)
        scores.append(MultivariateNormal(placed[2][label], covariance).log_prob(placed[1]))
    return torch.stack(scores, 1)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("own", [0.0, 0.3, 0.6])
def test_scores_are_the_log_densities_of_the_definition(whole, own):
    features, labels = toy()
    fresh, truth = toy(seed=1)
    ours = feed(discriminant(CLASSES, D, directions=D, whole=whole, own=own), features, labels)
    scores, expected = ours.scores(fresh), log_densities(features, labels, fresh, own, 1.0)
    # A constant apart; half precision holds the directions.
    torch.testing.assert_close(scores - scores[:, :1], expected - expected[:, :1].to(scores), rtol=1e-2, atol=2e-2)
    assert (scores.argmax(1) == truth).double().mean() > 0.8


@pytest.mark.parametrize("whole", [False, True])
def test_a_class_without_an_image_is_no_answer(whole):
    features, labels = toy()
    ours = discriminant(CLASSES + 1, D, directions=2, whole=whole)
    feed(ours, features[labels != 1], labels[labels != 1])
    scores = ours.scores(features).float()
    assert scores.isfinite().all() and set(scores.argmax(1).tolist()) == {0, 2, 3}


@pytest.mark.parametrize("images", [0.0, 30.0])
@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("shrinkage", [1e-4, 1.0, 500.0])
def test_scores_where_directions_leave_a_rest(shrinkage, diagonal, images):
    # The definition again, of what is kept: a class's scatter is B^T B, and the rest of its trace lies all around.
    features, labels = toy()
    features, labels = (part[(labels != 1) | (torch.arange(len(labels)) % 3 == 0)] for part in (features, labels))
    ours = discriminant(CLASSES, D, directions=2, own=0.4, shrinkage=shrinkage, own_images=images, diagonal=diagonal)
    feed(ours, features, labels)
    kept = torch.stack([ours.directions.of_class(label) for label in range(CLASSES)])
    outside, counts = ours.directions.outside.double(), torch.bincount(labels).double()
    assert (outside > 0.05 * kept.square().sum((1, 2))).all()
    common = (torch.einsum("ckd,cke->de", kept, kept) + outside.sum() / D * torch.eye(D)) / len(labels)
    variances = common.diagonal() if diagonal else common.diagonal().mean().expand(D)
    common += min(1.0, shrinkage * D / len(labels)) * variances.diag()
    means = torch.stack([features[labels == label].double().mean(0) for label in range(CLASSES)])
    centre, whitening = means.mean(0), torch.linalg.inv(torch.linalg.cholesky(common)).T
    space = torch.linalg.svd((means - centre) @ whitening, full_matrices=False)[2][: CLASSES - 1].T
    fresh = toy(seed=1)[0].double()
    expected = []
    for label in range(CLASSES):
        own = kept[label] @ whitening @ space
        rest = outside[label] / (outside[label] + kept[label].square().sum())
        share = 0.4 * counts[label] / (counts[label] + images)
        covariance = (1 - share + share * rest) * torch.eye(CLASSES - 1) + share * own.T @ own / counts[label]
        placed = [(point - centre) @ whitening @ space for point in (fresh, means[label])]
        expected.append(MultivariateNormal(placed[1], covariance).log_prob(placed[0]))
    scores, expected = ours.scores(fresh), torch.stack(expected, 1)
    torch.testing.assert_close(scores - scores[:, :1], expected - expected[:, :1], rtol=1e-4, atol=1e-4)


def test_a_feature_that_never_varies_does_not_break_the_diagonal():
    features, labels = toy()
    features[:, 2] = labels.float()  # constant within each class
    ours = feed(discriminant(CLASSES, D, directions=D, diagonal=True), features, labels)
    assert ours.scores(features).isfinite().all() and (ours.scores(features).argmax(1) == labels).all()


def test_a_class_of_another_spread_is_told_by_it():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(2).repeat_interleave(500)
    features = torch.randn(1000, 2, generator=generator) * torch.tensor([0.2, 3.0])[labels, None]
    features[:, 0] += labels * 0.5
    found = {}
    for own in (0.0, 0.9):
        ours = feed(discriminant(2, 2, directions=2, own=own), features, labels)
        found[own] = float((ours.scores(features).argmax(1) == labels).double().mean())
    assert found[0.9] > found[0.0] + 0.1


@pytest.mark.parametrize("size", [1, 7, 400])
def test_few_directions_are_the_principal_ones_and_the_rest_is_counted(size):
    features, labels = toy()
    ours = feed(discriminant(CLASSES, D, directions=3), features, labels, size)
    for label in range(CLASSES):
        group = features[labels == label].double()
        scatter = (group - group.mean(0)).T @ (group - group.mean(0))
        kept = ours.directions.of_class(label)
        trace = float(kept.square().sum() + ours.directions.outside[label])
        assert trace == pytest.approx(float(scatter.trace()), rel=1e-3)
        best = float(torch.linalg.eigvalsh(scatter)[-3:].sum())
        assert 0.9 * best < float(kept.square().sum()) <= 1.001 * best


def test_directions_of_all_images_at_once_are_exact():
    features, labels = toy()
    ours = discriminant(CLASSES, D, directions=2)
    ours.update(features, labels)
    group = features[labels == 1].double()
    energies, vectors = torch.linalg.eigh((group - group.mean(0)).T @ (group - group.mean(0)))
    expected = (vectors[:, -2:] * energies[-2:]) @ vectors[:, -2:].T
    kept = ours.directions.of_class(1)
    torch.testing.assert_close(kept.T @ kept, expected, rtol=2e-3, atol=1e-2 * float(expected.abs().max()))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 150), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_packed_scatter_is_the_matrix(length, sizes):
    generator = torch.Generator().manual_seed(length)
    packed, rows = PackedScatter(length), []
    for size in sizes:
        rows.append(torch.randn(size, length, generator=generator, dtype=torch.float64))
        packed.add(rows[-1])
    together = torch.cat(rows)
    torch.testing.assert_close(packed.whole(), together.T @ together, rtol=1e-5, atol=1e-4)
    assert tensor_bytes(packed.strips) == PackedScatter.bytes_of(length)
    assert PackedScatter.bytes_of(length) < 4 * length**2 or length <= 64


def test_bytes_by_hand():
    assert PackedScatter.bytes_of(2048) == 2 * 2048 * (2048 + 64) == 8_650_752
    ours = discriminant(10, 2048, directions=5, whole=True)
    means, counts = 10 * 2048 * 4, 10 * 4
    outside = direction_counts = direction_scales = 10 * 4
    fixed = means + counts + outside + direction_counts + direction_scales + 8_650_752
    assert ours.held_bytes == fixed, "a class without images has no direction"
    generator = torch.Generator().manual_seed(0)
    ours.update(torch.randn(34, 2048, generator=generator), torch.tensor([0] * 30 + [1] * 3 + [2]))
    assert ours.directions.counts.tolist() == [5, 2] + [0] * 8
    assert ours.held_bytes == tensor_bytes(ours.tensors()) == fixed + 7 * 2048 * 2
    assert tensor_bytes(ours.named_tensors().values()) == ours.held_bytes


@pytest.mark.parametrize("images", [1, 2])
def test_few_images_of_few_classes(images):
    ours = discriminant(CLASSES, D, directions=3)
    ours.update(torch.randn(1, D), torch.tensor([2]))
    assert ours.scores(torch.randn(5, D)).isfinite().all()
    for label in range(images):
        ours.update(torch.full((1, D), float(label)), torch.tensor([label]))
    assert ours.scores(torch.randn(5, D)).isfinite().all()


MOMENTS = dict(maps=True, deviations=True, power=0.7)


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


def test_moments_of_equal_lengths():
    model = split_backbone("small_cnn", n_classes=3, weights=None, image_size=32, codebook=None)
    maps = model.features(torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8))
    plain, equal = (FeatureMoments(**MOMENTS, equal_lengths=equal).of_maps(model, maps) for equal in (False, True))
    sizes = [model.map_shape[0], model.map_shape[0], plain.shape[1] - 2 * model.map_shape[0]]
    for before, after, size in zip(plain.split(sizes, 1), equal.split(sizes, 1), sizes):
        lengths = before.norm(dim=1, keepdim=True)
        torch.testing.assert_close(after, before / lengths * size**0.5)


@pytest.mark.parametrize("deviations", [False, True])
def test_means_over_cells(deviations):
    model = split_backbone("small_cnn", n_classes=3, weights=None, image_size=32, codebook=None)
    maps = model.features(torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8))
    channels, half = model.map_shape[0], model.map_shape[1] // 2
    assert model.map_shape[1] == model.map_shape[2] == 2 * half  # the cells do not overlap
    cells = FeatureMoments(maps=True, deviations=deviations, cells=2).of_maps(model, maps)
    usual = FeatureMoments(maps=True, deviations=deviations).of_maps(model, maps)
    by_hand = [maps[:, :, y : y + half, x : x + half].mean((2, 3)) for y in (0, half) for x in (0, half)]
    torch.testing.assert_close(cells[:, : 4 * channels].view(2, channels, 4), torch.stack(by_hand, 2))
    torch.testing.assert_close(cells[:, 4 * channels :], usual[:, channels:])


@pytest.mark.parametrize(("height", "width", "cells"), [(13, 13, 2), (5, 8, 3), (1, 7, 2), (4, 4, 4)])
def test_cells_are_those_of_adaptive_pooling(height, width, cells):
    maps = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(cell_means(maps, cells), functional.adaptive_avg_pool2d(maps, cells).flatten(1))


def test_a_grid_without_cells_is_refused():
    with pytest.raises(ValueError, match="cells is 0; give"):
        FeatureMoments(cells=0)


@pytest.mark.parametrize("shape", [(3, 5, 4, 6), (2, 7, 9, 1), (4, 3, 8)])
def test_mean_and_deviation_are_those_of_torch(shape):
    maps = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    flat = maps.flatten(2)
    for values in (maps, maps.contiguous(memory_format=torch.channels_last) if maps.dim() == 4 else maps):
        mean, deviation = mean_and_deviation(values)
        torch.testing.assert_close(mean, flat.mean(2))
        torch.testing.assert_close(deviation, flat.std(2, correction=0))


@pytest.mark.parametrize("name", ["squeezenet1_0", "mobilenet_v2", "resnet18"])
def test_other_networks_need_no_constant(name):
    model = split_backbone(name, n_classes=3, weights=None, image_size=64, codebook=None)
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    assert FeatureMoments(**MOMENTS)(model, images).isfinite().all()


def test_tokens_of_a_transformer():
    timm = pytest.importorskip("timm")
    network = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=6, img_size=64)
    model = split_at(network, "blocks.9", n_classes=3, image_size=64)
    features = FeatureMoments(**MOMENTS)
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    assert features.length(model) == 3 * 192, "two moments of the tokens, and the head's input"
    assert features(model, images).isfinite().all()
