"""A folder of clips as a data set: `class/object/clip/frame.jpg` or `class/object/clip.mp4`."""

import math
import os
import warnings
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from benchmarks_toybox_ilab.datasets.layout import Layout
from benchmarks_toybox_ilab.datasets.registry import (
    Benchmark,
    FrameBenchmark,
    StreamKeywords,
    Unpack,
    register,
)
from benchmarks_toybox_ilab.tables.folders import entries_of, ignored_files, walk
from benchmarks_toybox_ilab.tables.frame import (
    Frame,
    FrameTableError,
    natural_key,
    whole_number,
)
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from benchmarks_toybox_ilab.tables.image import read_image
from benchmarks_toybox_ilab.tables.names import check_name, check_near, check_not_splits
from benchmarks_toybox_ilab.tables.text import printable
from benchmarks_toybox_ilab.video.extract import Job, extract_many, frame_rate

LAYOUT = Layout(
    name="clip_folder",
    title="a folder of clips",
    tree="<root>/<class>/<object>/<clip>/<frame>.jpg, e.g. cup/red_cup/kitchen/0001.jpg, or a video "
    "<root>/<class>/<object>/<clip>.mp4; an only object, and an only clip of photos, need no folder",
    source="your own images and videos",
)
_RULE = f"the layout is {LAYOUT.tree}"
FRAMES_FOLDER = ".crumb_frames"  # below the root: the frames of its videos
SHORT_SIDE = 512  # pixels; frames of larger videos are reduced


class _Clip(NamedTuple):
    """A clip: the names of its class, its object and itself, and its folder of images or its video."""

    class_name: str
    object_name: str
    name: str
    path: Path


def ClipFolderFrames(
    root: str | Path,
    run: int = 0,
    held_out: int | None = None,
    fps: float = 1.0,
    bad_videos: list[str] | None = None,
    new_class: bool = False,
) -> FrameTable:
    """The table of a folder of clips, which are folders of images, video files, or both.

    A folder of photos is a clip, and so is a video, at any depth, as for `crumb teach`.
    The first folder below that of the class is the object:
    `class/object/clip/frame.jpg`, `class/object/clip.mp4`. Without it, the class is its
    only
    object: `class/clip.mp4`, `class/frame.jpg`. Names are sorted in natural order
    (frame2 before frame10), and a frame's number is its position in its clip. Other
    files are ignored, and counted by extension in a warning. Images are rotated as
    their EXIF orientation says.

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
            f"there is no folder {root}; give the folder of your classes, laid out as {LAYOUT.tree}"
        )
    ignored: Counter[str] = Counter()
    of_clip: dict[_Clip, list[Path]] = {}
    for folder, name in _classes(root, ignored, new_class).items():
        of_clip |= _clips_of_class(folder, name, ignored)
    clips = list(of_clip)
    for clip in clips:
        _utf8(str(clip.path.relative_to(root)), root)
    _held_out(
        clips, run, held_out
    )  # an error of the numbers comes before videos are decoded
    if told := ignored_files(ignored):
        warnings.warn(printable(f"below {root} are ignored: {told}"), stacklevel=1)
    images = {clip.path: found for clip, found in of_clip.items() if found}
    images |= _video_images(
        root, [clip.path for clip in clips if clip.path not in images], fps, bad_videos
    )
    clips = [
        clip for clip in clips if clip.path in images
    ]  # without videos that cannot be read
    tested, parted = _held_out(clips, run, held_out)
    for clip in parted:
        if len(images[clip.path]) == 1:
            raise FrameTableError(
                f"class {clip.class_name!r} has a single image, that of {clip.path}, but a class needs one for "
                "training and another for testing; add images, take more frames of a video (a higher fps), add another "
                "clip, or remove the class."
            )
    frames = []
    for clip in clips:
        trained = 0 if clip in tested else len(images[clip.path])
        trained -= _fifth(trained) if clip in parted else 0
        for position, image in enumerate(images[clip.path]):
            split = "train" if position < trained else "test"
            frames.append(
                Frame(image.relative_to(root).as_posix(), *clip[:3], position, split)
            )
    return FrameTable(frames, root, UprightImages(root), root.name)


def _classes(root: Path, ignored: Counter, new_class: bool) -> dict[Path, str]:
    """The class folders and their names, which must be those of classes, and tell these apart."""
    entries = entries_of(root)
    ignored.update(entries.ignored)
    for file in (*entries.images, *entries.videos):
        raise FrameTableError(f"{file} lies where class folders are expected; {_RULE}")
    if not entries.folders:
        raise FrameTableError(f"{root} holds no class folders; {_RULE}")
    class_names = {
        folder: check_name(_utf8(folder.name, root)) for folder in entries.folders
    }
    folder_of: dict[str, Path] = {}
    for folder, name in class_names.items():
        if (earlier := folder_of.setdefault(name, folder)) is not folder:
            raise FrameTableError(
                f"{earlier} and {folder} are both class {name!r}; rename or merge one."
            )
    if not new_class:
        check_not_splits(
            root,
            {
                one.name: [inner.name for inner in entries_of(one).folders]
                for one in class_names
            },
        )
        check_near(class_names.values())
    return class_names


def _utf8(name: str, root: Path) -> str:
    """Return a name below root; raise FrameTableError if its bytes are not UTF-8."""
    if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
        raise FrameTableError(
            f"the name {os.fsencode(name)!r} below {root} is not UTF-8 text; rename that folder."
        )
    return name


def _held_out(
    clips: list[_Clip], run: int, held_out: int | None
) -> tuple[set[_Clip], list[_Clip]]:
    """The clips that are wholly in the test split, and those of which a part is: the only ones of their classes."""
    tested: set[_Clip] = set()
    parted: list[_Clip] = []
    for name, found in groupby(clips, lambda clip: clip.class_name):
        groups, kind = (
            [list(group) for _, group in groupby(found, lambda clip: clip.object_name)],
            "object",
        )
        if len(groups) == 1:
            groups, kind = [[clip] for clip in groups[0]], "clip"
        number = len(groups)
        if number == 1:
            parted += groups[0] if held_out != 0 else []
            continue
        count = _fifth(number) if held_out is None else held_out
        if count >= number:
            raise FrameTableError(
                f"class {name!r} has {number} {kind}s, so held_out={held_out} leaves none for training; give "
                f"held_out=None to hold out a fifth, or at most {number - 1}, or add {kind}s."
            )
        # Neighbours on a circle: those after the last run's, shifted by one after each
        # full turn.
        common = math.gcd(number, count)
        first = run * count + run // (number // common) % common
        tested |= {
            clip for step in range(count) for clip in groups[(first + step) % number]
        }
    return tested, parted


def _fifth(number: int) -> int:
    """A fifth of a number, rounded, at least one."""
    return max(1, round(number / 5))


def held_out_of(table: FrameTable) -> dict[str, str]:
    """What a table of `ClipFolderFrames` holds out of each class, such as "2 of 9 objects: blue, red"."""
    described = {}
    for class_name in table.classes:
        every, test = table.rows(class_name=class_name), table.rows("test", class_name)
        described[class_name] = (
            f"the last {len(test)} of {len(every)} frames of its one clip"
        )
        for column, kind in (
            (table.session, "clips of its one object"),
            (table.object_name, "objects"),
        ):
            number, names = (
                len({column[row] for row in every}),
                list(dict.fromkeys(column[row] for row in test)),
            )
            if number > 1:
                described[class_name] = (
                    f"{len(names)} of {number} {kind}: {', '.join(names)}"
                )
    return described


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
    """The clips of a class in natural order, each with its images; [] for a video."""
    clips: dict[_Clip, list[Path]] = {}
    names: dict[tuple[str, str], Path] = {}

    def unreadable(place: Path, error: OSError) -> None:
        raise FrameTableError(
            f"{place} cannot be read: {error.strerror or error}. Make it readable, or move it away."
        )

    for place, entries in walk(folder, unreadable, folder.parent):
        above, *below = place.relative_to(folder.parent).parts
        thing = below.pop(0) if below else above
        found = (
            [("/".join(below) or place.name, place, entries.images)]
            if entries.images
            else []
        )
        if not entries.images:  # a video beside photos is their source, perhaps
            found = [
                ("/".join([*below, video.stem]), video, []) for video in entries.videos
            ]
        ignored.update(entries.ignored)
        ignored.update(
            video.suffix.lower() for video in entries.videos if entries.images
        )
        for name, path, images in found:
            if (earlier := names.setdefault((thing, name), path)) != path:
                raise FrameTableError(
                    f"{earlier} and {path} are both clip {name!r}; rename or remove one."
                )
            clips[_Clip(class_name, thing, name, path)] = images
    if not clips:
        but = f" (but {found})" if (found := ignored_files(ignored)) else ""
        raise FrameTableError(
            f"{folder} holds no images and no videos{but}; fill it or remove it. {_RULE}"
        )
    return dict(
        sorted(
            clips.items(),
            key=lambda item: (
                natural_key(item[0].object_name),
                natural_key(item[0].name),
            ),
        )
    )


def _video_images(
    root: Path, videos: list[Path], fps: float, bad_videos: list[str] | None
) -> dict[Path, list[Path]]:
    """The frames of each video that can be read, extracted unless that was done before."""
    if not videos:
        return {}
    folder = root / FRAMES_FOLDER / f"{str(fps).removesuffix('.0')}fps"
    jobs = [
        Job(video, folder / video.relative_to(root), "", 6, fps, SHORT_SIDE)
        for video in videos
    ]
    bad = set()
    if any(job.finished() is None for job in jobs):
        failures = extract_many(jobs)
        if bad_videos is not None:
            bad = {video for video, _ in failures}
            bad_videos += [message for _, message in failures]
        elif failures:
            listed = "".join(f"\n  {message}" for _, message in failures)
            raise FrameTableError(
                f"{len(failures)} of {len(jobs)} videos below {root} cannot be read to their end; remove or replace "
                "them, or leave them out with --on-bad-frame skip. The frames of the others are kept."
                f"{listed}"
            )
    images = {}
    for job in jobs:
        if job.video not in bad:
            names = job.finished()
            if names is None:
                raise FrameTableError(
                    f"video {job.video} was changed while it was read; run the same again."
                )
            images[job.video] = [job.folder / name for name in names]
    return images


BENCHMARK = register(Benchmark(LAYOUT, ClipFolderFrames, 2, 21, 15))


def ClipFolder(
    dataset_root: str | Path,
    *,
    held_out: int | None = None,
    fps: float = 1.0,
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """A folder of clips as an Avalanche benchmark; see `ClipFolderFrames` and `Benchmark.stream`."""
    return BENCHMARK.stream(dataset_root, {"held_out": held_out, "fps": fps}, **host)
