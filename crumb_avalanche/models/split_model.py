"""A CNN split into frozen F and plastic P, with a codebook between them.

Paper: "Feature extraction and classification". The feature extractor F is never
trained, and its batch-norm statistics are frozen too; the plastic layers P are the rest
of the network.
"""

import contextlib
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from crumb_avalanche.models.codebook import Codebook, prepare_codebook
from crumb_avalanche.models.extraction import (
    PRECISIONS,
    ForwardRecord,
    Stopwatch,
    check_maps,
    classify_in_parts,
    extract_in_parts,
    maps_are_usable,
    warn_where_bf16_is_slow,
    without_autocast,
)
from crumb_avalanche.models.image_input import ImageInput
from crumb_avalanche.models.layers import (
    CentredLinear,
    check_float32,
    feature_scale_of,
    head_like,
    head_outputs,
    multiply_biases,
    replace_dropout,
)
from crumb_avalanche.models.runtimes import TORCH, Runtime
from crumb_avalanche.system.process import float32_by_default
from crumb_avalanche.system.setting_ranges import check_count

# Entries of a model's state dict that are no weights.
NOT_WEIGHTS = ("calibrated", "codes_error")
NOT_MEASURED = -1.0  # the error of codes in a state dict, where it was not measured


def check_split_model(model: nn.Module, trainer: str) -> None:
    """Raise unless a trainer was given a ``SplitModel`` as it is, in float32.

    Args:
        model: that it was given.
        trainer: name of the strategy or plugin, for the error.

    Raises:
        TypeError: it is another model, is wrapped, or has weights that are not float32.
    """
    if not isinstance(model, SplitModel):
        compiled_model = getattr(model, "_orig_mod", None)  # of torch.compile
        parallel_model = getattr(model, "module", None)  # of DataParallel
        if isinstance(compiled_model, SplitModel):
            cure = (
                "give the model as it is; use_runtime(model, 'compiled') compiles F, "
                "which takes most of the time"
            )
        elif isinstance(parallel_model, SplitModel):
            cure = (
                "give the model inside it: a stream is learned in order, on one device"
            )
        else:
            cure = (
                "build one with split_backbone(...) or split_at(network, node), and do "
                "not wrap it (as_multitask)"
            )
        raise TypeError(
            f"{trainer} trains a SplitModel, not a {type(model).__name__}: {cure}"
        )
    check_float32(model)


# Functions that get the record of a forward pass, by the number of their handle.
MapHooks: TypeAlias = "OrderedDict[int, Callable[[ForwardRecord], None]]"


class FeatureMaps(Protocol):
    """What keeps F's maps of images; see ``map_store.FeatureMemo``."""

    def maps(self, images: Tensor, extract: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the maps of images, ``(B, C, H, W)``; ``extract`` is F."""


class SplitModel(ImageInput):
    """``P(F(x))`` with a frozen ``F``, or ``P(decode(encode(F(x))))``.

    The latter needs a codebook. Paper: "Feature extraction and classification".

    ``forward`` passes the codebook in training mode and not in evaluation mode (the
    paper's inference); ``quantized_training`` and ``quantized_evaluation`` change that.
    Any Avalanche strategy can train it. ``ImageInput`` holds the size and the
    normalisation of its images.

    Args:
        feature_extractor: ``(B, 3, h, w)`` -> ``(B, C, H, W)``; frozen here.
        plastic_layers: ``(B, C, H, W)`` -> ``(B, classes)`` logits; its ``nn.Dropout``
            are replaced by ``CoinDropout``.
        head: qualified name in ``plastic_layers`` of the last layer, whose outputs are
            the classes.
        codebook: the memory blocks, or ``None``.
        image_size: side in pixels of the images that ``map_shape`` is measured with.
        smallest_side: side in pixels that smaller images are enlarged to; 0 for none.

    Raises:
        TypeError: the head is neither linear nor convolutional, the codebook is not a
            ``Codebook``, or weights are not float32.
        ValueError: F cannot take the images, or does not give maps; or the codebook
            does not fit the maps.

    Attributes:
        map_shape: ``(C, H, W)`` of one feature map.
        feature_scale: factor of F's output (see ``fold_feature_scale``).
        fixed_statistics: whether batch norms of P keep their statistics in training and
            use them, since those of a batch of one clip would be biased.
        calibrated: whether ``calibrate`` was called on this model, or on the model that
            its state dict comes from; true also after a state dict that does not say.
        codes_error: squared error of the codes in units of the maps' energy, which
            ``measure_codes`` sets; ``None`` before.
        runtime: what runs F (see ``use_runtime``); torch in copies of the model.
        stopwatch: seconds spent in F, in the search and in P.
        feature_memo: a ``FeatureMemo``, which keeps F's output of ``uint8`` images, or
            ``None``.
        backbone: name of the network that ``split_backbone`` made it of; empty for
            others.
        stages: names of modules of F whose outputs are maps or tokens, in order; the
            last one is the cut.
        token_grid: height and width of the grid of patches if the map is ``(B, C, N,
            1)`` tokens with others before the patches; else ``None``.
    """

    runtime: Runtime = TORCH
    feature_scale: Tensor

    def __init__(
        self,
        feature_extractor: nn.Module,
        plastic_layers: nn.Module,
        head: str,
        codebook: Codebook | None = None,
        image_size: int = 224,
        smallest_side: int = 0,
    ):
        super().__init__(image_size, smallest_side)
        self.feature_extractor = feature_extractor.requires_grad_(False).eval()
        self.plastic_layers = replace_dropout(plastic_layers)
        self.codebook: Codebook | None = None
        self.head = head
        self.fixed_statistics = False
        self.quantized_training = True
        self.quantized_evaluation = False
        self.precision = "fp32"
        self.calibrated = False
        self.codes_error: float | None = None
        self.backbone = ""
        self.stages = tuple(name for name, _ in feature_extractor.named_children())
        self.token_grid: tuple[int, int] | None = None
        self.stopwatch = Stopwatch()
        self.feature_memo: FeatureMaps | None = None
        self._map_hooks: MapHooks = OrderedDict()
        # Whether an image alone gets the bits that it gets in a batch; see extract.
        self._same_alone: dict[tuple, bool] = {}
        self.register_buffer("feature_scale", torch.ones((), dtype=torch.float32))
        check_float32(self)
        first_weight = next(self.parameters(), None)
        device = torch.device("cpu")
        if first_weight is not None:
            device = first_weight.device
        # Channels-last takes half the time of NCHW on CPUs.
        layout = torch.channels_last
        self.to(device, memory_format=layout)  # type: ignore[call-overload]
        self.map_shape = self._measured_map_shape()
        head_outputs(plastic_layers, head)  # raises for another kind of layer
        self.set_codebook(codebook)

    def set_codebook(self, codebook: Codebook | None) -> None:
        """Put a codebook between F and P, in the place of the one before.

        It moves to the model's device, and gets room for the channels of the maps.

        Args:
            codebook: changed in place; ``None`` for a model without one.

        Raises:
            TypeError: it is neither a ``Codebook`` nor ``None``, or is not float32.
            ValueError: it does not fit the channels of the maps.
        """
        prepare_codebook(codebook, self.map_shape[0])
        if codebook is not None:
            check_float32(codebook)
            codebook.to(self.pixel_mean.device)
        self.codebook = codebook

    @property
    def extractor_is_empty(self) -> bool:
        """Whether F has no modules: the whole network is plastic."""
        return not self.stages

    @property
    def extractor_has_weights(self) -> bool:
        """Whether a module of F has weights, so that maps are more than images."""
        return next(self.feature_extractor.parameters(), None) is not None

    @torch.no_grad()
    def _measured_map_shape(self) -> tuple[int, int, int]:
        """Return the shape of the feature map of one image, ``(C, H, W)``.

        The feature extractor runs on a black image.

        Raises:
            ValueError: it cannot take the image, or does not give a map.
        """
        side = self.input_side
        black_image = self.pixel_mean.new_zeros(1, 3, side, side)
        try:
            maps = self.feature_extractor(black_image)
        except RuntimeError as error:
            raise ValueError(
                f"the feature extractor cannot take images of {side} pixels ({error}); "
                "give another image_size"
            ) from error
        if maps.dim() != 4:
            raise ValueError(
                f"the feature extractor gives {tuple(maps.shape)} for one image; a "
                "feature map has four axes (B, C, H, W): cut the network at a "
                "convolutional layer"
            )
        _, n_channels, height, width = maps.shape
        return n_channels, height, width

    def train(self, mode: bool = True) -> "SplitModel":
        """Set the ``mode`` as ``nn.Module.train`` does; F stays in evaluation mode."""
        super().train(mode)
        self.feature_extractor.eval()
        if self.fixed_statistics:
            for layer in self.plastic_layers.modules():
                if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                    layer.eval()
        return self

    def _apply(self, fn, *arguments, **keywords):
        """Move the model as torch does, but keep its weights float32.

        torch calls this to move and convert a module, in ``to``, ``half`` and so on.

        Args:
            fn: function of a tensor that returns it moved or converted.
            *arguments, **keywords: of ``nn.Module._apply``.

        Raises:
            TypeError: the weights would be converted.
        """
        dtype = fn(self.feature_scale).dtype
        if dtype != torch.float32:
            raise TypeError(
                f"the weights of a {type(self).__name__} stay float32, which codes and "
                f"sums need, so it cannot become {dtype}; for a faster F and P call "
                "set_precision('bf16')"
            )
        super()._apply(fn, *arguments, **keywords)
        self.stopwatch.device = self.pixel_mean.device
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "runtime": TORCH, "_map_hooks": OrderedDict()}

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        """Add to a state dict how the model was calibrated; torch's hook."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}calibrated"] = torch.tensor(self.calibrated)
        error = self.codes_error
        if error is None:
            error = NOT_MEASURED
        destination[f"{prefix}codes_error"] = torch.tensor(error, dtype=torch.float64)

    def _load_from_state_dict(self, state_dict, prefix, *arguments):
        """Take from a state dict how the model was calibrated; torch's hook."""
        # Weights of other programs are those of calibrated models.
        self.calibrated = bool(state_dict.pop(f"{prefix}calibrated", True))
        error = float(state_dict.pop(f"{prefix}codes_error", NOT_MEASURED))
        self.codes_error = None if error == NOT_MEASURED else error
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    @property
    def needs_calibration(self) -> bool:
        """Whether the model was not calibrated, and has no filled codebook."""
        if self.calibrated:
            return False
        return self.codebook is None or not bool(self.codebook.blocks.any())

    @property
    def n_classes(self) -> int:
        """Outputs of the head."""
        return head_outputs(self.plastic_layers, self.head)

    def set_precision(self, precision: str) -> "SplitModel":
        """Set in which precision the network runs: ``fp32``, or ``bf16`` autocast.

        Codes, losses and weights stay float32. Warns if bf16 is slower on this device.
        A ``torch.autocast`` around the model changes the plastic layers alone: maps of
        the feature extractor are kept in caches and memories.

        Args:
            precision: ``"fp32"`` or ``"bf16"``.

        Returns:
            The model.

        Raises:
            ValueError: another precision.
        """
        if precision not in PRECISIONS:
            raise ValueError(
                f"precision is {precision!r}; use one of {', '.join(PRECISIONS)}"
            )
        if precision == "bf16":
            warn_where_bf16_is_slow(self.pixel_mean.device)
        self.precision = precision
        return self

    def autocast(self) -> contextlib.AbstractContextManager:
        """Return a context in which layers run in the precision of the network.

        It is the one that ``set_precision`` set, else that of a ``torch.autocast``
        around the model. It does not use torch's cache of cast weights, which is
        emptied only where the outermost ``torch.autocast`` ends: around a training,
        that would be after the last step.
        """
        device_type = self.pixel_mean.device.type
        is_available = torch.amp.is_autocast_available(device_type)
        if self.precision == "bf16":
            dtype = torch.bfloat16
        elif is_available and torch.is_autocast_enabled(device_type):
            dtype = torch.get_autocast_dtype(device_type)
        else:
            return contextlib.nullcontext()
        return torch.autocast(device_type, dtype=dtype, cache_enabled=False)

    @torch.no_grad()
    def extract(self, images: Tensor) -> Tensor:
        """Compute feature maps without their scale: run the feature extractor F.

        On a CPU in float32, the map of an image has the same bits in any batch. It has
        others in another ``runtime``.

        Args:
            images: ``(B, 3, h, w)``, ``uint8`` pixels or normalised floats (see
                ``set_normalization``).

        Returns:
            ``(B, C, H, W)`` float32 maps without the feature scale, channels-last in
            memory.

        Raises:
            TypeError: the images are of another type.
            ValueError: the images do not have 3 channels.
        """
        self.require_images(images)
        with self.stopwatch.measure("features"):
            # Tracing records one batch for all.
            if images.device.type != "cpu" or torch.jit.is_tracing():
                return self._extract_at_once(images)
            # A few images at a time. ``_same_alone`` remembers in which circumstances
            # an image that passes alone gets the same bits as in a batch.
            return extract_in_parts(
                self._extract_at_once,
                images,
                same_alone=self._same_alone,
                circumstances=(
                    self.precision,
                    torch.get_num_threads(),
                    str(self.runtime),
                ),
            )

    def _extract_at_once(self, images: Tensor) -> Tensor:
        """Run F on ``(B, 3, h, w)`` images in one batch: ``(B, C, H, W)`` float32 maps.

        Pixels are normalised first.
        """
        images = self.normalized(images)
        with without_autocast(images.device), self.autocast():
            if self.runtime.run is not None:
                return self.runtime.run(images).float()
            strided = images.contiguous(memory_format=torch.channels_last)
            return self.feature_extractor(strided).float()

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Compute the feature maps of a batch, scaled by ``feature_scale``.

        Args:
            images: ``(B, 3, h, w)``, ``uint8`` pixels or normalised floats; or ``(B, C,
                H, W)`` outputs of ``extract`` from a ``FeatureCache``, in single or
                half precision.

        Returns:
            ``(B, C, H, W)`` float32, channels-last in memory.

        Raises:
            BadFeaturesError: the maps of an image are not finite or too large.
            ValueError: the images do not have 3 channels.
        """
        maps = self._unscaled_maps(images)
        check_maps(maps, images)
        return self._scaled_maps(maps)

    def _unscaled_maps(self, images: Tensor) -> Tensor:
        """Return F's maps of images, without the feature scale.

        Args:
            images: as for ``features``; maps from a cache are returned as they are.
        """
        channels = self.map_shape[0]
        are_maps = channels != 3 and images.shape[1] == channels
        if are_maps:
            return images
        if self.feature_memo is not None and images.dtype == torch.uint8:
            return self.feature_memo.maps(images, self.extract)
        return self.extract(images)

    def _scaled_maps(self, maps: Tensor) -> Tensor:
        """Multiply F's maps by the feature scale, in float32, channels-last."""
        converted = maps.to(torch.float32, memory_format=torch.channels_last)
        if converted is maps:  # the caller's own, which stays as it is
            return converted * self.feature_scale
        # A copy already, of a cache's half precision or other strides.
        return converted.mul_(self.feature_scale)

    def patch_grid(self, maps: Tensor) -> Tensor:
        """Return the part of ``maps``, ``(B, C, H, W)``, that is a grid on the image.

        Class token and registers, which come before the patches, are left out.
        """
        if self.token_grid is None:
            return maps
        n_patches = math.prod(self.token_grid)
        patches_bcn = maps[:, :, -n_patches:, 0]
        return patches_bcn.unflatten(2, self.token_grid)

    def encode(self, feature_map: Tensor, usable: Tensor | None = None) -> Tensor:
        """Encode a ``feature_map``, ``(B, C, H, W)``, with the codebook.

        ``usable`` is as for ``Codebook.encode``.
        """
        assert self.codebook is not None, "the model has a codebook"
        with self.stopwatch.measure("search"):
            return self.codebook.encode(feature_map, usable)

    def classify(self, feature_map: Tensor) -> Tensor:
        """Run P on a ``feature_map``, ``(B, C, H, W)``: logits, ``(B, classes)``."""
        with self.stopwatch.measure("plastic"), self.autocast():
            logits = classify_in_parts(self.plastic_layers, feature_map, self.training)
            return logits.float()

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits, through the codebook or without it.

        Which of the two is said by ``quantized_training`` and ``quantized_evaluation``.
        In training, registered hooks get the images, maps and codes.

        Args:
            images: ``(B, 3, h, w)``, uint8 pixels or normalised floats; or ``(B, C, H,
                W)`` maps from a cache.

        Returns:
            ``(B, classes)`` float32.

        Raises:
            ValueError: see ``features`` and ``encode``.
        """
        with torch.no_grad():
            maps = self._unscaled_maps(images)
            feature_map = self._scaled_maps(maps)  # the paper's Z
        codes = None
        if self.codebook is not None and self._is_quantized:
            codes = self._encode_checked(maps, feature_map, images)
        else:
            check_maps(maps, images)
        if self.training and self._map_hooks:
            record = ForwardRecord(images=images, feature_map=feature_map, codes=codes)
            for hook in tuple(self._map_hooks.values()):
                hook(record)
        if self.codebook is None or codes is None:
            return self.classify(feature_map)
        quantized = self.codebook.decode(codes)  # the paper's Z~
        return self.classify(quantized)

    @property
    def _is_quantized(self) -> bool:
        """Whether a forward pass in the present mode takes the codebook."""
        if self.training:
            return self.quantized_training
        return self.quantized_evaluation

    def _encode_checked(
        self, maps: Tensor, feature_map: Tensor, images: Tensor
    ) -> Tensor:
        """Encode a feature map, and check the unscaled maps, with one wait for a GPU.

        The answer of the check is waited for within ``encode``; only if it is no, the
        bad images are looked for.

        Args:
            maps: of the feature extractor, without the feature scale, ``(B, C, H, W)``.
            feature_map: the same maps, scaled.
            images: whose maps they are, for the error.

        Returns:
            ``(B, G, H, W)`` codes.

        Raises:
            BadFeaturesError: the maps of an image are not finite or too large.
            ValueError: see ``encode``.
        """
        try:
            return self.encode(feature_map, usable=maps_are_usable(maps))
        except ValueError:
            check_maps(maps, images)  # names the bad images
            raise

    def register_map_hook(
        self, hook: Callable[[ForwardRecord], None]
    ) -> RemovableHandle:
        """Call ``hook`` with the record of every forward pass in training mode.

        Copies of the model have no hooks.

        Returns:
            A handle, whose ``remove()`` removes the hook.
        """
        handle = RemovableHandle(self._map_hooks)
        self._map_hooks[handle.id] = hook
        return handle

    @float32_by_default()
    def reset_head(self, n_classes: int) -> None:
        """Replace the head by a new one of ``n_classes`` outputs, before streaming.

        It has the settings of the old one, and centres its inputs as that one did.
        Draws from torch's global RNG.
        """
        check_count("n_classes", n_classes)
        head = head_like(self.plastic_layers.get_submodule(self.head), n_classes)
        self._set_head(head)

    def centre_head(self) -> None:
        """Let the head centre its inputs, once ``calibrate`` has measured them.

        A convolutional head stays as it is.
        """
        head = self.plastic_layers.get_submodule(self.head)
        if type(head) is nn.Linear:
            centred = CentredLinear(
                head.in_features, head.out_features, bias=head.bias is not None
            )
            centred.load_state_dict(head.state_dict())
            self._set_head(centred)

    def _set_head(self, head: nn.Module) -> None:
        """Replace the head by another module, on the model's device."""
        head = head.to(self.pixel_mean.device, memory_format=torch.channels_last)
        parent_name, _, name = self.head.rpartition(".")
        parent = self.plastic_layers.get_submodule(parent_name)
        setattr(parent, name, head)  # also under names such as "1" of an nn.Sequential

    @torch.no_grad()
    def fold_feature_scale(
        self, maps: Tensor, complete_maps: Tensor | None = None
    ) -> float:
        """Scale the maps to the spread that the codebook's settings are made for.

        Their positive values get the standard deviation ``REFERENCE_SCALE``. The output
        of the feature extractor is multiplied by a factor ``k`` from now on, and so are
        the biases of the plastic layers below the head: then every activation of
        convolutions, ReLUs and pools up to the head is multiplied by ``k``. Other
        layers (batch norm, GELU) set their own scale: ``k`` is 1.

        Args:
            maps: ``(B, C, H, W)``, from ``features`` before folding; any selection of
                locations.
            complete_maps: ``(B, C, H, W)``, a few maps of all locations, to test
                whether the plastic layers scale; default ``maps``.

        Returns:
            ``k``.

        Raises:
            ValueError: the maps are constant.
        """
        if not self.extractor_has_weights:
            # The plastic layers take images, whose spread is known.
            return 1.0
        if complete_maps is None:
            complete_maps = maps
        factor = feature_scale_of(maps, self.plastic_layers, self.head, complete_maps)
        if factor != 1.0:
            multiply_biases(self.plastic_layers, self.head, factor)
            self.feature_scale.mul_(factor)
        return factor
