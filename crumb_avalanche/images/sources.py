"""Read images from photos, folders, videos, arrays and tensors, one at a time.

Nothing is written: the frames of a video are decoded as they are used. They equal those
of `crumb run` at the same rate, except that no frame is given twice.
"""

import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from benchmarks_toybox_ilab.datasets.clip_folder import SHORT_SIDE
from benchmarks_toybox_ilab.tables.folders import (
    entries_of,
    ignored_files,
    is_video,
    walk,
)
from benchmarks_toybox_ilab.tables.frame import BadFrameError
from benchmarks_toybox_ilab.tables.image import (
    eight_bits,
    on_background,
    read_image,
    to_rgb,
)
from benchmarks_toybox_ilab.tables.names import check_name
from benchmarks_toybox_ilab.tables.text import printable
from benchmarks_toybox_ilab.video.sampling import VideoError, sampled_frames, seconds_of
from crumb_avalanche.images.clips import (
    BadImage,
    Clip,
    Frames,
    OnBad,
    class_folders,
    is_pattern,
    matches,
    path_of,
    warn,
)

if TYPE_CHECKING:
    import torch

ENOUGH_FRAMES = 20  # of a short video, where 5 frames per second give so many
AT_A_TIME = 8  # images that are decoded and pass the network at once
_LISTED = 5  # class folders without images that are named
_RULE = (
    "an array must be (H, W, C) or (N, H, W, C), a tensor (C, H, W) or (N, C, H, W), "
    "of 3 channels or 4 with alpha, uint8, uint16 or floating-point from 0 to 1, and "
    "not empty; convert others, or give a PIL image, which may be gray"
)


def clips_of(
    source: Any,
    label: str | None = None,
    *,
    on_bad: OnBad = "raise",
    report: Callable[[BadImage], object] = warn,
) -> Iterator[Clip]:
    """Yield the clips of a source, in natural order (frame2 before frame10).

    A folder is read to any depth: each video is a clip, and the photos of each folder
    are one. Files of other kinds and hidden ones are ignored, and counted by extension
    in one warning after the last clip, which also names class folders without photos
    and videos. A folder reached twice through links is read once. Photos are upright
    and 8-bit RGB by the rules of `tables.image`. Of a video, 1 frame per second is
    taken, or up to 5 if it is so short that 1 gives less than 20 or does not state its
    length; frames have at most 512 pixels on the short side.

    Args:
        source: Path of a photo, a video or a folder; glob pattern (`**` for any depth);
            PIL image; array or tensor (see `array_images`); a `Clip`; or an iterable of
            these, which is read lazily. Photos and single images that follow each other
            in an iterable are the frames of one clip; every other item is a source of
            its own. The photos of a folder that match a pattern are one clip.
        label: Class name of all clips. `None` uses the names of the class folders if
            the source is one folder of class folders (see `class_folders`), and no
            label otherwise.
        on_bad: `"raise"` raises for the first file that cannot be decoded, or image of
            an array with a value that breaks the rule; `"skip"` reports and leaves it
            out. The frames before the damage of a video are used.
        report: Called with each file that is left out; `bad.append` collects them in a
            list.

    Raises:
        FileNotFoundError: If the path does not exist.
        BadFrameError: If a file cannot be decoded and `on_bad` is `"raise"`; also from
            `Clip.frames`.
        ImportError: If there is a video, PyAV is not installed, and `on_bad` is
            `"raise"`.
        TypeError: If the source or an item is none of the above.
        ValueError: If an argument or the name of a class folder breaks its rule, or the
            source holds no photo and no video (after the last clip).
    """
    if on_bad not in ("raise", "skip"):
        raise ValueError(f"on_bad is {on_bad!r}, but must be 'raise' or 'skip'.")
    if label is not None:
        label = check_name(label)
    reader = _Reader(on_bad == "skip", report)
    if not isinstance(source, str | os.PathLike):
        return reader.not_empty(reader.clips(source, label, "source"), "the source")
    path = path_of(source)
    if not os.path.lexists(path) and not is_pattern(path):
        raise FileNotFoundError(f"there is no file or folder {path}; check the path.")
    if label is None:
        classes = class_folders(path)
        if classes:
            return reader.not_empty(reader.classes(path, classes), str(path))
    return reader.not_empty(reader.clips(path, label, name=""), str(path))


def clips_to_ask(source: Any, classes: Iterable[Any], **options: Any) -> Iterator[Clip]:
    """Yield the clips of a source as ``clips_of`` does, to be asked about.

    Folders such as ``day1`` say nothing about what the photos show: clips have no
    labels if no folder has the name of a class taught.
    """
    folder_names = class_folders(source).values()
    class_names = {info.name for info in classes}
    unrelated = bool(folder_names) and class_names.isdisjoint(folder_names)
    for clip in clips_of(source, **options):
        if unrelated:
            clip = replace(clip, label=None)
        yield clip


class _Reader:
    """Clips of sources; see `clips_of`.

    Args:
        skip: leave bad files out instead of raising.
        report: called with each file that is left out.
    """

    def __init__(self, skip: bool, report: Callable[[BadImage], object]) -> None:
        self.skip = skip
        self.report = report
        self.ignored: Counter[str] = Counter()  # files by extension
        self.empty: list[str] = []  # class folders without photos and videos

    def clips(self, source: Any, label: str | None, name: str) -> Iterator[Clip]:
        """Clips of any source; `name` is that of images in memory."""
        if isinstance(source, str | os.PathLike):
            yield from self._below(path_of(source), label)
        elif isinstance(source, Clip):
            yield replace(source, label=label or source.label)
        elif isinstance(source, Image.Image) or is_array(source):
            yield Clip(name, label, self._images(_named(name, source)))
        elif _is_list(source):
            yield from self._of_list(source, label, name)
        else:
            raise TypeError(
                f"{name} is {type(source).__name__}; give a path, a PIL image, an "
                "array, a tensor, or a list of these."
            )

    def _of_list(
        self, source: Iterable[Any], label: str | None, name: str
    ) -> Iterator[Clip]:
        """Clips of a list or an iterator: neighbouring single images are one clip."""
        named_items = ((f"{name}[{i}]", item) for i, item in enumerate(source))
        for is_frame, group in groupby(named_items, lambda pair: _is_frame(pair[1])):
            if not is_frame:
                for item_name, item in group:
                    yield from self.clips(item, label, item_name)
                continue
            images = chain.from_iterable(_named(*pair) for pair in group)
            if isinstance(source, Sequence):
                # Its clips may be read after the next ones, those of an iterator only
                # before.
                yield Clip(name, label, self._images(list(images)))
            else:
                yield Clip(name, label, self._images(images))

    def classes(self, root: Path, labels: dict[Path, str]) -> Iterator[Clip]:
        """Clips of a folder of class folders."""
        entries = entries_of(root)
        self.ignored += entries.ignored
        for folder in entries.folders:
            if folder not in labels:
                self.empty.append(folder.name)
            yield from self._folder(folder, labels.get(folder), root)

    def _below(self, path: Path, label: str | None) -> Iterator[Clip]:
        """Clips of a photo, video, folder or pattern."""
        if os.path.isdir(path):
            yield from self._folder(path, label, path)
        elif is_pattern(path):
            yield from self._matching(path, label)
        else:
            yield self._clip(path, label, [path])

    def _matching(self, pattern: Path, label: str | None) -> Iterator[Clip]:
        """Clips of a pattern: the matching photos of each folder are one."""
        paths, ignored = matches(pattern)
        self.ignored += ignored
        groups: dict[Path, list[Path]] = {}
        for path in paths:
            if os.path.isdir(path) or is_video(path):
                groups[path] = [path]
            else:
                groups.setdefault(path.parent, []).append(path)
        for key, files in groups.items():
            if files == [key]:
                yield from self._below(key, label)
            else:
                yield self._clip(key, label, files)

    def _folder(self, folder: Path, label: str | None, root: Path) -> Iterator[Clip]:
        """Clips of a folder at any depth: each video, and the photos of a folder."""

        def unlisted(folder: Path, error: OSError) -> None:
            reason = error.strerror or error
            self._bad(folder, f"the folder cannot be read: {reason}", error)

        for path, entries in walk(folder, unlisted, root):
            self.ignored += entries.ignored
            if entries.images:
                yield self._clip(path, label, entries.images)
            for file in entries.videos:
                yield self._clip(file, label, [file])

    def _clip(self, path: Path, label: str | None, files: Sequence[Path]) -> Clip:
        """Return the clip of a video or of some photos."""
        if is_video(files[0]):
            frames = self._video(files[0])
        else:
            frames = self._images((str(file), file) for file in files)
        return Clip(str(path), label, frames, tuple(map(str, files)))

    def not_empty(self, clips: Iterator, source: str) -> Iterator:
        """Yield clips, and warn of what was ignored after the last one.

        Raises:
            ValueError: there is none.
        """
        empty = True
        for clip in clips:
            empty = False
            yield clip
        notes = []
        if self.empty and not empty:
            notes.append(
                f"no class, as there is no photo and no video in it: {self._empty()}"
            )
        ignored = ignored_files(self.ignored)
        if ignored:
            notes.append(f"ignored: {ignored}")
        if empty:
            nothing = f"{source} holds no photo and no video, in folders at any depth"
            raise ValueError(
                f"{'; '.join([nothing, *notes])}. Give files that Pillow (JPEG, PNG "
                "...) or PyAV (MP4 ...) can read."
            )
        if notes:
            warnings.warn(printable(f"{source}: {'; '.join(notes)}"), stacklevel=3)

    def _empty(self) -> str:
        """Name the class folders without photos and videos, in words."""
        names = ", ".join(self.empty[:_LISTED])
        if len(self.empty) > _LISTED:
            return f"{names} and {len(self.empty) - _LISTED} more"
        return names

    def _images(self, named: Iterable[tuple[str, Any]]) -> Frames:
        """Images of pairs of name and path, PIL image, array or tensor."""
        for name, source in named:
            try:
                image = _decoded(source)
            # Pillow's decoders raise far more than OSError on damaged bytes.
            except Exception as error:
                if is_array(source) and not self.skip:
                    raise ValueError(f"{name} {error}") from error
                self._bad(name, _reason(error), error)
                continue
            yield name, image
            del image  # before the next one is decoded

    def _video(self, path: Path) -> Frames:
        """Frames of a video at its usual rate, none given twice."""
        previous = None
        try:
            fps = _default_rate(path)
            for number, image in enumerate(sampled_frames(path, fps, SHORT_SIDE)):
                # A video with less than fps frames per second repeats them.
                if image is not previous:
                    yield f"{path}#t={number / fps:g}", image
                previous = image
        except (VideoError, ImportError) as error:
            if isinstance(error, ImportError) and not self.skip:
                raise
            self._bad(path, str(error).removeprefix(f"video {path} "), error)

    def _bad(
        self, path: Path | str, reason: str, error: Exception | None = None
    ) -> None:
        bad = BadImage(str(path), reason)
        if not self.skip:
            cure = "Restore or replace the file, or pass on_bad='skip' to leave it out."
            raise BadFrameError(f"{str(bad).rstrip('.')}. {cure}") from error
        self.report(bad)


def _is_list(source: Any) -> bool:
    """Whether a source is an iterable of sources, and not bytes or a dictionary."""
    no_list = isinstance(source, bytes | bytearray | Mapping)
    return isinstance(source, Iterable) and not no_list


def _decoded(source: Any) -> Image.Image:
    """Return the RGB image of a path, PIL image, array or tensor."""
    if is_array(source):
        return pixels_image(source)
    if isinstance(source, Image.Image):
        return to_rgb(source, upright=True)
    if os.path.exists(source) and not os.path.isfile(source):  # a pipe would block
        raise ValueError(
            "is not a regular file; frames of a camera come from camera_clip"
        )
    return read_image(source, upright=True)


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "is not an image that Pillow can read; convert it to JPEG or PNG"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _default_rate(video: Path) -> float:
    seconds = seconds_of(video, most=ENOUGH_FRAMES)
    return min(5.0, max(1.0, ENOUGH_FRAMES / max(seconds, 1.0)))


def _is_frame(item: Any) -> bool:
    """Whether an item is a single image, which makes a clip with its neighbours."""
    if isinstance(item, str | os.PathLike):
        path = path_of(item)
        return not os.path.isdir(path) and not is_pattern(path) and not is_video(path)
    return isinstance(item, Image.Image) or (is_array(item) and len(item.shape) == 3)


def _named(name: str, image: Any) -> Iterator[tuple[str, Any]]:
    """Pairs of name and image, as `_Reader._images` takes them."""
    if is_array(image):
        return array_images(image, name)
    if isinstance(image, str | os.PathLike):
        return iter([(str(path_of(image)), path_of(image))])
    return iter([(str(getattr(image, "filename", "") or name), image)])


# Arrays and batches


def is_array(source: object) -> bool:
    """Whether the source is a NumPy array or a PyTorch tensor."""
    return isinstance(source, np.ndarray) or _is_tensor(source)


def array_images(source: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the images of an array or a tensor, for `pixels_image`, one at a time.

    Args:
        source: `(H, W, C)` or `(N, H, W, C)` array, `(C, H, W)` or `(N, C, H, W)`
            tensor on any device, of 3 channels or 4 with alpha; uint8; uint16, of which
            the upper 8 of the bits that are used are kept (see `eight_bits`); or
            floating-point from 0 to 1.
        name: Name of the source. The images of a batch are named `name[0]`, `name[1]`
            ...

    Raises:
        ValueError: If shape or dtype breaks the rule.
    """
    shape = tuple(source.shape)
    tensor = _is_tensor(source)
    if tensor:
        described = "a tensor"
        channel_axis = -3
        dtype = str(source.dtype).removeprefix("torch.")
        floating = source.is_floating_point()
    else:
        described = "an array"
        channel_axis = -1
        dtype = source.dtype.name
        floating = source.dtype.kind == "f"
    has_channels = len(shape) in (3, 4) and shape[channel_axis] in (3, 4)
    known_dtype = floating or dtype in ("uint8", "uint16")
    if not has_channels or 0 in shape or not known_dtype:
        raise ValueError(
            f"{name} is {described} of shape {shape} and dtype {source.dtype}; {_RULE}."
        )
    if dtype == "uint16":  # all images of a batch by the same bits
        if tensor:
            source = np.moveaxis(source.cpu().numpy(), -3, -1)
        source = eight_bits(source.astype(np.uint16))
    if len(shape) == 3:
        return iter([(name, source)])
    return ((f"{name}[{row}]", source[row]) for row in range(shape[0]))


def batches(
    frames: Iterable[tuple[str, Image.Image]],
    size: int,
    transform: "Callable[[Image.Image], torch.Tensor]",
) -> "Iterator[tuple[list[str], torch.Tensor]]":
    """Yield the paths of images, and the images transformed, in batches.

    Images are taken one at a time. The reduced decoding of large JPEG files is not
    used, because its result differs.

    Args:
        frames: Pairs of path and image, such as `Clip.frames`.
        size: Number of images in a batch; the last one may have less.
        transform: Function of an image that returns a tensor, such as `PixelTransform`.
    """
    import torch

    paths: list[str] = []
    pixels: list[torch.Tensor] = []
    for path, image in frames:
        paths.append(path)
        pixels.append(transform(image))
        del image  # before the next one is decoded
        if len(paths) == size:
            yield paths, torch.stack(pixels)
            paths = []
            pixels = []
    if paths:
        yield paths, torch.stack(pixels)


def _is_tensor(source: object) -> bool:
    torch = sys.modules.get("torch")  # without it there is no tensor
    return torch is not None and isinstance(source, torch.Tensor)


def pixels_image(pixels: Any) -> Image.Image:
    """Convert an image of `array_images` to 8-bit RGB, on white where it has alpha.

    Raises:
        ValueError: floating-point values are not from 0 to 1.
    """
    if _is_tensor(pixels):
        pixels = pixels.detach().permute(1, 2, 0).cpu()
        if pixels.is_floating_point():
            pixels = pixels.float()
        pixels = pixels.numpy()
    if pixels.dtype != np.uint8:
        pixels = _levels(pixels)
    image = Image.fromarray(np.ascontiguousarray(pixels))
    if image.mode == "RGBA":
        return on_background(image)
    return image


def _levels(pixels: np.ndarray) -> np.ndarray:
    """Return pixels from 0 to 1 as uint8; raise ValueError for others."""
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= 0 and high <= 1):  # also if they are NaN
        values = f"values from {low:g} to {high:g}" if low == low else "NaN"
        raise ValueError(
            f"holds {values}, but floating-point pixels must be from 0 to 1: divide "
            "values up to 255 by 255, and undo a normalisation by mean and standard "
            "deviation."
        )
    return np.rint(pixels.astype(np.float32) * 255).astype(np.uint8)
