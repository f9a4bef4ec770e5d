"""Read images from photos, folders, videos, arrays and tensors, one at a time.

Nothing is written: the frames of a video are decoded as they are used. They equal those of `crumb run` at the same
rate, except that no frame is given twice.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image, UnidentifiedImageError

from benchmarks_toybox_ilab.datasets.clip_folder import EXTENSIONS, SHORT_SIDE, UNREAD_EXTENSIONS
from benchmarks_toybox_ilab.tables.folders import visible_entries
from benchmarks_toybox_ilab.tables.frame import BadFrameError
from benchmarks_toybox_ilab.tables.image import read_image, to_rgb
from benchmarks_toybox_ilab.video.extract import VIDEO_EXTENSIONS, frame_rate, is_video
from benchmarks_toybox_ilab.video.sampling import VideoError, sampled_frames, seconds_of
from crumb_avalanche.learner.clip import ENOUGH_FRAMES, BadImage, Clip, ClipFiles, Frames, OnBad, warn
from crumb_avalanche.learner.folders import (
    check_name,
    class_folders,
    is_pattern,
    kind_of,
    labels_of,
    matches,
    path_of,
    walk,
)
from crumb_avalanche.learner.pixels import array_images, is_array, pixels_image

Kind = TypeVar("Kind")
_CONVERT = "files are not read; convert them to JPEG or PNG"


def clips_of(
    source: Any,
    label: str | None = None,
    *,
    fps: float | None = None,
    on_bad: OnBad = "raise",
    report: Callable[[BadImage], object] = warn,
) -> Iterator[Clip]:
    """Yield the clips of a source, in natural order (frame2 before frame10).

    A folder is read to any depth, and everything in it is used: each video is a clip, and the photos of each folder are
    one. Hidden files and files of other kinds are ignored; a folder reached twice through links is read once. Photos
    are rotated as their EXIF orientation says and converted to 8-bit RGB by the rules of `tables.image`: transparency
    on white, and the first image alone of several, with a warning. Frames of a video have at most 512 pixels on the
    short side.

    Args:
        source: Path of a photo, a video or a folder; glob pattern (`**` for any depth); PIL image; array or tensor (see
            `array_images`); a `Clip`; or an iterable of these, which is read lazily. Each match and each item is a
            source of its own.
        label: Class name of all clips. `None` uses the names of the class folders if the source is one folder of class
            folders (see `labels_of`), and no label otherwise.
        fps: Frames per second of a video. `None` takes 1, or up to 5 from a video so short that 1 gives less than 20
            frames; 5 if the file does not state its length.
        on_bad: `"raise"` raises for the first file that cannot be decoded, or image of an array with a value that
            breaks the rule; `"skip"` reports and leaves it out. The frames before the damage of a video are used.
        report: Called with each file that is left out; `bad.append` collects them in a list. Formats that are not read
            (`.heic` ...) are reported once per extension in both cases, unless the file itself is the source.

    Raises:
        FileNotFoundError: If the path does not exist.
        BadFrameError: If a file cannot be decoded and `on_bad` is `"raise"`; from `Clip.frames` if that shows in its
            content.
        ImportError: If there is a video, PyAV is not installed, and `on_bad` is `"raise"`.
        TypeError: If the source or an item is none of the above.
        ValueError: If an argument or the name of a class folder breaks its rule, an array breaks the rule of
            `array_images`, or the source holds no photo and no video (after the last clip).
    """
    if on_bad not in ("raise", "skip"):
        raise ValueError(f"on_bad is {on_bad!r}, but must be 'raise' or 'skip'.")
    label = None if label is None else check_name(label)
    reader = _Reader(None if fps is None else frame_rate(fps), on_bad == "skip", report)
    if not isinstance(source, str | os.PathLike):
        return _not_empty(reader.clips(source, label, "source"), "the source")
    path = path_of(source)
    return _not_empty(map(reader.opened, reader.listed(path, label)), str(path))


def clips_to_ask(source: Any, classes: Iterable[Any], **how: Any) -> Iterator[Clip]:
    """Yield the clips of a source as ``clips_of`` does, without labels if no folder has the name of a class.

    Args:
        source: as for ``clips_of``; folders such as ``day1`` say nothing about what the photos show.
        classes: the classes taught, with a ``name`` each.
        **how: as for ``clips_of``.
    """
    folders = labels_of(source)
    other = bool(folders) and {one.name for one in classes}.isdisjoint(folders)
    for clip in clips_of(source, **how):
        yield replace(clip, label=None) if other else clip


def files_of(
    source: str | os.PathLike,
    label: str | None = None,
    *,
    on_bad: OnBad = "raise",
    report: Callable[[BadImage], object] = warn,
) -> Iterator[ClipFiles]:
    """Yield the files of the clips of a path or glob pattern; `clips_of` yields the clips themselves.

    Arguments and errors are those of `clips_of`, except for the content of files, which is not read.
    """
    path = path_of(source)
    files = _Reader(None, on_bad == "skip", report).listed(path, None if label is None else check_name(label))
    return _not_empty(files, str(path))


def opened(
    files: Iterable[ClipFiles],
    on_bad: OnBad = "raise",
    report: Callable[[BadImage], object] = warn,
) -> Iterator[Clip]:
    """Yield the clips of files; see `clips_of`."""
    return map(_Reader(None, on_bad == "skip", report).opened, files)


class _Reader:
    """Clips of sources, with one way to sample videos and to treat bad files.

    Args:
        fps: as in `clips_of`.
        skip: report bad files instead of raising.
        report: as in `clips_of`.
    """

    def __init__(self, fps: float | None, skip: bool, report: Callable[[BadImage], object]) -> None:
        self.fps = fps
        self.skip = skip
        self.report = report
        self.unread: set[str] = set()  # extensions reported

    def clips(self, source: Any, label: str | None, name: str) -> Iterator[Clip]:
        """Clips of any source; `name` is that of images in memory."""
        if isinstance(source, str | os.PathLike):
            yield from map(self.opened, self._below(path_of(source), label))
        elif isinstance(source, Clip):
            yield replace(source, label=label or source.label)
        elif isinstance(source, Image.Image):
            name = str(getattr(source, "filename", "") or name)
            yield Clip(name, label, self._images([(name, source)]))
        elif is_array(source):
            yield Clip(name, label, self._images(array_images(source, name)))
        elif isinstance(source, Iterable) and not isinstance(source, bytes | bytearray | Mapping):
            for number, item in enumerate(source):
                yield from self.clips(item, label, f"{name}[{number}]")
        else:
            raise TypeError(
                f"{name} is {type(source).__name__}; give a path, a PIL image, an array, a tensor, or a list of these."
            )

    def listed(self, path: Path, label: str | None) -> Iterator[ClipFiles]:
        """Files of the clips of a path or pattern, which has to exist."""
        if not os.path.lexists(path) and not is_pattern(path):
            raise FileNotFoundError(f"there is no file or folder {path}; check the path.")
        classes = class_folders(path) if label is None else {}
        return self._classes(path, classes) if classes else self._below(path, label)

    def opened(self, clip: ClipFiles) -> Clip:
        """The clip of files."""
        first = Path(clip.files[0])
        frames = self._video(first) if is_video(first) else self._images((file, Path(file)) for file in clip.files)
        return Clip(clip.path, clip.label, frames)

    def _classes(self, root: Path, labels: dict[Path, str]) -> Iterator[ClipFiles]:
        for entry in visible_entries(root):
            if os.path.isdir(entry):
                yield from self._folder(entry, labels.get(entry), root)
            elif kind_of(entry) == "unread":
                self._leave_out(entry)

    def _below(self, path: Path, label: str | None) -> Iterator[ClipFiles]:
        if os.path.isdir(path):
            yield from self._folder(path, label, path)
        elif is_pattern(path):
            for match in matches(path):
                if kind_of(match) == "unread":
                    self._leave_out(match)
                else:
                    yield from self._below(match, label)
        elif kind_of(path) == "unread":
            self._bad(path, f"{path.suffix} {_CONVERT}")
        else:
            yield ClipFiles(str(path), label, (str(path),))

    def _folder(self, folder: Path, label: str | None, root: Path) -> Iterator[ClipFiles]:
        for path, files in walk(folder, root, self._bad):
            kinds = [(kind_of(file), file) for file in files]
            for kind, file in kinds:
                if kind == "unread":
                    self._leave_out(file)
            photos = tuple(str(file) for kind, file in kinds if kind == "image")
            if photos:
                yield ClipFiles(str(path), label, photos)
            yield from (ClipFiles(str(file), label, (str(file),)) for kind, file in kinds if kind == "video")

    def _images(self, named: Iterable[tuple[str, Any]]) -> Frames:
        """Images of pairs of name and path, PIL image, array or tensor."""
        for name, item in named:
            try:
                if is_array(item):
                    image = pixels_image(item)
                elif isinstance(item, Image.Image):
                    image = to_rgb(item, upright=True)
                else:
                    if os.path.exists(item) and not os.path.isfile(item):  # a pipe would block
                        raise ValueError("is not a regular file; frames of a camera come from camera_clip")
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
            fps = self.fps or _default_rate(path)
            for number, image in enumerate(sampled_frames(path, fps, SHORT_SIDE)):
                if image is not last:  # a video with less than fps frames per second repeats them
                    yield f"{path}#t={number / fps:g}", image
                last = image
        except (VideoError, ImportError) as error:
            if isinstance(error, ImportError) and not self.skip:
                raise
            self._bad(path, str(error).removeprefix(f"video {path} "), error)

    def _leave_out(self, path: Path) -> None:
        """Report a photo of a format that is not read, the first of its extension."""
        extension = path.suffix.lower()
        if extension not in self.unread:
            self.unread.add(extension)
            self.report(BadImage(str(path), f"{extension} {_CONVERT}. Further {extension} files are left out silently"))

    def _bad(self, path: Path | str, reason: str, error: Exception | None = None) -> None:
        bad = BadImage(str(path), reason)
        if not self.skip:
            cure = "Restore or replace the file, or pass on_bad='skip' to leave it out."
            raise BadFrameError(f"{str(bad).rstrip('.')}. {cure}") from error
        self.report(bad)


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "is not an image that Pillow can read"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _default_rate(video: Path) -> float:
    seconds = seconds_of(video, most=ENOUGH_FRAMES)
    return min(5.0, max(1.0, ENOUGH_FRAMES / max(seconds, 1.0)))


def _not_empty(clips: Iterator[Kind], source: str) -> Iterator[Kind]:
    empty = True
    for clip in clips:
        empty = False
        yield clip
    if empty:
        read, unread = ", ".join((*EXTENSIONS, *VIDEO_EXTENSIONS)), ", ".join(UNREAD_EXTENSIONS)
        raise ValueError(
            f"{source} holds no photo and no video. Files with the extensions {read} are looked for, in folders at any "
            f"depth; hidden files are ignored, and {unread} {_CONVERT}."
        )
