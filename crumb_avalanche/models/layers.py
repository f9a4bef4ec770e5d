"""Layers of the halves of a network, the layout and scale of maps, operations."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from crumb_avalanche.models.penultimate import evaluating, head_input

_BITS = 8  # values that one random number decides on


class AveragingConv2d(nn.Conv2d):
    """1x1 convolution of the average over locations.

    It equals the average of the convolution, up to rounding, with ``H * W`` times fewer
    multiplications: 169 for SqueezeNet, where the head had a fifth of those of the
    plastic layers at 100 classes.
    """

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__(in_channels, out_channels, kernel_size=1)

    def forward(self, maps: Tensor) -> Tensor:
        """Compute logits ``(B, classes, 1, 1)`` of ``(B, C, H, W)`` maps."""
        # Not mean(): its gradient would be a whole map in memory, and with the axes in
        # another order.
        sums = maps.sum((2, 3), keepdim=True)
        return super().forward(sums / (maps.shape[2] * maps.shape[3]))


class CentredLinear(nn.Linear):
    """Linear head that centres and scales its inputs, as ``calibrate`` measures them.

    Inputs that set their own scale, such as those behind batch norms, have a large
    common mean: a batch of one clip then moves the logits of all images at once. The
    mean of the first images is taken off, and their usual distance to it becomes
    ``DISTANCE``. The gradient to the layers below is multiplied by ``DAMPING``, since
    they are pretrained and the head is new, and the optimiser has one rate for both.
    What methods measure by gradients is ``undamped``.

    Attributes:
        mean: ``(D,)``, of the inputs; zero before ``calibrate``.
        scale: factor of the centred inputs; one before.
    """

    DISTANCE = 100.0
    DAMPING = 0.01  # 1 within ``undamped``

    mean: Tensor
    scale: Tensor

    def __init__(self, in_features: int, out_features: int, bias: bool = True):
        super().__init__(in_features, out_features, bias)
        self.register_buffer("mean", torch.zeros(in_features))
        self.register_buffer("scale", torch.ones(()))

    @torch.no_grad()
    def centre(self, inputs: Tensor) -> None:
        """Set mean and scale from ``(N, D)`` inputs; equal inputs change nothing."""
        mean = inputs.mean(0)
        # Root of the mean squared distance to the mean.
        distance = (inputs - mean).square().sum(1).mean().sqrt()
        if distance > 0:
            self.mean.copy_(mean)
            self.scale.copy_(self.DISTANCE / distance)

    def _load_from_state_dict(self, state_dict, prefix, *arguments):
        """Load also the state of an ``nn.Linear``, which does not centre its inputs."""
        state_dict.setdefault(f"{prefix}mean", torch.zeros_like(self.mean))
        state_dict.setdefault(f"{prefix}scale", torch.ones_like(self.scale))
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute logits ``(B, classes)`` of ``(B, D)`` inputs of the head."""
        if inputs.requires_grad:
            inputs = with_damped_gradient(inputs, self.DAMPING)
        return super().forward((inputs - self.mean) * self.scale)


def with_damped_gradient(values: Tensor, factor: float) -> Tensor:
    """Return values unchanged; the gradient to them is multiplied by a factor."""
    return values.detach() + factor * (values - values.detach())


@contextmanager
def undamped(network: nn.Module) -> Iterator[None]:
    """Pass the whole gradient below each ``CentredLinear`` within the ``with`` block.

    For gradients that measure something, instead of training the layers below.
    """
    heads = [head for head in network.modules() if isinstance(head, CentredLinear)]
    for head in heads:
        head.DAMPING = 1.0
    try:
        yield
    finally:
        for head in heads:
            del head.DAMPING


class CoinDropout(nn.Dropout):
    """``nn.Dropout`` that draws one random number for 8 values.

    It does so if ``p`` is one half and the device a CPU. Torch draws one for every
    value, which on a CPU takes longer than the convolutions around it (SqueezeNet drops
    half of a 512x13x13 map). The distribution is the same, the draws differ. In all
    other cases it is torch's dropout.
    """

    def forward(self, values: Tensor) -> Tensor:
        """Return the values, in training mode zero or doubled with equal chances."""
        takes_coins = (
            self.training
            and not self.inplace
            and self.p == 0.5
            and values.device.type == "cpu"
            and _is_dense(values)
        )
        if takes_coins:
            return values * coin_mask(values)
        return super().forward(values)


def coin_mask(values: Tensor) -> Tensor:
    """Draw a dropout mask of zeros and twos with equal chances, from the global RNG.

    The mask has the shape and strides of ``values``.
    """
    n_draws = math.ceil(values.numel() / _BITS)
    numbers = torch.empty(n_draws, dtype=torch.int32).random_(0, 2**_BITS)
    # Of each number that can be drawn the factors of 8 values, by its bits: (256, 8).
    bits_of_number = torch.arange(2**_BITS).unsqueeze(1) >> torch.arange(_BITS) & 1
    factors_of_number = (2 * bits_of_number).to(values.dtype)
    mask = factors_of_number.index_select(0, numbers).view(-1)
    return mask.as_strided(values.shape, values.stride())


def _is_dense(values: Tensor) -> bool:
    """Whether the values of a map fill their memory without gaps and overlaps.

    The axes may be in any order.
    """
    axes_by_stride = sorted(
        range(values.dim()), key=lambda axis: (values.stride(axis), values.shape[axis])
    )
    return values.permute(axes_by_stride[::-1]).is_contiguous()


def replace_dropout(module: nn.Module) -> nn.Module:
    """Replace every ``nn.Dropout`` of a module by a ``CoinDropout``, in place."""
    for name, child in module.named_children():
        if type(child) is nn.Dropout:
            setattr(module, name, CoinDropout(child.p, child.inplace))
        else:
            replace_dropout(child)
    return module


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights of a network that are trained, by name."""
    weights = {}
    for name, weight in module.named_parameters():
        if weight.requires_grad:
            weights[name] = weight
    return weights


def check_float32(network: nn.Module) -> None:
    """Raise TypeError unless all weights of a network are float32."""
    for name, weight in network.named_parameters():
        if weight.dtype != torch.float32:
            raise TypeError(
                f"{name} is {weight.dtype}, not float32: call .float() on the network, "
                "or on the part that was converted; for a faster F and P call "
                "model.set_precision('bf16')"
            )


def head_outputs(layers: nn.Module, name: str) -> int:
    """Return the number of outputs of the head, which is that of classes.

    Args:
        layers: the plastic layers.
        name: of the head among them, qualified.

    Raises:
        TypeError: the head is neither linear nor convolutional.
    """
    head = layers.get_submodule(name)
    if isinstance(head, nn.Conv2d):
        return head.out_channels
    outputs = getattr(head, "out_features", None)
    if outputs is None:
        raise TypeError(
            f"the head {name!r} is a {type(head).__name__}; give an nn.Linear or "
            "nn.Conv2d with an output for each class of the whole stream: strategies "
            "mask the classes not seen yet, so no head has to grow"
        )
    return outputs


def head_like(head: nn.Module, n_classes: int) -> nn.Module:
    """Build a newly initialised head of the same kind, from torch's global RNG.

    It has the settings of the old head besides the number of outputs, and what
    ``calibrate`` measured of its inputs.

    Args:
        head: the old one, linear or convolutional.
        n_classes: outputs of the new one.

    Raises:
        ValueError: the old one has groups of channels, whose number does not divide
            ``n_classes``.
    """
    has_bias = getattr(head, "bias", None) is not None
    if isinstance(head, AveragingConv2d):
        return AveragingConv2d(head.in_channels, n_classes)
    if isinstance(head, CentredLinear):
        centred = CentredLinear(head.in_features, n_classes, bias=has_bias)
        centred.mean.copy_(head.mean)
        centred.scale.copy_(head.scale)
        return centred
    if isinstance(head, nn.Conv2d):
        return nn.Conv2d(
            head.in_channels,
            n_classes,
            head.kernel_size,
            stride=head.stride,
            padding=head.padding,
            dilation=head.dilation,
            groups=head.groups,
            bias=has_bias,
            padding_mode=head.padding_mode,
        )
    return nn.Linear(head.in_features, n_classes, bias=has_bias)


@dataclass(frozen=True)
class Layout:
    """Layout of what the stages of a network return, as the network's library says it.

    Attributes:
        prefix_tokens: number of class tokens and registers before the patches of a
            transformer.
        channels_last: whether maps are ``(B, H, W, C)``.
    """

    prefix_tokens: int = 0
    channels_last: bool = False

    def grid(self, n_tokens: int) -> tuple[int, int]:
        """Return height and width of the patches among a number of tokens.

        Images are square; patches that make no square are one column.
        """
        n_patches = n_tokens - self.prefix_tokens
        side = math.isqrt(n_patches)
        if side**2 == n_patches:
            return side, side
        return n_patches, 1


# The paper's learning rate of 1e-3 suits maps whose positive values have the standard
# deviation of torchvision's SqueezeNet-1.0 maps; the maps of other weights are scaled
# to it.
REFERENCE_SCALE = 14.0


def feature_scale_of(
    maps: Tensor, layers: nn.Module, head: str, complete_maps: Tensor
) -> float:
    """Return the factor by which maps are scaled to ``REFERENCE_SCALE``.

    Their positive values then have this standard deviation, so that networks whose maps
    have other scales learn at the same rates. It is 1 if the input of the head does not
    scale as the maps do, when the biases of the layers below it are scaled, too.

    Args:
        maps: ``(B, C, H, W)``, any locations of maps.
        layers: the plastic layers; they stay as they are.
        head: qualified name of the head among them.
        complete_maps: ``(B, C, H, W)``, all locations of maps, of which 4 are tried.

    Raises:
        ValueError: the maps are constant.
    """
    positive_values = maps[maps > 0]
    spread = 0.0
    if len(positive_values) > 1:
        spread = float(positive_values.std())
    if not spread > 0:
        raise ValueError(
            "the feature maps are constant, so no scale can be measured; check weights "
            "and images"
        )
    factor = REFERENCE_SCALE / spread
    # A copy on the CPU: two passes are compared, and a GPU may round products to TF32.
    trial_layers = copy.deepcopy(layers).cpu().eval()
    # What ``head_input`` reads of a model, to return what enters its head.
    trial_model = SimpleNamespace(plastic_layers=trial_layers, head=head)
    trial_maps = complete_maps[:4].cpu()
    input_before = head_input(trial_model, trial_maps, classify=trial_layers)
    multiply_biases(trial_layers, head, factor)  # of the layers below the head
    input_after = head_input(trial_model, trial_maps * factor, classify=trial_layers)
    tolerance = 1e-4 * float(input_after.abs().max())  # of rounding
    is_head_input_scaled = torch.allclose(
        input_after, input_before * factor, rtol=1e-3, atol=tolerance
    )
    return factor if is_head_input_scaled else 1.0


def multiply_biases(layers: nn.Module, head: str, factor: float) -> None:
    """Multiply the biases of P's layers below the head, in place.

    Args:
        layers: P.
        head: its name among them.
        factor: of the biases.
    """
    for name, weight in layers.named_parameters():
        if name.endswith("bias") and not name.startswith(head + "."):
            weight.mul_(factor)


PASSES = 3  # a backward pass computes two products where the forward pass has one


# The counter cannot follow a pool by attention without gradients.
@torch.enable_grad()
def step_flops(model: nn.Module) -> tuple[int, int]:
    """Count floating-point operations for one image: of F, and of a training step of P.

    The backward pass counts twice its forward pass. Counts convolutions and matrix
    products; codes, losses and the optimiser are left out.

    Args:
        model: a ``SplitModel``; the feature extractor F runs forward only, the plastic
            layers P are trained.

    Returns:
        The operations of F, and those of a step of P.
    """
    side = model.input_side
    with evaluating(model):
        black_image = torch.zeros_like(model.pixel_mean).expand(1, 3, side, side)
        with FlopCounterMode(display=False) as extractor_counter:
            maps = model.feature_extractor(black_image).float()
        with FlopCounterMode(display=False) as plastic_counter:
            model.plastic_layers(maps)
    extractor_flops = extractor_counter.get_total_flops()
    return extractor_flops, PASSES * plastic_counter.get_total_flops()
