"""How F and P run: in a precision, a few images at a time, with maps that can be used.

Means and deviations of pixels are ``(1, 3, 1, 1)``, in units where white is 1.
"""

import contextlib
import math
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

PRECISIONS = ("fp32", "bf16")


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


def is_quick_in_bf16(device: torch.device) -> bool:
    """Return whether F and P are quick in bf16: the device has instructions for it.

    Devices other than CPUs are assumed to have them.
    """
    if device.type != "cpu":
        return True
    return (
        torch.backends.mkldnn.is_available()
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager:
    """Return a context without ``torch.autocast``.

    Sums and searches need float32, whatever surrounds them.
    """
    kind = device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return contextlib.nullcontext()


def warn_where_bf16_is_slow(device: torch.device) -> None:
    """Warn on a CPU that is slower with bf16 (with AVX2 only, about ten times)."""
    if not is_quick_in_bf16(device):
        warnings.warn(
            "this CPU has no instructions for bf16 and takes about ten times as long "
            "as with fp32: use --precision fp32, set_precision('fp32') in a script, or "
            "a CPU with AVX-512 or AMX, or a GPU",
            stacklevel=3,
        )


# Most images that F, and most maps that P, takes at a time on a CPU. They fit its
# caches: a third faster than large batches. Convolutions treat each image of a batch of
# 2 to 8 alike, so a map does not depend on its batch.
IMAGES_AT_A_TIME = 8
MAPS_AT_A_TIME = 24


def extract_in_parts(
    extract: Callable[[Tensor], Tensor],
    images: Tensor,
    same_alone: dict[tuple, bool],
    circumstances: tuple,
) -> Tensor:
    """Compute feature maps of images on a CPU, a few at a time, without gradients.

    The map of an image has the same bits in any batch. An image that is left alone is
    computed twice in a pair, where a pass of one image rounds differently.

    Args:
        extract: function of images that computes maps; treats each image of a batch of
            2 to ``IMAGES_AT_A_TIME`` alike.
        images: ``(B, 3, h, w)``.
        same_alone: whether an image that passes ``extract`` alone gets the same bits as
            in a pair, by shape and circumstances; entries that are missing are measured
            and added.
        circumstances: what else the bits depend on, such as the number of threads.

    Returns:
        ``(B, C, H, W)``.
    """
    with torch.inference_mode():
        maps_of_batches = []
        for batch in images.split(IMAGES_AT_A_TIME):
            if len(batch) == 1:
                key = (batch.shape[1:], *circumstances)
                if key not in same_alone:
                    same_alone[key] = _has_same_bits_alone(extract, batch.shape)
                if not same_alone[key]:
                    twice = batch.expand(2, -1, -1, -1)
                    maps_of_batches.append(extract(twice)[:1])
                    continue
            maps_of_batches.append(extract(batch))
    return torch.cat(maps_of_batches)


def _has_same_bits_alone(
    extract: Callable[[Tensor], Tensor], shape: torch.Size
) -> bool:
    """Whether F gives an image alone, ``(1, 3, h, w)``, the map that it has in a pair.

    Measured on noise.
    """
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(shape, generator=generator, dtype=torch.float32)
    pair = noise.expand(2, -1, -1, -1)
    return torch.equal(extract(pair)[:1], extract(pair[:1]))


def classify_in_parts(layers: nn.Module, maps: Tensor, training: bool) -> Tensor:
    """Compute the logits of maps, on a CPU a part of the batch at a time.

    Parts of at most ``MAPS_AT_A_TIME`` fit its cache. All maps pass at once on a GPU,
    or where batch norm mixes images in training.

    Args:
        layers: the plastic layers P.
        maps: ``(B, C, H, W)`` feature maps.
        training: whether P is in training mode.

    Returns:
        ``(B, classes)``.
    """
    n_batches = math.ceil(len(maps) / MAPS_AT_A_TIME)
    mixes_images = training and any(
        isinstance(layer, _BatchNorm) for layer in layers.modules()
    )
    on_cpu = maps.device.type == "cpu"
    if not on_cpu or n_batches < 2 or mixes_images:
        return layers(maps)
    batch_size = math.ceil(len(maps) / n_batches)
    # Not tensor_split or slices, whose gradients are each as large as all the maps.
    return torch.cat([layers(batch) for batch in maps.split(batch_size)])


LARGEST_FEATURE = 1e12  # sums of squares of larger features overflow float32


class BadFeaturesError(ValueError):
    """Some images have feature maps that are not finite or too large.

    Attributes:
        images: ``(n, ...)``, those images.
    """

    def __init__(self, message: str, images: Tensor):
        super().__init__(message)
        self.images = images


def maps_are_usable(maps: Tensor) -> Tensor:
    """Return whether maps are finite and at most 1e12 in absolute value.

    Sums of squares of larger values overflow float32.

    Args:
        maps: ``(B, C, H, W)``.

    Returns:
        A tensor of one bool on their device; a GPU is not waited for.
    """
    if not maps.numel():
        return torch.ones((), dtype=torch.bool, device=maps.device)
    if maps.is_contiguous(memory_format=torch.channels_last):
        maps = maps.permute(0, 2, 3, 1)  # the order of memory is a hundred times faster
    low, high = maps.aminmax()  # NaN if a value is
    return (low >= -LARGEST_FEATURE) & (high <= LARGEST_FEATURE)


def check_maps(maps: Tensor, images: Tensor) -> None:
    """Raise unless the maps of all images are finite and at most ``LARGEST_FEATURE``.

    Args:
        maps: ``(B, C, H, W)``.
        images: ``(B, ...)``, whose maps they are; the error has the bad ones.

    Raises:
        BadFeaturesError: some maps hold NaN, infinite or too large values.
    """
    if maps_are_usable(maps):
        return
    values = maps.flatten(1)
    is_bad_value = ~(values.abs() <= LARGEST_FEATURE)  # comparisons with NaN are false
    bad_images = is_bad_value.any(1).nonzero().flatten()
    first = int(bad_images[0])
    first_value = float(values[first][is_bad_value[first]][0])
    raise BadFeaturesError(
        f"{len(bad_images)} of {len(maps)} images have feature maps that cannot be "
        f"used, the first one (number {first} of its batch) with a value of "
        f"{first_value}; "
        f"feature maps must be finite and at most {LARGEST_FEATURE:g} in absolute "
        "value: replace the image or leave it out; if there are many, look at the "
        "weights",
        images[bad_images],
    )


def warn_of_range(images: Tensor, mean: Tensor, std: Tensor) -> None:
    """Warn if images seem not to be normalised, but from 0 to 255 or from 0 to 1.

    Args:
        images: ``(B, 3, h, w)`` floats.
        mean, std: ``(1, 3, 1, 1)``, of the normalisation that is meant.
    """
    low, high = map(float, images.aminmax())
    # The values that black and white pixels would have, if normalised as is meant.
    black = float((-mean / std).min())
    white = float(((1 - mean) / std).max())
    brightest_pixel = float((images * std + mean).max())  # where white is 1
    are_levels = brightest_pixel > 10  # far above white: from 0 to 255
    # Normalised images go well below 0; these fill most of the range from 0 to 1.
    fills_unit_range = low >= 0 and high <= 1 and high - low > 0.5
    if are_levels:
        warnings.warn(
            f"the images have values up to {high:.0f}, where white is expected to be "
            f"about {white:.1f}: give them as uint8, or divide by 255 before the "
            "normalisation, or call model.set_normalization([0], [1 / 255])",
            stacklevel=2,
        )
    elif black <= -1 and fills_unit_range:
        warnings.warn(
            f"the images have values from {low:.1f} to {high:.1f}, where black is "
            f"expected to be about {black:.1f} and white {white:.1f}: add "
            f"Normalize({rounded(mean)}, {rounded(std)}) behind ToTensor, or, for a "
            "network that takes images from 0 to 1, call "
            "model.set_normalization([0], [1])",
            stacklevel=2,
        )


def rounded(values: Tensor) -> list[float]:
    """Return the mean or deviation of each channel of pixels, to four decimals."""
    return [round(value, 4) for value in values.flatten().tolist()]


class _GpuBlock(NamedTuple):
    """A measured block of a GPU: events at its begin and at its end."""

    name: str
    start: torch.cuda.Event
    end: torch.cuda.Event

    def is_done(self) -> bool:
        """Whether the GPU has passed the end of the block."""
        return self.end.query()


class Stopwatch:
    """Accumulates wall seconds of parts of a model by name, such as ``features``.

    A block measured inside another one counts for the outer one. On a GPU, whose calls
    return before their work is done, a block lasts from when the GPU begins its work to
    when it ends it. Nothing waits for that until ``seconds`` is read. A ``SplitModel``
    sets ``device`` to its own.
    """

    def __init__(self, device: torch.device | str = "cpu"):
        self.device = torch.device(device)
        self._seconds: dict[str, float] = defaultdict(float)
        self._is_measuring = False
        # Blocks whose time on the GPU is not added yet.
        self._gpu_blocks: deque[_GpuBlock] = deque()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the events of a GPU, which belong to this process."""
        return {
            "device": self.device,
            "_seconds": self.seconds,
            "_is_measuring": False,
            "_gpu_blocks": deque(),
        }

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds so far by name; waits for a GPU that is at work."""
        self._add_gpu_blocks(wait=True)
        return self._seconds

    @contextlib.contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the seconds of the ``with`` block to ``name``.

        They are not added within a block that is measured already. On a GPU, whose
        calls return early, events are recorded in its queue; their time is added later.
        """
        if self._is_measuring:
            yield
            return
        self._is_measuring = True
        on_gpu = self.device.type == "cuda"
        start = self._gpu_event() if on_gpu else time.perf_counter()
        try:
            yield
        finally:
            if on_gpu:
                block = _GpuBlock(name=name, start=start, end=self._gpu_event())
                self._gpu_blocks.append(block)
                self._add_gpu_blocks(wait=False)  # those that are done already
            else:
                self._seconds[name] += time.perf_counter() - start
            self._is_measuring = False

    def _gpu_event(self) -> torch.cuda.Event:
        """Return an event that the GPU passes after the work it was given so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _add_gpu_blocks(self, wait: bool) -> None:
        """Add the times of blocks that the GPU has done; with ``wait`` of all."""
        while self._gpu_blocks and (wait or self._gpu_blocks[0].is_done()):
            block = self._gpu_blocks.popleft()
            block.end.synchronize()
            milliseconds = block.start.elapsed_time(block.end)
            self._seconds[block.name] += milliseconds / 1000
