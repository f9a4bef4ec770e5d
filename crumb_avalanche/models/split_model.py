"""A CNN split into a frozen feature extractor F and plastic layers P, with a codebook between them.

Paper: "Feature extraction and classification". F is never trained, and its batch-norm statistics are frozen too.
"""

import contextlib
import copy
import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.engines import TORCH, Runtime, compiled
from crumb_avalanche.models.feature_memo import FeatureMemo
from crumb_avalanche.models.finite import check_maps
from crumb_avalanche.models.int8 import open_int8
from crumb_avalanche.models.layers import AveragingConv2d, replace_dropout
from crumb_avalanche.models.penultimate import head_input
from crumb_avalanche.models.precision import PRECISIONS, warn_where_bf16_is_slow
from crumb_avalanche.models.preprocessing import PIXEL_MEAN, PIXEL_STD
from crumb_avalanche.models.stopwatch import Stopwatch

# The paper's learning rate of 1e-3 suits maps whose positive values have the standard deviation of torchvision's
# SqueezeNet-1.0 maps; the maps of other weights are scaled to it.
REFERENCE_SCALE = 14.0
# Most maps that P takes at a time on a CPU. They fit its caches: a third faster than batches of 128.
MAPS_AT_A_TIME = 24


@dataclass(frozen=True)
class ForwardRecord:
    """Intermediate results of a forward pass in training mode.

    Attributes:
        images: the tensor that was passed in.
        feature_map: ``(B, C, H, W)`` float32, scaled, detached.
        codes: ``(B, G, H, W)``, or ``None`` if the pass was not quantized.
    """

    images: Tensor
    feature_map: Tensor
    codes: Tensor | None


@dataclass(frozen=True)
class Layout:
    """Layout of what the stages of a network return.

    Attributes:
        prefix_tokens: number of class tokens and registers before the patches of a transformer.
        channels_last: whether maps are ``(B, H, W, C)``.
    """

    prefix_tokens: int = 0
    channels_last: bool = False

    def grid(self, tokens: int) -> tuple[int, int]:
        """Return height and width of the patches among a number of tokens; images are square."""
        patches = tokens - self.prefix_tokens
        side = math.isqrt(patches)
        return (side, side) if side**2 == patches else (patches, 1)


class SplitModel(nn.Module):
    """``P(F(x))`` with a frozen ``F``, and ``P(decode(encode(F(x))))`` if there is a codebook.

    Paper: "Feature extraction and classification".

    ``forward`` passes the codebook in training mode and not in evaluation mode (the paper's inference);
    ``quantized_training`` and ``quantized_evaluation`` change that. Any Avalanche strategy can train it.

    Args:
        feature_extractor: ``(B, 3, h, w)`` -> ``(B, C, H, W)``; frozen here.
        plastic_layers: ``(B, C, H, W)`` -> ``(B, classes)`` logits; its ``nn.Dropout`` are replaced by ``CoinDropout``.
        head: qualified name in ``plastic_layers`` of the last layer, whose outputs are the classes.
        codebook: the memory blocks, or ``None``.
        image_size: side in pixels of the images that ``map_shape`` is measured with.

    Raises:
        TypeError: the head is neither linear nor convolutional.
        ValueError: F cannot take the images, or does not give maps; or the codebook does not fit the maps.

    Attributes:
        map_shape: ``(C, H, W)`` of one feature map.
        feature_scale: factor of F's output (see ``fold_feature_scale``).
        calibrated: whether ``calibrate`` was called on this model, or on the model that its state dict comes from.
        normalization_set: whether ``set_normalization`` was called.
        runtime: what runs F (see ``use_runtime``); torch in copies of the model, except for int8.
        stopwatch: seconds spent in F, in the search and in P.
        feature_memo: keeps F's output of stored images, or ``None`` (see ``use_feature_memo``).
        interpolation: Pillow's filter that images are resized with, in lower case.
        stages: names of modules of F whose outputs are maps or tokens, in order; the last one is the cut.
        layout: layout of what the stages return.
        token_grid: height and width of the grid of patches if the map is ``(B, C, N, 1)`` tokens with others before
            the patches; else ``None``.
    """

    runtime: Runtime = TORCH

    def __init__(
        self,
        feature_extractor: nn.Module,
        plastic_layers: nn.Module,
        head: str,
        codebook: Codebook | None = None,
        image_size: int = 224,
    ):
        super().__init__()
        self.feature_extractor = feature_extractor.requires_grad_(False).eval()
        self.plastic_layers = replace_dropout(plastic_layers)
        self.codebook = codebook
        self.head = head
        self.image_size = image_size
        self.quantized_training = True
        self.quantized_evaluation = False
        self.precision = "fp32"
        self.calibrated = False
        self.normalization_set = False
        self.interpolation = "bilinear"
        self.stages = tuple(name for name, _ in feature_extractor.named_children())
        self.layout = Layout()
        self.token_grid: tuple[int, int] | None = None
        self._map_hooks: OrderedDict[int, Callable[[ForwardRecord], None]] = OrderedDict()
        self.stopwatch = Stopwatch()
        self.feature_memo: FeatureMemo | None = None
        self._same_alone: dict[tuple, bool] = {}
        self._range_checked = False
        self.register_buffer("feature_scale", torch.ones(()))
        self.register_buffer("pixel_mean", torch.tensor(PIXEL_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("pixel_std", torch.tensor(PIXEL_STD).view(1, 3, 1, 1), persistent=False)
        self.to(memory_format=torch.channels_last)  # half the time of NCHW on CPUs
        try:
            with torch.no_grad():
                shape = self.feature_extractor(torch.zeros(1, 3, image_size, image_size)).shape
        except RuntimeError as error:
            raise ValueError(
                f"the feature extractor cannot take images of {image_size} pixels ({error}); give another image_size"
            ) from error
        if len(shape) != 4:
            raise ValueError(
                f"the feature extractor gives {tuple(shape)} for one image; a feature map has four axes (B, C, H, W): "
                "cut the network at a convolutional layer"
            )
        self.map_shape = tuple(shape[1:])
        self._head_outputs()
        if codebook is not None:
            codebook.groups(self.map_shape[0])

    def train(self, mode: bool = True) -> "SplitModel":
        """Set the mode as ``nn.Module.train`` does; F stays in evaluation mode.

        Args:
            mode: ``True`` for training, ``False`` for evaluation.
        """
        super().train(mode)
        self.feature_extractor.eval()
        return self

    def __getstate__(self):
        runtime = TORCH if self.runtime.calibration is None else replace(self.runtime, run=None)
        return {**self.__dict__, "runtime": runtime, "_map_hooks": OrderedDict()}

    def __setstate__(self, state):
        super().__setstate__(state)
        if self.runtime.calibration is not None:
            self.runtime = open_int8(self, self.runtime.calibration)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}calibrated"] = torch.tensor(self.calibrated)

    def _load_from_state_dict(self, state_dict, prefix, *arguments):
        # Files that are older than the flag hold calibrated models only.
        self.calibrated = bool(state_dict.pop(f"{prefix}calibrated", True))
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    @property
    def is_calibrated(self) -> bool:
        """Whether the model needs no ``calibrate``: it was called, or the codebook was filled in another way."""
        return self.calibrated or (self.codebook is not None and bool(self.codebook.blocks.any()))

    @property
    def n_classes(self) -> int:
        """Outputs of the head."""
        return self._head_outputs()

    def _head_outputs(self) -> int:
        head = self.plastic_layers.get_submodule(self.head)
        outputs = getattr(head, "out_channels" if isinstance(head, nn.Conv2d) else "out_features", None)
        if outputs is None:
            raise TypeError(
                f"the head {self.head!r} is a {type(head).__name__}; give an nn.Linear or nn.Conv2d with an output for "
                "each class of the whole stream: strategies mask the classes not seen yet, so no head has to grow"
            )
        return outputs

    def compile(self) -> "SplitModel":
        """Compile F at its first batch (half a minute; needs a C++ compiler). Results change in the last digits.

        F is frozen, so its weights are folded into the compiled code. P is not compiled: replay batches vary in size,
        and code compiled for varying sizes was slower. ``use_runtime(model, "compiled")`` compares the maps too.
        """
        self.runtime = Runtime("compiled", run=compiled(self.feature_extractor))
        return self

    @property
    def is_compiled(self) -> bool:
        """Whether F is compiled."""
        return self.runtime.name == "compiled"

    def set_precision(self, precision: str) -> "SplitModel":
        """Set the precision of F and P: ``fp32``, or ``bf16`` autocast. Codes, losses and weights stay float32.

        Warns if bf16 is slower on this device.

        Args:
            precision: one of ``PRECISIONS``.

        Raises:
            ValueError: another precision.
        """
        if precision not in PRECISIONS:
            raise ValueError(f"precision is {precision!r}; use one of {', '.join(PRECISIONS)}")
        if precision == "bf16":
            warn_where_bf16_is_slow(self.pixel_mean.device)
        self.precision = precision
        return self

    def autocast(self):
        """Return the context that F and P run in."""
        if self.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.pixel_mean.device.type, dtype=torch.bfloat16)

    def set_normalization(self, mean: Sequence[float], std: Sequence[float]) -> "SplitModel":
        """Set the normalisation of the float images that the model is given; default ImageNet's.

        Stored ``uint8`` images are normalised with it again at replay. Images of ``ToTensor`` alone have mean 0 and
        standard deviation 1, images from 0 to 255 mean 0 and standard deviation 1/255.

        Args:
            mean, std: one number for each of the three channels, or one for all, in units where white is 1.

        Raises:
            RuntimeError: there are neither one nor three numbers.
        """
        for buffer, values in ((self.pixel_mean, mean), (self.pixel_std, std)):
            buffer.copy_(torch.as_tensor(values, dtype=torch.float32).view(1, -1, 1, 1))
        self.normalization_set = True
        return self

    def pixels(self, images: Tensor) -> Tensor:
        """Convert normalised float images to ``uint8`` pixels ``(B, 3, h, w)``; return ``uint8`` images unchanged.

        Args:
            images: ``(B, 3, h, w)``, normalised float or uint8.

        Raises:
            ValueError: a pixel is not between 0 and 255 if the normalisation is taken back.
        """
        if images.dtype == torch.uint8:
            return images
        pixels = (images * self.pixel_std + self.pixel_mean) * 255
        low, high = map(float, pixels.aminmax())
        if not (low > -0.51 and high < 255.51):  # half a level is lost by rounding
            mean, std = ([round(v, 4) for v in one.flatten().tolist()] for one in (self.pixel_mean, self.pixel_std))
            raise ValueError(
                f"pixels would be from {low:.1f} to {high:.1f}, not 0 to 255, for images normalised with mean {mean} "
                f"and deviation {std}: say how they are, with model.set_normalization(mean, std)"
            )
        return pixels.round().clamp(0, 255).to(torch.uint8)

    @torch.no_grad()
    def extract(self, images: Tensor) -> Tensor:
        """Run F: ``(B, C, H, W)`` float32 maps without the feature scale, channels-last in memory.

        On a CPU in float32, the map of an image has the same bits in any batch. It has others in another ``runtime``.

        Args:
            images: ``(B, 3, h, w)``, ``uint8`` pixels or normalised floats (see ``set_normalization``).

        Raises:
            ValueError: the images do not have 3 channels.
        """
        if images.dim() != 4 or images.shape[1] != 3:
            raise ValueError(
                f"the images are {tuple(images.shape)}, not (B, 3, h, w); for grey images, repeat the channel in the "
                "transform: transforms.Lambda(lambda image: image.expand(3, -1, -1)) after ToTensor()"
            )
        if images.dtype != torch.uint8 and not self._range_checked:
            self._check_range(images)
        with self.stopwatch.measure("features"):
            if images.device.type != "cpu":
                return self._extract(images)
            with torch.inference_mode():
                parts = [self._extract_part(some) for some in images.split(self.runtime.images_at_a_time)]
            return torch.cat(parts)  # a normal tensor: P trains on it

    def _extract_part(self, images: Tensor) -> Tensor:
        """Run F on 1 to 8 images; duplicate a single image if F rounds it differently alone."""
        if len(images) > 1 or self._is_same_alone(images.shape[1:]):
            return self._extract(images)
        return self._extract(images.expand(2, -1, -1, -1))[:1]

    def _is_same_alone(self, shape: torch.Size) -> bool:
        """Return whether F gives an image the same bits alone and in a pair; measured once for a shape, with noise."""
        key = shape, self.precision, torch.get_num_threads(), str(self.runtime)
        if key not in self._same_alone:
            noise = torch.rand(1, *shape, generator=torch.Generator().manual_seed(0)).expand(2, -1, -1, -1)
            self._same_alone[key] = torch.equal(self._extract(noise)[:1], self._extract(noise[:1]))
        return self._same_alone[key]

    def _extract(self, images: Tensor) -> Tensor:
        images = self.normalized(images)
        with self.autocast():
            if self.runtime.run is not None:
                return self.runtime.run(images).float()
            return self.feature_extractor(images.contiguous(memory_format=torch.channels_last)).float()

    def normalized(self, images: Tensor) -> Tensor:
        """Normalise ``uint8`` pixels; others are normalised already.

        Args:
            images: ``(B, 3, H, W)`` uint8, or normalised float.

        Returns:
            ``(B, 3, H, W)`` float32, or ``images`` if they are float.
        """
        return (images.float() / 255 - self.pixel_mean) / self.pixel_std if images.dtype == torch.uint8 else images

    def _check_range(self, images: Tensor) -> None:
        """Warn if the first float images seem to be from 0 to 255 where 0 to 1 is meant."""
        self._range_checked = True
        if float((images * self.pixel_std + self.pixel_mean).max()) > 10:  # white is 1
            white = float(((1 - self.pixel_mean) / self.pixel_std).max())
            warnings.warn(
                f"the images have values up to {float(images.max()):.0f}, where white is expected to be about "
                f"{white:.1f}: divide by 255 before the normalisation, or call model.set_normalization([0], [1 / 255])",
                stacklevel=2,
            )

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Compute the scaled feature maps of a batch.

        Args:
            images: as for ``extract``; or ``(B, C, H, W)`` outputs of ``extract`` from a ``FeatureCache``, in single
                or half precision.

        Returns:
            ``(B, C, H, W)`` float32, channels-last in memory.

        Raises:
            BadFeaturesError: the maps of an image are not finite or too large.
            ValueError: the images do not have 3 channels.
        """
        if images.shape[1] == self.map_shape[0] != 3:
            maps = images
        elif self.feature_memo is not None and images.dtype == torch.uint8:
            maps = self.feature_memo.maps(images, self.extract)
        else:
            maps = self.extract(images)
        check_maps(maps, images)
        # One pass over the memory if a cache gives half precision or another order of axes.
        copied = maps.to(torch.float32, memory_format=torch.channels_last)
        return copied * self.feature_scale if copied is maps else copied.mul_(self.feature_scale)

    def places(self, maps: Tensor) -> Tensor:
        """Return the part of ``(B, C, H, W)`` maps that is a grid on the image: without class token and registers.

        Args:
            maps: ``(B, C, H, W)`` float, as ``extract`` returns them.
        """
        if self.token_grid is None:
            return maps
        return maps[:, :, -math.prod(self.token_grid) :, 0].unflatten(2, self.token_grid)

    def encode(self, feature_map: Tensor) -> Tensor:
        """Encode maps ``(B, C, H, W)`` as codes ``(B, G, H, W)``, uint8 or int16; see ``Codebook.encode``.

        Args:
            feature_map: ``(B, C, H, W)`` float.

        Raises:
            ValueError: all rows of the codebook are zero, or the codebook or the map is not finite.
        """
        with self.stopwatch.measure("search"):
            return self.codebook.encode(feature_map)

    def classify(self, feature_map: Tensor) -> Tensor:
        """Run P: logits ``(B, classes)`` float32 of maps ``(B, C, H, W)``.

        Args:
            feature_map: ``(B, C, H, W)`` float, from ``extract`` or ``decode``.
        """
        with self.stopwatch.measure("plastic"), self.autocast():
            parts = -(-len(feature_map) // MAPS_AT_A_TIME)
            if feature_map.device.type != "cpu" or parts < 2 or (self.training and self._mixes_images()):
                return self.plastic_layers(feature_map).float()
            at_a_time = -(-len(feature_map) // parts)
            # Not tensor_split or slices, whose gradients are each as large as the whole batch.
            return torch.cat([self.plastic_layers(some) for some in feature_map.split(at_a_time)]).float()

    def _mixes_images(self) -> bool:
        """Return whether P's logits of an image in training mode depend on its batch."""
        return any(isinstance(layer, _BatchNorm) for layer in self.plastic_layers.modules())

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits ``(B, classes)`` float32, through the codebook or not as the two settings say.

        Args:
            images: as for ``features``.

        Raises:
            ValueError: see ``features`` and ``encode``.
        """
        feature_map = self.features(images)
        quantized = self.quantized_training if self.training else self.quantized_evaluation
        codes = None
        if quantized and self.codebook is not None:
            codes = self.encode(feature_map)
        if self.training and self._map_hooks:
            record = ForwardRecord(images, feature_map, codes)
            for hook in tuple(self._map_hooks.values()):
                hook(record)
        return self.classify(feature_map if codes is None else self.codebook.decode(codes))

    def register_map_hook(self, hook: Callable[[ForwardRecord], None]) -> RemovableHandle:
        """Call a function with the ``ForwardRecord`` of every forward pass in training mode.

        Args:
            hook: called with the record.

        Returns:
            A handle; its ``remove()`` removes the hook. Copies of the model have no hooks.
        """
        handle = RemovableHandle(self._map_hooks)
        self._map_hooks[handle.id] = hook
        return handle

    def use_feature_memo(self, memo: FeatureMemo | None) -> None:
        """Take F's output of ``uint8`` images from a memo; ``None`` computes it every time.

        Args:
            memo: what keeps the maps, or ``None``.
        """
        self.feature_memo = memo

    def reset_head(self, n_classes: int) -> None:
        """Replace the head by a newly initialised one (before streaming, as in the paper).

        The initialisation is PyTorch's own and draws from torch's global RNG.

        Args:
            n_classes: outputs of the new head.
        """
        old = self.plastic_layers.get_submodule(self.head)
        if isinstance(old, AveragingConv2d):
            new = AveragingConv2d(old.in_channels, n_classes)
        elif isinstance(old, nn.Conv2d):
            new = nn.Conv2d(old.in_channels, n_classes, old.kernel_size, padding=old.padding)
        else:
            new = nn.Linear(old.in_features, n_classes)
        parent, _, name = self.head.rpartition(".")
        owner = self.plastic_layers.get_submodule(parent)
        # setattr also registers under names such as "1" of an nn.Sequential
        setattr(owner, name, new.to(self.pixel_mean.device, memory_format=torch.channels_last))

    @torch.no_grad()
    def fold_feature_scale(self, maps: Tensor, whole: Tensor | None = None) -> float:
        """Scale the maps so that their positive values have the standard deviation ``REFERENCE_SCALE``.

        Multiplies F's output by ``k``, and the biases of P below the head as well: in a network of convolutions, ReLUs
        and pools, every activation up to the input of the head is then multiplied by ``k``, so one learning rate suits
        all weight files. The head is not changed, since it is replaced before a stream. Plastic layers that are not
        such a network (batch norm, GELU, ...) set their own scale; there ``k`` is 1.

        Args:
            maps: ``(B, C, H, W)``, from ``features`` before folding; any selection of locations.
            whole: ``(B, C, H, W)``, a few complete maps, to test whether P scales; default ``maps``.

        Returns:
            ``k``.

        Raises:
            ValueError: the maps are constant.
        """
        if not any(True for _ in self.feature_extractor.parameters()):
            return 1.0  # the whole network is plastic and takes images, whose spread is known
        positive = maps[maps > 0]
        spread = float(positive.std()) if len(positive) > 1 else 0.0
        if not spread > 0:
            raise ValueError("the feature maps are constant, so no scale can be measured; check weights and images")
        factor = REFERENCE_SCALE / spread
        # A copy on the CPU: two passes are compared, and a GPU may round products to TF32.
        layers = copy.deepcopy(self.plastic_layers).cpu().eval()
        trial = SimpleNamespace(plastic_layers=layers, head=self.head)
        whole = (maps if whole is None else whole)[:4].cpu()
        before = head_input(trial, whole, layers)
        for bias in self._biases_below_head(layers):
            bias.mul_(factor)
        after = head_input(trial, whole * factor, layers)
        if not torch.allclose(after, before * factor, rtol=1e-3, atol=1e-4 * float(after.abs().max())):
            return 1.0
        for bias in self._biases_below_head(self.plastic_layers):
            bias.mul_(factor)
        self.feature_scale.mul_(factor)
        return factor

    def _biases_below_head(self, layers: nn.Module) -> list[Tensor]:
        named = layers.named_parameters()
        return [weight for name, weight in named if name.endswith("bias") and not name.startswith(self.head + ".")]
