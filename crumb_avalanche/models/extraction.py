"""How F and P run: in a precision, a few images at a time, with maps that can be used.

Means and deviations of pixels are ``(1, 3, 1, 1)``, in units where white is 1.
"""

import contextlib
import math
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

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
    """Return whether a device has instructions for bf16.

    Devices other than CPUs are assumed to.
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
    """Compute maps of images on a CPU, without gradients.

    An image has the same bits in any batch.

    Args:
        extract: computes maps; treats each image of a batch of 2 to
            ``IMAGES_AT_A_TIME`` alike.
        images: ``(B, 3, h, w)``.
        same_alone: whether a single image gets the same bits as in a pair, by shape and
            circumstances; filled here.
        circumstances: what else the bits depend on.

    Returns:
        ``(B, C, H, W)``.
    """
    with torch.inference_mode():
        maps = []
        for batch in images.split(IMAGES_AT_A_TIME):
            if len(batch) == 1:
                key = (batch.shape[1:], *circumstances)
                if key not in same_alone:
                    same_alone[key] = _has_same_bits_alone(extract, batch.shape)
                if not same_alone[key]:
                    pair = batch.expand(2, -1, -1, -1)
                    maps.append(extract(pair)[:1])
                    continue
            maps.append(extract(batch))
    return torch.cat(maps)


def _has_same_bits_alone(
    extract: Callable[[Tensor], Tensor], shape: torch.Size
) -> bool:
    """Whether an image of a shape, ``(1, 3, h, w)``, gets the same map as in a pair.

    Measured on noise.
    """
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(shape, generator=generator, dtype=torch.float32)
    pair = noise.expand(2, -1, -1, -1)
    return torch.equal(extract(pair)[:1], extract(pair[:1]))


def classify_in_parts(layers: nn.Module, maps: Tensor, training: bool) -> Tensor:
    """Compute P's outputs of ``(B, C, H, W)`` maps.

    That is done at once on a GPU, or where batch norm mixes images in training.
    """
    n_batches = math.ceil(len(maps) / MAPS_AT_A_TIME)
    mixes_images = training and any(
        isinstance(layer, _BatchNorm) for layer in layers.modules()
    )
    if maps.device.type != "cpu" or n_batches < 2 or mixes_images:
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


def usable(maps: Tensor) -> Tensor:
    """Return whether maps are finite and at most 1e12 in absolute value.

    Args:
        maps: ``(B, C, H, W)``.

    Returns:
        A bool on their device, for which nothing is waited.
    """
    if not maps.numel():
        return torch.ones((), dtype=torch.bool, device=maps.device)
    if maps.is_contiguous(memory_format=torch.channels_last):
        maps = maps.permute(0, 2, 3, 1)  # the order of memory is a hundred times faster
    low, high = maps.aminmax()  # NaN if a value is
    return (low >= -LARGEST_FEATURE) & (high <= LARGEST_FEATURE)


def check_maps(maps: Tensor, images: Tensor) -> None:
    """Raise unless the maps of all images are ``usable``.

    Args:
        maps: ``(B, C, H, W)``.
        images: ``(B, ...)``, of which they are.

    Raises:
        BadFeaturesError: they are not; has the images.
    """
    if usable(maps):
        return
    values = maps.flatten(1)
    is_bad = ~(values.abs() <= LARGEST_FEATURE)  # comparisons with NaN are false
    indices = is_bad.any(1).nonzero().flatten()
    first = int(indices[0])
    first_value = float(values[first][is_bad[first]][0])
    raise BadFeaturesError(
        f"{len(indices)} of {len(maps)} images have feature maps that cannot be used, "
        f"the first one (number {first} of its batch) with a value of {first_value}; "
        f"feature maps must be finite and at most {LARGEST_FEATURE:g} in absolute "
        "value: replace the image or leave it out; if there are many, look at the "
        "weights",
        images[indices],
    )


def warn_of_range(images: Tensor, mean: Tensor, std: Tensor) -> None:
    """Warn if images seem not to be normalised, but from 0 to 255 or from 0 to 1.

    Args:
        images: ``(B, 3, h, w)`` floats.
        mean, std: ``(1, 3, 1, 1)``, of the normalisation that is meant.
    """
    low, high = map(float, images.aminmax())
    black = float((-mean / std).min())
    white = float(((1 - mean) / std).max())
    brightest = float((images * std + mean).max())  # white is 1
    # Normalised images go well below 0; these fill most of the range from 0 to 1.
    fills_unit_range = low >= 0 and high <= 1 and high - low > 0.5
    if brightest > 10:
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
    """Return a number for each channel, to four decimals."""
    return [round(value, 4) for value in values.flatten().tolist()]


class Stopwatch:
    """Accumulates wall seconds by name.

    A block measured inside another one counts for the outer one. On a GPU, whose calls
    return before their work is done, a block lasts from when the GPU begins its work to
    when it ends it. Nothing waits for that until ``seconds`` is read. A ``SplitModel``
    sets ``device`` to its own.
    """

    def __init__(self, device: torch.device | str = "cpu"):
        self.device = torch.device(device)
        self._seconds: dict[str, float] = defaultdict(float)
        self._busy = False
        self._running: deque = deque()  # (name, event at its begin, event at its end)

    def __getstate__(self):
        return {
            "device": self.device,
            "_seconds": self.seconds,
            "_busy": False,
            "_running": deque(),
        }

    @property
    def seconds(self) -> dict[str, float]:
        """Name -> seconds so far; waits for a GPU that is at work."""
        self._collect(wait=True)
        return self._seconds

    @contextlib.contextmanager
    def measure(self, name: str):
        """Add the time of the ``with`` block to ``name``.

        It is not added if an outer block is being measured.
        """
        if self._busy:
            yield
            return
        self._busy = True
        on_gpu = self.device.type == "cuda"
        start = self._event() if on_gpu else time.perf_counter()
        try:
            yield
        finally:
            if on_gpu:
                self._running.append((name, start, self._event()))
                self._collect(wait=False)
            else:
                self._seconds[name] += time.perf_counter() - start
            self._busy = False

    def _event(self) -> torch.cuda.Event:
        """Return an event that the GPU passes after the work it was given so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _collect(self, wait: bool) -> None:
        """Add the blocks that the GPU has done; with ``wait`` all of them."""
        while self._running and (wait or self._running[0][2].query()):
            name, start, end = self._running.popleft()
            end.synchronize()
            self._seconds[name] += start.elapsed_time(end) / 1000
