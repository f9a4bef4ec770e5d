"""SqueezeNet, MobileNetV2, EfficientNet-Lite, ResNet-18 and the demo's network.

Importing torchvision takes 170 MB and seconds, because it loads torch's compiler; an
answer to a photo needs neither. Of torchvision's networks, names and order of layers,
initial weights for a seed and outputs are the same to the bit.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn


class Fire(nn.Module):
    """Module of SqueezeNet (Iandola et al., 2016).

    A 1x1 convolution is followed by a 1x1 and a 3x3 one side by side.
    """

    def __init__(self, in_channels: int, squeezed_channels: int, out_channels: int):
        super().__init__()
        self.squeeze = nn.Conv2d(in_channels, squeezed_channels, 1)
        self.squeeze_activation = nn.ReLU(inplace=True)
        self.expand1x1 = nn.Conv2d(squeezed_channels, out_channels // 2, 1)
        self.expand1x1_activation = nn.ReLU(inplace=True)
        self.expand3x3 = nn.Conv2d(squeezed_channels, out_channels // 2, 3, padding=1)
        self.expand3x3_activation = nn.ReLU(inplace=True)

    def forward(self, maps: Tensor) -> Tensor:
        """Compute ``(B, out_channels, H, W)`` maps of ``(B, in_channels, H, W)``."""
        squeezed = self.squeeze_activation(self.squeeze(maps))
        expanded1x1 = self.expand1x1_activation(self.expand1x1(squeezed))
        expanded3x3 = self.expand3x3_activation(self.expand3x3(squeezed))
        return torch.cat([expanded1x1, expanded3x3], 1)


class SqueezeNet(nn.Module):
    """SqueezeNet 1.0 or 1.1 for 1,000 classes.

    Args:
        first: the first convolution.
        pools: numbers of the layers that are pools.
    """

    # Of each Fire module: squeezed_channels, out_channels.
    FIRE_CHANNELS = (
        (16, 128),
        (16, 128),
        (32, 256),
        (32, 256),
        (48, 384),
        (48, 384),
        (64, 512),
        (64, 512),
    )

    def __init__(self, first: nn.Conv2d, pools: tuple[int, ...]):
        super().__init__()
        self.num_classes = 1000
        self.features = nn.Sequential(first, nn.ReLU(inplace=True))
        channels = first.out_channels
        fire_channels = iter(self.FIRE_CHANNELS)
        for number in range(2, 13):
            if number in pools:
                self.features.append(nn.MaxPool2d(3, stride=2, ceil_mode=True))
            else:
                squeezed_channels, out_channels = next(fire_channels)
                fire = Fire(channels, squeezed_channels, out_channels)
                self.features.append(fire)
                channels = out_channels
        last_convolution = nn.Conv2d(channels, self.num_classes, 1)
        self.classifier = nn.Sequential(
            nn.Dropout(0.5),
            last_convolution,
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d((1, 1)),
        )
        for layer in _layers_of_type(self, nn.Conv2d):
            if layer is last_convolution:
                nn.init.normal_(layer.weight, std=0.01)
            else:
                nn.init.kaiming_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits ``(B, 1000)`` of ``(B, 3, H, W)`` images."""
        return self.classifier(self.features(images)).flatten(1)


class SamePaddedConv2d(nn.Conv2d):
    """Convolution that pads as TensorFlow's "SAME".

    It pads as few zeros as the size needs, an odd one below and on the right. Torch's
    convolution of stride 2 pads an image of an even size on the other sides.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Compute maps of ``(B, in_channels, H, W)``.

        They are ``(B, out_channels, ceil(H / stride), ceil(W / stride))``.
        """
        padding: list[int] = []  # left, right, above and below, as torch's pad takes it
        width_and_height = map(int, maps.shape[:1:-1])  # constants for exporters
        for side, kernel, stride in zip(
            width_and_height, self.kernel_size[::-1], self.stride[::-1]
        ):
            output_side = math.ceil(side / stride)
            n_zeros = max(stride * (output_side - 1) + kernel - side, 0)
            padding += [n_zeros // 2, n_zeros - n_zeros // 2]
        return super().forward(nn.functional.pad(maps, padding))


class Conv2dNormActivation(nn.Sequential):
    """Convolution with batch norm and ReLU6.

    ``same_padding`` pads strides as ``SamePaddedConv2d``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        groups: int = 1,
        same_padding: bool = False,
    ):
        pads_itself = same_padding and stride > 1
        convolution_type = SamePaddedConv2d if pads_itself else nn.Conv2d
        convolution = convolution_type(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=0 if pads_itself else kernel_size // 2,
            groups=groups,
            bias=False,
        )
        super().__init__(
            convolution, nn.BatchNorm2d(out_channels), nn.ReLU6(inplace=True)
        )


class InvertedResidual(nn.Module):
    """Block of MobileNetV2 (Sandler et al., CVPR 2018).

    ``expansion`` is the factor of its inner channels.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        expansion: int,
        kernel_size: int = 3,
        same_padding: bool = False,
    ):
        super().__init__()
        self.is_residual = stride == 1 and in_channels == out_channels
        inner_channels = in_channels * expansion
        self.conv = nn.Sequential()
        if expansion != 1:
            self.conv.append(Conv2dNormActivation(in_channels, inner_channels, 1))
        depthwise = Conv2dNormActivation(
            inner_channels,
            inner_channels,
            kernel_size,
            stride,
            groups=inner_channels,
            same_padding=same_padding,
        )
        self.conv.append(depthwise)
        self.conv.append(nn.Conv2d(inner_channels, out_channels, 1, bias=False))
        self.conv.append(nn.BatchNorm2d(out_channels))

    def forward(self, maps: Tensor) -> Tensor:
        """Compute ``(B, out_channels, h, w)`` of ``(B, in_channels, H, W)``."""
        if self.is_residual:
            return maps + self.conv(maps)
        return self.conv(maps)


class MobileNetV2(nn.Module):
    """MobileNetV2 for 1,000 classes, or another network of its blocks.

    Args:
        stages: channels, number of blocks, stride of the first one and kernel of each
            stage, whose blocks expand their channels sixfold but in the first stage;
            default table 2 of the paper.
        same_padding: see ``Conv2dNormActivation``.
    """

    STAGES = (
        (16, 1, 1, 3),
        (24, 2, 2, 3),
        (32, 3, 2, 3),
        (64, 4, 2, 3),
        (96, 3, 1, 3),
        (160, 3, 2, 3),
        (320, 1, 1, 3),
    )

    def __init__(
        self,
        stages: Iterable[tuple[int, int, int, int]] = STAGES,
        same_padding: bool = False,
    ):
        super().__init__()
        self.features = nn.Sequential(
            Conv2dNormActivation(3, 32, 3, 2, same_padding=same_padding)
        )
        in_channels = 32
        expansion = 1
        for out_channels, n_blocks, stride, kernel_size in stages:
            for block in range(n_blocks):
                block_stride = 1 if block else stride
                residual = InvertedResidual(
                    in_channels,
                    out_channels,
                    block_stride,
                    expansion,
                    kernel_size,
                    same_padding,
                )
                self.features.append(residual)
                in_channels = out_channels
            expansion = 6
        self.features.append(Conv2dNormActivation(in_channels, 1280, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))
        _init_convolutions(self)
        nn.init.normal_(self.classifier[1].weight, std=0.01)
        nn.init.zeros_(self.classifier[1].bias)

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits ``(B, 1000)`` of ``(B, 3, H, W)`` images."""
        pooled = nn.functional.adaptive_avg_pool2d(self.features(images), 1)
        return self.classifier(pooled.flatten(1))


class EfficientNetLite(MobileNetV2):
    """EfficientNet-Lite for 1,000 classes.

    That is EfficientNet (Tan and Le, ICML 2019) for small devices. It has neither
    squeeze-and-excitation nor swish, so it is MobileNetV2 with other stages, padded as
    in TensorFlow.

    Args:
        width: factor of the channels of all stages; Lite0 1, Lite1 1, Lite2 1.1.
        depth: factor of the blocks of all stages but the first and the last; Lite0 1,
            Lite1 1.1, Lite2 1.2.
    """

    STAGES = (
        (16, 1, 1, 3),
        (24, 2, 2, 3),
        (40, 2, 2, 5),
        (80, 3, 2, 3),
        (112, 3, 1, 5),
        (192, 4, 2, 5),
        (320, 1, 1, 3),
    )

    def __init__(self, width: float = 1.0, depth: float = 1.0):
        stages = []
        for channels, n_blocks, stride, kernel_size in self.STAGES:
            scaled_channels = round(channels * width / 8) * 8
            scaled_blocks = 1  # in the first stage and the last
            if n_blocks > 1:
                scaled_blocks = math.ceil(n_blocks * depth)
            stages.append((scaled_channels, scaled_blocks, stride, kernel_size))
        super().__init__(stages, same_padding=True)
        for norm in _layers_of_type(self, nn.BatchNorm2d):
            norm.eps = 1e-3  # TensorFlow's


class BasicBlock(nn.Module):
    """Block of ResNet-18 (He et al., CVPR 2016).

    It has two 3x3 convolutions, the first one with the stride.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int):
        super().__init__()
        shortcut = None
        if stride != 1 or in_channels != out_channels:
            shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )
        self.conv1 = nn.Conv2d(
            in_channels, out_channels, 3, stride, padding=1, bias=False
        )
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.downsample = shortcut

    def forward(self, maps: Tensor) -> Tensor:
        """Compute ``(B, out_channels, h, w)`` of ``(B, in_channels, H, W)``."""
        residual = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(maps)))))
        shortcut = maps if self.downsample is None else self.downsample(maps)
        residual += shortcut
        return self.relu(residual)


class ResNet(nn.Module):
    """ResNet-18 for 1,000 classes."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512, 1000)
        _init_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits ``(B, 1000)`` of ``(B, 3, H, W)`` images."""
        maps = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        maps = self.layer4(self.layer3(self.layer2(self.layer1(maps))))
        return self.fc(self.avgpool(maps).flatten(1))


def _layers_of_type(network: nn.Module, kind: type[nn.Module]) -> list:
    """Return the layers of a network that are of a type, in order."""
    return [layer for layer in network.modules() if isinstance(layer, kind)]


def _init_convolutions(network: nn.Module) -> None:
    """Draw the initial weights of convolutions without bias (He et al., ICCV 2015)."""
    for layer in _layers_of_type(network, nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


class SmallCNN(nn.Module):
    """Network for small images, which trains in a minute on a CPU; the demo's.

    Three convolutions with batch norm and pools (128 x 8 x 8 from 64 pixels), one
    without, and a linear layer. The plastic layers have no batch norm, whose statistics
    of a batch of one clip would be biased.

    Args:
        num_classes: number of outputs.
    """

    def __init__(self, num_classes: int = 10):
        super().__init__()
        layers: list[nn.Module] = []
        for in_channels, out_channels in ((3, 32), (32, 64), (64, 128)):
            layers += [
                nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(out_channels),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        layers += [nn.Conv2d(128, 128, 3, padding=1), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(128, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits ``(B, classes)`` of normalised ``images``.

        They are ``(B, 3, h, w)`` float32.
        """
        return self.classifier(self.pool(self.features(images)).flatten(1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "squeezenet1_0": lambda: SqueezeNet(
        nn.Conv2d(3, 96, 7, stride=2), pools=(2, 6, 11)
    ),
    "squeezenet1_1": lambda: SqueezeNet(nn.Conv2d(3, 64, 3, stride=2), pools=(2, 5, 8)),
    "mobilenet_v2": MobileNetV2,
    "efficientnet_lite0": EfficientNetLite,
    "efficientnet_lite1": partial(EfficientNetLite, depth=1.1),
    "efficientnet_lite2": partial(EfficientNetLite, width=1.1, depth=1.2),
    "resnet18": ResNet,
    "small_cnn": SmallCNN,
}
