"""Initialisers of the codebook (paper, "Initializing the codebook matrix and CNN" and the rows of Table 4).

Scale and sparsity are measured on feature maps. Each function fills ``codebook.blocks`` in place.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional

from crumb_avalanche.models.codebook import Codebook

# The half-normal distribution with this multiple of the measured spread matched real activations best in the paper.
SPREAD = 5 / 3


@dataclass(frozen=True)
class MapStatistics:
    """Statistics of a batch of feature maps.

    Attributes:
        scale: standard deviation of the positive values (of all values, for signed maps).
        sparsity: fraction of exact zeros.
        signed: whether any value is negative.
    """

    scale: float
    sparsity: float
    signed: bool

    @staticmethod
    def measure(maps: Tensor) -> "MapStatistics":
        """Measure ``(B, C, H, W)`` maps.

        Raises:
            ValueError: the maps have no spread (all values equal), so no scale can be measured.
        """
        values = maps.detach().float().flatten()
        signed = bool((values < 0).any())
        counted = values if signed else values[values > 0]
        scale = float(counted.std()) if len(counted) > 1 else 0.0
        if not scale > 0:
            raise ValueError("the feature maps are constant, so no scale can be measured; check weights and images")
        return MapStatistics(scale, float((values == 0).float().mean()), signed)


@torch.no_grad()
def init_dense_matched_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Draw entries from ``|N(0, 5/3 s)|``, ``s`` measured on ``(B, C, H, W)`` maps; ``N(0, s)`` for signed maps."""
    statistics = MapStatistics.measure(maps)
    values = torch.randn(codebook.blocks.shape, generator=generator)
    if statistics.signed:
        values = values * statistics.scale
    else:
        values = values.abs() * SPREAD * statistics.scale
    codebook.blocks.copy_(values)


@torch.no_grad()
def init_matched_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Draw entries as ``init_dense_matched_`` does and set the measured fraction, at random places, to zero.

    With a small ``d`` a few rows are all zero; no search returns them. At least one value is kept.
    """
    init_dense_matched_(codebook, maps, generator)
    blocks = codebook.blocks
    zeros = min(round(MapStatistics.measure(maps).sparsity * blocks.numel()), blocks.numel() - 1)
    places = torch.randperm(blocks.numel(), generator=generator)[:zeros]
    blocks.view(-1)[places.to(blocks.device)] = 0


@torch.no_grad()
def init_normal_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Draw entries from ``N(0, 1)``, independent of the maps (Table 4, "Normal init.")."""
    codebook.blocks.copy_(torch.randn(codebook.blocks.shape, generator=generator))


@torch.no_grad()
def init_uniform_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Draw entries from ``U[0, 1)``, independent of the maps (Table 4, "Uniform init.")."""
    codebook.blocks.copy_(torch.rand(codebook.blocks.shape, generator=generator))


@torch.no_grad()
def init_sampled_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Draw entries from the activations of the maps, with replacement."""
    values = maps.detach().float().reshape(-1).cpu()
    places = torch.randint(len(values), (codebook.blocks.numel(),), generator=generator)
    codebook.blocks.copy_(values[places].view_as(codebook.blocks))


@torch.no_grad()
def init_kmeans_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Set the rows to k-means centres of the slices of the maps that are not all zero.

    Raises:
        ImportError: faiss is not installed.
        ValueError: fewer such slices than rows.
    """
    slices = _some_slices(codebook, maps, generator)
    codebook.blocks.copy_(_centres(codebook, slices, generator))


@torch.no_grad()
def init_spherical_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Set each row to the mean of the slices whose direction is nearest to one centre of a spherical k-means.

    The search compares directions alone (eq. 1), so centres of directions make it choose better rows than those of
    ``init_kmeans_``, and the mean of the chosen slices is the row with the least squared error.

    Raises:
        ImportError: faiss is not installed.
        ValueError: fewer slices that are not all zero than rows.
    """
    slices = _some_slices(codebook, maps, generator)
    directions = functional.normalize(slices)
    centres = functional.normalize(_centres(codebook, directions, generator, spherical=True))
    nearest = torch.cat([(some @ centres.mT).argmax(1) for some in directions.split(8192)])
    counts = torch.bincount(nearest, minlength=len(centres)).unsqueeze(1)
    sums = torch.zeros_like(centres).index_add_(0, nearest, slices)
    # A centre that no slice is nearest to is never chosen for these slices: any length will do.
    codebook.blocks.copy_(torch.where(counts > 0, sums / counts.clamp_min(1), centres))


def _some_slices(codebook: Codebook, maps: Tensor, generator: Generator) -> Tensor:
    """Return the slices of maps that are not all zero, or 256 random ones for each row: ``(N, d)``."""
    codebook.groups(maps.shape[1])
    slices = maps.detach().float().cpu().permute(0, 2, 3, 1).reshape(-1, codebook.codebook_dim)
    slices = slices[slices.any(dim=1)]
    if len(slices) < codebook.codebook_size:
        raise ValueError(
            f"{len(slices)} slices that are not zero cannot make {codebook.codebook_size} k-means centres; "
            "give more feature maps"
        )
    wanted = 256 * codebook.codebook_size  # faiss itself subsamples above this
    if len(slices) > wanted:
        slices = slices[torch.randperm(len(slices), generator=generator)[:wanted]]
    return slices.contiguous()


def _centres(codebook: Codebook, slices: Tensor, generator: Generator, spherical: bool = False) -> Tensor:
    """Return k-means centres of ``(N, d)`` slices, one for each row."""
    try:
        import faiss
    except ImportError as error:
        raise ImportError("the k-means initialisations need faiss: pip install faiss-cpu") from error
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
    faiss.omp_set_num_threads(torch.get_num_threads())
    size = codebook.codebook_dim, codebook.codebook_size
    means = faiss.Kmeans(*size, niter=25, seed=seed, min_points_per_centroid=1, spherical=spherical)
    means.train(slices.numpy())
    return torch.from_numpy(means.centroids)


INITIALISERS: dict[str, Callable[[Codebook, Tensor, Generator], None]] = {
    "matched": init_matched_,
    "dense_matched": init_dense_matched_,
    "normal": init_normal_,
    "uniform": init_uniform_,
    "sampled": init_sampled_,
    "kmeans": init_kmeans_,
    "spherical": init_spherical_,
}
