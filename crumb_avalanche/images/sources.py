"""Read images from photos, folders, videos, arrays and tensors, one at a time.

Nothing is written: the frames of a video are decoded as they are used. They equal those
of `crumb run` at the same rate, except that no frame is given twice.
"""

import math
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from benchmarks_toybox_ilab.datasets.clip_folder import SHORT_SIDE
from benchmarks_toybox_ilab.tables.damage import DamagedError
from benchmarks_toybox_ilab.tables.folders import (
    entries_of,
    ignored_files_in_words,
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
from benchmarks_toybox_ilab.tables.names import check_name, near_key
from benchmarks_toybox_ilab.tables.text import printable
from benchmarks_toybox_ilab.video.sampling import VideoError, sampled_frames, seconds_of
from crumb_avalanche.images.clips import (
    BadImage,
    Clip,
    Frames,
    OnBad,
    class_folders,
    is_pattern,
    matching_paths,
    path_of,
    warn_of_bad_image,
)

if TYPE_CHECKING:
    import torch

LONG_VIDEO_FPS = 1.0  # frames taken per second
SHORT_VIDEO_FPS = 5.0  # at most, of a video where the former gives fewer than enough
ENOUGH_FRAMES = 20
AT_A_TIME = 8  # images that are decoded and pass the network at once
_MOST_NAMED = 5  # class folders without images that a warning names
_READABLE = "files that Pillow (JPEG, PNG ...) or PyAV (MP4 ...) can read"
# What to do with a file that gives no image, where it could be left out instead.
_SKIP = "Restore or replace the file, or pass on_bad='skip' to leave it out."
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
    report: Callable[[BadImage], object] = warn_of_bad_image,
    cure: str = _SKIP,
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
        cure: What errors at a file say is to be done with it, as a sentence.

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
    reader = _ClipReader(on_bad == "skip", report, cure)
    # `with_final_check` raises at the end if there was no clip.
    if not isinstance(source, str | os.PathLike):
        clips = reader.clips_of_source(source, label, "source")
        return reader.with_final_check(clips, "the source", _EMPTY_LIST)
    path = path_of(source)
    check_exists(path)
    if label is None:
        labels = class_folders(path)
        if labels:
            return reader.with_final_check(
                reader.clips_of_classes(path, labels), str(path), _EMPTY_FOLDER
            )
    clips = reader.clips_of_path(path, label)
    without_clips = _EMPTY_PATTERN if is_pattern(path) else _EMPTY_FOLDER
    return reader.with_final_check(clips, str(path), without_clips)


def check_exists(path: str | os.PathLike) -> None:
    """Raise FileNotFoundError for a path of nothing, unless it is a glob pattern."""
    path = path_of(path)
    if not os.path.lexists(path) and not is_pattern(path):
        raise FileNotFoundError(f"there is no file or folder {path}; check the path.")


def clips_to_ask(source: Any, classes: Iterable[Any], **options: Any) -> Iterator[Clip]:
    """Yield the clips of a source as ``clips_of`` does, to be asked about.

    Folders such as ``day1`` say nothing about what the photos show: clips have no
    labels if no folder has the name of a class taught. A folder ``Mug`` has that of the
    class ``mug``, unless ``Mug`` or ``MUG`` is a class, too.

    Args:
        source: path of a photo, a video or a folder, glob pattern, image, array, or an
            iterable of these.
        classes: taught, each with its ``name``.
        **options: of ``clips_of``.
    """
    folder_names = class_folders(source).values()
    class_names = [class_info.name for class_info in classes]
    taught_names = _taught_names(folder_names, class_names)
    are_no_classes = bool(folder_names) and not taught_names
    for clip in clips_of(source, **options):
        label = clip.label
        if are_no_classes:
            label = None
        elif label in taught_names:
            label = taught_names[label]
        yield replace(clip, label=label)


def _taught_names(
    folder_names: Iterable[str], class_names: Iterable[str]
) -> dict[str, str]:
    """Return the classes taught that folders are named after, by name of the folder.

    That is the class of the same name, or the only one of nearly the same; folders
    without such a class are left out.
    """
    names_by_key: dict[str, list[str]] = {}
    for name in class_names:
        names_by_key.setdefault(near_key(name), []).append(name)
    taught_names = {}
    for folder_name in folder_names:
        names = names_by_key.get(near_key(folder_name), [])
        if folder_name in names:
            taught_names[folder_name] = folder_name
        elif len(names) == 1:
            taught_names[folder_name] = names[0]
    return taught_names


@dataclass(frozen=True)
class _Empty:
    """What is said of a source without clips.

    Attributes:
        problem: what is wrong, after the name of the source.
        cure: what to do.
    """

    problem: str
    cure: str


_EMPTY_FOLDER = _Empty(
    "holds no photo and no video, in folders at any depth", f"Give {_READABLE}."
)
_EMPTY_PATTERN = _Empty(
    "matches no photo, no video and no folder with them",
    f"Check the pattern; give one that matches {_READABLE}.",
)
_EMPTY_LIST = _Empty(
    "holds no photo, no video and no image",
    f"Give at least one image or array, or {_READABLE}.",
)


class _ClipReader:
    """Reads the clips of sources; see `clips_of`.

    Args:
        skip: leave bad files out instead of raising.
        report: called with each file that is left out.
        cure: what errors say is to be done with a bad file.

    Attributes:
        ignored: number of files that are neither photo nor video, by extension.
        empty_classes: names of class folders without photos and videos.
    """

    def __init__(
        self, skip: bool, report: Callable[[BadImage], object], cure: str
    ) -> None:
        self.skip = skip
        self.report = report
        self.cure = cure
        self.ignored: Counter[str] = Counter()
        self.empty_classes: list[str] = []

    def clips_of_source(
        self, source: Any, label: str | None, name: str
    ) -> Iterator[Clip]:
        """Yield the clips of any source.

        Args:
            source: path of a photo, a video or a folder, glob pattern, PIL image,
                array, clip, or a list of these.
            label: class name of its clips, if they have one.
            name: that stands for the path of images in memory.
        """
        if isinstance(source, str | os.PathLike):
            yield from self.clips_of_path(path_of(source), label)
        elif isinstance(source, Clip):
            yield replace(source, label=label or source.label)
        elif isinstance(source, Image.Image) or is_array(source):
            yield Clip(name, label, self._frames_of_images(_named_images(name, source)))
        elif _is_list(source):
            yield from self._clips_of_list(source, label, name)
        else:
            raise TypeError(
                f"{name} is {type(source).__name__}; give a path, a PIL image, an "
                "array, a tensor, or a list of these."
            )

    def _clips_of_list(
        self, source: Iterable[Any], label: str | None, name: str
    ) -> Iterator[Clip]:
        """Yield the clips of a list or an iterator of sources.

        Single images that follow each other are one clip.

        Args:
            source: paths, clips, images, arrays, or lists of these.
            label: class name of the clips, if they have one.
            name: that stands for the path of images in memory.
        """
        named_items = ((f"{name}[{index}]", item) for index, item in enumerate(source))
        # Runs of single images, and of other sources between them. groupby reads the
        # items of a group as they are used, and drops the rest of them when the next
        # group begins.
        for are_images, group in groupby(
            named_items, lambda named: _is_frame(named[1])
        ):
            if not are_images:
                for item_name, item in group:
                    yield from self.clips_of_source(item, label, item_name)
                continue
            images = _images_of_items(group)
            if isinstance(source, Sequence):
                # The clips of a list may be read after the next group has begun. An
                # iterator may be endless: its clip has to be read before the next one
                # is asked for.
                images = iter(list(images))
            yield Clip(name, label, self._frames_of_images(images))

    def clips_of_classes(self, root: Path, labels: dict[Path, str]) -> Iterator[Clip]:
        """Yield the clips of a folder of class folders.

        Args:
            root: the folder.
            labels: class name of each class folder; other folders in the root hold
                neither photos nor videos.
        """
        entries = entries_of(root)
        self.ignored += entries.ignored
        for folder in entries.folders:
            if folder not in labels:
                self.empty_classes.append(folder.name)
            yield from self._clips_of_folder(folder, labels.get(folder), root)

    def clips_of_path(self, path: Path, label: str | None) -> Iterator[Clip]:
        """Yield the clips of a photo, video, folder or pattern."""
        if os.path.isdir(path):
            yield from self._clips_of_folder(path, label, path)
        elif is_pattern(path):
            yield from self._clips_of_pattern(path, label)
        else:
            yield self._clip_of_files(path, label, [path])

    def _clips_of_pattern(self, pattern: Path, label: str | None) -> Iterator[Clip]:
        """Yield the clips of a pattern: the matching photos of each folder are one.

        Other files that match are counted in ``ignored``.
        """
        paths, n_ignored = matching_paths(pattern)
        self.ignored += n_ignored
        # A folder that matches and a video stand for themselves, photos below their
        # folder.
        files_by_clip: dict[Path, list[Path]] = {}
        for path in paths:
            if os.path.isdir(path) or is_video(path):
                files_by_clip[path] = [path]
            else:
                files_by_clip.setdefault(path.parent, []).append(path)
        for clip_path, files in files_by_clip.items():
            if files == [clip_path]:
                yield from self.clips_of_path(clip_path, label)
            else:
                yield self._clip_of_files(clip_path, label, files)

    def _clips_of_folder(
        self, folder: Path, label: str | None, root: Path
    ) -> Iterator[Clip]:
        """Yield the clips of a folder at any depth: each video, and photos by folder.

        Args:
            folder: to read.
            label: class name of its clips.
            root: links to it and to folders above it are not followed.
        """

        def report_unreadable(folder: Path, error: OSError) -> None:
            """Report a folder that cannot be listed; raise where nothing is skipped."""
            reason = error.strerror or error
            self._leave_out(folder, f"the folder cannot be read: {reason}", error)

        for path, entries in walk(folder, report_unreadable, root):
            self.ignored += entries.ignored
            if entries.images:
                yield self._clip_of_files(path, label, entries.images)
            for video in entries.videos:
                yield self._clip_of_files(video, label, [video])

    def _clip_of_files(
        self, path: Path, label: str | None, files: Sequence[Path]
    ) -> Clip:
        """Return the clip of a video, or of photos.

        Args:
            path: of the clip: the video, the photo, or the folder of the photos.
            label: class name of the clip.
            files: the one video, or the photos in order.
        """
        if is_video(files[0]):
            frames = self._frames_of_video(files[0])
        else:
            frames = self._frames_of_images((str(file), file) for file in files)
        return Clip(str(path), label, frames, tuple(map(str, files)))

    def with_final_check(
        self, clips: Iterator[Clip], source: str, without_clips: "_Empty"
    ) -> Iterator[Clip]:
        """Yield clips; after the last one, warn of ignored files or raise if none came.

        Args:
            clips: of this reader.
            source: they come from, for warnings and errors.
            without_clips: what to say if there is no clip.

        Raises:
            ValueError: there is no clip.
        """
        is_empty = True
        for clip in clips:
            is_empty = False
            yield clip
        notes = []
        if self.empty_classes and not is_empty:
            notes.append(
                "no class, as there is no photo and no video in it: "
                f"{self._empty_class_names()}"
            )
        ignored_in_words = ignored_files_in_words(self.ignored)
        if ignored_in_words:
            notes.append(f"ignored: {ignored_in_words}")
        if is_empty:
            problem = f"{source} {without_clips.problem}"
            raise ValueError(f"{'; '.join([problem, *notes])}. {without_clips.cure}")
        if notes:
            warnings.warn(printable(f"{source}: {'; '.join(notes)}"), stacklevel=3)

    def _empty_class_names(self) -> str:
        """Return the first class folders without photos and videos, in words."""
        names = ", ".join(self.empty_classes[:_MOST_NAMED])
        if len(self.empty_classes) > _MOST_NAMED:
            return f"{names} and {len(self.empty_classes) - _MOST_NAMED} more"
        return names

    def _frames_of_images(self, named_images: Iterable[tuple[str, Any]]) -> Frames:
        """Yield the name and the RGB image of each source of one image.

        What cannot be decoded is reported and left out with ``skip``.

        Args:
            named_images: pairs of a name, and a path, PIL image, array or tensor.

        Raises:
            BadFrameError, ValueError: an image cannot be decoded, without ``skip``.
        """
        for name, undecoded in named_images:
            try:
                image = decoded_image(undecoded)
            # Pillow's decoders raise far more than OSError on damaged bytes.
            except Exception as error:
                if is_array(undecoded) and not self.skip:
                    raise ValueError(f"{name} {error}") from error
                self._leave_out(name, _reason_in_words(error), error)
                continue
            yield name, image
            del image  # before the next one is decoded

    def _frames_of_video(self, path: Path) -> Frames:
        """Yield paths and images of a video at its usual rate, no frame twice."""
        previous = None
        try:
            fps = _usual_frame_rate(path)
            for number, image in enumerate(sampled_frames(path, fps, SHORT_SIDE)):
                # A video with less than fps frames per second repeats them.
                if image is not previous:
                    yield f"{path}#t={number / fps:g}", image
                previous = image
        except (VideoError, ImportError) as error:
            if isinstance(error, ImportError) and not self.skip:
                raise
            self._leave_out(path, str(error).removeprefix(f"video {path} "), error)

    def _leave_out(self, path: Path | str, reason: str, error: Exception) -> None:
        """Report a bad file that is left out.

        Raises:
            BadFrameError: bad files are not to be left out.
        """
        bad_image = BadImage(str(path), reason)
        if not self.skip:
            problem = str(bad_image).rstrip(".")
            bad_frame_error = BadFrameError(f"{problem}. {self.cure}")
            bad_frame_error.reason = reason
            raise bad_frame_error from error
        self.report(bad_image)


def _is_list(source: Any) -> bool:
    """Whether a source is an iterable of sources, and not bytes or a dictionary."""
    is_other_iterable = isinstance(source, bytes | bytearray | Mapping)
    return isinstance(source, Iterable) and not is_other_iterable


def decoded_image(source: Any) -> Image.Image:
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


def _reason_in_words(error: Exception) -> str:
    """Say why an image could not be decoded."""
    if isinstance(error, UnidentifiedImageError):
        return "is not an image that Pillow can read; convert it to JPEG or PNG"
    strerror = getattr(error, "strerror", None)
    if strerror:
        return strerror
    text = str(error) or type(error).__name__
    if isinstance(error, DamagedError):
        return text.removeprefix("it ")  # it says itself that it is damaged
    # Errors of these classes say themselves what to do; all others are Pillow's.
    if isinstance(error, ImportError | MemoryError | ValueError):
        return text
    return f"is damaged: {text}; copy it again from its source"


def _usual_frame_rate(video: Path) -> float:
    """Return the frames per second that are taken of a video; see `clips_of`."""
    seconds = seconds_of(video, most=ENOUGH_FRAMES)
    fps = ENOUGH_FRAMES / max(seconds, 1.0)
    return min(SHORT_VIDEO_FPS, max(LONG_VIDEO_FPS, fps))


def _is_frame(item: Any) -> bool:
    """Whether an item is a single image, which makes a clip with its neighbours."""
    if isinstance(item, str | os.PathLike):
        path = path_of(item)
        return not (os.path.isdir(path) or is_pattern(path) or is_video(path))
    is_single_array = is_array(item) and len(item.shape) == 3
    return is_single_array or isinstance(item, Image.Image)


def _named_images(name: str, image: Any) -> Iterator[tuple[str, Any]]:
    """Return pairs of name and undecoded image, several for a batch.

    Args:
        name: of images in memory that were not read from a file.
        image: path, PIL image, array or tensor.
    """
    if is_array(image):
        return array_images(image, name)
    if isinstance(image, str | os.PathLike):
        path = path_of(image)
        return iter([(str(path), path)])
    file_name = getattr(image, "filename", "")  # of Pillow's images
    return iter([(str(file_name or name), image)])


def _images_of_items(
    named_items: Iterable[tuple[str, Any]],
) -> Iterator[tuple[str, Any]]:
    """Yield name and undecoded image of each image of some items.

    Args:
        named_items: pairs of a name, and a path, PIL image, array or tensor.
    """
    for name, item in named_items:
        yield from _named_images(name, item)


# Arrays and batches


def is_array(source: object) -> bool:
    """Whether the source is a NumPy array or a PyTorch tensor."""
    return isinstance(source, np.ndarray) or _is_tensor(source)


def array_images(source: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the name and the pixels of each image of an array or a tensor.

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
    is_tensor = _is_tensor(source)
    if is_tensor:
        kind = "a tensor"
        channel_axis = -3
        dtype = str(source.dtype).removeprefix("torch.")
        is_floating = source.is_floating_point()
    else:
        kind = "an array"
        channel_axis = -1
        dtype = source.dtype.name
        is_floating = source.dtype.kind == "f"
    has_channels = len(shape) in (3, 4) and shape[channel_axis] in (3, 4)
    has_known_dtype = is_floating or dtype in ("uint8", "uint16")
    if not has_channels or 0 in shape or not has_known_dtype:
        raise ValueError(
            f"{name} is {kind} of shape {shape} and dtype {source.dtype}; {_RULE}."
        )
    if dtype == "uint16":  # all images of a batch by the same bits
        if is_tensor:
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
    """Whether a source of images is a PyTorch tensor, without importing torch."""
    torch = sys.modules.get("torch")  # without it there is no tensor
    return torch is not None and isinstance(source, torch.Tensor)


def pixels_image(pixels: Any) -> Image.Image:
    """Convert the pixels of an image to 8-bit RGB, on white where they have alpha.

    Args:
        pixels: ``(H, W, C)`` array, uint8 or floating-point from 0 to 1, or such a
            tensor ``(C, H, W)``, of 3 channels or 4 with alpha.

    Raises:
        ValueError: floating-point values are not from 0 to 1.
    """
    if _is_tensor(pixels):
        pixels = pixels.detach().permute(1, 2, 0).cpu()
        if pixels.is_floating_point():
            pixels = pixels.float()
        pixels = pixels.numpy()
    if pixels.dtype != np.uint8:
        pixels = _pixel_levels(pixels)
    image = Image.fromarray(np.ascontiguousarray(pixels))
    if image.mode == "RGBA":
        return on_background(image)
    return image


def _pixel_levels(pixels: np.ndarray) -> np.ndarray:
    """Return pixels from 0 to 1 as uint8; raise ValueError for others."""
    low = float(pixels.min())
    high = float(pixels.max())
    is_in_range = low >= 0 and high <= 1  # false if they are NaN
    if not is_in_range:
        values = f"values from {low:g} to {high:g}"
        if math.isnan(low):
            values = "NaN"
        raise ValueError(
            f"holds {values}, but floating-point pixels must be from 0 to 1: divide "
            "values up to 255 by 255, and undo a normalisation by mean and standard "
            "deviation."
        )
    return np.rint(pixels.astype(np.float32) * 255).astype(np.uint8)
