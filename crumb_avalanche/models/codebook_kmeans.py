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
ASSIGNMENT_ITERATIONS = 8  # of k-means in such a round
ASSIGNED_LOCATIONS = 2000  # by whose error groups choose


@torch.no_grad()
def init_kmeans_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Set the rows of a codebook to k-means centres of the slices of maps.

    A slice is the values of a group of channels at a location. All-zero slices do not
    count if rows are chosen by direction. A codebook may have several tables of rows,
    each for some groups of channels: a group gets that of the least error for it.

    Args:
        codebook: its rows, and the tables of its groups, are changed.
        maps: ``(B, C, H, W)``.
        generator: of the sample of slices and the seed of k-means.

    Raises:
        ValueError: there are fewer slices than rows.
    """
    if codebook.tables == 1:
        slices = _sampled_slices(codebook, maps, generator)
        codebook.blocks.copy_(_kmeans_centres(codebook, slices, generator))
        return
    # Of whole locations, since the slice of each group of channels is needed.
    slices_lgd = _sampled_locations(codebook, maps, generator)
    _assign_tables(codebook, slices_lgd, generator)
    _fit_tables(codebook, slices_lgd, generator)


@torch.no_grad()
def init_spherical_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Set the rows of a codebook to means of the slices of maps with one direction.

    Directions are grouped by a spherical k-means, and each row is the mean of the
    slices in a group. The search compares directions alone (eq. 1), so centres of
    directions make it choose better rows than those of ``init_kmeans_``, and the mean
    of the chosen slices is the row with the least squared error.

    Args:
        codebook: its rows are changed.
        maps: ``(B, C, H, W)``.
        generator: of the sample of slices and the seed of k-means.

    Raises:
        ValueError: there are fewer slices than rows, or several tables.
    """
    if codebook.tables > 1:
        raise ValueError(
            f"spherical fills one table, but there are {codebook.tables}; take kmeans"
        )
    slices = _sampled_slices(codebook, maps, generator)
    directions = functional.normalize(slices)
    centres = _kmeans_centres(codebook, directions, generator, spherical=True)
    unit_centres = functional.normalize(centres)
    nearest_of_tiles = []  # in tiles, for their products with all centres take memory
    for tile in directions.split(NEAREST_TILE):
        cosines = tile @ unit_centres.mT
        nearest_of_tiles.append(cosines.argmax(dim=1))
    nearest = torch.cat(nearest_of_tiles)  # (N,), a centre of each slice
    counts = torch.bincount(nearest, minlength=len(unit_centres)).unsqueeze(1)
    # Of the slices that are nearest to each centre.
    sums = torch.zeros_like(unit_centres).index_add_(0, nearest, slices)
    means = sums / counts.clamp_min(1)
    # A centre that no slice is nearest to is never chosen for these slices: any length
    # will do.
    codebook.blocks.copy_(torch.where(counts > 0, means, unit_centres))


def _sampled_slices(codebook: Codebook, maps: Tensor, generator: Generator) -> Tensor:
    """Return a random sample of the slices of maps: ``(N, d)`` float32 on the CPU.

    There are at most ``MOST_SLICES_PER_CENTRE`` for each row of the codebook. Where
    rows are chosen by direction, all-zero slices are left out: any row serves them
    alike.

    Args:
        codebook: cuts the maps into slices of ``d`` channels; it is prepared for their
            number of channels.
        maps: ``(B, C, H, W)``.
        generator: draws the sample.

    Raises:
        ValueError: the slices are fewer than the rows.
    """
    codebook.for_channels(maps.shape[1])
    slices = codebook.slices(maps.detach().float()).flatten(0, 1).cpu()
    if codebook.search == "direction":
        slices = slices[slices.any(dim=1)]
    _check_enough_slices(slices, codebook.codebook_size)
    limit = MOST_SLICES_PER_CENTRE * codebook.codebook_size
    if len(slices) > limit:
        sample = torch.randperm(len(slices), generator=generator)[:limit]
        slices = slices[sample]
    return slices.contiguous()  # as faiss reads them


def _sampled_locations(
    codebook: Codebook, maps: Tensor, generator: Generator
) -> Tensor:
    """Return the slices of a random sample of locations, ``(L, G, d)`` on the CPU.

    There are at most ``MOST_SLICES_PER_CENTRE`` locations for each row of a table.

    Args:
        codebook: cuts the channels of a location into ``G`` slices of ``d``; it is
            prepared for their number.
        maps: ``(B, C, H, W)``.
        generator: draws the sample.

    Raises:
        ValueError: the slices are fewer than the rows.
    """
    codebook.for_channels(maps.shape[1])
    slices_lgd = codebook.slices(maps.detach().float()).cpu()
    _check_enough_slices(slices_lgd.flatten(0, 1), len(codebook.blocks))
    limit = MOST_SLICES_PER_CENTRE * codebook.codebook_size
    if len(slices_lgd) > limit:
        sample = torch.randperm(len(slices_lgd), generator=generator)[:limit]
        slices_lgd = slices_lgd[sample]
    return slices_lgd


def _check_enough_slices(slices: Tensor, n_rows: int) -> None:
    """Raise ValueError for fewer ``(N, d)`` slices than rows of a codebook.

    Where rows are chosen by direction, all-zero slices were left out before.
    """
    if len(slices) < n_rows:
        raise ValueError(
            f"{len(slices)} slices cannot make {n_rows} k-means centres (slices of "
            "zeros do not count where rows are chosen by direction); give more maps"
        )


def _kmeans_centres(
    codebook: Codebook,
    slices: Tensor,
    generator: Generator,
    spherical: bool = False,
    n_iterations: int = ITERATIONS,
) -> Tensor:
    """Return k-means centres of slices, one for each row of a codebook.

    Args:
        codebook: of ``n`` rows of ``d`` values.
        slices: ``(N, d)`` float32 on the CPU.
        generator: gives the seed of k-means.
        spherical: whether centres are directions.
        n_iterations: of k-means.

    Returns:
        ``(n, d)`` float32.
    """
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
    faiss.omp_set_num_threads(torch.get_num_threads())
    kmeans = faiss.Kmeans(
        d=codebook.codebook_dim,
        k=codebook.codebook_size,
        niter=n_iterations,
        seed=seed,
        min_points_per_centroid=1,  # it warns of fewer
        spherical=spherical,
    )
    kmeans.train(slices.numpy())
    return torch.from_numpy(kmeans.centroids)


def _assign_tables(
    codebook: Codebook, slices_lgd: Tensor, generator: Generator
) -> None:
    """Give each group of channels one of the tables of a codebook.

    Groups whose slices are of similar mean length share a table at first. Then tables
    are fitted to their groups and groups take the table of least error, in turns, as in
    k-means, until no group takes another. The caller fits the tables once more.

    Args:
        codebook: its ``table_of_group``, ``(G,)`` uint8, and its rows are changed.
        slices_lgd: slices by location, group and value, ``(L, G, d)``.
        generator: of the k-means of the tables.
    """
    n_groups = slices_lgd.shape[1]
    device = codebook.blocks.device
    mean_lengths = torch.linalg.vector_norm(slices_lgd, dim=2).mean(dim=0)  # (G,)
    ranks = mean_lengths.argsort().argsort()  # rank of each group by length
    table_of_group = ranks * codebook.tables // n_groups
    compared_slices_lgd = slices_lgd[:ASSIGNED_LOCATIONS]
    for _ in range(ASSIGNMENTS):
        codebook.table_of_group = table_of_group.byte().to(device)
        _fit_tables(codebook, slices_lgd, generator, n_iterations=ASSIGNMENT_ITERATIONS)
        errors_tg = _errors_of_tables(codebook, compared_slices_lgd)
        best_table_of_group = errors_tg.argmin(dim=0)
        if torch.equal(best_table_of_group, table_of_group):
            break
        table_of_group = best_table_of_group
    codebook.table_of_group = table_of_group.byte().to(device)


def _fit_tables(
    codebook: Codebook,
    slices_lgd: Tensor,
    generator: Generator,
    n_iterations: int = ITERATIONS,
) -> None:
    """Set the rows of each table of a codebook to k-means centres of slices.

    They are the slices whose group has the table. A table of no group, or of too few
    slices for its rows, is left as it is.

    Args:
        codebook: its rows are changed.
        slices_lgd: slices by location, group and value, ``(L, G, d)``, on the CPU.
        generator: of the seeds of k-means.
        n_iterations: of k-means.
    """
    assert codebook.table_of_group is not None, "only with several tables"
    table_of_group = codebook.table_of_group.cpu()
    for table, rows in enumerate(codebook.blocks.split(codebook.codebook_size)):
        slices = slices_lgd[:, table_of_group == table].flatten(0, 1).contiguous()
        if len(slices) >= codebook.codebook_size:
            centres = _kmeans_centres(
                codebook, slices, generator, n_iterations=n_iterations
            )
            rows.copy_(centres)


def _errors_of_tables(codebook: Codebook, slices_lgd: Tensor) -> Tensor:
    """Return the mean squared error of each of ``T`` tables for each group, ``(T, G)``.

    It is the error of slices that are replaced by the nearest row of the table.

    Args:
        codebook: with several tables of rows.
        slices_lgd: slices by location, group and value, ``(L, G, d)``.
    """
    slices = slices_lgd.flatten(0, 1).contiguous()  # (L * G, d)
    errors_by_table = []
    for rows in codebook.blocks.detach().cpu().split(codebook.codebook_size):
        decoded = rows[nearest_rows(slices, rows)]
        squares = (slices - decoded).square().sum(dim=1)
        squares_lg = squares.view(slices_lgd.shape[:2])
        errors_by_table.append(squares_lg.mean(dim=0))
    return torch.stack(errors_by_table)
