"""Round the weights of a layer to 8-bit integers so that its outputs stay near.

The weights are rounded one after the other, and those that follow make up for the error on what the layer takes in
(GPTQ, Frantar et al. 2023, https://arxiv.org/abs/2210.17323).
"""

import torch
from torch import Tensor

LARGEST = 127  # of a weight in 8 bits
DAMPING = 0.01  # of the mean diagonal, added to second moments, which may be singular


@torch.no_grad()
def rounded(weight: Tensor, moments: Tensor, groups: int = 1) -> tuple[Tensor, Tensor]:
    """Round weights to multiples of a scale of each output, so that the outputs stay near.

    Args:
        weight: ``(O, C / groups, ...)``.
        moments: ``(groups * blocks, K, K)`` second moments of the inputs of each block of an output.
        groups: of the convolution.

    Returns:
        the rounded weights, and ``(O,)`` scales.
    """
    count = moments.shape[1]
    scale = weight.flatten(1).abs().amax(1).div(LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
    mean = moments.diagonal(dim1=1, dim2=2).mean(1)
    damping = DAMPING * torch.where(mean > 0, mean, 1.0)
    damped = moments + damping.view(-1, 1, 1) * torch.eye(count, dtype=moments.dtype)
    # Row j of the factor says how an error of weight j is made up for by those that follow.
    factor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(damped)), upper=True)
    factor = factor.unflatten(0, (groups, -1))  # groups, blocks, K, K
    left = (weight.double().flatten(1) / scale[:, None]).view(groups, len(weight) // groups, -1, count).transpose(1, 2)
    found = torch.empty_like(left)  # groups, blocks, outputs, K
    for place in range(count):
        found[..., place] = left[..., place].round().clamp(-LARGEST, LARGEST)
        error = (left[..., place] - found[..., place]) / factor[..., place, place, None]
        left[..., place:] -= error[..., None] * factor[..., place, None, place:]
    whole = found.transpose(1, 2).reshape(len(weight), -1).float() * scale[:, None]
    return whole.view_as(weight), scale
