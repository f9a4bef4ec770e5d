"""Groups of correlated channels, which share the rows of a codebook."""

import torch
from torch import Tensor

from crumb_avalanche.models.codebook import Codebook


@torch.no_grad()
def group_channels_(codebook: Codebook, maps: Tensor) -> None:
    """Put channels that are correlated in one group, where the codebook asks for it.

    A group begins with the channel of the largest variance that is left, and takes the
    channel that is most correlated with those in it, time and again, until it has
    ``codebook_dim`` channels. Rows of a few values describe correlated channels better.

    Args:
        codebook: with ``grouping="correlated"``; its ``channel_order`` is set, the
            channels group by group. Others keep the order of the maps.
        maps: ``(B, C, H, W)``, on which correlations are measured.
    """
    n_channels = maps.shape[1]
    codebook.for_channels(n_channels)  # makes a ``channel_order``, if it is to have one
    is_grouped = codebook.channel_order is not None
    if not is_grouped:
        return
    values_cl = maps.detach().float().transpose(0, 1).flatten(1)  # (C, B * H * W)
    variances = values_cl.var(dim=1)
    # Constant channels have no correlation.
    correlations = torch.corrcoef(values_cl).abs().nan_to_num()
    is_taken = torch.zeros(n_channels, dtype=torch.bool, device=maps.device)
    order: list[int] = []
    for _ in range(codebook.n_groups(n_channels)):
        most_varying = variances.masked_fill(is_taken, -1).argmax()
        is_taken[most_varying] = True
        group = [int(most_varying)]
        while len(group) < codebook.codebook_dim:
            sums = correlations[group].sum(dim=0)  # with the channels in it, (C,)
            most_correlated = sums.masked_fill(is_taken, -1).argmax()
            is_taken[most_correlated] = True
            group.append(int(most_correlated))
        order += group
    channel_order = codebook.channel_order
    assert channel_order is not None, "a codebook of correlated groups has an order"
    channel_order.copy_(torch.tensor(order))
