"""A folder of clips as a data set.

`class/object/clip/frame.jpg` or `class/object/clip.mp4`.
"""

import math
import os
import warnings
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from PIL import Image

from benchmarks_toybox_ilab.datasets.layout import Layout
from benchmarks_toybox_ilab.datasets.registry import (
    Benchmark,
    FrameBenchmark,
    StreamKeywords,
    Unpack,
    register,
    shows_keywords,
)
from benchmarks_toybox_ilab.tables.folders import (
    entries_of,
    ignored_files_in_words,
    walk,
)
from benchmarks_toybox_ilab.tables.frame import (
    Frame,
    FrameTableError,
    natural_key,
)
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from benchmarks_toybox_ilab.tables.image import read_image
from benchmarks_toybox_ilab.tables.names import check_name, check_near, check_not_splits
from benchmarks_toybox_ilab.tables.numbers import whole_number
from benchmarks_toybox_ilab.tables.text import printable
from benchmarks_toybox_ilab.video.extract import Job, extract_many, frame_rate

LAYOUT = Layout(
    name="clip_folder",
    title="a folder of clips",
    tree="<root>/<class>/<object>/<clip>/<frame>.jpg, e.g. "
    "cup/red_cup/kitchen/0001.jpg, or a video <root>/<class>/<object>/<clip>.mp4; an "
    "only object, and an only clip of photos, need no folder",
    source="your own images and videos",
)
_RULE = f"the layout is {LAYOUT.tree}"
FRAMES_FOLDER = ".crumb_frames"  # below the root: the frames of its videos
SHORT_SIDE = 512  # pixels; frames of larger videos are reduced


@dataclass(frozen=True)
class _Clip:
    """A clip of the data set.

    Attributes:
        class_name, object_name, name: The names of its class, its object and itself.
        path: Its folder of images, or its video.
    """

    class_name: str
    object_name: str
    name: str
    path: Path


@dataclass(frozen=True)
class _HeldOutClips:
    """What is in the test split.

    Attributes:
        clips: Wholly.
        divided: In part; each is the only clip of its class.
    """

    clips: set[_Clip]
    divided: list[_Clip]


def ClipFolderFrames(
    root: str | Path,
    run: int = 0,
    held_out: int | None = None,
    fps: float = 1.0,
    bad_videos: list[str] | None = None,
    new_class: bool = False,
) -> FrameTable:
    """Make the table of a folder of clips.

    Clips are folders of images, video files, or both. A folder of photos is a clip, and
    so is a video, at any depth, as for `crumb teach`. The first folder below that of
    the class is the object: `class/object/clip/frame.jpg`, `class/object/clip.mp4`.
    Without it, the class is its only object: `class/clip.mp4`, `class/frame.jpg`. Names
    are sorted in natural order (frame2 before frame10), and a frame's number is its
    position in its clip. Other files are ignored, and counted by extension in a
    warning. Images are rotated as their EXIF orientation says.

    The frames of a video are extracted once, to `.crumb_frames/<fps>fps` below root,
    with at most 512 pixels on the short side, which needs PyAV.

    The test split is chosen class by class: a fifth of the objects; a fifth of the
    clips if there is one object; the last fifth of the frames if there is one clip. A
    fifth is rounded and at least one. Held-out objects or clips are neighbours in
    natural order: among n, n consecutive runs hold out n different sets. Held-out
    frames are the same in all runs. `held_out_of` lists what is held out.

    Args:
        root: Folder of the class folders.
        run: Chooses what is held out.
        held_out: Number of objects of each class, or of clips of its only object, in
            the test split instead of a fifth; an only clip still holds out the last
            fifth. 0 keeps everything for training, which gives a table but no
            benchmark.
        fps: Frames per second taken from a video.
        bad_videos: Collects a message for each video that cannot be read to its end,
            which is left out as if it were not there. None makes such a video an error.
        new_class: Take every class folder for a class, also if the names of two are
            nearly the same (`cup` and `Cup`) or they look like splits (`train`,
            `test`).

    Raises:
        DoubtfulNameError: If a class folder is probably not meant as a class, and
            `new_class` is false.
        FrameTableError: If the folder is missing or empty, files lie beside the class
            folders, a class is empty or has a single image or no more objects (clips)
            than `held_out`, two clips of an object have the same name, a video cannot
            be read to its end (all others are extracted first), or frames cannot be
            written below root.
        ImportError: If there are videos to read and PyAV is not installed.
        ValueError: If run, held_out or fps is out of range.
    """
    run = whole_number("run", run, 0)
    held_out = None if held_out is None else whole_number("held_out", held_out, 0)
    fps = frame_rate(fps)
    root = Path(root)
    if not root.is_dir():
        raise FrameTableError(
            f"there is no folder {root}; give the folder of your classes, laid out as "
            f"{LAYOUT.tree}"
        )
    ignored: Counter[str] = Counter()  # numbers of files by extension
    images_of: dict[_Clip, list[Path]] = {}  # a video has none yet
    for folder, name in _names_of_class_folders(root, ignored, new_class).items():
        images_of |= _clips_of_class(folder, name, ignored)
    for clip in images_of:  # raises at a path that a table cannot hold
        _check_utf8(str(clip.path.relative_to(root)), root)
    # Chosen only to raise an error of the numbers before videos are decoded.
    _choose_held_out(list(images_of), run, held_out)
    ignored_in_words = ignored_files_in_words(ignored)
    if ignored_in_words:
        text = f"below {root} are ignored: {ignored_in_words}"
        warnings.warn(printable(text), stacklevel=1)
    videos = [clip.path for clip, images in images_of.items() if not images]
    # Images by path of the video; one that cannot be read is not in it.
    extracted = _frames_of_videos(root, videos, fps, bad_videos)
    class_names = {clip.class_name for clip in images_of}
    for clip, images in list(images_of.items()):
        if not images:
            images_of[clip] = extracted.get(clip.path, [])
        if not images_of[clip]:  # a video that cannot be read
            del images_of[clip]
    for name in sorted(class_names - {clip.class_name for clip in images_of}):
        text = (
            f"no video of class {name!r} can be read, so it is left out; replace them"
        )
        warnings.warn(printable(text), stacklevel=1)
    # Chosen again, as videos that cannot be read are no clips now.
    test = _choose_held_out(list(images_of), run, held_out)
    for clip in test.divided:  # only clips of their class, whose last fifth is tested
        if len(images_of[clip]) == 1:
            raise FrameTableError(
                f"class {clip.class_name!r} has a single image, that of {clip.path}, "
                "but a class needs one for training and another for testing; add "
                "images, take more frames of a video (a higher fps), add another clip, "
                "or remove the class."
            )
    frames: list[Frame] = []
    for clip, images in images_of.items():
        first_tested = len(images)  # all of its frames are for training
        if clip in test.clips:
            first_tested = 0
        elif clip in test.divided:
            first_tested = len(images) - _rounded_fifth(len(images))
        frames += _frames_of_clip(clip, images, root, first_tested)
    return FrameTable(frames, root, reader=UprightImages(root), name=root.name)


def _frames_of_clip(
    clip: _Clip, images: list[Path], root: Path, first_tested: int
) -> list[Frame]:
    """Return the rows of a clip of the data set.

    Args:
        clip: The clip.
        images: Its frames in order.
        root: Folder of the data set, which paths are relative to.
        first_tested: Position of the first frame of the test split; the frames before
            it are for training.
    """
    frames = []
    for position, image in enumerate(images):
        frames.append(
            Frame(
                path=image.relative_to(root).as_posix(),
                class_name=clip.class_name,
                object_name=clip.object_name,
                session=clip.name,
                frame=position,
                split="train" if position < first_tested else "test",
            )
        )
    return frames


def _names_of_class_folders(
    root: Path, ignored: Counter, new_class: bool
) -> dict[Path, str]:
    """Return the name of each class of a data set of clips, by its folder.

    Args:
        root: Folder of the data set.
        ignored: Number of files that are left out, by extension; those beside the
            class folders are added to it.
        new_class: Take names that are nearly alike, or those of splits, as classes.

    Raises:
        FrameTableError: If there are no class folders, files lie beside them, or a name
            is not allowed or not unique.
        DoubtfulNameError: If names are nearly alike, or look like those of splits,
            unless `new_class`.
    """
    entries = entries_of(root)
    ignored.update(entries.ignored)
    for file in (*entries.images, *entries.videos):  # the first one, if any
        raise FrameTableError(f"{file} lies where class folders are expected; {_RULE}")
    if not entries.folders:
        raise FrameTableError(f"{root} holds no class folders; {_RULE}")
    name_of: dict[Path, str] = {}
    for folder in entries.folders:
        _check_utf8(folder.name, root)
        name_of[folder] = check_name(folder.name, is_folder=True)
    folder_of: dict[str, Path] = {}
    for folder, name in name_of.items():
        # The folder that had this name first: the folder itself where no other has it.
        first_folder = folder_of.setdefault(name, folder)
        if first_folder is not folder:
            raise FrameTableError(
                f"{first_folder} and {folder} are both class {name!r}; rename or merge "
                "one."
            )
    if not new_class:
        inner_folders = {}
        for folder in name_of:
            inner_folders[folder.name] = _names_of_inner_folders(folder)
        # Both raise DoubtfulNameError.
        check_not_splits(root, inner_folders)
        check_near(name_of.values())
    return name_of


def _names_of_inner_folders(folder: Path) -> list[str]:
    """Return the names of the folders in a class folder of the data set."""
    return [inner.name for inner in entries_of(folder).folders]


def _check_utf8(name: str, root: Path) -> None:
    """Raise FrameTableError if the bytes of a file name of the data set are not UTF-8.

    Python reads such bytes as surrogates.

    Args:
        name: Name of a folder, or its path relative to the root.
        root: Folder of the data set, for the message.
    """
    if name.isascii():
        return
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        raise FrameTableError(
            f"the name {os.fsencode(name)!r} below {root} is not UTF-8 text; rename "
            "that folder."
        )


def _choose_held_out(
    clips: list[_Clip], run: int, held_out: int | None
) -> _HeldOutClips:
    """Choose the clips of the test split of the data set, class by class.

    Args:
        clips: All clips, sorted by class and object.
        run: Number of the run.
        held_out: Number of objects of each class, or of clips of its only object; None
            is a fifth.

    Returns:
        `clips`, which are tested whole, and `divided`: those that are the only one of
        their class, of which the last frames are tested.

    Raises:
        FrameTableError: If a class has no more of them.
    """
    test = _HeldOutClips(clips=set(), divided=[])
    # groupby joins neighbours alone, which is enough for clips that are sorted.
    for class_name, clips_of_class in groupby(clips, lambda clip: clip.class_name):
        by_object = groupby(clips_of_class, lambda clip: clip.object_name)
        # Clips that are held out together: those of an object, or one of a sole object.
        groups = [list(clips_of_object) for _, clips_of_object in by_object]
        group_name = "object"
        if len(groups) == 1:
            groups = [[clip] for clip in groups[0]]
            group_name = "clip"
        n_groups = len(groups)
        if n_groups == 1:
            if held_out != 0:
                test.divided.extend(groups[0])
            continue
        n_held_out = _rounded_fifth(n_groups) if held_out is None else held_out
        if n_held_out >= n_groups:
            raise FrameTableError(
                f"class {class_name!r} has {n_groups} {group_name}s, so "
                f"held_out={held_out} leaves none for training; give held_out=None to "
                f"hold out a fifth, or at most {n_groups - 1}, or add {group_name}s."
            )
        for position in _held_out_positions(n_groups, n_held_out, run):
            test.clips.update(groups[position])
    return test


def _held_out_positions(number: int, count: int, run: int) -> list[int]:
    """Return which of `number` objects or clips a run holds out, `count` neighbours.

    Each run goes on where the last one ended, as on a circle. When runs would repeat,
    after a few turns, the start is shifted by one, so that other neighbours follow.
    """
    common_divisor = math.gcd(number, count)
    runs_until_repeat = number // common_divisor
    shift = run // runs_until_repeat % common_divisor
    start = run * count + shift
    return [position % number for position in range(start, start + count)]


def _rounded_fifth(number: int) -> int:
    """Return how many of so many objects, clips or frames the test split has.

    A fifth, rounded, at least one.
    """
    return max(1, round(number / 5))


def held_out_of(table: FrameTable) -> dict[str, str]:
    """Describe what a table of `ClipFolderFrames` holds out of each class.

    Such as "2 of 9 objects: blue, red".
    """
    return {name: _held_out_in_words(table, name) for name in table.classes}


def _held_out_in_words(table: FrameTable, class_name: str) -> str:
    """Say what of a class of clips is held out: objects, clips or the last frames."""
    rows = table.rows(class_name=class_name)
    test_rows = table.rows("test", class_name)
    columns = {
        "objects": table.object_name,
        "clips of its one object": table.session,
    }
    for unit, column in columns.items():
        count = len({column[row] for row in rows})
        if count > 1:
            test_names = list(dict.fromkeys(column[row] for row in test_rows))
            return f"{len(test_names)} of {count} {unit}: {', '.join(test_names)}"
    return f"the last {len(test_rows)} of {len(rows)} frames of its one clip"


@dataclass(frozen=True)
class UprightImages:
    """Read images below a root, rotated as their EXIF orientation says."""

    root: Path

    def __call__(self, path: str) -> Image.Image:
        """Read the image at a path relative to the root."""
        return read_image(self.root / path, upright=True)


def _clips_of_class(
    folder: Path, class_name: str, ignored: Counter
) -> dict[_Clip, list[Path]]:
    """Return the clips of a class in natural order, each with its images.

    A video has none yet. One beside photos is left out: it is perhaps their source.

    Args:
        folder: Folder of the class, with `object/.../clip` or fewer levels below it.
        class_name: Name of the class.
        ignored: Number of files that are left out, by extension; those of the class are
            added to it.

    Raises:
        FrameTableError: If there are no clips, or two have the same name.
    """
    images_of: dict[_Clip, list[Path]] = {}
    path_of: dict[tuple[str, str], Path] = {}  # by object and clip

    def add_clip(object_name: str, name: str, path: Path, images: list[Path]) -> None:
        # The path itself, unless another clip of the object has this name.
        first_path = path_of.setdefault((object_name, name), path)
        if first_path != path:
            raise FrameTableError(
                f"{first_path} and {path} are both clip {name!r}; rename or remove one."
            )
        images_of[_Clip(class_name, object_name, name, path)] = images

    for inner, entries in walk(folder, _raise_unreadable, folder.parent):
        ignored.update(entries.ignored)
        # The class folder, that of the object, and the folders of the clip; a class
        # folder with images itself is one object.
        object_name, *clip_folders = inner.relative_to(folder.parent).parts
        if clip_folders:
            object_name, *clip_folders = clip_folders
        if entries.images:
            name = "/".join(clip_folders) or inner.name
            add_clip(object_name, name, inner, entries.images)
            ignored.update(video.suffix.lower() for video in entries.videos)
        else:
            for video in entries.videos:
                name = "/".join([*clip_folders, video.stem])
                add_clip(object_name, name, video, images=[])
    if not images_of:
        ignored_in_words = ignored_files_in_words(ignored)
        but = f" (but {ignored_in_words})" if ignored_in_words else ""
        raise FrameTableError(
            f"{folder} holds no images and no videos{but}; fill it or remove it. "
            f"{_RULE}"
        )
    ordered = sorted(images_of, key=_clip_sort_key)
    return {clip: images_of[clip] for clip in ordered}


def _raise_unreadable(folder: Path, error: OSError) -> None:
    """Raise FrameTableError for a folder of the data set that cannot be listed."""
    raise FrameTableError(
        f"{folder} cannot be read: {error.strerror or error}. Make it readable, or "
        "move it away."
    )


def _clip_sort_key(clip: _Clip) -> tuple:
    """Return what the clips of a class are sorted by: object, then clip."""
    return natural_key(clip.object_name), natural_key(clip.name)


def _frames_of_videos(
    root: Path, videos: list[Path], fps: float, bad_videos: list[str] | None
) -> dict[Path, list[Path]]:
    """Return the images of the frames of each video clip that can be read.

    They are extracted unless that was done before.

    Args:
        root: Folder of the data set.
        videos: The video clips below it.
        fps: Frames per second.
        bad_videos: Gets a message for each video that cannot be read; None makes such a
            video an error.

    Raises:
        FrameTableError: If videos cannot be read, or one was changed meanwhile.
    """
    rate = str(fps).removesuffix(".0")
    folder = root / FRAMES_FOLDER / f"{rate}fps"  # for the images
    jobs = []
    for video in videos:
        frames_folder = folder / video.relative_to(root)
        jobs.append(Job(video, frames_folder, digits=6, fps=fps, size=SHORT_SIDE))
    failures: dict[Path, str] = {}  # a message by path of the video
    if not all(job.is_finished for job in jobs):
        failures = extract_many(jobs)
    if failures and bad_videos is None:
        lines = [
            f"{len(failures)} of {len(jobs)} videos below {root} cannot be read to "
            "their end; remove or replace them, or leave them out with "
            "--on-bad-frame skip. The frames of the others are kept.",
            *failures.values(),
        ]
        raise FrameTableError("\n  ".join(lines))
    if bad_videos is not None:
        bad_videos += failures.values()
    images_of = {}
    for job in jobs:
        if job.video in failures:
            continue
        names = job.finished_frames()  # None if the video or an image has changed
        if names is None:
            raise FrameTableError(
                f"video {job.video} was changed while it was read; run the same again."
            )
        images_of[job.video] = [job.folder / name for name in names]
    return images_of


BENCHMARK = register(
    Benchmark(
        LAYOUT,
        ClipFolderFrames,
        classes_per_experience=2,
        batch_size=21,
        budget_images=15,
    )
)


@shows_keywords
def ClipFolder(
    dataset_root: str | Path,
    *,
    held_out: int | None = None,
    fps: float = 1.0,
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """Make an Avalanche benchmark of a folder of clips.

    See `ClipFolderFrames` and `Benchmark.stream`.
    """
    return BENCHMARK.stream(dataset_root, {"held_out": held_out, "fps": fps}, **host)
