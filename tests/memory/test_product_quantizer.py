"""The product quantizer against faiss's own, against a slow loop, and its bytes."""

import faiss
import pytest
import torch

from crumb_avalanche.memory.product_quantizer import ProductQuantizer


def quantizer(channels=16, groups=4, centroids=256, seed=0):
    """One with random centroids."""
    made = ProductQuantizer(channels, groups, centroids)
    made.centroids.copy_(torch.randn(made.centroids.shape, generator=torch.Generator().manual_seed(seed)))
    return made


def maps(count, channels, height=3, width=2, seed=1):
    return torch.randn(count, channels, height, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("channels", "groups"), [(512, 32), (64, 32), (16, 4)])
def test_codes_and_decoded_maps_are_those_of_faiss(channels, groups):
    ours = quantizer(channels, groups)
    theirs = faiss.ProductQuantizer(channels, groups, 8)
    faiss.copy_array_to_vector(ours.centroids.numpy().ravel(), theirs.centroids)
    feature_map = maps(7, channels)
    vectors = feature_map.permute(0, 2, 3, 1).reshape(-1, channels).contiguous().numpy()
    codes = ours.encode(feature_map)
    expected = theirs.compute_codes(vectors)
    assert torch.equal(codes.permute(0, 2, 3, 1).reshape(-1, groups), torch.from_numpy(expected))
    decoded = ours.decode(codes).permute(0, 2, 3, 1).reshape(-1, channels)
    assert torch.equal(decoded, torch.from_numpy(theirs.decode(expected)))


def test_ties_go_to_the_lowest_centroid():
    ours = quantizer(4, 2, centroids=4)
    ours.centroids[:, 2] = ours.centroids[:, 1]
    assert set(ours.encode(ours.decode(torch.full((1, 2, 1, 1), 2)))[0].flatten().tolist()) == {1}


def test_fit_finds_clusters_with_another_table_for_each_group():
    centres = torch.tensor([[[0.0, 0], [10, 0], [0, 10]], [[50.0, 0], [0, 50], [50, 50]]])
    generator = torch.Generator().manual_seed(0)
    which = torch.randint(3, (600, 2), generator=generator)
    vectors = torch.cat([centres[0][which[:, 0]], centres[1][which[:, 1]]], dim=1)
    vectors += 0.1 * torch.randn(vectors.shape, generator=generator)
    ours = ProductQuantizer(4, 2, centroids=8).fit(vectors)
    for group in range(2):
        distances = torch.cdist(centres[group], ours.centroids[group])
        assert distances.min(dim=1).values.max() < 0.5
    feature_map = vectors[:5].view(5, 4, 1, 1)
    assert (ours.decode(ours.encode(feature_map)) - feature_map).abs().max() < 0.8
    tables = [ProductQuantizer(4, 2, centroids=8).fit(vectors, seed).centroids for seed in (1, 1, 2)]
    assert torch.equal(tables[0], tables[1]) and not torch.equal(tables[0], tables[2])


def test_bytes():
    ours = ProductQuantizer(512)
    assert ours.table_bytes == 524_288 and ours.map_bytes(13, 13) == 5_408 and ours.bits == 8
    assert not ours.fitted and quantizer().fitted
    assert ProductQuantizer(8, 8, 16).map_bytes(4, 4) == 64  # 4 bits a code


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ProductQuantizer(48, 32), "sub_quantizers=32 does not divide the 48 channels .* such as 24"),
        (lambda: ProductQuantizer(8, 0), "sub_quantizers=0 does not divide"),
        (lambda: ProductQuantizer(8, 4, 257), "centroids is 257; a code is one byte, so give 2 to 256"),
        (lambda: quantizer().encode(maps(1, 8)), "the feature map has 8 channels, the quantizer was made for 16"),
        (lambda: ProductQuantizer(8, 4).encode(maps(1, 8)), "no centroids yet: fit it"),
        (lambda: quantizer().encode(maps(1, 16) / 0), "NaN or infinite values"),
        (lambda: ProductQuantizer(8, 4).fit(torch.zeros(5, 8)), "5 vectors cannot make 256 centroids; give more"),
        (lambda: ProductQuantizer(8, 4).fit(torch.zeros(500, 4)), r"shape \(500, 4\), but must have \(N, 8\)"),
        (lambda: ProductQuantizer(8, 4).fit(torch.full((500, 8), torch.nan)), "NaN or infinite values"),
    ],
)
def test_mistakes_are_told(make, words):
    with pytest.raises(ValueError, match=words):
        make()
