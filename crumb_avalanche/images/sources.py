"""Read images from photos, folders, videos, arrays and tensors, one at a time, and resize them in batches.

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
    "an array must be (H, W, C) or (N, H, W, C), a tensor (C, H, W) or (N, C, H, W), of 3 channels or 4 with alpha, "
    "uint8, uint16 or floating-point from 0 to 1, and not empty; convert others, or give a PIL image, which may be gray"
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
    label = None if label is None else check_name(label)
    reader = _Reader(on_bad == "skip", report)
    if not isinstance(source, str | os.PathLike):
        return reader.not_empty(reader.clips(source, label, "source"), "the source")
    path = path_of(source)
    if not os.path.lexists(path) and not is_pattern(path):
        raise FileNotFoundError(f"there is no file or folder {path}; check the path.")
    classes = class_folders(path) if label is None else {}
    clips = reader.classes(path, classes) if classes else reader.clips(path, label, "")
    return reader.not_empty(clips, str(path))


def clips_to_ask(source: Any, classes: Iterable[Any], **how: Any) -> Iterator[Clip]:
    """Yield the clips of a source as ``clips_of`` does, without labels if no folder has the name of a class taught.

    Folders such as ``day1`` say nothing about what the photos show.
    """
    folders = class_folders(source).values()
    other = bool(folders) and {one.name for one in classes}.isdisjoint(folders)
    for clip in clips_of(source, **how):
        yield replace(clip, label=None) if other else clip


class _Reader:
    """Clips of sources, with one way to sample videos and to treat bad files; see `clips_of`."""

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
        elif isinstance(source, Iterable) and not isinstance(
            source, bytes | bytearray | Mapping
        ):
            numbered = (
                (f"{name}[{number}]", item) for number, item in enumerate(source)
            )
            for frames, group in groupby(numbered, lambda pair: _is_frame(pair[1])):
                if frames:
                    # Of a list a clip may be read after the next ones, of an iterator
                    # only before.
                    images: Iterable[tuple[str, Any]] = chain.from_iterable(
                        _named(*pair) for pair in group
                    )
                    images = list(images) if isinstance(source, Sequence) else images
                    yield Clip(name, label, self._images(images))
                else:
                    yield from chain.from_iterable(
                        self.clips(item, label, place) for place, item in group
                    )
        else:
            raise TypeError(
                f"{name} is {type(source).__name__}; give a path, a PIL image, an array, a tensor, or a list of these."
            )

    def classes(self, root: Path, labels: dict[Path, str]) -> Iterator[Clip]:
        """Clips of a folder of class folders."""
        entries = entries_of(root)
        self.ignored += entries.ignored
        for folder in entries.folders:
            if folder not in labels:
                self.empty.append(folder.name)
            yield from self._folder(folder, labels.get(folder), root)

    def _below(self, path: Path, label: str | None) -> Iterator[Clip]:
        if os.path.isdir(path):
            yield from self._folder(path, label, path)
        elif is_pattern(path):
            found, ignored = matches(path)
            self.ignored += ignored
            clips: dict[
                Path, list[Path]
            ] = {}  # photos by folder; a video or a folder by itself
            for match in found:
                alone = os.path.isdir(match) or is_video(match)
                clips.setdefault(match if alone else match.parent, []).append(match)
            for place, files in clips.items():
                if files == [place]:
                    yield from self._below(place, label)
                else:
                    yield self._clip(place, label, files)
        else:
            yield self._clip(path, label, [path])

    def _folder(self, folder: Path, label: str | None, root: Path) -> Iterator[Clip]:
        def unlisted(folder: Path, error: OSError) -> None:
            self._bad(
                folder, f"the folder cannot be read: {error.strerror or error}", error
            )

        for path, entries in walk(folder, unlisted, root):
            self.ignored += entries.ignored
            if entries.images:
                yield self._clip(path, label, entries.images)
            yield from (self._clip(file, label, [file]) for file in entries.videos)

    def _clip(self, path: Path, label: str | None, files: Sequence[Path]) -> Clip:
        frames = (
            self._video(files[0])
            if is_video(files[0])
            else self._images((str(file), file) for file in files)
        )
        return Clip(str(path), label, frames, tuple(map(str, files)))

    def not_empty(self, clips: Iterator, source: str) -> Iterator:
        """Yield clips; warn of what was ignored after the last one, or raise ValueError if there is none."""
        empty = True
        for clip in clips:
            empty = False
            yield clip
        told = (
            [f"ignored: {ignored}"] if (ignored := ignored_files(self.ignored)) else []
        )
        if empty:
            raise ValueError(
                "; ".join(
                    [
                        f"{source} holds no photo and no video, in folders at any depth",
                        *told,
                    ]
                )
                + ". Give files that Pillow (JPEG, PNG ...) or PyAV (MP4 ...) can read."
            )
        if self.empty:
            more = f" and {len(self.empty) - _LISTED} more" * (
                len(self.empty) > _LISTED
            )
            some = ", ".join(self.empty[:_LISTED]) + more
            told.insert(0, f"no class, as there is no photo and no video in it: {some}")
        if told:
            warnings.warn(printable(f"{source}: {'; '.join(told)}"), stacklevel=3)

    def _images(self, named: Iterable[tuple[str, Any]]) -> Frames:
        """Images of pairs of name and path, PIL image, array or tensor."""
        for name, item in named:
            try:
                if is_array(item):
                    image = pixels_image(item)
                elif isinstance(item, Image.Image):
                    image = to_rgb(item, upright=True)
                else:
                    if os.path.exists(item) and not os.path.isfile(
                        item
                    ):  # a pipe would block
                        raise ValueError(
                            "is not a regular file; frames of a camera come from camera_clip"
                        )
                    image = read_image(item, upright=True)
            # Pillow's decoders raise far more than OSError on damaged bytes.
            except Exception as error:
                if is_array(item) and not self.skip:
                    raise ValueError(f"{name} {error}") from error
                self._bad(name, _reason(error), error)
                continue
            yield name, image
            del image  # before the next one is decoded

    def _video(self, path: Path) -> Frames:
        last = None
        try:
            fps = _default_rate(path)
            for number, image in enumerate(sampled_frames(path, fps, SHORT_SIDE)):
                if (
                    image is not last
                ):  # a video with less than fps frames per second repeats them
                    yield f"{path}#t={number / fps:g}", image
                last = image
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


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "is not an image that Pillow can read; convert it to JPEG or PNG"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _default_rate(video: Path) -> float:
    seconds = seconds_of(video, most=ENOUGH_FRAMES)
    return min(5.0, max(1.0, ENOUGH_FRAMES / max(seconds, 1.0)))


def _is_frame(item: Any) -> bool:
    """Whether an item of a list is a single image, which makes a clip with its neighbours."""
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
    """Yield the images of an array or a tensor, to be converted by `pixels_image`, one at a time.

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
    shape, tensor = tuple(source.shape), _is_tensor(source)
    floating = source.is_floating_point() if tensor else source.dtype.kind == "f"
    channels = shape[-3 if tensor else -1] if len(shape) in (3, 4) else 0
    kind = str(source.dtype).removeprefix("torch.") if tensor else source.dtype.name
    if (
        channels not in (3, 4)
        or 0 in shape
        or not (floating or kind in ("uint8", "uint16"))
    ):
        what = "a tensor" if tensor else "an array"
        raise ValueError(
            f"{name} is {what} of shape {shape} and dtype {source.dtype}; {_RULE}."
        )
    if kind == "uint16":  # all images of a batch by the same bits
        values = np.moveaxis(source.cpu().numpy(), -3, -1) if tensor else source
        source = eight_bits(values.astype(np.uint16))
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
            paths, pixels = [], []
    if paths:
        yield paths, torch.stack(pixels)


def _is_tensor(source: object) -> bool:
    torch = sys.modules.get("torch")  # without it there is no tensor
    return torch is not None and isinstance(source, torch.Tensor)


def pixels_image(pixels: Any) -> Image.Image:
    """Convert an image of `array_images` to 8-bit RGB, on white where it has alpha; raise ValueError for odd values."""
    if _is_tensor(pixels):
        pixels = pixels.detach().permute(1, 2, 0).cpu()
        pixels = (pixels.float() if pixels.is_floating_point() else pixels).numpy()
    if pixels.dtype != np.uint8:
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= 0 and high <= 1):  # also if they are NaN
            found = f"values from {low:g} to {high:g}" if low == low else "NaN"
            raise ValueError(
                f"holds {found}, but floating-point pixels must be from 0 to 1: divide values up to 255 by 255, "
                "and undo a normalisation by mean and standard deviation."
            )
        pixels = np.rint(pixels.astype(np.float32) * 255).astype(np.uint8)
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return on_background(image) if image.mode == "RGBA" else image
