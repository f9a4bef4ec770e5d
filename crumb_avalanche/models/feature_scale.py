"""The factor that brings F's maps to one spread whatever the weights are; see ``SplitModel.fold_feature_scale``."""

import copy
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from crumb_avalanche.models.penultimate import head_input

# The paper's learning rate of 1e-3 suits maps whose positive values have the standard deviation of torchvision's
# SqueezeNet-1.0 maps; the maps of other weights are scaled to it.
REFERENCE_SCALE = 14.0


def scale_of(maps: Tensor, layers: nn.Module, head: str, whole: Tensor) -> float:
    """Return the factor to ``REFERENCE_SCALE``, or 1 if the input of the head does not scale as the maps do.

    Args:
        maps: ``(B, C, H, W)``, any selection of locations.
        layers: P, not changed.
        head: name of the head in P.
        whole: ``(B, C, H, W)`` complete maps, of which 4 are tried.

    Raises:
        ValueError: the maps are constant.
    """
    positive = maps[maps > 0]
    spread = float(positive.std()) if len(positive) > 1 else 0.0
    if not spread > 0:
        raise ValueError("the feature maps are constant, so no scale can be measured; check weights and images")
    factor = REFERENCE_SCALE / spread
    # A copy on the CPU: two passes are compared, and a GPU may round products to TF32.
    layers = copy.deepcopy(layers).cpu().eval()
    trial = SimpleNamespace(plastic_layers=layers, head=head)
    whole = whole[:4].cpu()
    before = head_input(trial, whole, layers)
    multiply_biases(layers, head, factor)
    after = head_input(trial, whole * factor, layers)
    scales = torch.allclose(after, before * factor, rtol=1e-3, atol=1e-4 * float(after.abs().max()))
    return factor if scales else 1.0


def multiply_biases(layers: nn.Module, head: str, factor: float) -> None:
    """Multiply the biases of P below the head."""
    for name, weight in layers.named_parameters():
        if name.endswith("bias") and not name.startswith(head + "."):
            weight.mul_(factor)
