"""Codebook rows that are k-means centres of slices of feature maps.

For the axes that names of tensors list see ``models.codebook``; ``L`` are locations of
all maps.
"""

import faiss
import torch
from torch import Generator, Tensor
from torch.nn import functional

from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.search import nearest_rows

# Slices for each centre, above which faiss itself takes a sample.
MOST_SLICES_PER_CENTRE = 256
# Slices whose products with all centres are in memory at once.
NEAREST_TILE = 8192
ITERATIONS = 25  # of k-means
ASSIGNMENTS = 5  # rounds at most in which groups choose their table
ASSIGNED_LOCATIONS = 2000  # by whose error they do


@torch.no_grad()
def init_kmeans_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Set the rows to k-means centres of the slices of the maps.

    All-zero slices do not count if rows are chosen by direction. Of several tables,
    each group gets the one that has the least error for it.

    Raises:
        ValueError: there are fewer slices than rows.
    """
    if codebook.tables == 1:
        slices = _sampled_slices(codebook, maps, generator)
        codebook.blocks.copy_(_centres(codebook, slices, generator))
        return
    slices_lgd = _sampled_locations(codebook, maps, generator)
    _assign_tables(codebook, slices_lgd, generator)
    _fit_tables(codebook, slices_lgd, generator)


@torch.no_grad()
def init_spherical_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Set the rows to means of slices of one direction.

    Directions are grouped by a spherical k-means, and each row is the mean of the
    slices in a group. The search compares directions alone (eq. 1), so centres of
    directions make it choose better rows than those of ``init_kmeans_``, and the mean
    of the chosen slices is the row with the least squared error.

    Raises:
        ValueError: see ``init_kmeans_``; or there are several tables.
    """
    if codebook.tables > 1:
        raise ValueError(
            f"spherical fills one table, but there are {codebook.tables}; take kmeans"
        )
    slices = _sampled_slices(codebook, maps, generator)
    directions = functional.normalize(slices)
    centres = functional.normalize(
        _centres(codebook, directions, generator, spherical=True)
    )
    nearest_of_tiles = []
    for tile in directions.split(NEAREST_TILE):
        nearest_of_tiles.append((tile @ centres.mT).argmax(dim=1))
    nearest = torch.cat(nearest_of_tiles)
    counts = torch.bincount(nearest, minlength=len(centres)).unsqueeze(1)
    sums = torch.zeros_like(centres).index_add_(0, nearest, slices)
    means = sums / counts.clamp_min(1)
    # A centre that no slice is nearest to is never chosen for these slices: any length
    # will do.
    codebook.blocks.copy_(torch.where(counts > 0, means, centres))


def _sampled_slices(codebook: Codebook, maps: Tensor, generator: Generator) -> Tensor:
    """Return a random sample of the slices of maps: ``(N, d)``.

    Where rows are chosen by direction, all-zero slices are left out: any row serves
    them alike.

    Raises:
        ValueError: they are fewer than the rows.
    """
    codebook.for_channels(maps.shape[1])
    slices = codebook.slices(maps.detach().float()).flatten(0, 1).cpu()
    if codebook.search == "direction":
        slices = slices[slices.any(dim=1)]
    _check_enough(slices, codebook.codebook_size)
    limit = MOST_SLICES_PER_CENTRE * codebook.codebook_size
    if len(slices) > limit:
        slices = slices[torch.randperm(len(slices), generator=generator)[:limit]]
    return slices.contiguous()


def _sampled_locations(
    codebook: Codebook, maps: Tensor, generator: Generator
) -> Tensor:
    """Return the slices of a random sample of locations, ``(L, G, d)`` on the CPU.

    Raises:
        ValueError: the slices are fewer than the rows.
    """
    codebook.for_channels(maps.shape[1])
    slices_lgd = codebook.slices(maps.detach().float()).cpu()
    _check_enough(slices_lgd.flatten(0, 1), len(codebook.blocks))
    limit = MOST_SLICES_PER_CENTRE * codebook.codebook_size
    if len(slices_lgd) > limit:
        chosen = torch.randperm(len(slices_lgd), generator=generator)[:limit]
        slices_lgd = slices_lgd[chosen]
    return slices_lgd


def _check_enough(slices: Tensor, n_rows: int) -> None:
    """Raise ValueError for fewer slices than rows."""
    if len(slices) < n_rows:
        raise ValueError(
            f"{len(slices)} slices that are not zero cannot make {n_rows} k-means "
            "centres; give more feature maps"
        )


def _centres(
    codebook: Codebook,
    slices: Tensor,
    generator: Generator,
    spherical: bool = False,
    iterations: int = ITERATIONS,
) -> Tensor:
    """Return k-means centres of ``(N, d)`` slices, one for each row: ``(n, d)``."""
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
    faiss.omp_set_num_threads(torch.get_num_threads())
    kmeans = faiss.Kmeans(
        d=codebook.codebook_dim,
        k=codebook.codebook_size,
        niter=iterations,
        seed=seed,
        min_points_per_centroid=1,
        spherical=spherical,
    )
    kmeans.train(slices.numpy())
    return torch.from_numpy(kmeans.centroids)


def _assign_tables(
    codebook: Codebook, slices_lgd: Tensor, generator: Generator
) -> None:
    """Give each group one of the tables.

    Groups of slices of similar length share one at first. Then tables are fitted to
    their groups and groups take the table of least error, in turns, as in k-means. The
    caller fits the tables once more.

    Args:
        codebook: gets ``table_of_group``.
        slices_lgd: slices by location, group and value, ``(L, G, d)``.
        generator: of the k-means of the tables.
    """
    groups = slices_lgd.shape[1]
    device = codebook.blocks.device
    lengths = torch.linalg.vector_norm(slices_lgd, dim=2).mean(dim=0)
    ranks = lengths.argsort().argsort()  # rank of each group by length
    table_of_group = ranks * codebook.tables // groups
    few_lgd = slices_lgd[:ASSIGNED_LOCATIONS]
    for _ in range(ASSIGNMENTS):
        codebook.table_of_group = table_of_group.byte().to(device)
        _fit_tables(codebook, slices_lgd, generator, iterations=8)
        errors_by_table_and_group = _errors_of_tables(codebook, few_lgd)
        nearest = errors_by_table_and_group.argmin(dim=0)
        if torch.equal(nearest, table_of_group):
            break
        table_of_group = nearest
    codebook.table_of_group = table_of_group.byte().to(device)


def _fit_tables(
    codebook: Codebook,
    slices_lgd: Tensor,
    generator: Generator,
    iterations: int = ITERATIONS,
) -> None:
    """Set the rows of each table to k-means centres of the slices of its groups.

    A table of no group, or of too few slices for its rows, is left as it is.
    """
    assert codebook.table_of_group is not None, "only with several tables"
    table_of_group = codebook.table_of_group.cpu()
    for table, rows in enumerate(codebook.blocks.split(codebook.codebook_size)):
        slices = slices_lgd[:, table_of_group == table].flatten(0, 1).contiguous()
        if len(slices) >= codebook.codebook_size:
            rows.copy_(_centres(codebook, slices, generator, iterations=iterations))


def _errors_of_tables(codebook: Codebook, slices_lgd: Tensor) -> Tensor:
    """Return the squared error of each table for each group, ``(T, G)``."""
    slices = slices_lgd.flatten(0, 1).contiguous()
    errors = []
    for table in codebook.blocks.detach().cpu().split(codebook.codebook_size):
        nearest = table[nearest_rows(slices, table)]
        squares_lg = (slices - nearest).square().sum(dim=1).view(slices_lgd.shape[:2])
        errors.append(squares_lg.mean(dim=0))
    return torch.stack(errors)
